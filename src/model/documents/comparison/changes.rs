//! Two scans, and the objects that differ.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::model::documents::scan_summary::{
    ComparedScan, Key, ScanSummary, SummaryEntry, SummaryKind, SummaryStore,
};
use crate::model::text::names::names;

#[derive(Debug)]
pub struct ScanComparison {
    /// First scan, normally the earlier one.
    pub before: ComparedScan,
    pub after: ComparedScan,
}

/// Bytes in both scans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "SumDoc"))]
pub struct BytesChange {
    /// Bytes in the first scan.
    pub before_bytes: u64,
    /// Bytes in the second scan.
    pub after_bytes: u64,
    /// Second minus first.
    pub change_bytes: i64,
}

impl BytesChange {
    /// Compares two numbers. The difference is limited to the range of `i64`.
    #[must_use]
    pub fn new(before_bytes: u64, after_bytes: u64) -> Self {
        let difference = i128::from(after_bytes) - i128::from(before_bytes);
        let most = if difference < 0 { i64::MIN } else { i64::MAX };
        Self { before_bytes, after_bytes, change_bytes: i64::try_from(difference).unwrap_or(most) }
    }
}

names! {
    ChangeKind {
        /// Only the later scan contains it.
        Added = "added",
        /// Only the earlier scan contains it.
        Removed = "removed",
        /// It has more bytes.
        Grown = "grew",
        /// It has fewer bytes.
        Shrunk = "shrank",
        /// It has the same bytes, but something else changed: a name, or the images that share it.
        Changed = "altered",
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    pub key: &'a Key,
    pub kind: ChangeKind,
    pub before: Option<&'a SummaryEntry>,
    pub after: Option<&'a SummaryEntry>,
}

impl<'a> Change<'a> {
    /// Returns the change of a number of its entry, which is 0 in a scan that does not contain the object.
    #[must_use]
    pub fn of(&self, number: impl Fn(&SummaryEntry) -> u64) -> BytesChange {
        BytesChange::new(self.before.map_or(0, &number), self.after.map_or(0, &number))
    }

    #[must_use]
    pub fn bytes(&self) -> BytesChange {
        self.of(|entry| entry.bytes)
    }

    /// Returns its name in the later scan that contains it.
    #[must_use]
    pub fn name(&self) -> &'a str {
        self.after.or(self.before).map_or("", |entry| &entry.name)
    }
}

/// Allocated bytes in one scan, summed over the entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreBytes<'a> {
    pub total: u64,
    /// Bytes by holder; see [`SummaryKind::Share`].
    pub shares: BTreeMap<&'a str, u64>,
    /// Layers, snapshots and blobs.
    pub layers: u64,
}

impl ScanComparison {
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.before.summary.complete && self.after.summary.complete
    }

    #[must_use]
    pub fn seconds(&self) -> i64 {
        self.after.taken_at.duration_since(self.before.taken_at).as_secs()
    }

    /// Returns the objects that differ, the largest change first, and those of equal changes by key. A store that only
    /// one scan contains is added or removed entirely.
    #[must_use]
    pub fn changes(&self) -> Vec<Change<'_>> {
        let (before, after) = (&self.before.summary.entries, &self.after.summary.entries);
        let keys: BTreeSet<&Key> = before.keys().chain(after.keys()).collect();
        let mut changes: Vec<_> = keys
            .into_iter()
            .filter_map(|key| {
                let (old, new) = (before.get(key), after.get(key));
                let kind = match (old, new) {
                    (Some(old), Some(new)) if is_same(old, new) => return None,
                    (Some(old), Some(new)) if old.bytes < new.bytes => ChangeKind::Grown,
                    (Some(old), Some(new)) if old.bytes > new.bytes => ChangeKind::Shrunk,
                    (Some(_), Some(_)) => ChangeKind::Changed,
                    (None, _) => ChangeKind::Added,
                    (_, None) => ChangeKind::Removed,
                };
                Some(Change { key, kind, before: old, after: new })
            })
            .collect();
        changes.sort_by_key(|change| Reverse(change.bytes().change_bytes.unsigned_abs()));
        changes
    }

    /// Returns the bytes of each store in both scans; `None` in a scan that does not contain it.
    #[must_use]
    pub fn stores(&self) -> BTreeMap<&SummaryStore, [Option<StoreBytes<'_>>; 2]> {
        let mut stores: BTreeMap<_, [Option<StoreBytes<'_>>; 2]> = BTreeMap::new();
        for (position, summary) in [&self.before.summary, &self.after.summary].into_iter().enumerate() {
            for (store, bytes) in by_store(summary) {
                stores.entry(store).or_default()[position] = Some(bytes);
            }
        }
        stores
    }
}

/// Returns true if two entries differ in nothing but their inodes, which documents of scans do not contain.
fn is_same(old: &SummaryEntry, new: &SummaryEntry) -> bool {
    (old.bytes, old.extra, &old.name) == (new.bytes, new.extra, &new.name)
}

/// Returns the bytes by store. One pass, since there may be thousands of stores and entries.
fn by_store(summary: &ScanSummary) -> BTreeMap<&SummaryStore, StoreBytes<'_>> {
    let mut stores: BTreeMap<&SummaryStore, StoreBytes<'_>> = BTreeMap::new();
    for (key, entry) in summary.entries.iter().filter(|(key, _)| !key.place.root.is_empty()) {
        let store = stores.entry(&key.place).or_default();
        match key.kind {
            SummaryKind::Share => {
                let share = store.shares.entry(&key.id).or_default();
                *share = share.saturating_add(entry.bytes);
                store.total = store.total.saturating_add(entry.bytes);
            }
            SummaryKind::Layer => store.layers = store.layers.saturating_add(entry.bytes),
            _ => {}
        }
    }
    stores
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use proptest::prelude::*;

    use super::*;
    use crate::model::documents::scan_summary::tests::key;

    fn compared(entries: impl IntoIterator<Item = (u8, SummaryEntry)>) -> ComparedScan {
        let entries = entries.into_iter().map(|(id, entry)| (key(id), entry)).collect();
        let summary = ScanSummary { complete: true, entries, ..ScanSummary::default() };
        ComparedScan { id: String::new(), taken_at: Timestamp::UNIX_EPOCH, summary }
    }

    fn scans() -> impl Strategy<Value = ComparedScan> {
        proptest::collection::btree_map(0..16_u8, 0..1_u64 << 40, 0..16).prop_map(|entries| {
            compared(entries.into_iter().map(|(id, bytes)| (id, SummaryEntry::of_bytes(bytes))))
        })
    }

    proptest! {
        #[test]
        fn changes_add_up_to_the_difference(before in scans(), after in scans()) {
            let (all, places) = (after.summary.bytes(), after.summary.clone());
            let difference = BytesChange::new(before.summary.bytes(), all).change_bytes;
            let compared = ScanComparison { before, after };
            let changes = compared.changes();
            let shares = changes.iter().filter(|change| change.key.kind == SummaryKind::Share);
            prop_assert_eq!(shares.map(|change| change.bytes().change_bytes).sum::<i64>(), difference);
            let of_scans = compared.stores().into_iter();
            let stores: BTreeMap<_, _> =
                of_scans.filter_map(|(place, [_, after])| Some((place, after?))).collect();
            prop_assert_eq!(stores.values().map(|store| store.total).sum::<u64>(), all);
            prop_assert!(stores.values().all(|store| store.shares.values().sum::<u64>() == store.total));
            prop_assert_eq!(stores.into_keys().collect::<BTreeSet<_>>(), places.places());
            let count = changes.len();
            let ScanComparison { before, after } = compared;
            let back = ScanComparison { before: after, after: before.clone() };
            prop_assert_eq!(back.changes().len(), count);
            let same = ScanComparison { after: before.clone(), before };
            prop_assert!(same.changes().is_empty());
        }
    }

    #[test]
    fn kinds_of_changes() {
        fn entry(bytes: u64, name: &str) -> Option<SummaryEntry> {
            Some(SummaryEntry { name: name.into(), ..SummaryEntry::of_bytes(bytes) })
        }
        for (old, new, expected) in [
            (None, entry(1, "a"), Some(ChangeKind::Added)),
            (entry(1, "a"), None, Some(ChangeKind::Removed)),
            (entry(1, "a"), entry(2, "a"), Some(ChangeKind::Grown)),
            (entry(2, "a"), entry(1, "b"), Some(ChangeKind::Shrunk)),
            (entry(1, "a"), entry(1, "b"), Some(ChangeKind::Changed)),
            (entry(1, "a"), entry(1, "a"), None),
        ] {
            let [before, after] = [old, new].map(|entry| compared(entry.map(|entry| (9, entry))));
            let compared = ScanComparison { before, after };
            assert_eq!(compared.changes().first().map(|change| change.kind), expected);
        }
        assert_eq!(BytesChange::new(0, u64::MAX).change_bytes, i64::MAX);
        assert_eq!(BytesChange::new(u64::MAX, 0).change_bytes, i64::MIN);
    }
}
