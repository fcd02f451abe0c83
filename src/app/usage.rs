//! `usage`: what uses each filesystem, in one column that adds up to what the filesystem says is used.

use super::diagnosis::{self, Part};
use super::error::{Error, Exit};
use super::forecast;
use super::observer::Observer;
use super::outside;
use super::reach;
use super::request::Request;
use super::scan::ScanResult;
use crate::config::Config;
use crate::model::refs::{self, Fair, Group, GroupBy, Line, LineKind};
use crate::model::{FilesystemIx, Finding};
use crate::policy::forecast::Forecast;

/// Where the stores' filesystems have at most so many inodes besides the stores', every directory is
/// measured, in a few seconds; else the usual places of logs, dumps and volumes are.
const MOST_INODES: u64 = 300_000;

/// What uses the filesystems.
#[derive(Debug)]
pub struct Usage {
    pub result: ScanResult,
    /// In the order of the scan.
    pub disks: Vec<DiskUsage>,
    /// When each is full, as far as the records say.
    pub forecasts: Vec<Option<Forecast>>,
    /// What images and containers are grouped by, besides.
    pub by: Option<GroupBy>,
    /// What could not be read outside of the stores.
    pub findings: Vec<Finding>,
    /// Why `gc` could delete nothing now.
    pub refused: Option<String>,
}

/// What uses one filesystem. Its lines, or in their place its groups and what no image or container reaches,
/// add up to the used bytes with what is in no store.
#[derive(Clone, Debug)]
pub struct DiskUsage {
    pub lines: Vec<Line>,
    /// What deleting all unused images and artifacts and all reclaimable leaks would free.
    pub reclaimable_bytes: u64,
    /// Large directories in the stores that belong to no image or container; they are not in `lines`.
    pub large: Vec<Part>,
    /// What is in no store and has a name, the largest first.
    pub outside: Vec<Part>,
    /// The rest.
    pub rest_bytes: u64,
    /// By how much the parts as measured exceed what is used: they were made smaller in proportion.
    excess_bytes: u64,
    pub grouped: Option<Grouped>,
}

/// The fair column of a filesystem.
#[derive(Clone, Debug, Default)]
pub struct Grouped {
    pub groups: Vec<Group>,
    /// What build caches hold, and no image or container reaches.
    pub build_cache: u64,
    /// Of the rest, what leaks reach.
    pub leaks: u64,
    /// The stores' own bookkeeping.
    pub metadata: u64,
    /// Everything else below the stores' roots.
    pub other: u64,
    /// What is in no store.
    pub outside_bytes: u64,
}

impl Usage {
    /// How the command ends.
    pub fn exit(&self) -> Exit {
        self.result.exit()
    }
}

/// Measures the stores, and what else uses their filesystems.
///
/// # Errors
/// As [`crate::app::scan::scan`].
pub fn usage(
    request: &Request,
    observer: &dyn Observer,
    config: &Config,
    by: Option<GroupBy>,
) -> Result<Usage, Error> {
    let (result, reach) = reach::scan(request, observer, config)?;
    let scan = &result.scan;
    let other_users = outside::measure(request, observer, config, scan, Some(MOST_INODES));
    let disks = (0..scan.inventory.filesystems.len()).map(FilesystemIx::from).map(|at| {
        let used = scan.inventory[at].used_bytes;
        let column = refs::column(&scan.inventory, &scan.refs, at);
        let outside = outside::parts(scan, &other_users, at);
        let sizes = refs::size_on_disk(&scan.inventory, at);
        let fair = by.map(|by| (by, refs::fair(&scan.inventory, &scan.refs, |node| sizes[node.get()])));
        let grouped = fair.map(|(by, fair)| grouped(refs::groups(&scan.inventory, &fair, by), &fair, used));
        let mut disk = DiskUsage {
            lines: column.lines,
            reclaimable_bytes: column.reclaimable_bytes,
            large: diagnosis::large(scan, &other_users, at),
            outside,
            rest_bytes: 0,
            excess_bytes: 0,
            grouped,
        };
        let large: u64 = disk.large.iter().map(|part| part.bytes).sum();
        let other = disk.lines.iter_mut().filter(|line| line.kind == LineKind::Other);
        other.for_each(|line| line.bytes = line.bytes.saturating_sub(large));
        let lines = disk.lines.iter_mut().map(|line| &mut line.bytes);
        let lines = lines.chain(disk.large.iter_mut().map(|part| &mut part.bytes));
        let parts = lines.chain(disk.outside.iter_mut().map(|part| &mut part.bytes));
        (disk.rest_bytes, disk.excess_bytes) = refs::fit(parts.collect(), used);
        disk
    });
    let disks: Vec<DiskUsage> = disks.collect();
    // Nothing is missing in the column: what could not be read is in the rest.
    let all = (0..disks.len()).map(FilesystemIx::from);
    let hidden = all.filter_map(|at| {
        let (text, remedy) = diagnosis::hidden(scan, &other_users, at)?;
        Some(Finding::new(&scan.inventory[at].mount, format!("{text}; {remedy}")))
    });
    let hidden: Vec<_> = hidden.collect();
    let unread = other_users.findings.into_iter().map(|finding| Finding { incomplete: false, ..finding });
    let filled = scan.inventory.filesystems.iter().zip(&disks);
    let excess = filled.filter_map(|(filesystem, disk)| outside::excess(filesystem, disk.excess_bytes));
    let findings =
        unread.chain(hidden).chain(excess).chain(outside::part_of_a_filesystem(request, scan)).collect();
    let forecasts = forecast::read(request, &scan.inventory.filesystems);
    Ok(Usage { disks, forecasts, by, findings, refused: reach.refused(), result })
}

/// The fair column, made to fit as the lines are.
fn grouped(groups: Vec<Group>, fair: &Fair, used: u64) -> Grouped {
    let Fair { build_cache, leaks, metadata, other, .. } = *fair;
    let mut grouped = Grouped { groups, build_cache, leaks, metadata, other, outside_bytes: 0 };
    let groups = grouped.groups.iter_mut().map(|group| &mut group.bytes);
    let rest = [&mut grouped.build_cache, &mut grouped.leaks, &mut grouped.metadata, &mut grouped.other];
    let parts = groups.chain(rest);
    (grouped.outside_bytes, _) = refs::fit(parts.collect(), used);
    grouped
}
