//! Removes temporary files of the store's tools, in the graphroot's own `tmp` and outside.
//!
//! No lock guards them and no record names them. Processes, mounts and their age prove them
//! unused, by the same rule as in a scan, checked again here.

use std::path::Path;

use jiff::SignedDuration;

use super::deleted::Deleted;
use super::directory::Directory;
use super::error::{Error, Fault, Refusal};
use super::graphroot_editor::Editor;
use super::mounted::{Evidence, Read};
use crate::model::{Consistency, Orphan, Verdict, is_old_enough};
use crate::stores::containers_storage::leaks::{self, Circumstances, UseByProcess};
use crate::stores::containers_storage::since;
use crate::stores::containers_storage::temporary_files::{self, TOOLS};
use crate::stores::leaks::age;
use crate::sys::processes::Processes;
use crate::sys::quiet::DirectoryEntry;

impl Editor {
    /// Removes one entry of the graphroot's `tmp`, or of a temporary directory that the store's
    /// tools use, where it has a name that only they give (classes `graphroot-tmp`, `vartmp`).
    ///
    /// # Errors
    /// [`Error::Refused`] where a process has a file of it open, where that cannot be proven, where
    /// something is mounted on it, or where it is younger than `min_age`; then nothing was changed.
    pub fn remove_temporary(&self, path: &Path, min_age: SignedDuration) -> Result<Deleted, Error> {
        let unknown = || Refusal::Unknown { kind: "temporary file", id: path.display().to_string() };
        let (Some(holder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(unknown().into());
        };
        self.prove_in_place()?;
        let (parent, what) = self.temporary_directory(holder)?.ok_or_else(unknown)?;
        let within = self.places.within();
        let entry = within.list(holder).unwrap_or_default().into_iter().find(|entry| entry.name == name);
        let entry: DirectoryEntry = entry.ok_or_else(unknown)?;
        if what == Orphan::VarTmp && !temporary_files::is_temporary(&entry) {
            return Err(unknown().into());
        }
        let age = age(since::of_orphan(&within, what, path), &self.present());
        if !is_old_enough(age, min_age) {
            return Err(Refusal::Young { path: path.to_path_buf(), age, wanted: min_age }.into());
        }
        let trusts = self.options.trust_pid_namespace;
        let others = Evidence::of_directories(&[holder.to_path_buf()], Read::Processes, trusts)?;
        let known = Circumstances {
            consistency: Consistency::Consistent,
            mounted: false,
            lock_held: None,
            has_link: false,
            is_unfinished: false,
            age,
            has_database: false,
            lost_container: None,
            doubt: (what == Orphan::VarTmp).then(|| temporary_files::doubt(&within, path)).flatten(),
            presence: presence(others.processes(), path),
        };
        let judged = leaks::orphan(what, &known);
        if judged.verdict != Verdict::Reclaim {
            return Err(Refusal::Busy { path: path.to_path_buf(), why: judged.evidence }.into());
        }
        others.prove_unmounted(path, &[])?;
        self.step("proven");
        let removal = parent.remove_tree(name);
        let failure = removal.failures.first().cloned();
        let failed = failure.map(|failure| Fault::new("removing", failure.path, failure.error).into());
        let mut done = Deleted { in_place: true, ..Deleted::default() };
        done.note(removal);
        let mut done = done.ended(failed.map_or(Ok(()), Err))?;
        done.orphans.push(path.to_path_buf());
        Ok(done)
    }

    /// The directory that holds temporary files, if `holder` is one of those.
    fn temporary_directory(&self, holder: &Path) -> Result<Option<(Directory, Orphan)>, Fault> {
        let graphroot = &self.places.graphroot;
        if holder == graphroot.join("tmp") {
            let directory = Directory::top(graphroot)?.below("tmp")?;
            return Ok(directory.map(|directory| (directory, Orphan::GraphrootTmp)));
        }
        let known = self.places.temporary.iter().find(|known| known.path() == holder);
        let directory = known.map(Directory::top).transpose()?;
        Ok(directory.map(|directory| (directory, Orphan::VarTmp)))
    }
}

/// Who has a file below `path` open, or may come back to it.
fn presence(all: &Processes, path: &Path) -> UseByProcess {
    match all.holding(path) {
        Some(process) => UseByProcess::InUse(process.describe()),
        None if !path.parent().is_some_and(|at| all.sees_all_that_reach(at)) => {
            UseByProcess::Unknown("not all processes can be inspected")
        }
        None => UseByProcess::Unused { maker: all.running(&TOOLS).map(|process| process.describe()) },
    }
}
