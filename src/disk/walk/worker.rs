//! Worker thread of a walk.

use std::ffi::{CStr, OsStr};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::extents::ThreadExtents;
use super::queue::{Exchange, Frame, Stack};
use super::shared::Walk;
use super::tree_directory::TreeDirectory;
use super::types::WalkError;
use crate::disk::inode_chunks::{Holding, ThreadHoldings};
use crate::disk::runs::DiskRun;
use crate::disk::samples::{self, FileSample};
use crate::sys::beneath::DIRECTORY;
use crate::sys::root::into_mounts;

/// Size of the buffer for directory entries, in bytes.
const BUFFER: usize = 32 * 1024;

#[derive(Debug, Default)]
pub struct Findings {
    pub errors: Vec<WalkError>,
    pub mounts: Vec<(usize, PathBuf)>,
    pub inodes: ThreadHoldings,
    pub extents: ThreadExtents,
}

impl Findings {
    pub fn append(&mut self, mut other: Self) {
        self.errors.append(&mut other.errors);
        self.mounts.append(&mut other.mounts);
        self.inodes.append(other.inodes);
        self.extents.append(other.extents);
    }
}

#[derive(Debug)]
pub struct Worker<'w, 'a> {
    pub walk: &'w Walk<'a>,
    exchange: &'w Exchange,
    pub stack: Stack,
    pub buffer: Box<[MaybeUninit<u8>]>,
    findings: Findings,
}

/// Ends the walk for the other threads when this one panics; otherwise they would wait forever.
struct StopOnPanic<'w>(&'w Exchange);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop();
        }
    }
}

impl<'w, 'a> Worker<'w, 'a> {
    /// Creates a worker that keeps at most `open_limit` directories open besides the one it reads.
    pub fn new(walk: &'w Walk<'a>, exchange: &'w Exchange, open_limit: usize) -> Self {
        Self {
            walk,
            exchange,
            stack: Stack::new(open_limit),
            buffer: Box::new_uninit_slice(BUFFER),
            findings: Findings::default(),
        }
    }

    pub fn run(mut self) -> Findings {
        let _stop = StopOnPanic(self.exchange);
        loop {
            if let Some(frame) = self.stack.pop() {
                self.step(frame);
                self.share();
            } else if let Some(tree) = self.walk.next_tree() {
                self.start(tree);
                self.share();
            } else if let Some(frame) = self.exchange.take() {
                self.stack.push(frame);
            } else {
                return self.findings;
            }
        }
    }

    /// Gives work to all idle threads: on a cold disk it can take long to read the next directory, and only then is
    /// there another opportunity.
    fn share(&mut self) {
        while self.exchange.is_hungry()
            && let Some(frame) = self.stack.give()
        {
            self.exchange.give(frame);
        }
    }

    fn step(&mut self, mut frame: Frame) {
        let Some(child) = frame.children.pop() else {
            return;
        };
        let origin = frame.origin;
        let parent = match frame.fd.take() {
            Some(fd) => fd,
            None => match self.open_again(&frame) {
                Ok(fd) => Arc::new(fd),
                Err(error) => {
                    return self.fail(origin.tree, &frame.place, None, "opening again", error);
                }
            },
        };
        let place = Arc::clone(&frame.place);
        if !frame.children.is_empty() {
            frame.fd = Some(Arc::clone(&parent));
            self.stack.push(frame);
        }
        match self.walk.opener.directory(parent.as_fd(), &child.name) {
            Ok(fd) => {
                drop(parent);
                self.read(origin, fd, TreeDirectory::below(&place, child.name));
            }
            Err(Errno::XDEV) => self.mount_point(origin, &parent, &place, child),
            // Replaced by another type of file, or not accessible: its size counts anyway.
            Err(error) => {
                if !matches!(error, Errno::NOTDIR | Errno::LOOP) {
                    self.fail(origin.tree, &place, Some(&child.name), "opening", error);
                }
                if error != Errno::NOENT {
                    self.count_unopened(origin, &parent, &place, &child.name);
                }
            }
        }
    }

    #[inline]
    pub fn note_inode(&mut self, xfs: Option<u64>, unit: usize, inode: u64) {
        if let Some(device) = xfs {
            self.findings.inodes.add(Holding::of(device, inode, Some(unit)));
        }
    }

    #[inline]
    pub fn note_extents(&mut self, filesystem: u64, unit: usize, runs: &[DiskRun]) {
        self.findings.extents.add(filesystem, Some(unit), runs);
    }

    pub fn note_estimate(&mut self, is_estimate: bool) {
        self.findings.extents.has_estimates |= is_estimate;
    }

    /// Records a file that represents `weight` bytes.
    pub fn note_sample(&mut self, tree: usize, place: &TreeDirectory, name: Option<&CStr>, weight: u64) {
        if self.walk.samples.fetch_add(1, Ordering::Relaxed) >= samples::MOST {
            return;
        }
        let trees = self.walk.trees;
        let unit = trees[tree].unit;
        let before = trees[..tree].iter().rev().take_while(|tree| tree.unit == unit).count();
        let path = place.relative(name.map(|name| OsStr::from_bytes(name.to_bytes())));
        self.findings.extents.add_sample(unit, FileSample { tree: before, path, weight });
    }

    pub fn note_mount(&mut self, tree: usize, place: &TreeDirectory, name: Option<&CStr>) {
        let path = self.path(tree, place, name);
        self.findings.mounts.push((self.walk.trees[tree].unit, path));
    }

    pub fn fail(
        &mut self,
        tree: usize,
        place: &TreeDirectory,
        name: Option<&CStr>,
        doing: &str,
        error: Errno,
    ) {
        self.findings.errors.push(WalkError {
            unit: self.walk.trees[tree].unit,
            path: self.path(tree, place, name),
            message: format!("{doing}: {}", std::io::Error::from(error)),
            vanished: error == Errno::NOENT,
        });
    }

    fn path(&self, tree: usize, place: &TreeDirectory, name: Option<&CStr>) -> PathBuf {
        let tree = &self.walk.trees[tree];
        let mut start = self.walk.root_paths.get(tree.root).cloned().unwrap_or_default();
        if !tree.path.as_os_str().is_empty() {
            start.push(&tree.path);
        }
        let mut path = place.path(&start);
        if let Some(name) = name {
            path.push(OsStr::from_bytes(name.to_bytes()));
        }
        path
    }

    /// Reopens the directory of a frame that was closed to save descriptors.
    fn open_again(&self, frame: &Frame) -> rustix::io::Result<OwnedFd> {
        let tree = &self.walk.trees[frame.origin.tree];
        let root = self.walk.roots.get(tree.root).and_then(|root| root.as_ref().ok());
        let opener = self.walk.opener;
        let root = root.ok_or(Errno::NOENT)?;
        let pieces = frame.place.pieces();
        let mut fd = root.open(opener, &tree.path, DIRECTORY)?;
        for piece in &pieces {
            // Entering mounts is safe: the identity check below accepts only the directory that was read before.
            fd = into_mounts(opener, fd.as_fd(), piece, DIRECTORY)?;
        }
        let stat = rustix::fs::fstat(&fd)?;
        if (stat.st_dev, stat.st_ino) == frame.identity { Ok(fd) } else { Err(Errno::NOENT) }
    }
}
