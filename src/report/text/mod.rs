//! Text for people: tables and trees, built from the same documents as the JSON.

mod chart;
mod config;
mod diff;
mod doctor;
mod drawing;
mod explain;
mod fits;
mod fleet;
mod format;
mod gc;
mod growth;
mod history;
mod images;
mod layers;
mod pins;
mod replay;
mod report;
mod repull;
mod scan;
mod screen;
mod stopped;
mod story;
mod sweep;
mod table;
mod usage;
mod waste;

pub use config::{config_check, config_show};
pub use diff::diff;
pub use doctor::{doctor, suggest as doctor_suggest};
pub use explain::explain;
pub use fits::fits;
pub use fleet::{
    Section as FleetSection, fleet, omitted as fleet_omitted, sections as fleet_sections,
    sentences as fleet_sentences, title as fleet_title,
};
pub use format::{LABELS, acts_on_terminal, age, bytes, safe, short_id, wrap_lines};
pub use gc::gc;
pub use growth::growth;
pub use history::{history, history_scans, history_usage};
pub use images::images;
pub use layers::{Names, layers, tree};
pub use pins::{pins, pins_changed};
pub use replay::{notes as replay_notes, replay, rows as replay_rows, title as replay_title};
pub use report::report;
pub use repull::{notes as repull_notes, references as repull_references};
pub use scan::{leaks, scan};
pub use screen::Screen;
pub(crate) use screen::shorten;
pub use sweep::sweep;
pub(crate) use table::CELL;
pub use usage::usage;
pub use waste::waste;
