//! Our container collection beside the kubelet's, which runs every minute.

use super::check::Check;
use super::node::Settings;
use crate::model::kubelet_thresholds::KubeletThresholds;
use crate::policy::containers::ContainerPolicy;

/// Compares the kubelet's limits for dead containers with layersweep's.
pub(super) fn limits(settings: &Settings<'_>) -> Vec<Check> {
    vec![containers(&settings.kubelet, settings.containers)]
}

/// `ours`: layersweep's policy; `None` where its collection is off.
fn containers(kubelet: &KubeletThresholds, ours: Option<&ContainerPolicy>) -> Check {
    let (ttl, each, total) = (&kubelet.container_ttl, &kubelet.dead_per_container, &kubelet.dead_in_all);
    let source = [&ttl.by, &each.by, &total.by].into_iter().flatten().next();
    let object = source.map_or("the kubelet's default", String::as_str);
    let young = match ttl.value.is_zero() {
        true => String::new(),
        false => format!(", and those created less than {:#} ago", ttl.value),
    };
    let limits = [each, total].map(|limit| ContainerPolicy::limit(limit.value));
    let [of_container, of_node] =
        limits.map(|limit| limit.map_or("all".to_owned(), |limit| limit.to_string()));
    let theirs = format!(
        "the kubelet keeps {of_container} dead containers for each container of a pod, {of_node} on the node{young}"
    );
    let Some(ours) = ours else {
        return Check::ok(object, format!("{theirs}; layersweep's collection is off"));
    };
    // No limit is above every number.
    let number = |limit: Option<usize>| limit.unwrap_or(usize::MAX);
    let is_stricter = number(limits[0]) <= number(ours.max_per_unit)
        && number(limits[1]) <= number(ours.max_total)
        && ttl.value <= ours.min_age;
    if is_stricter {
        let message = format!(
            "{theirs}: it collects every minute, before layersweep (containers.enabled) has anything to do; \
             layersweep's minimum age does not protect them from it"
        );
        let remedy = "give the kubelet --maximum-dead-containers-per-container=-1 --minimum-container-ttl-duration=24h, \
            or set containers.enabled = false";
        return Check::warning(object, message, remedy);
    }
    match limits {
        [None, None] => Check::ok(object, format!("{theirs}: dead containers are left to layersweep")),
        _ => {
            let ours = "every minute; layersweep (containers.enabled) deletes as well, by its own rules";
            Check::note(object, format!("{theirs}, {ours}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;
    use crate::app::doctor::check::Status;
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
