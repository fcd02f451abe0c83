//! Errors of a runtime, classified by what the caller does about them.

use std::time::Duration;

use tonic::{Code, Status};

use super::endpoint::Endpoint;
use crate::model::display::with_causes;
use crate::model::plan::Failure;

/// A call that failed: where, which, and why. Its text is one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{endpoint}: {call}: {problem}")]
pub struct CriError {
    pub endpoint: Endpoint,
    /// The CRI call, for example `RemoveImage`.
    pub call: &'static str,
    pub problem: CriProblem,
}

impl From<&CriError> for Failure {
    fn from(error: &CriError) -> Self {
        Self { message: error.to_string(), no_space: error.is_no_space() }
    }
}

impl CriError {
    /// Whether the runtime could not write: that is about the disk, not the object. No runtime has a
    /// code for it (containerd: `Unknown`, around the kernel's own words).
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        let message = self.problem.to_string();
        ["no space left on device", "disk quota exceeded"].iter().any(|words| message.contains(words))
    }
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CriProblem {
    /// There is no such socket.
    #[error("no runtime is running: {0}")]
    NotRunning(String),
    /// The socket exists, but nothing listens.
    #[error("nothing listens on the socket: the runtime is stopped or starting")]
    NotListening,
    /// The runtime has the socket open already, but is still reading what it has.
    #[error("the runtime is starting: {0}")]
    Starting(String),
    /// No permission to use the socket.
    #[error("permission denied: runtime sockets are accessible to root only")]
    Denied,
    /// No answer in time. What was asked for may still happen.
    #[error("no answer after {} s", .0.as_secs_f32())]
    Deadline(Duration),
    /// The runtime ended, or hung up, before it answered. What was asked for may have happened.
    #[error("the runtime closed the connection before it answered: {0}")]
    HungUp(String),
    /// The runtime does not know the call.
    #[error("the runtime does not support this call: {0}")]
    Unimplemented(String),
    /// A gRPC server without CRI.
    #[error("this socket serves gRPC but not CRI v1 ({0}); is the CRI plugin switched off?")]
    NoCri(String),
    /// A runtime of before CRI v1.
    #[error("{0} speaks only CRI v1alpha2, and v1 is needed (containerd 1.6, CRI-O 1.23 or newer)")]
    OldApi(String),
    /// The answer is not gRPC.
    #[error("the service on the socket does not speak gRPC: {0}")]
    NotGrpc(String),
    /// The runtime refuses since the object is in use.
    #[error("in use: {0}")]
    InUse(String),
    /// The runtime does not know the object.
    #[error("not found: {0}")]
    NotFound(String),
    /// The answer is longer than we or the runtime allow.
    #[error("the answer is too long: {0}")]
    TooLarge(String),
    /// The answer contradicts itself and is discarded.
    #[error("the answer is inconsistent: {0}")]
    Contradiction(String),
    /// We were asked for something that must not be sent to a runtime.
    #[error("not sent to the runtime: {0}")]
    BadRequest(String),
    /// A signal has ended the work: the call was not made, or a question not awaited.
    #[error("ended by a signal")]
    Cancelled,
    /// A signal has ended the waiting for an answer: it may still happen.
    #[error("ended by a signal before it answered")]
    Left,
    /// Anything else that the runtime answers.
    #[error("{code:?}: {message}")]
    Other {
        /// gRPC's code, for example `Unknown`.
        code: Code,
        message: String,
    },
}

/// What containerd answers to everything while it starts, with no code of its own (seen with
/// 1.6.20; a store of 16,000 names kept it so for more than a minute).
const STARTING: &str = "server is not initialized yet";

/// Words with which runtimes refuse to remove what is in use. They send no code of its own
/// for that (CRI-O: `Unknown`, with the words of containers/storage, or its own for image volumes;
/// cri-dockerd: those of Docker).
const IN_USE: [&str; 5] = [
    "image is in use",
    "image used by",
    "is in use by",
    "is being used by",
    "mounted as volume to container",
];

impl CriProblem {
    /// Sorts what a runtime answered to a call. `removal`: the call was a removal, so words
    /// that say "in use" mean its object.
    pub(super) fn of(status: &Status, removal: bool) -> Self {
        let message = one_line(status.message());
        let lower = message.to_lowercase();
        match status.code() {
            Code::Unimplemented => Self::Unimplemented(message),
            Code::NotFound => Self::NotFound(message),
            // tonic's own limit; the runtime's comes as ResourceExhausted.
            Code::OutOfRange if lower.contains("message length too large") => Self::TooLarge(message),
            Code::ResourceExhausted if lower.contains("message larger than max") => Self::TooLarge(message),
            _ if lower.contains(STARTING) => Self::Starting(message),
            _ if removal && IN_USE.iter().any(|words| lower.contains(words)) => Self::InUse(message),
            code => match transport(status) {
                Some(problem) => problem,
                None if message.is_empty() => Self::Other { code, message: "(no message)".into() },
                None => Self::Other { code, message },
            },
        }
    }

    pub(super) fn hung_up(error: &dyn std::error::Error) -> Self {
        Self::HungUp(one_line(&with_causes(error)))
    }

    /// The runtime has stopped waiting for itself, and what it had begun may go on.
    #[must_use]
    pub fn is_given_up(&self) -> bool {
        let Self::Other { code, message } = self else { return false };
        // containerd and CRI-O have deadlines of their own; of some of them only the words tell.
        matches!(code, Code::DeadlineExceeded | Code::Unavailable | Code::Cancelled)
            || message.contains("context deadline exceeded")
    }

    /// Whether the object of a removal may nevertheless be gone, now or soon.
    #[must_use]
    pub fn leaves_doubt(&self) -> bool {
        matches!(self, Self::Deadline(_) | Self::HungUp(_) | Self::Left | Self::Other { .. })
    }
}

/// What happened to the connection, where that is what the status is about: one that came
/// from the runtime has no cause here.
fn transport(status: &Status) -> Option<CriProblem> {
    Some(CriProblem::hung_up(std::error::Error::source(status)?))
}

/// An untrusted message on one line, cut to a maximum length.
pub(super) fn one_line(text: &str) -> String {
    const LONGEST: usize = 600;
    let words: Vec<_> = text.split(|c: char| c.is_control() || c.is_whitespace()).collect();
    let mut line = words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    if line.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|at| line.is_char_boundary(*at)).unwrap_or(0);
        line.truncate(end);
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runtimes_answer() {
        let of = |code, message: &str, removal| CriProblem::of(&Status::new(code, message), removal);
        let text = String::from;
        for (code, message, removal, expected) in [
            (
                Code::Unknown,
                "delete image: image used by 9e0f: image is in use by a container",
                true,
                CriProblem::InUse(text("delete image: image used by 9e0f: image is in use by a container")),
            ),
            (
                Code::Unknown,
                "image \"a\" is mounted as volume to container with ID: 9e0f",
                true,
                CriProblem::InUse(text("image \"a\" is mounted as volume to container with ID: 9e0f")),
            ),
            (
                Code::Unknown,
                "conflict: unable to delete 1 (must be forced) - image is being used by stopped container 2",
                true,
                CriProblem::InUse(text(
                    "conflict: unable to delete 1 (must be forced) - image is being used by stopped container 2",
                )),
            ),
            (
                Code::Unknown,
                "port is in use by another",
                false,
                CriProblem::Other { code: Code::Unknown, message: text("port is in use by another") },
            ),
            (
                Code::Unknown,
                "server is not initialized yet",
                true,
                CriProblem::Starting(text("server is not initialized yet")),
            ),
            (Code::NotFound, "no such\n image", true, CriProblem::NotFound(text("no such image"))),
            (
                Code::Unimplemented,
                "unknown service runtime.v1.RuntimeService",
                false,
                CriProblem::Unimplemented(text("unknown service runtime.v1.RuntimeService")),
            ),
            (
                Code::ResourceExhausted,
                "grpc: trying to send message larger than max (2 vs. 1)",
                false,
                CriProblem::TooLarge(text("grpc: trying to send message larger than max (2 vs. 1)")),
            ),
            (
                Code::ResourceExhausted,
                "no space left",
                false,
                CriProblem::Other { code: Code::ResourceExhausted, message: text("no space left") },
            ),
            (
                Code::Internal,
                "",
                false,
                CriProblem::Other { code: Code::Internal, message: text("(no message)") },
            ),
        ] {
            assert_eq!(of(code, message, removal), expected, "{message}");
        }
    }

    #[test]
    fn messages_stay_on_one_line() {
        assert_eq!(one_line(" a\n\tb\u{7}\r\nc "), "a b c");
        let long = one_line(&"ä".repeat(1000));
        assert!(long.ends_with('…') && long.len() < 610, "{}", long.len());
    }
}
