//! Unused and inconsistent objects in an artifact store. Pure.

use jiff::SignedDuration;

use crate::model::{Consistency, LeakClass, Verdict};
use crate::stores::leaks::{GRACE, Judgement};

/// Temporary files of pulls and additions (`oci-put-blob123`).
pub(super) fn is_temporary(name: &str) -> bool {
    name.starts_with("oci-put-blob")
}

/// What is known of a file that nothing needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Circumstances {
    pub(super) consistency: Consistency,
    /// A process holds the lock.
    pub(super) is_locked: bool,
    /// Something has it mounted.
    pub(super) is_mounted: bool,
    pub(super) age: Option<SignedDuration>,
}

/// A blob that no entry of the index needs.
pub(super) fn orphan(known: Circumstances) -> Judgement {
    judge("no index entry needs this blob", known)
}

/// A temporary file.
pub(super) fn temporary(known: Circumstances) -> Judgement {
    judge("a temporary file of a pull or an addition", known)
}

fn judge(what: &str, known: Circumstances) -> Judgement {
    let because = |verdict, why: &str| Judgement::of(LeakClass::ArtifactOrphan, what).but(verdict, why);
    if known.consistency == Consistency::Damaged {
        return because(Verdict::Report, "but the index could not be read completely");
    }
    if known.is_locked || known.consistency == Consistency::WriterActive {
        return because(Verdict::Keep, "a process holds the store's lock: a pull or removal is in progress");
    }
    if known.is_mounted {
        return because(Verdict::Report, "but it is still mounted somewhere");
    }
    match known.age {
        Some(age) if age >= GRACE => because(Verdict::Report, "no process holds the store's lock"),
        Some(_) => because(Verdict::Keep, "it is younger than 24 hours"),
        None => because(Verdict::Keep, "its age is unknown"),
    }
}

/// An entry of the index without some of its blobs.
pub(super) fn broken(missing: &[String], is_certain: bool) -> Judgement {
    let first = missing.first().map_or("", String::as_str);
    let more = match missing.len() {
        0 | 1 => String::new(),
        count => format!(" and {} more", count - 1),
    };
    let verdict = if is_certain { Verdict::Repair } else { Verdict::Report };
    let evidence = format!("the index names it, but these blobs are missing or incomplete: {first}{more}");
    Judgement::of(LeakClass::BrokenImage, evidence).with(verdict)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts() {
        let old = Circumstances {
            consistency: Consistency::Consistent,
            is_locked: false,
            is_mounted: false,
            age: Some(SignedDuration::from_hours(25)),
        };
        for (what, known, verdict) in [
            ("old", old, Verdict::Report),
            ("young", Circumstances { age: Some(SignedDuration::from_hours(23)), ..old }, Verdict::Keep),
            ("of unknown age", Circumstances { age: None, ..old }, Verdict::Keep),
            ("locked", Circumstances { is_locked: true, ..old }, Verdict::Keep),
            ("mounted", Circumstances { is_mounted: true, ..old }, Verdict::Report),
            ("written", Circumstances { consistency: Consistency::WriterActive, ..old }, Verdict::Keep),
            ("damaged", Circumstances { consistency: Consistency::Damaged, ..old }, Verdict::Report),
        ] {
            assert_eq!(orphan(known).verdict, verdict, "{what}");
            assert_eq!(temporary(known).verdict, verdict, "{what}");
        }
    }

    #[test]
    fn names() {
        for (name, expected) in [("oci-put-blob123", true), ("index.json", false), ("my-oci-put-blob", false)]
        {
            assert_eq!(is_temporary(name), expected, "{name}");
        }
    }
}
