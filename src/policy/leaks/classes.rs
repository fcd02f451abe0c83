//! Every class of findings, and what can be done about it. `docs/leaks.md` tells the same at length.

use jiff::SignedDuration;

use crate::model::StoreKind;
use crate::stores::containers_storage::edit::Remedy;

/// A class of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// Its name, as documents and flags have it.
    pub name: &'static str,
    /// The kind of store that it is found in.
    pub store: StoreKind,
    /// What to do, where no recipe of ours does it: a clause for people.
    pub by_hand: &'static str,
}

const fn ours(name: &'static str) -> Class {
    Class { name, store: StoreKind::ContainersStorage, by_hand: "" }
}

const fn by_hand(name: &'static str, by_hand: &'static str) -> Class {
    Class { name, store: StoreKind::ContainersStorage, by_hand }
}

const fn of_containerd(name: &'static str, by_hand: &'static str) -> Class {
    Class { name, store: StoreKind::Containerd, by_hand }
}

const PULL_AGAIN: &str = "remove the image and pull it again";
const BY_ITSELF: &str = "containerd takes it away with its next deletion";
const WAIT: &str = "nothing: it is in use, or may be";
const RESTART: &str = "containerd takes it away when it starts";

/// All classes.
pub const CLASSES: [Class; 81] = [
    ours("orphan-dir"),
    ours("orphan-dir-partial"),
    ours("incomplete"),
    ours("incomplete-no-dir"),
    by_hand("incomplete-stuck", "unmount what is on it, or take its immutable mark away (chattr -R -i)"),
    ours("unref-old"),
    by_hand("unref-young", "nothing yet: a pull or build may be under way"),
    ours("volatile-ghost"),
    ours("dangling-l"),
    ours("dup-l"),
    by_hand("stray-l", "look where the symlink leads"),
    ours("missing-l"),
    ours("empty-linkfile"),
    by_hand("layer-no-dir", PULL_AGAIN),
    by_hand("parent-missing", PULL_AGAIN),
    by_hand("image-layer-missing", PULL_AGAIN),
    by_hand("image-data-missing", PULL_AGAIN),
    by_hand("image-data-size", PULL_AGAIN),
    by_hand("tarsplit-missing", "pull the image again if it is to be pushed or checked"),
    by_hand("ctr-layer-missing", "remove the container"),
    by_hand("ctr-image-missing", "save the container's data if it matters, then remove it"),
    by_hand("dup-name", "tag one of the two images anew"),
    by_hand("dup-record", "look at both record files"),
    ours("orphan-image-dir"),
    ours("orphan-ctr-dir"),
    ours("tarsplit-orphan"),
    ours("layerdata-orphan"),
    ours("staging-dead"),
    by_hand("staging-live", WAIT),
    ours("tempdirs-dead"),
    by_hand("tempdirs-live", WAIT),
    ours("tmp-json"),
    ours("compat-dirs"),
    ours("graphroot-tmp"),
    ours("vartmp"),
    by_hand("volume-orphan", "look whether its data matters, then remove the directory"),
    by_hand("leaked-mount", "umount it"),
    by_hand("crio-image-volume", "podman image unmount, if nobody needs it"),
    by_hand("stale-mountpoints", "restart the engine, or the node"),
    by_hand("external-container", "buildah rm"),
    by_hand("unknown-to-podman", "podman rm --force, or podman container rm --storage"),
    by_hand("crio-pod", "CRI-O deletes it when it starts"),
    ours("artifact-blob-orphan"),
    ours("artifact-put-blob"),
    by_hand("artifact-broken", "remove the artifact and pull it again"),
    of_containerd("stray-blob-name", "move it out of the blobs' directory"),
    of_containerd("orphan-blob", BY_ITSELF),
    of_containerd("content-unreferenced", BY_ITSELF),
    of_containerd("snapshot-unreferenced", BY_ITSELF),
    of_containerd("content-gc-root", "take its gc.root label away"),
    of_containerd("snapshot-gc-root", "take its gc.root label away"),
    of_containerd("lease-without-expiry", "ctr leases rm, if nobody needs it"),
    of_containerd("lease-far-expiry", "ctr leases rm, if nobody needs it"),
    of_containerd("lease-stale", "containerd takes it away when the lease expires"),
    of_containerd("lease-expired", BY_ITSELF),
    of_containerd("image-expired", BY_ITSELF),
    of_containerd("lease-active", WAIT),
    of_containerd("ingest-active", WAIT),
    of_containerd("stale-ingest", "containerd takes it away when it expires"),
    of_containerd("orphan-ingest", BY_ITSELF),
    of_containerd("ingest-without-ref", "remove its directory while containerd is stopped"),
    of_containerd("orphan-snapshot-dir", BY_ITSELF),
    of_containerd("orphan-new-dir", BY_ITSELF),
    of_containerd("orphan-rm-dir", BY_ITSELF),
    of_containerd("backend-snapshot-unknown", BY_ITSELF),
    of_containerd("erofs-cache-unused", "remove the file if nothing else uses the cache"),
    of_containerd("foreign-snapshotter-dir", "remove it if that snapshotter is not used any more"),
    of_containerd("tmpmount", "remove the files while nothing is mounted there"),
    of_containerd("cri-container-dir", RESTART),
    of_containerd("cri-sandbox-dir", RESTART),
    of_containerd("task-dir", RESTART),
    of_containerd("missing-manifest-blob", "ctr images rm"),
    of_containerd("missing-layer-blob", PULL_AGAIN),
    of_containerd("truncated-blob", PULL_AGAIN),
    of_containerd("image-snapshot-missing", PULL_AGAIN),
    of_containerd("snapshot-missing", PULL_AGAIN),
    of_containerd("container-without-cri", "ctr containers rm"),
    of_containerd("oversized-database", "bbolt compact while containerd is stopped"),
    of_containerd("foreign-namespace", "ctr -n NAMESPACE images rm, if nobody needs them"),
    of_containerd("orphan-image-volume", "umount it, then remove its lease or snapshot with ctr"),
    of_containerd("second-snapshotter", "ctr snapshots rm, if nobody uses that snapshotter"),
];

/// The class of that name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Class> {
    CLASSES.iter().find(|class| class.name == name)
}

/// Names of the classes that a recipe of ours mends.
#[must_use]
pub fn repairable() -> Vec<&'static str> {
    let mends = |name: &&str| Remedy::of_class(name, SignedDuration::ZERO) == Some(Remedy::RepairLink);
    CLASSES.iter().map(|class| class.name).filter(mends).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_list_is_that_of_the_document() {
        let document = include_str!("../../../docs/leaks.md");
        let rows = document.lines().filter(|line| line.starts_with("| `"));
        let documented: BTreeSet<&str> = rows
            .flat_map(|row| row.split('|').nth(1).unwrap_or_default().split('`').skip(1).step_by(2))
            .collect();
        let known: BTreeSet<&str> = CLASSES.iter().map(|class| class.name).collect();
        assert_eq!(known, documented);
        assert_eq!(known.len(), CLASSES.len(), "each class once");
    }

    /// What no recipe of ours does has a word for people, and the other way round.
    #[test]
    fn every_class_has_a_remedy() {
        for class in CLASSES {
            let recipe = Remedy::of_class(class.name, SignedDuration::ZERO);
            assert_eq!(recipe.is_none(), !class.by_hand.is_empty(), "{}", class.name);
            assert!(recipe.is_none() || class.store == StoreKind::ContainersStorage, "{}", class.name);
        }
    }
}
