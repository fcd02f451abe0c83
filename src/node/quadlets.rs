//! Quadlets: units from which podman's generator creates services (podman-systemd.unit(5)), and the images that these
//! services need for their next start.
//!
//! Root's units and those of other users are read differently. A unit of root that cannot be read is an error, because
//! an image that it names could be deleted. The units of another user are untrusted: symlinks and paths out of the
//! user's directory are not followed, and the number of files and bytes is limited. A user who exceeds a limit may
//! name any image, which [`Quadlets::names_more`] reports.

use std::collections::HashSet;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{ImageNamers, Unreadable, content, manifest};
use crate::model::Finding;
use crate::model::NamedImage;
use crate::sys::quiet::{FileKind, is_absent};
use crate::sys::root::Root;
use crate::sys::sysroot::Sysroot;

pub const SYSTEM: [&str; 3] =
    ["/run/containers/systemd", "/etc/containers/systemd", "/usr/share/containers/systemd"];

/// Directories in which an administrator places units for users: for all users, or for one in a subdirectory named
/// after the uid. The generator of root ignores them.
pub const OF_USERS: [&str; 2] = ["/etc/containers/systemd/users", "/usr/share/containers/systemd/users"];

/// Maximum size of a unit or manifest; real ones have a few pages.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Maximum number of units that are read in one directory tree.
const MAX_FILES: usize = 10_000;
/// Maximum number of files, directories, manifests and problems in one directory tree of another user.
const MAX_USER_FILES: usize = 1000;
/// Maximum number of bytes that are read in one directory tree of another user.
const MAX_USER_BYTES: u64 = 2 << 20;
/// Maximum number of images that one directory tree of another user may name.
const MAX_USER_IMAGES: usize = 1000;
/// Maximum depth of nested directories.
const MAX_DEPTH: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitDirectory {
    /// Path inside the root.
    pub path: PathBuf,
    /// The directory belongs to another user: a file that cannot be read there is no error, and nothing outside of
    /// it is read.
    pub foreign: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quadlets {
    /// The images, in order of the files that name them.
    pub images: Vec<NamedImage>,
    pub findings: Vec<Finding>,
    /// A user has more files than are read, so any image may be named.
    pub names_more: bool,
}

/// Reads the units in `place` and below it, including drop-ins.
///
/// The images are those of `Image=` in containers, images and volumes, `ImageTag=` in images and builds, image mounts,
/// and the manifests that `Yaml=` names. An image that a drop-in overrides is included as well.
///
/// # Errors
/// If a path exists but cannot be read, in a directory that is not foreign: then the images that must be kept are
/// unknown.
pub fn read(root: &Sysroot, place: &UnitDirectory) -> Result<Quadlets, Unreadable> {
    let mut reader = QuadletReader {
        root,
        foreign: place.foreign,
        seen: HashSet::new(),
        manifests: HashSet::new(),
        files: 0,
        bytes_left: MAX_USER_BYTES,
        found: Quadlets::default(),
    };
    reader.directory(&place.path, 0)?;
    if reader.found.names_more {
        let message = "too many or too large files of one user: any image in that user's stores may be \
            named here";
        reader.finding(&place.path, message.into());
    }
    Ok(reader.found)
}

struct QuadletReader<'a> {
    root: &'a Sysroot,
    foreign: bool,
    /// Real paths of the directories that were read: symlinks can form cycles.
    seen: HashSet<PathBuf>,
    /// Manifests that were read, because several units, or one unit several times, may name the same manifest.
    manifests: HashSet<PathBuf>,
    files: usize,
    /// Bytes that may still be read in a foreign directory.
    bytes_left: u64,
    found: Quadlets,
}

impl QuadletReader<'_> {
    fn directory(&mut self, path: &Path, depth: usize) -> Result<(), Unreadable> {
        let real = match self.root.resolve(path) {
            Ok(real) => real,
            Err(error) if is_absent(&error) => return Ok(()),
            Err(error) => return self.unreadable(path, error),
        };
        if self.exceeds_limit() {
            return Ok(());
        }
        // `users` below root's own directories is for other users.
        let is_for_users = depth > 0 && OF_USERS.iter().any(|users| Path::new(users) == path);
        if !self.seen.insert(real.clone()) || is_for_users {
            return Ok(());
        }
        // A user can mount a filesystem that never answers, and place symlinks anywhere.
        if self.foreign
            && !self.root.is_foreign()
            && let Err(error) = Root::open(&real)
        {
            return self.unreadable(path, error);
        }
        let entries = match self.root.list(path) {
            Ok(entries) => entries,
            Err(error) if is_absent(&error) => return Ok(()),
            Err(error) => return self.unreadable(path, error),
        };
        for entry in entries {
            if self.found.names_more {
                return Ok(());
            }
            let below = path.join(&entry.name);
            let name = entry.name.as_bytes();
            // Units of a single user.
            if OF_USERS.iter().any(|users| Path::new(users) == path) && name.iter().all(u8::is_ascii_digit) {
                continue;
            }
            if entry.kind == FileKind::Symlink && self.foreign {
                if is_unit(&below) && !self.exceeds_limit() {
                    self.finding(&below, "is a user's symlink; not followed".into());
                }
                continue;
            }
            if is_unit(&below) || (name.ends_with(b".conf") && is_drop_in(path)) {
                if self.exceeds_limit() {
                    return Ok(());
                }
                if self.files > MAX_FILES {
                    self.finding(path, format!("more than {MAX_FILES} units; the rest are ignored"));
                    return Ok(());
                }
                self.file(&below)?;
            } else if entry.kind != FileKind::File && depth < MAX_DEPTH {
                self.directory(&below, depth + 1)?;
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &Path) -> Result<(), Unreadable> {
        let Some(bytes) = self.bytes(path)? else { return Ok(()) };
        let source = path.display().to_string();
        for value in unit(&String::from_utf8_lossy(&bytes)) {
            if self.found.names_more {
                return Ok(());
            }
            match value {
                // The name of another unit, which is read by itself.
                Value::Image(image) if is_unit(Path::new(&image)) => {}
                Value::Image(image) if image.contains('%') => {
                    if !self.exceeds_limit() {
                        let message = format!(
                            "the specifiers in {image:?} are not expanded; the image that it means is \
                             not protected"
                        );
                        self.finding(path, message);
                    }
                }
                Value::Image(reference) => self.image(NamedImage { reference, source: source.clone() }),
                Value::Yaml(file) => {
                    let file = path.parent().unwrap_or(Path::new("/")).join(file);
                    if !self.manifests.insert(file.clone()) || self.exceeds_limit() {
                        continue;
                    }
                    // A path in a user's unit may lead to a file of someone else.
                    let within = path.parent().is_some_and(|parent| file.starts_with(parent));
                    let plain = file.components().all(|part| part != std::path::Component::ParentDir);
                    if self.foreign && !(within && plain && self.is_plain(&file)) {
                        self.finding(path, format!("{} of a user is not read", file.display()));
                        continue;
                    }
                    let Some(bytes) = self.bytes(&file)? else { continue };
                    let source = file.display().to_string();
                    let manifest = manifest::read(&bytes);
                    if let Some(why) = manifest.problem {
                        self.finding(&file, manifest::unparsed(&why));
                    }
                    for reference in manifest.images {
                        self.image(NamedImage { reference, source: source.clone() });
                    }
                }
            }
        }
        Ok(())
    }

    /// Counts one more file, directory or problem, and returns whether a user's limit is exceeded.
    fn exceeds_limit(&mut self) -> bool {
        self.files += 1;
        self.found.names_more |= self.foreign && self.files > MAX_USER_FILES;
        self.found.names_more
    }

    fn image(&mut self, image: NamedImage) {
        self.found.names_more |= self.foreign && self.found.images.len() >= MAX_USER_IMAGES;
        if !self.found.names_more {
            self.found.images.push(image);
        }
    }

    /// Checks whether `file` is not a symlink, and its directory is among those that were opened and checked.
    fn is_plain(&self, file: &Path) -> bool {
        let real = self.root.resolve(file);
        let parent = file.parent().and_then(|path| self.root.resolve(path).ok());
        let is_checked = parent.as_ref().is_some_and(|parent| self.seen.contains(parent));
        is_checked
            && matches!((real, parent, file.file_name()), (Ok(real), Some(parent), Some(name)) if real == parent.join(name))
    }

    /// Returns the content of a file, or `None` if it does not exist or is not read; findings say why.
    fn bytes(&mut self, path: &Path) -> Result<Option<Vec<u8>>, Unreadable> {
        let limit = if self.foreign { self.bytes_left.min(MAX_FILE_BYTES) } else { MAX_FILE_BYTES };
        match content(self.root, path, limit) {
            Ok(Ok(bytes)) => {
                self.bytes_left = self.bytes_left.saturating_sub(bytes.len() as u64);
                return Ok(Some(bytes));
            }
            Ok(Err(error)) if is_absent(&error) => {}
            Ok(Err(error)) if limit < MAX_FILE_BYTES && error.kind() == io::ErrorKind::FileTooLarge => {
                self.found.names_more = true;
            }
            Ok(Err(error)) => self.finding(path, format!("{error}; it is taken to name no image")),
            Err(error) => self.unreadable(path, error)?,
        }
        Ok(None)
    }

    fn unreadable(&mut self, path: &Path, source: io::Error) -> Result<(), Unreadable> {
        if !self.foreign {
            return Err(Unreadable { path: path.to_path_buf(), names: ImageNamers::Quadlets, source });
        }
        self.finding(path, format!("{source}; its images are not protected"));
        Ok(())
    }

    fn finding(&mut self, path: &Path, message: String) {
        self.found.findings.push(Finding::new(path, message));
    }
}

/// Checks for a unit that can name images; networks and pods cannot.
fn is_unit(path: &Path) -> bool {
    const UNITS: [&str; 5] = ["container", "image", "volume", "build", "kube"];
    path.extension().is_some_and(|extension| UNITS.iter().any(|unit| extension == *unit))
}

/// Checks for a directory of drop-ins: `web.container.d` of one unit, `container.d` or `web-.container.d` of several.
fn is_drop_in(directory: &Path) -> bool {
    let name = directory.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let unit = name.strip_suffix(".d").unwrap_or_default();
    is_unit(Path::new(unit)) || is_unit(&Path::new("x").with_extension(unit))
}

#[derive(Debug, PartialEq, Eq)]
enum Value {
    /// A reference, or the name of another unit.
    Image(String),
    /// Path of a manifest of pods.
    Yaml(String),
}

/// Parses a unit as podman's own parser does: a line that ends in a backslash continues on the next line, and comment
/// lines between them are dropped. Pure.
fn unit(text: &str) -> Vec<Value> {
    let mut values = Vec::new();
    let mut group = String::new();
    let mut unfinished = String::new();
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(start) = line.strip_suffix('\\') {
            unfinished.push_str(start);
            continue;
        }
        let line = std::mem::take(&mut unfinished) + line;
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            name.clone_into(&mut group);
            continue;
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        let (key, value) = (key.trim_end(), value.trim());
        if value.is_empty() {
            continue;
        }
        match (group.as_str(), key) {
            ("Container" | "Image" | "Volume", "Image") | ("Image" | "Build", "ImageTag") => {
                values.push(Value::Image(value.to_owned()));
            }
            ("Container", "Mount") => values.extend(image_mount(value).map(Value::Image)),
            ("Container", "PodmanArgs") => {
                // `--mount type=image,...` or `--mount=type=image,...`; either may be quoted.
                let words = value.split_whitespace().map(|word| word.trim_matches(['"', '\'']));
                let mounts = words.map(|word| word.strip_prefix("--mount=").unwrap_or(word));
                values.extend(mounts.filter_map(image_mount).map(Value::Image));
            }
            ("Kube", "Yaml") => {
                let words = value.split_whitespace().map(|word| word.trim_matches(['"', '\'']));
                values.extend(words.map(|word| Value::Yaml(word.to_owned())));
            }
            _ => {}
        }
    }
    values
}

/// Returns the image of an image mount (podman-run(1), `--mount`). podman parses the value as CSV, with keys in any
/// case.
fn image_mount(value: &str) -> Option<String> {
    let mut parts = value
        .split(',')
        .filter_map(|part| part.trim_matches([' ', '"', '\'']).split_once('='))
        .map(|(key, value)| (key.to_ascii_lowercase(), value.trim_matches(['"', '\''])));
    let is_image = parts.clone().any(|(key, value)| key == "type" && value.eq_ignore_ascii_case("image"));
    let source = parts.find(|(key, _)| key == "source" || key == "src");
    source.filter(|_| is_image).map(|(_, value)| value.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn image(reference: &str) -> Value {
        Value::Image(reference.into())
    }

    #[test]
    fn images_of_units_are_parsed() {
        for (text, expected) in [
            ("", vec![]),
            ("[Container]\nImage=quay.io/a:1\n", vec![image("quay.io/a:1")]),
            ("[Container]\r\nImage = quay.io/a:1 \r\n", vec![image("quay.io/a:1")]),
            ("# x\n[Container]\n;Image=b\nImage=a\n[Service]\nImage=c\n", vec![image("a")]),
            ("[Container]\nImage=quay.io/\\\n# between\n  a:1\n", vec![image("quay.io/a:1")]),
            ("[Container]\nImage=\nImage=web.image\n", vec![image("web.image")]),
            ("[Image]\nImage=a\nImageTag=localhost/b\n", vec![image("a"), image("localhost/b")]),
            ("[Build]\nImageTag=localhost/b\nFile=./Containerfile\n", vec![image("localhost/b")]),
            ("[Volume]\nDriver=image\nImage=a\n", vec![image("a")]),
            ("[Container]\nMount=type=image,source=a,destination=/x\n", vec![image("a")]),
            ("[Container]\nMount=type=bind,source=/a,destination=/x\n", vec![]),
            ("[Container]\nMount=\"type=image,source=a,destination=/x\"\n", vec![image("a")]),
            ("[Container]\nMount=type=image,\"source=a\",destination=/x\n", vec![image("a")]),
            ("[Container]\nMount=Type=image,Source=a,destination=/x\n", vec![image("a")]),
            ("[Container]\nPodmanArgs=--mount type=image,src=a,dst=/x --init\n", vec![image("a")]),
            ("[Container]\nPodmanArgs=\"--mount=type=image,source=a,dst=/x\"\n", vec![image("a")]),
            ("[Container]\nPodmanArgs=--mount 'type=image,source=a,dst=/x'\n", vec![image("a")]),
            ("[Container]\nPodmanArgs=--mount type=bind,src=/a,dst=/x --label=type=image\n", vec![]),
            (
                "[Kube]\nYaml=a.yaml 'b.yaml'\n",
                vec![Value::Yaml("a.yaml".into()), Value::Yaml("b.yaml".into())],
            ),
            ("Image=a\n[Container\nImage=b\n\0\u{fffd}=\n\\", vec![]),
        ] {
            assert_eq!(unit(text), expected, "{text:?}");
        }
    }

    fn node(files: &[(&str, &str)]) -> tempfile::TempDir {
        let node = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = node.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        node
    }

    fn read_all(node: &Path, foreign: bool) -> Quadlets {
        let place = UnitDirectory { path: "/etc/containers/systemd".into(), foreign };
        read(&Sysroot::at(node), &place).unwrap()
    }

    fn references(found: &Quadlets) -> Vec<&str> {
        found.images.iter().map(|image| image.reference.as_str()).collect()
    }

    #[test]
    fn drop_ins_and_manifests_are_read() {
        let node = node(&[
            ("etc/containers/systemd/a.container", "[Container]\nImage=quay.io/a:1\n"),
            ("etc/containers/systemd/a.container.d/10.conf", "[Container]\nImage=quay.io/a:2\n"),
            ("etc/containers/systemd/container.d/10.conf", "[Container]\nImage=quay.io/all\n"),
            ("etc/containers/systemd/a.container.d/README", "[Container]\nImage=quay.io/no\n"),
            ("etc/containers/systemd/app/deep/b.container", "[Container]\nImage=base.image\n"),
            ("etc/containers/systemd/app/base.image", "[Image]\nImage=quay.io/base\n"),
            ("etc/containers/systemd/k/pod.kube", "[Kube]\nYaml=pod.yaml\n"),
            ("etc/containers/systemd/k/pod.yaml", "spec: {containers: [{image: quay.io/pod}]}\n---\n- ["),
            ("etc/containers/systemd/t@.container", "[Container]\nImage=quay.io/t:%i\n"),
            ("etc/containers/systemd/n.network", "[Network]\nImage=quay.io/no\n"),
            ("etc/containers/systemd/users/u.container", "[Container]\nImage=quay.io/user\n"),
            ("etc/containers/systemd/users/1000/u.container", "[Container]\nImage=quay.io/one\n"),
        ]);
        let found = read_all(node.path(), false);
        let expected = ["quay.io/a:1", "quay.io/a:2", "quay.io/base", "quay.io/all", "quay.io/pod"];
        assert_eq!(references(&found), expected, "{found:#?}");
        let findings: Vec<_> = found.findings.iter().map(|finding| finding.path.as_path()).collect();
        assert_eq!(
            findings,
            [
                Path::new("/etc/containers/systemd/k/pod.yaml"),
                Path::new("/etc/containers/systemd/t@.container")
            ]
        );
        let users = UnitDirectory { path: OF_USERS[0].into(), foreign: false };
        assert_eq!(references(&read(&Sysroot::at(node.path()), &users).unwrap()), ["quay.io/user"]);
    }

    #[test]
    fn user_files_are_read_up_to_a_limit() {
        let unit = format!("[Kube]\nYaml={}\n", "p.yaml ".repeat(140_000));
        let node = node(&[
            ("etc/containers/systemd/a.kube", &unit),
            ("etc/containers/systemd/b.kube", "[Kube]\nYaml=p.yaml\n"),
            ("etc/containers/systemd/p.yaml", "containers: [{image: quay.io/pod}]"),
        ]);
        for foreign in [false, true] {
            let found = read_all(node.path(), foreign);
            assert_eq!(references(&found), ["quay.io/pod"]);
            assert!(!found.names_more, "{found:?}");
        }
        // Each of these exceeds a limit for users, but not for root.
        let units = node.path().join("etc/containers/systemd");
        let more = units.join("more.container");
        fs::write(&more, format!("[Container]\n{}", "Image=a\n".repeat(MAX_USER_IMAGES))).unwrap();
        assert_exceeds_limit(node.path(), "images");
        fs::write(&more, format!("[Container]\n{}", "Image=%a\n".repeat(MAX_USER_FILES))).unwrap();
        assert_exceeds_limit(node.path(), "problems");
        let manifests: String = (0..MAX_USER_FILES).map(|number| format!("Yaml={number}.yaml\n")).collect();
        fs::write(&more, format!("[Kube]\n{manifests}")).unwrap();
        assert_exceeds_limit(node.path(), "manifests");
        fs::write(units.join("n.container"), "#".repeat(200_000)).unwrap();
        fs::write(&more, "#".repeat(1_000_000)).unwrap();
        assert_exceeds_limit(node.path(), "bytes");
        fs::remove_file(units.join("n.container")).unwrap();
        fs::remove_file(units.join("a.kube")).unwrap();
        fs::write(&more, "").unwrap();
        assert!(!read_all(node.path(), true).names_more);
        for number in 0..MAX_USER_FILES {
            fs::write(units.join(format!("{number}.image")), "").unwrap();
        }
        assert_exceeds_limit(node.path(), "files");
    }

    fn assert_exceeds_limit(node: &Path, limit: &str) {
        assert!(!read_all(node, false).names_more, "{limit}");
        let found = read_all(node, true);
        assert!(found.names_more && found.images.len() <= MAX_USER_IMAGES, "{limit}");
        assert!(found.findings.len() <= MAX_USER_FILES + 1, "{limit}");
        let message = &found.findings.last().unwrap().message;
        assert!(message.starts_with("too many or too large files of one user"), "{limit}: {message}");
    }

    #[test]
    fn hostile_user_files_are_not_read() {
        let node = node(&[
            ("etc/containers/systemd/good.container", "[Container]\nImage=quay.io/good\n"),
            ("etc/containers/systemd/out.kube", "[Kube]\nYaml=/etc/shadow.yaml ../../x.yaml\n"),
            ("etc/shadow.yaml", "containers: [{image: quay.io/out}]"),
            ("etc/x.container", "[Container]\nImage=quay.io/linked\n"),
        ]);
        let units = node.path().join("etc/containers/systemd");
        fs::write(units.join("binary.container"), [0xff, 0, b'\n', 0x80].repeat(1000)).unwrap();
        fs::File::create(units.join("huge.container")).unwrap().set_len(1 << 40).unwrap();
        nix::unistd::mkfifo(&units.join("fifo.container"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        fs::create_dir(units.join("dir.container")).unwrap();
        symlink("/etc/x.container", units.join("link.container")).unwrap();
        symlink(".", units.join("loop")).unwrap();
        symlink("nothing", units.join("gone.container")).unwrap();
        // Symlinks are followed once for root, and not at all for another user.
        let found = read_all(node.path(), false);
        assert_eq!(references(&found), ["quay.io/good", "quay.io/linked", "quay.io/out"], "{found:#?}");
        let foreign = read_all(node.path(), true);
        assert_eq!(references(&foreign), ["quay.io/good"], "{foreign:#?}");
        assert!(foreign.findings.len() >= 5, "{:?}", foreign.findings);
        // A unit that cannot be read is an error for root, and not for another user.
        symlink("self.container", units.join("self.container")).unwrap();
        let place = UnitDirectory { path: "/etc/containers/systemd".into(), foreign: false };
        assert!(read(&Sysroot::at(node.path()), &place).is_err());
        assert_eq!(references(&read_all(node.path(), true)), ["quay.io/good"]);
    }
}
