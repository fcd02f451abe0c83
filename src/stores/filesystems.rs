//! On which filesystems the stores are.

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use hashbrown::HashMap;

use super::request::Error;
use super::store::Store;
use crate::disk::filesystem::{self, CostModel};
use crate::model::{Filesystem, FilesystemIx, Inventory};
use crate::sys::quiet;

/// The filesystems met so far, each once.
#[derive(Default)]
pub(super) struct Filesystems {
    known: HashMap<String, FilesystemIx>,
    /// By the number of the mount: a store's roots are mostly on one.
    by_mount: HashMap<u64, FilesystemIx>,
    pub(super) costs: Vec<CostModel>,
}

impl Filesystems {
    /// The filesystem of each of a store's roots.
    pub(super) fn of_roots(
        &mut self,
        reading: &dyn Store,
        inventory: &mut Inventory,
    ) -> Result<Vec<(FilesystemIx, CostModel)>, Error> {
        let mut root_costs: Vec<(FilesystemIx, CostModel)> = Vec::new();
        for root in reading.roots() {
            match (self.of(&root, reading, inventory), root_costs.first()) {
                (Ok(cost), _) => root_costs.push(cost),
                // A directory that does not exist has nothing in it to be charged for.
                (Err(_), Some(first)) => root_costs.push(*first),
                (Err(source), None) => return Err(Error::Unreadable { path: root, source }),
            }
        }
        Ok(root_costs)
    }

    fn of(
        &mut self,
        path: &Path,
        reading: &dyn Store,
        inventory: &mut Inventory,
    ) -> std::io::Result<(FilesystemIx, CostModel)> {
        let held = reading.places().map(|places| places.within().handle(path)).transpose()?;
        let open = held.as_ref().map(|held| PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd())));
        // The descriptor itself, not what is at its path now.
        let open = open.as_deref().filter(|open| open.exists()).unwrap_or(path);
        let mount = filesystem::mount_of(open)?;
        if let Some(at) = mount.and_then(|mount| self.by_mount.get(&mount)) {
            return Ok((*at, self.costs[at.get()]));
        }
        let (facts, cost): (Filesystem, CostModel) = filesystem::of(open)?;
        // Mounts of one filesystem (podman binds the driver's directory onto itself), and
        // subvolumes of one btrfs, share a block device; what has none has a number.
        let key = match facts.device.starts_with("/dev/") {
            true => facts.device.clone(),
            false => {
                let device = match &held {
                    Some(held) => rustix::fs::fstat(held)?.st_dev,
                    None => quiet::facts(path)?.device,
                };
                format!("{} {device}", facts.fstype)
            }
        };
        let at = *self.known.entry(key).or_insert_with(|| {
            inventory.filesystems.push(facts);
            self.costs.push(cost);
            FilesystemIx::from(inventory.filesystems.len() - 1)
        });
        self.by_mount.extend(mount.map(|mount| (mount, at)));
        Ok((at, self.costs[at.get()]))
    }
}
