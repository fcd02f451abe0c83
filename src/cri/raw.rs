//! Talks to a socket without gRPC.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::endpoint::Endpoint;

/// First bytes that a client sends: the preface of HTTP/2 and an empty settings frame (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// Length of a frame header; its fourth byte is the frame type (RFC 9113, section 4.1).
const HEADER_BYTES: usize = 9;
/// Frame type of a settings frame, which must be the first frame of a server.
const SETTINGS: u8 = 4;
/// Timeout for a server's first frame. A server that sends it unprompted does so at once.
const PATIENCE: Duration = Duration::from_millis(500);

/// Sends `request` and returns the answer: at least `enough` bytes, or all bytes up to the end of the stream, an error
/// or the deadline.
pub(super) fn exchange(endpoint: &Endpoint, request: &[u8], enough: usize, deadline: Duration) -> Vec<u8> {
    let end = Instant::now() + deadline;
    let mut answer = Vec::new();
    let Ok(mut stream) = UnixStream::connect(endpoint.path()) else { return answer };
    // Data that arrived before the other side closed the connection can still be read.
    let _ = stream.set_write_timeout(Some(deadline)).and_then(|()| stream.write_all(request));
    let mut piece = [0; 4096];
    while answer.len() < enough {
        let remaining = end.saturating_duration_since(Instant::now());
        // `set_read_timeout` returns an error if no time remains.
        match stream.set_read_timeout(Some(remaining)).and_then(|()| stream.read(&mut piece)) {
            Ok(0) | Err(_) => break,
            Ok(length) => answer.extend_from_slice(&piece[..length]),
        }
    }
    answer
}

/// Returns the beginning of an answer that is not HTTP/2, as text; `None` if it is HTTP/2 or there is no answer.
///
/// A gRPC server starts with an HTTP/2 settings frame. For any other server, the error that tonic returns depends on
/// which side closes the connection first, so the bytes decide here.
pub(super) fn foreign(endpoint: &Endpoint) -> Option<String> {
    let mut answer = exchange(endpoint, PREFACE, HEADER_BYTES, PATIENCE);
    answer.truncate(HEADER_BYTES);
    let is_foreign = answer.get(3).is_some_and(|frame| *frame != SETTINGS);
    is_foreign.then(|| String::from_utf8_lossy(&answer).into_owned())
}
