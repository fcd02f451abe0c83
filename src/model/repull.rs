//! References by which an image that was deleted can be pulled again. Pure.
//!
//! Every image has a manifest digest, also one that was built on this node, so a digest does not prove that a registry
//! has the image: its origin decides first. A reference is printed for other programs (`xargs crictl pull`), so a name
//! that is not well-formed gives none.

use serde::{Deserialize, Serialize};

use super::origin::{Origin, OriginKind};
use crate::model::text::reference::{host, is_well_formed, normalized, repository};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownOrigin {
    pub kind: OriginKind,
    /// Registry and repository that it was pulled from.
    #[serde(default)]
    pub registry: Option<String>,
}

impl KnownOrigin {
    /// Returns the origin for the records; `None` without evidence.
    #[must_use]
    pub fn of(origin: &Origin) -> Option<Self> {
        let Origin { kind, registry, .. } = origin;
        (*kind != OriginKind::Unknown).then(|| Self { kind: *kind, registry: registry.clone() })
    }
}

#[derive(Clone, Debug, Default)]
pub struct DeletedImage {
    pub names: Vec<String>,
    /// Names that it had earlier.
    pub former_names: Vec<String>,
    pub digests: Vec<String>,
    pub origin: Option<KnownOrigin>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PullReferences {
    /// One for each repository, by digest.
    ByDigest(Vec<String>),
    /// Tags, which may mean another image by now: no digest is known.
    ByTag(Vec<String>),
    /// Nothing to pull, for this reason.
    None(&'static str),
}

impl DeletedImage {
    /// Returns the references by which the image can be pulled again. If it had no name any more when it was deleted,
    /// its earlier names give the repositories, or else the registry that provided it.
    #[must_use]
    pub fn pull_references(&self) -> PullReferences {
        match self.origin.as_ref().map(|origin| origin.kind) {
            Some(OriginKind::Built) => return PullReferences::None("built here"),
            Some(OriginKind::Loaded) => return PullReferences::None("loaded here from an archive"),
            Some(OriginKind::Preloaded) => return PullReferences::None("preloaded on this node"),
            Some(OriginKind::Pulled | OriginKind::Unknown) | None => {}
        }
        let registry: Vec<_> = self.origin.iter().filter_map(|origin| origin.registry.clone()).collect();
        let digest = self.digests.iter().find(|digest| is_well_formed(digest));
        // A tag that was moved is of no use without a digest.
        let sources = match digest {
            Some(_) => vec![&self.names, &self.former_names, &registry],
            None => vec![&self.names],
        };
        let mut sources_with_names =
            sources.iter().filter(|names| names.iter().any(|name| is_pullable(name)));
        let Some(names) = sources_with_names.next() else {
            return PullReferences::None(if sources.iter().all(|names| names.is_empty()) {
                "no name is known"
            } else {
                "no name of it can be pulled"
            });
        };
        let names: Vec<_> = names.iter().filter(|name| is_pullable(name)).collect();
        let mut references: Vec<String> = Vec::new();
        // A name by digest is the one that was pulled: it stands before the tags of its repository.
        for name in names.iter().filter(|name| name.contains('@')) {
            add(&mut references, normalized(name));
        }
        let tags = names.iter().filter(|name| !name.contains('@'));
        for full in tags.map(|name| normalized(name)) {
            let start = format!("{}@", repository(&full));
            match digest {
                _ if references.iter().any(|reference| reference.starts_with(&start)) => {}
                Some(digest) => add(&mut references, start + digest),
                None => add(&mut references, full),
            }
        }
        if references.iter().all(|reference| reference.contains('@')) {
            PullReferences::ByDigest(references)
        } else {
            PullReferences::ByTag(references)
        }
    }
}

/// Returns true for a well-formed name in a registry; `localhost/` is podman's for images without one.
fn is_pullable(name: &str) -> bool {
    host(name) != Some("localhost") && is_well_formed(name)
}

fn add(references: &mut Vec<String>, reference: String) {
    if !references.contains(&reference) {
        references.push(reference);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(names: &[&str], former: &[&str], digests: &[&str]) -> DeletedImage {
        let [names, former_names, digests] =
            [names, former, digests].map(|texts| texts.iter().map(|text| (*text).to_owned()).collect());
        DeletedImage { names, former_names, digests, origin: None }
    }

    #[test]
    fn repositories_and_digests_give_references() {
        use PullReferences::{ByDigest, ByTag, None as Nothing};
        fn of(references: &[&str]) -> Vec<String> {
            references.iter().map(|reference| (*reference).to_owned()).collect()
        }
        let a = "quay.io/a@sha256:aa";
        for (image, expected) in [
            (image(&["quay.io/a:1", "quay.io/a:2"], &[], &["sha256:aa", "sha256:bb"]), ByDigest(of(&[a]))),
            (
                image(&["quay.io/a:1", "r:5000/b:1"], &[], &["sha256:aa"]),
                ByDigest(of(&[a, "r:5000/b@sha256:aa"])),
            ),
            (
                image(&["quay.io/a:1", "quay.io/a@sha256:bb"], &[], &["sha256:aa"]),
                ByDigest(of(&["quay.io/a@sha256:bb"])),
            ),
            (image(&["quay.io/a:1@sha256:aa"], &[], &[]), ByDigest(of(&[a]))),
            (image(&["nginx"], &[], &["sha256:aa"]), ByDigest(of(&["docker.io/library/nginx@sha256:aa"]))),
            // Its tag was moved to a newer image.
            (image(&[], &["quay.io/a:1"], &["sha256:aa"]), ByDigest(of(&[a]))),
            (image(&["localhost/b:1"], &["quay.io/a:1"], &["sha256:aa"]), ByDigest(of(&[a]))),
            (image(&[], &["quay.io/a:1"], &[]), Nothing("no name is known")),
            (image(&["quay.io/a:1"], &[], &[]), ByTag(of(&["quay.io/a:1"]))),
            (image(&["localhost/a:1"], &[], &["sha256:aa"]), Nothing("no name of it can be pulled")),
            (image(&[], &[], &["sha256:aa"]), Nothing("no name is known")),
            // Foreign names that a shell or a program would take for something else.
            (
                image(&["-rf", "quay.io/a b:1", "q.io/\u{202e}a", "q.io/a;b"], &[], &["sha256:aa"]),
                Nothing("no name of it can be pulled"),
            ),
            (image(&["quay.io/a:1"], &[], &["sha256:aa\n--all"]), ByTag(of(&["quay.io/a:1"]))),
        ] {
            assert_eq!(image.pull_references(), expected, "{image:?}");
        }
    }

    #[test]
    fn origin_decides_before_names() {
        fn with(kind: OriginKind, names: &[&str]) -> PullReferences {
            let origin = Some(KnownOrigin { kind, registry: Some("quay.io/b".into()) });
            DeletedImage { origin, ..image(names, &[], &["sha256:aa"]) }.pull_references()
        }
        for kind in OriginKind::ALL {
            let never = matches!(kind, OriginKind::Built | OriginKind::Loaded | OriginKind::Preloaded);
            let found = with(*kind, &["quay.io/a:1"]);
            assert_eq!(matches!(found, PullReferences::None(_)), never, "{kind}: {found:?}");
        }
        // The registry of a pull replaces names that are lost.
        let expected = PullReferences::ByDigest(vec!["quay.io/b@sha256:aa".into()]);
        assert_eq!(with(OriginKind::Pulled, &[]), expected);
    }
}
