//! Pages and their elements. Every offset is checked before it is used; anything that does
//! not fit is [`Damage`].

use super::meta::{Meta, PAGE_HEADER};
use super::number::{u16_at, u32_at, u64_at};

/// Bytes of an element, on branch and leaf pages alike.
const ELEMENT: usize = 16;
/// Bytes of a bucket's header: root page and sequence.
const BUCKET_HEADER: usize = 16;
const BRANCH: u16 = 1;
const LEAF: u16 = 2;
/// Leaf element flag: the value is a bucket.
const IS_BUCKET: u32 = 1;

/// A place in the file that contradicts the format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("page {page}: {what}")]
pub struct Damage {
    /// The page that it was found on.
    pub page: u64,
    /// What is wrong there.
    pub what: &'static str,
}

/// What a page of a tree is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// Its elements lead to other pages.
    Branch,
    /// Its elements hold keys and values.
    Leaf,
}

/// One page with its overflow, or the page inside an inline bucket.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a> {
    /// Its number; for an inline bucket the number of the page around it.
    pub id: u64,
    /// Further pages that it runs over.
    pub overflow: u64,
    pub kind: PageKind,
    pub count: usize,
    bytes: &'a [u8],
}

/// One element of a branch page.
#[derive(Clone, Copy, Debug)]
pub struct Branch<'a> {
    /// Smallest key below it.
    pub key: &'a [u8],
    /// The page below it.
    pub child: u64,
    /// Where its key ends.
    pub end: usize,
}

/// One element of a leaf page.
#[derive(Clone, Copy, Debug)]
pub struct Leaf<'a> {
    pub key: &'a [u8],
    /// The value, or the bucket's header with what follows.
    pub value: &'a [u8],
    /// The value is a bucket.
    pub is_bucket: bool,
    /// Where its value ends.
    pub end: usize,
}

/// Where a bucket's entries are.
#[derive(Clone, Copy, Debug)]
pub enum Root<'a> {
    /// A tree that begins at this page.
    Tree(u64),
    /// One leaf page inside the value.
    Inline(Page<'a>),
}

/// All pages of one transaction.
#[derive(Clone, Copy, Debug)]
pub struct Pages<'a> {
    /// The file up to its high water.
    pub bytes: &'a [u8],
    pub page_size: usize,
    /// One more than the highest page.
    pub high_water: u64,
}

impl<'a> Pages<'a> {
    /// The pages of the transaction of `meta`.
    pub fn of(bytes: &'a [u8], meta: &Meta) -> Self {
        Self { bytes, page_size: meta.page_size, high_water: meta.high_water }
    }

    /// The branch or leaf page `id`.
    ///
    /// # Errors
    /// When it is outside the file, says that it is another page, or is of another kind.
    pub fn get(&self, id: u64) -> Result<Page<'a>, Damage> {
        let damage = |what| Damage { page: id, what };
        if id < 2 || id >= self.high_water {
            return Err(damage("it lies outside the file"));
        }
        let start = usize::try_from(id).ok().and_then(|id| id.checked_mul(self.page_size));
        let from =
            start.and_then(|start| self.bytes.get(start..)).ok_or(damage("it lies outside the file"))?;
        if u64_at(from, 0) != Some(id) {
            return Err(damage("its header has another page number"));
        }
        let overflow = u64::from(u32_at(from, 12).unwrap_or(u32::MAX));
        let length = usize::try_from(overflow + 1).ok().and_then(|pages| pages.checked_mul(self.page_size));
        let bytes = length
            .filter(|_| overflow < self.high_water - id)
            .and_then(|length| from.get(..length))
            .ok_or(damage("it extends past the end of the file"))?;
        Page::parse(id, overflow, bytes)
    }
}

impl<'a> Page<'a> {
    fn parse(id: u64, overflow: u64, bytes: &'a [u8]) -> Result<Self, Damage> {
        let damage = |what| Damage { page: id, what };
        let kind = match u16_at(bytes, 8) {
            Some(BRANCH) => PageKind::Branch,
            Some(LEAF) => PageKind::Leaf,
            _ => return Err(damage("it is neither a branch nor a leaf")),
        };
        let count = usize::from(u16_at(bytes, 10).unwrap_or(0));
        if PAGE_HEADER + count * ELEMENT > bytes.len() {
            return Err(damage("it has more elements than fit"));
        }
        Ok(Self { id, overflow, kind, count, bytes })
    }

    /// Something wrong on this page.
    pub fn damage(&self, what: &'static str) -> Damage {
        Damage { page: self.id, what }
    }

    /// Where the first key may begin.
    pub fn elements_end(&self) -> usize {
        PAGE_HEADER + self.count * ELEMENT
    }

    /// The bytes from `start` on, `length` of them, and where they end.
    fn slice(&self, start: usize, length: u32) -> Result<(&'a [u8], usize), Damage> {
        let end = usize::try_from(length).ok().and_then(|length| start.checked_add(length));
        let slice = end.and_then(|end| Some((self.bytes.get(start..end)?, end)));
        slice.ok_or(self.damage("an element points outside the page"))
    }

    /// Where element `at` stands, and where its key begins.
    fn element(&self, at: usize, pos: usize) -> Result<(usize, usize), Damage> {
        if at >= self.count {
            return Err(self.damage("element index out of range"));
        }
        let start = PAGE_HEADER + at * ELEMENT;
        let offset = self.number(start + pos)?;
        let key = usize::try_from(offset).ok().and_then(|offset| start.checked_add(offset));
        let key = key.ok_or(self.damage("an element points outside the page"))?;
        Ok((start, key))
    }

    fn number(&self, at: usize) -> Result<u32, Damage> {
        u32_at(self.bytes, at).ok_or(self.damage("an element is truncated"))
    }

    /// Element `at` of a branch page.
    ///
    /// # Errors
    /// When it points outside the page.
    pub fn branch(&self, at: usize) -> Result<Branch<'a>, Damage> {
        let (start, key) = self.element(at, 0)?;
        let (key, end) = self.slice(key, self.number(start + 4)?)?;
        let child = u64_at(self.bytes, start + 8);
        let child = child.ok_or(self.damage("an element is truncated"))?;
        Ok(Branch { key, child, end })
    }

    /// Element `at` of a leaf page.
    ///
    /// # Errors
    /// When it points outside the page.
    pub fn leaf(&self, at: usize) -> Result<Leaf<'a>, Damage> {
        let (start, key) = self.element(at, 4)?;
        let flags = self.number(start)?;
        let (key, key_end) = self.slice(key, self.number(start + 8)?)?;
        let (value, end) = self.slice(key_end, self.number(start + 12)?)?;
        Ok(Leaf { key, value, is_bucket: flags & IS_BUCKET != 0, end })
    }

    /// The bucket that `leaf`, an element of this page, is.
    ///
    /// # Errors
    /// When its header is cut off, or the page inside it is not a leaf.
    pub fn bucket(&self, leaf: &Leaf<'a>) -> Result<Root<'a>, Damage> {
        let root = u64_at(leaf.value, 0);
        match (root, leaf.value.get(BUCKET_HEADER..)) {
            (Some(0), Some(page)) => {
                let page = Self::parse(self.id, 0, page)?;
                if page.kind == PageKind::Leaf {
                    Ok(Root::Inline(page))
                } else {
                    Err(self.damage("an inline bucket is not a leaf"))
                }
            }
            (Some(root), Some(_)) => Ok(Root::Tree(root)),
            _ => Err(self.damage("a bucket is truncated")),
        }
    }
}
