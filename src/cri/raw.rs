//! Asks a socket without gRPC.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::endpoint::Endpoint;

/// What a client sends first: the preface of HTTP/2 and an empty settings frame (RFC 9113,
/// section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// Length of a frame's header; its type is the fourth byte (section 4.1).
const HEADER_BYTES: usize = 9;
/// The type of a settings frame, which has to be a server's first.
const SETTINGS: u8 = 4;
/// A server that sends unprompted does so at once.
const PATIENCE: Duration = Duration::from_millis(500);

/// What is answered to `question`: at least `most` bytes, or all up to the end, an error or the deadline.
pub(super) fn ask(endpoint: &Endpoint, question: &[u8], most: usize, deadline: Duration) -> Vec<u8> {
    let end = Instant::now() + deadline;
    let mut said = Vec::new();
    let Ok(mut stream) = UnixStream::connect(endpoint.path()) else { return said };
    // Data of a closed connection can still be read.
    let _ = stream.set_write_timeout(Some(deadline)).and_then(|()| stream.write_all(question));
    let mut piece = [0; 4096];
    while said.len() < most {
        let left = end.saturating_duration_since(Instant::now());
        // None is left: that is an error.
        match stream.set_read_timeout(Some(left)).and_then(|()| stream.read(&mut piece)) {
            Ok(0) | Err(_) => break,
            Ok(length) => said.extend_from_slice(&piece[..length]),
        }
    }
    said
}

/// How an answer that is not HTTP/2 begins, as text; `None` if it is, or if nothing is said: a server that
/// does not start with an HTTP/2 settings frame is not a gRPC server. The error that the layers above return
/// for that depends on which side closes first.
pub(super) fn foreign(endpoint: &Endpoint) -> Option<String> {
    let mut said = ask(endpoint, PREFACE, HEADER_BYTES, PATIENCE);
    said.truncate(HEADER_BYTES);
    let is_foreign = said.get(3).is_some_and(|frame| *frame != SETTINGS);
    is_foreign.then(|| String::from_utf8_lossy(&said).into_owned())
}
