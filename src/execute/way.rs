//! Ways of deletion.

/// Way in which images of a store are deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// Through the runtime.
    Cri,
    /// In the store itself.
    Direct,
    /// Not at all, for this reason.
    Closed(String),
    /// Not at all, for this reason: the runtime that owns it should answer, and does not.
    Silent(String),
}

impl Way {
    /// Returns the reason if no image of the store is deleted.
    #[must_use]
    pub fn reason_against(&self) -> Option<&str> {
        match self {
            Self::Closed(why) | Self::Silent(why) => Some(why),
            Self::Cri | Self::Direct => None,
        }
    }
}
