//! The input of a plan: the policy, and facts about each image that the inventory does not have.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

pub use crate::model::BackOff;
use crate::model::reference;
use crate::model::refs::Refs;
use crate::model::space::BytesAndInodes;
use crate::model::{FilesystemIx, Image, ImageIx, Inventory, NamedImage, Pattern, Store, StoreIx, StoreKind};
use crate::policy::space::Targets;

/// Policy `exact`: when to delete, and what is protected.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    /// When the space pass starts and ends, for each filesystem by itself.
    pub targets: Targets,
    /// Images first detected less than this ago stay.
    pub min_age: SignedDuration,
    /// Images idle for longer than this are deleted; `None`: no age pass.
    pub max_age: Option<SignedDuration>,
    /// Further protections.
    pub protect: Protect,
}

/// What the configuration protects.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Protect {
    /// Patterns on full references; an image stays if any of its names matches.
    pub names: Vec<Pattern>,
    /// Labels that an image may carry: a key, or a key and the value it must have.
    pub labels: Vec<(String, Option<String>)>,
    /// Number of newest images of each repository that stay; 0 is off.
    pub keep_newest: usize,
    /// Images that static pods name.
    pub static_pods: Vec<NamedImage>,
    /// Images that quadlets name.
    pub quadlets: Vec<Quadlet>,
    /// Images that pod sandboxes are made from.
    pub sandboxes: Vec<NamedImage>,
    /// Images that the kubelet is pulling.
    pub pulling: Vec<NamedImage>,
}

/// An image that a quadlet names, for the stores that podman would take it from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quadlet {
    /// What it names; a short name means what podman may take it for: any registry's.
    pub named: NamedImage,
    /// Roots of those stores.
    pub stores: Arc<StoreSelection>,
    /// It may name any image: there is more than is read of a user.
    pub any: bool,
}

impl Quadlet {
    /// Whether podman may mean `image`, which lies in `store`.
    #[must_use]
    pub fn means(&self, store: &Store, image: &Image) -> bool {
        store.kind == StoreKind::ContainersStorage
            && self.stores.has(&store.root)
            && (self.any || reference::may_mean(&self.named.reference, &image.names, &image.digests))
    }
}

/// Stores of containers/storage, by their roots.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StoreSelection {
    /// Only these.
    Only(Vec<PathBuf>),
    /// All but these.
    Except(Vec<PathBuf>),
}

impl StoreSelection {
    /// Whether the store at `root` is one of them.
    #[must_use]
    pub fn has(&self, root: &Path) -> bool {
        match self {
            Self::Only(roots) => roots.iter().any(|one| one == root),
            Self::Except(roots) => roots.iter().all(|one| one != root),
        }
    }
}

/// Ages of an image from the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ages {
    /// When it was first detected, or earlier by evidence on the disk.
    pub first_detected: Timestamp,
    /// When it was last seen in use; `None`: never.
    pub last_used: Option<Timestamp>,
    /// How many containers were seen that were made from it.
    pub use_count: u64,
    /// What its idleness is counted from: the latest of first detected, last used, and the scan
    /// that proved it unused again. [`Self::new`] knows of no such scan.
    pub counted_from: Timestamp,
}

impl Ages {
    /// The ages of an image that no scan has proven unused since its last use.
    #[must_use]
    pub fn new(first_detected: Timestamp, last_used: Option<Timestamp>, use_count: u64) -> Self {
        let counted_from = last_used.map_or(first_detected, |used| used.max(first_detected));
        Self { first_detected, last_used, use_count, counted_from }
    }

    /// Since when nothing has used it, as far as proven. An image that was never seen in use is idle
    /// since it was first detected, not infinitely old (as for the kubelet), so that neither a first
    /// detection nor a lost record puts it first in the order.
    #[must_use]
    pub fn idle_since(&self) -> Timestamp {
        self.counted_from
    }
}

/// Facts about an image from outside the store's records: from history, configuration, the node's files and what
/// deletes images here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Ages from the records; without them an image stays.
    pub ages: Option<Ages>,
    /// Users that the inventory does not have: containers that only the runtime lists, images
    /// mounted as volumes. Each as `owner name`.
    pub used_by: Vec<String>,
    /// The runtime lists it as pinned.
    pub runtime_pins: bool,
    /// What else keeps it: our own keep-list, pods and their pulls, what could not be asked.
    pub pinned_by: Vec<String>,
    /// Earlier runs could not remove it.
    pub back_off: Option<BackOff>,
    /// Why the selected backend cannot delete it, if so.
    pub out_of_reach: Option<String>,
}

impl Facts {
    /// Merges facts from another source.
    pub fn add(&mut self, other: Self) {
        // Taken apart, so that no new fact is forgotten.
        let Self { ages, used_by, runtime_pins, pinned_by, back_off, out_of_reach } = other;
        self.ages = self.ages.or(ages);
        self.used_by.extend(used_by);
        self.runtime_pins |= runtime_pins;
        self.pinned_by.extend(pinned_by);
        self.back_off = self.back_off.take().or(back_off);
        self.out_of_reach = self.out_of_reach.take().or(out_of_reach);
    }
}

/// A filesystem of a store that is so full that no deletion can begin there until `to_free` is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FullFilesystem {
    pub store: StoreIx,
    pub filesystem: FilesystemIx,
    pub to_free: BytesAndInodes,
}

/// All input of a plan. Pure: the caller has read the disk and the clock.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    pub inventory: &'a Inventory,
    /// Its reference counts.
    pub refs: &'a Refs,
    /// One entry an image. Nothing is known of images beyond its end, so they stay.
    pub facts: &'a [Facts],
    /// Where the first image of a store has to free itself what its deletion needs to begin.
    pub full_filesystems: &'a [FullFilesystem],
    pub policy: &'a Policy,
    /// The present, by the same clock as the ages of `facts`.
    pub now: Timestamp,
    /// When the scan began that the run goes by, by that clock too: what was used since, was in use
    /// when it looked.
    pub scanned: Timestamp,
}

impl<'a> Input<'a> {
    /// Returns the ages of an image from the records.
    #[must_use]
    pub fn ages(&self, image_ix: ImageIx) -> Option<&'a Ages> {
        self.facts(image_ix)?.ages.as_ref()
    }

    #[must_use]
    pub fn facts(&self, image_ix: ImageIx) -> Option<&'a Facts> {
        self.facts.get(image_ix.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_on_the_full_reference() {
        for (pattern, name, matches) in [
            ("quay.io/*", "quay.io/a/b:1", true),
            ("quay.io/a/b", "quay.io/a/b:1", false),
            ("*/pause:*", "registry.k8s.io/pause:3.10", true),
            ("quay.io/{a,b}/*", "quay.io/b/x:1", true),
            ("quay.io/*", "docker.io/quay.io/a:1", false),
        ] {
            assert_eq!(Pattern::new(pattern).unwrap().matches(name), matches, "{pattern}");
        }
        assert!(Pattern::new("quay.io/[").is_err());
        assert!(Pattern::new("").is_err());
    }

    #[test]
    fn never_used_is_not_infinitely_old() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let idle = |first, last: Option<i64>| Ages::new(at(first), last.map(at), 0).idle_since();
        assert_eq!(idle(100, None), at(100));
        assert_eq!(idle(100, Some(50)), at(100), "a new life of an image used before");
        assert_eq!(idle(100, Some(150)), at(150));
    }
}
