//! The two meta pages, each of which points to the tree of a transaction. bolt writes them alternately, so that a
//! crash during a write leaves the other one valid.

use super::number::{u32_at, u64_at};

/// Bytes of a page header.
pub const PAGE_HEADER: usize = 16;
/// Bytes of a meta page that are used: page header, eight fields, checksum.
pub const META_BYTES: usize = PAGE_HEADER + CHECKED_BYTES + 8;
/// Bytes covered by the checksum.
const CHECKED_BYTES: usize = 56;
const MAGIC: u32 = 0xED0C_DAED;
/// The only format version in use.
const VERSION: u32 = 2;
/// Smallest page size that is tried. bolt uses the host's page size unless its user sets another one.
const SMALLEST_PAGE: usize = 1024;
/// Number of doublings of the smallest page size that are tried: up to 16 MiB.
const PAGE_DOUBLINGS: u32 = 14;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    pub page_size: usize,
    /// Number of the root bucket's first page.
    pub root: u64,
    /// Number of the highest page in use, plus one.
    pub high_water: u64,
    /// Number of the transaction that wrote it.
    pub txid: u64,
    /// True if the other meta page is invalid.
    pub is_alone: bool,
}

impl Meta {
    /// Bytes of the file that the transaction may use; `None` if they exceed `u64`.
    pub fn used_bytes(&self) -> Option<u64> {
        self.high_water.checked_mul(self.page_size as u64)
    }
}

/// Parses a meta page.
///
/// # Errors
/// The reason why it is invalid, for messages.
pub fn parse(page: &[u8]) -> Result<Meta, &'static str> {
    let meta = page.get(PAGE_HEADER..META_BYTES).ok_or("it is too short")?;
    if field32(meta, 0) != MAGIC {
        return Err("wrong magic number");
    }
    if field64(meta, CHECKED_BYTES) != fnv1a(&meta[..CHECKED_BYTES]) {
        return Err("its checksum is wrong");
    }
    if field32(meta, 4) != VERSION {
        return Err("its format version is not 2");
    }
    let page_bytes = field32(meta, 8) as usize;
    let page_size = page_sizes().find(|size| *size == page_bytes).ok_or("its page size is invalid")?;
    let (root, high_water, txid) = (field64(meta, 16), field64(meta, 40), field64(meta, 48));
    let meta = Meta { page_size, root, high_water, txid, is_alone: false };
    if meta.root < 2 || meta.root >= meta.high_water {
        return Err("its root is outside the file");
    }
    Ok(meta)
}

fn field32(meta: &[u8], offset: usize) -> u32 {
    u32_at(meta, offset).unwrap_or(0)
}

fn field64(meta: &[u8], offset: usize) -> u64 {
    u64_at(meta, offset).unwrap_or(0)
}

/// Returns the page sizes that a file may have, ascending.
pub fn page_sizes() -> impl Iterator<Item = usize> {
    (0..=PAGE_DOUBLINGS).map(|doublings| SMALLEST_PAGE << doublings)
}

/// Computes the checksum of a meta page: FNV-1a, 64 bits.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(change: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
        let mut meta = Vec::new();
        for value in [MAGIC, VERSION, 4096, 0] {
            meta.extend(value.to_ne_bytes());
        }
        for value in [3, 0, u64::MAX, 4, 7] {
            meta.extend(value.to_ne_bytes());
        }
        change(&mut meta);
        meta.extend(fnv1a(&meta).to_ne_bytes());
        [vec![0; PAGE_HEADER], meta].concat()
    }

    #[test]
    fn invalid_meta_pages_are_refused() {
        let expected = Meta { page_size: 4096, root: 3, high_water: 4, txid: 7, is_alone: false };
        assert_eq!(parse(&page(|_| ())), Ok(expected));
        let mut torn = page(|_| ());
        torn[PAGE_HEADER + 48] ^= 1;
        let table = [
            (page(|_| ())[..META_BYTES - 1].to_vec(), "it is too short"),
            (vec![0; META_BYTES], "wrong magic number"),
            (torn, "its checksum is wrong"),
            (page(|m| m[4] = 3), "its format version is not 2"),
            (page(|m| m[8] = 1), "its page size is invalid"),
            (page(|m| m[16] = 1), "its root is outside the file"),
            (page(|m| m[16] = 4), "its root is outside the file"),
        ];
        for (bytes, reason) in table {
            assert_eq!(parse(&bytes), Err(reason));
        }
    }

    #[test]
    fn fnv1a_matches_the_published_vectors() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
