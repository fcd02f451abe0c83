//! State that outlives a scan: first detection and last use of images, deletions and the bytes that they freed, and
//! sizes of layers that do not change.
//!
//! The state is an SQLite database in layersweep's own state directory. Readers never wait, and writers take turns.
//! The database may be missing, locked, read-only, damaged or on a full disk; the program then works with what the
//! disk itself says.

pub mod ages;
pub mod back_offs;
pub mod checkup;
pub mod clock;
pub mod counters;
mod db;
pub mod figures;
mod files;
mod health;
pub mod journal;
pub mod kept_scans;
pub mod known;
mod lock;
pub mod observe;
mod open;
pub mod past;
pub mod pending;
pub mod pins;
mod quarantine;
pub mod repull;
pub mod retention;
mod run_record;
pub mod runs;
mod save;
pub mod scan_run;
pub mod scans;
mod schema;
pub mod sizes;
mod state_directory;
pub mod story;
pub mod usage;
mod uses;
mod values;

pub use db::{Access, Opened, PATIENCE, Records};
pub use files::DATABASE;
pub use health::{Degraded, Error};
pub use lock::{LockError, RunLock, StateLock, StateLockHolder};
pub use pending::{Queue, SaveWarning};
pub use save::{Saved, apply_waiting, save};
pub use state_directory::{Caller, SYSTEM, StateDirectory, state_directory};
