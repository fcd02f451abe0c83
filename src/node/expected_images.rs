//! The declared set of images that are kept (`protect.references_file`): one reference a line, `#` begins a comment.

use std::io::{self, ErrorKind};
use std::path::Path;

use super::image_lists;
use super::{ImageNamers, Unreadable};
use crate::model::reference_set::ReferenceSet;
use crate::sys::sysroot::Sysroot;

/// Maximum size of the file.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Reads the file.
///
/// # Errors
/// If it cannot be read in full, has a line that is not a reference, or names no image, as a file that was written to a
/// full disk: then the images that must be kept are unknown.
pub fn read(root: &Sysroot, file: &Path) -> Result<ReferenceSet, Unreadable> {
    let text = root.read(file, MAX_FILE_BYTES);
    let set = text.and_then(|text| {
        let found = image_lists::listed(&text).map_err(|line| invalid(line.to_string()))?;
        match found.is_empty() {
            true => Err(invalid("it names no image".into())),
            false => Ok(ReferenceSet::new(file, found)),
        }
    });
    set.map_err(|source| Unreadable { path: file.to_path_buf(), names: ImageNamers::ReferencesFile, source })
}

fn invalid(why: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}
