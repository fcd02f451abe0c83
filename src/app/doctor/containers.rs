//! Our container collection beside the kubelet's, which runs every minute.

use crate::app::doctor::examination::{Check, Status};
use crate::model::kubelet_thresholds::KubeletThresholds;
use crate::policy::containers::ContainerPolicy;

/// Whether what we are to collect is left for us at all. `ours`: what is configured, `None` where
/// ours is off.
pub fn containers(kubelet: &KubeletThresholds, ours: Option<&ContainerPolicy>) -> Check {
    const NAME: &str = "container-gc";
    let limit = |number: i64| match ContainerPolicy::limit(number) {
        None => "all".to_owned(),
        Some(limit) => limit.to_string(),
    };
    let (ttl, each, total) = (&kubelet.container_ttl, &kubelet.dead_per_container, &kubelet.dead_in_all);
    let source = [&ttl.by, &each.by, &total.by].into_iter().flatten().next();
    let object = source.map_or("the kubelet's default", String::as_str);
    let young = match ttl.value.is_zero() {
        true => String::new(),
        false => format!(", and those created less than {:#} ago", ttl.value),
    };
    let theirs = format!(
        "the kubelet keeps {} dead containers for each container of a pod, {} on the node{young}",
        limit(each.value),
        limit(total.value),
    );
    let Some(ours) = ours else {
        return Check::ok(NAME, object, format!("{theirs}; layersweep's collection is off"));
    };
    // `None`: no limit, which is above every number.
    let at_most = |theirs: i64, ours: Option<usize>| match (ContainerPolicy::limit(theirs), ours) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(theirs), Some(ours)) => theirs <= ours,
    };
    let stricter = at_most(each.value, ours.max_per_unit)
        && at_most(total.value, ours.max_total)
        && ttl.value <= ours.min_age;
    if stricter {
        return Check::new(
            NAME,
            Status::Warning,
            object,
            format!(
                "{theirs}: it collects every minute, before layersweep (containers.enabled) has anything \
                    to do; layersweep's minimum age does not protect them from it"
            ),
            "give the kubelet --maximum-dead-containers-per-container=-1 --minimum-container-ttl-duration=24h, or set \
             containers.enabled = false",
        );
    }
    let more_than_ours =
        ContainerPolicy::limit(each.value).is_none() && ContainerPolicy::limit(total.value).is_none();
    match more_than_ours {
        true => Check::ok(NAME, object, format!("{theirs}: dead containers are left to layersweep")),
        false => Check::note(
            NAME,
            object,
            format!(
                "{theirs}, every minute; layersweep (containers.enabled) deletes as well, by its own \
                rules"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;
    use crate::node::kubelet::Kubelet;
    use crate::node::thresholds;

    #[test]
    fn who_has_something_to_do() {
        let minutes = SignedDuration::from_mins;
        for (ttl, each, total, ours, expected) in [
            (0, 1, -1, None, Status::Ok),
            (0, 1, -1, Some((5, Some(1), None)), Status::Warning),
            (0, 1, -1, Some((5, None, None)), Status::Warning),
            (0, 1, -1, Some((5, Some(0), None)), Status::Note),
            (0, 1, -1, Some((5, Some(1), Some(100))), Status::Note),
            (0, 1, 50, Some((5, Some(1), Some(100))), Status::Warning),
            (10, 1, -1, Some((5, Some(1), None)), Status::Note),
            (0, -1, -1, Some((5, Some(1), None)), Status::Ok),
            (0, -1, 20, Some((5, Some(1), None)), Status::Note),
        ] {
            let (mut kubelet, _) = thresholds::read(&Kubelet::default());
            kubelet.container_ttl.value = minutes(ttl);
            kubelet.dead_per_container.value = each;
            kubelet.dead_in_all.value = total;
            let policy = ours.map(|(age, max_per_unit, max_total)| ContainerPolicy {
                min_age: minutes(age),
                max_per_unit,
                max_total,
            });
            let found = containers(&kubelet, policy.as_ref());
            assert_eq!(found.status, expected, "{ttl} {each} {total} {ours:?}: {found:?}");
            assert_eq!(found.remedy.is_empty(), expected < Status::Warning, "{found:?}");
        }
    }
}
