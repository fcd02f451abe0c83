//! Stores that other stores take images from: additional image stores and imagestores.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use hashbrown::HashMap;

use super::store::{Borrower, Store};
use crate::model::{ImageIx, Inventory, StoreIx, UnreadUser, Use};
use crate::stores::containers_storage::config::{StoreConfig, UnreadConfig};
use crate::stores::containers_storage::fill::Ids;
use crate::stores::containers_storage::needs::Need;
use crate::sys::root::{Root, Who};
use crate::sys::sysroot::Sysroot;

/// Where a directory really is. The same one has the same device and inode, whatever it is
/// called: a bind mount is not a symlink.
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

    /// What is open already, wherever its path leads by now.
    pub(super) fn opened(root: &Root) -> Self {
        Self { path: root.to_path_buf(), identity: Some(root.identity()) }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        self.path == other.path || self.identity.is_some() && self.identity == other.identity
    }
}

/// The graphroots and imagestores that another process writes to.
#[derive(Debug)]
pub(super) struct Own {
    /// One a store; `None` where there is no such directory.
    graphroots: Vec<Option<RealDirectory>>,
    imagestores: Vec<Vec<RealDirectory>>,
}

impl Own {
    pub(super) fn new(sysroot: &Sysroot, stores: &[StoreConfig]) -> Self {
        let place = |path: &PathBuf| match sysroot.open(path) {
            Ok(root) => Some(RealDirectory::opened(&root)),
            Err(_) => sysroot.resolve(path).ok().map(|path| RealDirectory { path, identity: None }),
        };
        let imagestores = |store: &StoreConfig| {
            store.imagestore.iter().chain(&store.other_imagestores).filter_map(place).collect()
        };
        Self {
            graphroots: stores.iter().map(|store| place(&store.graphroot)).collect(),
            imagestores: stores.iter().map(imagestores).collect(),
        }
    }

    /// The store that writes to `directory`, and where that is by its own name: the one with this
    /// graphroot, else the first with this imagestore.
    pub(super) fn find(&self, wanted: &RealDirectory) -> Option<(usize, &Path)> {
        let graphroots = self.graphroots.iter().enumerate();
        let mut graphroots =
            graphroots.filter_map(|(at, place)| Some((at, place.as_ref().filter(|it| it.is(wanted))?)));
        let imagestores = self.imagestores.iter().enumerate();
        let mut imagestores =
            imagestores.filter_map(|(at, places)| Some((at, places.iter().find(|place| place.is(wanted))?)));
        let found = graphroots.next().or_else(|| imagestores.next());
        found.map(|(at, place)| (at, place.path.as_path()))
    }

    /// Whether the store at position `at` has this graphroot.
    pub(super) fn find_graphroot(&self, wanted: &RealDirectory, at: usize) -> bool {
        self.graphroots[at].as_ref().is_some_and(|place| place.is(wanted))
    }

    /// Positions of all stores, each behind those that it takes images from. Where they go round in
    /// a circle, somebody comes first.
    pub(super) fn additional_first(&self, sysroot: &Sysroot, stores: &[StoreConfig]) -> Vec<usize> {
        let additional_stores = |at: usize| {
            let named = borrowed(&stores[at]).filter_map(|path| sysroot.resolve(path).ok());
            named
                .filter_map(|path| self.find(&RealDirectory::of(path)).map(|found| found.0))
                .collect::<Vec<_>>()
        };
        let mut order = Vec::new();
        let mut begun = vec![false; stores.len()];
        for first in 0..stores.len() {
            // Those to be looked into, the deepest last, each with its additional_stores still to come.
            let mut path: Vec<(usize, Vec<usize>)> = Vec::new();
            let mut next = Some(first);
            loop {
                if let Some(at) = next.filter(|at| !begun[*at]) {
                    begun[at] = true;
                    path.push((at, additional_stores(at).into_iter().rev().collect()));
                }
                let Some((at, waiting)) = path.last_mut() else { break };
                next = waiting.pop();
                if next.is_none() {
                    order.push(*at);
                    path.pop();
                }
            }
        }
        order
    }
}

/// A store that could not be read at all.
#[derive(Clone, Debug)]
pub(super) struct Unread {
    /// Position among the stores to read.
    pub(super) position: usize,
    pub(super) graphroot: PathBuf,
    /// Where its images may come from.
    pub(super) borrows_from: Vec<PathBuf>,
}

impl Unread {
    /// As a borrower whose needs are unknown.
    pub(super) fn borrower(&self) -> Borrower<'_> {
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

/// Where the images of a store may come from, by its configuration.
pub(super) fn borrowed(store: &StoreConfig) -> impl Iterator<Item = &PathBuf> {
    store.additional_image_stores.iter().chain(&store.imagestore).chain(&store.other_imagestores)
}

/// Whether the owner of the store `borrower` can reach the files in the store `additional_store` at all.
/// A store that its owner cannot read is not used, whatever the configuration says. One that cannot be
/// examined counts as reachable.
pub(super) fn may_reach(sysroot: &Sysroot, borrower: &Path, additional_store: (&Path, &str)) -> bool {
    let owner = nearest(sysroot, borrower).map_or(0, |root| root.owner());
    can_read(sysroot, owner, additional_store)
}

/// Whether a user can read the records of a store with this driver. One that cannot be examined counts as readable.
pub(super) fn can_read(sysroot: &Sysroot, uid: u32, (store, driver): (&Path, &str)) -> bool {
    let records = nearest(sysroot, &store.join(format!("{driver}-layers")));
    records.is_none_or(|records| records.way().admits(&Who::user(uid)))
}

/// A directory, or the nearest one above it. A user may have mounted what never answers, so nothing is examined by its
/// path.
fn nearest(sysroot: &Sysroot, path: &Path) -> Option<Root> {
    path.ancestors().find_map(|path| {
        let inside = Path::new("/").join(path.strip_prefix(sysroot.root()).unwrap_or(path));
        Root::open_in(sysroot.root(), &inside).ok()
    })
}

/// A store that is shown, and its ids.
struct AdditionalStore<'a> {
    at: usize,
    roots: Vec<RealDirectory>,
    driver: String,
    ids: &'a Ids,
}

/// Notes what stores take from each other: who needs which images and layers of a store that is
/// shown, and which stores may be used by one whose containers are not all known, or that is not known itself.
pub(super) fn note(
    inventory: &mut Inventory,
    sysroot: &Sysroot,
    readings: &[Box<dyn Store>],
    ids: &HashMap<(PathBuf, String), Ids>,
    borrowers: &[Borrower<'_>],
    unread: &[UnreadConfig],
) {
    let additional_stores: Vec<AdditionalStore<'_>> = readings
        .iter()
        .enumerate()
        .filter_map(|(at, reading)| {
            let store = &inventory.stores[at];
            let ids = ids.get(&(store.root.clone(), store.driver.clone()))?;
            let roots = reading.roots().into_iter().map(RealDirectory::of).collect();
            Some(AdditionalStore { at, roots, driver: store.driver.clone(), ids })
        })
        .collect();
    // A container that is shown says itself what it is made from.
    let shown: HashSet<_> =
        inventory.containers.iter().filter_map(|one| Some((one.store, one.image?))).collect();
    let (mut uses, mut unread_users) = (Vec::new(), Vec::new());
    for borrower in borrowers {
        let mut from =
            additional_stores_of(&borrower.borrows_from, &additional_stores, sysroot, &borrower.root);
        from.retain(|additional_store| {
            let same_driver = borrower.driver.is_none_or(|driver| driver == additional_store.driver);
            Some(additional_store.at) != borrower.position && same_driver
        });
        for additional_store in from {
            if borrower.is_damaged {
                unread_users
                    .push(UnreadUser { store: additional_store.at.into(), path: borrower.root.clone() });
            }
            for need in &borrower.needs {
                uses.extend(use_of(inventory, (borrower, &shown), additional_store, need));
            }
        }
    }
    for config in unread {
        let reads = |root: &RealDirectory, driver: &str| can_read(sysroot, config.uid, (&root.path, driver));
        let from =
            additional_stores.iter().filter(|one| one.roots.iter().any(|root| reads(root, &one.driver)));
        unread_users.extend(from.map(|one| UnreadUser { store: one.at.into(), path: config.file.clone() }));
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
    let is_named = |root: &&RealDirectory| named.iter().any(|place| place.is(root));
    let is_named_store = |additional_store: &&AdditionalStore<'_>| {
        let mut roots = additional_store.roots.iter().filter(is_named);
        roots.any(|root| may_reach(sysroot, borrower, (&root.path, &additional_store.driver)))
    };
    additional_stores.iter().filter(is_named_store).collect()
}

fn use_of(
    inventory: &Inventory,
    (borrower, shown): (&Borrower<'_>, &HashSet<(StoreIx, ImageIx)>),
    additional_store: &AdditionalStore<'_>,
    need: &Need,
) -> Option<Use> {
    let mut images: Vec<_> =
        need.images.iter().flat_map(|one| additional_store.ids.images(inventory, one)).collect();
    let store = borrower.position.map(StoreIx::from);
    images.retain(|image| store.is_none_or(|store| !shown.contains(&(store, *image))));
    let holds: Vec<_> =
        need.layers.iter().filter_map(|id| additional_store.ids.layer(inventory, id)).collect();
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
