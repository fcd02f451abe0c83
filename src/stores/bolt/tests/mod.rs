//! Real files, files of our own making, torn reads, and noise.

pub(crate) mod build;
mod hostile;
mod real;
mod writing;

use super::meta::fnv1a;
use super::{Bucket, BucketEntry, Database, Limits, PageSource};
use std::io;

/// A file that nobody writes.
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

fn read(bytes: &[u8]) -> Result<Database, super::BoltError> {
    Database::read_from(&Still(bytes), &Limits::default())
}

/// Everything in a bucket as one flat text of bytes: depth, key, value. Buckets have the
/// length `u32::MAX`.
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

/// Looks every key up that iteration shows, and some that it does not.
fn lookups_agree(bucket: &Bucket<'_>) {
    for (key, entry) in bucket.entries() {
        match (entry, bucket.get(key)) {
            (BucketEntry::Value(one), Some(BucketEntry::Value(other))) => assert_eq!(one, other),
            (BucketEntry::Bucket(one), Some(BucketEntry::Bucket(other))) => {
                assert_eq!(flatten(&one), flatten(&other));
                lookups_agree(&one);
            }
            _ => panic!("{} is not found again", String::from_utf8_lossy(key)),
        }
        let absent = [key, b"\0"].concat();
        assert!(bucket.get(&absent).is_none());
    }
    assert!(bucket.get(b"").is_none());
}
