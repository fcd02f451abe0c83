//! Matches images against CRI-O's `pinned_images`.
//!
//! CRI-O turns each entry into a regular expression (`CompileRegexpsForPinnedImages` in its
//! `internal/storage/image.go`, 1.37) and matches it against every name in the image's record.
//!
//! In doubt an image counts as pinned. Keeping an image too many costs bytes; deleting an image too many can cost the
//! node its control plane.

use super::types::Pin;
use crate::model::PinReason;
use crate::model::text::reference::repository;

/// Returns true if a pin covers an image name by CRI-O's rules, which ignore case:
///
/// * `*x*` and `x*` cover every name that contains `x`. That includes `x*`, because its expression `x.*` is not anchored.
/// * Any other pattern covers the name that equals it.
/// * `*` alone covers everything. CRI-O 1.37 does not start with this pattern.
#[must_use]
pub fn pin_matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(rest) => fold(name).contains(&fold(rest.strip_prefix('*').unwrap_or(rest))),
        // Each proof of a deletion compares every pattern with every image.
        None if name.is_ascii() && pattern.is_ascii() => name.eq_ignore_ascii_case(pattern),
        None => fold(name) == fold(pattern),
    }
}

/// Returns true if a pin covers an image, by one of its `names` (full references, with tag or digest) or by one of its
/// manifest `digests` (`sha256:…`).
///
/// An entry may be `repository@sha256:…`, as in OpenShift's pinned image sets, while the record has the image under a
/// tag. An image without names is pinned by the digest alone, in any repository.
#[must_use]
pub fn pin_matches_image(pattern: &str, names: &[impl AsRef<str>], digests: &[impl AsRef<str>]) -> bool {
    if names.iter().any(|name| pin_matches(pattern, name.as_ref())) {
        return true;
    }
    let pinned_digest = pattern.rsplit_once('@').map_or(pattern, |(_, digest)| digest);
    digests.iter().map(AsRef::as_ref).any(|digest| {
        pin_matches(pattern, digest)
            || names.is_empty() && pin_matches(pinned_digest, digest)
            || names
                .iter()
                .any(|name| pin_matches(pattern, &format!("{}@{digest}", repository(name.as_ref()))))
    })
}

/// Returns the reasons why an image is pinned: one for each pin that covers it.
#[must_use]
pub fn pinned_by(pins: &[Pin], names: &[String], digests: &[String]) -> Vec<PinReason> {
    let matching = pins.iter().filter(|pin| pin_matches_image(&pin.pattern, names, digests));
    matching
        .map(|Pin { pattern, origin, is_of_sandboxes }| PinReason {
            is_of_sandboxes: *is_of_sandboxes,
            ..PinReason::new(format!("{pattern:?} in {origin}"), format!("remove it from {origin}"))
        })
        .collect()
}

/// Folds case. Letters that Go's case-insensitive regular expressions treat as equal get the same text. More letters get
/// the same text than in Go (`ß` and `ss`), never fewer.
fn fold(text: &str) -> String {
    if text.is_ascii() {
        return text.to_ascii_lowercase();
    }
    // Lower case first: U+1E9E (capital sharp s) has no upper case mapping, but its lower case `ß` has.
    let upper = text.chars().flat_map(char::to_lowercase).flat_map(char::to_uppercase);
    upper.flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pattern_matches_as_in_cri_o() {
        let name = "quay.io/openshift/release:4.20";
        for (pattern, covers) in [
            ("quay.io/openshift/release:4.20", true),
            ("QUAY.io/OpenShift/Release:4.20", true),
            ("quay.io/openshift/release", false),
            ("openshift/release:4.20", false),
            ("quay.io/openshift/*", true),
            // Not anchored at the start.
            ("openshift/*", true),
            ("OPENSHIFT/*", true),
            ("docker.io/*", false),
            ("*release*", true),
            ("*RELEASE*", true),
            ("*nothing*", false),
            // A star elsewhere is a plain character.
            ("*release:4.20", false),
            ("quay.io/*/release:4.20", false),
            ("quay.io/*/release*", false),
            // Regular expression characters are plain characters.
            ("quay.io/openshift/release:4?20", false),
            ("quay.io.openshift.release:4.20", false),
            (".*", true),
            (".+", false),
            ("*", true),
            ("**", true),
            ("", false),
        ] {
            assert_eq!(pin_matches(pattern, name), covers, "{pattern}");
        }
        assert!(pin_matches("*\u{212A}elvin*", "KELVIN"), "the Kelvin sign is a k");
    }

    #[test]
    fn image_is_pinned_by_digest() {
        let digest = format!("sha256:{}", "ab".repeat(32));
        let other = format!("sha256:{}", "cd".repeat(32));
        let tagged = ["registry:5000/a/b:tag".to_owned()];
        let named = [format!("registry:5000/a/b@{digest}")];
        let none: [String; 0] = [];
        let pin = format!("registry:5000/a/b@{digest}");
        for (pattern, names, digests, covers) in [
            (&pin, &tagged[..], std::slice::from_ref(&digest), true),
            (&pin, &tagged[..], std::slice::from_ref(&other), false),
            (&pin, &tagged[..], &[other.clone(), digest.clone()], true),
            (&pin, &named[..], &[], true),
            (&pin, &none[..], std::slice::from_ref(&digest), true),
            (&pin, &none[..], std::slice::from_ref(&other), false),
            (&format!("elsewhere/a/b@{digest}"), &tagged[..], std::slice::from_ref(&digest), false),
            (&digest, &tagged[..], std::slice::from_ref(&digest), true),
            (&"registry:5000/a/b@*".to_owned(), &tagged[..], std::slice::from_ref(&digest), true),
            (&"registry:5000/a/b:tag".to_owned(), &tagged[..], &[], true),
            (&"unrelated".to_owned(), &none[..], std::slice::from_ref(&digest), false),
        ] {
            assert_eq!(pin_matches_image(pattern, names, digests), covers, "{pattern} {names:?}");
        }
    }

    proptest! {
        /// Compares with CRI-O's regular expressions, in an engine that folds case as Go's does.
        #[test]
        fn images_pinned_in_cri_o_are_pinned(
            pattern in r"\*?[a-cA-Cß-ǅſKK./:*]{1,4}\*?",
            name in r"[a-cA-Cß-ǅſKK./:*]{0,6}",
        ) {
            let quoted = match pattern.strip_suffix('*') {
                Some(rest) if pattern.len() > 1 && rest.starts_with('*') => regex::escape(&rest[1..]),
                Some(rest) => format!("{}.*", regex::escape(rest)),
                None => format!("^{}$", regex::escape(&pattern)),
            };
            let expression = regex::Regex::new(&format!("(?i){quoted}")).expect("an expression");
            if expression.is_match(&name) {
                prop_assert!(pin_matches(&pattern, &name), "{quoted}");
            }
            if name.is_ascii() && pattern.is_ascii() {
                prop_assert_eq!(pin_matches(&pattern, &name), expression.is_match(&name));
            }
        }
    }
}
