//! What nothing uses: classes, evidence and verdicts. The decisions are pure.
//!
//! A verdict is only as good as the reading it rests on: from damaged records, or while
//! somebody writes, nothing is called reclaimable.

use jiff::{SignedDuration, Timestamp};

use super::units::Debris;
use crate::inventory::{Consistency, Verdict};

/// What is younger may be work in progress: since library version 1.62 a pull has layers
/// without an image for as long as it lasts. The library's own limit is the same 24 hours.
pub(super) const GRACE: SignedDuration = SignedDuration::from_hours(24);

/// What is known of a thing without a record.
#[derive(Clone, Copy, Debug)]
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
}

/// Class, verdict and evidence.
pub(super) type Judgement = (&'static str, Verdict, String);

/// Judges a thing without a record.
pub(super) fn debris(what: Debris, known: Circumstances) -> Judgement {
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
        Debris::ContainerDirectory => (
            what.class(),
            Verdict::Report,
            "no container record names it; that no process uses it is not proven",
        ),
        Debris::ImageDirectory => (what.class(), Verdict::Reclaim, "no image record names it"),
        Debris::TarSplit | Debris::LayerData => (what.class(), Verdict::Reclaim, "no layer record names it"),
        Debris::TempRecord => {
            (what.class(), Verdict::Reclaim, "an unfinished write; nobody holds a lock of the store")
        }
        Debris::FeatureTest => (what.class(), Verdict::Reclaim, "left behind by the driver's feature test"),
    };
    qualify(class, verdict, evidence.into(), known)
}

fn live_class(what: Debris) -> &'static str {
    if what == Debris::Staging { "staging-live" } else { "tempdirs-live" }
}

/// Judges a layer with a record that no image and no container reaches.
pub(super) fn unreferenced(volatile: bool, known: Circumstances) -> Judgement {
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
    qualify(class, verdict, evidence, known)
}

/// Judges a layer that is flagged incomplete.
pub(super) fn incomplete(has_directory: bool, known: Circumstances) -> Judgement {
    let class = if has_directory { "incomplete" } else { "incomplete-no-dir" };
    let evidence = "flagged incomplete: its making or deleting broke off; every library deletes it on sight";
    qualify(class, Verdict::Reclaim, evidence.into(), known)
}

/// Takes back a "reclaim" that the circumstances do not bear out.
fn qualify(class: &'static str, verdict: Verdict, evidence: String, known: Circumstances) -> Judgement {
    if verdict != Verdict::Reclaim {
        return (class, verdict, evidence);
    }
    match known {
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

/// Time since `since`; never negative, so that a clock set back makes nothing old.
pub(super) fn age(since: Option<Timestamp>, now: Timestamp) -> Option<SignedDuration> {
    since.map(|since| now.duration_since(since).max(SignedDuration::ZERO))
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
mod tests {
    use super::*;

    const QUIET: Circumstances = Circumstances {
        consistency: Consistency::Consistent,
        mounted: false,
        lock_held: Some(false),
        has_link: true,
        age: Some(SignedDuration::from_hours(100)),
    };

    #[test]
    fn debris_by_circumstance() {
        use Verdict::{Keep, Reclaim, Report};
        let held = Circumstances { lock_held: Some(true), ..QUIET };
        let lockless = Circumstances { lock_held: None, ..QUIET };
        let fresh = Circumstances { lock_held: None, age: Some(SignedDuration::from_hours(1)), ..QUIET };
        let ageless = Circumstances { lock_held: None, age: None, ..QUIET };
        let mounted = Circumstances { mounted: true, ..QUIET };
        let damaged = Circumstances { consistency: Consistency::Damaged, ..QUIET };
        let busy = Circumstances { consistency: Consistency::WriterActive, ..QUIET };
        let cases = [
            (Debris::LayerDirectory, QUIET, "orphan-dir", Reclaim),
            (
                Debris::LayerDirectory,
                Circumstances { has_link: false, ..QUIET },
                "orphan-dir-partial",
                Reclaim,
            ),
            (Debris::LayerDirectory, mounted, "orphan-dir", Report),
            (Debris::LayerDirectory, damaged, "orphan-dir", Report),
            (Debris::LayerDirectory, busy, "orphan-dir", Keep),
            (Debris::Staging, QUIET, "staging-dead", Reclaim),
            (Debris::Staging, held, "staging-live", Keep),
            (Debris::Staging, lockless, "staging-dead", Reclaim),
            (Debris::Staging, fresh, "staging-live", Keep),
            (Debris::Staging, ageless, "staging-live", Keep),
            (Debris::TempDirectory, QUIET, "tempdirs-dead", Reclaim),
            (Debris::TempDirectory, held, "tempdirs-live", Keep),
            (Debris::ContainerDirectory, QUIET, "orphan-ctr-dir", Report),
            (Debris::TempRecord, busy, "tmp-json", Keep),
        ];
        for (what, known, class, verdict) in cases {
            let judged = debris(what, known);
            assert_eq!((judged.0, judged.1), (class, verdict), "{what:?} {known:?}");
        }
    }

    #[test]
    fn only_old_unreferenced_layers_go() {
        for (volatile, hours, class, verdict) in [
            (false, Some(25), "unref-old", Verdict::Reclaim),
            (false, Some(23), "unref-young", Verdict::Keep),
            (false, None, "unref-young", Verdict::Keep),
            (true, Some(25), "volatile-ghost", Verdict::Reclaim),
            (true, None, "volatile-ghost", Verdict::Keep),
        ] {
            let known = Circumstances { age: hours.map(SignedDuration::from_hours), ..QUIET };
            let judged = unreferenced(volatile, known);
            assert_eq!((judged.0, judged.1), (class, verdict), "{volatile} {hours:?}");
        }
    }

    #[test]
    fn a_clock_set_back_makes_nothing_old() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let later: Timestamp = "2027-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(age(Some(later), now), Some(SignedDuration::ZERO));
        assert_eq!(age(Some(now), later), Some(SignedDuration::from_hours(365 * 24)));
        assert_eq!(age(None, now), None);
    }
}
