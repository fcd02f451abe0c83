//! Deletes orphans: directories, files and links that no record names.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use rustix::fs::{OFlags, StatxFlags};

use super::deleted::Deleted;
use super::directory::{self, Directory};
use super::error::{Error, Fault, Refusal};
use super::graphroot_editor::Editor;
use super::links;
use super::locks::Lock;
use super::mounted::Read;
use super::outside::prove_layers_outside;
use super::session::{Moved, Session, Unlocked};
use super::trash::{self, Trash};
use crate::model::{Orphan, is_old_enough};
use crate::stores::containers_storage::places::RecordKind;
use crate::stores::containers_storage::since;
use crate::stores::leaks;
use crate::sys::beneath::AS_IT_IS;
use crate::sys::quiet;
use crate::sys::stop;

/// Suffix of the file name of a layer's tar-split.
const TAR_SPLIT: &str = ".tar-split.gz";

/// An orphan that a scan found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrphanAt {
    pub kind: Orphan,
    pub path: PathBuf,
}

impl Editor {
    /// Proves orphans and moves them to the trash, in one session under the locks. Orphans that are distinguished from
    /// work in progress by age alone must be `min_age` old. An orphan that was not reached within half a second has no
    /// answer.
    ///
    /// # Errors
    /// When the store cannot be locked or its records cannot be read.
    pub fn set_aside(&self, orphans: &[OrphanAt], min_age: SignedDuration) -> Result<SetAside<'_>, Error> {
        // The age of a large tree may take long.
        let within = self.places.within();
        let since: Vec<_> =
            orphans.iter().map(|orphan| since::of_orphan(&within, orphan.kind, &orphan.path)).collect();
        let mut session = Session::open(self, Read::Processes)?;
        let began = Instant::now();
        let mut answers = HashMap::new();
        for (orphan, since) in orphans.iter().zip(since) {
            let result = session.reclaim(orphan, AgeCondition { since, min_age });
            let done = std::mem::take(&mut session.done);
            // Other processes wait for the locks.
            let is_last = done.in_place || began.elapsed() > LONGEST_HOLD || stop::is_requested();
            let moved = std::mem::take(&mut session.moved);
            answers.insert(orphan.path.clone(), OrphanResult { done, result, moved });
            if is_last {
                break;
            }
        }
        Ok(SetAside { unlocked: session.unlock(), answers })
    }
}

/// Maximum time for which one session keeps the locks while it proves orphans.
const LONGEST_HOLD: Duration = Duration::from_millis(500);

/// Orphans that were proven and moved to the trash. Each is removed from there by itself, so that the bytes it frees
/// can be measured.
#[derive(Debug)]
pub struct SetAside<'e> {
    unlocked: Unlocked<'e>,
    answers: HashMap<PathBuf, OrphanResult>,
}

#[derive(Debug)]
struct OrphanResult {
    done: Deleted,
    result: Result<(), Error>,
    moved: Vec<Moved>,
}

impl SetAside<'_> {
    /// Deletes one orphan; `None`: it was not reached.
    ///
    /// # Errors
    /// [`Error::Refused`] if it is not an orphan (any more), is in use, or is too young. Other errors as documented.
    pub fn remove(&mut self, path: &Path) -> Option<Result<Deleted, Error>> {
        let OrphanResult { mut done, mut result, moved } = self.answers.remove(path)?;
        done.locked_for = self.unlocked.locked_for;
        for moved in &moved {
            match self.unlocked.remove(moved) {
                Ok(removal) => done.note(removal),
                Err(error) => result = result.and(Err(error)),
            }
        }
        Some(done.ended(result))
    }

    /// Returns true if the orphan was reached, and [`Self::remove`] was not called for it yet.
    #[must_use]
    pub fn has_answer(&self, path: &Path) -> bool {
        self.answers.contains_key(path)
    }

    /// Returns true if the same holds, and the orphan was moved to the trash or deleted in place, or a part of it.
    #[must_use]
    pub fn has_moved(&self, path: &Path) -> bool {
        self.answers.get(path).is_some_and(|answer| answer.done.has_changed)
    }

    /// Allocated bytes of the temporary directories on the filesystem `device` (`st_dev`), without their entries.
    #[must_use]
    pub fn own_bytes(&self, device: u64) -> u64 {
        self.unlocked.own_bytes(device)
    }

    /// Deletes the temporary directories. After a signal the next run deletes their remaining entries.
    pub fn end(self) {
        self.unlocked.end();
    }
}

/// Minimum age, and the age to compare with it.
#[derive(Clone, Copy)]
struct AgeCondition {
    /// The time from which the age counts, if known.
    since: Option<Timestamp>,
    min_age: SignedDuration,
}

struct OpenOrphan {
    dir_index: usize,
    parent: Directory,
    name: String,
    path: PathBuf,
}

impl Session<'_> {
    fn reclaim(&mut self, orphan: &OrphanAt, age: AgeCondition) -> Result<(), Error> {
        let OrphanAt { kind, path } = orphan;
        let Some(found) = self.find(*kind, path)? else {
            return Err(Refusal::Unknown { kind: "leftover", id: path.display().to_string() }.into());
        };
        match kind {
            Orphan::LayerDirectory => {
                self.prove_finished(&found.name)?;
                self.reclaim_layer_directory(found.dir_index, &found.name)?;
            }
            Orphan::ImageDirectory => {
                if self.records.image(&found.name).is_some() {
                    return Err(Refusal::Recorded { id: found.name }.into());
                }
                self.move_to_trash(&found)?;
            }
            Orphan::ContainerDirectory => {
                if self.records.container(&found.name).is_some() {
                    return Err(Refusal::Recorded { id: found.name }.into());
                }
                prove_age(&found, age, self.editor)?;
                self.evidence.prove_no_process(&found.name)?;
                self.move_to_trash(&found)?;
            }
            Orphan::LayerData => {
                let id = found.name.trim_end_matches(TAR_SPLIT);
                if self.records.layer(id).is_some() {
                    return Err(Refusal::Recorded { id: id.to_owned() }.into());
                }
                self.move_to_trash(&found)?;
            }
            // Under the store's locks no process writes a record file.
            Orphan::TempRecord => self.move_to_trash(&found)?,
            Orphan::Staging => self.reclaim_staging(&found, age)?,
            Orphan::TempDirectory => self.reclaim_temporary(&found, age)?,
            // `find` returns none of these.
            Orphan::GraphrootTmp | Orphan::VarTmp | Orphan::Volume => {
                return Err(Refusal::Unknown { kind: "leftover", id: path.display().to_string() }.into());
            }
        }
        self.done.has_changed = true;
        self.done.orphans.push(path.clone());
        self.step("leftover removed");
        Ok(())
    }

    /// Opens the parent directory of the orphan, if `path` is a possible path of its class.
    fn find(&self, kind: Orphan, path: &Path) -> Result<Option<OpenOrphan>, Error> {
        let (Some(holder), Some(name)) = (path.parent(), path.file_name().and_then(OsStr::to_str)) else {
            return Ok(None);
        };
        let is_id = directory::id_of(name.as_ref()).is_some();
        for (dir_index, directory) in self.directories.iter().enumerate() {
            let parent = match kind {
                Orphan::LayerDirectory if is_id => reopened(directory.layers.as_ref())?,
                Orphan::ImageDirectory if is_id => reopened(directory.records(RecordKind::Images))?,
                Orphan::ContainerDirectory if is_id => reopened(directory.records(RecordKind::Containers))?,
                Orphan::LayerData if is_id || name.ends_with(TAR_SPLIT) => {
                    reopened(directory.records(RecordKind::Layers))?
                }
                Orphan::TempRecord if name.starts_with(".tmp-") => temp_record(directory, holder)?,
                Orphan::Staging => below(directory.driver.as_ref(), "staging", holder)?,
                Orphan::TempDirectory => {
                    let parent = directory.trash_parent(holder);
                    parent.map(|(parent, tempdirs)| parent.below(tempdirs)).transpose()?.flatten()
                }
                _ => None,
            };
            let Some(parent) = parent.filter(|parent| parent.path() == holder) else { continue };
            if parent.has(name)? {
                return Ok(Some(OpenOrphan {
                    dir_index,
                    parent,
                    name: name.to_owned(),
                    path: path.to_path_buf(),
                }));
            }
        }
        Ok(None)
    }

    /// Proves that no record names a directory of the driver, and moves it to the trash with its short names.
    pub(super) fn reclaim_layer_directory(&mut self, dir_index: usize, id: &str) -> Result<(), Error> {
        match self.records.layer(id) {
            // In a split store the layer's record may be for its directory in the other area.
            Some(_) => {
                let file = self.records.file_of(RecordKind::Layers, id)?;
                if self.directory_of_layers(file) == dir_index {
                    return Err(Refusal::Recorded { id: id.to_owned() }.into());
                }
            }
            None => self.prove_layer_unnamed(id)?,
        }
        prove_layers_outside(&self.outside, &[id.to_owned()])?;
        let links = self.links_of(dir_index, id)?;
        self.prove_no_lower(id, &links, &[id])?;
        self.prove_mutable(dir_index, id)?;
        self.prove_directory_unmounted(dir_index, id, &links)?;
        self.prove_directory_not_held(dir_index, id)?;
        // Each link takes a block. They are moved, not removed, so that their bytes are measured with the directory's.
        let layers = self.directories[dir_index].layers.as_ref();
        if let Some(short_names) = layers.map(|layers| layers.below(links::DIRECTORY)).transpose()?.flatten()
        {
            for name in &links {
                self.discard_from(dir_index, &short_names, name)?;
            }
        }
        self.discard(dir_index, id)?;
        Ok(())
    }

    /// Moves an orphan to the trash: one rename, whatever it contains.
    fn move_to_trash(&mut self, found: &OpenOrphan) -> Result<(), Error> {
        self.evidence.prove_unmounted(&found.path, &[])?;
        self.evidence.prove_not_held(&found.path)?;
        self.discard_from(found.dir_index, &found.parent, &found.name)?;
        Ok(())
    }

    /// Deletes the staging area of a partial pull. Holds its lock until the area is in the trash.
    fn reclaim_staging(&mut self, found: &OpenOrphan, age: AgeCondition) -> Result<(), Error> {
        let path = Path::new(&found.name).join("staging.lock");
        let lock = found
            .parent
            .open(&path, OFlags::RDWR)?
            .map(|file| Lock::new(None, found.parent.path().join(&path), file));
        if let Some(lock) = &lock
            && !lock.try_exclusive()?
        {
            return Err(Refusal::Held(lock.path().to_path_buf()).into());
        }
        // A pull creates the directory before it takes the lock; in between only the age shows that it is in use.
        prove_age(found, age, self.editor)?;
        self.move_to_trash(found)
    }

    fn reclaim_temporary(&mut self, found: &OpenOrphan, age: AgeCondition) -> Result<(), Error> {
        let Some(number) = trash::number_of(&found.name) else {
            return Err(Refusal::Unknown { kind: "temporary directory", id: found.name.clone() }.into());
        };
        prove_age(found, age, self.editor)?;
        let tempdirs = found.parent.path();
        let directory = tempdirs.join(trash::directory_name(number));
        self.evidence.prove_unmounted(&directory, &[])?;
        self.evidence.prove_not_held(&directory)?;
        let Some((parent, holder)) = self.directories[found.dir_index].trash_parent(tempdirs) else {
            return Err(Refusal::Unknown { kind: "temporary directory", id: found.name.clone() }.into());
        };
        let trash = Trash::adopt(parent, holder, number)?
            .ok_or_else(|| Refusal::Held(tempdirs.join(trash::lock_name(number))))?;
        self.adopt(found.dir_index, trash);
        Ok(())
    }
}

fn reopened(directory: Option<&Directory>) -> Result<Option<Directory>, Fault> {
    directory.map(Directory::again).transpose()
}

fn below(directory: Option<&Directory>, name: &str, wanted: &Path) -> Result<Option<Directory>, Fault> {
    match directory.filter(|directory| directory.path().join(name) == wanted) {
        Some(directory) => directory.below(name),
        None => Ok(None),
    }
}

fn temp_record(
    directory: &super::store_directory::StoreDirectory,
    holder: &Path,
) -> Result<Option<Directory>, Fault> {
    let records = RecordKind::ALL.into_iter().filter_map(|kind| directory.records(kind));
    reopened(records.into_iter().find(|records| records.path() == holder))
}

/// Proves that an orphan was old enough before the locks were taken, and was not changed or recreated since.
fn prove_age(found: &OpenOrphan, wanted: AgeCondition, editor: &Editor) -> Result<(), Error> {
    let wish = StatxFlags::MTIME | StatxFlags::BTIME;
    let stat = rustix::fs::statx(found.parent.fd(), found.name.as_str(), AS_IT_IS, wish)
        .map_err(|error| Fault::new("examining", &found.path, error))?;
    let changed = quiet::time(stat.stx_mtime).max(quiet::born(&stat));
    let since = wanted.since.map(|since| changed.map_or(since, |newer| newer.max(since)));
    let age = leaks::age(since, &editor.present());
    if is_old_enough(age, wanted.min_age) {
        Ok(())
    } else {
        Err(Refusal::Young { path: found.path.clone(), age, wanted: wanted.min_age }.into())
    }
}
