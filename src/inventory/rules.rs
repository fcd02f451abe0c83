//! What keeps an image on the node, rule by rule. Pure.
//!
//! These rules hold for every way of deleting; what a garbage collection adds (ages,
//! patterns) is its policy's business.

use super::refs::{Refs, Root};
use super::{ImageIx, Inventory};

/// What one rule says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ruling {
    /// The rule's name.
    pub rule: &'static str,
    /// The rule keeps the image.
    pub stays: bool,
    /// Why, in words.
    pub detail: String,
}

/// All rules in order; the first that says stay decides.
#[must_use]
pub fn rulings(inventory: &Inventory, refs: &Refs, at: ImageIx) -> Vec<Ruling> {
    let image = &inventory.images[at.get()];
    let users: Vec<_> = inventory
        .containers
        .iter()
        .filter(|container| container.image == Some(at))
        .map(|container| container.name.as_str())
        .collect();
    let in_use = match users.as_slice() {
        [] => (false, "no container was made from it".to_owned()),
        users => (true, format!("{} made from it: {}", count(users.len(), "container"), list(users))),
    };
    let pinned = match image.pinned_by.as_slice() {
        [] => (false, "no configuration keeps it".to_owned()),
        pins => (true, format!("kept by {}", pins.join(", "))),
    };
    let store = &inventory.stores[image.store.get()];
    let read_only = if store.read_only {
        (true, "it lies in an additional image store, which is never deleted from".to_owned())
    } else {
        (false, "it lies in no additional image store".to_owned())
    };
    let freed = refs.weight(inventory, Root::Image(at)).exclusive.frees_bytes;
    let worth = match freed {
        0 => "deleting it alone frees nothing: all that it reaches is shared".to_owned(),
        bytes => format!("deleting it alone frees {bytes} bytes"),
    };
    [("in-use", in_use), ("pinned", pinned), ("read-only-store", read_only), ("frees", (false, worth))]
        .map(|(rule, (stays, detail))| Ruling { rule, stays, detail })
        .into()
}

fn count(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

/// The first few names.
fn list(names: &[&str]) -> String {
    const MOST: usize = 5;
    let shown = names[..names.len().min(MOST)].join(", ");
    match names.len().checked_sub(MOST) {
        None | Some(0) => shown,
        Some(more) => format!("{shown} and {more} more"),
    }
}
