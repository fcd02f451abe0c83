//! Resolves a reference from the command line: an image, a layer, a container, or a path.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::FileType;
use rustix::io::Errno;

use super::Scan;
use crate::model::display::{shell_word, short_id, short_reference};
use crate::model::reference::{bare_id, means_name, repository};
use crate::model::{ContainerIx, ImageIx, Leak, LeakIx, Node, NodeIx, NodeKind, StoreIx, StoreKind};
use crate::sys::beneath::{HANDLE, Opener};
use crate::sys::root::{self, Root};

/// An object of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    Image(ImageIx),
    Container(ContainerIx),
    Leak(LeakIx),
    /// A layer, or files that belong to no image, container or leak.
    Node(NodeIx),
}

/// A path that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// As we see it; no component above a store is a symlink.
    pub path: PathBuf,
    /// True of every path in a store: what is no object there is a directory.
    pub is_directory: bool,
    /// The store that it is in, and the rest of the path.
    store: Option<(StoreIx, PathBuf)>,
}

/// Why a reference could not be resolved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Nothing matches.
    #[error("no image, layer, container or path matches {reference:?}{}", too_short(reference))]
    Unknown { reference: String },
    /// Several objects match.
    #[error("{reference:?} could be any of {}", candidates.join(", "))]
    Ambiguous {
        reference: String,
        /// What it could be.
        candidates: Vec<String>,
        /// Unambiguous name of the first candidate: a clause.
        remedy: String,
    },
    /// A path that does not exist.
    #[error("{} does not exist", path.display())]
    Missing { path: PathBuf },
    /// A path that cannot be examined.
    #[error("{}: {message}", path.display())]
    Unreadable { path: PathBuf, message: String },
}

/// The shortest start of an id that is looked up.
const SHORTEST: usize = 3;

fn too_short(reference: &str) -> String {
    let is_short = reference.len() < SHORTEST && reference.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_short { format!("; of an id at least {SHORTEST} digits are needed") } else { String::new() }
}

/// Finds what `reference` means. Whole names and ids come before starts of ids.
///
/// # Errors
/// When nothing or more than one thing fits.
pub fn look_up(scan: &Scan, reference: &str) -> Result<Subject, Error> {
    if is_path(reference) {
        let found = at_path(scan, &locate(scan, Path::new(reference))?);
        return found.ok_or_else(|| Error::Unknown { reference: reference.to_owned() });
    }
    let found = candidates(scan, reference);
    match found.as_slice() {
        [] => Err(Error::Unknown { reference: reference.to_owned() }),
        [Subject::Node(node)] => Ok(leak_or_node(scan, *node)),
        [one] => Ok(*one),
        [first, ..] => Err(Error::Ambiguous {
            reference: reference.to_owned(),
            candidates: found.iter().take(10).map(|subject| describe_in_store(scan, *subject)).collect(),
            remedy: unambiguous(scan, *first),
        }),
    }
}

fn candidates(scan: &Scan, reference: &str) -> Vec<Subject> {
    let exact = exact(scan, reference);
    if exact.is_empty() { by_start(scan, reference) } else { exact }
}

/// Returns how `subject` is named so that nothing else fits: by its id, or with its store.
fn unambiguous(scan: &Scan, subject: Subject) -> String {
    let id = id_of(scan, subject);
    let is_enough = |reference: &String| candidates(scan, reference).as_slice() == [subject];
    if let Some(reference) = [short_reference(id), id.to_owned()].into_iter().find(is_enough) {
        return format!("give its id, as {}", shell_word(&reference));
    }
    let store = &scan.inventory[store_of(scan, subject)];
    let flag = match store.kind {
        StoreKind::ContainersStorage => "--graphroot",
        StoreKind::Containerd => "--containerd-root",
    };
    format!("name its store, as {flag} {}", shell_word(&store.root.to_string_lossy()))
}

/// Whether a reference is a path.
#[must_use]
pub fn is_path(reference: &str) -> bool {
    matches!(reference, "." | "..") || ["/", "./", "../"].iter().any(|start| reference.starts_with(start))
}

/// An unused layer is explained as a leak.
fn leak_or_node(scan: &Scan, node: NodeIx) -> Subject {
    let leaks = &scan.inventory.leaks;
    match leaks.iter().position(|leak| leak.holds.contains(&node)) {
        Some(at) if scan.refs.refcount(node) == 0 => Subject::Leak(at.into()),
        _ => Subject::Node(node),
    }
}

fn exact(scan: &Scan, reference: &str) -> Vec<Subject> {
    let inventory = &scan.inventory;
    let bare = bare_id(reference);
    let named = |name: &String| means_name(reference, name);
    let images = inventory.images.iter().enumerate().filter(|(_, image)| {
        let by_digest = |digest: &String| {
            digest == reference
                || image.names.iter().any(|name| format!("{}@{digest}", repository(name)) == reference)
        };
        image.id == bare || image.names.iter().any(named) || image.digests.iter().any(by_digest)
    });
    let images = images.map(|(at, _)| Subject::Image(at.into()));
    let containers = inventory.containers.iter().enumerate();
    let containers = containers.filter(|(_, container)| container.id == bare || container.name == reference);
    let containers = containers.map(|(at, _)| Subject::Container(at.into()));
    let mut found: Vec<_> = images.chain(containers).collect();
    if found.is_empty() {
        // containerd names a container's writable snapshot as the container.
        found.extend(
            layers(scan).filter(|(_, id)| hex(id) == hex(reference)).map(|(at, _)| Subject::Node(at)),
        );
    }
    if found.is_empty() {
        let leaks = inventory.leaks.iter().enumerate().filter(|(_, leak)| leak.id == bare);
        found.extend(leaks.map(|(at, _)| Subject::Leak(at.into())));
    }
    found
}

/// The names of an image that `reference` means: one, or with a digest all of that repository. None
/// where it means the image itself, by its id or a digest alone.
#[must_use]
pub fn names_meant<'a>(names: &'a [String], reference: &str) -> Vec<&'a String> {
    let exact: Vec<_> = names.iter().filter(|name| *name == reference).collect();
    if !exact.is_empty() {
        return exact;
    }
    let of_repository = |name: &&String| match reference.split_once('@') {
        Some((wanted, _)) => repository(name) == wanted,
        None => means_name(reference, name),
    };
    names.iter().filter(of_repository).collect()
}

fn layers(scan: &Scan) -> impl Iterator<Item = (NodeIx, &str)> {
    let nodes = scan.inventory.nodes.iter().enumerate();
    nodes.filter(|(_, node)| node.layer.is_some()).map(|(at, node)| (at.into(), node.id.as_str()))
}

/// An id without its algorithm: `sha256:aa` and `moby/sha256:aa` are asked for as `aa`,
/// `sha256:aa` or `moby/sha256:aa`.
fn hex(id: &str) -> std::borrow::Cow<'_, str> {
    match id.rsplit_once("sha256:") {
        Some((qualifier, hex)) => format!("{qualifier}{hex}").into(),
        None => id.into(),
    }
}

fn by_start(scan: &Scan, reference: &str) -> Vec<Subject> {
    let start = bare_id(reference);
    if start.len() < SHORTEST {
        return Vec::new();
    }
    let inventory = &scan.inventory;
    let images = inventory.images.iter().enumerate().filter(|(_, image)| {
        let digest =
            |digest: &String| digest.strip_prefix("sha256:").is_some_and(|hex| hex.starts_with(start));
        image.id.starts_with(start) || image.digests.iter().any(digest)
    });
    let images = images.map(|(at, _)| Subject::Image(at.into()));
    let containers = inventory.containers.iter().enumerate();
    let containers = containers.filter(|(_, container)| container.id.starts_with(start));
    let containers = containers.map(|(at, _)| Subject::Container(at.into()));
    let found: Vec<_> = images.chain(containers).collect();
    let layers = layers(scan).filter(|(_, id)| hex(id).starts_with(&*hex(start)));
    let layers = layers.filter(|(_, id)| !found.iter().any(|subject| id_of(scan, *subject) == *id));
    // containerd keeps an image's configuration, whose digest is the image's id, as a blob.
    let layers = layers.filter(|(_, id)| {
        let is_its_own = |subject: &Subject| match subject {
            Subject::Image(_) => hex(id) == hex(id_of(scan, *subject)),
            _ => false,
        };
        !found.iter().any(is_its_own)
    });
    let layers: Vec<_> = layers.map(|(at, _)| Subject::Node(at)).collect();
    let found = [found, layers].concat();
    if !found.is_empty() {
        return found;
    }
    let leaks = inventory.leaks.iter().enumerate().filter(|(_, leak)| leak.id.starts_with(start));
    leaks.map(|(at, _)| Subject::Leak(at.into())).collect()
}

fn id_of(scan: &Scan, subject: Subject) -> &str {
    let inventory = &scan.inventory;
    match subject {
        Subject::Image(at) => &inventory.images[at.get()].id,
        Subject::Container(at) => &inventory.containers[at.get()].id,
        Subject::Leak(at) => &inventory.leaks[at.get()].id,
        Subject::Node(at) => &inventory.nodes[at.get()].id,
    }
}

/// Names the store where there are several.
fn describe_in_store(scan: &Scan, subject: Subject) -> String {
    let inventory = &scan.inventory;
    let described = describe(scan, subject);
    match inventory.stores.len() {
        1 => described,
        _ => format!("{described} in {}", inventory[store_of(scan, subject)].root.display()),
    }
}

fn store_of(scan: &Scan, subject: Subject) -> StoreIx {
    let inventory = &scan.inventory;
    match subject {
        Subject::Image(at) => inventory[at].store,
        Subject::Container(at) => inventory.containers[at.get()].store,
        Subject::Leak(at) => inventory.leaks[at.get()].store,
        Subject::Node(at) => inventory[at].store,
    }
}

fn describe(scan: &Scan, subject: Subject) -> String {
    let inventory = &scan.inventory;
    match subject {
        Subject::Image(at) => {
            let image = &inventory.images[at.get()];
            format!(
                "image {} {}",
                image.names.first().map_or("<none>", String::as_str),
                short_reference(&image.id)
            )
        }
        Subject::Container(at) => {
            let container = &inventory.containers[at.get()];
            format!("container {} {}", container.name, short_reference(&container.id))
        }
        Subject::Leak(at) => format!("{} {}", inventory.leaks[at.get()].class, inventory.leaks[at.get()].id),
        Subject::Node(at) => format!("layer {}", short_id(&inventory.nodes[at.get()].id)),
    }
}

/// Finds a path. Nothing below a store is opened or followed for that.
///
/// # Errors
/// When it does not exist or cannot be examined.
pub fn locate(scan: &Scan, path: &Path) -> Result<Located, Error> {
    let unreadable = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => Error::Missing { path: path.to_path_buf() },
        _ => Error::Unreadable { path: path.to_path_buf(), message: error.to_string() },
    };
    let absolute = std::path::absolute(path).map_err(unreadable)?;
    // Below a sysroot a path may be given as it was on its own machine, or as it is here.
    let there = scan.sysroot.is_foreign().then(|| inside_sysroot(scan, &absolute)).flatten();
    let Some((store, below)) = there.or_else(|| store_above(scan, &absolute)) else {
        let is_inside = scan.sysroot.is_foreign() && !absolute.starts_with(scan.sysroot.root());
        let here = if is_inside { scan.sysroot.resolve(&absolute).map_err(unreadable)? } else { absolute };
        let (fd, path) = root::find_at_hand(&here).map_err(unreadable)?;
        let stat = rustix::fs::fstat(fd).map_err(|error| unreadable(error.into()))?;
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        return Ok(Located { path, is_directory, store: None });
    };
    if below.components().any(|component| component == Component::ParentDir) {
        let message = "name it without `..`".to_owned();
        return Err(Error::Unreadable { path: path.to_path_buf(), message });
    }
    let root = &scan.inventory[store].root;
    let wanted = if below.as_os_str().is_empty() { root.clone() } else { root.join(&below) };
    if is_missing(root, &wanted) {
        return Err(Error::Missing { path: path.to_path_buf() });
    }
    Ok(Located { path: wanted, is_directory: true, store: Some((store, below)) })
}

/// The object that a path is part of; none for what is in no store, and, where the scan has kept its trees,
/// for a store's directory that holds more than bookkeeping.
#[must_use]
pub fn at_path(scan: &Scan, located: &Located) -> Option<Subject> {
    let Located { path: wanted, store, .. } = located;
    if let Some(at) = leftover(scan, wanted) {
        return Some(Subject::Leak(at));
    }
    let (store, below) = store.as_ref().filter(|(_, below)| !below.as_os_str().is_empty())?;
    let inventory = &scan.inventory;
    let nodes = || inventory.nodes.iter().enumerate().filter(|(_, node)| node.store == *store);
    let is_bookkeeping = |node: &Node| matches!(node.kind, NodeKind::StoreMetadata | NodeKind::StoreRecords);
    let above = nodes().filter(|(_, node)| !is_bookkeeping(node) && wanted.starts_with(&node.path));
    let deepest = above.max_by_key(|(_, node)| node.path.components().count()).map(|(at, _)| at);
    // A layer's tar-split and data are beside the records, not in its directory.
    let beside_records = || {
        let mut names = below.components().map(|component| component.as_os_str().to_string_lossy());
        names.next().filter(|top| top.ends_with("-layers"))?;
        let name = names.next()?;
        let id = name.strip_suffix(".tar-split.gz").unwrap_or(&name).to_owned();
        nodes().find(|(_, node)| node.id == id).map(|(at, _)| at)
    };
    let trees = &scan.trees;
    let mut inside = trees.parts.iter().map(|(_, (root, path, _))| trees.roots[*root].join(path));
    let mut holds_others = || inside.any(|path| path.starts_with(wanted) && path != *wanted);
    let bookkeeping = || {
        let own = nodes().find(|(_, node)| is_bookkeeping(node)).map(|(at, _)| at);
        own.filter(|_| !holds_others())
    };
    let found = deepest.or_else(beside_records).or_else(bookkeeping);
    found.map(|at| owner_of(scan, at.into()))
}

/// The temporary files of the tools are in no store.
fn leftover(scan: &Scan, path: &Path) -> Option<LeakIx> {
    let inventory = &scan.inventory;
    let is_temporary = |node: &NodeIx| inventory.nodes[node.get()].kind == NodeKind::TemporaryFile;
    let here = |leak: &Leak| leak.holds.iter().any(is_temporary) && path.starts_with(&leak.path);
    inventory.leaks.iter().position(here).map(LeakIx::from)
}

/// An image's or container's files mean the image or container.
fn owner_of(scan: &Scan, node: NodeIx) -> Subject {
    let inventory = &scan.inventory;
    if inventory.nodes[node.get()].layer.is_some() {
        return leak_or_node(scan, node);
    }
    if let Some(at) = inventory.images.iter().position(|image| image.holds.first() == Some(&node)) {
        return Subject::Image(at.into());
    }
    if let Some(at) = inventory.containers.iter().position(|container| container.holds.first() == Some(&node))
    {
        return Subject::Container(at.into());
    }
    match inventory.leaks.iter().position(|leak| leak.holds.contains(&node)) {
        Some(at) => Subject::Leak(at.into()),
        None => Subject::Node(node),
    }
}

/// The store that a path means inside the sysroot.
fn inside_sysroot(scan: &Scan, path: &Path) -> Option<(StoreIx, PathBuf)> {
    let stores = scan.inventory.stores.iter().enumerate();
    let mut stores = stores.filter_map(|(at, store)| {
        let below = path.strip_prefix(scan.sysroot.display(&store.root)).ok()?;
        Some((StoreIx::from(at), below.to_path_buf()))
    });
    stores.next()
}

/// Device and inode number of what was found.
fn identity(found: std::io::Result<(OwnedFd, PathBuf)>) -> Option<(u64, u64)> {
    let stat = rustix::fs::fstat(found.ok()?.0).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

/// Whether there is nothing at `path`, which is in the store at `store`. No mount is entered for that whose
/// filesystem may not answer.
fn is_missing(store: &Path, path: &Path) -> bool {
    let Ok(root) = Root::open(store) else { return false };
    let Ok(below) = path.strip_prefix(store) else { return false };
    // The driver mounts its own directory on itself.
    let found = root::into_mounts(Opener::usual(root.fd()), root.fd(), below, HANDLE);
    found.is_err_and(|error| error == Errno::NOENT)
}

/// The store above a path, found by inode, so that symlinks and mounts above the store do
/// not matter; and the rest of the path.
fn store_above(scan: &Scan, path: &Path) -> Option<(StoreIx, PathBuf)> {
    let stores: Vec<_> = scan
        .inventory
        .stores
        .iter()
        .enumerate()
        .filter_map(|(at, store)| {
            Some((StoreIx::from(at), identity(root::find(&store.root))?, &store.driver))
        })
        .collect();
    let mut above: Vec<&Path> = path.ancestors().collect();
    above.reverse();
    for ancestor in above {
        // A store was read before; what else a server keeps may never answer.
        let is_root = scan.inventory.stores.iter().any(|store| store.root == ancestor);
        let found = if is_root { root::find(ancestor) } else { root::find_at_hand(ancestor) };
        let Some(here) = identity(found) else { continue };
        let Ok(below) = path.strip_prefix(ancestor) else { continue };
        let mut fitting = stores.iter().filter(|(_, identity, _)| *identity == here).peekable();
        let first = fitting.peek().map(|(at, _, _)| *at);
        // One graphroot may hold the records of several drivers.
        let top = below.components().next().map(|top| top.as_os_str().to_string_lossy().into_owned());
        let of_driver = fitting.find(|(_, _, driver)| {
            top.as_deref().is_some_and(|top| top == *driver || top.starts_with(&format!("{driver}-")))
        });
        if let Some(store) = of_driver.map(|(at, _, _)| *at).or(first) {
            return Some((store, below.to_path_buf()));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::is_path;

    #[test]
    fn a_path_is_told_from_a_name() {
        for path in ["/", "/var/log", ".", "..", "./a", "../a"] {
            assert!(is_path(path), "{path}");
        }
        for name in ["library/nginx", "a", ".hidden", "sha256:00", "..."] {
            assert!(!is_path(name), "{name}");
        }
    }
}
