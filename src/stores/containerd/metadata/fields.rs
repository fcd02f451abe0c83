//! Typed access to the fields of a record. A field that cannot be parsed is recorded as an oddity and treated as
//! absent.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::values;
use crate::stores::bolt::{Bucket, BucketEntry, go_time};

pub type RecordLabels = BTreeMap<String, String>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Oddity {
    /// Keys from the top bucket to the field, joined by `/`.
    pub location: String,
    pub message: &'static str,
}

/// A record: a bucket and its location.
pub(super) struct RecordFields<'a, 'o> {
    bucket: Bucket<'a>,
    location: String,
    odd: &'o mut Vec<Oddity>,
}

/// Converts bytes to text: names and digests are ASCII in practice.
pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl<'a, 'o> RecordFields<'a, 'o> {
    pub(super) fn new(bucket: Bucket<'a>, location: String, odd: &'o mut Vec<Oddity>) -> Self {
        Self { bucket, location, odd }
    }

    pub(super) fn odd(&mut self, key: &str, message: &'static str) {
        self.odd.push(Oddity { location: format!("{}/{key}", self.location), message });
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.bucket.get(key.as_bytes()).is_some()
    }

    pub(super) fn bytes(&self, key: &str) -> Option<&'a [u8]> {
        self.bucket.value(key)
    }

    /// Returns a text; an empty one counts as absent, as in containerd.
    pub(super) fn text(&self, key: &str) -> Option<String> {
        self.bytes(key).filter(|value| !value.is_empty()).map(text)
    }

    pub(super) fn time(&mut self, key: &str) -> Option<Timestamp> {
        let bytes = self.bytes(key).filter(|value| !value.is_empty())?;
        let time = go_time(bytes);
        if time.is_none() {
            self.odd(key, "is not a time");
        }
        time.flatten()
    }

    /// Returns a size or count: a signed varint that is not negative.
    pub(super) fn size(&mut self, key: &str) -> Option<u64> {
        let bytes = self.bytes(key)?;
        let size = values::varint(bytes).and_then(|size| u64::try_from(size).ok());
        if size.is_none() {
            self.odd(key, "is not a size");
        }
        size
    }

    pub(super) fn labels(&self, key: &str) -> RecordLabels {
        let labels = self.bucket.bucket(key);
        let entries = labels.into_iter().flat_map(|labels| labels.entries());
        entries
            .filter_map(|(key, entry)| match entry {
                BucketEntry::Value(value) => Some((text(key), text(value))),
                BucketEntry::Bucket(_) => None,
            })
            .collect()
    }

    /// Returns the keys of a bucket that is used as a set.
    pub(super) fn keys(&self, key: &str) -> Vec<String> {
        let bucket = self.bucket.bucket(key);
        bucket.into_iter().flat_map(|bucket| bucket.entries()).map(|(key, _)| text(key)).collect()
    }

    pub(super) fn bucket(&self, key: &str) -> Option<Bucket<'a>> {
        self.bucket.bucket(key)
    }

    /// Returns the JSON in an extension, whose value is a protobuf `Any`.
    pub(super) fn extension(&mut self, name: &str) -> Option<serde_json::Value> {
        let any = self.bucket.bucket("extensions")?.value(name)?;
        let json = json_of(any);
        if json.is_none() {
            self.odd(&format!("extensions/{name}"), "is not JSON");
        }
        json
    }

    /// Returns the JSON in a protobuf `Any`, if it contains JSON.
    pub(super) fn any_json(&self, key: &str) -> Option<serde_json::Value> {
        json_of(self.bytes(key)?)
    }
}

fn json_of(any: &[u8]) -> Option<serde_json::Value> {
    values::any_value(any).and_then(|value| serde_json::from_slice(value).ok())
}

pub(super) fn buckets<'a>(bucket: Option<Bucket<'a>>) -> impl Iterator<Item = (String, Bucket<'a>)> {
    bucket.into_iter().flat_map(|bucket| bucket.buckets()).map(|(key, bucket)| (text(key), bucket))
}
