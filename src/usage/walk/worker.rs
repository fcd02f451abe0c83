//! What one thread does.

use std::ffi::{CStr, OsStr};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, RawDir, RawDirEntry, Stat, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use super::Walk;
use super::extents;
use super::links::Sight;
use super::place::Place;
use super::queue::{Child, Exchange, Frame, Origin, Stack};
use super::types::{Tally, Tree, TreeScope, WalkError};
use crate::sys::beneath::{DIRECTORY, HANDLE, mount_id};
use crate::usage::btrfs;
use crate::usage::inode_chunks::Notes;

/// Bytes of directory entries that are read at once.
const BUFFER: usize = 32 * 1024;

/// Names are examined as they are: no symlink followed, no automount triggered.
const AS_IT_IS: AtFlags = AtFlags::SYMLINK_NOFOLLOW.union(AtFlags::NO_AUTOMOUNT);

/// What a thread found besides bytes.
#[derive(Debug, Default)]
pub struct Findings {
    pub errors: Vec<WalkError>,
    pub mounts: Vec<(usize, PathBuf)>,
    pub inodes: Notes,
}

impl Findings {
    pub fn append(&mut self, mut other: Self) {
        self.errors.append(&mut other.errors);
        self.mounts.append(&mut other.mounts);
        self.inodes.append(other.inodes);
    }
}

/// One thread of a walk.
#[derive(Debug)]
pub struct Worker<'w, 'a> {
    walk: &'w Walk<'a>,
    exchange: &'w Exchange,
    stack: Stack,
    buffer: Vec<MaybeUninit<u8>>,
    findings: Findings,
}

/// The directory that is being read.
#[derive(Debug)]
struct Here<'d> {
    origin: Origin,
    unit: usize,
    fd: BorrowedFd<'d>,
    place: &'d Arc<Place>,
    /// Device that the directory lies on.
    dev: u64,
    tally: Tally,
    children: Vec<Child>,
}

/// Ends the walk for the other threads when this one panics; they would wait for ever.
struct StopOnPanic<'w>(&'w Exchange);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop();
        }
    }
}

impl<'w, 'a> Worker<'w, 'a> {
    /// A worker that keeps at most `open_limit` directories open besides the one it reads.
    pub fn new(walk: &'w Walk<'a>, exchange: &'w Exchange, open_limit: usize) -> Self {
        Self {
            walk,
            exchange,
            stack: Stack::new(open_limit),
            buffer: vec![MaybeUninit::uninit(); BUFFER],
            findings: Findings::default(),
        }
    }

    /// Works until nothing is left for any thread.
    pub fn run(mut self) -> Findings {
        let _stop = StopOnPanic(self.exchange);
        loop {
            if self.walk.collector.give_up() {
                self.exchange.stop();
                return self.findings;
            }
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

    fn share(&mut self) {
        if self.exchange.is_hungry()
            && let Some(frame) = self.stack.give()
        {
            self.exchange.give(frame);
        }
    }

    fn start(&mut self, at: usize) {
        let walk = self.walk;
        let tree = &walk.trees[at];
        let root = match walk.roots.get(tree.root) {
            Some(Ok(root)) => root.as_fd(),
            Some(Err(error)) => return self.fail(at, &Place::start(), None, "opening", *error),
            None => return self.fail(at, &Place::start(), None, "opening", Errno::INVAL),
        };
        if tree.scope == TreeScope::EntryOnly {
            return self.count_start(at, root, tree);
        }
        match walk.opener.beneath(root, &tree.path, DIRECTORY, true) {
            Ok(fd) => {
                let origin = self.origin(at, fd.as_fd());
                self.read(origin, fd, Place::start());
            }
            Err(Errno::NOTDIR | Errno::LOOP) => self.count_start(at, root, tree),
            Err(error) => {
                self.fail(at, &Place::start(), None, "opening", error);
                if error == Errno::ACCESS || error == Errno::PERM {
                    self.count_start(at, root, tree);
                }
            }
        }
    }

    /// Counts the start of a tree without what lies below it.
    fn count_start(&mut self, at: usize, root: BorrowedFd<'_>, tree: &Tree) {
        let place = Place::start();
        let held;
        let handle = if tree.path.as_os_str().is_empty() {
            root
        } else {
            match self.walk.opener.beneath(root, &tree.path, HANDLE, true) {
                Ok(fd) => held = fd,
                Err(error) => return self.fail(at, &place, None, "opening", error),
            }
            held.as_fd()
        };
        let stat = match rustix::fs::fstat(handle) {
            Ok(stat) => stat,
            Err(error) => return self.fail(at, &place, None, "examining", error),
        };
        let origin = self.origin(at, handle);
        let mut here = Here {
            origin,
            unit: tree.unit,
            fd: handle,
            place: &place,
            dev: stat.st_dev,
            tally: Tally::default(),
            children: Vec::new(),
        };
        self.count(&mut here, None, &stat);
        self.walk.counters.add(here.unit, here.tally);
    }

    /// Reads the next subdirectory of `frame`.
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
        let dev = frame.identity.0;
        if !frame.children.is_empty() {
            frame.fd = Some(Arc::clone(&parent));
            self.stack.push(frame);
        }
        match self.walk.opener.directory(parent.as_fd(), &child.name) {
            Ok(fd) => {
                drop(parent);
                self.read(origin, fd, Place::below(&place, child.name));
            }
            Err(Errno::XDEV) => self.mount_point(origin, &parent, &place, dev, child),
            // Replaced by something else, or not for us: it weighs something all the same.
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

    /// Counts a directory that cannot be opened, as `du` does.
    fn count_unopened(&mut self, origin: Origin, parent: &OwnedFd, place: &Arc<Place>, name: &CStr) {
        match rustix::fs::statat(parent, name, AS_IT_IS) {
            Ok(stat) => {
                let mut here = Here {
                    origin,
                    unit: self.walk.trees[origin.tree].unit,
                    fd: parent.as_fd(),
                    place,
                    dev: stat.st_dev,
                    tally: Tally::default(),
                    children: Vec::new(),
                };
                self.count(&mut here, Some(name), &stat);
                self.walk.counters.add(here.unit, here.tally);
            }
            Err(error) => self.fail(origin.tree, place, Some(name), "examining", error),
        }
    }

    /// A mount is not entered, except a directory that lies over itself: containers/storage
    /// makes `overlay` a mount point of its own that way.
    fn mount_point(&mut self, origin: Origin, parent: &OwnedFd, place: &Arc<Place>, dev: u64, child: Child) {
        let over_itself = |stat: &Stat| (stat.st_dev, stat.st_ino) == (dev, child.ino);
        let opened = rustix::fs::statat(parent, &*child.name, AS_IT_IS)
            .ok()
            .filter(over_itself)
            .and_then(|_| {
                let name = PathBuf::from(OsStr::from_bytes(child.name.to_bytes()));
                self.walk.opener.beneath(parent.as_fd(), &name, DIRECTORY, true).ok()
            })
            .filter(|fd| rustix::fs::fstat(fd).is_ok_and(|stat| over_itself(&stat)));
        match opened {
            Some(fd) => self.read(origin, fd, Place::below(place, child.name)),
            None => self.note_mount(origin.tree, place, &child.name),
        }
    }

    /// Reads a directory; what it holds is counted, its subdirectories are put on the stack.
    fn read(&mut self, origin: Origin, fd: OwnedFd, place: Arc<Place>) {
        let stat = match rustix::fs::fstat(&fd) {
            Ok(stat) => stat,
            Err(error) => return self.fail(origin.tree, &place, None, "examining", error),
        };
        let mut here = Here {
            origin,
            unit: self.walk.trees[origin.tree].unit,
            fd: fd.as_fd(),
            place: &place,
            dev: stat.st_dev,
            tally: weight(&stat),
            children: Vec::new(),
        };
        self.note_inode(&here, &stat);
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut entries = RawDir::new(&fd, &mut buffer);
        loop {
            match entries.next() {
                Some(Ok(entry)) => self.entry(&mut here, &entry),
                Some(Err(error)) => {
                    self.fail(origin.tree, &place, None, "reading", error);
                    break;
                }
                None => break,
            }
        }
        self.buffer = buffer;
        self.walk.counters.add(here.unit, here.tally);
        let mut children = here.children;
        if !children.is_empty() {
            // They are taken from the end; the order of the directory is that of the disk.
            children.reverse();
            let identity = (stat.st_dev, stat.st_ino);
            self.stack.push(Frame { origin, place, identity, fd: Some(Arc::new(fd)), children });
        }
    }

    fn entry(&mut self, here: &mut Here<'_>, entry: &RawDirEntry<'_>) {
        let name = entry.file_name();
        let mut kind = entry.file_type();
        if kind == FileType::Directory && matches!(name.to_bytes(), b"." | b"..") {
            return;
        }
        if kind != FileType::Directory {
            if kind == FileType::Unknown && matches!(name.to_bytes(), b"." | b"..") {
                return;
            }
            let stat = match rustix::fs::statat(here.fd, name, AS_IT_IS) {
                Ok(stat) => stat,
                Err(error) => {
                    let (tree, place) = (here.origin.tree, here.place);
                    return self.fail(tree, place, Some(name), "examining", error);
                }
            };
            kind = FileType::from_raw_mode(stat.st_mode);
            if kind != FileType::Directory {
                // Another number than the directory's says that something may be mounted
                // over the file.
                if stat.st_ino != entry.ino() && is_mount_point(here, name, &stat) {
                    let (tree, place) = (here.origin.tree, here.place);
                    return self.note_mount(tree, place, name);
                }
                return self.count(here, Some(name), &stat);
            }
        }
        here.children.push(Child { name: name.into(), ino: entry.ino() });
    }

    /// Counts an inode, and asks it for shared extents where that is wanted. `name` is that
    /// in the directory `here`; without one, `here.fd` is the inode itself.
    fn count(&mut self, here: &mut Here<'_>, name: Option<&CStr>, stat: &Stat) {
        self.note_inode(here, stat);
        let kind = FileType::from_raw_mode(stat.st_mode);
        let tally = weight(stat);
        let key = (stat.st_dev, stat.st_ino);
        #[allow(clippy::unnecessary_cast)] // narrower on some architectures
        let links = stat.st_nlink as u64;
        let linked = links > 1 && kind != FileType::Directory;
        if linked {
            match self.walk.links.see(key, links, here.unit, tally) {
                Sight::First => {}
                Sight::Further => {
                    here.tally.metadata_bytes += btrfs::FURTHER_LINK;
                    return;
                }
                Sight::Complete(tally) => return here.tally += tally,
            }
        } else {
            here.tally += tally;
        }
        let collector = &self.walk.collector;
        if !collector.wants(kind, tally.bytes) {
            return;
        }
        let extents = match name {
            Some(name) => extents::ask(self.walk.opener, here.fd, name, stat),
            None => extents::ask_held(here.fd),
        };
        let filesystem = here.origin.filesystem;
        match extents {
            Ok(extents) if linked && collector.keeps_links() => {
                self.walk.links.attach(key, filesystem, extents);
            }
            Ok(extents) => collector.note(extents, filesystem, Some(here.unit)),
            Err(error) => {
                self.fail(here.origin.tree, here.place, name, "asking for extents", error);
            }
        }
    }

    /// On XFS: whose inode it is.
    #[inline]
    fn note_inode(&mut self, here: &Here<'_>, stat: &Stat) {
        if let Some(xfs) = here.origin.xfs {
            self.findings.inodes.see(xfs, Some(here.unit), stat.st_ino);
        }
    }

    fn origin(&self, tree: usize, fd: BorrowedFd<'_>) -> Origin {
        let xfs = self.walk.xfs.as_ref().and_then(|known| known.number(fd));
        Origin { tree, filesystem: self.filesystem(fd), xfs }
    }

    /// What tells the filesystem of a tree from others. Not `st_dev`: btrfs has one for
    /// each subvolume, and they share extents.
    fn filesystem(&self, fd: BorrowedFd<'_>) -> u64 {
        if !self.walk.collector.collects() {
            return 0;
        }
        let device = mount_id(fd).ok().and_then(|id| {
            let mount = self.walk.mounts.iter().find(|mount| mount.id == id)?;
            Some(rustix::fs::makedev(mount.device.0, mount.device.1))
        });
        device.or_else(|| rustix::fs::fstat(fd).ok().map(|stat| stat.st_dev)).unwrap_or(0)
    }

    fn note_mount(&mut self, tree: usize, place: &Place, name: &CStr) {
        let path = self.path(tree, place, Some(name));
        self.findings.mounts.push((self.walk.trees[tree].unit, path));
    }

    fn fail(&mut self, tree: usize, place: &Place, name: Option<&CStr>, doing: &str, error: Errno) {
        self.findings.errors.push(WalkError {
            unit: self.walk.trees[tree].unit,
            path: self.path(tree, place, name),
            message: format!("{doing}: {}", std::io::Error::from(error)),
            vanished: error == Errno::NOENT,
        });
    }

    fn path(&self, tree: usize, place: &Place, name: Option<&CStr>) -> PathBuf {
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

    /// Opens the directory of a frame again that was closed to save descriptors.
    fn open_again(&self, frame: &Frame) -> rustix::io::Result<OwnedFd> {
        let tree = &self.walk.trees[frame.origin.tree];
        let root = self.walk.roots.get(tree.root).and_then(|root| root.as_ref().ok());
        let opener = self.walk.opener;
        let root = root.ok_or(Errno::NOENT)?;
        let pieces = frame.place.pieces();
        let mut fd = opener.beneath(root.as_fd(), &tree.path, DIRECTORY, true)?;
        for piece in &pieces {
            // Mounts may be passed, because it must be the very directory that was read.
            fd = opener.beneath(fd.as_fd(), piece, DIRECTORY, true)?;
        }
        let stat = rustix::fs::fstat(&fd)?;
        if (stat.st_dev, stat.st_ino) == frame.identity { Ok(fd) } else { Err(Errno::NOENT) }
    }
}

/// What an inode weighs.
fn weight(stat: &Stat) -> Tally {
    #[allow(clippy::unnecessary_cast)] // i64 here, other types on other architectures
    let (blocks, size) = (stat.st_blocks as i64, stat.st_size as i64);
    let kind = FileType::from_raw_mode(stat.st_mode);
    let bytes = u64::try_from(blocks).unwrap_or(0).saturating_mul(512);
    let size = u64::try_from(size).unwrap_or(0);
    let metadata = btrfs::metadata(kind, size, bytes);
    Tally {
        bytes,
        apparent_bytes: if kind == FileType::Directory { 0 } else { size },
        inodes: 1,
        metadata_bytes: metadata.bytes,
        inline_bytes: metadata.inline_bytes,
    }
}

/// Whether something is mounted on the file `name`.
fn is_mount_point(here: &Here<'_>, name: &CStr, stat: &Stat) -> bool {
    let root = StatxAttributes::MOUNT_ROOT;
    match rustix::fs::statx(here.fd, name, AS_IT_IS, StatxFlags::empty()) {
        Ok(facts) if facts.stx_attributes_mask.contains(root) => facts.stx_attributes.contains(root),
        // Linux before 5.8: a bind mount of the same device goes unnoticed.
        _ => stat.st_dev != here.dev,
    }
}
