//! Finds rows in `usage --format json`.

use serde_json::Value;

use super::program::{list, number};

/// Returns the `reclaimable_bytes` of the rows of unused images, over all stores.
pub fn unused_reclaimable(usage: &Value) -> u64 {
    rows(usage, "images_unused").map(|row| number(row, "/reclaimable_bytes")).sum()
}

/// Returns all rows of a kind, of all stores.
pub fn rows<'a>(usage: &'a Value, name: &'a str) -> impl Iterator<Item = &'a Value> {
    list(usage, "/stores")
        .iter()
        .flat_map(|store| list(store, "/rows"))
        .filter(move |row| row["kind"] == name)
}
