//! Whether a signal has asked this process to stop.
//!
//! The flag is global because signals are per process: every wait checks it and ends when it
//! is set.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// What a signal sets.
pub fn flag() -> &'static Arc<AtomicBool> {
    static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    FLAG.get_or_init(Arc::default)
}

/// A signal has come.
#[must_use]
pub fn is_asked() -> bool {
    flag().load(Ordering::Relaxed)
}
