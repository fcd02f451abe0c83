//! Lossless text form of paths. A path can contain any byte except NUL, but a TEXT column and a JSON document only
//! contain UTF-8.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serializer};

/// Returns the path as text, with `%` and bytes that are not UTF-8 written as `%25` and `%FF`.
#[must_use]
pub fn to_text(path: &Path) -> String {
    let mut text = String::with_capacity(path.as_os_str().len());
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        text.push_str(&chunk.valid().replace('%', "%25"));
        for byte in chunk.invalid() {
            let _ = write!(text, "%{byte:02X}"); // a String takes everything
        }
    }
    text
}

/// Parses the text of [`to_text`]. A `%` that [`to_text`] never writes is taken literally.
#[must_use]
pub fn from_text(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let code = after.get(..2).and_then(|code| std::str::from_utf8(code).ok());
        let byte = code.and_then(|code| u8::from_str_radix(code, 16).ok()).filter(|_| first == b'%');
        bytes.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

pub(crate) fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&to_text(path))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
    Ok(from_text(&String::deserialize(from)?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ordinary_paths_stay_readable() {
        for path in ["/var/lib/containers/storage", "/srv/größe und wahl", ""] {
            assert_eq!(to_text(Path::new(path)), path);
        }
        let odd = PathBuf::from(OsString::from_vec(b"/a%41/\xff\xfe\xe2\x82".to_vec()));
        assert_eq!(to_text(&odd), "/a%2541/%FF%FE%E2%82");
        assert_eq!(from_text("/100%/%zz/%4"), Path::new("/100%/%zz/%4"));
    }

    proptest! {
        #[test]
        fn every_path_survives_the_round_trip(bytes in proptest::collection::vec(1..=u8::MAX, 0..40)) {
            let path = PathBuf::from(OsString::from_vec(bytes));
            prop_assert_eq!(from_text(&to_text(&path)), path);
        }
    }
}
