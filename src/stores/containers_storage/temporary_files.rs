//! Recognizes temporary files of the containers tools by name and content.
//!
//! The tools write blobs and build contexts to `/var/tmp` by default, to `$TMPDIR`, or to CRI-O's
//! `big_files_temporary_dir` (container-libs, `image/internal/tmpdir`; podman, buildah). A killed tool leaves them there.
//! Every user can write to these directories, and a file of a user can have the name `storage1`. A name alone therefore
//! proves nothing: owner, mode and content must match, too.

use std::io::{self, Read};
use std::path::Path;

use jiff::civil::Date;
use rustix::fs::FileType;

use crate::sys::quiet::{DirectoryEntry, FileKind, Within};

/// Kinds of files that the tools create, by the name before the number.
const MADE: [(&str, Made); 8] = [
    ("container_images_storage", Made::Blobs),
    ("container_images_oci", Made::Layout),
    ("container_images_docker-tar", Made::Tar),
    ("storage", Made::Blobs),
    ("oci", Made::Layout),
    ("docker-tar", Made::Tar),
    ("buildah", Made::Buildah),
    ("libpod_builder", Made::Context),
];

/// Start of all names of the image library since 2023. Kinds that are not in [`MADE`] are reported, never deleted.
const LIBRARY: &str = "container_images_";

/// Directory of the cache mounts of builds. Since buildah 1.31 a dash and the uid follow (buildah,
/// `internal/volumes/volumes.go`).
const CACHE_MOUNTS: &str = "buildah-cache";

/// Programs that create such files. A running one may have closed a file and not yet opened the next one.
pub(crate) const TOOLS: [&str; 7] =
    ["podman", "buildah", "skopeo", "crio", "containers-storage", "podman-remote", "storage-untar"];

/// Maximum number of entries in such a directory. A pull creates one for each layer of the image.
const MOST_ENTRIES: usize = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    /// Blobs of a pull, numbered from 1 (`storage/storage_dest.go`).
    Blobs,
    /// An OCI layout, before it is packed or after it was unpacked (`oci/archive`).
    Layout,
    /// A docker archive, decompressed (`docker/internal/tarfile`).
    Tar,
    /// The bundle of a RUN step, the blobs of a commit (`layer`, later the digest), or a downloaded build context
    /// (`download`).
    Buildah,
    /// A build context that a client sent (`pkg/api/handlers/compat`).
    Context,
}

/// Returns true if an entry of a temporary directory has a name that these tools create.
///
/// Go appends a random number of 32 bits to such names. All but one in 4,000 of these numbers have 7 digits or more, and
/// shorter ones are ignored.
#[must_use]
pub fn is_temporary(entry: &DirectoryEntry) -> bool {
    matches!(entry.kind, FileKind::Directory | FileKind::File)
        && entry.name.to_str().is_some_and(|name| kind_of(name).is_some() || is_cache_mounts(name))
}

/// Returns true if a directory with this name contains the cache mounts of builds.
#[must_use]
pub fn is_cache_mounts(name: &str) -> bool {
    let uid = name.strip_prefix(CACHE_MOUNTS);
    uid.is_some_and(|uid| {
        uid.is_empty() || uid.strip_prefix('-').is_some_and(|uid| uid.parse::<u32>().is_ok())
    })
}

/// Returns the kind of file that a name means, or `Some(None)` for a name of the image library that is not in [`MADE`].
fn kind_of(name: &str) -> Option<Option<Made>> {
    let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
    if !(7..=10).contains(&(name.len() - prefix.len())) {
        return None;
    }
    match MADE.iter().find(|(known, _)| *known == prefix) {
        Some((_, made)) => Some(Some(*made)),
        None => prefix.starts_with(LIBRARY).then_some(None),
    }
}

/// Returns the reason to doubt that a tool created the file or directory at `path`, or `None` if owner, mode and content
/// are as the tools create them. The name has passed [`is_temporary`].
pub(crate) fn doubt(within: &Within, path: &Path) -> Option<String> {
    let name = path.file_name().and_then(|name| name.to_str());
    if name.is_some_and(is_cache_mounts) {
        let why = "it holds the cache mounts of builds (RUN --mount=type=cache), which later builds use: `buildah \
                   prune` deletes them";
        return Some(why.into());
    }
    let doubt = examine(within, path).unwrap_or_else(|error| Some(format!("cannot be examined: {error}")));
    // An archive that a user created with a tool has the right content; only its number differs from a random one.
    let is_dated = name.is_some_and(is_numbered_by_date);
    doubt.or_else(|| is_dated.then(|| "its number looks like a date".into()))
}

/// Returns true if the number in a name begins with a year, a month and a day: `oci20260101`, `oci2026010112`.
fn is_numbered_by_date(name: &str) -> bool {
    let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let digits = name[prefix.len()..].get(..8);
    let Some(date) = digits.and_then(|digits| digits.parse::<u32>().ok()) else { return false };
    let year = i16::try_from(date / 10_000).unwrap_or(0);
    let [month, day] = [date / 100, date].map(|number| i8::try_from(number % 100).unwrap_or(0));
    (1900..2100).contains(&year) && Date::new(year, month, day).is_ok()
}

/// Compares owner, mode and content with those that the tools create; see [`doubt`].
fn examine(within: &Within, path: &Path) -> io::Result<Option<String>> {
    let facts = rustix::fs::fstat(within.handle(path)?)?;
    let owner = facts.st_uid;
    if owner != rustix::process::geteuid().as_raw() {
        return Ok(Some(format!("it belongs to the user {owner}")));
    }
    // Go creates them without permissions for other users; buildah's bundles have the permission to enter.
    if facts.st_mode & 0o066 != 0 {
        return Ok(Some("other users may read or write it".into()));
    }
    let made = path.file_name().and_then(|name| name.to_str()).and_then(kind_of).flatten();
    let Some(made) = made else { return Ok(Some("its contents are unknown".into())) };
    let is_dir = FileType::from_raw_mode(facts.st_mode).is_dir();
    if is_dir == (made == Made::Tar) {
        let kind = if is_dir { "a directory" } else { "no directory" };
        return Ok(Some(format!("it is {kind}")));
    }
    if made == Made::Tar {
        return Ok((!is_tar(within, path)?).then(|| "it is not a tar archive".into()));
    }
    let entries = within.list(path)?;
    let odd =
        entries.iter().find(|entry| !entry.name.to_str().is_some_and(|name| is_part(made, name, entry.kind)));
    Ok(match odd {
        Some(odd) => Some(format!("no tool puts {} into it", odd.name.to_string_lossy())),
        None if entries.len() > MOST_ENTRIES => Some(format!("it has {} entries", entries.len())),
        None => None,
    })
}

/// Returns true if a tool creates this entry at the top of such a directory.
fn is_part(made: Made, name: &str, kind: FileKind) -> bool {
    match (made, kind) {
        (Made::Blobs, FileKind::File) => is_number(name),
        (Made::Layout, FileKind::File) => {
            ["oci-layout", "index.json"].contains(&name)
                || name.strip_prefix("oci-put-blob").is_some_and(is_number)
        }
        (Made::Layout, FileKind::Directory) => name == "blobs",
        (Made::Buildah, FileKind::File) => {
            ["config.json", "hosts", "hostname", "resolv.conf", "pid", "layer"].contains(&name)
                || name.strip_prefix("sha256:").is_some_and(|hex| hex.len() == 64)
                || name.starts_with(".tmp-config.json")
        }
        (Made::Buildah, FileKind::Directory) => {
            ["empty", "mnt", "run", "download"].contains(&name)
                || name.strip_prefix("mounts").is_some_and(is_number)
        }
        (Made::Buildah, FileKind::Special) => name == "console.sock",
        (Made::Context, FileKind::File) => name == "tarBall",
        (Made::Context, FileKind::Directory) => name == "build",
        _ => false,
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns true for a tar archive and for an empty file, to which the tool has not yet written.
fn is_tar(within: &Within, path: &Path) -> io::Result<bool> {
    let mut header = Vec::new();
    within.open_file(path)?.take(512).read_to_end(&mut header)?;
    Ok(header.is_empty() || header.get(257..262) == Some(b"ustar"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_names_with_long_numbers_are_temporary() {
        fn is_name(name: &str) -> bool {
            is_temporary(&DirectoryEntry { name: name.into(), kind: FileKind::Directory })
        }
        for name in [
            "container_images_storage1234567",
            "container_images_docker-tar4294967295",
            "container_images_1234567",
            "storage1175831575",
            "oci95520608",
            "docker-tar714549866",
            "buildah4089947572",
            "libpod_builder1234567",
            "buildah-cache",
            "buildah-cache-0",
            "buildah-cache-100000",
        ] {
            assert!(is_name(name), "{name}");
        }
        for name in [
            "storage",
            "storage1",
            "storage123456",
            "oci2024",
            "oci-20240101",
            "buildah3",
            "buildah-cache-",
            "buildah-cache-old",
            "buildah12345678901",
            "buildah-notes1234567",
            "mystorage1234567",
            "1234567",
            "storage.conf",
            "container_images_",
            "systemd-private-1",
            "storage1234567.bak",
            "",
        ] {
            assert!(!is_name(name), "{name}");
        }
        let symlink = DirectoryEntry { name: "storage1175831575".into(), kind: FileKind::Symlink };
        assert!(!is_temporary(&symlink), "it leads elsewhere");
    }

    /// Creates a directory with these files and returns the doubt about it. A name that ends in `/` is a directory. A
    /// single entry `=content` creates a file instead.
    fn doubt_about(name: &str, mode: u32, files: &[&str]) -> Option<String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        if let [content] = files
            && let Some(content) = content.strip_prefix('=')
        {
            fs::write(&path, content).unwrap();
        } else {
            fs::create_dir(&path).unwrap();
            for file in files {
                match file.strip_suffix('/') {
                    Some(directory) => fs::create_dir_all(path.join(directory)).unwrap(),
                    None => fs::write(path.join(file), "x").unwrap(),
                }
            }
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        doubt(&Within::at([dir.path()]), &path)
    }

    #[test]
    fn content_of_other_programs_is_doubted() {
        let tar = format!("={}ustar\0", "x".repeat(257));
        for (name, files) in [
            ("storage1175831575", vec![]),
            ("storage1175831575", vec!["1", "2", "13"]),
            ("container_images_storage1175831575", vec!["1"]),
            ("oci95520608", vec!["oci-layout", "index.json", "blobs/"]),
            ("oci95520608", vec!["blobs/", "oci-put-blob123"]),
            ("docker-tar714549866", vec![tar.as_str()]),
            ("container_images_docker-tar714549866", vec!["="]),
            ("buildah4089947572", vec!["config.json", "mnt/", "hosts", "empty/", "run/"]),
            ("buildah4089947572", vec!["layer"]),
            ("buildah4089947572", vec!["download/"]),
            ("libpod_builder4089947572", vec!["tarBall", "build/"]),
        ] {
            let mode = if files.first().is_some_and(|file| file.starts_with('=')) { 0o600 } else { 0o700 };
            assert_eq!(doubt_about(name, mode, &files), None, "{name} {files:?}");
            assert!(doubt_about(name, mode | 0o044, &files).unwrap().contains("other users"), "{name}");
        }
        // The bundles of buildah have the permission to enter.
        assert_eq!(doubt_about("buildah4089947572", 0o711, &["config.json"]), None);
        for (name, files, why) in [
            ("storage1175831575", vec!["1", "notes.txt"], "notes.txt"),
            ("storage1175831575", vec!["1/"], "puts 1 into"),
            ("storage1175831575", vec!["=x"], "no directory"),
            ("oci20240101", vec!["index.json", "thesis.tex"], "thesis.tex"),
            ("docker-tar714549866", vec!["=not a tar"], "not a tar"),
            ("docker-tar714549866", vec!["1"], "a directory"),
            ("buildah4089947572", vec!["Dockerfile"], "Dockerfile"),
            ("buildah4089947572", vec!["=secret"], "no directory"),
            ("libpod_builder4089947572", vec!["build/", "x"], "puts x"),
            ("container_images_future1234567", vec!["=x"], "unknown"),
            ("container_images_1234567", vec!["=x"], "unknown"),
        ] {
            let mode = if files[0].starts_with('=') { 0o600 } else { 0o700 };
            let doubt = doubt_about(name, mode, &files);
            assert_eq!(doubt.is_some(), !why.is_empty(), "{name} {files:?}");
            assert!(doubt.unwrap_or_default().contains(why), "{name} {files:?}");
        }
    }

    #[test]
    fn number_that_is_a_date_is_doubted() {
        let tar = format!("={}ustar\0", "x".repeat(257));
        for (name, mode, files) in [
            ("oci20260101", 0o700, vec!["oci-layout", "index.json", "blobs/"]),
            ("storage19991231", 0o700, vec!["1"]),
            ("docker-tar20260101", 0o600, vec![tar.as_str()]),
            ("container_images_docker-tar2026010123", 0o600, vec![tar.as_str()]),
            ("buildah202601011", 0o700, vec!["layer"]),
        ] {
            assert_eq!(
                doubt_about(name, mode, &files).as_deref(),
                Some("its number looks like a date"),
                "{name}"
            );
        }
        for name in
            ["oci20261301", "oci20260230", "oci18991231", "oci21000101", "oci1202601", "oci3920260101"]
        {
            assert_eq!(doubt_about(name, 0o700, &["oci-layout"]), None, "{name}");
        }
    }

    #[test]
    fn file_of_another_user_is_doubted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("storage1175831575");
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(doubt(&Within::at([dir.path()]), &path), None);
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(1000), Some(1000)).unwrap();
            assert_eq!(doubt(&Within::at([dir.path()]), &path).unwrap(), "it belongs to the user 1000");
        }
        assert!(
            doubt(&Within::at([dir.path()]), &dir.path().join("storage1175831576"))
                .unwrap()
                .contains("cannot be examined")
        );
    }
}
