//! Reading from a checked tree. [`super::check`] has checked all of it, so nothing here can fail; anything unexpected
//! is treated as the end.

use super::page::{BoltPage, BucketRoot, Leaf, PageKind, Pages};

/// Keys in the order of their bytes, each with a value or another bucket.
#[derive(Clone, Copy, Debug)]
pub struct Bucket<'a> {
    pages: Pages<'a>,
    root: BucketRoot<'a>,
}

#[derive(Clone, Copy, Debug)]
pub enum BucketEntry<'a> {
    Value(&'a [u8]),
    Bucket(Bucket<'a>),
}

impl<'a> Bucket<'a> {
    pub(super) fn new(pages: Pages<'a>, root: BucketRoot<'a>) -> Self {
        Self { pages, root }
    }

    #[must_use]
    pub fn entries(&self) -> Entries<'a> {
        Entries { pages: self.pages, path: self.first_page().map(|page| (page, 0)).into_iter().collect() }
    }

    pub fn buckets(&self) -> impl Iterator<Item = (&'a [u8], Bucket<'a>)> + use<'a> {
        self.entries().filter_map(|(key, entry)| match entry {
            BucketEntry::Bucket(bucket) => Some((key, bucket)),
            BucketEntry::Value(_) => None,
        })
    }

    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<BucketEntry<'a>> {
        let mut page = self.first_page()?;
        while page.kind == PageKind::Branch {
            let after = first_where(page.count, |index| Some(page.branch(index).ok()?.key > key))?;
            let child = page.branch(after.checked_sub(1)?).ok()?.child;
            page = self.pages.get(child).ok()?;
        }
        let index = first_where(page.count, |index| Some(page.leaf(index).ok()?.key >= key))?;
        let leaf = page.leaf(index).ok().filter(|leaf| leaf.key == key)?;
        entry(self.pages, &page, &leaf)
    }

    /// Returns the value of `key`; `None` also if `key` is a bucket.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<&'a [u8]> {
        match self.get(key.as_bytes())? {
            BucketEntry::Value(value) => Some(value),
            BucketEntry::Bucket(_) => None,
        }
    }

    /// Returns the bucket of `key`; `None` also if `key` has a value.
    #[must_use]
    pub fn bucket(&self, key: &str) -> Option<Bucket<'a>> {
        match self.get(key.as_bytes())? {
            BucketEntry::Bucket(bucket) => Some(bucket),
            BucketEntry::Value(_) => None,
        }
    }

    fn first_page(&self) -> Option<BoltPage<'a>> {
        match self.root {
            BucketRoot::Inline(page) => Some(page),
            BucketRoot::Tree(id) => self.pages.get(id).ok(),
        }
    }
}

/// Returns the first of `count` positions for which `holds` is true (binary search). From that position on it must
/// be true for all.
fn first_where(count: usize, holds: impl Fn(usize) -> Option<bool>) -> Option<usize> {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle)? {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Some(low)
}

fn entry<'a>(pages: Pages<'a>, page: &BoltPage<'a>, leaf: &Leaf<'a>) -> Option<BucketEntry<'a>> {
    Some(if leaf.is_bucket {
        BucketEntry::Bucket(Bucket::new(pages, page.bucket(leaf).ok()?))
    } else {
        BucketEntry::Value(leaf.value)
    })
}

#[derive(Debug)]
pub struct Entries<'a> {
    pages: Pages<'a>,
    /// Pages from the root to the leaf, each with the index of its next element.
    path: Vec<(BoltPage<'a>, usize)>,
}

impl<'a> Iterator for Entries<'a> {
    type Item = (&'a [u8], BucketEntry<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (page, next) = self.path.last_mut()?;
            let (page, index) = (*page, *next);
            *next += 1;
            if index >= page.count {
                self.path.pop();
            } else if page.kind == PageKind::Branch {
                let child = page.branch(index).ok()?.child;
                self.path.push((self.pages.get(child).ok()?, 0));
            } else {
                let leaf = page.leaf(index).ok()?;
                return Some((leaf.key, entry(self.pages, &page, &leaf)?));
            }
        }
    }
}
