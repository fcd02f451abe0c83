//! Copies the pages of one transaction from a file that another process may be writing, without any lock: holding
//! bolt's own lock would keep containerd from starting.
//!
//! Commit T+1 writes only pages that transaction T does not use, then the meta page that T does not use. The pages of
//! T are therefore intact as long as T is the newest transaction. If the newest valid meta page is the same after the
//! copy as before it, the copy is transaction T. Finding T+1 after the copy is not good enough: T+2, which may reuse
//! T's pages, can already be in progress.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use super::meta::{META_BYTES, Meta, page_sizes, parse};

/// Source of pages that can be read at any offset; a trait so that tests can simulate a writer.
pub trait PageSource {
    /// Length in bytes.
    ///
    /// # Errors
    /// The error of the system call.
    fn length(&self) -> io::Result<u64>;

    /// Reads up to `into.len()` bytes at `offset`; fewer only at the end of the file.
    ///
    /// # Errors
    /// The error of the system call.
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

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum bytes in use; a larger database is not read. The largest on record uses 155 MB.
    pub bytes: u64,
    /// Maximum number of attempts to copy a file that another process is writing.
    pub attempts: u32,
    /// Maximum time for these attempts.
    pub patience: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: 1 << 30, attempts: 100, patience: Duration::from_secs(3) }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum BoltError {
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Neither meta page is valid; contains the reason for the first.
    #[error("not a bolt database: neither of its first two pages is a meta page ({0})")]
    NoMeta(&'static str),
    /// The file is shorter than its meta page requires.
    #[error("truncated: {length} bytes, at least {used} expected")]
    Truncated {
        length: u64,
        /// Bytes that the newest transaction uses.
        used: u64,
    },
    /// The newest transaction uses more bytes than the limit.
    #[error("too large: {used} bytes in use, at most {limit} are read")]
    TooLarge {
        /// Bytes that the newest transaction uses.
        used: u64,
        limit: u64,
    },
    #[error("damaged: {0}")]
    Damaged(#[from] super::page::Damage),
    /// The file changed during every attempt.
    #[error("busy: it changed during each of {attempts} attempts to read it")]
    Busy { attempts: u32 },
}

/// Copy of the newest transaction.
#[derive(Debug)]
pub struct Copy {
    /// The file up to the newest transaction's high water mark. Bytes after that are left over from an earlier
    /// copy.
    pub bytes: Vec<u8>,
    pub newest: Meta,
}

/// Copies the newest transaction, reusing the memory of `bytes`.
///
/// # Errors
/// Any [`BoltError`] except `Damaged`.
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
            // An error, too, counts only if nothing was committed meanwhile.
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

/// Reads the bytes that `newest` uses.
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
    // Never shrink the buffer: filling it with zeros again takes as long as reading the file.
    bytes.resize(want.max(bytes.len()), 0);
    let read = source.read_at(0, bytes.get_mut(..want).unwrap_or_default())?;
    if read < want {
        let length = read as u64;
        return Err(BoltError::Truncated { length, used });
    }
    Ok(())
}

/// Returns the newer of the two meta pages.
///
/// # Errors
/// If the file cannot be read or is not a bolt file.
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

/// Finds the second meta page of a file whose first is invalid, so that the page size is unknown.
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
