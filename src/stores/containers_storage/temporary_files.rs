//! Recognises temporary files of the containers tools by name and content.
//!
//! They hold big blobs and build contexts, in `/var/tmp` by default, `$TMPDIR`, CRI-O's
//! `big_files_temporary_dir` (container-libs, `image/internal/tmpdir`; podman, buildah). Everybody
//! may write there, and a person may use the name `storage1`. So a name alone proves nothing: owner, mode
//! and content must match too.

use std::io::{self, Read};
use std::path::Path;

use jiff::civil::Date;
use rustix::fs::FileType;

use crate::sys::quiet::{DirectoryEntry, FileKind, Within};

/// What the tools make, by the name before the number.
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

/// Since 2023 all names of the image library begin so; its other kinds are single files or are
/// reported alone.
const LIBRARY: &str = "container_images_";

/// The directory of the cache mounts of builds, alone (buildah up to 1.30) or with a uid behind it
/// (buildah, `internal/volumes/volumes.go`).
const CACHE_MOUNTS: &str = "buildah-cache";

/// Programs that make them, or may be between two of their files.
pub(crate) const TOOLS: [&str; 7] =
    ["podman", "buildah", "skopeo", "crio", "containers-storage", "podman-remote", "storage-untar"];

/// Entries of a directory that are looked at: a pull has as many as an image has layers.
const MOST_ENTRIES: usize = 10_000;

/// The kind of file behind a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    /// Blobs of a pull, numbered from 1 (`storage/storage_dest.go`).
    Blobs,
    /// An OCI layout that is being packed or was unpacked (`oci/archive`).
    Layout,
    /// A docker archive, decompressed (`docker/internal/tarfile`).
    Tar,
    /// The bundle of a RUN step, the blobs of a commit (`layer`, then its digest), or a build
    /// context from elsewhere (`download`).
    Buildah,
    /// A build context that a client sent (`pkg/api/handlers/compat`).
    Context,
}

/// Whether this entry of a temporary directory has a name as these tools give it. Go ends such
/// names in a random number of 32 bits: all but one of 4,000 have 7 digits or more.
#[must_use]
pub fn is_temporary(entry: &DirectoryEntry) -> bool {
    let plain = matches!(entry.kind, FileKind::Directory | FileKind::File);
    let has_name = |name: &str| kind_and_prefix(name).is_some() || is_cache_mounts(name);
    plain && entry.name.to_str().is_some_and(has_name)
}

/// Returns whether a directory of this name has the cache mounts of builds.
#[must_use]
pub fn is_cache_mounts(name: &str) -> bool {
    let uid = name.strip_prefix(CACHE_MOUNTS);
    uid.is_some_and(|uid| {
        uid.is_empty() || uid.strip_prefix('-').is_some_and(|uid| uid.parse::<u32>().is_ok())
    })
}

/// What a name stands for; `Some(None)`: a name of the image library's that is not in the table.
fn kind_and_prefix(name: &str) -> Option<Option<Made>> {
    let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
    if !(7..=10).contains(&(name.len() - prefix.len())) {
        return None;
    }
    match MADE.iter().find(|(known, _)| *known == prefix) {
        Some((_, made)) => Some(Some(*made)),
        None => prefix.starts_with(LIBRARY).then_some(None),
    }
}

/// Why what is at `path`, whose name [`is_temporary`] takes for the tools', need not be theirs;
/// `None` where owner, mode and content are as they make it.
pub(crate) fn doubt(within: &Within, path: &Path) -> Option<String> {
    let name = path.file_name().and_then(|name| name.to_str());
    if name.is_some_and(is_cache_mounts) {
        let why = "it holds the cache mounts of builds (RUN --mount=type=cache), which later builds use: `buildah \
                   prune` deletes them, since podman 5 `podman system prune` as well";
        return Some(why.into());
    }
    let examined = look(within, path);
    let doubt = examined.unwrap_or_else(|error| Some(format!("cannot be examined: {error}")));
    // What a person has the tools write has their content.
    let dated = || name.is_some_and(ends_in_a_date);
    doubt.or_else(|| dated().then(|| "its number looks like a date".into()))
}

/// Whether the number in a name begins with a year, a month and a day: `oci20260101`, `oci2026010112`.
fn ends_in_a_date(name: &str) -> bool {
    let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let date = name[prefix.len()..].get(..8).and_then(|digits| digits.parse::<u32>().ok());
    let is_date = |date: u32| {
        let part = |number: u32| i8::try_from(number % 100).unwrap_or(0);
        let year = i16::try_from(date / 10_000).unwrap_or(0);
        (1900..2100).contains(&year) && Date::new(year, part(date / 100), part(date)).is_ok()
    };
    date.is_some_and(is_date)
}

fn look(within: &Within, path: &Path) -> io::Result<Option<String>> {
    let facts = rustix::fs::fstat(within.handle(path)?)?;
    let owner = facts.st_uid;
    if owner != rustix::process::geteuid().as_raw() {
        return Ok(Some(format!("it belongs to the user {owner}")));
    }
    // Go makes them for their owner alone; buildah lets others through its bundles.
    if facts.st_mode & 0o066 != 0 {
        return Ok(Some("other users may read or write it".into()));
    }
    let made = path.file_name().and_then(|name| name.to_str()).and_then(kind_and_prefix).flatten();
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
    let named =
        |entry: &DirectoryEntry| entry.name.to_str().is_some_and(|name| is_part(made, name, entry.kind));
    let odd = entries.iter().find(|entry| !named(entry));
    Ok(match odd {
        Some(odd) => Some(format!("no tool puts {} into it", odd.name.to_string_lossy())),
        None if entries.len() > MOST_ENTRIES => Some(format!("it has {} entries", entries.len())),
        None => None,
    })
}

/// Whether a tool puts this at the top of such a directory.
fn is_part(made: Made, name: &str, kind: FileKind) -> bool {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is = |file: &[&str], directory: &[&str]| match kind {
        FileKind::File => file.contains(&name),
        FileKind::Directory => directory.contains(&name),
        FileKind::Symlink | FileKind::Special => false,
    };
    match made {
        Made::Blobs => kind == FileKind::File && number(name),
        Made::Layout => {
            let blob = || name.strip_prefix("oci-put-blob").is_some_and(number);
            is(&["oci-layout", "index.json"], &["blobs"]) || kind == FileKind::File && blob()
        }
        Made::Tar => false,
        Made::Buildah => {
            let blob = || name.strip_prefix("sha256:").is_some_and(|hex| hex.len() == 64);
            let files = ["config.json", "hosts", "hostname", "resolv.conf", "pid", "layer"];
            is(&files, &["empty", "mnt", "run", "download"])
                || kind == FileKind::File && (blob() || name.starts_with(".tmp-config.json"))
                || kind == FileKind::Directory && name.strip_prefix("mounts").is_some_and(number)
                || kind == FileKind::Special && name == "console.sock"
        }
        Made::Context => is(&["tarBall"], &["build"]),
    }
}

/// An archive, or one of which nothing has come yet.
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
    fn names_end_in_a_random_number() {
        let is_name =
            |name: &str| is_temporary(&DirectoryEntry { name: name.into(), kind: FileKind::Directory });
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

    /// Files (with `/` at the end: directories) below a name that the tools give.
    fn made(name: &str, mode: u32, files: &[&str]) -> Option<String> {
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
    fn content_is_the_tools() {
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
            assert_eq!(made(name, mode, &files), None, "{name} {files:?}");
            assert!(made(name, mode | 0o044, &files).unwrap().contains("other users"), "{name}");
        }
        // buildah opens the way into a bundle.
        assert_eq!(made("buildah4089947572", 0o711, &["config.json"]), None);
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
            let said = made(name, if files[0].starts_with('=') { 0o600 } else { 0o700 }, &files);
            assert_eq!(said.is_some(), !why.is_empty(), "{name} {files:?}");
            assert!(said.unwrap_or_default().contains(why), "{name} {files:?}");
        }
    }

    /// A person's archive, made with the tools, has all that theirs have but a random number.
    #[test]
    fn dates_are_no_random_numbers() {
        let tar = format!("={}ustar\0", "x".repeat(257));
        for (name, mode, files) in [
            ("oci20260101", 0o700, vec!["oci-layout", "index.json", "blobs/"]),
            ("storage19991231", 0o700, vec!["1"]),
            ("docker-tar20260101", 0o600, vec![tar.as_str()]),
            ("container_images_docker-tar2026010123", 0o600, vec![tar.as_str()]),
            ("buildah202601011", 0o700, vec!["layer"]),
        ] {
            assert_eq!(made(name, mode, &files).as_deref(), Some("its number looks like a date"), "{name}");
        }
        for name in
            ["oci20261301", "oci20260230", "oci18991231", "oci21000101", "oci1202601", "oci3920260101"]
        {
            assert_eq!(made(name, 0o700, &["oci-layout"]), None, "{name}");
        }
    }

    #[test]
    fn another_users_are_not_ours() {
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
