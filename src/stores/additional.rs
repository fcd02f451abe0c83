//! Stores from which other stores take images: additional image stores and imagestores.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use hashbrown::HashMap;

use super::lending::{Borrower, LentObjects, Need};
use super::store::Store;
use crate::model::{ImageIx, Inventory, StoreId, StoreIx, UnreadUser, Use};
use crate::stores::containers_storage::config::{StoreConfig, UnreadConfig};
use crate::sys::root::{Root, Who};
use crate::sys::sysroot::Sysroot;

/// A directory, identified by device and inode number: a bind mount gives it a second path that is not a symlink.
#[derive(Clone, Debug)]
pub(super) struct RealDirectory {
    path: PathBuf,
    identity: Option<(u64, u64)>,
}

impl RealDirectory {
    pub(super) fn of(path: PathBuf) -> Self {
        let identity = Root::open(&path).ok().map(|root| root.identity());
        Self { path, identity }
    }

    /// Returns a directory that is already open, even if its path names another one by now.
    pub(super) fn opened(root: &Root) -> Self {
        Self { path: root.to_path_buf(), identity: Some(root.identity()) }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        // Paths without symlinks, compared as bytes: a host may have thousands of stores.
        self.path.as_os_str() == other.path.as_os_str()
            || self.identity.is_some() && self.identity == other.identity
    }
}

/// Graphroots and imagestores to which the configured stores write.
#[derive(Debug)]
pub(super) struct WrittenDirectories {
    /// Graphroot of each store; `None` if the directory does not exist.
    graphroots: Vec<Option<RealDirectory>>,
    imagestores: Vec<Vec<RealDirectory>>,
}

impl WrittenDirectories {
    pub(super) fn new(sysroot: &Sysroot, stores: &[StoreConfig]) -> Self {
        let imagestores = stores.iter().map(|store| {
            let named = store.imagestore.iter().chain(&store.other_imagestores);
            named.filter_map(|path| Self::placed(sysroot, path)).collect()
        });
        Self {
            graphroots: stores.iter().map(|store| Self::placed(sysroot, &store.graphroot)).collect(),
            imagestores: imagestores.collect(),
        }
    }

    fn placed(sysroot: &Sysroot, path: &Path) -> Option<RealDirectory> {
        match sysroot.open(path) {
            Ok(root) => Some(RealDirectory::opened(&root)),
            Err(_) => sysroot.resolve(path).ok().map(|path| RealDirectory { path, identity: None }),
        }
    }

    /// Returns the store that writes to `wanted`, and the path under which it does: the store with this graphroot,
    /// else the first with this imagestore.
    pub(super) fn find(&self, wanted: &RealDirectory) -> Option<(usize, &Path)> {
        for (position, graphroot) in self.graphroots.iter().enumerate() {
            if let Some(place) = graphroot.as_ref().filter(|graphroot| graphroot.is(wanted)) {
                return Some((position, place.path.as_path()));
            }
        }
        for (position, imagestores) in self.imagestores.iter().enumerate() {
            if let Some(place) = imagestores.iter().find(|imagestore| imagestore.is(wanted)) {
                return Some((position, place.path.as_path()));
            }
        }
        None
    }

    /// Returns true if the store at `position` has this graphroot.
    pub(super) fn find_graphroot(&self, wanted: &RealDirectory, position: usize) -> bool {
        self.graphroots[position].as_ref().is_some_and(|place| place.is(wanted))
    }

    /// Returns the positions of all stores, each after the stores from which it takes images. Cycles are broken at an
    /// arbitrary store.
    pub(super) fn additional_first(&self, sysroot: &Sysroot, stores: &[StoreConfig]) -> Vec<usize> {
        let mut order = Vec::new();
        let mut begun = vec![false; stores.len()];
        for first in 0..stores.len() {
            // Path of the depth-first search: each store with the additional stores that are still to be visited.
            let mut path: Vec<(usize, Vec<usize>)> = Vec::new();
            let mut next = Some(first);
            loop {
                if let Some(position) = next.filter(|position| !begun[*position]) {
                    begun[position] = true;
                    let mut waiting = self.additional_stores(sysroot, &stores[position]);
                    waiting.reverse();
                    path.push((position, waiting));
                }
                let Some((position, waiting)) = path.last_mut() else { break };
                next = waiting.pop();
                if next.is_none() {
                    order.push(*position);
                    path.pop();
                }
            }
        }
        order
    }

    /// Returns the positions of the stores from which `store` takes images.
    fn additional_stores(&self, sysroot: &Sysroot, store: &StoreConfig) -> Vec<usize> {
        let named = borrowed(store).filter_map(|path| sysroot.resolve(path).ok());
        named.filter_map(|path| Some(self.find(&RealDirectory::of(path))?.0)).collect()
    }
}

#[derive(Clone, Debug)]
pub(super) struct Unread {
    /// Position among the stores to read.
    pub(super) position: usize,
    pub(super) graphroot: PathBuf,
    /// Directories from which its images may come.
    pub(super) borrows_from: Vec<PathBuf>,
}

impl Unread {
    /// Returns it as a borrower with unknown needs.
    pub(super) fn borrower(&self) -> Borrower {
        Borrower {
            position: None,
            root: self.graphroot.clone(),
            driver: None,
            is_damaged: true,
            borrows_from: self.borrows_from.clone(),
            needs: Vec::new(),
        }
    }
}

/// Returns the directories from which the images of a store may come, by its configuration.
pub(super) fn borrowed(store: &StoreConfig) -> impl Iterator<Item = &PathBuf> {
    store.additional_image_stores.iter().chain(&store.imagestore).chain(&store.other_imagestores)
}

/// Returns true if the owner of the store `borrower` can reach the files in the store `additional_store`. A store
/// that its user cannot read is not used, although the configuration names it. If this cannot be examined, the store
/// counts as reachable.
pub(super) fn may_reach(sysroot: &Sysroot, borrower: &Path, additional_store: (&Path, &str)) -> bool {
    let owner = nearest(sysroot, borrower).map_or(0, |root| root.owner());
    can_read(sysroot, owner, additional_store)
}

/// Returns true if a user can read the records of a store with this driver, or if this cannot be examined.
pub(super) fn can_read(sysroot: &Sysroot, uid: u32, (store, driver): (&Path, &str)) -> bool {
    let records = nearest(sysroot, &store.join(format!("{driver}-layers")));
    records.is_none_or(|records| records.way().admits(&Who::user(uid)))
}

/// Opens a directory or, if it does not exist, its nearest parent that does. Examining it by its path could block: a
/// user may have mounted a filesystem that does not answer.
fn nearest(sysroot: &Sysroot, path: &Path) -> Option<Root> {
    path.ancestors().find_map(|path| {
        let inside = Path::new("/").join(path.strip_prefix(sysroot.root()).unwrap_or(path));
        Root::open_in(sysroot.root(), &inside).ok()
    })
}

/// A store that is shown, with the ids of its images and layers.
struct AdditionalStore<'a> {
    position: usize,
    roots: Vec<RealDirectory>,
    driver: String,
    lent: &'a LentObjects,
}

/// Adds the uses between stores to the inventory: the images and layers of a store that another store needs, and the
/// users of a store whose needs are unknown, because they could not be read completely or at all.
pub(super) fn note(
    inventory: &mut Inventory,
    sysroot: &Sysroot,
    readings: &[Box<dyn Store>],
    lent: &HashMap<StoreId, LentObjects>,
    borrowers: &[Borrower],
    unread: &[UnreadConfig],
) {
    let additional_stores: Vec<AdditionalStore<'_>> = readings
        .iter()
        .enumerate()
        .filter_map(|(position, reading)| {
            let store = &inventory.stores[position];
            let lent = lent.get(&StoreId::of(store))?;
            let roots = reading.roots().into_iter().map(RealDirectory::of).collect();
            Some(AdditionalStore { position, roots, driver: store.driver.clone(), lent })
        })
        .collect();
    // The image of a container that is shown is known from the container itself.
    let containers = inventory.containers.iter();
    let shown: HashSet<_> =
        containers.filter_map(|container| Some((container.store, container.image?))).collect();
    let (mut uses, mut unread_users) = (Vec::new(), Vec::new());
    for borrower in borrowers {
        let mut from =
            additional_stores_of(&borrower.borrows_from, &additional_stores, sysroot, &borrower.root);
        from.retain(|additional_store| {
            let same_driver =
                borrower.driver.as_ref().is_none_or(|driver| *driver == additional_store.driver);
            Some(additional_store.position) != borrower.position && same_driver
        });
        for additional_store in from {
            if borrower.is_damaged {
                let store = additional_store.position.into();
                unread_users.push(UnreadUser { store, path: borrower.root.clone() });
            }
            for need in &borrower.needs {
                uses.extend(use_of(inventory, (borrower, &shown), additional_store, need));
            }
        }
    }
    for config in unread {
        for store in &additional_stores {
            let mut roots = store.roots.iter();
            if roots.any(|root| can_read(sysroot, config.uid, (&root.path, &store.driver))) {
                let path = config.file.clone();
                unread_users.push(UnreadUser { store: store.position.into(), path });
            }
        }
    }
    unread_users.dedup();
    inventory.uses.extend(uses);
    inventory.unread_users.extend(unread_users);
}

fn additional_stores_of<'a, 'b>(
    borrows_from: &[PathBuf],
    additional_stores: &'a [AdditionalStore<'b>],
    sysroot: &Sysroot,
    borrower: &Path,
) -> Vec<&'a AdditionalStore<'b>> {
    let named: Vec<_> = borrows_from.iter().cloned().map(RealDirectory::of).collect();
    let stores = additional_stores.iter().filter(|additional_store| {
        let roots = &additional_store.roots;
        let mut named_roots = roots.iter().filter(|root| named.iter().any(|place| place.is(root)));
        named_roots.any(|root| may_reach(sysroot, borrower, (&root.path, &additional_store.driver)))
    });
    stores.collect()
}

fn use_of(
    inventory: &Inventory,
    (borrower, shown): (&Borrower, &HashSet<(StoreIx, ImageIx)>),
    additional_store: &AdditionalStore<'_>,
    need: &Need,
) -> Option<Use> {
    let named = need.images.iter();
    let mut images: Vec<_> =
        named.flat_map(|name| additional_store.lent.images_of(inventory, name)).collect();
    let store = borrower.position.map(StoreIx::from);
    images.retain(|image| store.is_none_or(|store| !shown.contains(&(store, *image))));
    let holds: Vec<_> =
        need.layers.iter().filter_map(|id| additional_store.lent.layer(inventory, id)).collect();
    let by = format!("{} in the store {}", need.by, borrower.root.display());
    let is_listed = borrower.position.is_some();
    (!(images.is_empty() && holds.is_empty())).then_some(Use {
        by,
        container: None,
        images,
        holds,
        is_listed,
    })
}
