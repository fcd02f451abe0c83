//! The editor of one store and its settings.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rustix::fs::StatVfsMountFlags;

use super::commit::{FREED_WITHIN, commit};
use super::deleted::Deleted;
use super::directory::device;
use super::error::{Error, Fault, Refusal};
use super::links::ShortLinks;
use super::locks::{HeldLocks, Lock};
use super::outside::LookOutside;
use super::reserve_file::ReserveFile;
use super::store_directory::{StoreDirectory, prove_ownership};
use crate::stores::containers_storage::outside::OutsideNeeds;
use crate::stores::containers_storage::places::StorePlaces;
use crate::sys::clock::Present;
use crate::sys::root::Root;
use crate::sys::stop;

/// Drivers whose layers can be deleted.
const DRIVERS: [&str; 2] = ["overlay", "vfs"];

/// Maximum number of commits after something was freed: on btrfs freed bytes may be usable only after the next commit.
const COMMITS: u32 = 4;

/// Use of the `incomplete` flag before a layer's files are deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LayerFlag {
    /// As the library does: the next process that finds the flag after a crash finishes the deletion.
    #[default]
    Set,
    /// The records are removed first, and a crash leaves orphan directories. Used in tests, and, whatever is set here,
    /// if another layer is flagged already.
    Unset,
}

pub type OnStep = Box<dyn Fn(&'static str) + Send + Sync>;

pub struct Options {
    /// Timeout for the store's locks.
    pub patience: Duration,
    pub layer_flag: LayerFlag,
    /// Directories may be moved into `tempdirs` and deleted after the locks are released. If not, or if there is no
    /// space for that, they are deleted in place.
    pub tempdirs: bool,
    /// Reserve files that may be released, from [`ReserveFile::of_store`].
    pub reserve_files: Vec<ReserveFile>,
    /// Finds the users of the store's images and layers outside its records.
    pub outside: Option<LookOutside>,
    /// Time of the decision to delete, to which ages are counted; `None`: the wall clock.
    pub present: Option<Present>,
    /// All processes that can use the store are in this process's PID namespace, even if that is not the machine's
    /// first.
    pub trust_pid_namespace: bool,
    /// For logs, and for tests that interrupt an edit.
    pub on_step: Option<OnStep>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(20),
            layer_flag: LayerFlag::default(),
            tempdirs: true,
            reserve_files: Vec::new(),
            outside: None,
            present: None,
            trust_pid_namespace: false,
            on_step: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Options")
            .field("patience", &self.patience)
            .field("layer_flag", &self.layer_flag)
            .field("tempdirs", &self.tempdirs)
            .field("reserve_files", &self.reserve_files)
            .field("trust_pid_namespace", &self.trust_pid_namespace)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub struct Editor {
    pub(super) places: StorePlaces,
    pub(super) options: Options,
    /// Links of each of its directories, by index; kept from one deletion to the next.
    links: Mutex<HashMap<usize, ShortLinks>>,
}

impl Editor {
    /// Creates an editor of the store at `places`. Opens nothing yet.
    ///
    /// # Errors
    /// When the store cannot be edited: an additional store, a store below a mounted root, a store with an unknown
    /// driver, a store of another user.
    pub fn new(places: &StorePlaces, options: Options) -> Result<Self, Refusal> {
        if places.foreign {
            return Err(Refusal::Foreign);
        }
        if places.read_only {
            return Err(Refusal::ReadOnly(places.graphroot.to_path_buf()));
        }
        if !DRIVERS.contains(&places.driver.as_str()) {
            return Err(Refusal::Driver(places.driver.clone()));
        }
        prove_ownership(places)?;
        for root in places.areas() {
            let facts = rustix::fs::fstatvfs(root.fd());
            if facts.is_ok_and(|facts| facts.f_flag.contains(StatVfsMountFlags::RDONLY)) {
                return Err(Refusal::MountedReadOnly(root.to_path_buf()));
            }
        }
        Ok(Self { places: places.clone(), options, links: Mutex::default() })
    }

    /// Takes the store's locks, and proves that the paths still lead to this store and these lock files.
    pub(super) fn lock(&self, locks: Vec<Lock>) -> Result<HeldLocks, Error> {
        let held = HeldLocks::take(locks, self.options.patience)?;
        self.step("locked");
        held.prove_current(&self.places.within())?;
        self.prove_in_place()?;
        Ok(held)
    }

    /// Proves that the open directories are still at their paths: a store that was renamed is not cleaned.
    pub(super) fn prove_in_place(&self) -> Result<(), Refusal> {
        for root in self.places.areas().chain(&self.places.runroots) {
            if Root::open(root).map(|now| now.identity()).ok() != Some(root.identity()) {
                let change = "its path now leads to another directory".to_owned();
                return Err(Refusal::Changed { id: root.display().to_string(), change });
            }
        }
        Ok(())
    }

    pub(super) fn step(&self, name: &'static str) {
        tracing::trace!(step = name);
        if let Some(on_step) = &self.options.on_step {
            on_step(name);
        }
    }

    /// The time to which ages are counted.
    pub(super) fn present(&self) -> Present {
        let decided = self.options.present.as_ref().map(Present::later);
        decided.unwrap_or_else(|| Present::at(Timestamp::now(), Vec::new()))
    }

    /// Reads the links that are not known yet. Only overlay has any.
    pub(super) fn refresh_links(&self, directories: &[StoreDirectory]) -> Result<(), Fault> {
        if self.places.driver != "overlay" {
            return Ok(());
        }
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        for (dir_index, directory) in directories.iter().enumerate() {
            if let Some(layers) = &directory.layers {
                links.entry(dir_index).or_default().refresh(layers)?;
            }
        }
        Ok(())
    }

    pub(super) fn look_outside(&self) -> OutsideNeeds {
        self.options.outside.as_ref().map_or_else(OutsideNeeds::default, |look| look())
    }

    /// Calls `use_links` with the links of a directory. Only overlay has any.
    pub(super) fn with_links<T>(
        &self,
        dir_index: usize,
        use_links: impl FnOnce(&ShortLinks) -> T,
    ) -> Option<T> {
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.get(&dir_index).map(use_links)
    }

    /// Calls `write`. If there is no room, releases the reserve file of the filesystem that had none, and tries again
    /// after each of a few commits. `is_freed`: an earlier call failed for want of room, and something was freed since.
    pub(super) fn write_with_room<'d>(
        &self,
        filesystem: impl Fn(&Fault) -> BorrowedFd<'d>,
        is_freed: bool,
        done: &mut Deleted,
        mut write: impl FnMut() -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut commits_left = if is_freed { COMMITS } else { 0 };
        let until = Instant::now() + FREED_WITHIN;
        loop {
            let fault = match write() {
                Err(fault) if fault.is_no_space() => fault,
                other => return other,
            };
            let filesystem = filesystem(&fault);
            if self.release_reserve_file(filesystem) {
                done.reserve_file_released = true;
                commits_left = COMMITS;
            }
            if commits_left == 0 || !commit(filesystem, until) {
                return Err(fault);
            }
            commits_left -= 1;
        }
    }

    /// Releases the reserve files on `filesystem`. Returns true if there was one.
    fn release_reserve_file(&self, filesystem: BorrowedFd<'_>) -> bool {
        let device = device(filesystem);
        let mut is_released = false;
        for reserve_file in self.options.reserve_files.iter().filter(|file| Some(file.device()) == device) {
            match reserve_file.release() {
                Ok(existed) => is_released |= existed,
                Err(error) => tracing::warn!(%error, "cannot release the reserve file"),
            }
        }
        is_released
    }

    /// Recreates the reserve file after a deletion has freed space.
    pub(super) fn restore_reserve_files(&self) {
        if stop::is_requested() {
            return;
        }
        for reserve_file in &self.options.reserve_files {
            if let Err(error) = reserve_file.prepare() {
                tracing::debug!(%error, "cannot restore the reserve file");
            }
        }
    }
}
