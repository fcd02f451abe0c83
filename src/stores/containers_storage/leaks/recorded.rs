//! Verdicts on what has a record: names, data, mounts and containers that do not fit
//! together. Pure. Asked only of a reading that is consistent.

use jiff::SignedDuration;

use super::{GRACE, Judgement, Presence, human};
use crate::model::Verdict;
use crate::stores::containers_storage::inspect::data::DataWrong;
use crate::stores::containers_storage::inspect::links::Leads;

/// Engines write the storage's record and their own moments apart; what is younger than
/// this may be between the two.
pub(in crate::stores::containers_storage) const SETTLED: SignedDuration = SignedDuration::from_mins(10);

/// Judges a name in `l/` that is no layer's; `used_by` has it in its `lower` file.
pub(in crate::stores::containers_storage) fn stray_link(leads: &Leads, used_by: Option<&str>) -> Judgement {
    let class = match leads {
        Leads::Nowhere => "dangling-l",
        Leads::Layer(_) => "dup-l",
        Leads::Unread => "stray-l",
    };
    let what = match leads {
        Leads::Nowhere => "it leads to no layer's directory".to_owned(),
        Leads::Layer(id) => format!("it leads to layer {id}, which has another name"),
        Leads::Unread => {
            "no layer has this name; where it leads cannot be read without changing its access time".into()
        }
    };
    match (leads, used_by) {
        (Leads::Unread, None) => (class, Verdict::Report, what),
        (_, None) => (class, Verdict::Reclaim, format!("{what}, and no layer is built on this name")),
        (Leads::Nowhere, Some(child)) => {
            (class, Verdict::Report, format!("{what}, but layer {child} is built on this name"))
        }
        (_, Some(child)) => {
            (class, Verdict::Keep, format!("{what}, but layer {child} is built on this name"))
        }
    }
}

/// Judges a layer's empty `link` file; `name` is what `l/` has for the layer.
pub(in crate::stores::containers_storage) fn blank_link(name: Option<&str>) -> Judgement {
    let what = "the layer's file `link` is empty or missing, so nothing can be mounted on it";
    let evidence = match name {
        Some(name) => format!("{what}; its name is {name}"),
        None => format!("{what}; it needs a new name"),
    };
    ("empty-linkfile", Verdict::Repair, evidence)
}

/// Judges a layer's name that is not in `l/`; `needed_by` is a layer that is mounted by that name.
/// Library versions up to 1.62 make the name anew at a mount; later ones fail.
pub(in crate::stores::containers_storage) fn missing_link(name: &str, needed_by: Option<&str>) -> Judgement {
    let what = format!("the layer's short name {name} is missing");
    let evidence = match needed_by {
        Some(child) => format!("{what}; Podman 6 cannot mount layer {child}, which needs it, without repair"),
        None => format!("{what}; no layer needs it to be mounted"),
    };
    ("missing-l", Verdict::Repair, evidence)
}

/// Judges a file of an image.
pub(in crate::stores::containers_storage) fn data(what: &DataWrong) -> Judgement {
    match what {
        DataWrong::Missing(name) => (
            "image-data-missing",
            Verdict::Repair,
            format!("the record names {name:?}, which is not there: remove the image and pull it again"),
        ),
        DataWrong::Length { name, found, recorded } => (
            "image-data-size",
            Verdict::Repair,
            format!(
                "{name:?} has {found} bytes, its record says {recorded}: remove the image and pull it again"
            ),
        ),
        DataWrong::Zeroes(name) => (
            "image-data-size",
            Verdict::Repair,
            format!(
                "{name:?} begins with zeroes, as a power cut leaves it: remove the image and pull it again"
            ),
        ),
        DataWrong::Unfinished => {
            ("tmp-json", Verdict::Reclaim, "an unfinished write; nobody holds a lock of the store".into())
        }
    }
}

/// Judges a layer flagged incomplete that cannot be deleted now.
pub(in crate::stores::containers_storage) fn stuck(mounted: bool) -> Judgement {
    let why = if mounted { "something is mounted on it" } else { "its directory is marked immutable" };
    let evidence = format!(
        "flagged incomplete, and {why}: every tool tries to delete it first, fails, and does nothing else"
    );
    ("incomplete-stuck", Verdict::Report, evidence)
}

/// Judges a buildah working container: `podman` sees only that it blocks the image.
/// `None` while it may be in use.
pub(in crate::stores::containers_storage) fn external_container(
    age: Option<SignedDuration>,
    mounted: bool,
    presence: &Presence,
) -> Option<Judgement> {
    let age = age.filter(|age| *age >= GRACE)?;
    let used = match presence {
        Presence::Somebody(_) => return None,
        _ if mounted => return None,
        Presence::Nobody { .. } => "no process names it, nothing of it is mounted".to_owned(),
        Presence::Unknown(why) => format!("that no process uses it is not proven: {why}"),
    };
    let evidence = format!(
        "a working container of buildah, {} old; {used}; it keeps its image from removal",
        human(age)
    );
    Some(("external-container", Verdict::Report, evidence))
}

/// Judges a podman container that podman's database does not have. `None` while it may
/// be in the making.
pub(in crate::stores::containers_storage) fn unknown_to_podman(
    age: Option<SignedDuration>,
) -> Option<Judgement> {
    age.filter(|age| *age >= SETTLED)?;
    let evidence = "podman's database does not know it: its name counts as in use, and `podman rm` finds it \
                    only with --force or by `podman container rm --storage`"
        .into();
    Some(("unknown-to-podman", Verdict::Report, evidence))
}

/// Judges a volume that podman's database does not have; without any database nobody can
/// be making it.
pub(in crate::stores::containers_storage) fn volume(
    age: Option<SignedDuration>,
    has_database: bool,
) -> Judgement {
    let settled = age.is_some_and(|age| age >= SETTLED);
    match (has_database, settled) {
        (true, false) => (
            "volume-orphan",
            Verdict::Keep,
            "podman's database does not know this volume yet: it may be in the making".into(),
        ),
        (true, true) => {
            ("volume-orphan", Verdict::Report, "podman's database does not know this volume".into())
        }
        (false, _) => ("volume-orphan", Verdict::Report, "podman has no database here".into()),
    }
}

/// Judges a sandbox or container of CRI-O without `userdata/config.json`. `None` while
/// it may be in the making.
pub(in crate::stores::containers_storage) fn without_config(
    sandbox: bool,
    age: Option<SignedDuration>,
    presence: &Presence,
) -> Option<Judgement> {
    let settled = age.is_some_and(|age| age >= SETTLED);
    if !settled && matches!(presence, Presence::Nobody { maker: Some(_) } | Presence::Somebody(_)) {
        return None;
    }
    let what = if sandbox { "a sandbox" } else { "a container" };
    let evidence = format!("{what} of CRI-O without userdata/config.json: CRI-O deletes it when it starts");
    Some(("crio-pod", Verdict::Report, evidence))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stray_names() {
        use Verdict::{Keep, Reclaim, Report};
        let live = || Leads::Layer("abc".into());
        for (leads, used_by, class, verdict) in [
            (Leads::Nowhere, None, "dangling-l", Reclaim),
            (Leads::Nowhere, Some("x"), "dangling-l", Report),
            (live(), None, "dup-l", Reclaim),
            (live(), Some("x"), "dup-l", Keep),
            (Leads::Unread, None, "stray-l", Report),
            (Leads::Unread, Some("x"), "stray-l", Keep),
        ] {
            let judged = stray_link(&leads, used_by);
            assert_eq!((judged.0, judged.1), (class, verdict), "{leads:?} {used_by:?}");
        }
    }

    #[test]
    fn containers_in_the_making_are_left_alone() {
        let nobody = || Presence::Nobody { maker: None };
        let crio = || Presence::Nobody { maker: Some("crio (pid 1)".into()) };
        let hours = |hours| Some(SignedDuration::from_hours(hours));
        assert!(external_container(hours(30), false, &nobody()).is_some());
        assert!(external_container(hours(30), true, &nobody()).is_none());
        assert!(external_container(hours(30), false, &Presence::Somebody("buildah".into())).is_none());
        assert!(external_container(hours(23), false, &nobody()).is_none());
        assert!(external_container(None, false, &nobody()).is_none());
        assert!(unknown_to_podman(hours(1)).is_some());
        assert!(unknown_to_podman(Some(SignedDuration::from_secs(3))).is_none());
        assert!(unknown_to_podman(None).is_none());
        let moment = Some(SignedDuration::from_secs(3));
        assert_eq!(volume(moment, true).1, Verdict::Keep);
        assert_eq!(volume(None, true).1, Verdict::Keep);
        assert_eq!(volume(hours(1), true).1, Verdict::Report);
        assert_eq!(volume(moment, false).1, Verdict::Report);
        assert!(without_config(true, moment, &nobody()).is_some(), "nobody could be making it");
        assert!(without_config(true, moment, &crio()).is_none());
        assert!(without_config(true, hours(1), &crio()).is_some());
    }
}
