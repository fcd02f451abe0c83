//! Which containerd roots a node has: `config.toml` in all its versions with its imports, the default
//! paths of containerd and of Kubernetes distributions, command lines and answers of what runs.
//!
//! All of them are candidates: a `root` in a file does not replace the default place, since a flag
//! overrides the file, and a store that was left in the default place uses space all the same.

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

/// What the configuration of a node says.
#[derive(Clone, Debug, Default)]
pub struct ContainerdDiscovery {
    /// The roots, each once. They need not exist. A directory of a snapshotter or the like that several of
    /// them name belongs to the first that exists.
    pub roots: Vec<RootConfig>,
    /// Files that could not be read or understood: path and reason. The rest still counts.
    pub problems: Vec<(PathBuf, String)>,
}

/// One way to run containerd: its configuration, and where it keeps its files if that is silent.
#[derive(Clone, Debug)]
struct Flavour {
    /// The source of these paths, for messages.
    origin: String,
    file: PathBuf,
    root: PathBuf,
    state: PathBuf,
}

/// Name, configuration, root and state, in order of how common they are. k3s and RKE2 come after the
/// first. Docker starts its own containerd where the system has none, and gives it no configuration.
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

/// The state directory of k3s' and RKE2's containerd.
const STATE_OF_K3S: &str = "/run/k3s/containerd";

/// Where in such a directory the snapshots and their database are.
const PROXY_DATA: [&str; 2] = ["", "snapshotter"];

/// Sandbox images that containerd 1.6 to 2.3 use where the configuration names none.
const DEFAULT_SANDBOXES: [&str; 5] = [
    "registry.k8s.io/pause:3.6",
    "registry.k8s.io/pause:3.8",
    "registry.k8s.io/pause:3.9",
    "registry.k8s.io/pause:3.10",
    "registry.k8s.io/pause:3.10.1",
];

/// Finds the roots that running programs and the configuration name, and those in the usual places.
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
    for store in running.stores.iter().filter(|store| store.store_type == StoreKind::Containerd) {
        discovery.add(sysroot, RootConfig::reported(store));
    }
    discovery
}

impl ContainerdDiscovery {
    /// The configuration of a root that was named on the command line: that of the root at the same place,
    /// else that of its data directory, else the sandbox images of all files.
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
        // A root that was copied elsewhere: its snapshotters are with it.
        let mut config = beside.roots.pop().unwrap_or_default();
        for known in &self.roots {
            config.add_pins(&known.pins);
            config.problem = config.problem.or_else(|| known.problem.clone());
        }
        RootConfig { root: root.to_path_buf(), origin, ..config }
    }

    fn find(&self, sysroot: &Sysroot, root: &Path) -> Option<usize> {
        let place = |path: &Path| sysroot.resolve(path).unwrap_or_else(|_| path.to_path_buf());
        let wanted = place(root);
        self.roots.iter().position(|known| known.root == root || place(&known.root) == wanted)
    }

    /// Adds a root, or what is new about one that is known.
    fn add(&mut self, sysroot: &Sysroot, config: RootConfig) {
        match self.find(sysroot, &config.root) {
            Some(known) => self.roots[known].merge(config),
            None => self.roots.push(config),
        }
    }

    /// The default root is a candidate as well if the file names another.
    fn add_flavour(&mut self, sysroot: &Sysroot, flavour: &Flavour) {
        let config = flavour.read(sysroot, &mut self.problems);
        let usual =
            RootConfig { root: flavour.root.clone(), origin: flavour.origin.clone(), ..config.clone() };
        self.add(sysroot, config);
        self.add(sysroot, usual);
    }

    /// Flags override the file, which `-c` may name.
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
        self.add(sysroot, config);
    }
}

impl RootConfig {
    fn reported(store: &RuntimeStore) -> Self {
        let pin = |image: &String| ConfiguredPin { image: image.clone(), origin: store.origin.clone() };
        Self {
            root: store.root.clone(),
            state: store.state.clone().unwrap_or_default(),
            pins: store.sandbox_image.iter().map(pin).collect(),
            origin: store.origin.clone(),
            ..Self::default()
        }
    }

    /// Adds what another source says of the same root.
    fn merge(&mut self, other: Self) {
        self.add_pins(&other.pins);
        if self.state.as_os_str().is_empty() {
            self.state = other.state;
        }
        for (all, more) in [(&mut self.snapshotters, other.snapshotters), (&mut self.proxies, other.proxies)]
        {
            let new = more.into_iter().filter(|(name, _)| all.iter().all(|(known, _)| known != name));
            let new: Vec<_> = new.collect();
            all.extend(new);
        }
        let caches = other.layer_caches.into_iter().filter(|path| !self.layer_caches.contains(path));
        let caches: Vec<_> = caches.collect();
        self.layer_caches.extend(caches);
        self.problem = self.problem.take().or(other.problem);
    }

    pub(in crate::stores) fn add_pins(&mut self, pins: &[ConfiguredPin]) {
        for pin in pins {
            if !self.pins.contains(pin) {
                self.pins.push(pin.clone());
            }
        }
    }

    /// Its path on this system.
    ///
    /// # Errors
    /// When the root does not exist or cannot be examined.
    pub fn places(&self, sysroot: &Sysroot) -> io::Result<ContainerdPlaces> {
        let elsewhere = self.snapshotters.iter();
        let elsewhere =
            elsewhere.filter_map(|(name, path)| Some((name.clone(), sysroot.resolve(path).ok()?)));
        let root = sysroot.resolve(&self.root)?;
        let has_state = !sysroot.is_foreign() && !self.state.as_os_str().is_empty();
        // No root is inside of these.
        let is_apart = |directory: &Path| !root.starts_with(directory);
        let caches = self.layer_caches.iter().filter_map(|path| directory(sysroot, path));
        Ok(ContainerdPlaces {
            state: has_state.then(|| self.state.clone()),
            snapshotters: elsewhere.collect(),
            proxies: self.proxies(sysroot).filter(|proxy| is_apart(&proxy.directory)).collect(),
            layer_caches: caches.filter(|path| is_apart(path)).collect(),
            docker_data: docker::data_root(sysroot, &root),
            root,
            pins: self.pins.clone(),
            foreign: sysroot.is_foreign(),
        })
    }

    /// The proxies whose directory is there.
    fn proxies<'a>(&'a self, sysroot: &'a Sysroot) -> impl Iterator<Item = Proxy> + 'a {
        self.proxies.iter().filter_map(|(name, path)| {
            let directory = directory(sysroot, path)?;
            let within = Within::at([directory.as_path()]);
            let is_data = |below: &&&str| {
                let database = directory.join(below).join("metadata.db");
                within.facts(&database).is_ok_and(|facts| facts.kind == FileKind::File)
            };
            let data = PROXY_DATA.iter().find(is_data).map(|below| directory.join(below));
            Some(Proxy { name: name.clone(), directory, data })
        })
    }
}

/// Where a directory lies for us, if it exists.
fn directory(sysroot: &Sysroot, path: &Path) -> Option<PathBuf> {
    let found = sysroot.resolve(path).ok();
    found.filter(|path| quiet::facts(path).is_ok_and(|facts| facts.kind == FileKind::Directory))
}

impl Flavour {
    fn of([name, file, root, state]: [&str; 4]) -> Self {
        Self { origin: name.into(), file: file.into(), root: root.into(), state: state.into() }
    }

    /// k3s and RKE2 write the configuration anew at each start, and pass the root as a flag.
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

/// Sandbox images that containerd has built in.
pub fn default_sandboxes() -> Vec<ConfiguredPin> {
    let pin =
        |image: &str| ConfiguredPin { image: image.into(), origin: "containerd's built-in defaults".into() };
    DEFAULT_SANDBOXES.map(pin).into()
}
