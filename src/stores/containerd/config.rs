//! Finds the containerd roots of a node: `config.toml` in all its versions with its imports, the default paths of
//! containerd and of Kubernetes distributions, and the command lines and answers of running programs.
//!
//! All of them are candidates. A `root` in a file does not replace the default root, because a flag overrides the
//! file, and an abandoned store in the default root still uses space.

mod file;
mod flags;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

use super::docker;
use super::places::{ConfiguredPin, ContainerdPlaces, Proxy};
use crate::model::StoreKind;
use crate::node::kubelet::{DataDir, Kubelet};
use crate::stores::running::{RunningPrograms, RuntimeStore};
use crate::sys::quiet::{self, FileKind, Within};
use crate::sys::sysroot::Sysroot;
pub use file::RootConfig;
use flags::Flags;

#[derive(Clone, Debug, Default)]
pub struct ContainerdDiscovery {
    /// Roots, each once. They need not exist. A directory of a snapshotter or a cache that several roots name belongs
    /// to the first of them that exists.
    pub roots: Vec<RootConfig>,
    /// Files that could not be read or parsed: path and reason. The rest of the result is still used.
    pub problems: Vec<(PathBuf, String)>,
}

/// A way to run containerd: its configuration file, and its paths if the file does not set them.
#[derive(Clone, Debug)]
struct Flavour {
    /// The source of these paths, for messages.
    origin: String,
    file: PathBuf,
    root: PathBuf,
    state: PathBuf,
}

/// Name, configuration, root and state, the most common first. k3s and RKE2 are inserted after the first. Docker
/// starts a containerd of its own, without configuration, if the system has none.
const FLAVOURS: [[&str; 4]; 4] = [
    ["containerd's default", "/etc/containerd/config.toml", "/var/lib/containerd", "/run/containerd"],
    [
        "MicroK8s' default",
        "/var/snap/microk8s/current/args/containerd.toml",
        "/var/snap/microk8s/common/var/lib/containerd",
        "/var/snap/microk8s/common/run/containerd",
    ],
    ["k0s' default", "/etc/k0s/containerd.toml", "/var/lib/k0s/containerd", "/run/k0s/containerd"],
    [
        "Docker's default",
        "/var/run/docker/containerd/containerd.toml",
        "/var/lib/docker/containerd/daemon",
        "/var/run/docker/containerd/daemon",
    ],
];

/// State directory of the containerd of k3s and RKE2.
const STATE_OF_K3S: &str = "/run/k3s/containerd";

/// Subdirectories of a proxy plugin's directory that may contain the snapshots and their database.
const PROXY_DATA: [&str; 2] = ["", "snapshotter"];

/// Sandbox images that containerd 1.6 to 2.3 use if the configuration does not name one.
const DEFAULT_SANDBOXES: [&str; 5] = [
    "registry.k8s.io/pause:3.6",
    "registry.k8s.io/pause:3.8",
    "registry.k8s.io/pause:3.9",
    "registry.k8s.io/pause:3.10",
    "registry.k8s.io/pause:3.10.1",
];

/// Finds the roots named by running programs and by the configuration, and those with default paths.
#[must_use]
pub fn discover(sysroot: &Sysroot, running: &RunningPrograms) -> ContainerdDiscovery {
    let mut discovery = ContainerdDiscovery::default();
    let mut data_dirs = Kubelet::read(sysroot).data_dirs();
    let system = Flavour::of(FLAVOURS[0]);
    for flags in running.containerds.iter().map(|words| Flags::parse(words)) {
        data_dirs.extend(flags.data_dir.clone());
        if flags.names_paths() {
            discovery.add_command_line(sysroot, &system, &flags);
        }
    }
    let [first, others @ ..] = FLAVOURS.map(Flavour::of);
    let rancher = data_dirs.into_iter().map(Flavour::of_data_dir);
    let docker = docker::configured_root(sysroot).map(|(root, origin)| Flavour {
        origin,
        root,
        ..Flavour::of(FLAVOURS[3])
    });
    for flavour in [first].into_iter().chain(rancher).chain(others).chain(docker) {
        discovery.add_flavour(sysroot, &flavour);
    }
    for store in running.stores.iter().filter(|store| store.kind == StoreKind::Containerd) {
        discovery.add(sysroot, RootConfig::reported(store));
    }
    discovery
}

/// Returns the sockets that containerd's files and the command lines of running containerds name, each with its source.
#[must_use]
pub fn sockets(sysroot: &Sysroot, containerds: Vec<Vec<String>>) -> Vec<(PathBuf, String)> {
    let running = RunningPrograms { containerds, ..RunningPrograms::default() };
    discover(sysroot, &running).roots.into_iter().flat_map(|config| config.sockets).collect()
}

impl ContainerdDiscovery {
    /// Returns the configuration of a root that was named on the command line: that of a known root at the same
    /// place, else that of its data directory, else the sandbox images of all files.
    #[must_use]
    pub fn named(&self, sysroot: &Sysroot, root: &Path) -> RootConfig {
        let origin = "--containerd-root".to_owned();
        if let Some(known) = self.find(sysroot, root) {
            return RootConfig { root: root.to_path_buf(), origin, ..self.roots[known].clone() };
        }
        let mut beside = Self::default();
        if let Some(dir) = DataDir::of_root(root, &origin) {
            beside.add_flavour(sysroot, &Flavour::of_data_dir(dir));
            beside.roots.retain(|config| config.root == root);
        }
        // A root that was copied elsewhere contains its snapshotters.
        let mut config = beside.roots.pop().unwrap_or_default();
        for known in &self.roots {
            config.add_pins(&known.pins);
            config.problem = config.problem.or_else(|| known.problem.clone());
        }
        RootConfig { root: root.to_path_buf(), origin, ..config }
    }

    fn find(&self, sysroot: &Sysroot, root: &Path) -> Option<usize> {
        let wanted = resolved(sysroot, root);
        self.roots.iter().position(|known| known.root == root || resolved(sysroot, &known.root) == wanted)
    }

    /// Adds a root, or new facts about a known one.
    fn add(&mut self, sysroot: &Sysroot, config: RootConfig) {
        match self.find(sysroot, &config.root) {
            Some(known) => self.roots[known].merge(config),
            None => self.roots.push(config),
        }
    }

    /// Adds the configured root and the default root, which is a candidate even if the file names another.
    fn add_flavour(&mut self, sysroot: &Sysroot, flavour: &Flavour) {
        let config = flavour.read(sysroot, &mut self.problems);
        let usual =
            RootConfig { root: flavour.root.clone(), origin: flavour.origin.clone(), ..config.clone() };
        self.add(sysroot, config);
        self.add(sysroot, usual);
    }

    /// Adds the root of a command line. Flags override the file, which `-c` may name.
    fn add_command_line(&mut self, sysroot: &Sysroot, system: &Flavour, flags: &Flags) {
        let file = flags.config.clone().unwrap_or_else(|| system.file.clone());
        let origin = "containerd's command line".to_owned();
        let flavour = Flavour { origin: origin.clone(), file, ..system.clone() };
        let mut config = flavour.read(sysroot, &mut self.problems);
        if let Some(root) = flags.root.clone() {
            config = RootConfig { root, origin, ..config };
        }
        if let Some(state) = flags.state.clone() {
            config.state = state;
        }
        if let Some(address) = flags.address.clone() {
            config.sockets = vec![(address, "--address of a running containerd".to_owned())];
        }
        self.add(sysroot, config);
    }
}

fn resolved(sysroot: &Sysroot, path: &Path) -> PathBuf {
    sysroot.resolve(path).unwrap_or_else(|_| path.to_path_buf())
}

impl RootConfig {
    fn reported(store: &RuntimeStore) -> Self {
        let pins = store
            .sandbox_image
            .iter()
            .map(|image| ConfiguredPin { image: image.clone(), origin: store.origin.clone() });
        Self {
            root: store.root.clone(),
            state: store.state.clone().unwrap_or_default(),
            pins: pins.collect(),
            origin: store.origin.clone(),
            ..Self::default()
        }
    }

    fn merge(&mut self, other: Self) {
        self.add_pins(&other.pins);
        if self.state.as_os_str().is_empty() {
            self.state = other.state;
        }
        for (all, more) in [(&mut self.snapshotters, other.snapshotters), (&mut self.proxies, other.proxies)]
        {
            let new: Vec<_> =
                more.into_iter().filter(|(name, _)| all.iter().all(|(known, _)| known != name)).collect();
            all.extend(new);
        }
        let caches: Vec<_> =
            other.layer_caches.into_iter().filter(|path| !self.layer_caches.contains(path)).collect();
        self.layer_caches.extend(caches);
        let sockets: Vec<_> = other
            .sockets
            .into_iter()
            .filter(|(path, _)| self.sockets.iter().all(|(known, _)| known != path))
            .collect();
        self.sockets.extend(sockets);
        self.problem = self.problem.take().or(other.problem);
    }

    pub(in crate::stores) fn add_pins(&mut self, pins: &[ConfiguredPin]) {
        for pin in pins {
            if !self.pins.contains(pin) {
                self.pins.push(pin.clone());
            }
        }
    }

    /// Returns its paths on this system.
    ///
    /// # Errors
    /// If the root does not exist or cannot be examined.
    pub fn places(&self, sysroot: &Sysroot) -> io::Result<ContainerdPlaces> {
        let elsewhere = self
            .snapshotters
            .iter()
            .filter_map(|(name, path)| Some((name.clone(), sysroot.resolve(path).ok()?)));
        let root = sysroot.resolve(&self.root)?;
        let has_state = !sysroot.is_foreign() && !self.state.as_os_str().is_empty();
        // A directory that contains the root is not a snapshotter's or a cache.
        let caches = self.layer_caches.iter().filter_map(|path| directory(sysroot, path));
        Ok(ContainerdPlaces {
            state: has_state.then(|| self.state.clone()),
            snapshotters: elsewhere.collect(),
            proxies: self.proxies(sysroot).filter(|proxy| !root.starts_with(&proxy.directory)).collect(),
            layer_caches: caches.filter(|path| !root.starts_with(path)).collect(),
            docker_data: docker::data_root(sysroot, &root),
            root,
            pins: self.pins.clone(),
            foreign: sysroot.is_foreign(),
        })
    }

    fn proxies<'a>(&'a self, sysroot: &'a Sysroot) -> impl Iterator<Item = Proxy> + 'a {
        self.proxies.iter().filter_map(|(name, path)| {
            let directory = directory(sysroot, path)?;
            let within = Within::at([directory.as_path()]);
            let data = PROXY_DATA.iter().map(|below| directory.join(below)).find(|data| {
                let database = within.facts(&data.join("metadata.db"));
                database.is_ok_and(|facts| facts.kind == FileKind::File)
            });
            Some(Proxy { name: name.clone(), directory, data })
        })
    }
}

/// Returns the path of a directory on this system, if it exists.
fn directory(sysroot: &Sysroot, path: &Path) -> Option<PathBuf> {
    let found = sysroot.resolve(path).ok();
    found.filter(|path| quiet::facts(path).is_ok_and(|facts| facts.kind == FileKind::Directory))
}

impl Flavour {
    fn of([name, file, root, state]: [&str; 4]) -> Self {
        Self { origin: name.into(), file: file.into(), root: root.into(), state: state.into() }
    }

    /// k3s and RKE2 rewrite the configuration at each start, and pass the root as a flag.
    fn of_data_dir(dir: DataDir) -> Self {
        let agent = dir.agent();
        Self {
            origin: dir.origin,
            file: agent.join("etc/containerd/config.toml"),
            root: agent.join("containerd"),
            state: STATE_OF_K3S.into(),
        }
    }

    fn read(&self, sysroot: &Sysroot, problems: &mut Vec<(PathBuf, String)>) -> RootConfig {
        let mut config = RootConfig {
            root: self.root.clone(),
            state: self.state.clone(),
            origin: self.origin.clone(),
            ..RootConfig::default()
        };
        let mut new = Vec::new();
        file::read(sysroot, &self.file, &mut config, &mut new);
        config.problem = new.first().cloned();
        new.retain(|problem| !problems.contains(problem));
        problems.append(&mut new);
        config
    }
}

pub fn default_sandboxes() -> Vec<ConfiguredPin> {
    let origin = "containerd's built-in defaults";
    DEFAULT_SANDBOXES.map(|image| ConfiguredPin { image: image.into(), origin: origin.into() }).into()
}
