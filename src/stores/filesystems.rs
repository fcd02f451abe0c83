//! Filesystems of the stores.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use hashbrown::HashMap;

use super::request::ScanError;
use super::store::Store;
use crate::disk::filesystem::{self, CostModel};
use crate::model::{Filesystem, FilesystemIx, Inventory};
use crate::sys::sysroot::Sysroot;
use crate::sys::{quiet, root};

/// Filesystems of other disks, or of memory.
const NO_DISKS: [&str; 3] = ["overlay", "ramfs", "tmpfs"];

#[derive(Default)]
pub(super) struct Filesystems {
    known: HashMap<String, FilesystemIx>,
    /// Filesystem by mount id: most roots of a store are on the same mount.
    by_mount: HashMap<u64, FilesystemIx>,
    pub(super) costs: Vec<CostModel>,
}

impl Filesystems {
    pub(super) fn of_roots(
        &mut self,
        reading: &dyn Store,
        inventory: &mut Inventory,
    ) -> Result<Vec<(FilesystemIx, CostModel)>, ScanError> {
        let mut root_costs: Vec<(FilesystemIx, CostModel)> = Vec::new();
        for root in reading.roots() {
            let opened = reading.within().map(|within| within.handle(&root)).transpose();
            let found = opened.and_then(|opened| self.of(&root, opened.as_ref().map(AsFd::as_fd), inventory));
            match (found, root_costs.first()) {
                (Ok(cost), _) => root_costs.push(cost),
                // A directory that does not exist contains nothing, so any filesystem will do.
                (Err(_), Some(first)) => root_costs.push(*first),
                (Err(source), None) => return Err(ScanError::Unreadable { path: root, source }),
            }
        }
        Ok(root_costs)
    }

    /// Adds the filesystems of directories that belong to no store, as far as these exist.
    pub(super) fn add_places(&mut self, places: &[PathBuf], sysroot: &Sysroot, inventory: &mut Inventory) {
        for place in places {
            // The server of a network filesystem may not answer.
            let found = if sysroot.is_foreign() {
                sysroot.resolve(place)
            } else {
                root::find_at_hand(place).map(|(_, path)| path)
            };
            let Ok(path) = found else { continue };
            // Data on an overlay is on the filesystem below it: this process is in a container.
            let is_disk =
                filesystem::facts(&path).is_ok_and(|facts| !NO_DISKS.contains(&facts.fstype.as_str()));
            if is_disk && let Err(error) = self.of(&path, None, inventory) {
                tracing::debug!("the filesystem of {}: {error}", path.display());
            }
        }
    }

    /// Returns the filesystem of a path. `opened`: that directory, if it is open already.
    fn of(
        &mut self,
        path: &Path,
        opened: Option<BorrowedFd<'_>>,
        inventory: &mut Inventory,
    ) -> std::io::Result<(FilesystemIx, CostModel)> {
        let open = opened.as_ref().map(|fd| PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd())));
        // Use the descriptor: the path may name another directory by now.
        let open = open.as_deref().filter(|open| open.exists()).unwrap_or(path);
        let mount = filesystem::mount_of(open)?;
        if let Some(known) = mount.and_then(|mount| self.by_mount.get(&mount)) {
            return Ok((*known, self.costs[known.get()]));
        }
        let (facts, cost): (Filesystem, CostModel) = filesystem::of(open)?;
        // All mounts of a filesystem (podman bind-mounts the driver's directory onto itself), and all subvolumes of a
        // btrfs, have the same block device. A filesystem without a block device is identified by its number.
        let key = if facts.device.starts_with("/dev/") {
            facts.device.clone()
        } else {
            let device = match &opened {
                Some(fd) => rustix::fs::fstat(fd)?.st_dev,
                None => quiet::facts(path)?.device,
            };
            format!("{} {device}", facts.fstype)
        };
        let filesystem_ix = *self.known.entry(key).or_insert_with(|| {
            inventory.filesystems.push(facts);
            self.costs.push(cost);
            FilesystemIx::from(inventory.filesystems.len() - 1)
        });
        self.by_mount.extend(mount.map(|mount| (mount, filesystem_ix)));
        Ok((filesystem_ix, self.costs[filesystem_ix.get()]))
    }
}
