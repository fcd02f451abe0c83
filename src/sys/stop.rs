//! Whether a signal has asked this process to stop.
//!
//! Signals are the process's, so this is, too: every wait looks here, however deep it is, and
//! ends when it is asked to.

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
