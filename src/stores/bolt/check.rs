//! Checks a whole tree before anything reads it: each page is used once, keys ascend, and all offsets are inside
//! their page. Reading a tree that passes cannot fail, and takes no more steps than the tree has bytes.

use super::page::{BoltPage, BucketRoot, Damage, OUTSIDE, PageKind, Pages};

/// Maximum depth of pages and buckets together. containerd's databases have about ten levels.
const DEPTH: usize = 64;

/// Checks the tree whose root bucket starts at page `root`; returns the number of pages in use.
///
/// # Errors
/// The first contradiction.
pub fn check(pages: &Pages<'_>, root: u64) -> Result<u64, Damage> {
    let words = usize::try_from(pages.high_water / 64 + 1)
        .unwrap_or(0)
        .min(pages.bytes.len() / pages.page_size / 64 + 1);
    let mut check = TreeCheck { pages, seen: vec![0; words], used: 0 };
    check.tree(root, 0, Bounds::default())?;
    Ok(check.used)
}

struct TreeCheck<'p, 'a> {
    pages: &'p Pages<'a>,
    seen: Vec<u64>,
    used: u64,
}

/// Range of the keys that a page may contain.
#[derive(Clone, Copy, Default)]
struct Bounds<'a> {
    from: Option<&'a [u8]>,
    below: Option<&'a [u8]>,
}

impl<'a> TreeCheck<'_, 'a> {
    fn tree(&mut self, id: u64, depth: usize, bounds: Bounds<'a>) -> Result<(), Damage> {
        let page = self.pages.get(id)?;
        if depth >= DEPTH {
            return Err(page.damage("the tree is too deep"));
        }
        self.mark(&page)?;
        match page.kind {
            PageKind::Branch => self.branch(&page, depth, bounds),
            PageKind::Leaf => self.leaf(&page, (depth, true), bounds),
        }
    }

    /// Marks a page and its overflow as used.
    fn mark(&mut self, page: &BoltPage<'_>) -> Result<(), Damage> {
        for id in page.id..=page.id + page.overflow {
            let word = usize::try_from(id / 64)
                .ok()
                .and_then(|word| self.seen.get_mut(word))
                .ok_or(page.damage(OUTSIDE))?;
            let bit = 1 << (id % 64);
            if *word & bit != 0 {
                return Err(page.damage("it is used twice"));
            }
            *word |= bit;
            self.used += 1;
        }
        Ok(())
    }

    fn branch(&mut self, page: &BoltPage<'a>, depth: usize, bounds: Bounds<'a>) -> Result<(), Damage> {
        if page.count == 0 {
            return Err(page.damage("it is an empty branch"));
        }
        let mut order = Order::new(page, bounds);
        let mut previous: Option<(u64, &'a [u8])> = None;
        for index in 0..page.count {
            let element = page.branch(index)?;
            order.next(page, index, 0, element.key, element.end)?;
            if let Some((child, from)) = previous {
                let below = Some(element.key);
                self.tree(child, depth + 1, Bounds { from: Some(from), below })?;
            }
            previous = Some((element.child, element.key));
        }
        match previous {
            Some((child, from)) => {
                let below = bounds.below;
                self.tree(child, depth + 1, Bounds { from: Some(from), below })
            }
            None => Ok(()),
        }
    }

    /// Checks a leaf. `nests` is true if its values may be buckets: bolt does not write a bucket into an inline
    /// bucket.
    fn leaf(
        &mut self,
        page: &BoltPage<'a>,
        (depth, nests): (usize, bool),
        bounds: Bounds<'a>,
    ) -> Result<(), Damage> {
        let mut order = Order::new(page, bounds);
        for index in 0..page.count {
            let element = page.leaf(index)?;
            order.next(page, index, element.value.len(), element.key, element.end)?;
            if !element.is_bucket {
                continue;
            }
            if !nests {
                return Err(page.damage("an inline bucket contains a bucket"));
            }
            match page.bucket(&element)? {
                BucketRoot::Tree(root) => self.tree(root, depth + 1, Bounds::default())?,
                BucketRoot::Inline(inner) => self.leaf(&inner, (depth + 1, false), Bounds::default())?,
            }
        }
        Ok(())
    }
}

/// Check that keys ascend, and that the data of the elements ascends too. bolt writes them in this order. Requiring
/// it prevents a hostile file from using the same bytes again and again.
struct Order<'a> {
    bounds: Bounds<'a>,
    last: Option<&'a [u8]>,
    end: usize,
}

impl<'a> Order<'a> {
    fn new(page: &BoltPage<'a>, bounds: Bounds<'a>) -> Self {
        Self { bounds, last: None, end: page.elements_end() }
    }

    fn next(
        &mut self,
        page: &BoltPage<'a>,
        index: usize,
        value: usize,
        key: &'a [u8],
        end: usize,
    ) -> Result<(), Damage> {
        if end - value - key.len() < self.end {
            return Err(page.damage("two elements overlap"));
        }
        self.end = end;
        if self.last.is_some_and(|last| key <= last) {
            return Err(page.damage("keys do not ascend"));
        }
        let too_small = index == 0 && self.bounds.from.is_some_and(|from| key < from);
        if too_small || self.bounds.below.is_some_and(|below| key >= below) {
            return Err(page.damage("a key is outside its branch"));
        }
        self.last = Some(key);
        Ok(())
    }
}
