//! Comparison of layersweep's container collection with the kubelet's, which runs every minute.

use super::check::Check;
use super::node::CheckedSettings;
use crate::model::kubelet_thresholds::KubeletThresholds;
use crate::policy::containers::ContainerPolicy;

/// Compares the kubelet's limits for dead containers with layersweep's.
pub(super) fn limits(settings: &CheckedSettings<'_>) -> Vec<Check> {
    vec![containers(&settings.kubelet, settings.containers)]
}

/// `policy`: layersweep's policy; `None` if its collection is off.
fn containers(kubelet: &KubeletThresholds, policy: Option<&ContainerPolicy>) -> Check {
    let (ttl, each, total) = (&kubelet.container_ttl, &kubelet.dead_per_container, &kubelet.dead_in_all);
    let source = [&ttl.by, &each.by, &total.by].into_iter().flatten().next();
    let object = source.map_or("the kubelet's default", String::as_str);
    let young = if ttl.value.is_zero() {
        String::new()
    } else {
        format!(", and those created less than {:#} ago", ttl.value)
    };
    let limits = [each, total].map(|limit| ContainerPolicy::limit(limit.value));
    let [of_container, of_node] =
        limits.map(|limit| limit.map_or("all".to_owned(), |limit| limit.to_string()));
    let kubelets = format!(
        "the kubelet keeps {of_container} dead containers for each container of a pod, {of_node} on the node{young}"
    );
    let Some(policy) = policy else {
        return Check::ok(object, format!("{kubelets}; layersweep's collection is off"));
    };
    let [is_stricter_each, is_stricter_total] =
        [(limits[0], policy.max_per_unit), (limits[1], policy.max_total)].map(|(kubelet, policy)| {
            // A missing limit is higher than every number.
            kubelet.unwrap_or(usize::MAX) <= policy.unwrap_or(usize::MAX)
        });
    if is_stricter_each && is_stricter_total && ttl.value <= policy.min_age {
        let message = format!(
            "{kubelets}: it collects every minute, before layersweep (containers.enabled) has anything to do; \
             layersweep's minimum age does not protect them from it"
        );
        let remedy = "give the kubelet --maximum-dead-containers-per-container=-1 --minimum-container-ttl-duration=24h, \
            or set containers.enabled = false";
        return Check::warning(object, message, remedy);
    }
    match limits {
        [None, None] => Check::ok(object, format!("{kubelets}: dead containers are left to layersweep")),
        _ => {
            let message = format!(
                "{kubelets}, every minute; layersweep (containers.enabled) deletes as well, by its own rules"
            );
            Check::note(object, message)
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
    fn stricter_kubelet_limits_are_a_warning() {
        for (ttl, each, total, limits, expected) in [
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
            kubelet.container_ttl.value = SignedDuration::from_mins(ttl);
            kubelet.dead_per_container.value = each;
            kubelet.dead_in_all.value = total;
            let policy = limits.map(|(age, max_per_unit, max_total)| ContainerPolicy {
                min_age: SignedDuration::from_mins(age),
                max_per_unit,
                max_total,
            });
            let found = containers(&kubelet, policy.as_ref());
            assert_eq!(found.status, expected, "{ttl} {each} {total} {limits:?}: {found:?}");
            assert_eq!(found.remedy.is_empty(), expected < Status::Warning, "{found:?}");
        }
    }
}
