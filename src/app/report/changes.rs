//! Growth of the filesystems since earlier scans, by the summaries that are kept for `diff`.

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use crate::app::database::Database;
use crate::app::error::Error;
use crate::app::kept_scans;
use crate::history::kept_scans::{self as history, KeptScan};
use crate::model::Filesystem;
use crate::model::display::{bytes, short_id};
use crate::model::scan_summary::{
    Change, ComparedScan, ScanSummary, SummaryEntry, SummaryKind, SummaryStore, compare, difference,
    split_names,
};
use crate::stores::Scan;

/// Age of the second scan that the present one is compared with.
const DAY: SignedDuration = SignedDuration::from_hours(24);
/// Minimum change of an object that is named.
const LEAST: u64 = 1 << 20;
/// Maximum number of objects that are named.
const MOST: usize = 5;

/// Change of a filesystem since an earlier scan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "ChangesDoc"))]
pub struct Changes {
    /// Mount point of the filesystem.
    pub filesystem: String,
    /// Time of the earlier scan.
    pub since: Timestamp,
    /// Id of the earlier scan.
    pub scan: String,
    /// Used bytes now, minus those of the earlier scan.
    pub used_change_bytes: i64,
    /// Change of the bytes in the stores of the filesystem.
    pub stores_change_bytes: i64,
    /// Change of the bytes outside the stores: the difference of the two.
    pub outside_change_bytes: i64,
    /// Objects of the stores whose bytes changed most, the largest change first.
    pub objects: Vec<ObjectChange>,
}

/// Change of an object in a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "ObjectChangeDoc"))]
pub struct ObjectChange {
    /// Kind and name: `image quay.io/app:2`.
    pub name: String,
    /// Change of its bytes; of an image, of those that only it reaches.
    pub change_bytes: i64,
}

impl Changes {
    /// Returns the change as a clause.
    #[must_use]
    pub fn clause(&self) -> String {
        let outside = (self.outside_change_bytes, "outside the stores");
        let objects = self.objects.iter().map(|object| (object.change_bytes, object.name.as_str()));
        let mut named: Vec<_> = std::iter::once(outside).chain(objects).collect();
        named.retain(|(change, _)| change.unsigned_abs() >= LEAST);
        named.sort_by_key(|(change, _)| std::cmp::Reverse(change.unsigned_abs()));
        let named: Vec<_> =
            named.iter().map(|(change, name)| format!("{} {name}", signed(*change))).collect();
        let used = format!("{} used", signed(self.used_change_bytes));
        if named.is_empty() { used } else { format!("{used}: {}", named.join(", ")) }
    }
}

fn signed(change: i64) -> String {
    format!("{}{}", if change < 0 { '-' } else { '+' }, bytes(change.unsigned_abs()))
}

/// Compares a scan with the newest kept scan, and with the newest that is a day older. Returns nothing if no scan is
/// kept.
pub(super) fn changes(database: &Database, scan: &Scan) -> Result<Vec<Changes>, Error> {
    let kept = database.read(history::all)?;
    let now = kept_scans::of(scan);
    let mut changes = Vec::new();
    for kept in compared(&kept, scan.taken_at) {
        // An unreadable summary is that of one scan; the report has the others.
        let Ok(before) = database.read(|connection| history::load(connection, kept)) else { continue };
        let filesystems = scan.inventory.filesystems.iter().enumerate();
        changes.extend(filesystems.filter_map(|(position, filesystem)| {
            let stores = scan.inventory.stores.iter().filter(|store| store.filesystem.get() == position);
            let roots: Vec<_> = stores.map(|store| scan.sysroot.shown(&store.root)).collect();
            let mount = scan.sysroot.shown(&filesystem.mount);
            of_filesystem(&before, &now, filesystem, &mount, &roots)
        }));
    }
    Ok(changes)
}

/// Returns the scans to compare with, the newest first.
fn compared(kept: &[KeptScan], now: Timestamp) -> Vec<&KeptScan> {
    let Some(last) = kept.iter().rev().find(|scan| scan.at < now) else { return Vec::new() };
    let day_before = kept.iter().rev().find(|scan| last.at.duration_since(scan.at) >= DAY);
    std::iter::once(last).chain(day_before).collect()
}

/// Returns the change of a filesystem with these stores; `None` if the earlier scan does not contain it.
fn of_filesystem(
    before: &ComparedScan,
    now: &ScanSummary,
    filesystem: &Filesystem,
    mount: &str,
    roots: &[String],
) -> Option<Changes> {
    let mut entries = before.summary.entries.iter();
    let (_, used_before) = entries.find(|(key, _)| key.kind == SummaryKind::Filesystem && key.id == mount)?;
    let used_before = used_before.bytes;
    let is_here = |place: &SummaryStore| roots.contains(&place.root);
    let in_stores = |summary: &ScanSummary| {
        let sums = summary.sums();
        sums.iter()
            .filter(|(place, _)| is_here(place))
            .map(|(_, sums)| sums.total)
            .fold(0, u64::saturating_add)
    };
    let used_change_bytes = difference(used_before, filesystem.used_bytes);
    let stores_change_bytes = difference(in_stores(&before.summary), in_stores(now));
    let changed = compare(&before.summary, now);
    let mut objects: Vec<_> =
        changed.iter().filter(|change| is_here(&change.key.place)).filter_map(object).collect();
    objects.sort_by(|a, b| {
        let by_size = b.change_bytes.unsigned_abs().cmp(&a.change_bytes.unsigned_abs());
        by_size.then_with(|| a.name.cmp(&b.name))
    });
    objects.truncate(MOST);
    Some(Changes {
        filesystem: filesystem.mount.to_string_lossy().into_owned(),
        since: before.taken_at,
        scan: before.id.clone(),
        used_change_bytes,
        stores_change_bytes,
        outside_change_bytes: used_change_bytes.saturating_sub(stores_change_bytes),
        objects,
    })
}

/// Returns the change of an image, container or leak; `None` if it is small.
fn object(change: &Change) -> Option<ObjectChange> {
    let word = match change.key.kind {
        SummaryKind::Image => "image",
        SummaryKind::Container => "container",
        SummaryKind::Leak => "leak",
        SummaryKind::Filesystem | SummaryKind::Share | SummaryKind::Layer => return None,
    };
    let size = |entry: &Option<SummaryEntry>| {
        let size = |entry: &SummaryEntry| if word == "image" { entry.extra } else { entry.bytes };
        entry.as_ref().map_or(0, size)
    };
    let change_bytes = difference(size(&change.before), size(&change.after));
    let entry = change.after.as_ref().or(change.before.as_ref())?;
    let name = match change.key.kind {
        // The id of a leak begins with its class.
        SummaryKind::Leak => change.key.id.clone(),
        SummaryKind::Image => {
            split_names(&entry.name).into_iter().next().unwrap_or_else(|| short_id(&change.key.id))
        }
        _ => entry.name.clone(),
    };
    (change_bytes.unsigned_abs() >= LEAST)
        .then(|| ObjectChange { name: format!("{word} {name}"), change_bytes })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::scan_summary::Key;

    const MIB: u64 = 1 << 20;

    fn summary(used: u64, entries: &[(SummaryKind, &str, u64)]) -> ScanSummary {
        let store =
            SummaryStore { kind: "containers-storage".into(), root: "/s".into(), driver: "overlay".into() };
        let store = Arc::new(store);
        let mut summary = ScanSummary { complete: true, ..ScanSummary::default() };
        let filesystem = Key { place: Arc::default(), kind: SummaryKind::Filesystem, id: "/".into() };
        summary.entries.insert(filesystem, SummaryEntry { bytes: used * MIB, ..SummaryEntry::default() });
        for (kind, id, mib) in entries {
            let key = Key { place: Arc::clone(&store), kind: *kind, id: (*id).into() };
            let entry = SummaryEntry { bytes: mib * MIB, extra: mib * MIB, name: (*id).into() };
            summary.entries.insert(key, entry);
        }
        summary
    }

    #[test]
    fn growth_is_divided_between_stores_and_outside() {
        use SummaryKind::{Container, Image, Share};
        let before = summary(500, &[(Share, "images", 100), (Image, "a:1", 60), (Image, "b:1", 40)]);
        let now = [(Share, "images", 190), (Image, "a:1", 60), (Image, "c:1", 120), (Container, "web", 10)];
        let filesystem = Filesystem {
            mount: "/mnt/x".into(),
            device: "/dev/x".into(),
            fstype: "ext4".into(),
            capacity_bytes: 2000 * MIB,
            used_bytes: 1091 * MIB,
            available_bytes: 900 * MIB,
            inodes: 0,
            inodes_free: 0,
        };
        let before = ComparedScan { id: "s1".into(), taken_at: Timestamp::UNIX_EPOCH, summary: before };
        let of = |mount: &str, roots: &[String]| {
            of_filesystem(&before, &summary(1091, &now), &filesystem, mount, roots)
        };
        let changes = of("/", &["/s".into()]).unwrap();
        assert_eq!((changes.used_change_bytes, changes.outside_change_bytes >> 20), (591 << 20, 501));
        assert_eq!(
            changes.clause(),
            "+591.0 MiB used: +501.0 MiB outside the stores, +120.0 MiB image c:1, -40.0 MiB image b:1, +10.0 MiB \
             container web"
        );
        assert_eq!(of("/data", &["/s".into()]), None);
        // The stores of another filesystem do not count.
        assert_eq!(of("/", &[]).unwrap().clause(), "+591.0 MiB used: +591.0 MiB outside the stores");
    }
}
