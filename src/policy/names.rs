//! Image references as people write them: full names, repositories, and whether two name the
//! same. Pure.

/// The host of names that name none.
const DEFAULT_REGISTRY: &str = "docker.io";

/// The full form of a reference: registry, repository, and tag or digest. Docker's rules, which
/// the kubelet follows: the first part is a registry if it has a dot or a port or is
/// `localhost`; Docker's own registry keeps its official images below `library/`; no tag and no
/// digest means `latest`. A tag beside a digest says nothing and is left out.
#[must_use]
pub fn full(reference: &str) -> String {
    let (name, digest) = match reference.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (reference, None),
    };
    let (name, tag) = split_tag(name);
    let name = match name.split_once('/') {
        Some((first, _)) if is_registry(first) => name.to_owned(),
        Some(_) => format!("{DEFAULT_REGISTRY}/{name}"),
        None => format!("{DEFAULT_REGISTRY}/library/{name}"),
    };
    let name = match name.strip_prefix("index.docker.io/") {
        Some(rest) => format!("{DEFAULT_REGISTRY}/{rest}"),
        None => name,
    };
    match digest {
        Some(digest) => format!("{name}@{digest}"),
        None => format!("{name}:{}", tag.unwrap_or("latest")),
    }
}

/// A reference without its tag and digest, as it stands.
#[must_use]
pub fn repository(reference: &str) -> &str {
    let name = reference.split_once('@').map_or(reference, |(name, _)| name);
    split_tag(name).0
}

/// Whether `wanted` names an image with these names and manifest digests.
#[must_use]
pub fn means(wanted: &str, names: &[String], digests: &[String]) -> bool {
    let wanted = full(wanted);
    if names.iter().any(|name| full(name) == wanted) {
        return true;
    }
    // By digest: the image may be here under a tag of the same repository.
    let Some((repository_wanted, digest)) = wanted.split_once('@') else { return false };
    digests.iter().any(|have| have == digest)
        && (names.is_empty() || names.iter().any(|name| repository(&full(name)) == repository_wanted))
}

/// As [`means`], where a name without a registry may be looked for in any, as podman does
/// (`unqualified-search-registries`, aliases, `localhost`).
#[must_use]
pub fn may_mean(wanted: &str, names: &[String], digests: &[String]) -> bool {
    if means(wanted, names, digests) {
        return true;
    }
    let (name, digest) = wanted.split_once('@').map_or((wanted, None), |(name, digest)| (name, Some(digest)));
    let (path, tag) = split_tag(name);
    if path.split_once('/').is_some_and(|(first, _)| is_registry(first)) {
        return false;
    }
    if digest.is_some_and(|digest| !digests.iter().any(|have| have == digest)) {
        return false;
    }
    names.iter().map(|name| full(name)).any(|name| {
        let (repository, of_name) = split_tag(name.split('@').next().unwrap_or(&name));
        let same = repository.strip_suffix(path).is_some_and(|start| start.ends_with('/'));
        same && (digest.is_some() || of_name.unwrap_or("latest") == tag.unwrap_or("latest"))
    })
}

fn is_registry(first: &str) -> bool {
    first.contains(['.', ':']) || first == "localhost"
}

fn split_tag(name: &str) -> (&str, Option<&str>) {
    match name.rsplit_once(':') {
        // A colon before the last slash belongs to the registry's port.
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        _ => (name, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_of_podman_are_anybodys() {
        let names = ["quay.io/team/web:1".to_owned(), "localhost/app:latest".to_owned()];
        let digests = ["sha256:aa".to_owned()];
        for (wanted, expected) in [
            ("quay.io/team/web:1", true),
            ("team/web:1", true),
            ("web:1", true),
            ("eb:1", false),
            ("web", false),
            ("app", true),
            ("docker.io/app", false),
            ("web@sha256:aa", true),
            ("web@sha256:bb", false),
        ] {
            assert_eq!(may_mean(wanted, &names, &digests), expected, "{wanted}");
        }
    }

    #[test]
    fn short_names_are_dockers() {
        for (reference, expected) in [
            ("nginx", "docker.io/library/nginx:latest"),
            ("nginx:1.27", "docker.io/library/nginx:1.27"),
            ("bitnami/redis", "docker.io/bitnami/redis:latest"),
            ("index.docker.io/library/nginx", "docker.io/library/nginx:latest"),
            ("quay.io/a/b", "quay.io/a/b:latest"),
            ("localhost/a", "localhost/a:latest"),
            ("registry:5000/a", "registry:5000/a:latest"),
            ("registry:5000/a:t@sha256:0", "registry:5000/a@sha256:0"),
        ] {
            assert_eq!(full(reference), expected);
        }
        assert_eq!(repository("registry:5000/a:t"), "registry:5000/a");
        assert_eq!(repository("registry:5000/a@sha256:0"), "registry:5000/a");
        assert_eq!(repository("registry:5000/a"), "registry:5000/a");
    }

    #[test]
    fn a_digest_finds_a_tagged_image() {
        let names = ["quay.io/a/b:1".to_owned()];
        let digests = ["sha256:1".to_owned()];
        for (wanted, found) in [
            ("quay.io/a/b:1", true),
            ("quay.io/a/b:2", false),
            ("quay.io/a/b@sha256:1", true),
            ("quay.io/a/b:9@sha256:1", true),
            ("quay.io/a/b@sha256:2", false),
            ("quay.io/a/c@sha256:1", false),
        ] {
            assert_eq!(means(wanted, &names, &digests), found, "{wanted}");
        }
        assert!(means("quay.io/a/b@sha256:1", &[], &digests), "dangling, but the same content");
        assert!(!means("quay.io/a/b:1", &[], &digests));
    }
}
