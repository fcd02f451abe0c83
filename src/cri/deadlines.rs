//! Limits of a call: its deadlines, and the size of its answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Limits and cancellation of the calls of a [`Client`](super::Client).
#[derive(Clone, Debug)]
pub struct Options {
    /// Time during which connecting is retried while the socket exists but is not served, as during a restart
    /// of the runtime. A socket that does not exist is not retried.
    pub connecting: Duration,
    /// Deadline of short calls: version, status, one container.
    pub asking: Duration,
    /// Deadline of a listing. The kubelet waits two minutes (`runtimeRequestTimeout`).
    pub listing: Duration,
    /// Deadline of a removal. containerd unlinks every file before it answers, and an image may have millions
    /// of files.
    pub removing: Duration,
    /// Maximum size of an answer in bytes. containerd and the kubelet limit answers to 16 MiB, CRI-O to 80 MiB
    /// (`grpc_max_send_msg_size`). The default of tonic is 4 MiB.
    pub max_answer_bytes: usize,
    /// Set from outside (by a signal handler) to prevent further calls.
    pub cancel: Option<Arc<AtomicBool>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connecting: Duration::from_secs(3),
            asking: Duration::from_secs(30),
            listing: Duration::from_secs(120),
            removing: Duration::from_secs(600),
            max_answer_bytes: 80 << 20,
            cancel: None,
        }
    }
}

impl Options {
    /// Shortens the deadlines, for finding the sockets that have a runtime behind them.
    #[must_use]
    pub fn probing(&self) -> Self {
        let short = Duration::from_secs(5);
        let listing = self.listing.min(4 * short);
        Self { connecting: Duration::ZERO, asking: self.asking.min(short), listing, ..self.clone() }
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed))
    }
}
