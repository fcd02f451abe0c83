//! Reads the tar-split of a layer: the file from which the library makes the layer's tar again.
//!
//! It is a gzip of JSON lines (`vbatts/tar-split`, `tar/storage/entry.go`). A line of type 2 has bytes of the tar as they
//! are: the padding of the file before, then the headers of the next file. A line of type 1 has the file's name, length
//! and CRC64. So the names, lengths and checksums of a layer can be read without reading a file, at some 30 bytes of the
//! disk for each file. Only the header tells a directory, hard link or symlink from an empty file.

use std::borrow::Cow;
use std::io::{self, BufRead, BufReader, Read};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::read::MultiGzDecoder;
use serde::Deserialize;
use tar::EntryType;

use crate::model::waste::layer_files::{Content, FileFacts, LayerFiles};
use crate::sys::allowance::{self, Allowance};

/// Maximum length of a line. The library writes padding in lines of 1.4 MiB.
const MOST_LINE: u64 = 4 << 20;

/// Maximum unpacked length: a layer of two million files has about 3 GiB.
const MOST_UNPACKED: u64 = 4 << 30;

/// `PATH_MAX`: the library cannot unpack a longer path.
const MOST_PATH: usize = 4096;

pub(in crate::stores) const MOST_NAMES: usize = 4 << 20;

/// Unpacked bytes for each unit of the allowance for other users' stores, which also pays for each name.
const TEXT_PER_WEIGHT: u64 = 16;

const TAR_BLOCK: u64 = 512;

#[derive(Deserialize)]
struct SplitLine<'a> {
    #[serde(rename = "type")]
    kind: u8,
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    /// Base64 of a name that is not UTF-8.
    name_raw: Option<&'a str>,
    #[serde(default)]
    size: u64,
    /// Base64 of the checksum, or of bytes of the tar.
    payload: Option<&'a str>,
}

/// Adds everything in a tar-split to `files`. `block`: the unit in which the layer's filesystem allocates.
///
/// # Errors
/// If it is not a tar-split, is truncated or exceeds a limit. The files up to there have been added.
pub(in crate::stores) fn read(
    packed: impl Read,
    block: u64,
    allowance: &Allowance,
    files: &mut LayerFiles,
) -> io::Result<()> {
    let mut text = BufReader::with_capacity(1 << 16, MultiGzDecoder::new(BufReader::new(packed)));
    let (mut line, mut headers, mut unpacked, mut padding) = (Vec::new(), String::new(), 0_u64, 0);
    loop {
        line.clear();
        let length = (&mut text).take(MOST_LINE).read_until(b'\n', &mut line)? as u64;
        if length == 0 {
            return Ok(());
        }
        unpacked += length;
        if length == MOST_LINE && line.last() != Some(&b'\n') || unpacked > MOST_UNPACKED {
            return Err(too_large());
        }
        allowance.charge(length.div_ceil(TEXT_PER_WEIGHT))?;
        let names = files.names();
        let SplitLine { kind, name, name_raw, size, payload } = serde_json::from_slice(&line)?;
        match kind {
            1 => {
                let raw = name_raw.map(|raw| STANDARD.decode(raw)).transpose().map_err(invalid)?;
                let path = raw.as_deref().unwrap_or(name.as_bytes());
                if path.len() > MOST_PATH {
                    return Err(too_large());
                }
                let checksum = payload.and_then(checksum);
                let bytes = size.checked_next_multiple_of(block).unwrap_or(size);
                let facts = FileFacts { apparent_bytes: size, bytes, checksum };
                if size > 0 {
                    files.add(path, Content::File(facts));
                } else {
                    add_without_content(files, path, &headers, padding, facts);
                }
                if files.names() > MOST_NAMES {
                    return Err(too_large());
                }
                allowance.charge((files.names() - names) as u64 * allowance::TEXT)?;
                headers.clear();
                padding = size.next_multiple_of(TAR_BLOCK) - size;
            }
            2 => {
                headers.clear();
                headers.push_str(payload.unwrap_or_default());
            }
            _ => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("has a line of the type {kind}"),
                ));
            }
        }
    }
}

fn checksum(text: &str) -> Option<u64> {
    Some(u64::from_be_bytes(STANDARD.decode(text).ok()?.try_into().ok()?))
}

/// Adds a path without content, of the kind that its header says. `headers`: base64 of the bytes before it in the tar, of
/// which the first are the padding of the file before.
fn add_without_content(files: &mut LayerFiles, path: &[u8], headers: &str, padding: u64, facts: FileFacts) {
    let bytes = STANDARD.decode(headers).unwrap_or_default();
    let padding = usize::try_from(padding).unwrap_or(usize::MAX);
    let mut archive = tar::Archive::new(bytes.get(padding..).unwrap_or_default());
    let entry = archive.entries().ok().and_then(|entries| {
        // The library ignores attributes of the whole archive.
        entries.map_while(Result::ok).find(|entry| !entry.header().entry_type().is_pax_global_extensions())
    });
    let kind = entry.as_ref().map(|entry| entry.header().entry_type());
    let target = entry.as_ref().and_then(|entry| entry.link_name_bytes());
    let content = match (kind, target) {
        (Some(EntryType::Link), Some(target)) if target.len() <= MOST_PATH => {
            return files.add_link(path, &target);
        }
        (Some(EntryType::Directory), _) => Content::Directory { is_opaque: false },
        // Tars without the type of directories.
        (None | Some(EntryType::Regular), _) if path.ends_with(b"/") => {
            Content::Directory { is_opaque: false }
        }
        (Some(EntryType::Regular | EntryType::Continuous), _) => Content::File(facts),
        _ => Content::Other,
    };
    files.add(path, content);
}

fn too_large() -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, "unpacks to more than layersweep reads of a layer")
}

fn invalid(error: base64::DecodeError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests;
