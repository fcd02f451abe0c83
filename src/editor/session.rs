//! A session under the store's locks: the current records and the operations that change them.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::deleted::Deleted;
use super::directory::{Directory, device};
use super::error::{Error, Fault, Refusal, is_no_space};
use super::graphroot_editor::{Editor, LayerFlag};
use super::locks::HeldLocks;
use super::mounted::{Evidence, Read};
use super::records::LockedRecords;
use super::room::RoomFromLayers;
use super::store_directory::{self, StoreDirectory};
use super::trash::{self, TEMPDIRS, TEMPDIRS_OF_RECORDS, Trash};
use super::write;
use crate::stores::containers_storage::outside::OutsideNeeds;
use crate::stores::containers_storage::places::RecordKind;
use crate::sys::removal::Removal;

/// Mounts that were read longer ago than this are read again: another process had the locks.
const LONGEST_WAIT: Duration = Duration::from_millis(300);

/// How often a proof is restarted while others keep mounting.
const TRIES: u32 = 10;

/// Where what is to be deleted in a directory is moved.
#[derive(Debug)]
struct DirectoryTrash {
    dir_index: usize,
    /// What is beside records; else what is in the driver's directory.
    of_records: bool,
    /// `None` if nothing can be moved.
    trash: Option<Trash>,
}

/// Something that was moved to a trash.
#[derive(Debug)]
pub(super) struct Moved {
    trash_index: usize,
    /// Its name there; `None`: all that is there, with the trash itself.
    entry: Option<String>,
}

/// A session whose locks are released: what was moved to its trashes is still to be removed, which may take long.
#[derive(Debug)]
pub(super) struct Unlocked<'e> {
    editor: &'e Editor,
    directories: Vec<StoreDirectory>,
    trashes: Vec<DirectoryTrash>,
    /// Time for which the locks were held.
    pub(super) locked_for: Duration,
}

/// The locks are held from its making to [`Session::finish`].
pub(super) struct Session<'e> {
    pub(super) editor: &'e Editor,
    pub(super) directories: Vec<StoreDirectory>,
    pub(super) records: LockedRecords,
    pub(super) done: Deleted,
    held: HeldLocks,
    trashes: Vec<DirectoryTrash>,
    /// Entries that were moved to the trashes, in this order.
    pub(super) moved: Vec<Moved>,
    pub(super) evidence: Evidence,
    pub(super) room: RoomFromLayers,
    /// Of the temporary directory, known before it is created.
    pub(super) number: String,
    pub(super) outside: OutsideNeeds,
}

impl<'e> Session<'e> {
    /// Reads what others do and need, takes the locks and reads the records. Where that has changed by
    /// then, all starts over.
    pub(super) fn open(editor: &'e Editor, read: Read) -> Result<Self, Error> {
        let mut why = Refusal::Unsettled;
        for _ in 0..TRIES {
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
        let mut evidence = Evidence::of_store(&directories, read, editor.options.trust_pid_namespace)?;
        let looked = Instant::now();
        editor.step("looked");
        let held = editor.lock(store_directory::locks(&directories)?)?;
        // Mounts in other namespaces that do not go through the library are not seen under the locks.
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

    /// Runs `recipe`, releases the locks whatever came of it, and then removes what was set
    /// aside, which may take long.
    pub(super) fn run(
        mut self,
        recipe: impl FnOnce(&mut Self) -> Result<(), Error>,
    ) -> Result<Deleted, Error> {
        let result = recipe(&mut self);
        self.finish(result)
    }

    /// Releases the locks, then removes what was moved to the trash.
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

    /// Releases the locks.
    pub(super) fn unlock(self) -> Unlocked<'e> {
        let Self { editor, directories, held, trashes, .. } = self;
        let locked_for = held.release();
        editor.step("unlocked");
        if locked_for > Duration::from_secs(1) {
            tracing::warn!(seconds = locked_for.as_secs_f64(), "the store was locked for a long time");
        }
        Unlocked { editor, directories, trashes, locked_for }
    }

    /// Whether layers are flagged before they are taken apart. Never two at a time: some
    /// library versions skip the second or crash on it.
    pub(super) fn flags(&self) -> bool {
        self.editor.options.layer_flag == LayerFlag::Set
            && !self.records.layers.iter().any(|layer| layer.incomplete)
    }

    /// Rewrites a record file: token, file, token. Where there is no room for it, tries again with the reserve file
    /// released, then without what dead processes have left of record files, then with each of the image's own layers
    /// emptied ([`Self::make_room`]).
    pub(super) fn save(&mut self, file: usize) -> Result<(), Error> {
        let at = &self.records.files[file];
        let (kind, content, name) = (at.kind, at.table.to_bytes(), at.name.clone());
        let (durable, path) = (!at.volatile, at.path.clone());
        let Some(directory) = self.directories[at.dir_index].records(kind) else {
            return Err(Fault::new("opening", path, rustix::io::Errno::NOENT).into());
        };
        let directory = directory.again()?;
        let editor = self.editor;
        let mut is_freed = false;
        loop {
            // A token may be on another filesystem than the records, that of the graphroot.
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
                // From here on the image may be lost.
                Err(fault) => {
                    let filesystem = device(filesystem(&fault));
                    self.make_room(fault, filesystem)?;
                    is_freed = true;
                }
            }
        }
        self.done.has_changed = true;
        self.step("record file replaced");
        // Library versions up to 1.44 read the token before the file, later ones after it.
        if let Err(fault) = self.held.touch(kind) {
            tracing::warn!(%fault, "cannot write the second token");
        }
        self.step("second token written");
        Ok(())
    }

    /// Takes a layer's directory out of the way; whether there was one.
    pub(super) fn discard(&mut self, dir_index: usize, name: &str) -> Result<bool, Error> {
        let Some(layers) = &self.directories[dir_index].layers else { return Ok(false) };
        let layers = layers.again()?;
        self.discard_from(dir_index, &layers, name)
    }

    /// Takes a directory beside records out of the way; whether there was one.
    pub(super) fn discard_object(
        &mut self,
        dir_index: usize,
        of: RecordKind,
        name: &str,
    ) -> Result<bool, Error> {
        let Some(records) = self.directories[dir_index].records(of) else { return Ok(false) };
        let records = records.again()?;
        self.discard_from(dir_index, &records, name)
    }

    /// Takes an entry of `from` out of the way: into a temporary directory if that can be, else
    /// it is removed where it is. Whether there was one.
    pub(super) fn discard_from(
        &mut self,
        dir_index: usize,
        from: &Directory,
        name: &str,
    ) -> Result<bool, Error> {
        if !from.has(name)? {
            return Ok(false);
        }
        // Records have a temporary directory of their own, where their place has layers at all.
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
                Err(fault) if moves_nowhere(&fault) => {
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

    /// The index of the trash of a place; made where this is the first thing that is deleted there.
    fn trash(&mut self, dir_index: usize, of_records: bool) -> usize {
        let is_it = |one: &DirectoryTrash| {
            (one.dir_index, one.of_records) == (dir_index, of_records)
                && one.trash.as_ref().is_none_or(Trash::is_ours)
        };
        self.trashes.iter().position(is_it).unwrap_or_else(|| {
            let wanted = if of_records { TEMPDIRS_OF_RECORDS } else { TEMPDIRS };
            let mut parents =
                self.directories[dir_index].trash_parents().filter(|_| self.editor.options.tempdirs);
            let parent = parents.find(|(_, holder)| *holder == wanted);
            let trash = parent.and_then(|(parent, holder)| {
                Trash::make(parent, holder, &self.number)
                    .inspect_err(|fault| {
                        tracing::debug!(%fault, "cannot create a temporary directory: removing in place");
                    })
                    .ok()
            });
            self.editor.step("temporary directory created");
            self.trashes.push(DirectoryTrash { dir_index, of_records, trash });
            self.trashes.len() - 1
        })
    }

    /// Has a dead process's temporary directory removed with ours, once the locks are released.
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
    /// Removes something that was moved to a trash.
    pub(super) fn remove(&mut self, moved: &Moved) -> Result<Removal, Error> {
        let DirectoryTrash { dir_index, trash, .. } = &mut self.trashes[moved.trash_index];
        let layers = self.directories[*dir_index].layers.as_ref();
        match (&moved.entry, trash) {
            (None, trash) => trash.take().map_or_else(|| Ok(Removal::default()), |trash| trash.empty(layers)),
            (Some(entry), Some(trash)) => Ok(trash.remove_entry(entry.as_ref(), layers)?),
            (Some(_), None) => Ok(Removal::default()),
        }
    }

    /// Bytes that the trashes take on the filesystem `device` (`st_dev`), without what was moved there.
    pub(super) fn own_bytes(&self, device: u64) -> u64 {
        let trashes = self.trashes.iter().filter_map(|trash| trash.trash.as_ref());
        trashes.filter(|trash| trash.is_ours()).map(|trash| trash.own_bytes(device)).sum()
    }

    /// Removes the trashes with what may still be in them.
    pub(super) fn end(mut self) {
        for trash_index in 0..self.trashes.len() {
            if let Err(error) = self.remove(&Moved { trash_index, entry: None }) {
                tracing::warn!(%error, "a temporary directory stays; the next run removes it");
            }
        }
        self.editor.restore_reserve_files();
    }
}

/// A rename that cannot work however often it is tried, where removing in place can.
fn moves_nowhere(fault: &Fault) -> bool {
    use rustix::io::Errno;
    is_no_space(fault.error) || matches!(fault.error, Errno::XDEV | Errno::MLINK | Errno::NAMETOOLONG)
}
