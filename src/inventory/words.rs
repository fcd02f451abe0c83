//! The words for kinds, owners and states: the same in documents, records and messages. Pure.

use super::{ContainerState, Owner, StoreKind, Verdict};

impl StoreKind {
    /// Its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::ContainersStorage => "containers-storage",
            Self::Containerd => "containerd",
        }
    }

    /// The kind of that word.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Self> {
        [Self::ContainersStorage, Self::Containerd].into_iter().find(|kind| kind.word() == word)
    }
}

impl Owner {
    /// Its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::CriO => "cri-o",
            Self::Podman => "podman",
            Self::Buildah => "buildah",
            Self::Containerd => "containerd",
            Self::Unknown => "unknown",
        }
    }
}

impl ContainerState {
    /// Its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Running => "running",
            Self::Exited => "exited",
            Self::Unknown => "unknown",
        }
    }
}

impl Verdict {
    /// Its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Reclaim => "reclaim",
            Self::Repair => "repair",
            Self::Keep => "keep",
            Self::Report => "report",
        }
    }
}
