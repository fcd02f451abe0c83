//! The kubelet's settings against ours.

use std::path::{Path, PathBuf};

use super::containers;
use super::examination::Examination;
use super::thresholds::thresholds as compare;
use crate::disk::filesystem;
use crate::model::{FilesystemIx, StoreIx};
use crate::node::kubelet::Kubelet;
use crate::node::places::KubeletPlaces;
use crate::node::thresholds;
use crate::policy::thresholds::Disk;
use crate::stores::Scan;
use crate::sys::processes::Processes;
use crate::sys::quiet;

const NAME: &str = "kubelet-files";

impl Examination<'_> {
    /// `own`: the store of the node's runtime, where that is known.
    pub(super) fn kubelet(
        &mut self,
        kubelet: &Kubelet,
        processes: Option<&Processes>,
        scan: Option<&Scan>,
        own: Option<StoreIx>,
    ) {
        for (path, error) in &kubelet.unreadable {
            self.unread(NAME, path.display().to_string(), error);
        }
        let inside = processes.and_then(|processes| processes.running(&["k3s", "rke2", "k0s", "kubelite"]));
        if let Some(inside) = inside {
            let message = format!(
                "{} contains a kubelet: settings that it passes on by its own arguments and defaults are \
                    not known here",
                inside.describe()
            );
            self.note(NAME, "", message);
        }
        if !kubelet.is_here() {
            if inside.is_none() {
                self.note(NAME, "", "no kubelet settings found: nothing evicts pods here");
            }
            return;
        }
        let (thresholds, problems) = thresholds::read(kubelet);
        for (path, why) in kubelet.misread.iter().cloned().chain(problems) {
            let message = format!("{why}; it is ignored here, and the kubelet may not start with it");
            self.warning(NAME, path.display().to_string(), message, "fix the kubelet's setting");
        }
        let files: Vec<_> = (kubelet.configs_in_effect().chain(&kubelet.running))
            .map(|file| file.path.display().to_string())
            .collect();
        let message = match files.is_empty() {
            true => "no kubelet configuration file, only flags".to_owned(),
            false => format!("settings from {}", files.join(", ")),
        };
        self.ok(NAME, "", message);
        let disks = match scan {
            Some(scan) => self.disks(kubelet, scan, own),
            None => self.nodefs_alone(kubelet).into_iter().collect(),
        };
        self.checks.extend(compare(&thresholds, &self.config.images, &disks));
        let containers = &self.config.containers;
        let ours = containers.enabled.then_some(&containers.policy);
        self.checks.push(containers::containers(&thresholds, ours));
    }

    /// The filesystems with images that the kubelet looks at.
    fn disks(&self, kubelet: &Kubelet, scan: &Scan, own: Option<StoreIx>) -> Vec<Disk> {
        let inventory = &scan.inventory;
        let counts = |at: usize| match own {
            Some(own) => own.get() == at,
            None => !inventory.stores[at].read_only,
        };
        let mut filesystems: Vec<FilesystemIx> = Vec::new();
        for (_, store) in inventory.stores.iter().enumerate().filter(|(at, _)| counts(*at)) {
            if !filesystems.contains(&store.filesystem) {
                filesystems.push(store.filesystem);
            }
        }
        let own_directory = self.nodefs(kubelet);
        let disk = |at: FilesystemIx| {
            let facts = &inventory.filesystems[at.get()];
            let root = inventory.stores.iter().find(|store| store.filesystem == at).map(|store| &store.root);
            Disk {
                mount: self.shown(&facts.mount),
                has_images: true,
                is_nodefs: own_directory.as_deref().zip(root).is_some_and(|(node, root)| same(node, root)),
                ..Disk::of(facts)
            }
        };
        filesystems.into_iter().map(disk).collect()
    }

    /// Without a store to look at, what the settings make of the kubelet's own filesystem.
    fn nodefs_alone(&self, kubelet: &Kubelet) -> Option<Disk> {
        let (facts, _) = filesystem::of(&self.nodefs(kubelet)?).ok()?;
        let mount = self.shown(&facts.mount);
        Some(Disk { mount, has_images: true, is_nodefs: true, ..Disk::of(&facts) })
    }

    fn nodefs(&self, kubelet: &Kubelet) -> Option<PathBuf> {
        KubeletPlaces::find(&self.config.kubelet, kubelet).nodefs(&self.stores.sysroot)
    }
}

/// Whether two paths lie on one filesystem; subvolumes of one btrfs are one.
fn same(a: &Path, b: &Path) -> bool {
    let device = |path: &Path| filesystem::of(path).ok().map(|(facts, _)| facts.device);
    let number = |path: &Path| quiet::facts(path).ok().map(|facts| facts.device);
    let is_block = |device: &String| device.starts_with("/dev/");
    let (here, there) = (device(a).filter(is_block), device(b).filter(is_block));
    (here.is_some() && here == there) || (number(a).is_some() && number(a) == number(b))
}
