//! Finds rows in `usage --format json`.

use serde_json::Value;

use super::program::{list, number};

/// What goes if every image goes that nothing uses: that row's `reclaimable_bytes`, over
/// all stores.
pub fn unused_reclaimable(usage: &Value) -> u64 {
    rows(usage, "images_unused").map(|row| number(row, "/reclaimable_bytes")).sum()
}

/// All rows of that kind, of all stores.
pub fn rows<'a>(usage: &'a Value, name: &'a str) -> impl Iterator<Item = &'a Value> {
    list(usage, "/stores")
        .iter()
        .flat_map(|store| list(store, "/rows"))
        .filter(move |row| row["kind"] == name)
}
