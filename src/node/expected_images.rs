//! The declared set of images that are kept (`protect.references_file`): one reference a line, `#` begins a comment.

use std::io::{self, ErrorKind};
use std::path::Path;

use super::image_lists;
use super::{ImageNamers, Unreadable};
use crate::model::reference_set::ReferenceSet;
use crate::sys::sysroot::Sysroot;

const MAX_FILE_BYTES: u64 = 16 << 20;

/// Reads the file.
///
/// # Errors
/// If it cannot be read in full, has a line that is not a reference, or names no image, as a file that was written to a
/// full disk: then the images that must be kept are unknown. The error is a whole sentence.
pub fn read(root: &Sysroot, file: &Path) -> Result<ReferenceSet, Unreadable> {
    let name = file.display();
    let unreadable = |kind, sentence: String| Unreadable {
        path: file.to_path_buf(),
        names: ImageNamers::ReferencesFile,
        source: io::Error::new(kind, sentence),
    };
    let invalid = |place: String| {
        unreadable(ErrorKind::InvalidData, format!("{name}{place}; nothing is deleted until it is correct"))
    };
    let text = root.read(file, MAX_FILE_BYTES).map_err(|error| {
        let why = "nothing is deleted while protect.references_file cannot be read";
        unreadable(error.kind(), format!("{name}: {error}; {why}"))
    })?;
    let found =
        image_lists::listed(&text).map_err(|line| invalid(format!(":{}: {}", line.number, line.why)))?;
    if found.is_empty() {
        Err(invalid(": it names no image".into()))
    } else {
        Ok(ReferenceSet::new(file, found))
    }
}
