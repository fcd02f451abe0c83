//! A declared set of references (`protect.references_file`), found by the names, digests and id of an image.

use std::collections::HashMap;
use std::iter;
use std::path::{Path, PathBuf};

use super::Image;
use super::reference::{bare_id, host, normalized, repository};

/// References of a file, each with its line.
///
/// An entry is found by lookups and not by comparison with every reference: the file may have thousands of lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReferenceSet {
    file: PathBuf,
    lines: HashMap<String, usize>,
    /// Number of references, as written.
    count: usize,
}

impl ReferenceSet {
    /// Creates the set of the references in `file`, each with its line.
    #[must_use]
    pub fn new<'a>(file: &Path, references: impl IntoIterator<Item = (usize, &'a str)>) -> Self {
        let (mut lines, mut count) = (HashMap::new(), 0);
        for (line, reference) in references {
            count += 1;
            lines.entry(key(reference)).or_insert(line);
            if let Some((_, digest)) = reference.split_once('@') {
                lines.entry(key_without_name(digest)).or_insert(line);
            }
        }
        Self { file: file.to_path_buf(), lines, count }
    }

    /// Returns the number of references, as written.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the file and line that names the image. A reference without a registry means the image of any registry; a
    /// digest with a repository means an image of that repository, or one without a name.
    #[must_use]
    pub fn place_of(&self, image: &Image) -> Option<String> {
        if self.lines.is_empty() {
            return None;
        }
        let names: Vec<_> = image.names.iter().map(|name| normalized(name)).collect();
        let of_digests = image.digests.iter().flat_map(|digest| {
            let unnamed = names.is_empty().then(|| key_without_name(digest));
            let named = names.iter().map(move |name| format!("{}@{digest}", repository(name)));
            named.chain(unnamed).chain([digest.clone()])
        });
        let id = image.id.as_str();
        let id = key_of_id(id.rsplit_once('/').map_or(id, |(_, id)| id));
        let mut keys = names.iter().cloned().chain(of_digests).chain([id]);
        let line = keys.find_map(|key| ends(&key).find_map(|end| self.lines.get(end)))?;
        Some(format!("{}, line {line}", self.file.display()))
    }

    /// Returns the references that are not in `known`.
    #[must_use]
    pub fn without(mut self, known: &Self) -> Self {
        self.lines.retain(|key, _| !known.lines.contains_key(key));
        self
    }
}

/// Returns the text by which a reference is found: its full form, without the registry if it names none.
fn key(reference: &str) -> String {
    const ID_DIGITS: usize = 64;
    let bare = bare_id(reference);
    if bare.len() == ID_DIGITS && bare.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return key_of_id(bare);
    }
    let full = normalized(reference);
    if host(reference).is_some() {
        return full;
    }
    let added = if reference.contains('/') { "docker.io/" } else { "docker.io/library/" };
    full.strip_prefix(added).unwrap_or(&full).to_owned()
}

fn key_of_id(id: &str) -> String {
    format!("sha256:{}", bare_id(id))
}

/// Returns the text by which a digest in a repository is found for an image without a name.
fn key_without_name(digest: &str) -> String {
    format!("@{digest}")
}

/// Returns a name, and the ends of it that begin after a slash.
fn ends(name: &str) -> impl Iterator<Item = &str> {
    iter::successors(Some(name), |name| name.split_once('/').map(|(_, end)| end))
}

#[cfg(test)]
mod tests;
