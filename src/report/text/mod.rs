//! What a person reads: tables and trees, built from the same documents as the JSON.

mod explain;
mod format;
mod images;
mod layers;
mod scan;
mod table;
mod usage;

pub use explain::explain;
pub use format::{acts_on_terminal, age, bytes, safe, short_id};
pub use images::images;
pub use layers::{Names, layers, tree};
pub use scan::{leaks, scan};
pub use usage::usage;
