//! Reads a `config.toml` and its imports. Keys of all versions are accepted in all files: version 1 names plugins by
//! id alone, version 2 by type and id, and version 3 has CRI's images in a plugin of their own.

use std::collections::{HashSet, VecDeque};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use globset::GlobBuilder;
use toml::{Table, Value};

use crate::stores::containerd::places::{ConfiguredPin, SNAPSHOTTER};
use crate::sys::quiet::is_absent;
use crate::sys::sysroot::Sysroot;

/// Maximum size of a configuration file; larger files are not read.
const MAX_FILE_BYTES: u64 = 16 << 20;
const MAX_FILES: usize = 1000;
/// Snapshotters that version 1 configures by id alone.
const BY_ID: [&str; 6] = ["overlayfs", "native", "btrfs", "devmapper", "erofs", "blockfile"];

/// Default directories of snapshotters beside containerd, if its configuration does not name them.
const PROXY_ROOTS: [(&str, &str); 3] = [
    ("soci", "/var/lib/soci-snapshotter-grpc"),
    ("stargz", "/var/lib/containerd-stargz-grpc"),
    ("nydus", "/var/lib/containerd-nydus"),
];

/// Configuration of one containerd. Paths are absolute inside the sysroot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RootConfig {
    /// Root directory (persistent).
    pub root: PathBuf,
    /// State directory (cleared by a reboot).
    pub state: PathBuf,
    /// Snapshotters with a configured directory: name and directory.
    pub snapshotters: Vec<(String, PathBuf)>,
    /// Snapshotters that run beside containerd (proxy plugins): name and directory, as exported or by default.
    pub proxies: Vec<(String, PathBuf)>,
    /// Directories with layers for the erofs snapshotter that another program put there.
    pub layer_caches: Vec<PathBuf>,
    pub pins: Vec<ConfiguredPin>,
    /// Sockets on which it listens according to its file or command line, each with its source.
    pub sockets: Vec<(PathBuf, String)>,
    /// First file that could not be read or parsed, and the reason.
    pub problem: Option<(PathBuf, String)>,
    /// The source of this path, for messages: a file, a flag, a built-in default.
    pub origin: String,
}

/// Reads `file` and its imports into `config`; later files override earlier ones. It is not a problem if
/// `file` itself is missing; a missing import is one.
pub(super) fn read(
    sysroot: &Sysroot,
    file: &Path,
    config: &mut RootConfig,
    problems: &mut Vec<(PathBuf, String)>,
) {
    let mut seen = HashSet::new();
    // In containerd's order: the imports of a file follow all files named before it.
    let mut waiting = VecDeque::from([file.to_path_buf()]);
    while let Some(path) = waiting.pop_front() {
        let place = sysroot.resolve(&path).unwrap_or_else(|_| path.clone());
        if !seen.insert(place) {
            continue;
        }
        if seen.len() > MAX_FILES {
            problems.push((path, format!("imports: more than {MAX_FILES} files; the rest are not read")));
            return;
        }
        let text = match sysroot.read(&path, MAX_FILE_BYTES) {
            Ok(text) => text,
            Err(error) if is_absent(&error) && path == file => return,
            Err(error) => {
                problems.push((path, format!("reading it: {error}")));
                continue;
            }
        };
        match text.parse::<Table>() {
            Ok(table) => {
                config.take(&table, &path);
                waiting.extend(imports(sysroot, &table, &path, problems));
            }
            Err(error) => {
                let start = error.span().map_or(0, |span| span.start).min(text.len());
                let line = 1 + text.as_bytes()[..start].iter().filter(|byte| **byte == b'\n').count();
                problems.push((path, format!("line {line}: {}", error.message())));
            }
        }
    }
}

/// Returns the files that `imports` names, in order. Relative paths start at the file's directory; the last component
/// may be a pattern.
fn imports(
    sysroot: &Sysroot,
    table: &Table,
    file: &Path,
    problems: &mut Vec<(PathBuf, String)>,
) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let patterns = table.get("imports").and_then(Value::as_array);
    for pattern in patterns.into_iter().flatten().filter_map(Value::as_str) {
        let path = file.parent().unwrap_or(Path::new("/")).join(pattern);
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { continue };
        if is_pattern(parent.as_os_str()) {
            problems.push((file.to_path_buf(), format!("imports: invalid pattern {pattern:?}")));
        } else if !is_pattern(name) {
            files.push(path);
        } else if let Ok(glob) = GlobBuilder::new(&name.to_string_lossy()).literal_separator(true).build() {
            let matcher = glob.compile_matcher();
            let entries = sysroot.list(parent).unwrap_or_else(|error| {
                if !is_absent(&error) {
                    problems.push((parent.to_path_buf(), format!("listing it: {error}")));
                }
                Vec::new()
            });
            let names = entries.into_iter().map(|entry| entry.name).filter(|name| matcher.is_match(name));
            files.extend(names.map(|name| parent.join(name)));
        } else {
            problems.push((file.to_path_buf(), format!("imports: invalid pattern {pattern:?}")));
        }
    }
    files
}

fn is_pattern(text: &OsStr) -> bool {
    text.as_encoded_bytes().iter().any(|byte| b"*?[".contains(byte))
}

fn text<'a>(table: &'a Table, path: &[&str]) -> Option<&'a str> {
    let (last, first) = path.split_last()?;
    let table = first.iter().try_fold(table, |table, key| table.get(*key)?.as_table())?;
    table.get(*last)?.as_str().filter(|text| !text.is_empty())
}

impl RootConfig {
    fn take(&mut self, table: &Table, file: &Path) {
        if let Some(root) = text(table, &["root"]) {
            self.root = root.into();
            self.origin = file.display().to_string();
        }
        if let Some(state) = text(table, &["state"]) {
            self.state = state.into();
        }
        if let Some(address) = text(table, &["grpc", "address"]) {
            self.sockets = vec![(address.into(), format!("[grpc] address in {}", file.display()))];
        }
        let sandboxes: [&[&str]; 3] = [
            &["plugins", "cri", "sandbox_image"],
            &["plugins", "io.containerd.grpc.v1.cri", "sandbox_image"],
            &["plugins", "io.containerd.cri.v1.images", "pinned_images", "sandbox"],
        ];
        // All images of all files: which one is used differs between versions of containerd, and an additional pin is
        // harmless.
        for image in sandboxes.iter().filter_map(|path| text(table, path)) {
            let pin = ConfiguredPin { image: image.into(), origin: file.display().to_string() };
            if !self.pins.contains(&pin) {
                self.pins.push(pin);
            }
        }
        let plugins = table.get("plugins").and_then(Value::as_table);
        for (id, plugin) in plugins.into_iter().flatten() {
            let by_type = id.strip_prefix(SNAPSHOTTER);
            let Some(name) = by_type.or_else(|| BY_ID.contains(&id.as_str()).then_some(id.as_str())) else {
                continue;
            };
            let path = plugin.as_table().and_then(|plugin| text(plugin, &["root_path"]));
            if let Some(path) = path {
                self.snapshotters.retain(|(known, _)| known != name);
                self.snapshotters.push((name.to_owned(), path.into()));
            }
            let caches = plugin.as_table().and_then(|plugin| plugin.get("layer_content_caches")?.as_array());
            if let Some(caches) = caches.filter(|_| name == "erofs") {
                let caches = caches.iter().filter_map(Value::as_str).map(PathBuf::from);
                // containerd ignores relative paths.
                self.layer_caches = caches.filter(|path| path.is_absolute()).collect();
            }
        }
        let proxies = table.get("proxy_plugins").and_then(Value::as_table);
        for (name, proxy) in proxies.into_iter().flatten() {
            let Some(proxy) = proxy.as_table().filter(|proxy| text(proxy, &["type"]) == Some("snapshot"))
            else {
                continue;
            };
            self.proxies.retain(|(known, _)| known != name);
            let usual = PROXY_ROOTS.iter().find(|(known, _)| known == name).map(|(_, root)| *root);
            let root = text(proxy, &["exports", "root"]).or(usual);
            self.proxies.extend(root.map(|root| (name.clone(), root.into())));
        }
    }
}
