//! Checks the first bytes from a socket: a server that does not start with an HTTP/2 settings frame is
//! not a gRPC server. The error that the layers above return for that depends on which side closes
//! first, so we check it here.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

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

/// How an answer that is not HTTP/2 begins, as text; `None` if it is, or if nothing is said.
pub(super) fn foreign(endpoint: &Endpoint) -> Option<String> {
    let mut stream = UnixStream::connect(endpoint.path()).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.set_write_timeout(Some(PATIENCE)).ok()?;
    // Data of a closed connection can still be read.
    let _ = stream.write_all(PREFACE);
    let mut said = Vec::new();
    let mut piece = [0; HEADER_BYTES];
    while said.len() < HEADER_BYTES {
        match stream.read(&mut piece) {
            Ok(0) | Err(_) => break,
            Ok(length) => said.extend_from_slice(&piece[..length]),
        }
    }
    said.truncate(HEADER_BYTES);
    let is_foreign = said.get(3).is_some_and(|frame| *frame != SETTINGS);
    is_foreign.then(|| String::from_utf8_lossy(&said).into_owned())
}
