//! Resolves a reference from the command line: an image, a layer, a container, or a path.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::FileType;
use rustix::io::Errno;

use super::Scan;
use crate::model::text::display::{shell_word, short_id, short_reference};
use crate::model::text::reference::{
    SHORTEST_ID, bare_id, is_of_image, means_name, repository, starts_id_of_image,
};
use crate::model::{ContainerIx, ImageIx, LeakIx, LostContainer, Node, NodeIx, NodeKind, StoreIx};
use crate::sys::beneath::{HANDLE, Opener};
use crate::sys::root::{self, Root};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    Image(ImageIx),
    Container(ContainerIx),
    Leak(LeakIx),
    /// A layer, or files that belong to no image, container or leak.
    Node(NodeIx),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// Path on this system; no component above a store is a symlink.
    pub path: PathBuf,
    /// True for every path in a store: a path there that is not an object is a directory.
    pub is_directory: bool,
    /// Store that contains the path, and the path below its root.
    store: Option<(StoreIx, PathBuf)>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    #[error("no image, layer, container or path matches {reference:?}{}", too_short(reference))]
    Unknown { reference: String },
    #[error("{reference:?} could be any of {}", candidates.join(", "))]
    Ambiguous {
        reference: String,
        candidates: Vec<String>,
        /// Unambiguous words for each candidate on a command line: its id, or the reference and its store.
        words: Vec<String>,
        /// All of them.
        subjects: Vec<Subject>,
    },
    #[error("{} does not exist", path.display())]
    Missing { path: PathBuf },
    #[error("{}: {message}", path.display())]
    Unreadable { path: PathBuf, message: String },
}

fn too_short(reference: &str) -> String {
    let is_short = reference.len() < SHORTEST_ID && reference.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_short { format!("; of an id at least {SHORTEST_ID} digits are needed") } else { String::new() }
}

/// Finds the object that `reference` means, in the store with the root `store` or in any. Whole names and ids take
/// precedence over starts of ids.
///
/// # Errors
/// If no object matches, or more than one.
pub fn look_up(scan: &Scan, reference: &str, store: Option<&Path>) -> Result<Subject, LookupError> {
    if is_path(reference) {
        let found = at_path(scan, &locate(scan, Path::new(reference))?);
        return found.ok_or_else(|| LookupError::Unknown { reference: reference.to_owned() });
    }
    let mut found = candidates(scan, reference);
    found.retain(|subject| store.is_none_or(|root| scan.inventory[store_of(scan, *subject)].root == root));
    match found.as_slice() {
        [] => Err(LookupError::Unknown { reference: reference.to_owned() }),
        [Subject::Node(node)] => Ok(leak_or_node(scan, *node)),
        [subject] => Ok(*subject),
        several => {
            /// Maximum number of objects that are listed.
            const LISTED: usize = 10;
            let listed = &several[..several.len().min(LISTED)];
            Err(LookupError::Ambiguous {
                reference: reference.to_owned(),
                candidates: listed.iter().map(|subject| describe_in_store(scan, *subject)).collect(),
                words: listed.iter().map(|subject| unambiguous(scan, reference, *subject)).collect(),
                subjects: found,
            })
        }
    }
}

fn candidates(scan: &Scan, reference: &str) -> Vec<Subject> {
    let exact = exact(scan, reference);
    if exact.is_empty() { by_start(scan, reference) } else { exact }
}

/// Returns unambiguous words for `subject`: its id, or the reference with its store.
fn unambiguous(scan: &Scan, reference: &str, subject: Subject) -> String {
    let id = id_of(scan, subject);
    for id in [short_reference(id), id.to_owned()] {
        if candidates(scan, &id).as_slice() == [subject] {
            return shell_word(&id);
        }
    }
    let store = &scan.inventory[store_of(scan, subject)];
    let flag = store.kind.facts().flag;
    format!("{} {flag} {}", shell_word(reference), shell_word(&store.root.to_string_lossy()))
}

#[must_use]
pub fn is_path(reference: &str) -> bool {
    matches!(reference, "." | "..") || ["/", "./", "../"].iter().any(|start| reference.starts_with(start))
}

/// Returns the leak of an unused layer, otherwise the node itself.
fn leak_or_node(scan: &Scan, node: NodeIx) -> Subject {
    let leaks = &scan.inventory.leaks;
    match leaks.iter().position(|leak| leak.holds.contains(&node)) {
        Some(position) if scan.refs.refcount(node) == 0 => Subject::Leak(position.into()),
        _ => Subject::Node(node),
    }
}

fn exact(scan: &Scan, reference: &str) -> Vec<Subject> {
    let inventory = &scan.inventory;
    let bare = bare_id(reference);
    let images = inventory
        .images
        .iter()
        .enumerate()
        .filter(|(_, image)| is_of_image(reference, &image.id, &image.names, &image.digests))
        .map(|(position, _)| Subject::Image(position.into()));
    let containers = inventory
        .containers
        .iter()
        .enumerate()
        .filter(|(_, container)| container.id == bare || container.name == reference)
        .map(|(position, _)| Subject::Container(position.into()));
    let mut found: Vec<_> = images.chain(containers).collect();
    if found.is_empty() {
        // containerd gives a container's writable snapshot the name of the container.
        found.extend(
            layers(scan)
                .filter(|(_, id)| hex(id) == hex(reference))
                .map(|(position, _)| Subject::Node(position)),
        );
    }
    if found.is_empty() {
        let leaks = inventory.leaks.iter().enumerate().filter(|(_, leak)| leak.id == bare);
        found.extend(leaks.map(|(position, _)| Subject::Leak(position.into())));
    }
    found
}

/// Returns the names of an image that `reference` means: one, or with a digest all names of that repository. Returns
/// none if it means the image itself, by its id or a digest alone.
#[must_use]
pub fn names_meant<'a>(names: &'a [String], reference: &str) -> Vec<&'a String> {
    let exact: Vec<_> = names.iter().filter(|name| *name == reference).collect();
    if !exact.is_empty() {
        return exact;
    }
    let of_repository = names.iter().filter(|name| match reference.split_once('@') {
        Some((wanted, _)) => repository(name) == wanted,
        None => means_name(reference, name),
    });
    of_repository.collect()
}

/// Returns the container that only podman's database knows and that `reference` means, by its name or the start of its id.
#[must_use]
pub fn lost_container<'a>(scan: &'a Scan, reference: &str) -> Option<&'a LostContainer> {
    let is_start = reference.len() >= SHORTEST_ID;
    let mut lost = scan.inventory.lost_containers.iter();
    lost.find(|container| {
        container.name == reference || is_start && container.id.as_str().starts_with(reference)
    })
}

fn layers(scan: &Scan) -> impl Iterator<Item = (NodeIx, &str)> {
    let nodes = scan.inventory.nodes.iter().enumerate();
    nodes.filter(|(_, node)| node.layer.is_some()).map(|(position, node)| (position.into(), node.id.as_str()))
}

/// Returns an id without its algorithm: a user may write `sha256:aa` or `moby/sha256:aa` with or without `sha256:`.
fn hex(id: &str) -> std::borrow::Cow<'_, str> {
    match id.rsplit_once("sha256:") {
        Some((qualifier, hex)) => format!("{qualifier}{hex}").into(),
        None => id.into(),
    }
}

fn by_start(scan: &Scan, reference: &str) -> Vec<Subject> {
    let start = bare_id(reference);
    if start.len() < SHORTEST_ID {
        return Vec::new();
    }
    let inventory = &scan.inventory;
    let images = inventory
        .images
        .iter()
        .enumerate()
        .filter(|(_, image)| starts_id_of_image(reference, &image.id, &image.digests))
        .map(|(position, _)| Subject::Image(position.into()));
    let containers = inventory
        .containers
        .iter()
        .enumerate()
        .filter(|(_, container)| container.id.starts_with(start))
        .map(|(position, _)| Subject::Container(position.into()));
    let found: Vec<_> = images.chain(containers).collect();
    let other_layers = layers(scan)
        .filter(|(_, id)| hex(id).starts_with(&*hex(start)) || short_id(id) == start)
        .filter(|(_, id)| !found.iter().any(|subject| id_of(scan, *subject) == *id));
    // containerd stores an image's configuration as a blob, whose digest is the image's id.
    let layers: Vec<_> = other_layers
        .filter(|(_, id)| {
            !found
                .iter()
                .any(|subject| matches!(subject, Subject::Image(_)) && hex(id) == hex(id_of(scan, *subject)))
        })
        .map(|(position, _)| Subject::Node(position))
        .collect();
    let found = [found, layers].concat();
    if !found.is_empty() {
        return found;
    }
    let leaks = inventory.leaks.iter().enumerate().filter(|(_, leak)| leak.id.starts_with(start));
    leaks.map(|(position, _)| Subject::Leak(position.into())).collect()
}

fn id_of(scan: &Scan, subject: Subject) -> &str {
    let inventory = &scan.inventory;
    match subject {
        Subject::Image(ix) => &inventory.images[ix.get()].id,
        Subject::Container(ix) => &inventory.containers[ix.get()].id,
        Subject::Leak(ix) => &inventory.leaks[ix.get()].id,
        Subject::Node(ix) => &inventory.nodes[ix.get()].id,
    }
}

/// Describes an object, with its store if there are several.
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
        Subject::Image(ix) => inventory[ix].store,
        Subject::Container(ix) => inventory.containers[ix.get()].store,
        Subject::Leak(ix) => inventory.leaks[ix.get()].store,
        Subject::Node(ix) => inventory[ix].store,
    }
}

fn describe(scan: &Scan, subject: Subject) -> String {
    let inventory = &scan.inventory;
    match subject {
        Subject::Image(ix) => {
            let image = &inventory.images[ix.get()];
            format!(
                "image {} {}",
                image.names.first().map_or("<none>", String::as_str),
                short_reference(&image.id)
            )
        }
        Subject::Container(ix) => {
            let container = &inventory.containers[ix.get()];
            format!("container {} {}", container.name, short_reference(&container.id))
        }
        Subject::Leak(ix) => format!("{} {}", inventory.leaks[ix.get()].class, inventory.leaks[ix.get()].id),
        Subject::Node(ix) => format!("layer {}", short_id(&inventory.nodes[ix.get()].id)),
    }
}

/// Finds a path. Nothing below a store's root is opened or followed.
///
/// # Errors
/// If the path does not exist or cannot be examined.
pub fn locate(scan: &Scan, path: &Path) -> Result<Located, LookupError> {
    let absolute = std::path::absolute(path).map_err(|error| unreadable(path, &error))?;
    // With a sysroot, the path may be that on the other system, or that on this one.
    let there = scan.sysroot.is_foreign().then(|| inside_sysroot(scan, &absolute)).flatten();
    let Some((store, below)) = there.or_else(|| store_above(scan, &absolute)) else {
        let is_inside = scan.sysroot.is_foreign() && !absolute.starts_with(scan.sysroot.root());
        let here = if is_inside {
            scan.sysroot.resolve(&absolute).map_err(|error| unreadable(path, &error))?
        } else {
            absolute
        };
        let (fd, here) = root::find_at_hand(&here).map_err(|error| unreadable(path, &error))?;
        let stat = rustix::fs::fstat(fd).map_err(|error| unreadable(path, &error.into()))?;
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        return Ok(Located { path: here, is_directory, store: None });
    };
    if below.components().any(|component| component == Component::ParentDir) {
        let message = "name it without `..`".to_owned();
        return Err(LookupError::Unreadable { path: path.to_path_buf(), message });
    }
    let root = &scan.inventory[store].root;
    let wanted = if below.as_os_str().is_empty() { root.clone() } else { root.join(&below) };
    if is_missing(root, &wanted) {
        return Err(LookupError::Missing { path: path.to_path_buf() });
    }
    Ok(Located { path: wanted, is_directory: true, store: Some((store, below)) })
}

fn unreadable(path: &Path, error: &std::io::Error) -> LookupError {
    match error.kind() {
        ErrorKind::NotFound => LookupError::Missing { path: path.to_path_buf() },
        _ => LookupError::Unreadable { path: path.to_path_buf(), message: error.to_string() },
    }
}

/// Returns the object that a path is part of. Returns `None` for a path outside all stores and, if the scan has kept
/// its trees, for a store's directory that contains more than bookkeeping.
#[must_use]
pub fn at_path(scan: &Scan, located: &Located) -> Option<Subject> {
    let Located { path: wanted, store, .. } = located;
    if let Some(leak) = leftover(scan, wanted) {
        return Some(Subject::Leak(leak));
    }
    let (store, below) = store.as_ref().filter(|(_, below)| !below.as_os_str().is_empty())?;
    let found = deepest_node(scan, *store, wanted)
        .or_else(|| node_beside_records(scan, *store, below))
        .or_else(|| bookkeeping(scan, *store, wanted));
    found.map(|node| owner_of(scan, node))
}

fn nodes_of(scan: &Scan, store: StoreIx) -> impl Iterator<Item = (NodeIx, &Node)> {
    let nodes = scan.inventory.nodes.iter().enumerate();
    nodes.filter(move |(_, node)| node.store == store).map(|(position, node)| (position.into(), node))
}

fn is_bookkeeping(node: &Node) -> bool {
    matches!(node.kind, NodeKind::StoreMetadata | NodeKind::StoreRecords)
}

/// Returns the node with the longest path that `path` starts with.
fn deepest_node(scan: &Scan, store: StoreIx, path: &Path) -> Option<NodeIx> {
    let above =
        nodes_of(scan, store).filter(|(_, node)| !is_bookkeeping(node) && path.starts_with(&node.path));
    above.max_by_key(|(_, node)| node.path.components().count()).map(|(ix, _)| ix)
}

/// Returns the layer whose tar-split or data is at `below`: these files are beside the records, not in the layer's
/// directory.
fn node_beside_records(scan: &Scan, store: StoreIx, below: &Path) -> Option<NodeIx> {
    let mut names = below.components().map(|component| component.as_os_str().to_string_lossy());
    names.next().filter(|top| top.ends_with("-layers"))?;
    let name = names.next()?;
    let id = name.strip_suffix(".tar-split.gz").unwrap_or(&name);
    nodes_of(scan, store).find(|(_, node)| node.id == id).map(|(ix, _)| ix)
}

/// Returns the store's bookkeeping, unless a tree that the scan has kept is below `path`.
fn bookkeeping(scan: &Scan, store: StoreIx, path: &Path) -> Option<NodeIx> {
    let (node, _) = nodes_of(scan, store).find(|(_, node)| is_bookkeeping(node))?;
    let trees = &scan.trees;
    let mut inside = trees.parts.iter().map(|(_, (root, part, _))| trees.roots[*root].join(part));
    let contains_others = inside.any(|part| part.starts_with(path) && part != path);
    (!contains_others).then_some(node)
}

/// Returns the leak of a temporary file of the tools, which is in no store.
fn leftover(scan: &Scan, path: &Path) -> Option<LeakIx> {
    let inventory = &scan.inventory;
    let position = inventory.leaks.iter().position(|leak| {
        let mut kinds = leak.holds.iter().map(|node| inventory.nodes[node.get()].kind);
        kinds.any(|kind| kind == NodeKind::TemporaryFile) && path.starts_with(&leak.path)
    });
    position.map(LeakIx::from)
}

/// Returns the image, container or leak that a node's files belong to, or the node itself.
fn owner_of(scan: &Scan, node: NodeIx) -> Subject {
    let inventory = &scan.inventory;
    if inventory.nodes[node.get()].layer.is_some() {
        return leak_or_node(scan, node);
    }
    if let Some(position) = inventory.images.iter().position(|image| image.holds.first() == Some(&node)) {
        return Subject::Image(position.into());
    }
    if let Some(position) =
        inventory.containers.iter().position(|container| container.holds.first() == Some(&node))
    {
        return Subject::Container(position.into());
    }
    match inventory.leaks.iter().position(|leak| leak.holds.contains(&node)) {
        Some(position) => Subject::Leak(position.into()),
        None => Subject::Node(node),
    }
}

/// Returns the store that contains a path inside the sysroot, and the path below its root.
fn inside_sysroot(scan: &Scan, path: &Path) -> Option<(StoreIx, PathBuf)> {
    let mut stores = scan.inventory.stores.iter().enumerate().filter_map(|(position, store)| {
        let below = path.strip_prefix(scan.sysroot.display(&store.root)).ok()?;
        Some((StoreIx::from(position), below.to_path_buf()))
    });
    stores.next()
}

fn identity(found: std::io::Result<(Arc<OwnedFd>, PathBuf)>) -> Option<(u64, u64)> {
    let stat = rustix::fs::fstat(found.ok()?.0).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

/// Returns true if `path`, which is below the store's root `store`, does not exist. Does not enter a mount whose
/// filesystem may not answer.
fn is_missing(store: &Path, path: &Path) -> bool {
    let Ok(root) = Root::open(store) else { return false };
    let Ok(below) = path.strip_prefix(store) else { return false };
    // The driver's directory is mounted on itself.
    let found = root::into_mounts(Opener::usual(root.fd()), root.fd(), below, HANDLE);
    found.is_err_and(|error| error == Errno::NOENT)
}

/// Returns the store above a path, and the path below its root. The store is found by inode, so that symlinks and
/// mounts above it do not matter.
fn store_above(scan: &Scan, path: &Path) -> Option<(StoreIx, PathBuf)> {
    let stores: Vec<_> = scan
        .inventory
        .stores
        .iter()
        .enumerate()
        .filter_map(|(position, store)| {
            Some((StoreIx::from(position), identity(root::find(&store.root))?, &store.driver))
        })
        .collect();
    let mut above: Vec<&Path> = path.ancestors().collect();
    above.reverse();
    for ancestor in above {
        // The roots of stores have been read before; a server of another filesystem may not answer.
        let is_root = scan.inventory.stores.iter().any(|store| store.root == ancestor);
        let found = if is_root { root::find(ancestor) } else { root::find_at_hand(ancestor) };
        let Some(here) = identity(found) else { continue };
        let Ok(below) = path.strip_prefix(ancestor) else { continue };
        let mut matching = stores.iter().filter(|(_, identity, _)| *identity == here).peekable();
        let first = matching.peek().map(|(store, _, _)| *store);
        // A graphroot may contain the records of several drivers.
        let top = below.components().next().map(|top| top.as_os_str().to_string_lossy().into_owned());
        let of_driver = matching.find(|(_, _, driver)| {
            top.as_deref().is_some_and(|top| top == *driver || top.starts_with(&format!("{driver}-")))
        });
        if let Some(store) = of_driver.map(|(store, _, _)| *store).or(first) {
            return Some((store, below.to_path_buf()));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::is_path;

    #[test]
    fn paths_and_names_are_distinguished() {
        for path in ["/", "/var/log", ".", "..", "./a", "../a"] {
            assert!(is_path(path), "{path}");
        }
        for name in ["library/nginx", "a", ".hidden", "sha256:00", "..."] {
            assert!(!is_path(name), "{name}");
        }
    }
}
