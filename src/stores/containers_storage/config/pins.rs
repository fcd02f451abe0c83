//! Which images a `pinned_images` entry of CRI-O covers.
//!
//! CRI-O turns each entry into a regular expression (`CompileRegexpsForPinnedImages` in its
//! `internal/storage/image.go`, 1.37) and tries it on every name that the image's record has.
//! In doubt an image counts as pinned: keeping one too many costs bytes, deleting one too many
//! can cost the node its control plane.

use super::types::Pin;
use crate::model::PinReason;
use crate::model::reference::repository;

/// Whether a pin covers an image name, the way CRI-O matches: `*x*` and `x*` cover every name
/// that contains `x` (the latter too, since its expression `x.*` is not anchored), anything else
/// covers the name that equals it; all regardless of case. `*` alone, with which CRI-O 1.37 does
/// not start, covers everything.
#[must_use]
pub fn pin_matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(rest) => fold(name).contains(&fold(rest.strip_prefix('*').unwrap_or(rest))),
        None => fold(name) == fold(pattern),
    }
}

/// Whether a pin covers an image: by one of its `names` (full references, with tag or digest),
/// or by content, since an entry may be `repository@sha256:…` (those of OpenShift's pinned image
/// sets are) while the record has the image under a tag: `digests` are the manifest digests of
/// the image, each as `sha256:…`. An image without names is pinned by its digest alone.
#[must_use]
pub fn pin_matches_image(pattern: &str, names: &[impl AsRef<str>], digests: &[impl AsRef<str>]) -> bool {
    if names.iter().any(|name| pin_matches(pattern, name.as_ref())) {
        return true;
    }
    let pinned_digest = pattern.rsplit_once('@').map_or(pattern, |(_, digest)| digest);
    digests.iter().map(AsRef::as_ref).any(|digest| {
        let in_a_repository =
            |name: &dyn AsRef<str>| pin_matches(pattern, &format!("{}@{digest}", repository(name.as_ref())));
        let by_itself = names.is_empty() && pin_matches(pinned_digest, digest);
        by_itself || pin_matches(pattern, digest) || names.iter().any(|n| in_a_repository(n))
    })
}

/// Which of the pins cover an image.
#[must_use]
pub fn pinned_by(pins: &[Pin], names: &[String], digests: &[String]) -> Vec<PinReason> {
    let matching = pins.iter().filter(|pin| pin_matches_image(&pin.pattern, names, digests));
    let reason = |Pin { pattern, origin }: &Pin| {
        PinReason::new(format!("{pattern:?} in {origin}"), format!("remove it from {origin}"))
    };
    matching.map(reason).collect()
}

/// Maps letters that a case-insensitive regular expression of Go takes for the same to the same
/// text. It takes more for the same than Go does (`ß` and `ss`), never less.
fn fold(text: &str) -> String {
    // Lower case first: U+1E9E has no upper case, but its lower case `ß` has.
    let upper = text.chars().flat_map(char::to_lowercase).flat_map(char::to_uppercase);
    upper.flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn matches_as_cri_o_does() {
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
    fn matches_content_by_digest() {
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
        /// CRI-O's own way, with a regular expression engine that folds case as Go's does.
        #[test]
        fn covers_all_that_cri_o_covers(
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
