//! Directories of the kubelet: its own, and those of logs.

use std::path::{Path, PathBuf};

use super::kubelet::Kubelet;
use super::scalars;
use crate::sys::sysroot::Sysroot;

/// Default of the kubelet's own directory.
pub const ROOT: &str = "/var/lib/kubelet";
/// Directory of the pods' logs, `<namespace>_<name>_<uid>/<container>/<attempt>.log`.
pub const POD_LOGS: &str = "/var/log/pods";
/// Directory of the symlinks to these logs, `<name>_<namespace>_<container>-<id>.log`.
pub const CONTAINER_LOGS: &str = "/var/log/containers";

/// The flag for the kubelet's own directory. The kubelet's configuration file has no key for it.
const ROOT_DIR: &str = "--root-dir";

/// Directories of the kubelet that layersweep's configuration names. `None` means the directory that the kubelet's
/// settings name, or its default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfiguredPlaces {
    /// The kubelet's own directory, which contains `pods`.
    pub root_dir: Option<PathBuf>,
    pub pod_logs_dir: Option<PathBuf>,
    /// Directory of symlinks to logs of containers.
    pub container_logs_dir: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeletPlaces {
    /// Possible locations of the kubelet's own directory, the one in effect first. A pod is known if any of them
    /// contains it: a wrong location only keeps objects.
    pub roots: Vec<PathBuf>,
    /// One of the locations is named by a running kubelet or by layersweep's configuration.
    pub is_named: bool,
    /// Directories and files with manifests of static pods.
    pub manifests: Vec<PathBuf>,
    pub pod_logs: PathBuf,
    /// Directory of the symlinks to the logs.
    pub container_logs: PathBuf,
}

impl Default for KubeletPlaces {
    fn default() -> Self {
        Self::find(&ConfiguredPlaces::default(), &Kubelet::default())
    }
}

impl KubeletPlaces {
    /// Takes each directory from layersweep's configuration, else from the kubelet's arguments and settings, else the
    /// default. `manifests` stays empty.
    #[must_use]
    pub fn find(configured: &ConfiguredPlaces, settings: &Kubelet) -> Self {
        let ConfiguredPlaces { root_dir, pod_logs_dir, container_logs_dir } = configured;
        let is_running = settings.running.is_some() || settings.embedded_flags(ROOT_DIR).next().is_some();
        let pod_logs = pod_logs_dir.clone().or_else(|| pod_logs(settings));
        Self {
            roots: roots(root_dir.as_deref(), settings),
            is_named: root_dir.is_some() || is_running,
            manifests: Vec::new(),
            pod_logs: pod_logs.unwrap_or_else(|| POD_LOGS.into()),
            container_logs: container_logs_dir.clone().unwrap_or_else(|| CONTAINER_LOGS.into()),
        }
    }

    /// Returns the kubelet's own directory, or its nearest ancestor that exists.
    #[must_use]
    pub fn nodefs(&self, sysroot: &Sysroot) -> Option<PathBuf> {
        self.roots.first()?.ancestors().find_map(|path| sysroot.resolve(path).ok())
    }

    /// Directories whose space counts as the kubelet's: its own, and the default one, which is left behind after a
    /// move.
    pub fn data_directories(&self) -> impl Iterator<Item = &Path> {
        with_usual(&self.roots, ROOT)
    }

    /// Directories whose space counts as logs of pods, including the default one.
    pub fn log_directories(&self) -> impl Iterator<Item = &Path> {
        with_usual(std::slice::from_ref(&self.pod_logs), POD_LOGS)
    }

    /// Checks whether `path` is below the directory of logs, judging by names only.
    #[must_use]
    pub fn is_pod_log(&self, path: &Path) -> bool {
        path.strip_prefix(&self.pod_logs).is_ok_and(|rest| rest.components().next().is_some())
    }
}

/// Appends the default directory to `paths` unless it is among them.
fn with_usual<'a>(paths: &'a [PathBuf], usual: &'static str) -> impl Iterator<Item = &'a Path> {
    let usual = Path::new(usual);
    paths.iter().map(PathBuf::as_path).chain(paths.iter().all(|path| path != usual).then_some(usual))
}

/// Returns the possible locations of the kubelet's own directory, the one in effect first.
///
/// That is `configured` alone if it is set. Otherwise the directory of the running kubelet comes first, then those that
/// files with flags name, because each file may be in effect, then the default.
pub(super) fn roots(configured: Option<&Path>, settings: &Kubelet) -> Vec<PathBuf> {
    if let Some(configured) = configured {
        return vec![configured.to_path_buf()];
    }
    let running = settings
        .running
        .as_ref()
        .map(|kubelet| scalars::flag(&kubelet.text, ROOT_DIR).unwrap_or_else(|| ROOT.to_owned()));
    let files = settings.flag(ROOT_DIR).into_iter().rev().map(|setting| setting.value);
    let all = running.into_iter().chain(settings.embedded_flags(ROOT_DIR)).chain(files);
    let mut roots: Vec<PathBuf> = Vec::new();
    for root in all.chain([ROOT.to_owned()]).map(PathBuf::from) {
        if root.is_absolute() && !roots.contains(&root) {
            roots.push(root);
        }
    }
    roots
}

fn pod_logs(settings: &Kubelet) -> Option<PathBuf> {
    let (values, _) = settings.values("podLogsDir");
    let mut paths = values.iter().filter_map(|(value, _)| value.as_str().map(PathBuf::from));
    paths.rfind(|path| path.is_absolute())
}

#[cfg(test)]
mod tests {
    use super::super::kubelet::SettingsFile;
    use super::*;
    use crate::sys::processes::{Process, Processes};

    fn file(path: &str, text: &str) -> SettingsFile {
        SettingsFile { path: path.into(), text: text.into() }
    }

    /// Settings of a node on which the program `running` runs, with files of kubelet flags and kubelet configurations.
    fn settings(running: &str, flags: &[&str], configs: &[&str]) -> Kubelet {
        let name = running.split(' ').next().unwrap();
        let arguments = running.replace(' ', "\0").into();
        let process = Process { id: 7, name: name.into(), arguments, ..Process::default() };
        let processes = Processes::of(vec![process], true);
        let node = tempfile::tempdir().unwrap();
        let mut settings = Kubelet::read_running(&Sysroot::at(node.path()), &processes);
        settings.flags = flags.iter().map(|text| file("/etc/default/kubelet", text)).collect();
        settings.configs = configs.iter().map(|text| file("/etc/kubernetes/kubelet.conf", text)).collect();
        settings
    }

    #[test]
    fn kubelet_directory_comes_from_its_settings() {
        const USUAL: &str = ROOT;
        for (configured, running, flags, roots, is_named) in [
            (None, "", &[][..], &[USUAL][..], false),
            (None, "kubelet --config=/x", &[], &[USUAL], true),
            (None, "kubelet --root-dir=/data/k", &[], &["/data/k", USUAL], true),
            (None, "kubelet --root-dir /data/k --v 2", &[], &["/data/k", USUAL], true),
            (None, "kubelet --root-dir=k", &[], &[USUAL], true),
            (None, "kubelet --root-dir", &[], &[USUAL], true),
            (None, "k3s agent", &[], &[USUAL], false),
            (None, "k3s --kubelet-arg=root-dir=/k", &[], &["/k", USUAL], true),
            (None, "k3s --kubelet-arg root-dir=/k", &[], &["/k", USUAL], true),
            (None, "bash --root-dir=/data/k", &[], &[USUAL], false),
            // It is unknown which of the files is in effect, unless a kubelet runs.
            (None, "", &["--root-dir=/a", "--root-dir=/b"], &["/b", "/a", USUAL], false),
            (None, "kubelet", &["--root-dir=/a"], &[USUAL, "/a"], true),
            (None, "k3s --kubelet-arg=root-dir=/k", &["--root-dir=/a"], &["/k", "/a", USUAL], true),
            (Some("/c"), "kubelet --root-dir=/data/k", &["--root-dir=/a"], &["/c"], true),
            (Some("/c"), "", &[], &["/c"], true),
        ] {
            let root_dir = configured.map(PathBuf::from);
            let configured = ConfiguredPlaces { root_dir, ..ConfiguredPlaces::default() };
            let places = KubeletPlaces::find(&configured, &settings(running, flags, &[]));
            let expected: Vec<PathBuf> = roots.iter().map(PathBuf::from).collect();
            assert_eq!((&places.roots, places.is_named), (&expected, is_named), "{running} {flags:?}");
            // Files that are left in the default directory take up space wherever the kubelet is now.
            let data: Vec<_> = places.data_directories().collect();
            assert!(data.starts_with(&[expected[0].as_path()]) && data.contains(&Path::new(ROOT)));
        }
    }

    #[test]
    fn log_directory_comes_from_its_settings() {
        for (configured, configs, expected) in [
            (None, &[][..], POD_LOGS),
            (None, &["podLogsDir: /data/pods"], "/data/pods"),
            (None, &["podLogsDir: pods"], POD_LOGS),
            (None, &["podLogsDir: /a", "podLogsDir: /b", "maxPods: 10"], "/b"),
            (Some("/c"), &["podLogsDir: /a"], "/c"),
        ] {
            let pod_logs_dir = configured.map(PathBuf::from);
            let configured = ConfiguredPlaces { pod_logs_dir, ..ConfiguredPlaces::default() };
            let places = KubeletPlaces::find(&configured, &settings("", &[], configs));
            assert_eq!(places.pod_logs, Path::new(expected), "{configs:?}");
            let mut directories = vec![Path::new(expected), Path::new(POD_LOGS)];
            directories.dedup();
            assert_eq!(places.log_directories().collect::<Vec<_>>(), directories);
        }
    }

    #[test]
    fn nodefs_is_the_nearest_existing_directory() {
        let node = tempfile::tempdir().unwrap();
        let sysroot = Sysroot::at(node.path());
        std::fs::create_dir_all(node.path().join("data")).unwrap();
        let root_dir = Some(PathBuf::from("/data/k"));
        let configured = ConfiguredPlaces { root_dir, ..ConfiguredPlaces::default() };
        let places = KubeletPlaces::find(&configured, &Kubelet::default());
        assert_eq!(places.nodefs(&sysroot), sysroot.resolve(Path::new("/data")).ok());
    }

    #[test]
    fn pod_logs_are_recognised_by_path() {
        let places = KubeletPlaces::default();
        assert!(places.is_pod_log(Path::new("/var/log/pods/a_b_c/d/0.log")));
        assert!(!places.is_pod_log(Path::new("/var/log/pods")));
        assert!(!places.is_pod_log(Path::new("/var/log/podsother/x")));
    }
}
