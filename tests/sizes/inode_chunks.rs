//! The owners of the inode chunks of an XFS, compared with the filesystem's data.

#![allow(clippy::unwrap_used)] // the helpers belong to the tests

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::support;
use layersweep::disk::inode_chunks::ChunkGroup;
use layersweep::sys::xfs::inumbers;
use support::du::{self, measure_one, measure_trees, tree};
use support::loopfs::{Fs, LoopFs};

/// The internal inodes of XFS besides the root directory: bitmap and summary of the realtime section.
const INTERNAL: u32 = 2;

fn xfs(mkfs: &[&str]) -> Option<LoopFs> {
    (support::require_root() && Fs::Xfs.require()).then(|| LoopFs::with(Fs::Xfs, 0, mkfs, &[]))
}

fn fill(dir: &Path, files: usize) {
    for number in 0..files {
        let dir = dir.join(format!("{}/{}", number % 3, number % 7));
        fs::create_dir_all(&dir).unwrap();
        match number % 10 {
            0 => std::os::unix::fs::symlink("x", dir.join(format!("link{number}"))).unwrap(),
            _ => fs::write(dir.join(format!("file{number}")), "x").unwrap(),
        }
    }
}

fn allocated(loopfs: &LoopFs) -> Vec<inumbers::InodeChunk> {
    let root = fs::File::open(loopfs.path()).unwrap();
    let mut all = Vec::new();
    let mut from = 0;
    loop {
        let batch = inumbers::chunks(root.as_fd(), from).unwrap();
        let Some(last) = batch.last() else { return all };
        from = last.start + inumbers::INODES_PER_CHUNK;
        all.extend(batch);
    }
}

fn bytes(chunks: &[ChunkGroup<usize>], units: &[usize], outside: bool) -> u64 {
    let wanted = chunks.iter().filter(|group| group.holders == units && group.outside == outside);
    wanted.map(|group| group.bytes).sum()
}

#[test]
fn chunk_counts_match_filesystem() {
    for (mkfs, inode) in [
        (&["-i", "size=512"][..], 512),
        (&["-i", "size=2048"], 2048),
        // Chunks start at multiples of 32 inodes.
        (&["-i", "size=512,sparse=0"], 512),
    ] {
        let Some(loopfs) = xfs(mkfs) else { return };
        fill(loopfs.path(), 20_000);
        let measured = measure_one(loopfs.path());
        loopfs.sync();
        let all = allocated(&loopfs);
        let inodes: u32 = all.iter().map(|chunk| chunk.allocated.count_ones()).sum();
        assert_eq!(u64::from(inodes - INTERNAL), measured.units[0].inodes, "{mkfs:?}");

        // Only the chunk with XFS's internal inodes has another owner too.
        let chunks = du::chunks(loopfs.path(), [&measured]).groups(&Some);
        let chunk = 64 * inode;
        assert_eq!(bytes(&chunks, &[0], true), chunk, "{mkfs:?}");
        assert_eq!(bytes(&chunks, &[0], false), chunk * (all.len() as u64 - 1), "{mkfs:?}");
        assert_eq!(chunks.len(), 2, "{chunks:?}");
    }
}

#[test]
fn chunks_are_aligned_where_inodes_are_sparse() {
    for (mkfs, aligned) in [("size=512", 64), ("size=1024", 64), ("size=512,sparse=0", 8)] {
        let Some(loopfs) = xfs(&["-i", mkfs]) else { return };
        fill(loopfs.path(), 5000);
        loopfs.sync();
        let all = allocated(&loopfs);
        assert!(all.len() > 78, "{}", all.len());
        for chunk in all {
            assert_eq!(chunk.start % aligned, 0, "{mkfs}");
        }
    }
}

#[test]
fn neighbours_keep_a_chunk() {
    let Some(loopfs) = xfs(&[]) else { return };
    let path = |name: &str| loopfs.path().join(name);
    // Directories of one level are in different allocation groups, with their files.
    fs::create_dir(path("all")).unwrap();
    for number in 0..640 {
        fs::write(path(&format!("all/{number}")), "x").unwrap();
    }
    for unit in ["a", "b", "c"] {
        fs::create_dir(path(unit)).unwrap();
    }
    let mut inodes: Vec<_> = (0..640).map(|number| path(&format!("all/{number}"))).collect();
    inodes.sort_by_key(|path| fs::metadata(path).unwrap().ino());
    fn of_chunk(path: &Path) -> u64 {
        fs::metadata(path).unwrap().ino() / 64
    }
    let whole: Vec<_> =
        inodes.chunk_by(|a, b| of_chunk(a) == of_chunk(b)).filter(|chunk| chunk.len() == 64).collect();
    assert!(whole.len() >= 8, "too few chunks of files alone");
    let give = |file: &Path, unit: &str| {
        fs::rename(file, path(unit).join(file.file_name().unwrap())).unwrap();
    };
    // Only a; a and b; b and a file outside; a file with links in b and c.
    whole[0].iter().for_each(|file| give(file, "a"));
    whole[1].iter().for_each(|file| give(file, "a"));
    give(&path("a").join(whole[1][5].file_name().unwrap()), "b");
    whole[2][..10].iter().for_each(|file| give(file, "b"));
    whole[3].iter().for_each(|file| give(file, "b"));
    let linked = path("b").join(whole[3][0].file_name().unwrap());
    fs::hard_link(&linked, path("c/link")).unwrap();
    // A link from outside.
    whole[4].iter().for_each(|file| give(file, "c"));
    fs::hard_link(path("c").join(whole[4][0].file_name().unwrap()), path("outside")).unwrap();
    loopfs.sync();

    let trees = [tree("a", 0), tree("b", 1), tree("c", 2)];
    let expected = [(&[0][..], false), (&[0, 1], false), (&[1], true), (&[1, 2], false), (&[2], true)];
    let chunk = 64 * 512;
    let check = |chunks: &[ChunkGroup<usize>], how: &str| {
        for (units, outside) in expected {
            // The directories are in chunks that others hold too.
            let bytes = bytes(chunks, units, outside);
            assert!((chunk..=3 * chunk).contains(&bytes), "{how}: {units:?} {outside}: {chunks:?}");
        }
    };
    let measured = measure_trees(loopfs.path(), &trees, false);
    let all = du::chunks(loopfs.path(), [&measured]);
    check(&all.groups(&Some), "one walk");

    // In several walks, as when a store changes meanwhile.
    let first = measure_trees(loopfs.path(), &trees[..2], false);
    let alone = du::chunks(loopfs.path(), [&first]).groups(&Some);
    assert!(bytes(&alone, &[1], true) >= 2 * chunk, "{alone:?}");
    let second = measure_trees(loopfs.path(), &trees[2..], false);
    let chunks = du::chunks(loopfs.path(), [&first, &second]).groups(&Some);
    assert_eq!(bytes(&chunks, &[0], false), bytes(&all.groups(&Some), &[0], false));

    // An inode of b that really belongs to c.
    let mut handed = all.clone();
    let facts = fs::metadata(path("b").join(whole[1][5].file_name().unwrap())).unwrap();
    handed.hand_over([(facts.dev(), facts.ino(), 2), (facts.dev(), 1 << 40, 2), (0, facts.ino(), 2)]);
    assert_eq!(bytes(&handed.groups(&Some), &[0, 2], false), chunk);

    // A deleted unit holds nothing, and its remaining inodes in a chunk count as outside.
    let chunks = all.groups(&|unit| (unit != 1).then_some(unit));
    assert!(chunks.iter().all(|group| !group.holders.contains(&1)), "{chunks:?}");
    assert_eq!(bytes(&chunks, &[0], true) / chunk, 1 + bytes(&alone, &[0], true) / chunk, "{chunks:?}");
}
