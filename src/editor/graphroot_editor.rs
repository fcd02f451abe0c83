//! The editor of one store and its settings.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use rustix::fs::StatVfsMountFlags;

use super::deleted::Deleted;
use super::directory::device;
use super::error::{Error, Fault, Refusal};
use super::links::Links;
use super::locks::{HeldLocks, Lock};
use super::outside::LookOutside;
use super::reserve_file::ReserveFile;
use super::store_directory::{StoreDirectory, prove_ours};
use crate::stores::containers_storage::outside::OutsideNeeds;
use crate::stores::containers_storage::places::StorePlaces;
use crate::sys::clock::Present;
use crate::sys::root::Root;
use crate::sys::stop;

/// The drivers whose layers we know how to take apart.
const DRIVERS: [&str; 2] = ["overlay", "vfs"];

/// What is freed may be usable only after the filesystem's next commit (btrfs): so many are made.
const COMMITS: u32 = 4;

/// Whether layers are flagged before they are taken apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LayerFlag {
    /// As the library does: the next process that finds the flag after a crash finishes the deletion.
    #[default]
    Set,
    /// The records go first, and a crash leaves orphan directories. So it is done, whatever is set
    /// here, where another layer is flagged already; tests ask for it everywhere.
    Unset,
}

/// Called with the name of each step as it is done.
pub type OnStep = Box<dyn Fn(&'static str) + Send + Sync>;

/// How to edit.
pub struct Options {
    /// How long to wait for the locks.
    pub patience: Duration,
    /// Whether layers are flagged.
    pub layer_flag: LayerFlag,
    /// Whether directories may be moved into `tempdirs` and removed after the locks are
    /// released. If not, or if there is no space for it, they are removed in place.
    pub tempdirs: bool,
    /// Reserve files that may be released, from [`ReserveFile::of_store`].
    pub reserve_files: Vec<ReserveFile>,
    /// Reads the users of the store's images and layers outside its records.
    pub outside: Option<LookOutside>,
    /// The time that ages are counted to, when the deletion was decided; `None`: the wall
    /// clock.
    pub present: Option<Present>,
    /// That all processes that can use the store are in our PID namespace, where that is not the
    /// machine's first.
    pub trust_pid_namespace: bool,
    /// For logs, and for tests that interrupt.
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
    /// What is known of the links of each of its directories; kept from one deletion to the next.
    links: Mutex<HashMap<usize, Links>>,
}

impl Editor {
    /// An editor of the store at `places`. Nothing is opened yet.
    ///
    /// # Errors
    /// When the store cannot be edited: an additional store, one below a mounted root, one with
    /// an unknown driver, another user's.
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
        prove_ours(places)?;
        let is_read_only = |root: &&Root| {
            let facts = rustix::fs::fstatvfs(root.fd());
            facts.is_ok_and(|facts| facts.f_flag.contains(StatVfsMountFlags::RDONLY))
        };
        if let Some(root) = places.areas().find(is_read_only) {
            return Err(Refusal::MountedReadOnly(root.to_path_buf()));
        }
        Ok(Self { places: places.clone(), options, links: Mutex::default() })
    }

    /// Takes the locks of the store, and proves that store and locks are still those that are at their paths.
    pub(super) fn lock(&self, locks: Vec<Lock>) -> Result<HeldLocks, Error> {
        let held = HeldLocks::take(locks, self.options.patience)?;
        self.step("locked");
        held.prove_current(&self.places.within())?;
        self.prove_in_place()?;
        Ok(held)
    }

    /// The open directories must still be at their paths: a store that was renamed is not
    /// cleaned.
    pub(super) fn prove_in_place(&self) -> Result<(), Refusal> {
        for root in self.places.areas().chain(&self.places.runroots) {
            if Root::open(root).map(|now| now.identity()).ok() != Some(root.identity()) {
                let what = "its path now leads to another directory".to_owned();
                return Err(Refusal::Changed { id: root.display().to_string(), what });
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

    /// What dates on the disk are counted to now.
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
        for (at, directory) in directories.iter().enumerate() {
            if let Some(layers) = &directory.layers {
                links.entry(at).or_default().refresh(layers)?;
            }
        }
        Ok(())
    }

    /// What is needed from outside now.
    pub(super) fn look_outside(&self) -> OutsideNeeds {
        self.options.outside.as_ref().map_or_else(OutsideNeeds::default, |look| look())
    }

    /// The links of a directory; other drivers than overlay have none.
    pub(super) fn with_links<T>(&self, dir_index: usize, ask: impl FnOnce(&Links) -> T) -> Option<T> {
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.get(&dir_index).map(ask)
    }

    /// Writes; where there is no room, once more without the reserve file of the `filesystem` that had none.
    /// `is_freed`: there was none before, and something was freed since.
    pub(super) fn write_with_room<'d>(
        &self,
        filesystem: impl Fn(&Fault) -> BorrowedFd<'d>,
        is_freed: bool,
        done: &mut Deleted,
        mut write: impl FnMut() -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut commits_left = if is_freed { COMMITS } else { 0 };
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
            if commits_left == 0 {
                return Err(fault);
            }
            commits_left -= 1;
            let _ = rustix::fs::syncfs(filesystem);
        }
    }

    /// Releases the reserve file on the filesystem `filesystem`; whether there was one.
    fn release_reserve_file(&self, filesystem: BorrowedFd<'_>) -> bool {
        let device = device(filesystem);
        let on_it =
            self.options.reserve_files.iter().filter(|reserve_file| Some(reserve_file.device()) == device);
        let release = |reserve_file: &ReserveFile| {
            reserve_file.release().unwrap_or_else(|error| {
                tracing::warn!(%error, "cannot release the reserve file");
                false
            })
        };
        on_it.map(release).fold(false, |released, one| released | one)
    }

    /// Recreates the reserve file after a deletion has freed space.
    pub(super) fn restore_reserve_files(&self) {
        if stop::is_asked() {
            return;
        }
        for reserve_file in &self.options.reserve_files {
            if let Err(error) = reserve_file.prepare() {
                tracing::debug!(%error, "cannot restore the reserve file");
            }
        }
    }
}
