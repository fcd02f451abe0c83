//! Settings of the kubelet: the files with its flags, and its configuration files.
//!
//! If several files may be the kubelet's, all are read. Their settings name images that must not be deleted and sockets
//! that may exist, so a setting too many does no harm.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::scalars;
use crate::sys::processes::Processes;
use crate::sys::quiet::is_absent;
use crate::sys::sysroot::Sysroot;

/// Maximum size of a settings file; a larger file counts as unreadable.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Files with the kubelet's flags: shell variables of kubeadm, shell variables of the administrator (on Debian, on
/// Fedora), the list of flags of `MicroK8s`, and units of systemd.
const FLAGS: [&str; 6] = [
    "/var/lib/kubelet/kubeadm-flags.env",
    "/etc/default/kubelet",
    "/etc/sysconfig/kubelet",
    "/var/snap/microk8s/current/args/kubelet",
    "/etc/systemd/system/kubelet.service",
    "/usr/lib/systemd/system/kubelet.service",
];

/// Directories of the unit's drop-ins, `*.conf`.
const UNIT_DROP_INS: [&str; 2] =
    ["/etc/systemd/system/kubelet.service.d", "/usr/lib/systemd/system/kubelet.service.d"];

/// Configuration files of distributions that embed the kubelet and take its flags as a list. Each has drop-ins in a
/// directory of the same name with `.d` appended.
const DISTRIBUTIONS: [&str; 2] = ["/etc/rancher/k3s/config.yaml", "/etc/rancher/rke2/config.yaml"];

/// Units that contain the arguments given to the installer of k3s.
const UNITS_OF_K3S: [&str; 2] = ["/etc/systemd/system/k3s.service", "/etc/systemd/system/k3s-agent.service"];

const DATA_DIRS: [(&str, &str); 2] =
    [("/var/lib/rancher/k3s", "k3s' default"), ("/var/lib/rancher/rke2", "RKE2's default")];

/// Key (and flag) for the data directory of k3s and RKE2.
const DATA_DIR: &str = "data-dir";

/// Configuration files of the kubelet: kubeadm's, then OpenShift's.
const CONFIGS: [&str; 2] = ["/var/lib/kubelet/config.yaml", "/etc/kubernetes/kubelet.conf"];

/// Directory of OpenShift's drop-ins of the configuration, `*.conf`. k3s and RKE2 have them in `agent` in their data
/// directory.
const OPENSHIFT_DROP_INS: &str = "/etc/openshift/kubelet.conf.d";

pub type Problem = (PathBuf, String);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsFile {
    /// Path inside the root.
    pub path: PathBuf,
    pub text: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    pub value: String,
    pub file: PathBuf,
}

/// Data directory of k3s or RKE2. Its subdirectory `agent` contains containerd, the kubelet's configuration and the
/// manifests of static pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataDir {
    pub path: PathBuf,
    /// The file that names it, or the program whose default it is.
    pub origin: String,
}

impl DataDir {
    /// Returns the data directory that contains containerd's `root`, judging by the path alone.
    #[must_use]
    pub fn of_root(root: &Path, origin: &str) -> Option<Self> {
        let path = root.parent()?.parent()?;
        let is_data_dir = path.join("agent/containerd") == root;
        is_data_dir.then(|| Self { path: path.to_path_buf(), origin: origin.to_owned() })
    }

    #[must_use]
    pub fn agent(&self) -> PathBuf {
        self.path.join("agent")
    }
}

#[derive(Debug, Default)]
pub struct Kubelet {
    /// Data directories of k3s and RKE2 that a file or [`Self::add_data_dirs`] names.
    pub configured_data_dirs: Vec<DataDir>,
    /// Files with flags. If several set the same flag, each may be in effect.
    pub flags: Vec<SettingsFile>,
    /// Arguments of the running kubelet, if the processes were searched and one was found.
    pub running: Option<SettingsFile>,
    /// Arguments of running programs that embed the kubelet; they include flags of the kubelet.
    pub embedded: Vec<SettingsFile>,
    pub configs: Vec<SettingsFile>,
    /// Files whose flags cannot be parsed. They count as files without flags.
    pub misread: Vec<Problem>,
    pub unreadable: Vec<(PathBuf, io::Error)>,
}

impl Kubelet {
    #[must_use]
    pub fn read(root: &Sysroot) -> Self {
        Self::default().with_files(root)
    }

    /// Like [`Self::read`], with the arguments of the running kubelet if `root` is this machine's root.
    #[must_use]
    pub fn read_now(root: &Sysroot) -> Self {
        if root.is_foreign() {
            return Self::read(root);
        }
        match Processes::read_kubelets() {
            Ok(processes) => Self::read_running(root, &processes),
            Err(error) => {
                tracing::warn!("looking for a kubelet that runs: {error}");
                Self::read(root)
            }
        }
    }

    /// Like [`Self::read`], with the arguments of the kubelet among `processes`. An embedded kubelet gets most of its
    /// arguments from the files of the program that embeds it.
    #[must_use]
    pub fn read_running(root: &Sysroot, processes: &Processes) -> Self {
        let mut kubelet = Self::default();
        for process in processes.kubelets() {
            let arguments = SettingsFile {
                path: format!("/proc/{}/cmdline", process.id).into(),
                text: String::from_utf8_lossy(&process.arguments).replace('\0', " "),
            };
            if process.name == "kubelet" && kubelet.running.is_none() {
                kubelet.running = Some(arguments);
            } else {
                // k3s and RKE2 wrap the kubelet's flags: `--kubelet-arg=root-dir=/x`.
                let text = arguments.text.replace("--kubelet-arg=", "--").replace("--kubelet-arg ", "--");
                kubelet.embedded.push(SettingsFile { text, ..arguments });
            }
        }
        kubelet.with_files(root)
    }

    fn with_files(self, root: &Sysroot) -> Self {
        let mut kubelet = self;
        let mut files: Vec<_> = FLAGS.iter().map(PathBuf::from).collect();
        for directory in UNIT_DROP_INS {
            files.extend(kubelet.drop_ins(root, Path::new(directory), "conf"));
        }
        for file in files {
            if let Some(file) = kubelet.file(root, file) {
                kubelet.flags.push(file);
            }
        }
        kubelet.read_distributions(root);
        let mut files: Vec<_> = CONFIGS.iter().map(PathBuf::from).collect();
        files.extend(kubelet.flag("--config").into_iter().map(|setting| setting.value.into()));
        let mut directories: Vec<_> =
            kubelet.data_dirs().iter().map(|dir| dir.agent().join("etc/kubelet.conf.d")).collect();
        directories.push(OPENSHIFT_DROP_INS.into());
        directories.extend(kubelet.flag("--config-dir").into_iter().map(|setting| setting.value.into()));
        for directory in directories {
            files.extend(kubelet.drop_ins(root, &directory, "conf"));
        }
        let mut seen: Vec<PathBuf> = Vec::new();
        for file in files.into_iter().filter(|file| file.is_absolute()) {
            let real = root.resolve(&file).unwrap_or_else(|_| file.clone());
            if seen.contains(&real) {
                continue;
            }
            seen.push(real);
            if let Some(file) = kubelet.file(root, file) {
                kubelet.configs.push(file);
            }
        }
        kubelet
    }

    /// Data directories of k3s and RKE2, without repetitions.
    #[must_use]
    pub fn data_dirs(&self) -> Vec<DataDir> {
        let usual = DATA_DIRS.map(|(path, origin)| DataDir { path: path.into(), origin: origin.into() });
        let mut dirs: Vec<DataDir> = Vec::new();
        for dir in usual.iter().chain(&self.configured_data_dirs) {
            if dir.path.is_absolute() && dirs.iter().all(|known| known.path != dir.path) {
                dirs.push(dir.clone());
            }
        }
        dirs
    }

    /// Adds data directories that are not named in the kubelet's files.
    pub fn add_data_dirs(&mut self, dirs: impl IntoIterator<Item = DataDir>) {
        self.configured_data_dirs.extend(dirs);
    }

    /// Returns the values of a long flag, `--name`, one for each file that sets it.
    #[must_use]
    pub fn flag(&self, name: &str) -> Vec<Setting> {
        let values = self
            .flags
            .iter()
            .chain(&self.running)
            .filter_map(|file| Some((scalars::flag(&file.text, name)?, file)));
        values.map(|(value, file)| Setting { value, file: file.path.clone() }).collect()
    }

    /// Returns the values of a long flag in the arguments of programs that embed the kubelet.
    pub(super) fn embedded_flags(&self, name: &str) -> impl Iterator<Item = String> {
        self.embedded.iter().filter_map(move |file| scalars::flag(&file.text, name))
    }

    #[must_use]
    pub fn is_here(&self) -> bool {
        self.running.is_some() || !self.configs.is_empty() || !self.flags.is_empty()
    }

    /// Returns the value of a long flag that is in effect: that of the running kubelet if one runs, otherwise that of
    /// the last file that sets it.
    #[must_use]
    pub fn flag_in_effect(&self, name: &str) -> Option<Setting> {
        match &self.running {
            Some(running) => {
                scalars::flag(&running.text, name).map(|value| Setting { value, file: running.path.clone() })
            }
            None => self.flag(name).pop(),
        }
    }

    /// Returns the configuration files in effect, in the order in which later ones override earlier ones: the main
    /// file, then drop-ins. `--config` excludes the main files of other installations.
    pub fn configs_in_effect(&self) -> impl Iterator<Item = &SettingsFile> {
        let named = self.flag_in_effect("--config").map(|setting| PathBuf::from(setting.value));
        let is_read = named.as_ref().is_some_and(|named| self.configs.iter().any(|file| file.path == *named));
        self.configs.iter().filter(move |file| {
            let is_main = CONFIGS.iter().any(|main| file.path == Path::new(main));
            !is_read || named.as_ref() == Some(&file.path) || !is_main
        })
    }

    /// Returns the values of a key at the top level of the configurations in effect, and the parse errors.
    #[must_use]
    pub fn values(&self, key: &str) -> (Vec<(Value, PathBuf)>, Vec<Problem>) {
        let (mut found, mut problems) = (Vec::new(), Vec::new());
        for file in self.configs_in_effect() {
            match scalars::value(&file.text, key) {
                Ok(value) => found.extend(value.map(|value| (value, file.path.clone()))),
                Err(why) => problems.push((file.path.clone(), why)),
            }
        }
        (found, problems)
    }

    /// Returns the strings of a key at the top level of all configurations, and the parse errors.
    #[must_use]
    pub fn setting(&self, key: &str) -> (Vec<Setting>, Vec<Problem>) {
        let (mut found, mut problems) = (Vec::new(), Vec::new());
        for file in &self.configs {
            match scalars::top_level(&file.text, key) {
                Ok(Some(value)) => found.push(Setting { value, file: file.path.clone() }),
                Ok(None) => {}
                Err(why) => problems.push((file.path.clone(), why)),
            }
        }
        (found, problems)
    }

    fn file(&mut self, root: &Sysroot, path: PathBuf) -> Option<SettingsFile> {
        match root.read_bytes(&path, MAX_FILE_BYTES) {
            // Comments may be in any encoding.
            Ok(bytes) => Some(SettingsFile { path, text: String::from_utf8_lossy(&bytes).into_owned() }),
            Err(error) if is_absent(&error) => None,
            Err(error) => {
                self.unreadable.push((path, error));
                None
            }
        }
    }

    /// Reads the files of k3s and RKE2: the kubelet's flags (`kubelet-arg`), and `data-dir`.
    fn read_distributions(&mut self, root: &Sysroot) {
        for main in DISTRIBUTIONS {
            let mut files = vec![PathBuf::from(main)];
            files.extend(self.drop_ins(root, Path::new(&format!("{main}.d")), "yaml"));
            for path in files {
                let Some(SettingsFile { path, text }) = self.file(root, path) else { continue };
                match scalars::top_level(&text, DATA_DIR) {
                    Ok(dir) => self.data_dir(dir, &path),
                    Err(why) => self.misread.push((path.clone(), why)),
                }
                match scalars::arguments(&text, "kubelet-arg") {
                    Ok(flags) if flags.is_empty() => {}
                    Ok(flags) => self.flags.push(SettingsFile { path, text: flags.join("\n") }),
                    Err(why) if self.misread.contains(&(path.clone(), why.clone())) => {}
                    Err(why) => self.misread.push((path, why)),
                }
            }
        }
        for unit in UNITS_OF_K3S {
            let Some(SettingsFile { path, text }) = self.file(root, unit.into()) else { continue };
            self.data_dir(scalars::flag(&text.replace("\\\n", " "), "--data-dir"), &path);
        }
    }

    fn data_dir(&mut self, dir: Option<String>, file: &Path) {
        let origin = format!("{DATA_DIR} in {}", file.display());
        self.configured_data_dirs.extend(dir.map(|dir| DataDir { path: dir.into(), origin }));
    }

    fn drop_ins(&mut self, root: &Sysroot, directory: &Path, ending: &str) -> Vec<PathBuf> {
        let entries = match root.list(directory) {
            Ok(entries) => entries,
            Err(error) if is_absent(&error) => Vec::new(),
            Err(error) => {
                self.unreadable.push((directory.to_path_buf(), error));
                Vec::new()
            }
        };
        let mut paths: Vec<_> = entries
            .into_iter()
            .map(|entry| directory.join(entry.name))
            .filter(|path| path.extension().is_some_and(|name| name == ending))
            .collect();
        paths.sort();
        paths
    }
}
