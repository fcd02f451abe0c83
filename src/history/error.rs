//! Why the records cannot be used.

use std::path::PathBuf;

use super::health::Degraded;

/// Why the records cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A newer layersweep made it. Nothing was written.
    #[error("{} has schema version {found}; this layersweep supports only up to {known}", path.display())]
    Newer {
        path: PathBuf,
        found: u32,
        /// The newest that this binary knows.
        known: u32,
    },
    /// Something is wrong with the file or its filesystem.
    #[error("{0}")]
    Degraded(Box<Degraded>),
    /// SQLite says no to what was asked.
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
}

impl From<Degraded> for Error {
    fn from(degraded: Degraded) -> Self {
        Self::Degraded(Box::new(degraded))
    }
}
