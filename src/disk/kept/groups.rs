//! Inodes that several finished layers hold together. Pure.

use crate::disk::{Fingerprint, Tally};

/// Version of the encoding: its first byte.
const VERSION: u8 = 1;

/// Most layers of one group that is kept: each of them keeps the whole group.
pub const MOST_MEMBERS: usize = 64;

/// Inodes that finished layers of one store share among themselves and with nobody else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptGroup {
    /// [`UnitKey::name`](super::UnitKey::name) of each, ascending.
    pub members: Vec<Fingerprint>,
    /// What these inodes weigh. It is in no layer's own tally.
    pub tally: Tally,
}

/// As bytes: the version; for each group how many members, the members, and five numbers of
/// 8 bytes.
#[must_use]
pub fn encode(groups: &[KeptGroup]) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    for group in groups {
        // Never more than `MOST_MEMBERS`.
        bytes.push(u8::try_from(group.members.len()).unwrap_or(u8::MAX));
        group.members.iter().for_each(|member| bytes.extend(member.0));
        let Tally { bytes: allocated, apparent_bytes, inodes, metadata_bytes, inline_bytes } = group.tally;
        for number in [allocated, apparent_bytes, inodes, metadata_bytes, inline_bytes] {
            bytes.extend(number.to_le_bytes());
        }
    }
    bytes
}

/// Reads [`encode`]; `None` for anything that it does not write.
#[must_use]
pub fn decode(bytes: &[u8]) -> Option<Vec<KeptGroup>> {
    let (version, mut rest) = bytes.split_first()?;
    if *version != VERSION {
        return None;
    }
    let mut groups = Vec::new();
    while let Some((count, after)) = rest.split_first() {
        let count = usize::from(*count);
        if !(2..=MOST_MEMBERS).contains(&count) {
            return None;
        }
        let (members, after) = after.split_at_checked(count * 16)?;
        let members: Vec<_> = members.as_chunks::<16>().0.iter().map(|one| Fingerprint(*one)).collect();
        if !members.is_sorted_by(|a, b| a < b) {
            return None;
        }
        let (numbers, after) = after.split_at_checked(5 * 8)?;
        let number = |at: usize| numbers.as_chunks::<8>().0.get(at).map(|eight| u64::from_le_bytes(*eight));
        let tally = Tally {
            bytes: number(0)?,
            apparent_bytes: number(1)?,
            inodes: number(2)?,
            metadata_bytes: number(3)?,
            inline_bytes: number(4)?,
        };
        groups.push(KeptGroup { members, tally });
        rest = after;
    }
    Some(groups)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn groups() -> impl Strategy<Value = Vec<KeptGroup>> {
        let members = proptest::collection::btree_set(any::<[u8; 16]>(), 2..5);
        let group = (members, any::<[u64; 5]>()).prop_map(|(members, numbers)| KeptGroup {
            members: members.into_iter().map(Fingerprint).collect(),
            tally: Tally {
                bytes: numbers[0],
                apparent_bytes: numbers[1],
                inodes: numbers[2],
                metadata_bytes: numbers[3],
                inline_bytes: numbers[4],
            },
        });
        proptest::collection::vec(group, 0..5)
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(groups in groups()) {
            prop_assert_eq!(decode(&encode(&groups)), Some(groups));
        }

        #[test]
        fn garbage_is_absent_or_what_it_says(
            groups in groups(),
            at in any::<usize>(),
            byte in any::<u8>(),
            cut in any::<bool>(),
        ) {
            let mut bytes = encode(&groups);
            let at = at % bytes.len();
            if cut {
                bytes.truncate(at);
            } else {
                bytes[at] = byte;
            }
            if let Some(read) = decode(&bytes) {
                prop_assert_eq!(encode(&read), bytes);
            }
        }
    }
}
