//! Pages and their elements. Every offset is checked before it is used; anything that does not fit is [`Damage`].

use super::meta::{Meta, PAGE_HEADER};
use super::number::{u16_at, u32_at, u64_at};

/// Bytes of an element, on branch and leaf pages.
const ELEMENT: usize = 16;
/// Bytes of a bucket's header: root page and sequence number.
const BUCKET_HEADER: usize = 16;
const BRANCH: u16 = 1;
const LEAF: u16 = 2;
/// Flag of a leaf element whose value is a bucket.
const IS_BUCKET: u32 = 1;
/// Damage of a page whose number is too high.
pub const OUTSIDE: &str = "it is outside the file";

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("page {page}: {reason}")]
pub struct Damage {
    pub page: u64,
    pub reason: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// Its elements point to other pages.
    Branch,
    Leaf,
}

/// A page with its overflow pages, or the page inside an inline bucket.
#[derive(Clone, Copy, Debug)]
pub struct BoltPage<'a> {
    /// Page number; for an inline bucket the number of the page that contains it.
    pub id: u64,
    /// Number of overflow pages that follow it.
    pub overflow: u64,
    pub kind: PageKind,
    pub count: usize,
    bytes: &'a [u8],
}

#[derive(Clone, Copy, Debug)]
pub struct Branch<'a> {
    /// Smallest key of the child.
    pub key: &'a [u8],
    pub child: u64,
    /// Offset of the end of the key.
    pub end: usize,
}

#[derive(Clone, Copy, Debug)]
pub struct Leaf<'a> {
    pub key: &'a [u8],
    /// The value, or the header of a bucket and the bytes that follow it.
    pub value: &'a [u8],
    pub is_bucket: bool,
    /// Offset of the end of the value.
    pub end: usize,
}

#[derive(Clone, Copy, Debug)]
pub enum BucketRoot<'a> {
    /// Tree whose root page has this number.
    Tree(u64),
    /// Leaf page inside the bucket's value.
    Inline(BoltPage<'a>),
}

#[derive(Clone, Copy, Debug)]
pub struct Pages<'a> {
    /// The file up to `high_water`.
    pub bytes: &'a [u8],
    pub page_size: usize,
    /// Number of the highest page, plus one.
    pub high_water: u64,
}

impl<'a> Pages<'a> {
    /// The pages of the transaction of `meta`.
    pub fn of(bytes: &'a [u8], meta: &Meta) -> Self {
        Self { bytes, page_size: meta.page_size, high_water: meta.high_water }
    }

    /// Returns the branch or leaf page `id`.
    ///
    /// # Errors
    /// If the page is outside the file, its header contains another number, or it is of another kind.
    pub fn get(&self, id: u64) -> Result<BoltPage<'a>, Damage> {
        if id < 2 || id >= self.high_water {
            return Err(Damage { page: id, reason: OUTSIDE });
        }
        let start = usize::try_from(id).ok().and_then(|id| id.checked_mul(self.page_size));
        let from =
            start.and_then(|start| self.bytes.get(start..)).ok_or(Damage { page: id, reason: OUTSIDE })?;
        if u64_at(from, 0) != Some(id) {
            return Err(Damage { page: id, reason: "its header has another page number" });
        }
        let overflow = u64::from(u32_at(from, 12).unwrap_or(u32::MAX));
        let length = usize::try_from(overflow + 1).ok().and_then(|pages| pages.checked_mul(self.page_size));
        let bytes = length
            .filter(|_| overflow < self.high_water - id)
            .and_then(|length| from.get(..length))
            .ok_or(Damage { page: id, reason: "it extends past the end of the file" })?;
        BoltPage::parse(id, overflow, bytes)
    }
}

impl<'a> BoltPage<'a> {
    fn parse(id: u64, overflow: u64, bytes: &'a [u8]) -> Result<Self, Damage> {
        let kind = match u16_at(bytes, 8) {
            Some(BRANCH) => PageKind::Branch,
            Some(LEAF) => PageKind::Leaf,
            _ => return Err(Damage { page: id, reason: "it is neither a branch nor a leaf" }),
        };
        let count = usize::from(u16_at(bytes, 10).unwrap_or(0));
        if PAGE_HEADER + count * ELEMENT > bytes.len() {
            return Err(Damage { page: id, reason: "it has more elements than fit" });
        }
        Ok(Self { id, overflow, kind, count, bytes })
    }

    pub fn damage(&self, reason: &'static str) -> Damage {
        Damage { page: self.id, reason }
    }

    /// Offset of the end of the elements. The first key starts there or later.
    pub fn elements_end(&self) -> usize {
        PAGE_HEADER + self.count * ELEMENT
    }

    /// Returns `length` bytes from offset `start`, and the offset of their end.
    fn slice(&self, start: usize, length: u32) -> Result<(&'a [u8], usize), Damage> {
        let end = usize::try_from(length).ok().and_then(|length| start.checked_add(length));
        let slice = end.and_then(|end| Some((self.bytes.get(start..end)?, end)));
        slice.ok_or(self.damage("an element points outside the page"))
    }

    /// Returns the offset of element `index`, and that of its key. `position_field` is the offset inside the element
    /// of the field with the key's position.
    fn element(&self, index: usize, position_field: usize) -> Result<(usize, usize), Damage> {
        if index >= self.count {
            return Err(self.damage("element index out of range"));
        }
        let start = PAGE_HEADER + index * ELEMENT;
        let offset = self.number(start + position_field)?;
        let key = usize::try_from(offset)
            .ok()
            .and_then(|offset| start.checked_add(offset))
            .ok_or(self.damage("an element points outside the page"))?;
        Ok((start, key))
    }

    fn number(&self, offset: usize) -> Result<u32, Damage> {
        u32_at(self.bytes, offset).ok_or(self.damage("an element is truncated"))
    }

    /// Returns element `index` of a branch page.
    ///
    /// # Errors
    /// If the element points outside the page.
    pub fn branch(&self, index: usize) -> Result<Branch<'a>, Damage> {
        let (start, key) = self.element(index, 0)?;
        let (key, end) = self.slice(key, self.number(start + 4)?)?;
        let child = u64_at(self.bytes, start + 8).ok_or(self.damage("an element is truncated"))?;
        Ok(Branch { key, child, end })
    }

    /// Returns element `index` of a leaf page.
    ///
    /// # Errors
    /// If the element points outside the page.
    pub fn leaf(&self, index: usize) -> Result<Leaf<'a>, Damage> {
        let (start, key) = self.element(index, 4)?;
        let flags = self.number(start)?;
        let (key, key_end) = self.slice(key, self.number(start + 8)?)?;
        let (value, end) = self.slice(key_end, self.number(start + 12)?)?;
        Ok(Leaf { key, value, is_bucket: flags & IS_BUCKET != 0, end })
    }

    /// Returns the bucket in `leaf`, an element of this page.
    ///
    /// # Errors
    /// If its header is truncated, or the page inside it is not a leaf.
    pub fn bucket(&self, leaf: &Leaf<'a>) -> Result<BucketRoot<'a>, Damage> {
        let root = u64_at(leaf.value, 0);
        match (root, leaf.value.get(BUCKET_HEADER..)) {
            (Some(0), Some(page)) => {
                let page = Self::parse(self.id, 0, page)?;
                if page.kind == PageKind::Leaf {
                    Ok(BucketRoot::Inline(page))
                } else {
                    Err(self.damage("an inline bucket is not a leaf"))
                }
            }
            (Some(root), Some(_)) => Ok(BucketRoot::Tree(root)),
            _ => Err(self.damage("a bucket is truncated")),
        }
    }
}
