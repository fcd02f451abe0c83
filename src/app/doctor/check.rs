//! What `doctor` says of one thing that it looked at.

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// Looked at, nothing wrong.
    Ok,
    /// Notes, nothing to do.
    Note,
    /// Something does not work as it could, or will not at a bad time.
    Warning,
    /// Pods get evicted, or we cannot do our work.
    Error,
}

impl Status {
    /// As the documents have it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What kind of check; a word that stays the same.
    pub name: &'static str,
    /// How it is.
    pub status: Status,
    /// What was looked at: a file, a socket, a mount point; empty for the node as a whole.
    pub object: String,
    /// What was found.
    pub message: String,
    /// What to do about it; empty where there is nothing to do.
    pub remedy: String,
}

impl Check {
    /// A check with any outcome.
    pub fn new(
        name: &'static str,
        status: Status,
        object: impl Into<String>,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { name, status, object: object.into(), message: message.into(), remedy: remedy.into() }
    }

    /// Nothing wrong.
    pub fn ok(name: &'static str, object: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(name, Status::Ok, object, message, "")
    }

    /// Notes.
    pub fn note(name: &'static str, object: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(name, Status::Note, object, message, "")
    }
}
