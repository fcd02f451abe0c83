//! The only writer of a graphroot: locks, records, removal.

pub mod removal;
pub mod table;
