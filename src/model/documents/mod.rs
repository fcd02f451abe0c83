//! Documents that the program wrote earlier: scans as they are kept, compared and merged.

pub mod comparison;
pub mod fleet;
pub mod read_scan;
pub mod reader;
pub mod saved_inventory;
pub mod scan_summary;
pub mod trace;
pub mod urgency;
