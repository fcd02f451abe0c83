//! Reads one directory and counts its entries.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{FileType, RawDir, RawDirEntry, Stat, StatxAttributes, StatxFlags};

use super::extents;
use super::links::Sight;
use super::queue::{Child, Frame, TreeOrigin};
use super::tree_directory::TreeDirectory;
use super::types::Tally;
use super::worker::Worker;
use crate::disk::btrfs;
use crate::sys::beneath::AS_IT_IS;

#[derive(Debug)]
struct Here<'d> {
    origin: TreeOrigin,
    unit: usize,
    fd: BorrowedFd<'d>,
    place: &'d Arc<TreeDirectory>,
    dev: u64,
    tally: Tally,
    /// Latest `st_ctime` seen, in seconds.
    newest: i64,
    children: Vec<Child>,
}

impl Worker<'_, '_> {
    /// Reads a directory: counts its entries and pushes its subdirectories onto the stack.
    pub fn read(&mut self, origin: TreeOrigin, fd: OwnedFd, place: Arc<TreeDirectory>) {
        let stat = match rustix::fs::fstat(&fd) {
            Ok(stat) => stat,
            Err(error) => return self.fail(origin.tree, &place, None, "examining", error),
        };
        if self.is_apart(origin, &place, &stat) {
            return;
        }
        let mut here = Here {
            origin,
            unit: self.unit(origin),
            fd: fd.as_fd(),
            place: &place,
            dev: stat.st_dev,
            tally: tally_of(&stat),
            newest: changed(&stat),
            children: Vec::new(),
        };
        self.note_inode(origin.xfs, here.unit, stat.st_ino);
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
        self.walk.counters.add(here.unit, here.tally, here.newest);
        let mut children = here.children;
        if !children.is_empty() {
            // Subdirectories are taken from the end. The order of the directory is that on the disk.
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
                // If the inode number differs from that in the directory, a file may be mounted over it.
                if stat.st_ino != entry.ino() && is_mount_point(here, name, &stat) {
                    let (tree, place) = (here.origin.tree, here.place);
                    return self.note_mount(tree, place, Some(name));
                }
                return self.count(here, Some(name), &stat);
            }
        }
        here.children.push(Child { name: name.into(), ino: entry.ino() });
    }

    /// Counts an inode by itself; the parameters are those of [`Self::count`].
    pub fn count_alone(
        &mut self,
        origin: TreeOrigin,
        fd: BorrowedFd<'_>,
        place: &Arc<TreeDirectory>,
        name: Option<&CStr>,
        stat: &Stat,
    ) {
        let mut here = Here {
            origin,
            unit: self.unit(origin),
            fd,
            place,
            dev: stat.st_dev,
            tally: Tally::default(),
            newest: i64::MIN,
            children: Vec::new(),
        };
        self.count(&mut here, name, stat);
        self.walk.counters.add(here.unit, here.tally, here.newest);
    }

    /// Returns true if the directory is counted by a tree of its own, and this is not that tree.
    fn is_apart(&self, origin: TreeOrigin, place: &TreeDirectory, stat: &Stat) -> bool {
        self.walk.apart.contains(&(stat.st_dev, stat.st_ino))
            && !(place.is_start() && self.walk.trees[origin.tree].path.as_os_str().is_empty())
    }

    fn unit(&self, origin: TreeOrigin) -> usize {
        self.walk.trees[origin.tree].unit
    }

    /// Counts an inode and examines it for shared extents if necessary. `name` is its name in the directory `here`;
    /// without a name, `here.fd` is the inode itself.
    fn count(&mut self, here: &mut Here<'_>, name: Option<&CStr>, stat: &Stat) {
        self.note_inode(here.origin.xfs, here.unit, stat.st_ino);
        here.newest = here.newest.max(changed(stat));
        let kind = FileType::from_raw_mode(stat.st_mode);
        let tally = tally_of(stat);
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
                Sight::Complete(tally) => {
                    here.tally.metadata_bytes += btrfs::FURTHER_LINK;
                    return here.tally += tally;
                }
            }
        } else {
            here.tally += tally;
        }
        let Some(reflinks) = here.origin.reflinks.filter(|reflinks| reflinks.wants(kind, tally.bytes)) else {
            return;
        };
        let runs = match name {
            Some(name) => extents::ask(self.walk.opener, here.fd, name, stat, &reflinks),
            None => extents::ask_held(here.fd, stat.st_ino, &reflinks),
        };
        match runs {
            Ok(found) if linked => self.walk.links.attach(key, reflinks.filesystem, found.runs),
            Ok(found) => {
                if reflinks.is_btrfs {
                    let becomes_inline = found.is_inline && tally.inline_bytes == 0;
                    let (metadata, inline) = btrfs::correction(tally.bytes, &found.runs, becomes_inline);
                    here.tally.metadata_bytes = here.tally.metadata_bytes.saturating_add_signed(metadata);
                    here.tally.inline_bytes += inline;
                }
                self.note_estimate(found.is_estimate);
                self.note_extents(reflinks.filesystem, here.unit, &found.runs);
            }
            Err(error) => {
                return self.fail(here.origin.tree, here.place, name, "asking for extents", error);
            }
        }
        if let Some(weight) = reflinks.sample(stat.st_ino, tally.bytes) {
            self.note_sample(here.origin.tree, here.place, name, weight);
        }
    }
}

/// Returns the time of an inode's last change (`st_ctime`), in seconds since 1970.
fn changed(stat: &Stat) -> i64 {
    #[allow(clippy::unnecessary_cast)] // narrower on some architectures
    let seconds = stat.st_ctime as i64;
    seconds
}

fn tally_of(stat: &Stat) -> Tally {
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

fn is_mount_point(here: &Here<'_>, name: &CStr, stat: &Stat) -> bool {
    let root = StatxAttributes::MOUNT_ROOT;
    match rustix::fs::statx(here.fd, name, AS_IT_IS, StatxFlags::empty()) {
        Ok(facts) if facts.stx_attributes_mask.contains(root) => facts.stx_attributes.contains(root),
        // Linux before 5.8 does not report mounts: a bind mount from the same device is not detected.
        _ => stat.st_dev != here.dev,
    }
}
