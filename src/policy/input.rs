//! The input of a plan: the policy, and the facts about each image that the inventory does not have.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

pub use crate::model::BackOff;
use crate::model::reference_set::ReferenceSet;
use crate::model::refs::Refs;
use crate::model::rules::Rule;
use crate::model::space::BytesAndInodes;
use crate::model::text::names::names;
use crate::model::text::reference;
use crate::model::{FilesystemIx, Image, ImageIx, Inventory, NamedImage, Pattern, Store, StoreIx};
use crate::policy::image_rules::{ImageRule, Limit};
use crate::policy::space::Targets;

/// Policy `exact`: thresholds, ages and protections.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    /// Thresholds of the space pass, for each filesystem by itself.
    pub targets: Targets,
    /// Minimum time since the first detection of an image; younger images are kept.
    pub min_age: SignedDuration,
    /// Maximum idle time of an image; images idle for longer are deleted. `None`: no age pass.
    pub max_age: Option<SignedDuration>,
    /// Rules for images by name, in the order of asking.
    pub rules: Vec<ImageRule>,
    /// Order of the space pass; the age pass deletes the longest idle first in any case.
    pub order: DeletionOrder,
    pub protect: Protect,
}

names! {
    /// Order in which images are deleted for space.
    #[derive(Default)]
    DeletionOrder {
        /// Longest idle first.
        #[default]
        Idle = "idle",
        /// The set that is expected to cost least to pull again.
        Cheapest = "cheapest",
    }
}

impl Policy {
    /// Returns the position of the first rule that matches a name of an image, or an image without a name.
    #[must_use]
    pub fn rule_for(&self, image: &Image, name: Option<&str>) -> Option<usize> {
        let id = image.id.as_str();
        self.rules.iter().position(|rule| rule.pattern.covers(name.as_slice(), &image.digests, id))
    }

    pub fn rules_of<'a>(&'a self, image: &'a Image) -> impl Iterator<Item = Option<&'a ImageRule>> {
        let unnamed = image.names.is_empty().then_some(None);
        let names = image.names.iter().map(|name| Some(name.as_str())).chain(unnamed);
        names.map(|name| self.rule_for(image, name).map(|position| &self.rules[position]))
    }

    /// Returns the minimum age of an image: the longest of its names.
    #[must_use]
    pub fn min_age_of<'a>(&'a self, image: &'a Image) -> Limit<'a, SignedDuration> {
        let limits = self.rules_of(image).map(|rule| match rule.and_then(|rule| rule.min_age) {
            Some(value) => Limit { value, rule },
            None => Limit { value: self.min_age, rule: None },
        });
        limits.max_by_key(|limit| limit.value).unwrap_or(Limit { value: self.min_age, rule: None })
    }

    /// Returns the maximum idle time of an image: the longest of its names, or `None` if one of them has none.
    #[must_use]
    pub fn max_age_of<'a>(&'a self, image: &'a Image) -> Limit<'a, Option<SignedDuration>> {
        let limits = self.rules_of(image).map(|rule| match rule.and_then(|rule| rule.max_age) {
            Some(value) => Limit { value, rule },
            None => Limit { value: self.max_age, rule: None },
        });
        let longest = limits.max_by_key(|limit| (limit.value.is_none(), limit.value));
        longest.unwrap_or(Limit { value: self.max_age, rule: None })
    }

    /// Returns true if the newest images of any repository are kept.
    #[must_use]
    pub fn keeps_newest(&self) -> bool {
        self.protect.keep_newest > 0 || self.rules.iter().any(|rule| rule.keep_newest > Some(0))
    }

    /// Returns true if the newest images of a repository of this image are kept.
    #[must_use]
    pub fn keeps_newest_of(&self, image: &Image) -> bool {
        let mut counts = self
            .rules_of(image)
            .map(|rule| rule.and_then(|rule| rule.keep_newest).unwrap_or(self.protect.keep_newest));
        !image.names.is_empty() && counts.any(|count| count > 0)
    }

    pub fn disable_age_pass(&mut self) {
        self.max_age = None;
        self.rules.iter_mut().for_each(|rule| rule.max_age = None);
    }

    #[must_use]
    pub fn has_age_pass(&self) -> bool {
        self.max_age.is_some() || self.rules.iter().any(|rule| rule.max_age.flatten().is_some())
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Protect {
    /// Patterns on full references; an image is kept if any of its names matches.
    pub names: Vec<Pattern>,
    /// References of the declared set; their images are kept.
    pub references: ReferenceSet,
    /// Labels of protected images: a key, or a key and its value.
    pub labels: Vec<(String, Option<String>)>,
    /// Number of newest images of each repository that are kept; 0 disables the rule.
    pub keep_newest: usize,
    /// Stores whose named images are kept if they were never pulled.
    pub not_repullable: NotRepullable,
    /// Roots of the graphroots that CRI-O or its configuration names.
    pub crio_stores: Vec<PathBuf>,
    pub static_pods: Vec<NamedImage>,
    pub quadlets: Vec<Quadlet>,
    pub sandboxes: Vec<NamedImage>,
    pub pulling: Vec<NamedImage>,
    /// Rules whose images are unknown, because a file could not be read; only for commands that delete nothing.
    pub unread: Vec<Rule>,
}

names! {
    /// Stores whose named images are kept if they were never pulled.
    #[derive(Default)]
    NotRepullable {
        /// Those of a Kubernetes runtime. Elsewhere builds pile up, and a collector that keeps them all frees nothing.
        #[default]
        Kubernetes = "kubernetes",
        Always = "always",
        Never = "never",
    }
}

/// An image that a quadlet names, for the stores that podman would take it from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quadlet {
    /// The image. A short name matches the image of any registry, since podman may choose any.
    pub named: NamedImage,
    /// Stores that podman would take it from.
    pub stores: Arc<StoreSelection>,
    /// It may name any image: the user has more quadlets than are read.
    pub any: bool,
}

impl Quadlet {
    /// Returns true if podman may use `image`, which is in `store`, for the quadlet.
    #[must_use]
    pub fn means(&self, store: &Store, image: &Image) -> bool {
        store.kind.facts().is_of_podman
            && self.stores.has(&store.root)
            && (self.any || reference::may_mean(&self.named.reference, &image.names, &image.digests))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StoreSelection {
    Only(Vec<PathBuf>),
    Except(Vec<PathBuf>),
}

impl StoreSelection {
    #[must_use]
    pub fn has(&self, root: &Path) -> bool {
        match self {
            Self::Only(roots) => roots.iter().any(|selected| selected == root),
            Self::Except(roots) => roots.iter().all(|excluded| excluded != root),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ages {
    /// Time of its first detection, or earlier by evidence on the disk.
    pub first_detected: Timestamp,
    /// Last time that a scan found it in use; `None`: never.
    pub last_used: Option<Timestamp>,
    /// Number of containers created from it that scans have found.
    pub use_count: u64,
    /// Number of times that it came back after it was deleted, as far as that is remembered.
    pub returns: u32,
    /// Start of its idle time: the latest of the first detection, the last use, and the scan that proved it unused
    /// again. [`Self::new`] assumes no such scan.
    pub counted_from: Timestamp,
}

impl Ages {
    /// The ages of an image that no scan has proven unused since its last use.
    #[must_use]
    pub fn new(first_detected: Timestamp, last_used: Option<Timestamp>, use_count: u64) -> Self {
        let counted_from = last_used.map_or(first_detected, |used| used.max(first_detected));
        Self { first_detected, last_used, use_count, returns: 0, counted_from }
    }

    /// Start of the time in which it is proven to be unused. An image that was never found in use is idle since its
    /// first detection. For the kubelet it would be infinitely old; here, neither a first detection nor a lost record
    /// puts it first in the order.
    #[must_use]
    pub fn idle_since(&self) -> Timestamp {
        self.counted_from
    }
}

/// Facts about an image from outside the store's records: from the history, the configuration, the node's files and the
/// remover.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Ages from the history; an image without ages is kept.
    pub ages: Option<Ages>,
    /// Users that the inventory does not have: containers that only the runtime lists, images
    /// mounted as volumes. Each as `owner name`.
    pub used_by: Vec<String>,
    /// The runtime lists it as pinned.
    pub runtime_pins: bool,
    /// Other reasons to keep it: the keep-list, pods and their pulls, a source that could not be read.
    pub pinned_by: Vec<String>,
    /// Set if earlier runs could not remove it.
    pub back_off: Option<BackOff>,
    /// Reason for which the remover cannot delete it.
    pub out_of_reach: Option<String>,
    /// Clause with the command that deletes an image that is out of reach.
    pub removal: Option<String>,
}

impl Facts {
    pub fn add(&mut self, other: Self) {
        // Destructured, so that the compiler reports a new field that is not merged here.
        let Self { ages, used_by, runtime_pins, pinned_by, back_off, out_of_reach, removal } = other;
        self.ages = self.ages.or(ages);
        self.used_by.extend(used_by);
        self.runtime_pins |= runtime_pins;
        self.pinned_by.extend(pinned_by);
        self.back_off = self.back_off.take().or(back_off);
        self.out_of_reach = self.out_of_reach.take().or(out_of_reach);
        self.removal = self.removal.take().or(removal);
    }
}

/// A filesystem of a store on which no deletion can begin until `to_free` is freed.
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
    pub refs: &'a Refs,
    /// One entry for each image. Nothing is known of images beyond its end, so they are kept.
    pub facts: &'a [Facts],
    /// Filesystems on which the first image of a store must free the room for its own deletion.
    pub full_filesystems: &'a [FullFilesystem],
    pub policy: &'a Policy,
    /// The present, by the same clock as the ages of `facts`.
    pub now: Timestamp,
    /// Start of the run's scan, by the same clock. An image with a later last use was in use during the scan.
    pub scanned: Timestamp,
}

impl<'a> Input<'a> {
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
    fn patterns_match_the_full_reference() {
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
        // No name contains these characters: as a glob it would match nothing.
        for regex in ["^quay.io/.*$", "^quay.io/*", "quay.io/.*$"] {
            assert!(Pattern::new(regex).unwrap_err().ends_with("write \"quay.io/*\""), "{regex}");
        }
    }

    #[test]
    fn unused_image_is_idle_since_first_detection() {
        fn time(second: i64) -> Timestamp {
            Timestamp::from_second(second).unwrap()
        }
        // The image with the last use at 50 was deleted and pulled again.
        for (last_used, idle_since) in [(None, 100), (Some(50), 100), (Some(150), 150)] {
            let ages = Ages::new(time(100), last_used.map(time), 0);
            assert_eq!(ages.idle_since(), time(idle_since), "{last_used:?}");
        }
    }
}
