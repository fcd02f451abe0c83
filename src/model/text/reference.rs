//! References to images, as people and runtimes write them (names, digests, ids), and the rules by which two of
//! them match.

/// Registry of names that do not contain one.
const DEFAULT_REGISTRY: &str = "docker.io";

/// Returns the full form of a reference: registry, repository, and tag or digest. The rules are Docker's, which the
/// kubelet and containerd follow. Docker's own registry has its official images below `library/`. Without a tag or
/// digest, the tag is `latest`. A tag next to a digest has no effect and is dropped.
#[must_use]
pub fn normalized(reference: &str) -> String {
    let (name, digest) = split_digest(reference);
    let (name, tag) = split_tag(name);
    let name = match host(name) {
        Some("index.docker.io") => return normalized(&reference.replacen("index.", "", 1)),
        Some(DEFAULT_REGISTRY) if name.matches('/').count() == 1 => name.replacen('/', "/library/", 1),
        Some(_) => name.to_owned(),
        None if name.contains('/') => format!("{DEFAULT_REGISTRY}/{name}"),
        None => format!("{DEFAULT_REGISTRY}/library/{name}"),
    };
    match digest {
        Some(digest) => format!("{name}@{digest}"),
        None => format!("{name}:{}", tag.unwrap_or("latest")),
    }
}

/// Returns the listed names that a short name may refer to, the likeliest first.
#[must_use]
pub fn long_names(reference: &str) -> Vec<String> {
    let (name, digest) = split_digest(reference);
    let is_whole = digest.is_some() || split_tag(name).1.is_some();
    let tagged = if is_whole { reference.to_owned() } else { format!("{reference}:latest") };
    let local = host(reference).is_none().then(|| format!("localhost/{tagged}"));
    [tagged, normalized(reference)].into_iter().chain(local).collect()
}

/// Returns a reference without its tag and digest, but otherwise as written.
#[must_use]
pub fn repository(reference: &str) -> &str {
    split_tag(split_digest(reference).0).0
}

/// Returns true if a reference has a tag or a digest, or is an id.
#[must_use]
pub fn has_tag(reference: &str) -> bool {
    let (name, digest) = split_digest(reference);
    digest.is_some() || split_tag(name).1.is_some() || is_whole_id(reference)
}

/// Returns the registry of a reference; Docker's own if it does not name one.
#[must_use]
pub fn registry(reference: &str) -> &str {
    host(reference).unwrap_or(DEFAULT_REGISTRY)
}

/// Returns the registry that a reference names. A first part that cannot be a host belongs to the path, as in the
/// reference grammar of `distribution/reference`.
#[must_use]
pub fn host(reference: &str) -> Option<&str> {
    let (first, _) = reference.split_once('/')?;
    (first.contains(['.', ':']) || first == "localhost").then_some(first)
}

/// Returns true if CRI removes a name that a record of containerd has. CRI parses the names of an image and deletes them
/// in their full form (containerd, `internal/cri/store/image`, `reference.Sort`), so it misses a record with a short
/// name, for example that of `ctr images import --digests`. A name that it cannot parse is deleted as it is.
#[must_use]
pub fn is_removed_by_cri(name: &str) -> bool {
    is_digest(name) || checked(name).is_err() || repository(&normalized(name)) == repository(name)
}

/// Returns true for text that can be a reference, a digest or an id: letters, digits and the separators of references.
#[must_use]
pub fn is_well_formed(text: &str) -> bool {
    let has_only = |byte: u8| byte.is_ascii_alphanumeric() || b"./:@_-+".contains(&byte);
    text.len() <= 4096
        && text.bytes().all(has_only)
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
}

/// Schemes before the name of an image in a registry, as skopeo and the statuses of containers write them.
const OF_REGISTRIES: [&str; 2] = ["docker://", "docker-pullable://"];

/// Transports of containers/image that name a file, a directory or another store.
const OTHER_TRANSPORTS: [&str; 8] =
    ["containers-storage", "dir", "docker-archive", "docker-daemon", "oci", "oci-archive", "ostree", "sif"];

/// Checks a line of a list of images, or an argument that is one image in full: a reference as `distribution/reference`
/// describes it, a whole digest or a whole id. Returns it without `docker://` and `docker-pullable://`.
///
/// # Errors
/// A clause that says why the text is not accepted. Text that matches no image is an error wherever it can be: a
/// list that protects images, or finds those that are in use, would be silently without effect. The start of an id is
/// such text.
pub fn checked(text: &str) -> Result<&str, &'static str> {
    const SHORTEST: usize = 12;
    let text = OF_REGISTRIES.iter().find_map(|scheme| text.strip_prefix(scheme)).unwrap_or(text);
    let (name, digest) = split_digest(text);
    let digest = digest.or_else(|| text.starts_with("sha256:").then_some(text));
    let (name, tag) = split_tag(name);
    let start = text.split_once(':').map(|(start, _)| start);
    if text.contains("://") {
        Err("not an image reference (of all schemes, docker:// and docker-pullable:// are accepted)")
    } else if start.is_some_and(|start| OTHER_TRANSPORTS.contains(&start)) {
        Err("not an image of a registry")
    } else if is_digest(text) || is_whole_id(text) {
        Ok(text)
    } else if tag == Some("") {
        Err("not an image reference (its tag is empty)")
    } else if name.contains("//") {
        Err("not an image reference (a part of its name is empty)")
    } else if text.len() > 4096 || !is_name(name) || !tag.is_none_or(is_tag) {
        Err("not an image reference or digest")
    } else if digest.is_some_and(|digest| !is_digest(digest)) {
        Err("not a whole digest, which is sha256: and 64 digits")
    } else if text.len() >= SHORTEST && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        Err("the start of an id is not accepted: give all 64 digits")
    } else {
        Ok(text)
    }
}

fn is_whole_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns true for a repository, with or without a registry.
fn is_name(name: &str) -> bool {
    let path = match host(name) {
        Some(host) if is_host(host) => &name[host.len() + 1..],
        Some(_) => return false,
        None => name,
    };
    path.split('/').all(is_component)
}

fn is_host(host: &str) -> bool {
    let (name, port) = host.split_once(':').unwrap_or((host, "0"));
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.bytes().all(is_of_name)
        && !port.is_empty()
        && port.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns true for lower-case letters and digits with separators between them: a dot, one or two underscores, or dashes.
fn is_component(component: &str) -> bool {
    let is_of_word = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    let mut separators = component.split(is_of_word).filter(|separator| !separator.is_empty());
    component.starts_with(is_of_word)
        && component.ends_with(is_of_word)
        && separators.all(|text| matches!(text, "." | "_" | "__") || text.bytes().all(|byte| byte == b'-'))
}

fn is_tag(tag: &str) -> bool {
    let is_of_tag = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    tag.len() <= 128 && tag.bytes().all(is_of_tag) && !tag.starts_with(['.', '-'])
}

/// Returns true for a whole digest, as the image specification writes it.
#[must_use]
pub fn is_digest(text: &str) -> bool {
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.split_once(':').is_some_and(|(algorithm, hex)| {
        let digits = match algorithm {
            "sha256" => 64,
            "sha384" => 96,
            "sha512" => 128,
            _ => return false,
        };
        hex.len() == digits && hex.bytes().all(is_hex)
    })
}

/// Returns an id without the algorithm that containerd and users write before it.
#[must_use]
pub fn bare_id(id: &str) -> &str {
    id.strip_prefix("sha256:").unwrap_or(id)
}

/// Returns whether `reference` is this id, or at least its first `shortest` digits.
#[must_use]
pub fn means_id(reference: &str, id: &str, shortest: usize) -> bool {
    let bare = bare_id(reference);
    bare == id || (bare.len() >= shortest && id.starts_with(bare))
}

/// Returns whether `reference` may mean this name: `docker.io/library/x:latest` may be written `x:latest` or `x`.
#[must_use]
pub fn means_name(reference: &str, name: &str) -> bool {
    let [reference, name] = [reference, name].map(|name| name.strip_suffix(":latest").unwrap_or(name));
    name.strip_suffix(reference).is_some_and(|start| start.is_empty() || start.ends_with('/'))
}

/// Returns whether `reference` is a name, a digest or the whole id of this image.
#[must_use]
pub fn is_of_image(reference: &str, id: &str, names: &[String], digests: &[String]) -> bool {
    let is_digest = |digest: &String| {
        digest == reference || names.iter().any(|name| format!("{}@{digest}", repository(name)) == reference)
    };
    id == bare_id(reference)
        || names.iter().any(|name| means_name(reference, name))
        || digests.iter().any(is_digest)
}

/// Minimum length of the start of an id.
pub const SHORTEST_ID: usize = 3;

/// Returns whether `reference` is the start of the id or of a digest of this image.
#[must_use]
pub fn starts_id_of_image(reference: &str, id: &str, digests: &[String]) -> bool {
    let start = bare_id(reference);
    let mut digests = digests.iter().map(|digest| bare_id(digest));
    start.len() >= SHORTEST_ID && (id.starts_with(start) || digests.any(|digest| digest.starts_with(start)))
}

/// Returns whether `wanted` refers to an image with these names and manifest digests.
#[must_use]
pub fn means(wanted: &str, names: &[String], digests: &[String]) -> bool {
    let wanted = normalized(wanted);
    if names.iter().any(|name| normalized(name) == wanted) {
        return true;
    }
    // A digest also matches if the image has another tag of the same repository here.
    let Some((repository_wanted, digest)) = wanted.split_once('@') else { return false };
    digests.iter().any(|have| have == digest)
        && (names.is_empty() || names.iter().any(|name| repository(&normalized(name)) == repository_wanted))
}

/// Works like [`means`], but a name without a registry may match in any registry, as in podman
/// (`unqualified-search-registries`, aliases, `localhost`).
#[must_use]
pub fn may_mean(wanted: &str, names: &[String], digests: &[String]) -> bool {
    if means(wanted, names, digests) {
        return true;
    }
    let (name, digest) = split_digest(wanted);
    let (path, tag) = split_tag(name);
    if host(path).is_some() || digest.is_some_and(|digest| !digests.iter().any(|have| have == digest)) {
        return false;
    }
    names.iter().map(|name| normalized(name)).any(|name| {
        let (repository, of_name) = split_tag(split_digest(&name).0);
        let same = repository.strip_suffix(path).is_some_and(|start| start.ends_with('/'));
        same && (digest.is_some() || of_name.unwrap_or("latest") == tag.unwrap_or("latest"))
    })
}

/// Returns whether the image of a container, as its engine recorded it, may be this image. The record may contain
/// the id or its first digits, one of the names in full or in part, or the digest of a manifest in any repository
/// (podman, `LookupImage`).
#[must_use]
pub fn may_be(reference: &str, id: &str, names: &[String], digests: &[String]) -> bool {
    let stored = reference.strip_prefix("containers-storage:");
    let reference = stored.map_or(reference, |name| name.rsplit_once(']').map_or(name, |(_, name)| name));
    let (name, digest) = split_digest(reference);
    let digest = digest.unwrap_or(reference);
    // `podman` is an alias of `quay.io/podman/stable` (the short names that containers-common ships).
    let (path, _) = split_tag(name);
    let may_be_alias_of = |name: &String| split_digest(name).0.split('/').any(|part| part == path);
    means_id(reference, id, 1)
        || names.iter().any(may_be_alias_of)
        || digests.iter().any(|have| have == digest)
        || names.iter().any(|name| means_name(reference, name))
        || may_mean(reference, names, digests)
}

/// Returns whether the reference certainly means this image, so that no other store must be searched for it.
#[must_use]
pub fn is_surely(reference: &str, id: &str, names: &[String], digests: &[String]) -> bool {
    const SHORTEST: usize = 12;
    means_id(reference, id, SHORTEST) || (host(reference).is_some() && means(reference, names, digests))
}

fn split_digest(reference: &str) -> (&str, Option<&str>) {
    reference.split_once('@').map_or((reference, None), |(name, digest)| (name, Some(digest)))
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
    fn short_names_are_left_by_cri() {
        let digest = format!("sha256:{}", "0a".repeat(32));
        // As seen with containerd 1.6.
        for (name, is_removed) in [
            ("docker.io/library/dev:latest", true),
            ("docker.io/library/dev", true),
            ("localhost/x", true),
            ("reg.local:5000/a/b:1", true),
            ("Strange Name", true),
            (&digest, true),
            (&format!("docker.io/library/foo@{digest}"), true),
            (&format!("reg.local/a:1@{digest}"), true),
            ("dev:1", false),
            ("team/dev:1", false),
            ("docker.io/dev:1", false),
            ("index.docker.io/library/dev:1", false),
            (&format!("import-2026-11-21@{digest}"), false),
        ] {
            assert_eq!(is_removed_by_cri(name), is_removed, "{name}");
        }
    }

    #[test]
    fn short_names_follow_dockers_rules() {
        for (reference, long, in_repository, on) in [
            ("nginx", "docker.io/library/nginx:latest", "nginx", "docker.io"),
            ("nginx:1.27", "docker.io/library/nginx:1.27", "nginx", "docker.io"),
            ("bitnami/redis", "docker.io/bitnami/redis:latest", "bitnami/redis", "docker.io"),
            (
                "index.docker.io/library/nginx",
                "docker.io/library/nginx:latest",
                "index.docker.io/library/nginx",
                "index.docker.io",
            ),
            ("docker.io/nginx", "docker.io/library/nginx:latest", "docker.io/nginx", "docker.io"),
            ("docker.io/a/nginx", "docker.io/a/nginx:latest", "docker.io/a/nginx", "docker.io"),
            ("quay.io/a/b", "quay.io/a/b:latest", "quay.io/a/b", "quay.io"),
            ("quay.io/a/b@sha256:0", "quay.io/a/b@sha256:0", "quay.io/a/b", "quay.io"),
            ("localhost/a", "localhost/a:latest", "localhost/a", "localhost"),
            ("registry:5000/a", "registry:5000/a:latest", "registry:5000/a", "registry:5000"),
            ("registry:5000/a:t", "registry:5000/a:t", "registry:5000/a", "registry:5000"),
            ("registry:5000/a:t@sha256:0", "registry:5000/a@sha256:0", "registry:5000/a", "registry:5000"),
        ] {
            let found = (normalized(reference), repository(reference), registry(reference));
            assert_eq!(found, (long.to_owned(), in_repository, on), "{reference}");
        }
        assert_eq!(
            long_names("busybox"),
            ["busybox:latest", "docker.io/library/busybox:latest", "localhost/busybox:latest"]
        );
    }

    #[test]
    fn names_digests_and_ids_match_references() {
        let names = ["quay.io/team/web:1".to_owned(), "localhost/app:latest".to_owned()];
        let digests = ["sha256:aa".to_owned()];
        // The name in full, in any registry, as the end of a name.
        for (wanted, in_full, anywhere, by_end) in [
            ("quay.io/team/web:1", true, true, true),
            ("quay.io/team/web:2", false, false, false),
            ("team/web:1", false, true, true),
            ("web:1", false, true, true),
            ("eb:1", false, false, false),
            ("web", false, false, false),
            ("app", false, true, true),
            ("app:latest", false, true, true),
            ("localhost/app", true, true, true),
            ("docker.io/app", false, false, false),
            ("web@sha256:aa", false, true, false),
            ("web@sha256:bb", false, false, false),
            ("quay.io/team/web@sha256:aa", true, true, false),
            ("quay.io/team/web:9@sha256:aa", true, true, false),
            ("quay.io/team/web@sha256:bb", false, false, false),
            ("quay.io/team/other@sha256:aa", false, false, false),
            ("", false, false, false),
        ] {
            let found = (
                means(wanted, &names, &digests),
                may_mean(wanted, &names, &digests),
                names.iter().any(|name| means_name(wanted, name)),
            );
            assert_eq!(found, (in_full, anywhere, by_end), "{wanted}");
        }
        assert!(means("quay.io/a/b@sha256:aa", &[], &digests), "dangling, but the same content");
        assert!(!means("quay.io/a/b:1", &[], &digests));
        for (wanted, expected) in
            [("abcdef", true), ("sha256:abcdef", true), ("sha256:abc", true), ("ab", false), ("bcd", false)]
        {
            assert_eq!(means_id(wanted, "abcdef", 3), expected, "{wanted}");
        }
    }

    #[test]
    fn whole_references_are_accepted() {
        let [hex, hex_512] = ["0a".repeat(32), "0a".repeat(64)];
        for text in [
            "quay.io/team/web:1",
            "nginx",
            "cafe",
            "docker:dind",
            "localhost:5000/a-b_c.d",
            "localhost/a__b---c/d:1.0_RC-2",
            "Registry.Example:443/a/b:_x",
            &hex,
            &format!("sha256:{hex}"),
            &format!("sha512:{hex_512}"),
            &format!("quay.io/a@sha256:{hex}"),
            &format!("quay.io/a:1@sha256:{hex}"),
        ] {
            assert_eq!(checked(text), Ok(text));
            assert_eq!(checked(&format!("docker://{text}")), Ok(text));
            assert_eq!(checked(&format!("docker-pullable://{text}")), Ok(text));
        }
        for (text, why) in [
            ("docker://docker://quay.io/a:1", "schemes"),
            ("https://quay.io/a:1", "schemes"),
            ("oci:///tmp/a", "schemes"),
            ("docker://", "not an image reference or"),
            ("containers-storage:quay.io/a:1", "not an image of a registry"),
            ("containers-storage:[overlay@/a+/b]quay.io/a:1", "not an image of a registry"),
            ("oci-archive:/tmp/x.tar", "not an image of a registry"),
            ("dir:x", "not an image of a registry"),
            ("quay.io//ci/job:1", "a part of its name is empty"),
            ("quay.io/ci/job:", "its tag is empty"),
            (&format!("quay.io/ci/job:@sha256:{hex}"), "its tag is empty"),
            ("quay.io/ci/", "not an image reference or"),
            ("quay.io:/ci/job", "not an image reference or"),
            ("quay.io:port/ci/job", "not an image reference or"),
            ("quay.io/Team/web:1", "not an image reference or"),
            ("quay.io/a..b:1", "not an image reference or"),
            ("quay.io/a-:1", "not an image reference or"),
            ("quay.io/a:-1", "not an image reference or"),
            ("quay.io/a:1+2", "not an image reference or"),
            (&hex[..12], "start of an id"),
            (&hex[..63], "start of an id"),
            (&hex_512[..65], "start of an id"),
            ("sha256:0a0a0a", "not a whole digest"),
            (&format!("sha256:{}", hex.to_uppercase()), "not a whole digest"),
            (&hex.to_uppercase(), "not an image reference or"),
            ("quay.io/a@sha256:0a", "not a whole digest"),
            ("quay.io/a@latest", "not a whole digest"),
            ("quay.io/a@", "not a whole digest"),
            (&format!("quay.io/a@md5:{hex}"), "not a whole digest"),
            ("-y", "not an image reference or"),
            ("/etc/passwd", "not an image reference or"),
            ("./a", "not an image reference or"),
            ("a b", "not an image reference or"),
            ("a\u{1b}[31m", "not an image reference or"),
            ("quay.io/*", "not an image reference or"),
            ("", "not an image reference or"),
        ] {
            let found = checked(text).unwrap_err();
            assert!(found.contains(why), "{text}: {found}");
        }
    }

    #[test]
    fn recorded_references_may_mean_the_image() {
        let id = "0123456789abcdef".repeat(4);
        let names = ["docker.io/library/data:1".to_owned(), "localhost/x:latest".to_owned()];
        let digests = ["sha256:aa".to_owned(), "sha256:bb".to_owned()];
        for (reference, possibly, surely) in [
            (id.as_str(), true, true),
            (&id[..12], true, true),
            (&id[..1], true, false),
            ("sha256:0123456789abcdef", true, true),
            ("docker.io/library/data:1", true, true),
            ("docker.io/data:1", true, true),
            ("library/data:1", true, false),
            ("data:1", true, false),
            ("data", false, false),
            ("ta:1", false, false),
            ("x", true, false),
            ("localhost/x", true, true),
            ("localhost/x@sha256:bb", true, true),
            ("localhost/x:9@sha256:bb", true, true),
            ("quay.io/gone@sha256:bb", true, false),
            ("sha256:bb", true, false),
            ("localhost/x@sha256:cc", false, false),
            ("containers-storage:localhost/x:latest", true, false),
            ("containers-storage:[overlay@/a+/b]localhost/x@sha256:aa", true, false),
            // These may be aliases.
            ("library", true, false),
            ("library:3", true, false),
            ("", false, false),
        ] {
            let found =
                (may_be(reference, &id, &names, &digests), is_surely(reference, &id, &names, &digests));
            assert_eq!(found, (possibly, surely), "{reference}");
        }
    }
}
