//! JSON document of `usage --since`.

use jiff::Timestamp;
use serde::Serialize;

use super::SumDoc;
use super::TakenDoc;
use super::parts::{DocumentKind, Header};
use crate::app::growth::Growth;
use crate::model::growth::{FilesystemGrowth, GrowthRow};

/// Minimum time between two scans for a rate.
const RATE_SECONDS: i64 = 3600;
const DAY_SECONDS: i64 = 86_400;

/// Document of `layersweep usage --since`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GrowthDoc {
    /// Common fields of all documents; the kind is `usage-growth`.
    #[serde(flatten)]
    pub header: Header,
    /// True if both scans read everything. If false, the figures of what was not read are missing.
    pub complete: bool,
    /// Kind of groups: `container`, `namespace`, `owner`, `repository` or `registry`.
    pub by: &'static str,
    /// Time that `--since` named.
    pub since: Timestamp,
    /// First scan: the last kept one that had begun at that time, or else the oldest.
    pub before: TakenDoc,
    /// Second scan: the present state, with the id `now`.
    pub after: TakenDoc,
    /// True if no kept scan is as old as `since`: then the growth is only that since `before`.
    pub begins_later: bool,
    /// Seconds between the scans.
    pub seconds: i64,
    /// Filesystems with a store that both scans contain.
    pub filesystems: Vec<FilesystemGrowthDoc>,
}

/// Growth of a filesystem. Bytes and changes of the rows add up to those in `used`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FilesystemGrowthDoc {
    /// Mount point.
    pub mount: String,
    /// Used bytes of the filesystem.
    pub used: SumDoc,
    /// Change of the used bytes in a day at this rate; null for scans within an hour.
    pub bytes_per_day: Option<i64>,
    /// Rows, also those without a change: the largest growth first, the largest decrease last, then `rest`.
    pub rows: Vec<GrowthRowDoc>,
}

/// Row of a filesystem's growth.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GrowthRowDoc {
    /// `container` (its own files and writable layer) and `images` of a repository, by container; `group`
    /// with a name; `unnamed` for images without a name, and for containers without a namespace; `several` for
    /// images that several groups use, and `unused` for those that no container uses, by namespace and owner;
    /// `unknown` for what only a scan of an earlier version contains, which has no groups; `build_cache`,
    /// `leaks`, `metadata` and `store_other` in the stores; `not_in_store`; `rest` for records of images and
    /// for files that several layers share.
    pub kind: &'static str,
    /// Name of the container (`POD/CONTAINER`), repository or group; null for other kinds, and for images
    /// without a name.
    pub name: Option<String>,
    /// Namespace of a container; null for other kinds.
    pub namespace: Option<String>,
    /// Name of a container's image; null for other kinds.
    pub image: Option<String>,
    /// Bytes in the first scan. Like `after_bytes`, below 0 only in the rows `not_in_store` and `rest`, if
    /// files share extents or inodes, or if a store is on several filesystems.
    pub before_bytes: i64,
    /// Bytes in the second scan.
    pub after_bytes: i64,
    /// Second minus first.
    pub change_bytes: i64,
    /// Change in a day at this rate; null for scans within an hour.
    pub bytes_per_day: Option<i64>,
}

/// Builds the document of `usage --since`.
pub fn growth(growth: &Growth) -> GrowthDoc {
    let (before, after) = (&growth.before, &growth.after);
    let seconds = after.taken_at.duration_since(before.taken_at).as_secs();
    GrowthDoc {
        header: Header::new(DocumentKind::UsageGrowth, after.taken_at),
        complete: growth.is_complete(),
        by: growth.by.as_str(),
        since: growth.since,
        before: TakenDoc::of(before),
        after: TakenDoc::of(after),
        begins_later: before.taken_at > growth.since,
        seconds,
        filesystems: growth.filesystems.iter().map(|grown| filesystem(grown, seconds)).collect(),
    }
}

fn filesystem(grown: &FilesystemGrowth, seconds: i64) -> FilesystemGrowthDoc {
    let used = SumDoc::new(grown.used_before, grown.used_after);
    FilesystemGrowthDoc {
        mount: grown.mount.clone(),
        bytes_per_day: per_day(used.change_bytes, seconds),
        used,
        rows: grown.rows.iter().map(|grown| row(grown, seconds)).collect(),
    }
}

fn row(grown: &GrowthRow, seconds: i64) -> GrowthRowDoc {
    GrowthRowDoc {
        kind: grown.kind.as_str(),
        name: Some(grown.name.clone()).filter(|name| !name.is_empty()),
        namespace: grown.namespace.clone(),
        image: grown.image.clone(),
        before_bytes: grown.before,
        after_bytes: grown.after,
        change_bytes: grown.change(),
        bytes_per_day: per_day(grown.change(), seconds),
    }
}

fn per_day(change_bytes: i64, seconds: i64) -> Option<i64> {
    let per_day = i128::from(change_bytes) * i128::from(DAY_SECONDS) / i128::from(seconds.max(1));
    (seconds >= RATE_SECONDS).then(|| i64::try_from(per_day).unwrap_or(i64::MAX))
}
