//! Reads from a checked tree. Since [`super::check`] has checked all of it, nothing here
//! can fail; anything unexpected is treated as the end.

use super::page::{Leaf, Page, PageKind, Pages, Root};

/// A bucket: keys, each with a value or another bucket, in the order of the keys' bytes.
#[derive(Clone, Copy, Debug)]
pub struct Bucket<'a> {
    pages: Pages<'a>,
    root: Root<'a>,
}

/// What a key has.
#[derive(Clone, Copy, Debug)]
pub enum BucketEntry<'a> {
    Value(&'a [u8]),
    Bucket(Bucket<'a>),
}

impl<'a> Bucket<'a> {
    pub(super) fn new(pages: Pages<'a>, root: Root<'a>) -> Self {
        Self { pages, root }
    }

    /// All its keys.
    #[must_use]
    pub fn entries(&self) -> Entries<'a> {
        Entries { pages: self.pages, path: self.first_page().map(|page| (page, 0)).into_iter().collect() }
    }

    /// All its buckets.
    pub fn buckets(&self) -> impl Iterator<Item = (&'a [u8], Bucket<'a>)> + use<'a> {
        self.entries().filter_map(|(key, entry)| match entry {
            BucketEntry::Bucket(bucket) => Some((key, bucket)),
            BucketEntry::Value(_) => None,
        })
    }

    /// What `key` has.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<BucketEntry<'a>> {
        let mut page = self.first_page()?;
        while page.kind == PageKind::Branch {
            let after = first_where(page.count, |at| Some(page.branch(at).ok()?.key > key))?;
            let child = page.branch(after.checked_sub(1)?).ok()?.child;
            page = self.pages.get(child).ok()?;
        }
        let at = first_where(page.count, |at| Some(page.leaf(at).ok()?.key >= key))?;
        let leaf = page.leaf(at).ok().filter(|leaf| leaf.key == key)?;
        entry(self.pages, &page, &leaf)
    }

    /// The value of `key`; `None` also where it has a bucket.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<&'a [u8]> {
        match self.get(key.as_bytes())? {
            BucketEntry::Value(value) => Some(value),
            BucketEntry::Bucket(_) => None,
        }
    }

    /// The bucket of `key`; `None` also where it has a value.
    #[must_use]
    pub fn bucket(&self, key: &str) -> Option<Bucket<'a>> {
        match self.get(key.as_bytes())? {
            BucketEntry::Bucket(bucket) => Some(bucket),
            BucketEntry::Value(_) => None,
        }
    }

    fn first_page(&self) -> Option<Page<'a>> {
        match self.root {
            Root::Inline(page) => Some(page),
            Root::Tree(id) => self.pages.get(id).ok(),
        }
    }
}

/// The first of `count` positions where `holds`, which holds from some position on.
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

fn entry<'a>(pages: Pages<'a>, page: &Page<'a>, leaf: &Leaf<'a>) -> Option<BucketEntry<'a>> {
    Some(if leaf.is_bucket {
        BucketEntry::Bucket(Bucket::new(pages, page.bucket(leaf).ok()?))
    } else {
        BucketEntry::Value(leaf.value)
    })
}

/// The entries of a bucket, made by [`Bucket::entries`].
#[derive(Debug)]
pub struct Entries<'a> {
    pages: Pages<'a>,
    /// From the root to the leaf: each page, and its next element.
    path: Vec<(Page<'a>, usize)>,
}

impl<'a> Iterator for Entries<'a> {
    type Item = (&'a [u8], BucketEntry<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (page, next) = self.path.last_mut()?;
            let (page, at) = (*page, *next);
            *next += 1;
            if at >= page.count {
                self.path.pop();
            } else if page.kind == PageKind::Branch {
                let child = page.branch(at).ok()?.child;
                self.path.push((self.pages.get(child).ok()?, 0));
            } else {
                let leaf = page.leaf(at).ok()?;
                return Some((leaf.key, entry(self.pages, &page, &leaf)?));
            }
        }
    }
}
