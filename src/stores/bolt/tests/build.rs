//! Writes bolt files for tests: any page size, overflow, branches, inline buckets.

use std::collections::BTreeMap;

use super::super::meta::fnv1a;
use super::super::{Bucket, BucketEntry};
use super::{flatten, lookups_agree, read};

/// Content of a key.
#[derive(Clone, Debug)]
pub enum Value {
    Bytes(Vec<u8>),
    /// The flag is true for an inline bucket.
    Bucket(BTreeMap<Vec<u8>, Value>, bool),
}

/// Writer of bolt files.
#[derive(Clone, Copy, Debug)]
pub struct Builder {
    pub page_size: usize,
    /// Maximum elements in a leaf and children in a branch.
    pub fanout: usize,
}

fn u32_of(value: usize) -> [u8; 4] {
    u32::try_from(value).expect("small").to_ne_bytes()
}

/// Returns a copy of everything in `bucket`, to be changed and written again.
pub fn tree_of(bucket: &Bucket<'_>) -> BTreeMap<Vec<u8>, Value> {
    let entries = bucket.entries().map(|(key, entry)| match entry {
        BucketEntry::Value(bytes) => (key.to_vec(), Value::Bytes(bytes.to_vec())),
        BucketEntry::Bucket(bucket) => (key.to_vec(), Value::Bucket(tree_of(&bucket), false)),
    });
    entries.collect()
}

/// Returns the bucket at `path` inside `tree`.
pub fn bucket_in<'a>(
    tree: &'a mut BTreeMap<Vec<u8>, Value>,
    path: &[&str],
) -> &'a mut BTreeMap<Vec<u8>, Value> {
    path.iter().fold(tree, |tree, key| match tree.get_mut(key.as_bytes()) {
        Some(Value::Bucket(below, _)) => below,
        other => panic!("{key}: {other:?}"),
    })
}

impl Builder {
    /// Layout of a current amd64 machine.
    pub fn usual() -> Self {
        Self { page_size: 4096, fanout: 10 }
    }

    /// Returns a file with `tree` written twice, as transactions 6 and 7, each with its own pages.
    pub fn file(self, tree: &BTreeMap<Vec<u8>, Value>) -> Vec<u8> {
        let mut file = vec![0; 2 * self.page_size];
        for txid in [6, 7] {
            let root = self.tree(tree, &mut file);
            let high_water = (file.len() / self.page_size) as u64;
            self.meta(&mut file, txid, root, high_water);
        }
        file
    }

    /// Writes the meta page of a transaction.
    pub fn meta(self, file: &mut [u8], txid: u64, root: u64, high_water: u64) {
        let mut meta = Vec::new();
        for value in [0xED0C_DAED, 2, self.page_size, 0] {
            meta.extend(u32_of(value));
        }
        for value in [root, 0, u64::MAX, high_water, txid] {
            meta.extend(u64::to_ne_bytes(value));
        }
        meta.extend(fnv1a(&meta).to_ne_bytes());
        let slot = txid % 2;
        let page = [Self::header(slot, 4, 0, 0), meta].concat();
        let start = slot as usize * self.page_size;
        file[start..start + page.len()].copy_from_slice(&page);
    }

    fn header(id: u64, flags: u16, count: usize, overflow: usize) -> Vec<u8> {
        let count = u16::try_from(count).expect("small").to_ne_bytes();
        let mut header = id.to_ne_bytes().to_vec();
        header.extend(flags.to_ne_bytes());
        header.extend(count);
        header.extend(u32_of(overflow));
        header
    }

    fn tree(self, tree: &BTreeMap<Vec<u8>, Value>, file: &mut Vec<u8>) -> u64 {
        let entries: Vec<_> = tree.iter().collect();
        let mut level: Vec<(Vec<u8>, u64)> = Vec::new();
        for chunk in entries.chunks(self.fanout) {
            let body = self.leaf(chunk, file);
            level.push((chunk[0].0.clone(), self.page(2, chunk.len(), &body, file)));
        }
        if level.is_empty() {
            return self.page(2, 0, &[], file);
        }
        while level.len() > 1 {
            level = level
                .chunks(self.fanout.max(2))
                .map(|children| {
                    let body = self.branch(children);
                    let first = children[0].0.clone();
                    (first, self.page(1, children.len(), &body, file))
                })
                .collect();
        }
        level[0].1
    }

    /// Returns the elements and the data of a leaf; writes the buckets below it first.
    fn leaf(self, entries: &[(&Vec<u8>, &Value)], file: &mut Vec<u8>) -> Vec<u8> {
        let mut elements = Vec::new();
        let mut data = Vec::new();
        for (index, (key, value)) in entries.iter().enumerate() {
            let (flags, value) = match value {
                Value::Bytes(bytes) => (0, bytes.clone()),
                Value::Bucket(tree, false) => {
                    let root = self.tree(tree, file);
                    (1, [root.to_ne_bytes(), [0; 8]].concat())
                }
                Value::Bucket(tree, true) => {
                    let inner: Vec<_> = tree.iter().collect();
                    let mut value = vec![0; 16];
                    value.extend(Self::header(0, 2, inner.len(), 0));
                    value.extend(self.leaf(&inner, file));
                    (1, value)
                }
            };
            let pos = (entries.len() - index) * 16 + data.len();
            for number in [flags, pos, key.len(), value.len()] {
                elements.extend(u32_of(number));
            }
            data.extend(*key);
            data.extend(value);
        }
        [elements, data].concat()
    }

    fn branch(self, children: &[(Vec<u8>, u64)]) -> Vec<u8> {
        let mut elements = Vec::new();
        let mut data = Vec::new();
        for (index, (key, child)) in children.iter().enumerate() {
            let pos = (children.len() - index) * 16 + data.len();
            elements.extend(u32_of(pos));
            elements.extend(u32_of(key.len()));
            elements.extend(child.to_ne_bytes());
            data.extend(key);
        }
        [elements, data].concat()
    }

    fn page(self, flags: u16, count: usize, body: &[u8], file: &mut Vec<u8>) -> u64 {
        let id = (file.len() / self.page_size) as u64;
        let pages = (16 + body.len()).div_ceil(self.page_size);
        let mut page = [Self::header(id, flags, count, pages - 1), body.to_vec()].concat();
        page.resize(pages * self.page_size, 0);
        file.extend(page);
        id
    }
}

/// Returns a tree with every kind of entry.
pub fn sample() -> BTreeMap<Vec<u8>, Value> {
    let many = (0..200).map(|n| (format!("key{n:03}").into(), Value::Bytes(vec![n; 30])));
    let few = [(b"a".to_vec(), Value::Bytes(Vec::new()))];
    BTreeMap::from([
        (b"big".to_vec(), Value::Bytes(vec![7; 200_000])),
        (b"empty".to_vec(), Value::Bucket(BTreeMap::new(), false)),
        (b"few".to_vec(), Value::Bucket(few.into(), true)),
        (b"many".to_vec(), Value::Bucket(many.collect(), false)),
        (b"none".to_vec(), Value::Bucket(BTreeMap::new(), true)),
    ])
}

#[test]
fn page_size_does_not_change_content() {
    let mut contents = Vec::new();
    for page_size in [1024, 4096, 16_384, 65_536] {
        for fanout in [1, 3, 1000] {
            let builder = Builder { page_size, fanout };
            let database = read(&builder.file(&sample())).expect("reads");
            assert_eq!(database.txid(), 7);
            lookups_agree(&database.root());
            contents.push(flatten(&database.root()));
        }
    }
    contents.dedup();
    assert_eq!(contents.len(), 1, "the content does not depend on the layout");
    assert!(contents[0].len() > 200_000 + 200 * 36);
}

#[test]
fn second_meta_alone_gives_page_size() {
    for page_size in [1024, 4096, 65_536] {
        let builder = Builder { page_size, fanout: 10 };
        let mut file = builder.file(&sample());
        assert!(!read(&file).expect("reads").has_one_meta());
        file[20] ^= 1; // transaction 6, in the first slot
        let database = read(&file).expect("reads");
        assert!(database.txid() == 7 && database.has_one_meta());
    }
}
