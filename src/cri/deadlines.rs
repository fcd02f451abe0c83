//! How long a call may take, and how long its answer may be.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How a [`Client`](super::Client) deals with its runtime.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long connecting is tried again while the socket exists but is not served: a
    /// runtime that is being restarted. A socket that does not exist is given up at once.
    pub connecting: Duration,
    /// Deadline of the small questions: version, status, one container.
    pub asking: Duration,
    /// Deadline of a listing. The kubelet gives two minutes (`runtimeRequestTimeout`).
    pub listing: Duration,
    /// Deadline of a removal. containerd unlinks every file before it answers, and an image may
    /// have millions of them.
    pub removing: Duration,
    /// The longest answer that is taken, in bytes. containerd and the kubelet stop at 16 MiB,
    /// CRI-O sends up to 80 MiB (`grpc_max_send_msg_size`); tonic alone would take 4 MiB.
    pub max_answer_bytes: usize,
    /// Set from outside (a signal handler) when no further call is to be made.
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
    /// Short deadlines, to find out which of several sockets has a runtime behind it.
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
