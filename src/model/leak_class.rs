//! Table of the leak classes, with the usual verdict and fix of each. `docs/leaks.md` describes them at length.
//! Pure.

use std::fmt;

use jiff::SignedDuration;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::model::text::names::{names, string_schema};

/// Kind of an object in a containers-storage that has no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Orphan {
    /// A directory of the driver that no layer record names.
    LayerDirectory,
    /// An image's directory without an image record.
    ImageDirectory,
    /// A container's directory without a container record.
    ContainerDirectory,
    /// A layer's tar-split file or big data without a layer.
    LayerData,
    /// A staging area of a partial pull.
    Staging,
    /// A temporary directory (deletion or extraction), with its lock file.
    TempDirectory,
    /// A record file that was never renamed into place.
    TempRecord,
    /// Temporary files in the graphroot's own `tmp`.
    GraphrootTmp,
    /// Temporary files of the store's tools outside the store: usually in `/var/tmp`.
    VarTmp,
    /// A volume that podman does not know.
    Volume,
}

impl Orphan {
    /// Returns the class that it is usually listed under.
    #[must_use]
    pub fn class(self) -> LeakClass {
        match self {
            Self::LayerDirectory => LeakClass::OrphanDir,
            Self::ImageDirectory => LeakClass::OrphanImageDir,
            Self::ContainerDirectory => LeakClass::OrphanContainerDir,
            Self::LayerData => LeakClass::LayerDataOrphan,
            Self::Staging => LeakClass::Staging,
            Self::TempDirectory => LeakClass::TempDirectory,
            Self::TempRecord => LeakClass::TempRecord,
            Self::GraphrootTmp => LeakClass::GraphrootTmp,
            Self::VarTmp => LeakClass::VarTmp,
            Self::Volume => LeakClass::VolumeOrphan,
        }
    }
}

/// Method by which layersweep removes or repairs a leak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipe {
    /// It is removed from its path. Needs no free space, since no record is written.
    Orphan(Orphan),
    /// The layer and its record are deleted.
    IncompleteLayer,
    /// The layer and its record are deleted, if the layer is at least 24 hours old.
    UnreferencedLayer,
    /// Its files are removed where they are. Needs no free space.
    TemporaryFiles,
    /// The layer's short name is created again.
    RepairLink,
}

impl Recipe {
    /// Returns whether it works on a full disk, because no record file is rewritten.
    #[must_use]
    pub fn needs_no_room(self) -> bool {
        matches!(self, Self::Orphan(_) | Self::TemporaryFiles)
    }
}

names! {
    /// Recommended treatment of a leak.
    Verdict {
        /// Nothing uses it and its proof is complete: it can be deleted.
        Reclaim = "reclaim",
        /// The records are wrong and can be repaired, by layersweep or by a person.
        Repair = "repair",
        /// It looks like a leak but is not, or may be work in progress.
        Keep = "keep",
        /// A person has to check it.
        Report = "report",
    }
}

/// Method that removes or repairs the leaks of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fix {
    Recipe(Recipe),
    /// containerd's garbage collection deletes it, at the next removal of an image.
    ByItself,
    /// A person or the runtime removes it, as this clause describes.
    ByHand(&'static str),
}

const fn orphan(orphan: Orphan) -> Fix {
    Fix::Recipe(Recipe::Orphan(orphan))
}

struct ClassFacts {
    name: &'static str,
    verdict: Verdict,
    fix: Fix,
}

macro_rules! classes {
    ($($class:ident, $name:literal, $verdict:ident, $fix:expr;)*) => {
        /// Class of a leak: the reason why the object is a leak.
        #[allow(missing_docs)] // `docs/leaks.md` has a row for each
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum LeakClass { $($class),* }

        impl LeakClass {
            /// All classes, in the order of the table.
            pub const ALL: &[Self] = &[$(Self::$class),*];

            fn facts(self) -> ClassFacts {
                match self {
                    $(Self::$class => ClassFacts {
                        name: $name,
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
    ContainerDirectory, ImageDirectory, LayerData, LayerDirectory, Staging, TempDirectory, TempRecord,
};

const BY_EVIDENCE: &str = "as the evidence says";
const INCOMPLETE: Fix = Fix::Recipe(Recipe::IncompleteLayer);
const UNREFERENCED: Fix = Fix::Recipe(Recipe::UnreferencedLayer);
const TEMPORARY: Fix = Fix::Recipe(Recipe::TemporaryFiles);
const LINK: Fix = Fix::Recipe(Recipe::RepairLink);

// Columns: class, name in documents and flags, usual verdict, fix.
#[rustfmt::skip]
classes! {
    // Leaks of a containers-storage.
    OrphanDir, "orphan-dir", Reclaim, orphan(LayerDirectory);
    OrphanImageDir, "orphan-image-dir", Reclaim, orphan(ImageDirectory);
    OrphanContainerDir, "orphan-ctr-dir", Reclaim, orphan(ContainerDirectory);
    LayerDataOrphan, "layerdata-orphan", Reclaim, orphan(LayerData);
    Incomplete, "incomplete", Reclaim, INCOMPLETE;
    Unreferenced, "unreferenced", Reclaim, UNREFERENCED;
    Staging, "staging", Reclaim, orphan(Staging);
    TempDirectory, "tempdirs", Reclaim, orphan(TempDirectory);
    TempRecord, "tmp-json", Reclaim, orphan(TempRecord);
    GraphrootTmp, "graphroot-tmp", Reclaim, TEMPORARY;
    VarTmp, "vartmp", Reclaim, TEMPORARY;
    ArtifactOrphan, "artifact-orphan", Report, ByHand("an artifact that is pulled, added or removed again may use it");
    VolumeOrphan, "volume-orphan", Report, ByHand("only you can judge whether its data is needed");
    MissingLink, "missing-link", Repair, LINK;
    LayerNoDir, "layer-no-dir", Repair, ByHand("remove the containers that use its image, then the image, and pull it again");
    LeakedMount, "leaked-mount", Keep, ByHand("umount it");
    DupRecord, "dup-record", Report, ByHand("compare both record files");
    // Leaks of a containerd store.
    Garbage, "garbage", Report, ByItself;
    StrayBlobName, "stray-blob-name", Report, ByHand("move it out of the blobs' directory");
    GcRoot, "gc-root", Report, ByHand("only you can judge whether something needs it; the evidence names its labels");
    Lease, "lease", Report, ByHand("`ctr leases ls` shows it; remove it with the program that made it, if that does not need it any more");
    UnfinishedPull, "unfinished-pull", Report, ByHand("containerd removes it when it expires");
    ContainerDir, "container-dir", Report, ByHand("containerd removes it when it starts");
    NeverCollected, "never-collected", Report, ByHand("remove it by hand, as the evidence says");
    OversizedDatabase, "oversized-database", Report, ByHand("bbolt compact while containerd is stopped");
    ForeignNamespace, "foreign-namespace", Report, ByHand("remove them with the program that made them, if nothing needs them");
    // Leaks of either.
    BrokenImage, "broken-image", Repair, ByHand("if a registry has it: remove the containers that use it, then the image, and pull it again");
    ForgottenContainer, "forgotten-container", Report, ByHand("remove it as the evidence or `layersweep explain ID` says, if nothing needs it");
    OrphanImageVolume, "orphan-image-volume", Report, ByHand(BY_EVIDENCE);
    Inconsistent, "inconsistent", Report, ByHand(BY_EVIDENCE);
}

impl LeakClass {
    #[must_use]
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|class| class.as_str() == name)
    }

    /// Returns true if findings of this class count as leaks: a namespace of another program is not one.
    #[must_use]
    pub fn is_counted(self) -> bool {
        self != Self::ForeignNamespace
    }

    /// Returns the name in documents and flags.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.facts().name
    }

    /// Returns the verdict on a leak of this class, unless its evidence requires another one.
    #[must_use]
    pub fn verdict(self) -> Verdict {
        self.facts().verdict
    }

    /// Returns the recipe that removes or repairs it, if layersweep has one.
    #[must_use]
    pub fn recipe(self) -> Option<Recipe> {
        match self.facts().fix {
            Fix::Recipe(recipe) => Some(recipe),
            Fix::ByItself | Fix::ByHand(_) => None,
        }
    }

    /// Returns whether containerd deletes it at the next removal of an image.
    #[must_use]
    pub fn is_collected_by_containerd(self) -> bool {
        matches!(self.facts().fix, Fix::ByItself)
    }

    /// Returns the clause that describes what to do by hand; empty if layersweep has a recipe.
    #[must_use]
    pub fn by_hand(self) -> &'static str {
        match self.facts().fix {
            Fix::Recipe(_) => "",
            Fix::ByItself => "containerd removes it at its next garbage collection",
            Fix::ByHand(clause) => clause,
        }
    }
}

/// Returns whether something is at least `wanted` old. An unknown age is old enough only if `wanted` is zero.
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
    fn table_matches_the_document() {
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
    fn only_reclaimed_and_repaired_classes_have_recipes() {
        for class in LeakClass::ALL {
            let edited = matches!(class.verdict(), Verdict::Reclaim | Verdict::Repair);
            assert!(class.recipe().is_none() || edited, "{class}");
            assert_eq!(class.recipe().is_none(), !class.by_hand().is_empty(), "{class}");
            assert_eq!(LeakClass::find(class.as_str()), Some(*class));
        }
    }
}
