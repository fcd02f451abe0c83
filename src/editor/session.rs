//! A session: the time for which the store's locks are held.
//!
//! Every process that uses the store waits while a session is open. So a [`Session`] does only what must not mix with
//! the work of other processes: it reads the records, proves that objects are unused, and changes the records. The
//! slow work is done before and after:
//!
//! * Before: mounts, processes, the links of all layers and the needs of other stores are read without the locks,
//!   since any user can create enough mounts to make that slow. Under the locks [`Session::open`] reads only the
//!   changes since then. If the locks came too late, or a change cannot be determined, it releases them and starts
//!   over, at most [`MAX_ATTEMPTS`] times.
//! * After: a directory is not deleted under the locks, but renamed into a temporary directory, the trash. That is one
//!   rename, whatever the directory contains. The files are deleted after the locks are released, by
//!   [`Session::finish`] or, one object at a time, by [`Unlocked::remove`]. A directory that cannot be renamed (no
//!   space, another filesystem) is deleted in place.
//!
//! For example, the deletion of an image of 2 GB keeps the locks for a few renames and a few new record files; the
//! 2 GB are deleted afterwards.
//!
//! [`Session::save`] replaces every record file: it writes a new token into the lock file, replaces the record file,
//! and writes a second token. Library versions up to 1.44 read the token before the file, later ones after it; with
//! two tokens, neither takes old records for current ones. `room` describes what `save` does on a full disk.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::deleted::Deleted;
use super::directory::{Directory, device};
use super::error::{Error, Fault, Refusal, is_no_space};
use super::graphroot_editor::{Editor, LayerFlag};
use super::locks::HeldLocks;
use super::mounted::{Read, UseEvidence};
use super::records::LockedRecords;
use super::room::RoomFromLayers;
use super::store_directory::{self, StoreDirectory};
use super::trash::{self, TEMPDIRS, TEMPDIRS_OF_RECORDS, Trash};
use super::write;
use crate::stores::containers_storage::outside::OutsideNeeds;
use crate::stores::containers_storage::places::RecordKind;
use crate::sys::removal::Removal;

/// Maximum age of the mounts that were read before the locks. Older ones are read again: another process had the locks.
const LONGEST_WAIT: Duration = Duration::from_millis(300);

/// Maximum number of attempts to open a session while other processes keep mounting layers.
const MAX_ATTEMPTS: u32 = 10;

#[derive(Debug)]
struct DirectoryTrash {
    dir_index: usize,
    /// Accepts entries beside records; otherwise entries of the driver's directory.
    of_records: bool,
    /// `None` if no temporary directory could be created: entries are deleted in place.
    trash: Option<Trash>,
}

/// An entry that was moved to a trash.
#[derive(Debug)]
pub(super) struct Moved {
    trash_index: usize,
    /// Its name there; `None`: all entries and the trash itself.
    entry: Option<String>,
}

/// A session whose locks are released. The entries of its trashes are still to be deleted, which may take long.
#[derive(Debug)]
pub(super) struct Unlocked<'e> {
    editor: &'e Editor,
    directories: Vec<StoreDirectory>,
    trashes: Vec<DirectoryTrash>,
    pub(super) locked_for: Duration,
}

/// The current records under the store's locks, and the operations that change them. The locks are held from
/// [`Session::open`] to [`Session::finish`] or [`Session::unlock`].
pub(super) struct Session<'e> {
    pub(super) editor: &'e Editor,
    pub(super) directories: Vec<StoreDirectory>,
    pub(super) records: LockedRecords,
    pub(super) done: Deleted,
    held: HeldLocks,
    trashes: Vec<DirectoryTrash>,
    /// Entries of the trashes, in the order in which they were moved there.
    pub(super) moved: Vec<Moved>,
    pub(super) evidence: UseEvidence,
    pub(super) room: RoomFromLayers,
    /// Number of the temporary directory, chosen before the directory is created.
    pub(super) number: String,
    pub(super) outside: OutsideNeeds,
}

impl<'e> Session<'e> {
    /// Reads mounts and the needs of other stores, takes the locks and reads the records. Starts over if the mounts or
    /// the needs changed before the locks were obtained.
    pub(super) fn open(editor: &'e Editor, read: Read) -> Result<Self, Error> {
        let mut why = Refusal::Unsettled;
        for _ in 0..MAX_ATTEMPTS {
            match Self::try_open(editor, read)? {
                Some(session) if session.outside.moved() => why = Refusal::BorrowersBusy,
                Some(session) => return Ok(session),
                None => why = Refusal::Unsettled,
            }
        }
        Err(why.into())
    }

    fn try_open(editor: &'e Editor, read: Read) -> Result<Option<Self>, Error> {
        let outside = editor.look_outside();
        let directories = StoreDirectory::open_all(&editor.places)?;
        editor.refresh_links(&directories)?;
        let mut evidence = UseEvidence::of_store(&directories, read, editor.options.trust_pid_namespace)?;
        let looked = Instant::now();
        editor.step("looked");
        let held = editor.lock(store_directory::locks(&directories)?)?;
        // Mounts in other namespaces that were made without the library are not seen under the locks.
        if looked.elapsed() > LONGEST_WAIT || !evidence.is_current(&directories)? {
            return Ok(None);
        }
        let records = LockedRecords::load(&directories)?;
        editor.refresh_links(&directories)?;
        let (done, number) = (Deleted::default(), trash::new_number());
        Ok(Some(Self {
            editor,
            directories,
            records,
            done,
            held,
            trashes: Vec::new(),
            moved: Vec::new(),
            evidence,
            room: RoomFromLayers::default(),
            number,
            outside,
        }))
    }

    pub(super) fn step(&self, name: &'static str) {
        self.editor.step(name);
    }

    /// Runs `recipe`, releases the locks even if it failed, and then empties the trashes.
    pub(super) fn run(
        mut self,
        recipe: impl FnOnce(&mut Self) -> Result<(), Error>,
    ) -> Result<Deleted, Error> {
        let result = recipe(&mut self);
        self.finish(result)
    }

    /// Releases the locks, then empties the trashes, which may take long.
    pub(super) fn finish(mut self, mut result: Result<(), Error>) -> Result<Deleted, Error> {
        let mut done = std::mem::take(&mut self.done);
        let mut unlocked = self.unlock();
        done.locked_for = unlocked.locked_for;
        for trash_index in 0..unlocked.trashes.len() {
            match unlocked.remove(&Moved { trash_index, entry: None }) {
                Ok(removal) => done.note(removal),
                Err(error) => result = result.and(Err(error)),
            }
        }
        unlocked.editor.step("trash emptied");
        unlocked.end();
        done.ended(result)
    }

    pub(super) fn unlock(self) -> Unlocked<'e> {
        let Self { editor, directories, held, trashes, .. } = self;
        let locked_for = held.release();
        editor.step("unlocked");
        if locked_for > Duration::from_secs(1) {
            tracing::warn!(seconds = locked_for.as_secs_f64(), "the store was locked for a long time");
        }
        Unlocked { editor, directories, trashes, locked_for }
    }

    /// Returns true if layers are flagged before their files are deleted. Never flags a second layer: some library
    /// versions skip it or crash on it.
    pub(super) fn uses_flags(&self) -> bool {
        self.editor.options.layer_flag == LayerFlag::Set
            && !self.records.layers.iter().any(|layer| layer.incomplete)
    }

    /// Replaces a record file: token, file, token. If there is no room for it, tries again after releasing the reserve
    /// file, then after removing the half-written record files of dead processes, then after emptying each of the
    /// image's own layers ([`Self::make_room`]).
    pub(super) fn save(&mut self, file_index: usize) -> Result<(), Error> {
        let file = &self.records.files[file_index];
        let (kind, content, name) = (file.kind, file.table.to_bytes(), file.name.clone());
        let (durable, path) = (!file.volatile, file.path.clone());
        let Some(directory) = self.directories[file.dir_index].records(kind) else {
            return Err(Fault::new("opening", path, rustix::io::Errno::NOENT).into());
        };
        let directory = directory.again()?;
        let editor = self.editor;
        let mut is_freed = false;
        loop {
            // The token may be on the graphroot's filesystem while the records are on another.
            let filesystem = |fault: &Fault| self.held.file_of(fault).map_or(directory.fd(), AsFd::as_fd);
            let written = editor.write_with_room(filesystem, is_freed, &mut self.done, || {
                self.held.touch(kind)?;
                editor.step("token written");
                let mode = write::mode_of_records(&directory, &name)?;
                write::replace(&directory, &name, &content, mode, durable, &|step| editor.step(step))
            });
            match written {
                Ok(()) => break,
                Err(fault) if !fault.is_no_space() => return Err(fault.into()),
                // `make_room` may delete the image's layers: the image is lost from here on.
                Err(fault) => {
                    let filesystem = device(filesystem(&fault));
                    self.make_room(fault, filesystem)?;
                    is_freed = true;
                }
            }
        }
        self.done.has_changed = true;
        self.step("record file replaced");
        if let Err(fault) = self.held.touch(kind) {
            tracing::warn!(%fault, "cannot write the second token");
        }
        self.step("second token written");
        Ok(())
    }

    /// Moves a layer's directory to the trash, or deletes it in place. Returns false if there was none.
    pub(super) fn discard(&mut self, dir_index: usize, name: &str) -> Result<bool, Error> {
        let Some(layers) = &self.directories[dir_index].layers else { return Ok(false) };
        let layers = layers.again()?;
        self.discard_from(dir_index, &layers, name)
    }

    /// The same for an entry beside the records of a kind.
    pub(super) fn discard_object(
        &mut self,
        dir_index: usize,
        kind: RecordKind,
        name: &str,
    ) -> Result<bool, Error> {
        let Some(records) = self.directories[dir_index].records(kind) else { return Ok(false) };
        let records = records.again()?;
        self.discard_from(dir_index, &records, name)
    }

    /// The same for an entry of the directory `from`.
    pub(super) fn discard_from(
        &mut self,
        dir_index: usize,
        from: &Directory,
        name: &str,
    ) -> Result<bool, Error> {
        if !from.has(name)? {
            return Ok(false);
        }
        // Entries beside records have a temporary directory of their own, if this area has layers at all.
        let driver = self.directories[dir_index].driver.as_ref();
        let of_records = driver.is_some_and(|driver| !from.path().starts_with(driver.path()));
        let trash_index = self.trash(dir_index, of_records);
        if let Some(trash) = &mut self.trashes[trash_index].trash {
            match trash.take(from, name) {
                Ok(entry) => {
                    self.moved.push(Moved { trash_index, entry: Some(entry) });
                    self.done.has_changed = true;
                    self.step("directory moved");
                    return Ok(true);
                }
                Err(fault) if is_permanent(&fault) => {
                    tracing::debug!(%fault, "removing in place");
                }
                Err(fault) => return Err(fault.into()),
            }
        }
        let removal = from.remove_tree(name);
        self.done.in_place = true;
        let interrupted = removal.interrupted;
        self.done.note(removal);
        if interrupted {
            return Err(Error::Interrupted);
        }
        self.step("directory removed");
        Ok(true)
    }

    /// Returns the index of the trash of a directory, and creates it for the first entry that is deleted there.
    fn trash(&mut self, dir_index: usize, of_records: bool) -> usize {
        let known = self.trashes.iter().position(|trash| {
            (trash.dir_index, trash.of_records) == (dir_index, of_records)
                && trash.trash.as_ref().is_none_or(Trash::accepts_entries)
        });
        if let Some(trash_index) = known {
            return trash_index;
        }
        let wanted = if of_records { TEMPDIRS_OF_RECORDS } else { TEMPDIRS };
        let mut parents =
            self.directories[dir_index].trash_parents().filter(|_| self.editor.options.tempdirs);
        let parent = parents.find(|(_, tempdirs_name)| *tempdirs_name == wanted);
        let trash = parent.and_then(|(parent, tempdirs_name)| {
            Trash::make(parent, tempdirs_name, &self.number)
                .inspect_err(|fault| {
                    tracing::debug!(%fault, "cannot create a temporary directory: removing in place");
                })
                .ok()
        });
        self.editor.step("temporary directory created");
        self.trashes.push(DirectoryTrash { dir_index, of_records, trash });
        self.trashes.len() - 1
    }

    /// Adds a dead process's temporary directory, to be deleted after the locks are released.
    pub(super) fn adopt(&mut self, dir_index: usize, trash: Trash) {
        self.moved.push(Moved { trash_index: self.trashes.len(), entry: None });
        self.trashes.push(DirectoryTrash {
            dir_index,
            of_records: trash.is_of_records(),
            trash: Some(trash),
        });
    }
}

impl Unlocked<'_> {
    pub(super) fn remove(&mut self, moved: &Moved) -> Result<Removal, Error> {
        let DirectoryTrash { dir_index, trash, .. } = &mut self.trashes[moved.trash_index];
        let layers = self.directories[*dir_index].layers.as_ref();
        match (&moved.entry, trash) {
            (None, trash) => trash.take().map_or_else(|| Ok(Removal::default()), |trash| trash.empty(layers)),
            (Some(entry), Some(trash)) => Ok(trash.remove_entry(entry.as_ref(), layers)?),
            (Some(_), None) => Ok(Removal::default()),
        }
    }

    /// Allocated bytes of the trashes on the filesystem `device` (`st_dev`), without the entries that were moved there.
    pub(super) fn own_bytes(&self, device: u64) -> u64 {
        let trashes = self.trashes.iter().filter_map(|trash| trash.trash.as_ref());
        trashes.filter(|trash| trash.accepts_entries()).map(|trash| trash.own_bytes(device)).sum()
    }

    /// Deletes the trashes, and the entries that are still in them.
    pub(super) fn end(mut self) {
        for trash_index in 0..self.trashes.len() {
            if let Err(error) = self.remove(&Moved { trash_index, entry: None }) {
                tracing::warn!(%error, "a temporary directory stays; the next run removes it");
            }
        }
        self.editor.restore_reserve_files();
    }
}

/// Returns true if a rename failed for a reason that will not pass, while deleting in place can succeed.
fn is_permanent(fault: &Fault) -> bool {
    use rustix::io::Errno;
    is_no_space(fault.error) || matches!(fault.error, Errno::XDEV | Errno::MLINK | Errno::NAMETOOLONG)
}
