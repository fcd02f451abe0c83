//! Everything that one scan found.

use std::ops::Index;
use std::path::PathBuf;

use super::container::Container;
use super::filesystem::Filesystem;
use super::ids::{ContainerIx, FilesystemIx, ImageIx, LeakIx, NodeIx, StoreIx};
use super::image::Image;
use super::leak::Leak;
use super::node::Node;
use super::store::{Lent, Store};
use super::uses::Use;

/// Everything that one scan found.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    /// The filesystems that hold at least one store.
    pub filesystems: Vec<Filesystem>,
    /// The stores, in the order they were found.
    pub stores: Vec<Store>,
    /// Everything that costs bytes, each byte in exactly one node.
    pub nodes: Vec<Node>,
    /// Image records.
    pub images: Vec<Image>,
    /// Container records.
    pub containers: Vec<Container>,
    /// What nothing uses, or looks wrong.
    pub leaks: Vec<Leak>,
    /// Nodes that something other than an image, container or leak holds: the store's own
    /// bookkeeping, layers of read-only stores, inodes with links outside every store.
    /// No deletion of ours frees them.
    pub anchored: Vec<NodeIx>,
    /// Stores whose images may be used by another one, of whose containers not all are known.
    pub lent: Vec<Lent>,
    /// What uses images and layers from elsewhere: other stores, podman's database, mounts of images.
    pub uses: Vec<Use>,
    /// What could not be read or does not fit together; `scan` prints them as warnings.
    pub findings: Vec<Finding>,
}

impl Inventory {
    /// Where its filesystems are mounted.
    #[must_use]
    pub fn mounts(&self) -> Vec<PathBuf> {
        self.filesystems.iter().map(|one| one.mount.clone()).collect()
    }

    /// Whether an image is an OCI artifact.
    #[must_use]
    pub fn is_artifact(&self, image: ImageIx) -> bool {
        self.stores[self.images[image.get()].store.get()].is_of_artifacts()
    }
}

/// Something that could not be read in full, or that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file or object concerned.
    pub path: PathBuf,
    /// What is wrong with it, and what that means for the figures.
    pub message: String,
    /// The figures are lower bounds because of this: exit code 3.
    pub incomplete: bool,
}

impl Index<FilesystemIx> for Inventory {
    type Output = Filesystem;

    fn index(&self, at: FilesystemIx) -> &Filesystem {
        &self.filesystems[at.get()]
    }
}

impl Index<StoreIx> for Inventory {
    type Output = Store;

    fn index(&self, at: StoreIx) -> &Store {
        &self.stores[at.get()]
    }
}

impl Index<NodeIx> for Inventory {
    type Output = Node;

    fn index(&self, at: NodeIx) -> &Node {
        &self.nodes[at.get()]
    }
}

impl Index<ImageIx> for Inventory {
    type Output = Image;

    fn index(&self, at: ImageIx) -> &Image {
        &self.images[at.get()]
    }
}

impl Index<ContainerIx> for Inventory {
    type Output = Container;

    fn index(&self, at: ContainerIx) -> &Container {
        &self.containers[at.get()]
    }
}

impl Index<LeakIx> for Inventory {
    type Output = Leak;

    fn index(&self, at: LeakIx) -> &Leak {
        &self.leaks[at.get()]
    }
}
