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
use crate::model::text::volume;
use crate::services::database::Database;
use crate::services::error::Error;
use crate::services::kept_scans;
use crate::services::request::Request;
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
    /// Objects of the stores, and directories and files outside, whose bytes changed most, the largest change first.
    pub objects: Vec<ObjectChange>,
}

/// Change of an object in a store, or of a path outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "ObjectChangeDoc"))]
pub struct ObjectChange {
    /// Kind and name: `images of quay.io/app`, `container web-0/app of namespace shop`, `volume db`, `/srv/dump`.
    pub name: String,
    /// True for bytes in a store.
    pub in_store: bool,
    /// Change of its bytes, as in `layersweep usage --since`.
    pub change_bytes: i64,
}

impl Changes {
    #[must_use]
    pub fn clause(&self) -> String {
        let outside = self.objects.iter().filter(|object| !object.in_store);
        let outside_named = outside.map(|object| object.change_bytes).reduce(i64::saturating_add);
        let word =
            if outside_named.is_some() { "elsewhere outside the stores" } else { "outside the stores" };
        let outside = (self.outside_change_bytes.saturating_sub(outside_named.unwrap_or(0)), word);
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

/// Compares a scan with the oldest kept scan of the last day, or the newest if that is older, and with the newest that is
/// a day older than this one. Returns nothing if no scan is kept.
pub(super) fn changes(request: &Request, database: &Database, scan: &Scan) -> Result<Vec<Changes>, Error> {
    let kept = database.read(history::all)?;
    let summary = kept_scans::of(request, scan);
    let mut now = ComparedScan { id: "now".into(), taken_at: scan.taken_at, summary };
    let mut changes = Vec::new();
    for kept in compared(&kept, scan.taken_at) {
        // An unreadable summary is that of one scan; the report has the others.
        let before = database.read(|connection| history::load(connection, kept));
        let Ok(mut before) = before else { continue };
        // A store that this scan did not read has not shrunk.
        if request.names_stores {
            before.summary.retain_common(&now.summary);
        }
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
    let mut earlier = kept.iter().filter(|scan| scan.at < now);
    // Nothing has happened yet since a scan of the last minutes.
    let of_day = earlier.clone().find(|scan| now.duration_since(scan.at) <= DAY);
    let Some(first) = of_day.or_else(|| earlier.next_back()) else { return Vec::new() };
    let day_before = kept.iter().rev().find(|scan| first.at.duration_since(scan.at) >= DAY);
    std::iter::once(first).chain(day_before).collect()
}

/// Returns the change of a filesystem. `mount` is its mount point here.
fn of_filesystem(before: &ComparedScan, grown: &FilesystemGrowth, mount: &Path) -> Changes {
    let used_change_bytes = grown.used.change_bytes;
    let outside = grown.rows.iter().filter(|row| row.kind.is_outside());
    let outside_change_bytes = outside.fold(0, |sum: i64, row| sum.saturating_add(row.change_bytes));
    let objects = grown.rows.iter().filter_map(object);
    let mut objects: Vec<_> = objects.filter(|object| object.change_bytes.unsigned_abs() >= LEAST).collect();
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
    let name = match (row.kind, row.name.as_deref()) {
        (GrowthKind::Container, name) => {
            format!("container {}", of_namespace(row, name.unwrap_or_default()))
        }
        (GrowthKind::Images, None) => "images without a name".to_owned(),
        (GrowthKind::Images, Some(name)) => format!("images of {name}"),
        (GrowthKind::BuildCache, ..) => "build cache".to_owned(),
        (GrowthKind::Leaks, ..) => "leaks".to_owned(),
        (GrowthKind::Metadata, ..) => "store metadata".to_owned(),
        (GrowthKind::Saved, ..) => "by shared extents and compression".to_owned(),
        (GrowthKind::Other, ..) => "other files in stores".to_owned(),
        (GrowthKind::Volume, Some(name)) => format!("volume {name}"),
        (GrowthKind::PodLog, Some(name)) => format!("log of pod {}", of_namespace(row, name)),
        (GrowthKind::PodVolume, Some(name)) => format!("volume of pod {}", of_namespace(row, name)),
        (GrowthKind::Path, Some(path)) => volume::title(path),
        _ => return None,
    };
    Some(ObjectChange { name, in_store: !row.kind.is_outside(), change_bytes: row.change_bytes })
}

fn of_namespace(row: &GrowthRow, name: &str) -> String {
    row.namespace.iter().fold(name.to_owned(), |name, namespace| format!("{name} of namespace {namespace}"))
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
                path: None,
                image: None,
                owner: None,
                before_bytes,
                after_bytes,
                change_bytes: after_bytes - before_bytes,
                bytes_per_day: None,
                change_inodes: None,
            }
        }
        let grown = FilesystemGrowth {
            mount: "/".into(),
            used: BytesChange::new(500 * MIB, 1091 * MIB),
            bytes_per_day: None,
            change_inodes: None,
            by_inodes: false,
            rows: vec![
                row(GrowthKind::Path, "/srv/dump", None, [0, 480]),
                row(GrowthKind::Outside, "", None, [400, 421]),
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
            "+591.0 MiB used: +480.0 MiB /srv/dump, +120.0 MiB images of quay.io/c, -40.0 MiB images of quay.io/b, \
             +21.0 MiB elsewhere outside the stores, +10.0 MiB container web-0/app of namespace shop"
        );
    }
}
