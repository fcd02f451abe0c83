//! Origin of an image: a registry, a build, or an archive. Pure.

use jiff::Timestamp;
use serde::Serialize;

use crate::model::text::names::names;

names! {
    #[derive(Default)]
    OriginKind {
        /// A runtime or a tool downloaded it from a registry.
        Pulled = "pulled",
        Built = "built",
        Loaded = "loaded",
        /// It was there before the kubelet, or in an archive that a Kubernetes distribution imports by itself.
        Preloaded = "preloaded",
        /// The disk has no evidence for any of the others.
        #[default]
        Unknown = "unknown",
    }
}

/// Way in which an image came to this node, with the evidence on the disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "ImageOriginDoc"))]
pub struct Origin {
    /// `pulled`, `built`, `loaded`, `preloaded` or `unknown`.
    pub kind: OriginKind,
    /// Registry and repository that provided it, for example `quay.io/team/app`; null if unknown or not pulled.
    pub registry: Option<String>,
    /// Time at which it was last known to come from there.
    #[serde(rename = "at")]
    pub time: Option<Timestamp>,
    /// Evidence on the disk, as a clause.
    pub evidence: String,
    /// The origin is unknown because evidence is missing or cannot be read: the image may be one that was never pulled.
    #[serde(skip)]
    pub is_doubtful: bool,
}

impl Origin {
    pub fn new(kind: OriginKind, evidence: impl Into<String>) -> Self {
        Self { kind, registry: None, time: None, evidence: evidence.into(), is_doubtful: false }
    }

    /// Creates the origin of an image without evidence.
    pub fn unknown(why: impl Into<String>) -> Self {
        Self::new(OriginKind::Unknown, why)
    }

    /// Creates the origin of an image that may never have been pulled.
    pub fn doubtful(why: impl Into<String>) -> Self {
        Self { is_doubtful: true, ..Self::unknown(why) }
    }

    /// Returns whether the disk shows that the image was never pulled, so that no registry may have it.
    #[must_use]
    pub fn was_never_pulled(&self) -> bool {
        matches!(self.kind, OriginKind::Built | OriginKind::Loaded | OriginKind::Preloaded)
    }

    /// Returns true if the image was never pulled, or may not have been.
    #[must_use]
    pub fn may_lack_a_registry(&self) -> bool {
        self.was_never_pulled() || self.is_doubtful
    }
}

impl Default for Origin {
    fn default() -> Self {
        Self::unknown("its origin was not read")
    }
}
