//! The trash: directories that are deleted after the locks are released.
//!
//! A directory is moved into `tempdirs/temp-dir-N`, while `tempdirs/lock-N` is locked; that is one rename, whatever the
//! directory contains. Library versions since 1.59 do the same, and delete what a killed process left there. Earlier
//! versions take an empty `tempdirs` for a layer, so it is removed at the end.

use std::ffi::{OsStr, OsString};

use rustix::fs::{Mode, OFlags};

use super::directory::Directory;
use super::error::{Error, Fault};
use super::locks::{Lock, noise64};
use crate::sys::removal::Removal;

/// The library's name for the directory.
pub(super) const TEMPDIRS: &str = "tempdirs";

/// Its name beside the records of layers, where all entries except layers' directories are moved: podman mounts the
/// driver's directory on itself, and a rename cannot cross from one mount into another.
pub(super) const TEMPDIRS_OF_RECORDS: &str = "tmp";

/// A temporary directory and its lock, which is held.
#[derive(Debug)]
pub(super) struct Trash {
    parent: Directory,
    tempdirs: Directory,
    number: String,
    lock: Lock,
    /// `None` if a killed process left only a lock file.
    directory: Option<Directory>,
    moved: u64,
    adopted: bool,
}

impl Trash {
    /// Returns true if entries may be moved into it: not into one that was adopted.
    pub(super) fn accepts_entries(&self) -> bool {
        !self.adopted
    }

    /// Returns true if it is beside the records of layers.
    pub(super) fn is_of_records(&self) -> bool {
        self.tempdirs.path().file_name() == Some(OsStr::new(TEMPDIRS_OF_RECORDS))
    }

    /// Allocated bytes of its directories on the filesystem `device` (`st_dev`).
    pub(super) fn own_bytes(&self, device: u64) -> u64 {
        let stats = [Some(&self.tempdirs), self.directory.as_ref()]
            .into_iter()
            .flatten()
            .filter_map(|directory| rustix::fs::fstat(directory.fd()).ok());
        let blocks = stats.filter(|stat| stat.st_dev == device).map(|stat| stat.st_blocks);
        blocks.map(|blocks| u64::try_from(blocks).unwrap_or(0) * 512).sum()
    }

    /// Creates a trash in `parent`/`holder`. The store's locks are held, so no other process deletes it before it is
    /// locked.
    pub(super) fn make(parent: &Directory, holder: &str, number: &str) -> Result<Self, Fault> {
        let parent = parent.again()?;
        let tempdirs = match parent.below(holder)? {
            Some(tempdirs) => tempdirs,
            None => parent.make(holder)?,
        };
        let number = number.to_owned();
        let name = lock_name(&number);
        let made = (|| {
            let lock = Self::new_lock(&tempdirs, &name)?;
            Ok((lock, tempdirs.make(directory_name(&number))?))
        })();
        match made {
            Ok((lock, directory)) => Ok(Self {
                parent,
                tempdirs,
                number,
                lock,
                directory: Some(directory),
                moved: 0,
                adopted: false,
            }),
            Err(fault) => {
                let _ = tempdirs.unlink(&name);
                parent.remove_empty(holder);
                Err(fault)
            }
        }
    }

    fn new_lock(tempdirs: &Directory, name: &OsString) -> Result<Lock, Fault> {
        let file = tempdirs.create(name, Mode::RUSR | Mode::WUSR)?;
        let lock = Lock::new(None, tempdirs.path().join(name), file);
        if lock.try_exclusive()? {
            return Ok(lock);
        }
        Err(Fault::new("locking", lock.path(), rustix::io::Errno::AGAIN))
    }

    /// Takes over the trash of a dead process; `None` if a process holds its lock.
    pub(super) fn adopt(parent: &Directory, holder: &str, number: &str) -> Result<Option<Self>, Fault> {
        let parent = parent.again()?;
        let Some(tempdirs) = parent.below(holder)? else { return Ok(None) };
        let name = lock_name(number);
        let lock = match tempdirs.open(&name, OFlags::RDWR)? {
            Some(file) => Lock::new(None, tempdirs.path().join(&name), file),
            None => Self::new_lock(&tempdirs, &name)?,
        };
        if !lock.try_exclusive()? {
            return Ok(None);
        }
        let directory = tempdirs.below(directory_name(number))?;
        Ok(Some(Self {
            parent,
            tempdirs,
            number: number.to_owned(),
            lock,
            directory,
            moved: 0,
            adopted: true,
        }))
    }

    /// Moves an entry of `from` into the trash, and returns its new name.
    pub(super) fn take(&mut self, from: &Directory, name: &str) -> Result<String, Fault> {
        let Some(directory) = &self.directory else {
            return Err(Fault::new("moving", from.path().join(name), rustix::io::Errno::XDEV));
        };
        let entry = format!("{}-{name}", self.moved);
        from.rename(name, directory, &entry)?;
        self.moved += 1;
        Ok(entry)
    }

    /// Deletes one entry. The rest of an entry that cannot be deleted completely (immutable files) is moved into
    /// `layers` under a random id. There it is an orphan, which every library version tolerates, whereas some versions
    /// try in vain to empty a temporary directory each time they open the store. Beside the records it becomes data of
    /// such a layer, in the same way.
    pub(super) fn remove_entry(&self, name: &OsStr, layers: Option<&Directory>) -> Result<Removal, Fault> {
        let layers = if self.is_of_records() { Some(&self.parent) } else { layers };
        let Some(directory) = &self.directory else { return Ok(Removal::default()) };
        let mut removal = directory.remove_tree(name);
        if let Some(layers) = layers.filter(|_| !removal.is_complete() && !removal.interrupted)
            && directory.has(name)?
        {
            let orphan = orphan_name();
            let new_path = layers.path().join(&orphan);
            match directory.rename(name, layers, &orphan) {
                Ok(()) => removal.moved(&directory.path().join(name), &new_path),
                Err(fault) => {
                    tracing::warn!(%fault, "could not remove everything; the rest stays in the \
                        temporary directory");
                }
            }
        }
        Ok(removal)
    }

    pub(super) fn entries(&self) -> Result<Vec<OsString>, Fault> {
        Ok(self.directory.as_ref().map(Directory::names).transpose()?.unwrap_or_default())
    }

    /// Deletes all entries, and then the trash itself.
    pub(super) fn empty(self, layers: Option<&Directory>) -> Result<Removal, Error> {
        let mut all = Removal::default();
        for name in self.entries()? {
            let removal = self.remove_entry(&name, layers)?;
            let interrupted = removal.interrupted;
            all.absorb(removal);
            if interrupted {
                // The next run finds it by layersweep's number, and finishes it.
                return Ok(all);
            }
        }
        let Self { parent, tempdirs, number, lock, .. } = self;
        let name = directory_name(&number);
        if tempdirs.remove_empty(&name) || !tempdirs.has(&name)? {
            tempdirs.unlink(lock_name(&number))?;
        }
        drop(lock);
        if let Some(name) = tempdirs.path().file_name() {
            parent.remove_empty(name);
        }
        Ok(all)
    }
}

/// Digits of layersweep's numbers. The library's numbers have 32 bits, so at most 10 digits.
const OWN_DIGITS: usize = 12;

pub(super) fn new_number() -> String {
    format!("1{:0width$}", noise64() % 10_u64.pow(11), width = OWN_DIGITS - 1)
}

/// Returns true if layersweep chose this number, and not a library.
pub(super) fn is_own_number(number: &str) -> bool {
    number.len() == OWN_DIGITS && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// The number in the name of a temporary directory or of its lock file.
pub(super) fn number_of(name: &str) -> Option<&str> {
    name.strip_prefix("temp-dir-").or_else(|| name.strip_prefix("lock-"))
}

pub(super) fn lock_name(number: &str) -> OsString {
    format!("lock-{number}").into()
}

pub(super) fn directory_name(number: &str) -> OsString {
    format!("temp-dir-{number}").into()
}

/// A random id, which no pull will ever create.
fn orphan_name() -> String {
    (0..4).map(|_| format!("{:016x}", noise64())).collect()
}
