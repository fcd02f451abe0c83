//! Patterns that name images.

use globset::{GlobBuilder, GlobMatcher};

use super::reference::{bare_id, repository};

/// Digits of an id that a pattern needs to cover the ids that begin with it; as many as the
/// runtimes' tools print.
const SHORT_ID: usize = 12;

/// A glob on full references. `*` crosses `/`, so that `quay.io/*` means all of that registry.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    glob: GlobMatcher,
}

impl Pattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// Why the pattern is invalid.
    pub fn new(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("an empty pattern matches nothing".into());
        }
        let glob = GlobBuilder::new(text).build().map_err(|error| error.kind().to_string())?;
        Ok(Self { text: text.to_owned(), glob: glob.compile_matcher() })
    }

    /// The pattern as it was written.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        self.glob.is_match(name)
    }

    /// Whether it covers an image with these names, manifest digests and this id: if it matches
    /// - one of its names in full (`docker.io/library/nginx:1.27`),
    /// - the repository of one of its names (`docker.io/library/nginx`: all its tags),
    /// - one of its manifest digests, alone or behind the repository of a name
    ///   (`sha256:…`, `docker.io/library/nginx@sha256:…`),
    /// - its id, with or without `sha256:`; twelve digits or more of its beginning do.
    #[must_use]
    pub fn covers(&self, names: &[impl AsRef<str>], digests: &[impl AsRef<str>], id: &str) -> bool {
        let names = || names.iter().map(AsRef::as_ref);
        let glob = |text: &str| self.matches(text);
        names().any(|name: &str| glob(name) || glob(repository(name)))
            || digests.iter().map(AsRef::as_ref).any(|digest: &str| {
                glob(digest) || names().any(|name| glob(&format!("{}@{digest}", repository(name))))
            })
            || self.covers_id(id)
    }

    fn covers_id(&self, id: &str) -> bool {
        // A namespace or snapshotter may stand in front.
        let bare = id.rsplit_once('/').map_or(id, |(_, id)| id);
        let digits = bare_id(bare);
        let begin = bare_id(&self.text);
        let is_hex = begin.len() >= SHORT_ID && begin.bytes().all(|byte| byte.is_ascii_hexdigit());
        (is_hex && digits.starts_with(begin))
            || self.matches(id)
            || self.matches(digits)
            || self.matches(&format!("sha256:{digits}"))
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}
