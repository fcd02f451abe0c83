//! State shared by all threads of a walk.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::counters::Counters;
use super::extents::Reflinks;
use super::links::Links;
use super::types::{Tree, WalkOptions};
use crate::disk::top::Top;
use crate::sys::beneath::Opener;
use crate::sys::mounts;

#[derive(Debug)]
pub struct Walk<'a> {
    pub root_paths: &'a [PathBuf],
    pub roots: Vec<rustix::io::Result<Top>>,
    pub trees: &'a [Tree<'a>],
    pub next_tree: AtomicUsize,
    pub opener: Opener,
    pub counters: Counters<'a>,
    pub links: Links,
    /// Number of samples that were drawn.
    pub samples: AtomicUsize,
    /// Filesystem of each root on which files are asked for their extents.
    pub reflinks: Vec<Option<Reflinks>>,
    /// `st_dev` of each root whose inodes are counted by chunk.
    pub xfs: Vec<Option<u64>>,
    /// Device and inode number of directories that are counted by trees of their own.
    pub apart: Vec<(u64, u64)>,
}

impl<'a> Walk<'a> {
    pub fn new(root_paths: &'a [PathBuf], trees: &'a [Tree<'a>], options: &WalkOptions<'a>) -> Self {
        let roots = Top::all(root_paths, &options.within);
        let apart = options
            .apart
            .iter()
            .filter_map(|root_ix| {
                let stat = rustix::fs::fstat(roots.get(*root_ix)?.as_ref().ok()?.fd()).ok()?;
                Some((stat.st_dev, stat.st_ino))
            })
            .collect();
        let xfs = roots
            .iter()
            .map(|root| {
                let device = rustix::fs::fstat(root.as_ref().ok()?.fd()).ok()?.st_dev;
                options.inode_chunks?.counts(device).then_some(device)
            })
            .collect();
        let opener = Top::opener(&roots);
        let mounts = options.extents.map(|_| {
            mounts::read().unwrap_or_else(|error| {
                tracing::debug!(%error, "cannot read the mount table: telling filesystems apart by st_dev");
                Vec::new()
            })
        });
        let reflinks: Vec<_> = roots
            .iter()
            .map(|root| Reflinks::of(root.as_ref().ok()?, &options.extents?, mounts.as_deref()?))
            .collect();
        Self {
            root_paths,
            roots,
            apart,
            trees,
            next_tree: AtomicUsize::new(0),
            opener,
            counters: Counters::new(trees.iter().map(|tree| tree.unit + 1).max(), options.progress),
            links: Links::new(reflinks.iter().any(Option::is_some)),
            samples: AtomicUsize::new(0),
            reflinks,
            xfs,
        }
    }

    pub fn next_tree(&self) -> Option<usize> {
        let next = self.next_tree.fetch_add(1, Ordering::Relaxed);
        (next < self.trees.len()).then_some(next)
    }
}
