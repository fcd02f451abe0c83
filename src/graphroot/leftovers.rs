//! Temporary files of the containers tools, by name. Pure.
//!
//! Where big blobs and build contexts wait: `/var/tmp` by default, `$TMPDIR`, CRI-O's
//! `big_files_temporary_dir` (container-libs, `image/internal/tmpdir`; podman, buildah). Each name
//! ends in a random number.

use crate::sys::quiet::{Entry, Kind};

/// Names that end in digits after one of these.
const NUMBERED: [&str; 6] = ["storage", "oci", "docker-tar", "buildah", "libpod_builder", "podman-build"];

/// Since 2023 all names of the image library begin so.
const LIBRARY: &str = "container_images_";

/// Programs that make them, or may be between two of their files.
pub(super) const TOOLS: [&str; 7] =
    ["podman", "buildah", "skopeo", "crio", "containers-storage", "podman-remote", "storage-untar"];

/// Whether this entry of a temporary directory has a name that only these tools give.
#[must_use]
pub fn is_leftover(entry: &Entry) -> bool {
    let plain = matches!(entry.kind, Kind::Directory | Kind::File);
    plain && entry.name.to_str().is_some_and(is_name)
}

fn is_name(name: &str) -> bool {
    let numbered = |rest: &str| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit());
    name.strip_prefix(LIBRARY).is_some_and(|rest| !rest.is_empty())
        || NUMBERED.iter().any(|prefix| name.strip_prefix(prefix).is_some_and(numbered))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for name in [
            "container_images_storage123",
            "container_images_docker-tar12",
            "storage1011",
            "oci789",
            "buildah456",
            "libpod_builder2",
        ] {
            assert!(is_name(name), "{name}");
        }
        for name in [
            "storage",
            "storage.conf",
            "oci-runtime",
            "buildah-notes",
            "container_images_",
            "systemd-private-1",
            "ocid7x",
            "",
        ] {
            assert!(!is_name(name), "{name}");
        }
        let symlink = Entry { name: "storage1".into(), kind: Kind::Symlink };
        assert!(!is_leftover(&symlink), "it leads elsewhere");
    }
}
