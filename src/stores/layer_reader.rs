//! Reads names and sizes of the files in a layer: from its tar-split, or from its directory.

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use hashbrown::{HashMap, HashSet};

use super::Scan;
use super::containers_storage::places::{RecordKind, StorePlaces};
use super::containers_storage::records::is_id;
use super::containers_storage::tar_split::{self, MOST_NAMES};
use crate::model::text::names::names;
use crate::model::waste::layer_files::{Content, FileFacts, LayerFiles, PathSeed};
use crate::model::{Node, NodeIx, StoreIx};
use crate::sys::allowance::Allowance;
use crate::sys::beneath::{DIRECTORY, Opener};
use crate::sys::quiet::{self, FileKind, Step, Within, if_present};

names! {
    /// Source of the names and sizes of a layer's files.
    LayerSource {
        /// Its tar-split: lengths and checksums of the files.
        TarSplit = "tar-split",
        /// Its directory: allocated bytes, and no checksums.
        Directory = "directory",
        Unread = "unread",
    }
}

/// Attributes with which overlayfs, as root and for a user, marks a directory that hides those of lower layers.
const OPAQUE: [&str; 2] = ["trusted.overlay.opaque", "user.overlay.opaque"];

#[derive(Debug)]
pub struct LayerReader<'a> {
    scan: &'a Scan,
    seed: PathSeed,
    stores: Vec<StoreAccess<'a>>,
    walks: bool,
}

#[derive(Debug)]
struct StoreAccess<'a> {
    within: Within,
    places: Option<&'a StorePlaces>,
    /// Bytes that the store's filesystem allocates at once.
    block: u64,
}

impl<'a> LayerReader<'a> {
    #[must_use]
    pub fn new(scan: &'a Scan) -> Self {
        let stores = (0..scan.inventory.stores.len()).map(|position| {
            let store_ix = StoreIx::from(position);
            let places = scan.editable[store_ix.get()].as_ref();
            let areas = scan.areas[store_ix.get()].iter().map(PathBuf::as_path);
            let within = places.map_or_else(|| Within::at(areas), StorePlaces::within);
            let block = within
                .handle(&scan.inventory[store_ix].root)
                .and_then(|root| Ok(rustix::fs::fstatvfs(root)?.f_frsize));
            StoreAccess { within, places, block: block.unwrap_or(0).max(512) }
        });
        Self { scan, seed: PathSeed::default(), stores: stores.collect(), walks: true }
    }

    /// Returns a reader of tar-splits alone: layers without one count as unread.
    #[must_use]
    pub fn without_walks(self) -> Self {
        Self { walks: false, ..self }
    }

    /// Returns the length of a layer's tar-split; 0 without one.
    #[must_use]
    pub fn packed_bytes(&self, node: NodeIx) -> u64 {
        let packed = self.tar_split(&self.scan.inventory[node]);
        packed.ok().flatten().and_then(|(_, file)| file.metadata().ok()).map_or(0, |facts| facts.len())
    }

    fn tar_split(&self, node: &Node) -> io::Result<Option<(PathBuf, File)>> {
        let store = &self.stores[node.store.get()];
        let Some(places) = store.places.filter(|_| is_id(&node.id)) else { return Ok(None) };
        for area in places.areas() {
            let name = format!("{}.tar-split.gz", node.id);
            let path = places.records_dir(area, RecordKind::Layers).join(name);
            if let Some(packed) = if_present(store.within.open_file(&path))? {
                return Ok(Some((path, packed)));
            }
        }
        Ok(None)
    }

    #[must_use]
    pub fn empty(&self) -> LayerFiles {
        LayerFiles::new(&self.seed, HashSet::new())
    }

    /// Reads a layer, with the texts of the `wanted` paths.
    ///
    /// # Errors
    /// If neither its tar-split nor its directory can be read in full, or its snapshotter or driver has no layers that
    /// overlayfs stacks.
    pub fn read(&self, node: NodeIx, wanted: HashSet<u64>) -> io::Result<(LayerSource, LayerFiles)> {
        let node = &self.scan.inventory[node];
        let store = &self.stores[node.store.get()];
        let mut files = LayerFiles::new(&self.seed, wanted);
        let directory = directory_of(node, &self.scan.inventory[node.store].driver)?;
        let allowance = store.places.map(|places| places.allowance.clone()).unwrap_or_default();
        if let Some((path, packed)) = self.tar_split(node)? {
            tar_split::read(packed, store.block, &allowance, &mut files)
                .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
            return Ok((LayerSource::TarSplit, files));
        }
        if !self.walks {
            return Err(unsupported("it has no tar-split"));
        }
        walk(&store.within.directory(&directory)?, &allowance, &mut files)?;
        Ok((LayerSource::Directory, files))
    }
}

/// Returns the directory with the files of a layer, which overlayfs stacks. `driver`: that of its store.
///
/// # Errors
/// If overlayfs does not stack layers of its driver, or its files are elsewhere.
pub fn directory_of(node: &Node, driver: &str) -> io::Result<PathBuf> {
    let facts = node.layer.as_deref();
    let driver = facts.and_then(|facts| facts.snapshotter.as_deref()).unwrap_or(driver);
    if facts.is_some_and(|facts| facts.elsewhere.is_some()) {
        return Err(unsupported("its files are in an additional layer store"));
    }
    match driver {
        "overlay" | "overlay2" => Ok(node.path.join("diff")),
        "overlayfs" => Ok(node.path.join("fs")),
        other => Err(unsupported(&format!("layers of {other} are not stacked by overlayfs"))),
    }
}

fn unsupported(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, why.to_owned())
}

fn walk(top: &OwnedFd, allowance: &Allowance, files: &mut LayerFiles) -> io::Result<()> {
    let mut links: HashMap<(u64, u64), PathBuf> = HashMap::new();
    let walked = quiet::walk_until(top, &|_| false, &mut |step| {
        add(top, &step, allowance, &mut links, files).map_or_else(ControlFlow::Break, ControlFlow::Continue)
    });
    walked.break_value().map_or(Ok(()), Err)
}

fn add(
    top: &OwnedFd,
    step: &Step<'_>,
    allowance: &Allowance,
    links: &mut HashMap<(u64, u64), PathBuf>,
    files: &mut LayerFiles,
) -> io::Result<()> {
    allowance.charge(crate::sys::allowance::TEXT)?;
    if files.names() > MOST_NAMES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    match step {
        Step::Unread(path) => {
            return Err(io::Error::other(format!("{} cannot be read", path.display())));
        }
        Step::Directory(path, _) => {
            let is_opaque = is_opaque(top, path)?;
            files.add(path.as_os_str().as_bytes(), Content::Directory { is_opaque });
            if is_opaque && path.as_os_str().is_empty() {
                files.add(b".wh..wh..opq", Content::Other);
            }
        }
        Step::Entry(path, facts, bytes) => {
            let name = path.as_os_str().as_bytes();
            if facts.links > 1 && facts.kind == FileKind::File {
                if let Some(first) = links.get(&facts.identity()) {
                    files.add_link(name, first.as_os_str().as_bytes());
                    return Ok(());
                }
                links.insert(facts.identity(), path.to_path_buf());
            }
            let content = match facts.kind {
                _ if facts.is_whiteout => Content::Whiteout,
                FileKind::File => {
                    Content::File(FileFacts { apparent_bytes: facts.length, bytes: *bytes, checksum: None })
                }
                _ => Content::Other,
            };
            files.add(name, content);
        }
        Step::Mount(_) | Step::End => {}
    }
    Ok(())
}

fn is_opaque(top: &OwnedFd, path: &Path) -> io::Result<bool> {
    let directory = Opener::usual(top.as_fd()).beneath(top.as_fd(), path, DIRECTORY, false)?;
    let mut value = [0; 4];
    let marks = OPAQUE
        .iter()
        .map(|name| rustix::fs::fgetxattr(&directory, *name, &mut value[..]).map(|n| value[..n] == *b"y"));
    Ok(marks.flatten().any(|is_marked| is_marked))
}
