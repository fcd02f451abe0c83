//! Waiting for processes that are closed to us for a moment only.

use std::time::Duration;

/// How long is waited between two tries.
const PAUSE: Duration = Duration::from_millis(10);

/// For how many more tries there is time. One for a whole pass over the processes: where we have
/// no right to look at any of them, waiting for each would take minutes.
#[derive(Debug)]
pub(super) struct Patience(u32);

impl Patience {
    /// For a third of a second in all.
    pub(super) fn new() -> Self {
        Self(32)
    }

    /// Waits before another try; `false` where there is no time left.
    pub(super) fn wait(&mut self) -> bool {
        let Some(left) = self.0.checked_sub(1) else { return false };
        self.0 = left;
        std::thread::sleep(PAUSE);
        true
    }
}
