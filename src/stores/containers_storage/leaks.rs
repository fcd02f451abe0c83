//! What nothing uses: classes, evidence and verdicts. The decisions are pure.
//!
//! A verdict is only as good as the reading it rests on: from damaged records, or while
//! somebody writes, nothing is called reclaimable.

pub(super) mod recorded;

use jiff::{SignedDuration, Timestamp};

use super::units::Debris;
use crate::model::{Consistency, Verdict};
use crate::sys::clock::Present;

/// What is younger may be work in progress: since library version 1.62 a pull has layers
/// without an image for as long as it lasts. The library's own limit is the same 24 hours.
pub(super) const GRACE: SignedDuration = SignedDuration::from_hours(24);

/// What the processes of this machine say of a thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// No process names it or has a file below it open.
    Nobody {
        /// A running program that makes such things, and may be between two of its files.
        maker: Option<String>,
    },
    /// This process does.
    Somebody(String),
    /// They could not be asked; why.
    Unknown(&'static str),
}

/// What is known of a thing without a record.
#[derive(Clone, Debug)]
pub(super) struct Circumstances {
    /// How far the records can be trusted.
    pub(super) consistency: Consistency,
    /// Something is mounted at it or below it.
    pub(super) mounted: bool,
    /// Somebody holds the lock file that guards it; `None` where there is no lock file.
    pub(super) lock_held: Option<bool>,
    /// It has the driver's `link` file (layer directories).
    pub(super) has_link: bool,
    /// How old it is, if that is known.
    pub(super) age: Option<SignedDuration>,
    /// Podman has a database here.
    pub(super) has_database: bool,
    /// A container that only podman's database knows, and whose layer a thing of this age may be.
    pub(super) lost_container: Option<String>,
    /// Why it need not be what its name says (temporary files outside of the store).
    pub(super) doubt: Option<String>,
    /// Who uses it. Asked only where the verdict depends on it.
    pub(super) presence: Presence,
}

/// Class, verdict and evidence.
pub(super) type Judgement = (&'static str, Verdict, String);

/// Judges a thing without a record.
pub(super) fn debris(what: Debris, known: &Circumstances) -> Judgement {
    match what {
        Debris::ContainerDirectory => return container_directory(known),
        Debris::Temporary | Debris::Leftover => return temporary(what, known),
        Debris::Volume => return recorded::volume(known.age, known.has_database),
        _ => {}
    }
    let young = known.age.is_none_or(|age| age < GRACE);
    let (class, verdict, evidence) = match what {
        Debris::LayerDirectory if known.has_link => {
            ("orphan-dir", Verdict::Reclaim, "no layer record of any file names this directory")
        }
        Debris::LayerDirectory => (
            "orphan-dir-partial",
            Verdict::Reclaim,
            "no layer record names this directory, and it has no link file: its making broke off",
        ),
        Debris::Staging | Debris::TempDirectory if known.lock_held == Some(true) => {
            (live_class(what), Verdict::Keep, "a process holds its lock: work in progress")
        }
        Debris::Staging if known.lock_held.is_none() && young => {
            ("staging-live", Verdict::Keep, "it has no lock file and is younger than 24 hours")
        }
        Debris::Staging => {
            ("staging-dead", Verdict::Reclaim, "a partial pull's staging area that nobody holds")
        }
        Debris::TempDirectory => {
            ("tempdirs-dead", Verdict::Reclaim, "a temporary directory whose lock nobody holds")
        }
        Debris::ContainerDirectory
        | Debris::Temporary
        | Debris::Leftover
        | Debris::Volume
        | Debris::ImageDirectory => (what.class(), Verdict::Reclaim, "no image record names it"),
        Debris::TarSplit | Debris::LayerData => (what.class(), Verdict::Reclaim, "no layer record names it"),
        Debris::TempRecord => {
            (what.class(), Verdict::Reclaim, "an unfinished write; nobody holds a lock of the store")
        }
        Debris::FeatureTest => (what.class(), Verdict::Reclaim, "left behind by the driver's feature test"),
    };
    let judged = qualify(class, verdict, evidence.into(), known);
    if what == Debris::LayerDirectory { spare_lost(judged, known) } else { judged }
}

/// The records of a transient store lie in its runroot. Where that is not known, nothing but podman's
/// database tells of a container, and that does not tell which layer is the container's.
fn spare_lost(judged: Judgement, known: &Circumstances) -> Judgement {
    match (judged, &known.lost_container) {
        ((class, Verdict::Reclaim, evidence), Some(lost)) => {
            (class, Verdict::Report, format!("{evidence}; but {lost}: it may be its layer"))
        }
        (judged, _) => judged,
    }
}

/// A container may live on without its record: conmon, the OCI runtime and the container
/// itself go on if the store's records are lost.
fn container_directory(known: &Circumstances) -> Judgement {
    let class = Debris::ContainerDirectory.class();
    let (verdict, evidence) = match &known.presence {
        Presence::Nobody { .. } => (
            Verdict::Reclaim,
            "no container record names it, no process names it or has a file open in it".to_owned(),
        ),
        Presence::Somebody(who) => {
            (Verdict::Report, format!("no container record names it, but {who} still uses it"))
        }
        Presence::Unknown(why) => (
            Verdict::Report,
            format!("no container record names it; that no process uses it is not proven: {why}"),
        ),
    };
    qualify(class, verdict, evidence, known)
}

/// Files of a pull or build that ended or was killed.
fn temporary(what: Debris, known: &Circumstances) -> Judgement {
    if let Some(why) = &known.doubt {
        let evidence = format!("named as the containers tools name temporary files, but {why}");
        return (what.class(), Verdict::Report, evidence);
    }
    let young = known.age.is_none_or(|age| age < GRACE);
    let age = known.age.map_or_else(|| "of unknown age".into(), |age| format!("{} old", human(age)));
    let (verdict, evidence) = match &known.presence {
        Presence::Somebody(who) => (Verdict::Keep, format!("{who} has it open: work in progress")),
        Presence::Nobody { maker: Some(maker) } if young => (
            Verdict::Keep,
            format!("no process has a file open in it, but it is {age} and {maker} may be using it"),
        ),
        Presence::Nobody { .. } => {
            (Verdict::Reclaim, format!("temporary files, {age}; no process has one of them open"))
        }
        Presence::Unknown(why) => (
            Verdict::Report,
            format!("temporary files, {age}; that no process uses them is not proven: {why}"),
        ),
    };
    // The store's records say nothing of these files, so they need not be consistent.
    let known = Circumstances { consistency: Consistency::Consistent, ..known.clone() };
    qualify(what.class(), verdict, evidence, &known)
}

fn live_class(what: Debris) -> &'static str {
    if what == Debris::Staging { "staging-live" } else { "tempdirs-live" }
}

/// Judges a layer with a record that no image and no container reaches.
pub(super) fn unreferenced(volatile: bool, known: &Circumstances) -> Judgement {
    let age = known.age.map_or_else(|| "of unknown age".into(), |age| format!("{} old", human(age)));
    let (class, verdict, evidence) = match (volatile, known.age.is_some_and(|age| age >= GRACE)) {
        (true, true) => {
            ("volatile-ghost", Verdict::Reclaim, format!("a container's layer without a container, {age}"))
        }
        (true, false) => (
            "volatile-ghost",
            Verdict::Keep,
            format!("a container's layer without a container, {age}: may be a start in progress"),
        ),
        (false, true) => {
            ("unref-old", Verdict::Reclaim, format!("no image and no container reaches it, {age}"))
        }
        (false, false) => (
            "unref-young",
            Verdict::Keep,
            format!(
                "no image and no container reaches it, but it is {age}: may be a pull or build in progress"
            ),
        ),
    };
    let judged = qualify(class, verdict, evidence, known);
    if volatile { spare_lost(judged, known) } else { judged }
}

/// Judges a layer that is flagged incomplete.
pub(super) fn incomplete(has_directory: bool, known: &Circumstances) -> Judgement {
    let class = if has_directory { "incomplete" } else { "incomplete-no-dir" };
    let evidence = "flagged incomplete: its making or deleting broke off; every library deletes it on sight";
    qualify(class, Verdict::Reclaim, evidence.into(), known)
}

/// Takes back a "reclaim" that the circumstances do not bear out.
fn qualify(class: &'static str, verdict: Verdict, evidence: String, known: &Circumstances) -> Judgement {
    if verdict != Verdict::Reclaim {
        return (class, verdict, evidence);
    }
    match *known {
        Circumstances { mounted: true, .. } => {
            (class, Verdict::Report, format!("{evidence}; but something is mounted on it"))
        }
        Circumstances { consistency: Consistency::Damaged, .. } => (
            class,
            Verdict::Report,
            format!("{evidence}; but the store's records are damaged, so that proves nothing"),
        ),
        Circumstances { consistency: Consistency::WriterActive, .. } => {
            (class, Verdict::Keep, format!("{evidence}; but another program is writing to the store"))
        }
        _ => (class, verdict, evidence),
    }
}

/// Time since `since`, as far as the clock can be trusted.
pub(super) fn age(since: Option<Timestamp>, present: &Present) -> Option<SignedDuration> {
    since.map(|since| present.age(since))
}

/// Whether something of this age is at least `wanted` old. What is not known to be old is young, but
/// where no age is asked for.
pub(super) fn is_old_enough(age: Option<SignedDuration>, wanted: SignedDuration) -> bool {
    age.map_or(wanted.is_zero(), |age| age >= wanted)
}

fn human(age: SignedDuration) -> String {
    match age.as_secs() {
        secs @ 0..120 => format!("{secs} s"),
        secs @ 120..7200 => format!("{} min", secs / 60),
        secs @ 7200..172_800 => format!("{} h", secs / 3600),
        secs => format!("{} days", secs / 86_400),
    }
}

#[cfg(test)]
mod tests;
