//! How the other side of a socket begins to speak: who does not begin with HTTP/2's settings
//! frame is no gRPC server. Which error the layers above make of that depends on who hangs up
//! first, so we look ourselves.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::endpoint::Endpoint;

/// What a client says first: the preface of HTTP/2 and an empty settings frame (RFC 9113,
/// section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// Length of a frame's header; its type is the fourth byte (section 4.1).
const HEADER_BYTES: usize = 9;
/// The type of a settings frame, which has to be a server's first.
const SETTINGS: u8 = 4;
/// Whoever speaks by himself does so at once.
const PATIENCE: Duration = Duration::from_millis(500);

/// How an answer that is not HTTP/2 begins, as text; `None` if it is, or if nothing is said.
pub(super) fn foreign(endpoint: &Endpoint) -> Option<String> {
    let mut stream = UnixStream::connect(endpoint.path()).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.set_write_timeout(Some(PATIENCE)).ok()?;
    // Somebody who has spoken and hung up already may still be read.
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
