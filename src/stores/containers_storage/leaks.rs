//! Unused objects: classes, evidence and verdicts. The decisions are pure.
//!
//! Nothing is called reclaimable if the records are damaged or another program is
//! writing.

use std::path::Path;

use jiff::SignedDuration;

use crate::model::display::shell_word;
use crate::model::{Consistency, LeakClass, Orphan, Verdict};
use crate::stores::leaks::{GRACE, Judgement};

/// Engines write the storage's record and their own moments apart; what is younger than
/// this may be between the two.
pub(super) const SETTLED: SignedDuration = SignedDuration::from_mins(10);

/// Whether a process uses an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UseByProcess {
    /// No process names it or has a file below it open.
    Nobody {
        /// A running program that makes such things, and may be between two of its files.
        maker: Option<String>,
    },
    /// This process does.
    Somebody(String),
    /// Unknown, with the reason.
    Unknown(&'static str),
}

/// What is known of an object without a record.
#[derive(Clone, Debug)]
pub(crate) struct Circumstances {
    /// How far the records can be trusted.
    pub(crate) consistency: Consistency,
    /// Something is mounted at it or below it.
    pub(crate) mounted: bool,
    /// Somebody holds the lock file that guards it; `None` where there is no lock file.
    pub(crate) lock_held: Option<bool>,
    /// It has the driver's `link` file (layer directories).
    pub(crate) has_link: bool,
    /// It is what an unfinished deletion emptied first on a full disk ([`super::quarantine_name`]).
    pub(crate) is_unfinished: bool,
    /// How old it is, if that is known.
    pub(crate) age: Option<SignedDuration>,
    /// Podman has a database here.
    pub(crate) has_database: bool,
    /// A container that only podman's database knows, and whose layer a thing of this age may be.
    pub(crate) lost_container: Option<String>,
    /// Why it need not be what its name says (temporary files outside of the store).
    pub(crate) doubt: Option<String>,
    /// Who uses it. Asked only where the verdict depends on it.
    pub(crate) presence: UseByProcess,
}

/// Judges an object without a record.
pub(crate) fn orphan(what: Orphan, known: &Circumstances) -> Judgement {
    let young = known.age.is_none_or(|age| age < GRACE);
    let judged = match what {
        Orphan::ContainerDirectory => return container_directory(known),
        Orphan::GraphrootTmp | Orphan::VarTmp => return temporary(what, known),
        Orphan::Volume => return volume(known.age, known.has_database),
        Orphan::LayerDirectory if known.is_unfinished => {
            let evidence = "a killed deletion emptied it, and its layer still has a record: the next deletion in \
                            this store finishes that first";
            Judgement::of(LeakClass::OrphanDir, evidence).with(Verdict::Keep)
        }
        Orphan::LayerDirectory if known.has_link => {
            let evidence = "no record in any layer file names this directory";
            return spare_lost(qualify(Judgement::of(LeakClass::OrphanDir, evidence), known), known);
        }
        Orphan::LayerDirectory => {
            let evidence =
                "no layer record names this directory, and it has no link file: its creation was interrupted";
            return spare_lost(qualify(Judgement::of(LeakClass::OrphanDir, evidence), known), known);
        }
        Orphan::Staging | Orphan::TempDirectory if known.lock_held == Some(true) => {
            Judgement::of(what.class(), "a process holds its lock: work in progress").with(Verdict::Keep)
        }
        Orphan::Staging if known.lock_held.is_none() && young => {
            let evidence = "it has no lock file and is younger than 24 hours";
            Judgement::of(what.class(), evidence).with(Verdict::Keep)
        }
        Orphan::Staging => {
            Judgement::of(what.class(), "the staging area of a partial pull; no process holds its lock")
        }
        Orphan::TempDirectory => {
            Judgement::of(what.class(), "a temporary directory; no process holds its lock")
        }
        Orphan::ImageDirectory => Judgement::of(what.class(), "no image record names it"),
        Orphan::LayerData => Judgement::of(what.class(), "no layer record names it"),
        Orphan::TempRecord => {
            Judgement::of(what.class(), "an unfinished write; no process holds a lock of the store")
        }
    };
    qualify(judged, known)
}

/// The records of a transient store are in its runroot. Where that is not known, nothing but podman's
/// database tells of a container, and that does not tell which layer is the container's.
fn spare_lost(judged: Judgement, known: &Circumstances) -> Judgement {
    match &known.lost_container {
        Some(lost) if judged.verdict == Verdict::Reclaim => {
            judged.but(Verdict::Report, &format!("but {lost}: it may be its layer"))
        }
        _ => judged,
    }
}

/// A container may live on without its record: conmon, the OCI runtime and the container
/// itself go on if the store's records are lost.
fn container_directory(known: &Circumstances) -> Judgement {
    let of = |evidence: String| Judgement::of(LeakClass::OrphanContainerDir, evidence);
    let judged = match &known.presence {
        UseByProcess::Nobody { .. } => {
            of("no container record or process names it, and no process has a file open in it".into())
        }
        UseByProcess::Somebody(who) => {
            of(format!("no container record names it, but {who} still uses it")).with(Verdict::Report)
        }
        UseByProcess::Unknown(why) => {
            of(format!("no container record names it, but a process may be using it: {why}"))
                .with(Verdict::Report)
        }
    };
    qualify(judged, known)
}

/// Files of a pull or build that ended or was killed.
fn temporary(what: Orphan, known: &Circumstances) -> Judgement {
    let of = |evidence: String| Judgement::of(what.class(), evidence);
    if let Some(why) = &known.doubt {
        return of(format!("named as the containers tools name temporary files, but {why}"))
            .with(Verdict::Report);
    }
    let young = known.age.is_none_or(|age| age < GRACE);
    let age = how_old(known.age);
    let judged = match &known.presence {
        UseByProcess::Somebody(who) => of(format!("{who} has it open: work in progress")).with(Verdict::Keep),
        UseByProcess::Nobody { maker: Some(maker) } if young => {
            of(format!("no process has a file open in it, but it is {age} and {maker} may be using it"))
                .with(Verdict::Keep)
        }
        UseByProcess::Nobody { .. } => of(format!("temporary files, {age}; no process has one of them open")),
        UseByProcess::Unknown(why) => {
            of(format!("temporary files, {age}, but a process may be using them: {why}"))
                .with(Verdict::Report)
        }
    };
    // The store's records say nothing of these files, so they need not be consistent.
    let known = Circumstances { consistency: Consistency::Consistent, ..known.clone() };
    qualify(judged, &known)
}

/// Judges a volume that podman's database does not have; without any database it cannot
/// be in creation.
fn volume(age: Option<SignedDuration>, has_database: bool) -> Judgement {
    let of = |evidence| Judgement::of(LeakClass::VolumeOrphan, evidence);
    let settled = age.is_some_and(|age| age >= SETTLED);
    match (has_database, settled) {
        (true, false) => {
            of("podman's database does not have this volume yet: it may be being created").with(Verdict::Keep)
        }
        (true, true) => of("podman's database does not have this volume"),
        (false, _) => of("podman has no database here to check"),
    }
}

/// Judges a layer with a record that no image and no container reaches.
pub(super) fn unreferenced(volatile: bool, known: &Circumstances) -> Judgement {
    let age = how_old(known.age);
    let what = if volatile {
        "a container layer without a container"
    } else {
        "no image or container references it"
    };
    let judged = if known.age.is_some_and(|age| age >= GRACE) {
        Judgement::of(LeakClass::Unreferenced, format!("{what}, {age}"))
    } else {
        let evidence = format!("{what}, and it is {age}: a pull, a build or a container may be starting");
        Judgement::of(LeakClass::Unreferenced, evidence).with(Verdict::Keep)
    };
    let judged = qualify(judged, known);
    if volatile { spare_lost(judged, known) } else { judged }
}

/// Judges a layer that is flagged incomplete.
pub(super) fn incomplete(known: &Circumstances) -> Judgement {
    let evidence = "flagged incomplete: its creation or deletion was interrupted; every library deletes \
        it when it next opens the store";
    qualify(Judgement::of(LeakClass::Incomplete, evidence), known)
}

/// Downgrades a "reclaim" that the circumstances do not support.
fn qualify(judged: Judgement, known: &Circumstances) -> Judgement {
    if judged.verdict != Verdict::Reclaim {
        return judged;
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

fn how_old(age: Option<SignedDuration>) -> String {
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

/// Judges a layer flagged incomplete that cannot be deleted now.
pub(super) fn stuck(mounted: bool, path: &Path) -> Judgement {
    let path = shell_word(&path.to_string_lossy());
    let (why, remedy) = match mounted {
        true => ("something is mounted on it", format!("umount {path}")),
        false => ("its directory is marked immutable", format!("chattr -R -i {path}")),
    };
    let evidence = format!(
        "flagged incomplete, and {why}: every tool tries to delete it first, fails and stops: `{remedy}`"
    );
    Judgement::of(LeakClass::Incomplete, evidence).with(Verdict::Report)
}

/// Judges a buildah working container: `podman` sees only that it blocks the image.
/// `None` while it may be in use.
pub(super) fn external_container(
    id: &str,
    age: Option<SignedDuration>,
    mounted: bool,
    presence: &UseByProcess,
) -> Option<Judgement> {
    let age = age.filter(|age| *age >= GRACE)?;
    let used = match presence {
        UseByProcess::Somebody(_) => return None,
        _ if mounted => return None,
        UseByProcess::Nobody { .. } => "no process names it and nothing of it is mounted".to_owned(),
        UseByProcess::Unknown(why) => format!("a process may be using it: {why}"),
    };
    let evidence = format!(
        "a working container of buildah, {} old; {used}; its image cannot be removed: `buildah rm {}`",
        human(age),
        shell_word(id)
    );
    Some(Judgement::of(LeakClass::ForgottenContainer, evidence))
}

/// Judges a podman container that podman's database does not have. `None` while it may
/// be in the making.
pub(super) fn unknown_to_podman(id: &str, age: Option<SignedDuration>) -> Option<Judgement> {
    age.filter(|age| *age >= SETTLED)?;
    let evidence = format!(
        "podman's database does not have it: its name stays in use: `podman container rm --storage {}`",
        shell_word(id)
    );
    Some(Judgement::of(LeakClass::ForgottenContainer, evidence))
}

#[cfg(test)]
mod tests;
