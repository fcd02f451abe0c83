//! Which containerd roots a node has: `config.toml` in all its versions with its imports,
//! and the default paths of Kubernetes distributions.

mod file;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

use super::places::{ConfiguredPin, ContainerdPlaces, Proxy};
use crate::sys::quiet::{self, FileKind, Within};
use crate::sys::sysroot::Sysroot;
pub use file::RootConfig;

/// What the configuration of a node says.
#[derive(Clone, Debug, Default)]
pub struct ContainerdDiscovery {
    /// The roots, each once. They need not exist.
    pub roots: Vec<RootConfig>,
    /// Files that could not be read or understood: path and reason. The rest still counts.
    pub problems: Vec<(PathBuf, String)>,
}

/// One way to run containerd: its configuration and defaults.
struct Flavour {
    name: &'static str,
    file: &'static str,
    root: &'static str,
    state: &'static str,
}

/// In order of how common they are. Docker starts its own containerd where the system has
/// none, and gives it no configuration.
const FLAVOURS: [Flavour; 6] = [
    Flavour {
        name: "containerd's default",
        file: "/etc/containerd/config.toml",
        root: "/var/lib/containerd",
        state: "/run/containerd",
    },
    Flavour {
        name: "k3s' default",
        file: "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
        root: "/var/lib/rancher/k3s/agent/containerd",
        state: "/run/k3s/containerd",
    },
    Flavour {
        name: "RKE2's default",
        file: "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
        root: "/var/lib/rancher/rke2/agent/containerd",
        state: "/run/k3s/containerd",
    },
    Flavour {
        name: "MicroK8s' default",
        file: "/var/snap/microk8s/current/args/containerd.toml",
        root: "/var/snap/microk8s/common/var/lib/containerd",
        state: "/var/snap/microk8s/common/run/containerd",
    },
    Flavour {
        name: "k0s' default",
        file: "/etc/k0s/containerd.toml",
        root: "/var/lib/k0s/containerd",
        state: "/run/k0s/containerd",
    },
    Flavour {
        name: "Docker's default",
        file: "/var/run/docker/containerd/containerd.toml",
        root: "/var/lib/docker/containerd/daemon",
        state: "/var/run/docker/containerd/daemon",
    },
];

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

/// Finds the roots that the configuration names, and those in the usual places.
#[must_use]
pub fn discover(sysroot: &Sysroot) -> ContainerdDiscovery {
    let mut discovery = ContainerdDiscovery::default();
    for flavour in &FLAVOURS {
        let found = flavour.read(sysroot, &mut discovery.problems);
        if !discovery.roots.iter().any(|known| known.root == found.root) {
            discovery.roots.push(found);
        }
    }
    discovery
}

/// The configuration of a root that was named on the command line: that of a configuration
/// file which names it, else the sandbox images of the system's own.
#[must_use]
pub fn named(sysroot: &Sysroot, root: &Path) -> RootConfig {
    let place = |path: &Path| sysroot.resolve(path).unwrap_or_else(|_| path.to_path_buf());
    let wanted = place(root);
    let mut roots = discover(sysroot).roots;
    let at = roots.iter().position(|known| place(&known.root) == wanted);
    let mut config = match at {
        Some(at) => roots.swap_remove(at),
        // A root that was copied elsewhere: its snapshotters are with it.
        None => RootConfig {
            pins: roots.first().map(|first| first.pins.clone()).unwrap_or_default(),
            problem: roots.first().and_then(|first| first.problem.clone()),
            ..RootConfig::default()
        },
    };
    config.root = root.to_path_buf();
    config.origin = "--containerd-root".into();
    config
}

impl RootConfig {
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
    fn read(&self, sysroot: &Sysroot, problems: &mut Vec<(PathBuf, String)>) -> RootConfig {
        let mut config = RootConfig {
            root: self.root.into(),
            state: self.state.into(),
            origin: self.name.into(),
            ..RootConfig::default()
        };
        let before = problems.len();
        file::read(sysroot, Path::new(self.file), &mut config, problems);
        config.problem = problems.get(before).cloned();
        if config.pins.is_empty() {
            let pin = |image: &str| ConfiguredPin {
                image: image.into(),
                origin: "containerd's built-in defaults".into(),
            };
            config.pins = DEFAULT_SANDBOXES.map(pin).into();
        }
        config
    }
}
