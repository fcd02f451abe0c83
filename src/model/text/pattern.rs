//! Patterns that name images.

use globset::{GlobBuilder, GlobMatcher};

use crate::model::text::reference::{bare_id, repository};

/// Minimum length of a pattern of digits that covers every id that begins with it. The runtimes' tools print
/// this many digits.
const SHORT_ID: usize = 12;

/// Glob on full references. `*` also matches `/`, so that `quay.io/*` covers all of that registry.
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
        if text.starts_with('^') || text.ends_with('$') {
            let glob = text.trim_start_matches('^').trim_end_matches('$').replace(".*", "*");
            return Err(format!(
                "a pattern is a glob for the whole name, not a regular expression: write {glob:?}"
            ));
        }
        let glob = GlobBuilder::new(text).build().map_err(|error| error.kind().to_string())?;
        Ok(Self { text: text.to_owned(), glob: glob.compile_matcher() })
    }

    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        self.glob.is_match(name)
    }

    /// Returns true if this pattern surely covers all that `other` covers: they are equal, or this one is a beginning of
    /// `other` and `*`.
    #[must_use]
    pub fn includes(&self, other: &Self) -> bool {
        const SPECIAL: [char; 5] = ['*', '?', '[', '{', '\\'];
        let start = self.text.trim_end_matches('*');
        let is_beginning = start.len() < self.text.len() && !start.contains(SPECIAL);
        self == other || is_beginning && other.text.starts_with(start)
    }

    /// Returns whether the pattern covers an image with these names, manifest digests and this id. It does if it
    /// matches
    /// - one of its names in full (`docker.io/library/nginx:1.27`),
    /// - the repository of one of its names (`docker.io/library/nginx`: all its tags),
    /// - one of its manifest digests, alone or after the repository of a name
    ///   (`sha256:…`, `docker.io/library/nginx@sha256:…`),
    /// - its id, with or without `sha256:`; twelve digits or more of its beginning suffice.
    #[must_use]
    pub fn covers(&self, names: &[impl AsRef<str>], digests: &[impl AsRef<str>], id: &str) -> bool {
        let repositories: Vec<&str> = names.iter().map(|name| repository(name.as_ref())).collect();
        names.iter().any(|name| self.matches(name.as_ref()))
            || repositories.iter().any(|repository| self.matches(repository))
            || digests.iter().map(AsRef::as_ref).any(|digest: &str| {
                self.matches(digest)
                    || repositories.iter().any(|repository| self.matches(&format!("{repository}@{digest}")))
            })
            || self.covers_id(id)
    }

    fn covers_id(&self, id: &str) -> bool {
        // The id may begin with a namespace or snapshotter.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Taken as a glob, it would match nothing, and protect nothing.
    #[test]
    fn regular_expression_is_not_a_pattern() {
        for text in ["^quay.io/.*$", "^quay.io/a", "quay.io/.*$"] {
            assert!(Pattern::new(text).unwrap_err().contains("is a glob"), "{text}");
        }
        assert!(Pattern::new("quay.io/*").is_ok());
    }

    #[test]
    fn pattern_includes_longer_ones() {
        for (pattern, other, expected) in [
            ("*", "quay.io/team/*", true),
            ("*", "*/team/*", true),
            ("**", "{a,b}", true),
            ("quay.io/*", "quay.io/team/*", true),
            ("quay.io/t*", "quay.io/team", true),
            ("quay.io/team", "quay.io/team", true),
            ("quay.io/team/*", "quay.io/*", false),
            ("quay.io/team", "quay.io/team/*", false),
            ("*/team/*", "quay.io/team/*", false),
            ("quay.io/*", "{quay.io,docker.io}/*", false),
            ("a\\*", "a\\*b", false),
        ] {
            let [pattern, other] = [pattern, other].map(|text| Pattern::new(text).unwrap());
            assert_eq!(pattern.includes(&other), expected, "{} {}", pattern.text(), other.text());
        }
    }
}
