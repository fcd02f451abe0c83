//! Detects running containers through the kernel: every runtime puts the processes of a container into a control
//! group that is named after the container's id (`crio-<id>.scope`, `cri-containerd-<id>.scope`, `…/<id>`).
//!
//! A process in such a group proves that the container runs. The absence of one proves little: a process in a
//! foreign PID namespace, or behind `hidepid`, is not visible.

/// Returns whether one of the groups in the text of `/proc/PID/cgroup` is named after `id`.
pub(super) fn is_in(groups: &str, id: &str) -> bool {
    groups.lines().any(|line| names(line, id))
}

/// Returns whether a line `hierarchy:controllers:path` has a group on its path that is named after `id`. CRI-O's
/// monitor has a separate group, `crio-conmon-<id>.scope`, which exists as long as the container runs.
fn names(line: &str, id: &str) -> bool {
    let path = line.splitn(3, ':').nth(2).unwrap_or_default();
    !id.is_empty()
        && path.split('/').any(|part| {
            let part = part.strip_suffix(".scope").unwrap_or(part);
            // If the kubelet uses systemd's driver and the runtime does not, the directory is named `slice:prefix:name`.
            let part = part.rsplit(':').next().unwrap_or(part);
            part == id || part.strip_suffix(id).is_some_and(|before| before.ends_with('-'))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn names_of_groups() {
        for (group, expected) in [
            (format!("0::/kubepods.slice/kubepods-pod1.slice/crio-{ID}.scope"), true),
            (format!("0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope"), true),
            (format!("0::/kubepods.slice/crio-conmon-{ID}.scope"), true),
            (format!("4:memory:/kubepods/besteffort/pod1/{ID}"), true),
            (format!("0::/system.slice/containerd.service/kubepods-pod1.slice:cri-containerd:{ID}"), true),
            (format!("0::/kubepods/pod1/{ID}/init.scope"), true),
            (format!("0::/kubepods/pod1/x{ID}"), false),
            (format!("0::/kubepods/pod1/{}", &ID[1..]), false),
            ("0::/".into(), false),
            (String::new(), false),
        ] {
            assert_eq!(names(&group, ID), expected, "{group}");
        }
        assert!(!names("0::/", ""));
    }

    #[test]
    fn any_hierarchy_counts() {
        assert!(is_in(&format!("1:cpu:/a\n0::/b/crio-{ID}.scope\n"), ID));
        assert!(!is_in("0::/\n", ID));
    }
}
