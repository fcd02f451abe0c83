//! A declared set of references (`protect.references_file`), found by the names, digests and id of an image.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, iter};

use super::image::Image;
use crate::model::text::reference::{bare_id, has_tag, host, normalized, repository};

/// References of a file, each with its line.
///
/// An entry is found by lookups and not by comparison with every reference: the file may have thousands of lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReferenceSet {
    file: PathBuf,
    /// The first line of each reference, by its [`key`].
    lines: HashMap<String, usize>,
    /// Lines and references, as written.
    references: Arc<[(usize, String)]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmatched<'a> {
    line: usize,
    reference: &'a str,
    /// Name of an image of its repository with another tag. No reference names that image.
    pub other_tag: Option<String>,
}

impl ReferenceSet {
    #[must_use]
    pub fn new<'a>(file: &Path, references: impl IntoIterator<Item = (usize, &'a str)>) -> Self {
        let references: Arc<[_]> =
            references.into_iter().map(|(line, reference)| (line, reference.to_owned())).collect();
        let mut lines = HashMap::new();
        for (line, reference) in references.iter() {
            lines.entry(key(reference)).or_insert(*line);
        }
        Self { file: file.to_path_buf(), lines, references }
    }

    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    #[must_use]
    pub fn count(&self) -> usize {
        self.references.len()
    }

    /// Returns the file and line that names the image. A reference without a registry means the image of any registry; a
    /// digest means the image in any repository, since it identifies the content.
    #[must_use]
    pub fn place_of(&self, image: &Image) -> Option<String> {
        let line = self.lines.get(*self.keys_of(image).first()?)?;
        Some(format!("{}, line {line}", self.file.display()))
    }

    fn keys_of(&self, image: &Image) -> Vec<&str> {
        if self.lines.is_empty() {
            return Vec::new();
        }
        let id = image.id.as_str();
        let id = key_of_id(id.rsplit_once('/').map_or(id, |(_, id)| id));
        let names = image.names.iter().map(|name| key_of_name(name));
        let keys: Vec<_> = names.chain(image.digests.iter().cloned()).chain([id]).collect();
        let found = keys.iter().flat_map(|key| ends(key)).filter_map(|end| self.lines.get_key_value(end));
        found.map(|(key, _)| key.as_str()).collect()
    }

    /// Returns the references that name none of the images, in the order of the file.
    #[must_use]
    pub fn unmatched(&self, images: &[Image]) -> Vec<Unmatched<'_>> {
        let (mut matched, mut other_tags) = (HashSet::new(), HashMap::new());
        for image in images {
            let keys = self.keys_of(image);
            if keys.is_empty() {
                let names =
                    image.names.iter().map(|name| normalized(name)).filter(|name| !name.contains('@'));
                let repositories = names.flat_map(|name| {
                    let ends: Vec<_> = ends(repository(&name)).map(str::to_owned).collect();
                    ends.into_iter().map(move |end| (end, name.clone()))
                });
                other_tags.extend(repositories);
            }
            matched.extend(keys);
        }
        let unmatched = self.references.iter().filter_map(|(line, reference)| {
            let key = key(reference);
            let is_tag = !reference.contains('@');
            (!matched.contains(key.as_str())).then(|| Unmatched {
                line: *line,
                reference,
                other_tag: other_tags.get(repository(&key)).filter(|_| is_tag).cloned(),
            })
        });
        unmatched.collect()
    }

    #[must_use]
    pub fn without(mut self, known: &Self) -> Self {
        self.lines.retain(|key, _| !known.lines.contains_key(key));
        self
    }
}

impl fmt::Display for Unmatched<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let latest = if has_tag(self.reference) { "" } else { " means :latest and" };
        write!(f, "line {}, {},{latest} names no image", self.line, self.reference)?;
        match &self.other_tag {
            Some(name) => write!(f, ", although {name} is here: gc may delete it"),
            None => Ok(()),
        }
    }
}

/// Returns the text by which a reference is found: its digest, or its full form, without the registry if it names none.
fn key(reference: &str) -> String {
    const ID_DIGITS: usize = 64;
    let bare = bare_id(reference);
    if bare.len() == ID_DIGITS && bare.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return key_of_id(bare);
    }
    let full = key_of_name(reference);
    if host(reference).is_some() {
        return full;
    }
    let added = if reference.contains('/') { "docker.io/" } else { "docker.io/library/" };
    full.strip_prefix(added).unwrap_or(&full).to_owned()
}

fn key_of_id(id: &str) -> String {
    format!("sha256:{}", bare_id(id))
}

fn key_of_name(name: &str) -> String {
    name.split_once('@').map_or_else(|| normalized(name), |(_, digest)| digest.to_owned())
}

/// Returns a name, and the ends of it that begin after a slash.
fn ends(name: &str) -> impl Iterator<Item = &str> {
    iter::successors(Some(name), |name| name.split_once('/').map(|(_, end)| end))
}

#[cfg(test)]
mod tests;
