//! Signals that request this process to stop.
//!
//! The flag is global because signals concern the whole process: every wait checks it and ends when it is set.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

pub fn flag() -> &'static Arc<AtomicBool> {
    static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    FLAG.get_or_init(Arc::default)
}

#[must_use]
pub fn is_requested() -> bool {
    flag().load(Ordering::Relaxed)
}
