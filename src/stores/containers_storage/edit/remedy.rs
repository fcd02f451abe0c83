//! Which recipe reclaims a leak of which class.

use jiff::SignedDuration;

use super::{Kind, Unused};
use crate::stores::containers_storage::leaks::GRACE;
use crate::stores::containers_storage::units::Debris;

/// A recipe for a leak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// [`super::Editor::reclaim`], with the leak's path.
    Leftover(Kind),
    /// [`super::Editor::delete_unused_layer`], with the leak's id.
    Layer(Unused),
    /// [`super::Editor::remove_temporary`], with the leak's path.
    Temporary,
    /// [`super::Editor::repair_link`], with the layer's id.
    RepairLink,
}

impl Remedy {
    /// Works without writing a record file anew, so also where there is no room left.
    #[must_use]
    pub fn needs_no_room(self) -> bool {
        matches!(self, Self::Leftover(_) | Self::Temporary)
    }

    /// The recipe for a class of `docs/leaks.md`; `None` where there is none. `min_age` is what a
    /// layer without a user must have; it is never less than 24 hours, which a pull may take.
    #[must_use]
    pub fn of_class(class: &str, min_age: SignedDuration) -> Option<Self> {
        let debris = |debris| Some(Self::Leftover(Kind::Debris(debris)));
        match class {
            "orphan-dir" | "orphan-dir-partial" => debris(Debris::LayerDirectory),
            "orphan-image-dir" => debris(Debris::ImageDirectory),
            "orphan-ctr-dir" => debris(Debris::ContainerDirectory),
            "tarsplit-orphan" => debris(Debris::TarSplit),
            "layerdata-orphan" => debris(Debris::LayerData),
            "staging-dead" => debris(Debris::Staging),
            "tempdirs-dead" => debris(Debris::TempDirectory),
            "tmp-json" => debris(Debris::TempRecord),
            "compat-dirs" => debris(Debris::FeatureTest),
            "dangling-l" | "dup-l" => Some(Self::Leftover(Kind::Link)),
            "incomplete" | "incomplete-no-dir" => Some(Self::Layer(Unused::Incomplete)),
            "unref-old" | "volatile-ghost" => Some(Self::Layer(Unused::Unreferenced(min_age.max(GRACE)))),
            "graphroot-tmp" | "vartmp" => Some(Self::Temporary),
            "artifact-blob-orphan" | "artifact-put-blob" => Some(Self::Leftover(Kind::Artifact)),
            "missing-l" | "empty-linkfile" => Some(Self::RepairLink),
            _ => None,
        }
    }
}
