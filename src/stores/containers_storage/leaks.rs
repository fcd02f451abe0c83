//! Judges unused objects: class, evidence and verdict. The functions are pure.
//!
//! The verdict "reclaim" requires proof that a deletion is safe. Without that proof, an object that may be work in
//! progress is kept, and any other object is only reported. For example, a layer directory without a record is
//! reclaimed; while another program is writing to the store it is kept; and if the records are damaged, or something is
//! mounted on it, it is only reported.
//!
//! Temporary files are not in the records. Their verdict depends on their age and on the processes that use them.

use std::borrow::Cow;
use std::path::Path;

use jiff::SignedDuration;

use crate::model::text::display::shell_word;
use crate::model::{Consistency, LeakClass, Orphan, Verdict};
use crate::stores::leaks::{GRACE, Judgement};

/// Minimum age of an object that an engine's database lacks. Engines write the store's record and their own record
/// moments apart, so a younger object may still be between the two.
pub(super) const SETTLED: SignedDuration = SignedDuration::from_mins(10);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UseByProcess {
    /// No process names the object or has a file below it open.
    Unused {
        /// A running program that creates such objects. It may have closed a file and not yet opened the next one.
        maker: Option<String>,
    },
    InUse(String),
    Unknown(Cow<'static, str>),
}

#[derive(Clone, Debug)]
pub(crate) struct Circumstances {
    pub(crate) consistency: Consistency,
    /// A filesystem is mounted at the object or below it.
    pub(crate) mounted: bool,
    /// A process holds the object's lock file. `None` if there is no lock file.
    pub(crate) lock_held: Option<bool>,
    /// The directory contains the driver's `link` file (layer directories).
    pub(crate) has_link: bool,
    /// An interrupted deletion emptied the directory on a full disk ([`super::quarantine_name`]).
    pub(crate) is_unfinished: bool,
    /// Age of the object, or `None` if it is unknown.
    pub(crate) age: Option<SignedDuration>,
    pub(crate) has_database: bool,
    /// A container without a record that may own an object of this age, for messages.
    pub(crate) lost_container: Option<String>,
    /// Reason to doubt that a containers tool created the object, though its name says so (temporary files outside the
    /// store).
    pub(crate) doubt: Option<String>,
    /// Use by processes. If it is unknown, most objects are reclaimed anyway: it is determined again before that.
    pub(crate) presence: UseByProcess,
}

pub(crate) fn orphan(orphan: Orphan, known: &Circumstances) -> Judgement {
    let is_young = known.age.is_none_or(|age| age < GRACE);
    let judged = match orphan {
        Orphan::ContainerDirectory => return container_directory(known),
        Orphan::GraphrootTmp | Orphan::VarTmp => return temporary(orphan, known),
        Orphan::Volume => return volume(known.age, known.has_database),
        Orphan::LayerDirectory if known.is_unfinished => {
            let evidence = "a killed deletion emptied it, and its layer still has a record: the next deletion in \
                            this store finishes that first";
            Judgement::of(LeakClass::OrphanDir, evidence).with(Verdict::Keep)
        }
        Orphan::LayerDirectory if known.has_link => {
            let evidence = "no record in any layer file names this directory";
            let judged = qualify(Judgement::of(LeakClass::OrphanDir, evidence), known);
            return report_for_lost_container(judged, known);
        }
        Orphan::LayerDirectory => {
            let evidence =
                "no layer record names this directory, and it has no link file: its creation was interrupted";
            let judged = qualify(Judgement::of(LeakClass::OrphanDir, evidence), known);
            return report_for_lost_container(judged, known);
        }
        Orphan::Staging | Orphan::TempDirectory if known.lock_held == Some(true) => {
            Judgement::of(orphan.class(), "a process holds its lock: work in progress").with(Verdict::Keep)
        }
        Orphan::Staging if known.lock_held.is_none() && is_young => {
            let evidence = "it has no lock file and is younger than 24 hours";
            Judgement::of(orphan.class(), evidence).with(Verdict::Keep)
        }
        Orphan::Staging => {
            Judgement::of(orphan.class(), "the staging area of a partial pull; no process holds its lock")
        }
        Orphan::TempDirectory => {
            Judgement::of(orphan.class(), "a temporary directory; no process holds its lock")
        }
        Orphan::ImageDirectory => Judgement::of(orphan.class(), "no image record names it"),
        Orphan::LayerData => Judgement::of(orphan.class(), "no layer record names it"),
        Orphan::TempRecord => {
            Judgement::of(orphan.class(), "an unfinished write; no process holds a lock of the store")
        }
    };
    qualify(judged, known)
}

/// Reports a reclaimable layer instead if it may belong to a container without a record.
///
/// The container records of a transient store are in its runroot. If the runroot is unknown, only podman's database
/// shows that a container exists, and the database does not contain the container's layer.
fn report_for_lost_container(judged: Judgement, known: &Circumstances) -> Judgement {
    match &known.lost_container {
        Some(lost) if judged.verdict == Verdict::Reclaim => {
            judged.but(Verdict::Report, &format!("but {lost}: it may be its layer"))
        }
        _ => judged,
    }
}

/// Judges a container's directory without a record. The container itself can still run: conmon, the OCI runtime and the
/// processes in the container do not stop when the store's records are lost.
fn container_directory(known: &Circumstances) -> Judgement {
    let class = LeakClass::OrphanContainerDir;
    let judged = match &known.presence {
        UseByProcess::Unused { .. } => Judgement::of(
            class,
            "no container record or process names it, and no process has a file open in it",
        ),
        UseByProcess::InUse(user) => {
            let evidence = format!("no container record names it, but {user} still uses it");
            Judgement::of(class, evidence).with(Verdict::Report)
        }
        UseByProcess::Unknown(why) => {
            let evidence = format!("no container record names it, but a process may be using it: {why}");
            Judgement::of(class, evidence).with(Verdict::Report)
        }
    };
    qualify(judged, known)
}

/// Judges files of a pull or build that ended or was killed.
fn temporary(orphan: Orphan, known: &Circumstances) -> Judgement {
    let class = orphan.class();
    if let Some(why) = &known.doubt {
        let evidence = format!("named as the containers tools name temporary files, but {why}");
        return Judgement::of(class, evidence).with(Verdict::Report);
    }
    let is_young = known.age.is_none_or(|age| age < GRACE);
    let age = age_in_words(known.age);
    let judged = match &known.presence {
        UseByProcess::InUse(user) => {
            Judgement::of(class, format!("{user} has it open: work in progress")).with(Verdict::Keep)
        }
        UseByProcess::Unused { maker: Some(maker) } if is_young => {
            let evidence =
                format!("no process has a file open in it, but it is {age} and {maker} may be using it");
            Judgement::of(class, evidence).with(Verdict::Keep)
        }
        UseByProcess::Unused { .. } => {
            Judgement::of(class, format!("temporary files, {age}; no process has one of them open"))
        }
        UseByProcess::Unknown(why) => {
            let evidence = format!("temporary files, {age}, but a process may be using them: {why}");
            Judgement::of(class, evidence).with(Verdict::Report)
        }
    };
    // The store's records do not mention these files, so the verdict does not depend on the records.
    let known = Circumstances { consistency: Consistency::Consistent, ..known.clone() };
    qualify(judged, &known)
}

/// Judges a volume that podman's database lacks. Podman may be creating it, unless there is no database.
fn volume(age: Option<SignedDuration>, has_database: bool) -> Judgement {
    let is_settled = age.is_some_and(|age| age >= SETTLED);
    let (verdict, evidence) = match (has_database, is_settled) {
        (true, false) => {
            (Verdict::Keep, "podman's database does not have this volume yet: it may be being created")
        }
        (true, true) => (Verdict::Report, "podman's database does not have this volume"),
        (false, _) => (Verdict::Report, "podman has no database here to check"),
    };
    Judgement::of(LeakClass::VolumeOrphan, evidence).with(verdict)
}

pub(super) fn unreferenced(volatile: bool, known: &Circumstances) -> Judgement {
    let age = age_in_words(known.age);
    let fact = if volatile {
        "a container layer without a container"
    } else {
        "no image or container references it"
    };
    let judged = if known.age.is_some_and(|age| age >= GRACE) {
        Judgement::of(LeakClass::Unreferenced, format!("{fact}, {age}"))
    } else {
        let evidence = format!("{fact}, and it is {age}: a pull, a build or a container may be starting");
        Judgement::of(LeakClass::Unreferenced, evidence).with(Verdict::Keep)
    };
    let judged = qualify(judged, known);
    if volatile { report_for_lost_container(judged, known) } else { judged }
}

pub(super) fn incomplete(known: &Circumstances) -> Judgement {
    let evidence = "flagged incomplete: its creation or deletion was interrupted; every library deletes \
        it when it next opens the store";
    qualify(Judgement::of(LeakClass::Incomplete, evidence), known)
}

/// Changes the verdict from "reclaim" to "report" or "keep" if the circumstances do not prove that deletion is safe.
fn qualify(judged: Judgement, known: &Circumstances) -> Judgement {
    if judged.verdict != Verdict::Reclaim {
        return judged;
    }
    if let UseByProcess::InUse(user) = &known.presence {
        return judged.but(Verdict::Keep, &format!("but {user} uses it"));
    }
    match *known {
        Circumstances { mounted: true, .. } => judged.but(Verdict::Report, "but something is mounted on it"),
        Circumstances { consistency: Consistency::Damaged, .. } => {
            judged.but(Verdict::Report, "but the store's records are damaged, so this is not certain")
        }
        Circumstances { consistency: Consistency::WriterActive, .. } => {
            judged.but(Verdict::Keep, "but another program is writing to the store")
        }
        _ => judged,
    }
}

fn age_in_words(age: Option<SignedDuration>) -> String {
    age.map_or_else(|| "of unknown age".into(), |age| format!("{} old", human(age)))
}

pub(super) fn human(age: SignedDuration) -> String {
    match age.as_secs() {
        secs @ 0..120 => format!("{secs} s"),
        secs @ 120..7200 => format!("{} min", secs / 60),
        secs @ 7200..172_800 => format!("{} h", secs / 3600),
        secs => format!("{} days", secs / 86_400),
    }
}

pub(super) fn stuck(mounted: bool, path: &Path) -> Judgement {
    let path = shell_word(&path.to_string_lossy());
    let (why, remedy) = if mounted {
        ("something is mounted on it", format!("umount {path}"))
    } else {
        ("its directory is marked immutable", format!("chattr -R -i {path}"))
    };
    let evidence = format!(
        "flagged incomplete, and {why}: every tool tries to delete it first, fails and stops: `{remedy}`"
    );
    Judgement::of(LeakClass::Incomplete, evidence).with(Verdict::Report)
}

/// Judges a working container of buildah. In `podman` it is visible only as the reason why an image cannot be removed.
/// Returns `None` while it may be in use.
pub(super) fn external_container(
    age: Option<SignedDuration>,
    mounted: bool,
    presence: &UseByProcess,
) -> Option<Judgement> {
    let age = age.filter(|age| *age >= GRACE)?;
    let used = match presence {
        UseByProcess::InUse(_) => return None,
        _ if mounted => return None,
        UseByProcess::Unused { .. } => "no process names it and nothing of it is mounted".to_owned(),
        UseByProcess::Unknown(why) => format!("a process may be using it: {why}"),
    };
    let evidence =
        format!("a working container of buildah, {} old; {used}; its image cannot be removed", human(age));
    Some(Judgement::of(LeakClass::ForgottenContainer, evidence))
}

/// Judges a container of podman that podman's database lacks. Returns `None` while podman may be creating it.
pub(super) fn unknown_to_podman(age: Option<SignedDuration>) -> Option<Judgement> {
    age.filter(|age| *age >= SETTLED)?;
    let evidence = "podman's database does not have it, and its name stays in use: `podman ps --all --external` of its owner shows it";
    Some(Judgement::of(LeakClass::ForgottenContainer, evidence))
}

#[cfg(test)]
mod tests;
