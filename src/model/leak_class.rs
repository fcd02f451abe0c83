//! The table of leak classes: usual verdict and fix of each.
//! `docs/leaks.md` tells the same at length. Pure.

use std::fmt;

use jiff::SignedDuration;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::StoreKind;
use super::names::{names, string_schema};

/// What kind of thing in a containers-storage has no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Orphan {
    /// A directory of the driver that no layer record names.
    LayerDirectory,
    /// An image's directory without an image.
    ImageDirectory,
    /// A container's directory without a container.
    ContainerDirectory,
    /// A tar-split file without a layer.
    TarSplit,
    /// A layer's big data without a layer.
    LayerData,
    /// A staging area of a partial pull.
    Staging,
    /// A temporary directory (deletion or extraction), with its lock file.
    TempDirectory,
    /// A record file that was never renamed into place.
    TempRecord,
    /// A test directory of the driver's feature detection.
    FeatureTest,
    /// Temporary files in the graphroot's own `tmp`.
    GraphrootTmp,
    /// Temporary files of the store's tools outside of it: in `/var/tmp`, usually.
    VarTmp,
    /// A volume that podman does not know.
    Volume,
    /// A short name in the overlay driver's `l/` that leads to no layer, or a second one of a layer,
    /// which no `lower` uses.
    ShortName,
    /// A blob or a temporary file in the store of artifacts.
    ArtifactFile,
}

impl Orphan {
    /// The class that it is usually listed under.
    #[must_use]
    pub fn class(self) -> LeakClass {
        match self {
            Self::LayerDirectory => LeakClass::OrphanDir,
            Self::ImageDirectory => LeakClass::OrphanImageDir,
            Self::ContainerDirectory => LeakClass::OrphanContainerDir,
            Self::TarSplit => LeakClass::TarSplitOrphan,
            Self::LayerData => LeakClass::LayerDataOrphan,
            Self::Staging => LeakClass::StagingDead,
            Self::TempDirectory => LeakClass::TempdirsDead,
            Self::TempRecord => LeakClass::TmpJson,
            Self::FeatureTest => LeakClass::CompatDirs,
            Self::GraphrootTmp => LeakClass::GraphrootTmp,
            Self::VarTmp => LeakClass::VarTmp,
            Self::Volume => LeakClass::VolumeOrphan,
            Self::ShortName => LeakClass::DanglingL,
            Self::ArtifactFile => LeakClass::ArtifactBlobOrphan,
        }
    }
}

/// How an edit of ours removes or repairs a leak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipe {
    /// It is removed from its path. Needs no room: no record is written.
    Orphan(Orphan),
    /// The layer and its record are deleted.
    IncompleteLayer,
    /// The same, if it is at least 24 hours old.
    UnreferencedLayer,
    /// Its files are removed where they are. Needs no room.
    TemporaryFiles,
    /// The layer's short name is made anew.
    RepairLink,
}

impl Recipe {
    /// Works without writing a record file anew, so also where there is no room left.
    #[must_use]
    pub fn needs_no_room(self) -> bool {
        matches!(self, Self::Orphan(_) | Self::TemporaryFiles)
    }
}

names! {
    /// What should happen to a leak.
    Verdict {
        /// Nothing uses it and its proof is complete: it can be deleted.
        Reclaim = "reclaim",
        /// The records are wrong and can be repaired, by us or by a person.
        Repair = "repair",
        /// It looks like a leak but is not, or may be work in progress.
        Keep = "keep",
        /// A person has to check it.
        Report = "report",
    }
}

/// What can be done about a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fix {
    Recipe(Recipe),
    /// containerd's garbage collection deletes it: it runs with the next removal of an image.
    ByItself,
    /// By a person, or by the runtime: a clause.
    ByHand(&'static str),
}

const fn orphan(what: Orphan) -> Fix {
    Fix::Recipe(Recipe::Orphan(what))
}

struct Row {
    name: &'static str,
    store: StoreKind,
    verdict: Verdict,
    fix: Fix,
}

macro_rules! classes {
    ($($class:ident, $name:literal, $store:ident, $verdict:ident, $fix:expr;)*) => {
        /// A class of leaks.
        #[allow(missing_docs)] // `docs/leaks.md` has a row for each
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum LeakClass { $($class),* }

        impl LeakClass {
            /// Every class, in the order of the table.
            pub const ALL: &[Self] = &[$(Self::$class),*];

            fn row(self) -> Row {
                match self {
                    $(Self::$class => Row {
                        name: $name,
                        store: StoreKind::$store,
                        verdict: Verdict::$verdict,
                        fix: $fix,
                    },)*
                }
            }
        }
    };
}

use Fix::{ByHand, ByItself};
use Orphan::{
    ArtifactFile, ContainerDirectory, FeatureTest, ImageDirectory, LayerData, LayerDirectory, ShortName,
    Staging, TarSplit, TempDirectory, TempRecord,
};

const PULL_AGAIN: &str = "remove the image and pull it again";
const WAIT: &str = "nothing: it is or may be in use";
const OF_OWNER: &str = "remove it with the program that made it, if that does not need it any more";
const LABEL: &str = "remove its label, as the evidence says";
const RESTART: &str = "containerd removes it when it starts";
const INCOMPLETE: Fix = Fix::Recipe(Recipe::IncompleteLayer);
const UNREFERENCED: Fix = Fix::Recipe(Recipe::UnreferencedLayer);
const TEMPORARY: Fix = Fix::Recipe(Recipe::TemporaryFiles);
const LINK: Fix = Fix::Recipe(Recipe::RepairLink);

// The class, its name in documents and flags, the kind of store that it is found in, its usual verdict,
// and what can be done about it.
#[rustfmt::skip]
classes! {
    OrphanDir, "orphan-dir", ContainersStorage, Reclaim, orphan(LayerDirectory);
    OrphanDirPartial, "orphan-dir-partial", ContainersStorage, Reclaim, orphan(LayerDirectory);
    Incomplete, "incomplete", ContainersStorage, Reclaim, INCOMPLETE;
    IncompleteNoDir, "incomplete-no-dir", ContainersStorage, Reclaim, INCOMPLETE;
    IncompleteStuck, "incomplete-stuck", ContainersStorage, Report, ByHand("unmount what is on it, or clear its immutable flag (chattr -R -i)");
    UnrefOld, "unref-old", ContainersStorage, Reclaim, UNREFERENCED;
    UnrefYoung, "unref-young", ContainersStorage, Keep, ByHand("nothing yet: a pull or build may be under way");
    VolatileGhost, "volatile-ghost", ContainersStorage, Reclaim, UNREFERENCED;
    DanglingL, "dangling-l", ContainersStorage, Reclaim, orphan(ShortName);
    DupL, "dup-l", ContainersStorage, Reclaim, orphan(ShortName);
    StrayL, "stray-l", ContainersStorage, Report, ByHand("check where the symlink points");
    MissingL, "missing-l", ContainersStorage, Repair, LINK;
    EmptyLinkFile, "empty-linkfile", ContainersStorage, Repair, LINK;
    LayerNoDir, "layer-no-dir", ContainersStorage, Repair, ByHand(PULL_AGAIN);
    ParentMissing, "parent-missing", ContainersStorage, Repair, ByHand(PULL_AGAIN);
    ImageLayerMissing, "image-layer-missing", ContainersStorage, Repair, ByHand(PULL_AGAIN);
    ImageDataMissing, "image-data-missing", ContainersStorage, Repair, ByHand(PULL_AGAIN);
    ImageDataSize, "image-data-size", ContainersStorage, Repair, ByHand(PULL_AGAIN);
    TarSplitMissing, "tarsplit-missing", ContainersStorage, Report, ByHand("pull the image again if it is to be pushed or checked");
    ContainerLayerMissing, "ctr-layer-missing", ContainersStorage, Repair, ByHand("remove the container");
    ContainerImageMissing, "ctr-image-missing", ContainersStorage, Report, ByHand("save the container's data if needed, then remove it");
    DupName, "dup-name", ContainersStorage, Repair, ByHand("retag one of the two images");
    DupRecord, "dup-record", ContainersStorage, Report, ByHand("compare both record files");
    OrphanImageDir, "orphan-image-dir", ContainersStorage, Reclaim, orphan(ImageDirectory);
    OrphanContainerDir, "orphan-ctr-dir", ContainersStorage, Reclaim, orphan(ContainerDirectory);
    TarSplitOrphan, "tarsplit-orphan", ContainersStorage, Reclaim, orphan(TarSplit);
    LayerDataOrphan, "layerdata-orphan", ContainersStorage, Reclaim, orphan(LayerData);
    StagingDead, "staging-dead", ContainersStorage, Reclaim, orphan(Staging);
    StagingLive, "staging-live", ContainersStorage, Keep, ByHand(WAIT);
    TempdirsDead, "tempdirs-dead", ContainersStorage, Reclaim, orphan(TempDirectory);
    TempdirsLive, "tempdirs-live", ContainersStorage, Keep, ByHand(WAIT);
    TmpJson, "tmp-json", ContainersStorage, Reclaim, orphan(TempRecord);
    CompatDirs, "compat-dirs", ContainersStorage, Reclaim, orphan(FeatureTest);
    GraphrootTmp, "graphroot-tmp", ContainersStorage, Reclaim, TEMPORARY;
    VarTmp, "vartmp", ContainersStorage, Reclaim, TEMPORARY;
    VolumeOrphan, "volume-orphan", ContainersStorage, Report, ByHand("check whether its data is needed, then remove the directory");
    LeakedMount, "leaked-mount", ContainersStorage, Keep, ByHand("umount it");
    CrioImageVolume, "crio-image-volume", ContainersStorage, Report, ByHand("remove the image with crictl, if nothing needs it");
    StaleMountpoints, "stale-mountpoints", ContainersStorage, Repair, ByHand("restart the engine, or the node");
    ExternalContainer, "external-container", ContainersStorage, Report, ByHand("remove it with buildah, if no build needs it");
    UnknownToPodman, "unknown-to-podman", ContainersStorage, Report, ByHand("remove it with podman");
    CrioPod, "crio-pod", ContainersStorage, Report, ByHand("CRI-O deletes it when it starts");
    ArtifactBlobOrphan, "artifact-blob-orphan", ContainersStorage, Reclaim, orphan(ArtifactFile);
    ArtifactPutBlob, "artifact-put-blob", ContainersStorage, Reclaim, orphan(ArtifactFile);
    ArtifactBroken, "artifact-broken", ContainersStorage, Repair, ByHand("remove the artifact and pull it again");
    StrayBlobName, "stray-blob-name", Containerd, Report, ByHand("move it out of the blobs' directory");
    OrphanBlob, "orphan-blob", Containerd, Report, ByItself;
    ContentUnreferenced, "content-unreferenced", Containerd, Report, ByItself;
    SnapshotUnreferenced, "snapshot-unreferenced", Containerd, Report, ByItself;
    ContentGcRoot, "content-gc-root", Containerd, Report, ByHand(LABEL);
    SnapshotGcRoot, "snapshot-gc-root", Containerd, Report, ByHand(LABEL);
    LeaseWithoutExpiry, "lease-without-expiry", Containerd, Report, ByHand(OF_OWNER);
    LeaseFarExpiry, "lease-far-expiry", Containerd, Report, ByHand(OF_OWNER);
    LeaseStale, "lease-stale", Containerd, Report, ByHand("containerd removes it when the lease expires");
    LeaseExpired, "lease-expired", Containerd, Report, ByItself;
    ImageExpired, "image-expired", Containerd, Report, ByItself;
    LeaseActive, "lease-active", Containerd, Keep, ByHand(WAIT);
    IngestActive, "ingest-active", Containerd, Keep, ByHand(WAIT);
    StaleIngest, "stale-ingest", Containerd, Report, ByHand("containerd removes it when it expires");
    OrphanIngest, "orphan-ingest", Containerd, Report, ByItself;
    IngestWithoutRef, "ingest-without-ref", Containerd, Report, ByHand("remove its directory while containerd is stopped");
    OrphanSnapshotDir, "orphan-snapshot-dir", Containerd, Report, ByItself;
    OrphanNewDir, "orphan-new-dir", Containerd, Report, ByItself;
    OrphanRmDir, "orphan-rm-dir", Containerd, Report, ByItself;
    BackendSnapshotUnknown, "backend-snapshot-unknown", Containerd, Report, ByItself;
    ErofsCacheUnused, "erofs-cache-unused", Containerd, Report, ByHand("remove the file if nothing else uses the cache");
    ForeignSnapshotterDir, "foreign-snapshotter-dir", Containerd, Report, ByHand("remove it if that snapshotter is not used any more");
    TmpMount, "tmpmount", Containerd, Report, ByHand("remove the files while nothing is mounted there");
    CriContainerDir, "cri-container-dir", Containerd, Report, ByHand(RESTART);
    CriSandboxDir, "cri-sandbox-dir", Containerd, Report, ByHand(RESTART);
    TaskDir, "task-dir", Containerd, Report, ByHand(RESTART);
    MissingManifestBlob, "missing-manifest-blob", Containerd, Report, ByHand("remove the image's names, as the evidence says");
    MissingLayerBlob, "missing-layer-blob", Containerd, Report, ByHand(PULL_AGAIN);
    TruncatedBlob, "truncated-blob", Containerd, Report, ByHand(PULL_AGAIN);
    ImageSnapshotMissing, "image-snapshot-missing", Containerd, Report, ByHand(PULL_AGAIN);
    SnapshotMissing, "snapshot-missing", Containerd, Report, ByHand(PULL_AGAIN);
    ContainerWithoutCri, "container-without-cri", Containerd, Report, ByHand("remove it with ctr, if nothing needs it");
    OversizedDatabase, "oversized-database", Containerd, Report, ByHand("bbolt compact while containerd is stopped");
    ForeignNamespace, "foreign-namespace", Containerd, Report, ByHand("remove them with the program that made them, if nothing needs them");
    OrphanImageVolume, "orphan-image-volume", Containerd, Report, ByHand("umount it, then remove its lease or snapshot, as the evidence says");
    SecondSnapshotter, "second-snapshotter", Containerd, Report, ByHand("remove them with the program that made them, if nothing uses that snapshotter");
}

impl LeakClass {
    /// The class of that name.
    #[must_use]
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|class| class.as_str() == name)
    }

    /// Its name, as documents and flags have it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.row().name
    }

    /// The kind of store that it is found in.
    #[must_use]
    pub fn store(self) -> StoreKind {
        self.row().store
    }

    /// What becomes of a leak of this class where nothing speaks against it.
    #[must_use]
    pub fn verdict(self) -> Verdict {
        self.row().verdict
    }

    /// The edit that removes or repairs it, if there is one.
    #[must_use]
    pub fn recipe(self) -> Option<Recipe> {
        match self.row().fix {
            Fix::Recipe(recipe) => Some(recipe),
            Fix::ByItself | Fix::ByHand(_) => None,
        }
    }

    /// containerd deletes it by itself with the next removal of an image.
    #[must_use]
    pub fn is_collected_by_containerd(self) -> bool {
        matches!(self.row().fix, Fix::ByItself)
    }

    /// What to do where no edit of ours helps: a clause for people.
    #[must_use]
    pub fn by_hand(self) -> &'static str {
        match self.row().fix {
            Fix::Recipe(_) => "",
            Fix::ByItself => "containerd removes it at its next garbage collection",
            Fix::ByHand(clause) => clause,
        }
    }
}

/// Whether something of this age is at least `wanted` old. What is not known to be old is young, but
/// where no age is asked for.
#[must_use]
pub fn is_old_enough(age: Option<SignedDuration>, wanted: SignedDuration) -> bool {
    age.map_or(wanted.is_zero(), |age| age >= wanted)
}

impl fmt::Display for LeakClass {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.pad(self.as_str())
    }
}

impl<'de> Deserialize<'de> for LeakClass {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::find(&name).ok_or_else(|| D::Error::custom(format!("{name:?} is not a leak class")))
    }
}

impl Serialize for LeakClass {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.as_str())
    }
}

string_schema!(LeakClass);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_table_is_that_of_the_document() {
        let document = include_str!("../../docs/leaks.md");
        let rows = document.lines().filter(|line| line.starts_with("| `"));
        let documented: BTreeSet<&str> = rows
            .flat_map(|row| row.split('|').nth(1).unwrap_or_default().split('`').skip(1).step_by(2))
            .collect();
        let known: BTreeSet<&str> = LeakClass::ALL.iter().map(|class| class.as_str()).collect();
        assert_eq!(known, documented);
        assert_eq!(known.len(), LeakClass::ALL.len(), "each name once");
    }

    #[test]
    fn what_containerd_collects_is_in_its_stores_and_has_no_recipe() {
        let all = LeakClass::ALL.iter().filter(|class| class.is_collected_by_containerd());
        let all: Vec<_> = all.copied().collect();
        assert!(all.contains(&LeakClass::OrphanIngest) && all.contains(&LeakClass::OrphanBlob));
        assert!(all.iter().all(|class| class.store() == StoreKind::Containerd && class.recipe().is_none()));
    }

    #[test]
    fn a_recipe_is_for_what_goes_or_is_repaired_in_a_store_that_we_edit() {
        for class in LeakClass::ALL {
            let edited = matches!(class.verdict(), Verdict::Reclaim | Verdict::Repair);
            assert!(class.recipe().is_none() || edited, "{class}");
            assert_eq!(class.recipe().is_none(), !class.by_hand().is_empty(), "{class}");
            assert!(class.recipe().is_none() || class.store() == StoreKind::ContainersStorage, "{class}");
            assert_eq!(LeakClass::find(class.as_str()), Some(*class));
        }
    }
}
