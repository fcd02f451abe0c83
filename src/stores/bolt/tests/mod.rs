//! Real files, generated files, files that change while they are read, and random bytes.

pub(crate) mod build;
mod hostile;
mod real;
mod writing;

use super::meta::fnv1a;
use super::{BoltDatabase, Bucket, BucketEntry, Limits, PageSource};
use std::io;

/// A file that does not change.
struct Still<'a>(&'a [u8]);

impl PageSource for Still<'_> {
    fn length(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let rest = self.0.get(from.min(self.0.len())..).unwrap_or(&[]);
        let read = rest.len().min(into.len());
        into[..read].copy_from_slice(&rest[..read]);
        Ok(read)
    }
}

fn read(bytes: &[u8]) -> Result<BoltDatabase, super::BoltError> {
    BoltDatabase::read_from(&Still(bytes), &Limits::default())
}

/// Returns all content of a bucket as one string of bytes: depth, key, value. A bucket has the length `u32::MAX`.
fn flatten(bucket: &Bucket<'_>) -> Vec<u8> {
    fn below(bucket: &Bucket<'_>, depth: u8, flat: &mut Vec<u8>) {
        for (key, entry) in bucket.entries() {
            flat.push(depth);
            flat.extend((key.len() as u32).to_le_bytes());
            flat.extend(key);
            match entry {
                BucketEntry::Value(value) => {
                    flat.extend((value.len() as u32).to_le_bytes());
                    flat.extend(value);
                }
                BucketEntry::Bucket(bucket) => {
                    flat.extend(u32::MAX.to_le_bytes());
                    below(&bucket, depth + 1, flat);
                }
            }
        }
    }
    let mut flat = Vec::new();
    below(bucket, 0, &mut flat);
    flat
}

/// Looks up every key that iteration returns, and some that it does not return.
fn lookups_agree(bucket: &Bucket<'_>) {
    for (key, entry) in bucket.entries() {
        match (entry, bucket.get(key)) {
            (BucketEntry::Value(iterated), Some(BucketEntry::Value(found))) => assert_eq!(iterated, found),
            (BucketEntry::Bucket(iterated), Some(BucketEntry::Bucket(found))) => {
                assert_eq!(flatten(&iterated), flatten(&found));
                lookups_agree(&iterated);
            }
            _ => panic!("{} is not found again", String::from_utf8_lossy(key)),
        }
        let absent = [key, b"\0"].concat();
        assert!(bucket.get(&absent).is_none());
    }
    assert!(bucket.get(b"").is_none());
}
