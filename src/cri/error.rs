//! Errors of a runtime, classified by the caller's reaction to them.

use std::time::Duration;

use tonic::{Code, Status};

use super::endpoint::Endpoint;
use crate::model::deletion::plan::Failure;
use crate::model::text::display::with_causes;

/// A failed call: the socket, the call and the reason. Its text is one line.
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
        Self { message: error.to_string(), no_space: error.is_no_space(), is_of_runtime: true }
    }
}

impl CriError {
    /// Checks whether the runtime could not write. Such an error concerns the disk, not the object. Runtimes have
    /// no gRPC code for it (containerd sends `Unknown` with the kernel's message inside), so the message decides.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        let message = self.problem.to_string();
        ["no space left on device", "disk quota exceeded"].iter().any(|words| message.contains(words))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CriProblem {
    #[error("no runtime is running: {0}")]
    NotRunning(String),
    /// The socket exists, but no process listens on it.
    #[error("nothing listens on the socket: the runtime is stopped or starting")]
    NotListening,
    /// The runtime already serves the socket, but is still reading its state.
    #[error("the runtime is starting: {0}")]
    Starting(String),
    #[error("permission denied: runtime sockets are accessible to root only")]
    Denied,
    /// No answer before the deadline. The requested action may still happen.
    #[error("no answer after {} s", .0.as_secs_f32())]
    Deadline(Duration),
    /// The runtime exited, or closed the connection, before it answered. The requested action may have happened.
    #[error("the runtime closed the connection before it answered: {0}")]
    HungUp(String),
    #[error("the runtime does not support this call: {0}")]
    Unimplemented(String),
    /// The socket serves gRPC without CRI.
    #[error("this socket serves gRPC but not CRI v1 ({0}); is the CRI plugin switched off?")]
    NoCri(String),
    /// A runtime older than CRI v1.
    #[error("{0} speaks only CRI v1alpha2, and v1 is needed (containerd 1.6, CRI-O 1.23 or newer)")]
    OldApi(String),
    /// The answer is not gRPC.
    #[error("the service on the socket does not speak gRPC: {0}")]
    NotGrpc(String),
    /// The runtime refuses because the object is in use.
    #[error("in use: {0}")]
    InUse(String),
    #[error("not found: {0}")]
    NotFound(String),
    /// The answer exceeds layersweep's or the runtime's limit.
    #[error("the answer is too long: {0}")]
    TooLarge(String),
    /// The answer contradicts itself and is discarded.
    #[error("the answer is inconsistent: {0}")]
    Contradiction(String),
    /// The caller passed an argument that must not be sent to a runtime.
    #[error("not sent to the runtime: {0}")]
    BadRequest(String),
    /// A signal arrived: the call was not made, or the answer to a query was not awaited.
    #[error("ended by a signal")]
    Cancelled,
    /// A signal ended the wait for the answer to an action. The action may still happen.
    #[error("ended by a signal before it answered")]
    Left,
    #[error("{code:?}: {message}")]
    Other {
        /// The gRPC code, for example `Unknown`.
        code: Code,
        message: String,
    },
}

/// Message with which containerd answers every call while it starts. It has no code of its own. Seen with 1.6.20;
/// a store of 16,000 names kept containerd in this state for more than a minute.
const STARTING: &str = "server is not initialized yet";

/// Words with which runtimes refuse to remove an object that is in use. They have no gRPC code for that: CRI-O sends
/// `Unknown` with the words of containers/storage, or its own words for image volumes; cri-dockerd sends the words of
/// Docker.
const IN_USE: [&str; 5] = [
    "image is in use",
    "image used by",
    "is in use by",
    "is being used by",
    "mounted as volume to container",
];

impl CriProblem {
    /// Classifies a runtime's answer. Only with `removal` do words that say "in use" mean the object of the call.
    pub(super) fn of(status: &Status, removal: bool) -> Self {
        let message = one_line(status.message());
        let lower = message.to_lowercase();
        match status.code() {
            Code::Unimplemented => Self::Unimplemented(message),
            Code::NotFound => Self::NotFound(message),
            // The first is tonic's limit; the runtime's limit arrives as ResourceExhausted.
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

    /// The runtime gave up waiting for one of its own steps, which may still continue.
    #[must_use]
    pub fn is_given_up(&self) -> bool {
        let Self::Other { code, message } = self else { return false };
        // containerd and CRI-O have internal deadlines. Some of them can be recognised only by the message.
        matches!(code, Code::DeadlineExceeded | Code::Unavailable | Code::Cancelled)
            || message.contains("context deadline exceeded")
    }

    /// The object of a removal may be deleted in spite of this error, now or soon.
    #[must_use]
    pub fn leaves_doubt(&self) -> bool {
        matches!(self, Self::Deadline(_) | Self::HungUp(_) | Self::Left | Self::Other { .. })
    }
}

/// Returns the problem of the connection, if the status is about the connection: a status that the runtime sent has
/// no source.
fn transport(status: &Status) -> Option<CriProblem> {
    Some(CriProblem::hung_up(std::error::Error::source(status)?))
}

/// Returns an untrusted message on one line, cut to a maximum length.
pub(super) fn one_line(text: &str) -> String {
    const MAX_BYTES: usize = 600;
    let words: Vec<_> = text.split(|c: char| c.is_control() || c.is_whitespace()).collect();
    let mut line = words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    if line.len() > MAX_BYTES {
        let end = (0..=MAX_BYTES).rev().find(|end| line.is_char_boundary(*end)).unwrap_or(0);
        line.truncate(end);
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_runtimes_are_classified() {
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
            let problem = CriProblem::of(&Status::new(code, message), removal);
            assert_eq!(problem, expected, "{message}");
        }
    }

    #[test]
    fn messages_stay_on_one_line() {
        assert_eq!(one_line(" a\n\tb\u{7}\r\nc "), "a b c");
        let long = one_line(&"ä".repeat(1000));
        assert!(long.ends_with('…') && long.len() < 610, "{}", long.len());
    }
}
