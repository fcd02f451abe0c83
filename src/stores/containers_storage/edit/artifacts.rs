//! Deletes artifacts as `podman artifact rm` does, but in an order that is safe when the process is killed.
//!
//! The libraries unlink an artifact's blobs and then write the index: if killed in between, they leave
//! an entry without its blobs. Here the index is written first, under the store's lock; blobs that no
//! other entry needs are renamed to what a pull calls its temporary files, which needs no space, and
//! are unlinked after the lock is released.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use jiff::SignedDuration;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::deleted::Deleted;
use super::directory::Directory;
use super::editor::Editor;
use super::error::{Error, Fault, Refusal};
use super::image::PlannedImage;
use super::locks::{HeldLocks, Lock, noise64};
use super::mounted::{Evidence, Read};
use super::orphans::OrphanAt;
use super::write;
use crate::model::{Orphan, is_old_enough};
use crate::stores::containers_storage::artifacts::layout::{self, Document, Documents, Index, path_of};
use crate::stores::containers_storage::artifacts::{
    BLOBS, DRIVER, INDEX, LOCK, MOST_DOCUMENT_BYTES, MOST_INDEX_BYTES, is_temporary, volume_users,
};
use crate::stores::containers_storage::since;
use crate::stores::leaks;
use crate::sys::allowance::Allowance;

/// What a blob is called between the index and the end; a scan knows it as `artifact-orphan`.
const TRASH: &str = "oci-put-blob-layersweep";

impl Editor {
    pub fn is_of_artifacts(&self) -> bool {
        self.places.driver == DRIVER
    }

    /// Deletes an artifact with all its names, and the blobs that no other one needs.
    pub(super) fn delete_artifact(&self, planned: &PlannedImage) -> Result<Deleted, Error> {
        let mut session = ArtifactSession::open(self)?;
        let result = session.delete(planned);
        session.finish(result)
    }

    /// Removes a blob that no entry needs, or a temporary file.
    pub(super) fn reclaim_of_artifacts(
        &self,
        orphan: &OrphanAt,
        min_age: SignedDuration,
    ) -> Result<Deleted, Error> {
        let mut session = ArtifactSession::open(self)?;
        let needed = session.needed_without("")?;
        let result = session.reclaim(orphan, &needed, min_age);
        session.finish(result)
    }
}

/// The store under its lock.
struct ArtifactSession<'e> {
    editor: &'e Editor,
    top: Directory,
    held: HeldLocks,
    index: Index,
    documents: Documents,
    evidence: Evidence,
    /// Names in `top` of what goes when the lock is released.
    trash: Vec<OsString>,
    number: u64,
    done: Deleted,
}

impl<'e> ArtifactSession<'e> {
    fn open(editor: &'e Editor) -> Result<Self, Error> {
        let graphroot = Directory::top(&editor.places.graphroot)?;
        let unknown =
            || Refusal::Unknown { kind: "artifact store", id: graphroot.path().display().to_string() };
        let top = graphroot.below(DRIVER)?.ok_or_else(unknown)?;
        let path = top.path().join(LOCK);
        let lock = top.open(LOCK, OFlags::RDWR)?.ok_or_else(|| Refusal::NoLockFile(path.clone()))?;
        let trusts_namespace = editor.options.trust_pid_namespace;
        let blobs = [top.path().join(BLOBS)];
        let mut evidence = Evidence::of_directories(&blobs, Read::Mounts, trusts_namespace)?;
        editor.step("looked");
        let held = editor.lock(vec![Lock::new(None, path, lock)])?;
        evidence.is_current(&[])?;
        let damaged =
            |message: &str| Refusal::Damaged { path: top.path().join(INDEX), message: message.into() };
        let bytes = top.read(INDEX, MOST_INDEX_BYTES)?.ok_or_else(|| damaged("is not there"))?;
        let index = Index::parse(&bytes).ok_or_else(|| damaged("is not the index of an OCI layout"))?;
        if index.entries().any(|entry| entry.is_none()) {
            return Err(damaged("has an entry without a digest").into());
        }
        Ok(Self {
            editor,
            top,
            held,
            index,
            documents: Documents::new(),
            evidence,
            trash: Vec::new(),
            number: noise64(),
            done: Deleted::default(),
        })
    }

    fn reach(&mut self, digest: &str) -> layout::Reach {
        let read = |wanted: &str| document_of(&self.top, wanted);
        layout::reach(digest, &mut self.documents, &read, &Allowance::default())
    }

    /// All digests that the entries but those of `digest` need.
    fn needed_without(&mut self, digest: &str) -> Result<HashSet<String>, Error> {
        let entries = self.index.entries().flatten();
        let others: HashSet<String> =
            entries.filter(|entry| entry.digest != digest).map(|entry| entry.digest.clone()).collect();
        let mut needed = HashSet::new();
        for other in &others {
            let reach = self.reach(other);
            // The needs of an existing but unreadable document are unknown.
            for unread in &reach.unread {
                if let Some(path) = path_of(unread)
                    && self.top.has(&path)?
                {
                    let message = "cannot be parsed, so what it needs is unknown".to_owned();
                    return Err(Refusal::Damaged { path: self.top.path().join(path), message }.into());
                }
            }
            needed.extend(reach.blobs);
        }
        Ok(needed)
    }

    fn delete(&mut self, planned: &PlannedImage) -> Result<(), Error> {
        let (digest, names) = self.prove_names(planned)?;
        self.prove_no_volume(&digest, &digest, &names)?;
        let needed = self.needed_without(&digest)?;
        let own = self.reach(&digest).blobs;
        let within = self.editor.places.within();
        let mut to_delete = Vec::new();
        for path in own.iter().filter(|blob| !needed.contains(*blob)).filter_map(|blob| path_of(blob)) {
            if self.top.has(&path)? {
                self.prove_unmounted(&path)?;
                if within.is_immutable(&self.top.path().join(&path)) {
                    return Err(Refusal::Immutable(self.top.path().join(path)).into());
                }
                to_delete.push(path);
            }
        }
        self.editor.step("proven");
        self.write_without(&digest, None)?;
        self.done.images.push(planned.id.clone());
        to_delete.iter().try_for_each(|path| self.move_to_trash(path))
    }

    /// The digest and the names that it has now.
    fn prove_names(&self, planned: &PlannedImage) -> Result<(String, Vec<String>), Refusal> {
        let digest = self.digest_of(&planned.id)?;
        let names = self.index.names_of(&digest);
        planned.prove_names(&names)?;
        Ok((digest, names))
    }

    /// Refuses where a container has the artifact as a volume by `called` or one of `names`: one that
    /// came after the look at the disk.
    fn prove_no_volume(&self, digest: &str, called: &str, names: &[String]) -> Result<(), Refusal> {
        let users = volume_users(&self.editor.places);
        let Some(user) = users.iter().find(|user| user.means_one_of(called, names)) else { return Ok(()) };
        let path = self.top.path().join(path_of(digest).unwrap_or_default());
        Err(Refusal::Busy { path, why: format!("used by {}", user.by) })
    }

    fn digest_of(&self, id: &str) -> Result<String, Refusal> {
        let entries = self.index.entries().flatten();
        let mut digests = entries.map(|entry| &entry.digest);
        let found = digests.find(|digest| layout::split(digest).is_some_and(|(_, hex)| hex == id));
        found.cloned().ok_or_else(|| Refusal::Unknown { kind: "artifact", id: id.to_owned() })
    }

    fn prove_unmounted(&self, below: &Path) -> Result<(), Refusal> {
        self.evidence.prove_unmounted(&self.top.path().join(below), &[])
    }

    fn write_without(&mut self, digest: &str, names: Option<&[String]>) -> Result<(), Error> {
        let invalid = |_| Fault::new("writing", self.top.path().join(INDEX), Errno::INVAL);
        let content = self.index.without(digest, names).map_err(invalid)?;
        // Other users may read it: the libraries write it so.
        let mode = self.top.stat(INDEX)?.map_or(0o644, |stat| stat.st_mode & 0o777);
        let (editor, top) = (self.editor, &self.top);
        editor.write_with_room(
            |_| top.fd(),
            false,
            &mut self.done,
            || {
                write::replace(top, INDEX, &content, Mode::from_raw_mode(mode), true, &|step| {
                    editor.step(step)
                })
            },
        )?;
        self.done.has_changed = true;
        editor.step("index replaced");
        Ok(())
    }

    /// The directory that a file of the store is in, and its name there.
    fn holder<'p>(&self, below: &'p Path) -> Result<Option<(Directory, &'p OsStr)>, Fault> {
        let parent = match below.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            Some(parent) => self.top.below(parent)?,
            None => Some(self.top.again()?),
        };
        Ok(parent.zip(below.file_name()))
    }

    /// Renames a file of the store, to be unlinked once the lock is released.
    fn move_to_trash(&mut self, below: &Path) -> Result<(), Error> {
        let fault = || Fault::new("moving", self.top.path().join(below), Errno::NOENT);
        let (parent, name) = self.holder(below)?.ok_or_else(fault)?;
        let new = OsString::from(format!("{TRASH}-{:x}-{}", self.number, self.trash.len()));
        parent.rename(name, &self.top, &new)?;
        self.trash.push(new);
        self.done.has_changed = true;
        self.editor.step("blob moved");
        Ok(())
    }

    fn reclaim(
        &mut self,
        orphan: &OrphanAt,
        needed: &HashSet<String>,
        min_age: SignedDuration,
    ) -> Result<(), Error> {
        let id = orphan.path.display().to_string();
        let unknown = || Refusal::Unknown { kind: "orphan", id: id.clone() };
        let below = orphan.path.strip_prefix(self.top.path()).map_err(|_| unknown())?.to_path_buf();
        let parts: Vec<_> = below.iter().map(|part| part.to_str().unwrap_or_default()).collect();
        match (orphan.kind, parts.as_slice()) {
            (Orphan::ArtifactFile, [BLOBS, algorithm, hex]) => {
                let digest = format!("{algorithm}:{hex}");
                layout::split(&digest).ok_or_else(unknown)?;
                if needed.contains(&digest) {
                    return Err(Refusal::Recorded { id: digest }.into());
                }
            }
            (Orphan::ArtifactFile, [name]) if is_temporary(name) => {}
            _ => return Err(unknown().into()),
        }
        let (parent, name) = self.holder(&below)?.ok_or_else(unknown)?;
        let stat = parent.stat(name)?.ok_or_else(unknown)?;
        if !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file() {
            return Err(unknown().into());
        }
        // Nobody pulls under our lock; but other tools than these know no lock.
        let since = since::changed(&self.editor.places.within(), &orphan.path);
        let age = leaks::age(since, &self.editor.present());
        if !is_old_enough(age, min_age) {
            return Err(Refusal::Young { path: orphan.path.clone(), age, wanted: min_age }.into());
        }
        self.prove_unmounted(&below)?;
        self.move_to_trash(&below)?;
        self.done.orphans.push(orphan.path.clone());
        Ok(())
    }

    /// Releases the lock, and then unlinks what was moved to the trash, which may take long.
    fn finish(self, result: Result<(), Error>) -> Result<Deleted, Error> {
        let Self { editor, top, held, trash, mut done, .. } = self;
        done.locked_for = held.release();
        editor.step("unlocked");
        for name in trash {
            done.note(top.remove_tree(&name));
            editor.step("blob removed");
        }
        editor.restore_reserve_files();
        done.ended(result)
    }
}

fn document_of(top: &Directory, digest: &str) -> Option<Document> {
    layout::document(&top.read(path_of(digest)?, MOST_DOCUMENT_BYTES).ok()??)
}
