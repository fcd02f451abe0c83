//! The kubelet's paths.

use std::path::{Path, PathBuf};

use crate::sys::processes::Processes;

/// The kubelet's own directory where nothing else is said.
pub const ROOT: &str = "/var/lib/kubelet";
/// Logs of pods: `<namespace>_<name>_<uid>/<container>/<attempt>.log`.
pub const POD_LOGS: &str = "/var/log/pods";
/// Links to them: `<name>_<namespace>_<container>-<id>.log`.
pub const CONTAINER_LOGS: &str = "/var/log/containers";

/// Programs that are a kubelet, or have one built in.
const KUBELETS: [&str; 6] = ["kubelet", "hyperkube", "k3s", "rke2", "k0s", "kubelite"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeletPlaces {
    /// Directories that may be the kubelet's own; a pod is known if any of them has it.
    pub roots: Vec<PathBuf>,
    /// A running kubelet names one of them as its own.
    pub said_by_kubelet: bool,
    /// Directories and files with manifests of static pods.
    pub manifests: Vec<PathBuf>,
    pub pod_logs: PathBuf,
    /// Links to them.
    pub container_logs: PathBuf,
}

impl Default for KubeletPlaces {
    fn default() -> Self {
        Self {
            roots: vec![ROOT.into()],
            said_by_kubelet: false,
            manifests: Vec::new(),
            pod_logs: POD_LOGS.into(),
            container_logs: CONTAINER_LOGS.into(),
        }
    }
}

impl KubeletPlaces {
    /// Adds the paths from the arguments of a running kubelet. Existing paths
    /// stay.
    #[must_use]
    pub fn with_running(mut self, processes: &Processes) -> Self {
        for kubelet in processes.all().iter().filter(|one| KUBELETS.contains(&one.name.as_str())) {
            let said = argument(&kubelet.arguments, "--root-dir");
            // Distributions with a kubelet inside pass it on from arguments of their own.
            self.said_by_kubelet |= kubelet.name == "kubelet" || said.is_some();
            if let Some(root) = said.map(PathBuf::from).filter(|root| root.is_absolute())
                && !self.roots.contains(&root)
            {
                self.roots.push(root);
            }
        }
        self
    }

    /// Whether `path` is below where logs of pods lie, as far as names tell.
    #[must_use]
    pub fn is_pod_log(&self, path: &Path) -> bool {
        path.strip_prefix(&self.pod_logs).is_ok_and(|rest| rest.components().next().is_some())
    }
}

/// The value of `--name=value`, or of `--name value`; the last one counts. Go takes one dash too.
fn argument(arguments: &[u8], name: &str) -> Option<String> {
    let words: Vec<_> =
        arguments.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    let mut found = None;
    for (at, word) in words.iter().enumerate() {
        // k3s wraps it: `--kubelet-arg=root-dir=/x`.
        let word = word.strip_prefix("--kubelet-arg=").map_or(word.clone(), |rest| format!("--{rest}"));
        if let Some(value) = word.strip_prefix(name).and_then(|rest| rest.strip_prefix('=')) {
            found = Some(value.to_owned());
        } else if word == name {
            found = words.get(at + 1).cloned();
        }
    }
    found.filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::processes::Process;

    fn running(name: &str, arguments: &str) -> Processes {
        let arguments = arguments.replace(' ', "\0").into();
        Processes::of(vec![Process { id: 7, name: name.into(), arguments, ..Process::default() }], true)
    }

    #[test]
    fn what_a_running_kubelet_says() {
        for (name, arguments, roots, said) in [
            ("kubelet", "/usr/bin/kubelet --config=/x", vec!["/var/lib/kubelet"], true),
            ("kubelet", "kubelet --root-dir=/data/k", vec!["/var/lib/kubelet", "/data/k"], true),
            ("kubelet", "kubelet --root-dir /data/k --v 2", vec!["/var/lib/kubelet", "/data/k"], true),
            ("kubelet", "kubelet --root-dir=k", vec!["/var/lib/kubelet"], true),
            ("kubelet", "kubelet --root-dir", vec!["/var/lib/kubelet"], true),
            ("k3s", "k3s agent", vec!["/var/lib/kubelet"], false),
            ("k3s", "k3s --kubelet-arg=root-dir=/k", vec!["/var/lib/kubelet", "/k"], true),
            ("bash", "bash --root-dir=/data/k", vec!["/var/lib/kubelet"], false),
        ] {
            let places = KubeletPlaces::default().with_running(&running(name, arguments));
            let roots: Vec<PathBuf> = roots.into_iter().map(Into::into).collect();
            assert_eq!((places.roots, places.said_by_kubelet), (roots, said), "{arguments}");
        }
    }

    #[test]
    fn what_is_a_pods_log() {
        let places = KubeletPlaces::default();
        assert!(places.is_pod_log(Path::new("/var/log/pods/a_b_c/d/0.log")));
        assert!(!places.is_pod_log(Path::new("/var/log/pods")));
        assert!(!places.is_pod_log(Path::new("/var/log/podsother/x")));
    }
}
