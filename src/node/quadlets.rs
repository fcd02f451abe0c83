//! Quadlets: units from which podman's generator creates services (podman-systemd.unit(5)), and
//! the images that these services need to start again.

use std::collections::HashSet;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{ImageNamers, NamedImage, Unreadable, content, manifest};
use crate::model::Finding;
use crate::sys::quiet::{FileKind, is_absent};
use crate::sys::root::Root;
use crate::sys::sysroot::Sysroot;

/// Where root's units are.
pub const SYSTEM: [&str; 3] =
    ["/run/containers/systemd", "/etc/containers/systemd", "/usr/share/containers/systemd"];

/// Where units lie that an administrator gives to users: to all, or in a directory of that number to
/// one. The generator of root leaves these out.
pub const OF_USERS: [&str; 2] = ["/etc/containers/systemd/users", "/usr/share/containers/systemd/users"];

/// A unit is a page of text, a manifest a few.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Files of one place that are read.
const MOST_FILES: usize = 10_000;
/// Files, directories and manifests of one place of another user's that are looked at.
const MOST_OF_A_USER: usize = 1000;
/// Bytes of these that are read.
const MOST_BYTES_OF_A_USER: u64 = 2 << 20;
/// Images that one place of another user's names.
const MOST_IMAGES_OF_A_USER: usize = 1000;
/// Directories below one another.
const DEEPEST: usize = 16;

/// A directory of units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitDirectory {
    /// Its path inside the root.
    pub path: PathBuf,
    /// It is another user's: what cannot be read there is that user's problem, and nothing is
    /// followed that leads out of it.
    pub foreign: bool,
}

/// What units name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quadlets {
    /// The images, in order of the files that name them.
    pub images: Vec<NamedImage>,
    /// Parse errors and their consequences.
    pub findings: Vec<Finding>,
    /// A user has more than is read: any image may be named.
    pub names_more: bool,
}

/// Reads the units in `place` and below it, drop-ins included.
///
/// `Image=` of containers, images and volumes, `ImageTag=` of images and builds, image mounts, and the
/// images of the manifests that `Yaml=` names count, wherever they stand: one that a drop-in overrides
/// is kept as well.
///
/// # Errors
/// When something exists and cannot be read, in a place that is not foreign: then it is unknown which
/// images have to stay.
pub fn read(root: &Sysroot, place: &UnitDirectory) -> Result<Quadlets, Unreadable> {
    let mut reader = Reader {
        root,
        foreign: place.foreign,
        seen: HashSet::new(),
        manifests: HashSet::new(),
        files: 0,
        bytes_left: MOST_BYTES_OF_A_USER,
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

struct Reader<'a> {
    root: &'a Sysroot,
    foreign: bool,
    /// Directories that were read, as they lie for us: symlinks can lead in circles.
    seen: HashSet<PathBuf>,
    /// Manifests that were read: many units may name the same one, and one unit many times.
    manifests: HashSet<PathBuf>,
    files: usize,
    /// Of a user's files.
    bytes_left: u64,
    found: Quadlets,
}

impl Reader<'_> {
    fn directory(&mut self, path: &Path, depth: usize) -> Result<(), Unreadable> {
        let placed = match self.root.resolve(path) {
            Ok(placed) => placed,
            Err(error) if is_absent(&error) => return Ok(()),
            Err(error) => return self.unreadable(path, error),
        };
        if self.is_too_much() {
            return Ok(());
        }
        // `users` below root's own places is for others.
        let is_others = |users: &&str| Path::new(users) == path && depth > 0;
        if !self.seen.insert(placed.clone()) || OF_USERS.iter().any(is_others) {
            return Ok(());
        }
        // A user can mount what never answers, and put symlinks anywhere.
        if self.foreign
            && !self.root.is_foreign()
            && let Err(error) = Root::open(&placed)
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
            // One user's.
            if OF_USERS.iter().any(|users| Path::new(users) == path) && name.iter().all(u8::is_ascii_digit) {
                continue;
            }
            if entry.kind == FileKind::Symlink && self.foreign {
                if is_unit(&below) && !self.is_too_much() {
                    self.finding(&below, "is a user's symlink; not followed".into());
                }
                continue;
            }
            if is_unit(&below) || (name.ends_with(b".conf") && is_drop_in(path)) {
                if self.is_too_much() {
                    return Ok(());
                }
                if self.files > MOST_FILES {
                    self.finding(path, format!("more than {MOST_FILES} units; the rest are ignored"));
                    return Ok(());
                }
                self.file(&below)?;
            } else if entry.kind != FileKind::File && depth < DEEPEST {
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
                // Another unit, which is read by itself.
                Value::Image(image) if is_unit(Path::new(&image)) => {}
                Value::Image(image) if image.contains('%') => {
                    if !self.is_too_much() {
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
                    if !self.manifests.insert(file.clone()) || self.is_too_much() {
                        continue;
                    }
                    // What a user names need not be that user's.
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

    /// Counts one more file, directory or problem, and says whether that is more than is looked at of a
    /// user.
    fn is_too_much(&mut self) -> bool {
        self.files += 1;
        self.found.names_more |= self.foreign && self.files > MOST_OF_A_USER;
        self.found.names_more
    }

    fn image(&mut self, image: NamedImage) {
        self.found.names_more |= self.foreign && self.found.images.len() >= MOST_IMAGES_OF_A_USER;
        if !self.found.names_more {
            self.found.images.push(image);
        }
    }

    /// Whether it is a file itself, and its directory one that was vetted.
    fn is_plain(&self, file: &Path) -> bool {
        let placed = self.root.resolve(file);
        let above = file.parent().and_then(|parent| self.root.resolve(parent).ok());
        let seen = above.as_ref().is_some_and(|above| self.seen.contains(above));
        seen && matches!((placed, above, file.file_name()), (Ok(placed), Some(above), Some(name)) if placed == above.join(name))
    }

    /// The content of a file that there is.
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

/// Units that can name images; others (networks, pods) name none.
fn is_unit(path: &Path) -> bool {
    const UNITS: [&str; 5] = ["container", "image", "volume", "build", "kube"];
    path.extension().is_some_and(|extension| UNITS.iter().any(|unit| extension == *unit))
}

/// `web.container.d`, and `container.d` or `web-.container.d` for several.
fn is_drop_in(directory: &Path) -> bool {
    let name = directory.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let unit = name.strip_suffix(".d").unwrap_or_default();
    is_unit(Path::new(unit)) || is_unit(&Path::new("x").with_extension(unit))
}

/// What a unit says of images.
#[derive(Debug, PartialEq, Eq)]
enum Value {
    /// A reference, or the name of another unit.
    Image(String),
    /// A manifest of pods.
    Yaml(String),
}

/// Reads a unit as podman's own parser does: a line that ends in a backslash goes on in the next one,
/// comments between them left out. Pure.
fn unit(text: &str) -> Vec<Value> {
    let mut values = Vec::new();
    let mut group = String::new();
    let mut begun = String::new();
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(start) = line.strip_suffix('\\') {
            begun.push_str(start);
            continue;
        }
        let line = std::mem::take(&mut begun) + line;
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
                // `--mount type=image,...`, `--mount=type=image,...`; quotes may stand around either.
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

/// The image that a mount (podman-run(1), `--mount`) is of. podman reads it as CSV, keys in any case.
fn image_mount(value: &str) -> Option<String> {
    let parts = value.split(',').map(|part| part.trim_matches([' ', '"', '\'']).split_once('='));
    let mut parts =
        parts.flatten().map(|(key, value)| (key.to_ascii_lowercase(), value.trim_matches(['"', '\''])));
    let is_image = parts.clone().any(|(key, value)| key == "type" && value.eq_ignore_ascii_case("image"));
    let source = parts.find(|(key, _)| key == "source" || key == "src");
    source.filter(|_| is_image).map(|(_, value)| value.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_a_unit_names() {
        let image = |text: &str| Value::Image(text.into());
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
    fn units_drop_ins_and_manifests() {
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
    fn a_users_files_are_read_once_and_up_to_a_limit() {
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
        // More than is read of a user, each time, and of root all the same.
        let units = node.path().join("etc/containers/systemd");
        let fill = |text: String| fs::write(units.join("more.container"), text).unwrap();
        let exceeds = |what: &str| {
            assert!(!read_all(node.path(), false).names_more, "{what}");
            let found = read_all(node.path(), true);
            assert!(found.names_more && found.images.len() <= MOST_IMAGES_OF_A_USER, "{what}");
            assert!(found.findings.len() <= MOST_OF_A_USER + 1, "{what}");
            let said = &found.findings.last().unwrap().message;
            assert!(said.starts_with("too many or too large files of one user"), "{what}: {said}");
        };
        fill(format!("[Container]\n{}", "Image=a\n".repeat(MOST_IMAGES_OF_A_USER)));
        exceeds("images");
        fill(format!("[Container]\n{}", "Image=%a\n".repeat(MOST_OF_A_USER)));
        exceeds("problems");
        fill((0..MOST_OF_A_USER).fold("[Kube]\n".into(), |text, at| format!("{text}Yaml={at}.yaml\n")));
        exceeds("manifests");
        fs::write(units.join("n.container"), "#".repeat(200_000)).unwrap();
        fill("#".repeat(1_000_000));
        exceeds("bytes");
        fs::remove_file(units.join("n.container")).unwrap();
        fs::remove_file(units.join("a.kube")).unwrap();
        fill(String::new());
        assert!(!read_all(node.path(), true).names_more);
        (0..MOST_OF_A_USER).for_each(|at| fs::write(units.join(format!("{at}.image")), "").unwrap());
        exceeds("files");
    }

    #[test]
    fn hostile_files() {
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
        // Root's own links are followed, once each; another user's are not.
        let own = read_all(node.path(), false);
        assert_eq!(references(&own), ["quay.io/good", "quay.io/linked", "quay.io/out"], "{own:#?}");
        let foreign = read_all(node.path(), true);
        assert_eq!(references(&foreign), ["quay.io/good"], "{foreign:#?}");
        assert!(foreign.findings.len() >= 5, "{:?}", foreign.findings);
        // What cannot be read stops a run where it is root's, and nothing where it is a user's.
        symlink("self.container", units.join("self.container")).unwrap();
        let place = UnitDirectory { path: "/etc/containers/systemd".into(), foreign: false };
        assert!(read(&Sysroot::at(node.path()), &place).is_err());
        assert_eq!(references(&read_all(node.path(), true)), ["quay.io/good"]);
    }
}
