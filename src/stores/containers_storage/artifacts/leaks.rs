//! Judges unused and inconsistent objects of an artifact store. Pure.

use jiff::SignedDuration;

use crate::model::{Consistency, LeakClass, Verdict};
use crate::stores::leaks::{GRACE, Judgement};

/// Returns true for the name of a temporary file of a pull or an addition (`oci-put-blob123`).
pub(super) fn is_temporary(name: &str) -> bool {
    name.starts_with("oci-put-blob")
}

/// Facts about a file that no artifact needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArtifactFacts {
    pub(super) consistency: Consistency,
    pub(super) is_locked: bool,
    pub(super) is_mounted: bool,
    pub(super) age: Option<SignedDuration>,
}

pub(super) fn orphan(known: ArtifactFacts) -> Judgement {
    judge("no index entry needs this blob", known)
}

pub(super) fn temporary(known: ArtifactFacts) -> Judgement {
    judge("a temporary file of a pull or an addition", known)
}

fn judge(fact: &str, known: ArtifactFacts) -> Judgement {
    let (verdict, reason) = if known.consistency == Consistency::Damaged {
        (Verdict::Report, "but the index could not be read completely")
    } else if known.is_locked || known.consistency == Consistency::WriterActive {
        (Verdict::Keep, "a process holds the store's lock: a pull or removal is in progress")
    } else if known.is_mounted {
        (Verdict::Report, "but it is still mounted somewhere")
    } else {
        match known.age {
            Some(age) if age >= GRACE => (Verdict::Report, "no process holds the store's lock"),
            Some(_) => (Verdict::Keep, "it is younger than 24 hours"),
            None => (Verdict::Keep, "its age is unknown"),
        }
    };
    Judgement::of(LeakClass::ArtifactOrphan, fact).but(verdict, reason)
}

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
    fn unused_file_is_reported_after_24_hours() {
        let old = ArtifactFacts {
            consistency: Consistency::Consistent,
            is_locked: false,
            is_mounted: false,
            age: Some(SignedDuration::from_hours(25)),
        };
        for (case, known, verdict) in [
            ("old", old, Verdict::Report),
            ("young", ArtifactFacts { age: Some(SignedDuration::from_hours(23)), ..old }, Verdict::Keep),
            ("of unknown age", ArtifactFacts { age: None, ..old }, Verdict::Keep),
            ("locked", ArtifactFacts { is_locked: true, ..old }, Verdict::Keep),
            ("mounted", ArtifactFacts { is_mounted: true, ..old }, Verdict::Report),
            ("written", ArtifactFacts { consistency: Consistency::WriterActive, ..old }, Verdict::Keep),
            ("damaged", ArtifactFacts { consistency: Consistency::Damaged, ..old }, Verdict::Report),
        ] {
            assert_eq!(orphan(known).verdict, verdict, "{case}");
            assert_eq!(temporary(known).verdict, verdict, "{case}");
        }
    }

    #[test]
    fn temporary_file_is_recognized_by_prefix() {
        for (name, expected) in [("oci-put-blob123", true), ("index.json", false), ("my-oci-put-blob", false)]
        {
            assert_eq!(is_temporary(name), expected, "{name}");
        }
    }
}
