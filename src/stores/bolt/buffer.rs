//! Memory for copies. In a run that deletes images each proof copies the databases again, and most of what
//! that takes is the system's handing out and taking back of the pages.

use std::sync::{Mutex, PoisonError};

/// A larger copy is given back to the system.
const MOST_BYTES: usize = 16 << 20;

static LAST: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// The memory of an earlier copy, with what was in it, or none.
pub fn take() -> Vec<u8> {
    std::mem::take(&mut *LAST.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Leaves memory for the next copy; the larger of two.
pub fn leave(bytes: Vec<u8>) {
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if (last.capacity()..=MOST_BYTES).contains(&bytes.capacity()) {
        *last = bytes;
    }
}
