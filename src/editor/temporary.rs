//! Deletes temporary files of the store's tools, in the graphroot's own `tmp` and elsewhere.
//!
//! No lock guards these files and no record names them. They are unused if no process has them open, nothing is mounted
//! there and they are old enough; the rule is that of the scan, and is checked again here.

use std::path::Path;

use jiff::SignedDuration;

use super::deleted::Deleted;
use super::directory::Directory;
use super::error::{Error, Fault, Refusal};
use super::graphroot_editor::Editor;
use super::mounted::{Read, UseEvidence};
use crate::model::{Consistency, Orphan, Verdict, is_old_enough};
use crate::stores::containers_storage::leaks::{self, Circumstances, UseByProcess};
use crate::stores::containers_storage::since;
use crate::stores::containers_storage::temporary_files::{self, TOOLS};
use crate::stores::leaks::age;
use crate::sys::processes::Processes;
use crate::sys::quiet::DirectoryEntry;

impl Editor {
    /// Deletes one entry of the graphroot's `tmp`, or of a temporary directory that the store's tools use, if it has a
    /// name that only they give (classes `graphroot-tmp`, `vartmp`).
    ///
    /// # Errors
    /// [`Error::Refused`] if a process has a file of it open, if that is unknown, if something is mounted on it, or if
    /// it is younger than `min_age`; then nothing was changed.
    pub fn remove_temporary(&self, path: &Path, min_age: SignedDuration) -> Result<Deleted, Error> {
        let (Some(holder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(unknown_file(path).into());
        };
        self.prove_in_place()?;
        let (parent, class) = self.temporary_directory(holder)?.ok_or_else(|| unknown_file(path))?;
        let within = self.places.within();
        let entry: DirectoryEntry = within
            .list(holder)
            .unwrap_or_default()
            .into_iter()
            .find(|entry| entry.name == name)
            .ok_or_else(|| unknown_file(path))?;
        if class == Orphan::VarTmp && !temporary_files::is_temporary(&entry) {
            return Err(unknown_file(path).into());
        }
        let age = age(since::of_orphan(&within, class, path), &self.present());
        if !is_old_enough(age, min_age) {
            return Err(Refusal::Young { path: path.to_path_buf(), age, wanted: min_age }.into());
        }
        let trusts_namespace = self.options.trust_pid_namespace;
        let evidence =
            UseEvidence::of_directories(&[holder.to_path_buf()], Read::Processes, trusts_namespace)?;
        let known = Circumstances {
            consistency: Consistency::Consistent,
            mounted: false,
            lock_held: None,
            has_link: false,
            is_unfinished: false,
            age,
            has_database: false,
            lost_container: None,
            doubt: (class == Orphan::VarTmp).then(|| temporary_files::doubt(&within, path)).flatten(),
            presence: presence(evidence.processes(), path),
        };
        let judged = leaks::orphan(class, &known);
        if judged.verdict != Verdict::Reclaim {
            return Err(Refusal::Busy { path: path.to_path_buf(), why: judged.evidence }.into());
        }
        evidence.prove_unmounted(path, &[])?;
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

    /// Opens `holder` if it is a directory of temporary files, and returns the class of its entries.
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

fn unknown_file(path: &Path) -> Refusal {
    Refusal::Unknown { kind: "temporary file", id: path.display().to_string() }
}

/// The process that has a file below `path` open, or a running tool that may have created it.
fn presence(processes: &Processes, path: &Path) -> UseByProcess {
    match (processes.holding(path), processes.doubt(path)) {
        (Some(process), _) => UseByProcess::InUse(process.describe()),
        (None, Some(why)) => UseByProcess::Unknown(why.into()),
        (None, None) => {
            UseByProcess::Unused { maker: processes.running(&TOOLS).map(|process| process.describe()) }
        }
    }
}
