//! The inodes that one unit holds, to be kept and given back in a later run, and how that
//! is written down. Pure.

use crate::sys::xfs::inumbers::INODES_PER_CHUNK;

/// Version of the encoding: its first byte.
const VERSION: u8 = 1;

/// Inodes of one window of one filesystem: as the notes of a walk have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Window {
    /// `st_dev` of the filesystem.
    pub device: u64,
    /// Number of the first inode, divided by 64.
    pub window: u64,
    /// Bit n: the n-th inode. Never 0.
    pub inodes: u64,
}

/// What one unit holds on XFS, ascending by filesystem and window, each window once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitInodes(Vec<Window>);

impl UnitInodes {
    /// In any order.
    #[must_use]
    pub fn new(mut windows: Vec<Window>) -> Self {
        windows.retain(|one| one.inodes != 0);
        windows.sort_unstable();
        windows.dedup_by(|next, kept| {
            let same = (next.device, next.window) == (kept.device, kept.window);
            if same {
                kept.inodes |= next.inodes;
            }
            same
        });
        Self(windows)
    }

    /// The windows, ascending.
    #[must_use]
    pub fn windows(&self) -> &[Window] {
        &self.0
    }

    /// The filesystems, each once.
    pub fn devices(&self) -> impl Iterator<Item = u64> {
        self.0.chunk_by(|a, b| a.device == b.device).filter_map(|same| Some(same.first()?.device))
    }

    /// As bytes: the version; for each filesystem its device, how many windows, and for
    /// each window how far it is from the one before, whether it is full, and the inodes if
    /// it is not. All numbers but the inodes have 7 bits a byte, the lowest first.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        for same in self.0.chunk_by(|a, b| a.device == b.device) {
            push(&mut bytes, same[0].device);
            push(&mut bytes, same.len() as u64);
            let mut before = 0;
            for one in same {
                let full = one.inodes == u64::MAX;
                push(&mut bytes, (one.window - before) << 1 | u64::from(full));
                before = one.window;
                if !full {
                    bytes.extend(one.inodes.to_le_bytes());
                }
            }
        }
        bytes
    }

    /// Reads [`Self::encode`]; `None` for anything that it does not write.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (version, mut rest) = bytes.split_first()?;
        if *version != VERSION {
            return None;
        }
        let mut windows: Vec<Window> = Vec::new();
        while !rest.is_empty() {
            let device = take(&mut rest)?;
            if windows.last().is_some_and(|last| last.device >= device) {
                return None;
            }
            let count = take(&mut rest)?;
            // Each window takes a byte at least: nothing is made room for that is not there.
            if count == 0 || count > rest.len() as u64 {
                return None;
            }
            let mut before = None;
            for _ in 0..count {
                let step = take(&mut rest)?;
                let window = match before {
                    None => step >> 1,
                    Some(_) if step >> 1 == 0 => return None,
                    Some(before) => (step >> 1).checked_add(before)?,
                };
                // Higher ones are no inode numbers.
                window.checked_mul(INODES_PER_CHUNK)?;
                let inodes = match step & 1 {
                    1 => u64::MAX,
                    _ => {
                        let (eight, after) = rest.split_first_chunk::<8>()?;
                        rest = after;
                        u64::from_le_bytes(*eight)
                    }
                };
                if inodes == 0 || (step & 1 == 0 && inodes == u64::MAX) {
                    return None;
                }
                windows.push(Window { device, window, inodes });
                before = Some(window);
            }
        }
        Some(Self(windows))
    }
}

fn push(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        #[allow(clippy::cast_possible_truncation)] // seven bits at a time
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    #[allow(clippy::cast_possible_truncation)] // less than 0x80
    bytes.push(number as u8);
}

fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            return None;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            // One number, one way to write it.
            return (shift == 0 || bits != 0).then_some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn windows() -> impl Strategy<Value = Vec<Window>> {
        let mask = prop_oneof![Just(u64::MAX), any::<u64>()];
        let one = (prop_oneof![0..3_u64, any::<u64>()], prop_oneof![0..500_u64, 0..1_u64 << 57], mask);
        let one = one.prop_map(|(device, window, inodes)| Window { device, window, inodes });
        proptest::collection::vec(one, 0..60)
    }

    #[test]
    fn small_and_exact() {
        let window = |window, inodes| Window { device: 3, window, inodes };
        let full = UnitInodes::new((10..1010).map(|at| window(at, u64::MAX)).collect());
        // A layer of 64,000 inodes in whole chunks.
        assert_eq!(full.encode().len(), 1 + 1 + 2 + 1000);
        assert_eq!(UnitInodes::default().encode(), [VERSION]);
        let merged = UnitInodes::new(vec![window(7, 1), window(7, 2), window(5, 1), window(6, 0)]);
        assert_eq!(merged.windows(), [window(5, 1), window(7, 3)]);
        assert_eq!(merged.devices().collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn table_of_what_is_not_taken() {
        let good = UnitInodes::new(vec![
            Window { device: 1, window: 9, inodes: 5 },
            Window { device: 2, window: 9, inodes: u64::MAX },
        ]);
        let bytes = good.encode();
        assert_eq!(UnitInodes::decode(&bytes), Some(good));
        let cases: [(&str, Vec<u8>); 10] = [
            ("nothing", vec![]),
            ("another version", [&[2], &bytes[1..]].concat()),
            ("cut off", bytes[..bytes.len() - 1].to_vec()),
            ("more behind", [&bytes[..], &[1]].concat()),
            ("the same window twice", vec![VERSION, 1, 2, 19, 1]),
            ("the same device twice", vec![VERSION, 1, 1, 19, 1, 1, 19]),
            ("more windows than bytes", vec![VERSION, 1, 0xff, 0xff, 0xff, 0x7f, 19]),
            ("no inode", vec![VERSION, 1, 1, 18, 0, 0, 0, 0, 0, 0, 0, 0]),
            ("no windows", vec![VERSION, 1, 0]),
            ("a number of 70 bits", [&[VERSION][..], &[0xff; 9], &[0x7f, 1, 19]].concat()),
        ];
        for (what, bytes) in cases {
            assert_eq!(UnitInodes::decode(&bytes), None, "{what}");
        }
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(windows in windows()) {
            let inodes = UnitInodes::new(windows);
            prop_assert_eq!(UnitInodes::decode(&inodes.encode()), Some(inodes));
        }

        #[test]
        fn garbage_is_absent_or_what_it_says(
            mut bytes in proptest::collection::vec(prop_oneof![0..4_u8, any::<u8>()], 0..200),
            version in any::<bool>(),
        ) {
            if version && let Some(first) = bytes.first_mut() {
                *first = VERSION;
            }
            if let Some(read) = UnitInodes::decode(&bytes) {
                prop_assert_eq!(read.encode(), bytes);
            }
        }

        #[test]
        fn a_damaged_byte_never_panics(windows in windows(), at in any::<usize>(), byte in any::<u8>()) {
            let mut bytes = UnitInodes::new(windows).encode();
            let at = at % bytes.len();
            bytes[at] = byte;
            if let Some(read) = UnitInodes::decode(&bytes) {
                prop_assert_eq!(read.encode(), bytes);
            }
        }
    }
}
