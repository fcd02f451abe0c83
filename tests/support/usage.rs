//! Where the rows of `usage --format json` are.

use serde_json::Value;

use super::program::{list, number};

/// What goes if every image goes that nothing uses: that row's `reclaimable_bytes`, over
/// all stores.
pub fn unused_reclaimable(usage: &Value) -> u64 {
    rows(usage, "images-unused").map(|row| number(row, "/reclaimable_bytes")).sum()
}

/// All rows of that name, of all stores.
pub fn rows<'a>(usage: &'a Value, name: &'a str) -> impl Iterator<Item = &'a Value> {
    list(usage, "/rows").iter().filter(move |row| row["row"] == name)
}
