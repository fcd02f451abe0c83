//! Files of one layer, as a tree of digests.
//!
//! A node can have three million files. Their paths would take some 300 MiB, so each path is replaced by 64 bits: the
//! digest of its last name and the digest of the directory's path. Example: `usr/bin/sh` in two layers has the same
//! digest in both, and so have `usr/` and `usr/bin/`, which an upper layer may delete as a whole. The digests of three
//! million paths collide with a probability of one in four million. They are seeded at random in each run, so that no
//! image can be built to collide.

use std::hash::{BuildHasher, Hasher, RandomState};

use hashbrown::{HashMap, HashSet};

/// Seed of the digests. Layers are compared only if they have the same.
#[derive(Clone, Debug, Default)]
pub struct PathSeed(RandomState);

const TOP: u64 = 0;

impl PathSeed {
    fn digest(&self, directory: u64, name: &[u8]) -> u64 {
        let mut hasher = self.0.build_hasher();
        hasher.write_u64(directory);
        hasher.write(name);
        hasher.finish()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileFacts {
    /// Length of the content.
    pub apparent_bytes: u64,
    /// Allocated bytes, or the length rounded up to blocks if only that is known.
    pub bytes: u64,
    pub checksum: Option<u64>,
}

impl FileFacts {
    /// Returns true if both files have the same known content.
    #[must_use]
    pub fn equals(&self, other: &Self) -> bool {
        let is_known = self.checksum.is_some();
        is_known && (self.apparent_bytes, self.checksum) == (other.apparent_bytes, other.checksum)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// An opaque directory hides everything that lower layers have in it.
    Directory {
        is_opaque: bool,
    },
    File(FileFacts),
    /// Further name of the file at this position.
    Link(usize),
    /// A symlink or device. It hides what lower layers have under the name, and takes no blocks.
    Other,
    Whiteout,
}

impl Content {
    pub(super) fn is_directory(self) -> bool {
        matches!(self, Self::Directory { .. })
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct LayerEntry {
    pub(super) path: u64,
    /// Position of its directory, which precedes it.
    pub(super) directory: usize,
    pub(super) content: Content,
}

/// Content of a layer. The first entry is its top directory.
#[derive(Clone, Debug)]
pub struct LayerFiles {
    pub(super) entries: Vec<LayerEntry>,
    positions: HashMap<u64, usize>,
    seed: PathSeed,
    wanted: HashSet<u64>,
    pub texts: HashMap<u64, Vec<u8>>,
}

impl LayerFiles {
    /// Creates a layer without files. It stores the texts of the paths with these digests.
    #[must_use]
    pub fn new(seed: &PathSeed, wanted: HashSet<u64>) -> Self {
        let top = LayerEntry { path: TOP, directory: 0, content: Content::Directory { is_opaque: false } };
        Self {
            entries: vec![top],
            positions: HashMap::from_iter([(TOP, 0)]),
            seed: seed.clone(),
            wanted,
            texts: HashMap::new(),
        }
    }

    /// Returns the number of names, whiteouts and implied directories included.
    #[must_use]
    pub fn names(&self) -> usize {
        self.entries.len()
    }

    /// Adds a path as a layer's tar spells it: with whiteouts as names that begin with `.wh.`. A path that was added
    /// before is replaced, as it is when the tar is unpacked.
    pub fn add(&mut self, path: &[u8], content: Content) {
        let names = names_of(path);
        let Some((last, above)) = names.split_last() else { return };
        let mut directory = 0;
        for name in above {
            directory = self.directory(directory, name);
        }
        match last.strip_prefix(b".wh.") {
            Some(b".wh..opq") => self.entries[directory].content = Content::Directory { is_opaque: true },
            // Bookkeeping of AUFS, which is not unpacked.
            Some(bookkeeping) if bookkeeping.starts_with(b".wh.") => {}
            Some(hidden) => _ = self.set(directory, hidden, Content::Whiteout),
            None => {
                let position = self.set(directory, last, content);
                let digest = self.entries[position].path;
                if self.wanted.contains(&digest) {
                    self.texts.insert(digest, names.join(&b'/'));
                }
            }
        }
    }

    /// Adds a hard link to a file of the layer.
    pub fn add_link(&mut self, path: &[u8], target: &[u8]) {
        let target = names_of(target).iter().fold(TOP, |above, name| self.seed.digest(above, name));
        let content =
            match self.positions.get(&target).map(|position| (self.entries[*position].content, *position)) {
                Some((Content::File(_), position)) => Content::Link(position),
                Some((link @ Content::Link(_), _)) => link,
                // Without the file, the layer could not have been unpacked.
                _ => Content::Other,
            };
        self.add(path, content);
    }

    /// Returns the files that take blocks, each once.
    pub fn files(&self) -> impl Iterator<Item = FileFacts> + '_ {
        self.entries.iter().filter_map(|entry| match entry.content {
            Content::File(facts) => Some(facts),
            _ => None,
        })
    }

    fn directory(&mut self, above: usize, name: &[u8]) -> usize {
        let path = self.seed.digest(self.entries[above].path, name);
        match self.positions.get(&path) {
            Some(position) if self.entries[*position].content.is_directory() => *position,
            _ => self.set(above, name, Content::Directory { is_opaque: false }),
        }
    }

    fn set(&mut self, directory: usize, name: &[u8], content: Content) -> usize {
        let path = self.seed.digest(self.entries[directory].path, name);
        let next = self.entries.len();
        let position = *self.positions.entry(path).or_insert(next);
        if position == next {
            self.entries.push(LayerEntry { path, directory, content });
        } else if !(content.is_directory() && self.entries[position].content.is_directory())
            && content != Content::Link(position)
        {
            self.entries[position].content = content;
        }
        position
    }

    pub(super) fn facts(&self, content: Content) -> Option<FileFacts> {
        match content {
            Content::File(facts) => Some(facts),
            Content::Link(position) => match self.entries[position].content {
                Content::File(facts) => Some(facts),
                _ => None,
            },
            _ => None,
        }
    }
}

/// Splits a path into its names. `..` removes a name, as the runtimes clean a path before they unpack it.
fn names_of(path: &[u8]) -> Vec<&[u8]> {
    let mut names = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => _ = names.pop(),
            name => names.push(name),
        }
    }
    names
}
