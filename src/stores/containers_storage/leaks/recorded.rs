//! Verdicts on recorded objects: inconsistent names, data, mounts and containers.
//! Pure. Only for consistent readings.

use jiff::SignedDuration;

use super::{Presence, SETTLED, human, unfinished_write};
use crate::model::{LeakClass, Verdict};
use crate::stores::containers_storage::inspect::found::DataWrong;
use crate::stores::containers_storage::inspect::found::Leads;
use crate::stores::leaks::{GRACE, Judgement};

/// Judges a name in `l/` that belongs to no layer; `used_by` has it in its `lower` file.
pub(in crate::stores::containers_storage) fn stray_link(leads: &Leads, used_by: Option<&str>) -> Judgement {
    let class = match leads {
        Leads::Nowhere => LeakClass::DanglingL,
        Leads::Layer(_) => LeakClass::DupL,
        Leads::Unread => LeakClass::StrayL,
    };
    let what = match leads {
        Leads::Nowhere => "it leads to no layer's directory".to_owned(),
        Leads::Layer(id) => format!("it leads to layer {id}, which has another name"),
        Leads::Unread => {
            "no layer has this name; its target cannot be read without changing its access time".into()
        }
    };
    let (verdict, rest) = match (leads, used_by) {
        (Leads::Unread, None) => (Verdict::Report, String::new()),
        (_, None) => (Verdict::Reclaim, ", and no layer is built on this name".into()),
        (leads, Some(child)) => {
            let verdict = if *leads == Leads::Nowhere { Verdict::Report } else { Verdict::Keep };
            (verdict, format!(", but layer {child} is built on this name"))
        }
    };
    Judgement::of(class, format!("{what}{rest}")).with(verdict)
}

/// Judges a layer's empty `link` file; `name` is what `l/` has for the layer.
pub(in crate::stores::containers_storage) fn blank_link(name: Option<&str>) -> Judgement {
    let what = "the layer's `link` file is empty or missing, so the layer cannot be mounted";
    let evidence = match name {
        Some(name) => format!("{what}; its name is {name}"),
        None => format!("{what}; it needs a new name"),
    };
    Judgement::of(LeakClass::EmptyLinkFile, evidence)
}

/// Judges a layer's name that is not in `l/`; `needed_by` is a layer that is mounted by that name.
/// Library versions up to 1.62 recreate the name at a mount; later ones fail.
pub(in crate::stores::containers_storage) fn missing_link(name: &str, needed_by: Option<&str>) -> Judgement {
    let what = format!("the layer's short name {name} is missing");
    let evidence = match needed_by {
        Some(child) => format!("{what}; Podman 6 cannot mount layer {child}, which needs it, without repair"),
        None => format!("{what}; no layer needs it to be mounted"),
    };
    Judgement::of(LeakClass::MissingL, evidence)
}

/// Judges a file of an image.
pub(in crate::stores::containers_storage) fn data(what: &DataWrong) -> Judgement {
    let again = "remove the image and pull it again";
    match what {
        DataWrong::Missing(name) => Judgement::of(
            LeakClass::ImageDataMissing,
            format!("the record names {name:?}, which is missing: {again}"),
        ),
        DataWrong::Length { name, found, recorded } => Judgement::of(
            LeakClass::ImageDataSize,
            format!("{name:?} has {found} bytes, its record says {recorded}: {again}"),
        ),
        DataWrong::Zeroes(name) => Judgement::of(
            LeakClass::ImageDataSize,
            format!("{name:?} begins with zeroes, typical after a power failure: {again}"),
        ),
        DataWrong::Unfinished => unfinished_write(),
    }
}

/// Judges a layer flagged incomplete that cannot be deleted now.
pub(in crate::stores::containers_storage) fn stuck(mounted: bool) -> Judgement {
    let why = if mounted { "something is mounted on it" } else { "its directory is marked immutable" };
    let evidence =
        format!("flagged incomplete, and {why}: every tool tries to delete it first, fails and stops");
    Judgement::of(LeakClass::IncompleteStuck, evidence)
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
        Presence::Nobody { .. } => "no process names it and nothing of it is mounted".to_owned(),
        Presence::Unknown(why) => format!("a process may be using it: {why}"),
    };
    let evidence =
        format!("a working container of buildah, {} old; {used}; its image cannot be removed", human(age));
    Some(Judgement::of(LeakClass::ExternalContainer, evidence))
}

/// Judges a podman container that podman's database does not have. `None` while it may
/// be in the making.
pub(in crate::stores::containers_storage) fn unknown_to_podman(
    age: Option<SignedDuration>,
) -> Option<Judgement> {
    age.filter(|age| *age >= SETTLED)?;
    let evidence = "podman's database does not have it: its name stays in use; remove it with `podman rm \
                    --force` or `podman container rm --storage`";
    Some(Judgement::of(LeakClass::UnknownToPodman, evidence))
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
    Some(Judgement::of(LeakClass::CrioPod, evidence))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stray_names() {
        use Verdict::{Keep, Reclaim, Report};
        let live = || Leads::Layer("abc".into());
        for (leads, used_by, class, verdict) in [
            (Leads::Nowhere, None, LeakClass::DanglingL, Reclaim),
            (Leads::Nowhere, Some("x"), LeakClass::DanglingL, Report),
            (live(), None, LeakClass::DupL, Reclaim),
            (live(), Some("x"), LeakClass::DupL, Keep),
            (Leads::Unread, None, LeakClass::StrayL, Report),
            (Leads::Unread, Some("x"), LeakClass::StrayL, Keep),
        ] {
            let judged = stray_link(&leads, used_by);
            assert_eq!((judged.class, judged.verdict), (class, verdict), "{leads:?} {used_by:?}");
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
        assert!(without_config(true, moment, &nobody()).is_some(), "nobody could be making it");
        assert!(without_config(true, moment, &crio()).is_none());
        assert!(without_config(true, hours(1), &crio()).is_some());
    }
}
