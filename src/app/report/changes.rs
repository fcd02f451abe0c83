//! Growth of the filesystems since earlier scans, by the summaries that are kept for `diff`.

use std::cmp::Reverse;
use std::path::Path;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use crate::history::kept_scans::{self as history, KeptScan};
use crate::model::documents::comparison::{FilesystemGrowth, GrowthKind, GrowthRow, ScanComparison};
use crate::model::documents::scan_summary::ComparedScan;
use crate::model::refs::GroupBy;
use crate::model::text::display::bytes;
use crate::services::database::Database;
use crate::services::error::Error;
use crate::services::kept_scans;
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
    /// Kind and name: `images of quay.io/app`, `container web-0/app of namespace shop`.
    pub name: String,
    /// Change of its bytes, as in `layersweep usage --since`.
    pub change_bytes: i64,
}

impl Changes {
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
    let mut now = ComparedScan { id: "now".into(), taken_at: scan.taken_at, summary: kept_scans::of(scan) };
    let mut changes = Vec::new();
    for kept in compared(&kept, scan.taken_at) {
        // An unreadable summary is that of one scan; the report has the others.
        let Ok(before) = database.read(|connection| history::load(connection, kept)) else { continue };
        let compared = ScanComparison { before, after: now };
        let grown = compared.growth(GroupBy::Container);
        changes.extend(scan.inventory.filesystems.iter().filter_map(|filesystem| {
            let mount = scan.sysroot.shown(&filesystem.mount);
            let grown = grown.iter().find(|grown| grown.mount == mount)?;
            Some(of_filesystem(&compared.before, grown, &filesystem.mount))
        }));
        now = compared.after;
    }
    Ok(changes)
}

/// Returns the scans to compare with, the newest first.
fn compared(kept: &[KeptScan], now: Timestamp) -> Vec<&KeptScan> {
    let Some(last) = kept.iter().rev().find(|scan| scan.at < now) else { return Vec::new() };
    let day_before = kept.iter().rev().find(|scan| last.at.duration_since(scan.at) >= DAY);
    std::iter::once(last).chain(day_before).collect()
}

/// Returns the change of a filesystem. `mount` is its mount point here.
fn of_filesystem(before: &ComparedScan, grown: &FilesystemGrowth, mount: &Path) -> Changes {
    let used_change_bytes = grown.used.change_bytes;
    let (outside, in_stores): (Vec<_>, Vec<_>) =
        grown.rows.iter().partition(|row| row.kind == GrowthKind::Outside);
    let outside_change_bytes = outside.first().map_or(0, |row| row.change_bytes);
    let mut objects: Vec<_> = in_stores
        .into_iter()
        .filter_map(object)
        .filter(|object| object.change_bytes.unsigned_abs() >= LEAST)
        .collect();
    objects.sort_by_key(|object| Reverse(object.change_bytes.unsigned_abs()));
    objects.truncate(MOST);
    Changes {
        filesystem: mount.to_string_lossy().into_owned(),
        since: before.taken_at,
        scan: before.id.clone(),
        used_change_bytes,
        stores_change_bytes: used_change_bytes.saturating_sub(outside_change_bytes),
        outside_change_bytes,
        objects,
    }
}

/// Returns the change of a row; `None` for the remainder.
fn object(row: &GrowthRow) -> Option<ObjectChange> {
    let name = match (row.kind, row.name.as_deref(), &row.namespace) {
        (GrowthKind::Container, Some(name), Some(namespace)) => {
            format!("container {name} of namespace {namespace}")
        }
        (GrowthKind::Container, name, _) => format!("container {}", name.unwrap_or_default()),
        (GrowthKind::Images, None, _) => "images without a name".to_owned(),
        (GrowthKind::Images, Some(name), _) => format!("images of {name}"),
        (GrowthKind::BuildCache, ..) => "build cache".to_owned(),
        (GrowthKind::Leaks, ..) => "leaks".to_owned(),
        (GrowthKind::Metadata, ..) => "store metadata".to_owned(),
        (GrowthKind::Other, ..) => "other files in stores".to_owned(),
        _ => return None,
    };
    Some(ObjectChange { name, change_bytes: row.change_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::documents::comparison::BytesChange;
    use crate::model::documents::scan_summary::ScanSummary;

    const MIB: u64 = 1 << 20;

    #[test]
    fn growth_is_divided_between_stores_and_outside() {
        fn row(kind: GrowthKind, name: &str, namespace: Option<&str>, mib: [i64; 2]) -> GrowthRow {
            let [before_bytes, after_bytes] = mib.map(|mib| mib << 20);
            GrowthRow {
                kind,
                name: Some(name.to_owned()).filter(|name| !name.is_empty()),
                namespace: namespace.map(str::to_owned),
                image: None,
                before_bytes,
                after_bytes,
                change_bytes: after_bytes - before_bytes,
                bytes_per_day: None,
            }
        }
        let grown = FilesystemGrowth {
            mount: "/".into(),
            used: BytesChange::new(500 * MIB, 1091 * MIB),
            bytes_per_day: None,
            rows: vec![
                row(GrowthKind::Outside, "", None, [400, 901]),
                row(GrowthKind::Images, "quay.io/c", None, [0, 120]),
                row(GrowthKind::Container, "web-0/app", Some("shop"), [0, 10]),
                row(GrowthKind::Images, "", None, [60, 60]),
                row(GrowthKind::Images, "quay.io/b", None, [40, 0]),
                row(GrowthKind::Rest, "", None, [0, 0]),
            ],
        };
        let summary = ScanSummary::default();
        let before = ComparedScan { id: "s1".into(), taken_at: Timestamp::UNIX_EPOCH, summary };
        let changes = of_filesystem(&before, &grown, Path::new("/mnt/x"));
        assert_eq!((changes.used_change_bytes, changes.outside_change_bytes), (591 << 20, 501 << 20));
        assert_eq!((changes.stores_change_bytes, &*changes.filesystem), (90 << 20, "/mnt/x"));
        assert_eq!(
            changes.clause(),
            "+591.0 MiB used: +501.0 MiB outside the stores, +120.0 MiB images of quay.io/c, -40.0 MiB images of \
             quay.io/b, +10.0 MiB container web-0/app of namespace shop"
        );
    }
}
