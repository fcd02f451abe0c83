//! Copies the pages of one transaction from a file that another process may be writing,
//! without any lock: bolt's own lock would keep containerd from starting.
//!
//! A commit T+1 writes only pages that T does not use, then the meta page that T does not
//! use. So the pages of T are intact as long as T is the newest: if the newest valid meta is
//! the same after the copy as before it, the copy is transaction T. T+1 after the copy is
//! not good enough, since T+2, which may use T's pages again, can be in progress already.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use super::meta::{META_BYTES, Meta, page_sizes, parse};

/// A file that can be read at any place; a trait so that tests can play the writer.
pub trait PageSource {
    /// Its length in bytes.
    ///
    /// # Errors
    /// What the system says.
    fn length(&self) -> io::Result<u64>;

    /// Reads up to `into.len()` bytes at `offset`; fewer only at the end.
    ///
    /// # Errors
    /// What the system says.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;
}

impl PageSource for File {
    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match FileExt::read_at(self, rest, offset + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }
}

/// How much a read may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes in use of the largest file that is read. The largest on record has 155 MB.
    pub bytes: u64,
    /// How often a copy is tried while another process writes.
    pub attempts: u32,
    /// How long a copy is tried while another process writes.
    pub patience: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: 1 << 30, attempts: 100, patience: Duration::from_secs(3) }
    }
}

/// Why a database could not be read.
#[derive(Debug, thiserror::Error)]
pub enum BoltError {
    /// The file cannot be opened or read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// No meta page is valid; why the first is not.
    #[error("not a bolt database: neither of its first two pages is a meta page ({0})")]
    NoMeta(&'static str),
    /// The file is shorter than its meta page says.
    #[error("truncated: {length} bytes, at least {used} expected")]
    Truncated {
        /// Bytes that the file has.
        length: u64,
        /// Bytes that the newest transaction uses.
        used: u64,
    },
    /// More bytes in use than the limit.
    #[error("too large: {used} bytes in use, at most {limit} are read")]
    TooLarge {
        /// Bytes that the newest transaction uses.
        used: u64,
        limit: u64,
    },
    /// The newest transaction's tree is damaged.
    #[error("damaged: {0}")]
    Damaged(#[from] super::page::Damage),
    /// The file kept changing.
    #[error("busy: it changed during each of {attempts} attempts to read it")]
    Busy {
        /// How often it was tried.
        attempts: u32,
    },
}

/// The pages of the newest transaction.
#[derive(Debug)]
pub struct Copy {
    /// The file up to the newest transaction's high water; what may follow is of an earlier copy.
    pub bytes: Vec<u8>,
    pub newest: Meta,
}

/// Copies the newest transaction into `bytes`, whatever is there.
///
/// # Errors
/// All of [`BoltError`] but `Damaged`.
pub fn take(mut bytes: Vec<u8>, source: &impl PageSource, limits: &Limits) -> Result<Copy, BoltError> {
    let start = Instant::now();
    let mut attempts = 0;
    loop {
        let before = newest(source);
        let whole = match &before {
            Ok(newest) => fill(source, newest, limits, &mut bytes),
            Err(_) => Ok(()),
        };
        attempts += 1;
        match (before, whole, newest(source)) {
            // An error counts only if nothing was written meanwhile, too.
            (Ok(newest), whole, Ok(after)) if after == newest => {
                whole?;
                return Ok(Copy { bytes, newest });
            }
            (Err(error), _, Err(_)) => return Err(error),
            _ => {}
        }
        if attempts >= limits.attempts || start.elapsed() >= limits.patience {
            return Err(BoltError::Busy { attempts });
        }
        std::thread::sleep(Duration::from_millis(1 << attempts.min(6)));
    }
}

/// Reads what `newest` uses into `bytes`.
fn fill(
    source: &impl PageSource,
    newest: &Meta,
    limits: &Limits,
    bytes: &mut Vec<u8>,
) -> Result<(), BoltError> {
    let used = newest.used_bytes().unwrap_or(u64::MAX);
    let length = source.length()?;
    if used > length {
        return Err(BoltError::Truncated { length, used });
    }
    let limit = limits.bytes;
    let too_large = BoltError::TooLarge { used, limit };
    let Some(want) = usize::try_from(used).ok().filter(|_| used <= limit) else {
        return Err(too_large);
    };
    if bytes.try_reserve_exact(want.saturating_sub(bytes.len())).is_err() {
        return Err(too_large);
    }
    // Never shorter: to fill it with zeros again takes as long as to read.
    bytes.resize(want.max(bytes.len()), 0);
    let read = source.read_at(0, bytes.get_mut(..want).unwrap_or_default())?;
    if read < want {
        let length = read as u64;
        return Err(BoltError::Truncated { length, used });
    }
    Ok(())
}

/// The newest of the two meta pages.
///
/// # Errors
/// When it cannot be read or is not a bolt file.
pub fn newest(source: &impl PageSource) -> Result<Meta, BoltError> {
    let first = slot(source, 0)?;
    let second = match first {
        Ok(meta) => slot(source, meta.page_size as u64)?.ok(),
        Err(_) => find_second(source)?,
    };
    match (first, second) {
        (Ok(first), Some(second)) if second.txid > first.txid => Ok(second),
        (Ok(first), Some(_)) => Ok(first),
        (Ok(meta), None) | (Err(_), Some(meta)) => Ok(Meta { is_alone: true, ..meta }),
        (Err(reason), None) => Err(BoltError::NoMeta(reason)),
    }
}

/// The second meta page of a file whose first one, which tells the page size, is invalid.
fn find_second(source: &impl PageSource) -> io::Result<Option<Meta>> {
    for size in page_sizes() {
        if let Ok(meta) = slot(source, size as u64)?
            && meta.page_size == size
        {
            return Ok(Some(meta));
        }
    }
    Ok(None)
}

fn slot(source: &impl PageSource, offset: u64) -> io::Result<Result<Meta, &'static str>> {
    let mut page = [0; META_BYTES];
    let read = source.read_at(offset, &mut page)?;
    Ok(parse(page.get(..read).unwrap_or(&page)))
}
