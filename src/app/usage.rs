//! `usage`: shows the users of each filesystem, in one column whose sum is the used bytes of the filesystem.

use crate::config::Config;
use crate::model::documents::reader::{NodeDocument, Text};
use crate::model::documents::saved_inventory;
use crate::model::refs::{self, Fair, Group, GroupBy, GroupKeys, Line, LineKind};
use crate::model::{FilesystemIx, Finding};
use crate::policy::forecast::Forecast;
use crate::services::diagnosis::{self, Part, PartKind, StoppedHolders};
use crate::services::error::{Error, Exit};
use crate::services::forecast;
use crate::services::observer::{Audience, Observer};
use crate::services::outside;
use crate::services::reach;
use crate::services::request::Request;
use crate::services::scan::ScanResult;
use crate::stores::{Scan, other_usage};

#[derive(Debug)]
pub struct Usage {
    pub result: ScanResult,
    /// Usage of each filesystem, in the order of the scan.
    pub disks: Vec<DiskUsage>,
    pub forecasts: Vec<Option<Forecast>>,
    pub by: Option<GroupBy>,
    /// Stopped containers, and what their removal lets `gc` free.
    pub stopped: StoppedHolders,
    pub findings: Vec<Finding>,
    pub refused: Option<String>,
}

/// Usage of one filesystem. `lines`, `large`, `outside` and `rest_bytes` add up to the used bytes; the groups with
/// the other fields of [`Grouped`] do so too.
#[derive(Clone, Debug)]
pub struct DiskUsage {
    pub lines: Vec<Line>,
    /// Bytes that deleting all unused images and artifacts and all reclaimable leaks would free.
    pub reclaimable_bytes: u64,
    /// Large directories in the stores that do not belong to an image or container; they are not in `lines`.
    pub large: Vec<Part>,
    /// Known parts outside the stores, the largest first.
    pub outside: Vec<Part>,
    pub inode_users: Vec<Part>,
    /// Used bytes that are in no other field.
    pub rest_bytes: u64,
    /// Used inodes that are in no other field; `None` if the filesystem does not report its inodes.
    pub rest_inodes: Option<u64>,
    /// Data of it could not be read, and is in the rest.
    pub has_unread: bool,
    /// Bytes by which the measured parts exceed the used bytes. The parts were reduced in proportion.
    excess_bytes: u64,
    pub grouped: Option<Grouped>,
}

/// Bytes of a filesystem by group of images and containers, with shared layers divided equally.
#[derive(Clone, Debug, Default)]
pub struct Grouped {
    pub groups: Vec<Group>,
    /// Bytes of build caches that no image or container reaches.
    pub build_cache: u64,
    /// Bytes of leaks that no image, container or build cache reaches.
    pub leaks: u64,
    pub metadata: u64,
    /// Bytes of all other files below the roots of the stores.
    pub other: u64,
    pub outside_bytes: u64,
}

impl DiskUsage {
    /// Returns the number of inodes of all rows but the rest.
    fn inodes(&self) -> u64 {
        let lines = self.lines.iter().map(|line| line.inodes);
        let parts = self.large.iter().chain(&self.outside).map(|part| part.inodes);
        lines.chain(parts).fold(0, u64::saturating_add)
    }
}

impl Usage {
    /// Returns true if everything was read. Unreadable data outside the stores is in the rest.
    pub fn is_complete(&self) -> bool {
        self.result.scan.is_complete() && !self.findings.iter().any(|finding| finding.incomplete)
    }

    pub fn exit(&self) -> Exit {
        if self.is_complete() { Exit::Done } else { Exit::Incomplete }
    }
}

/// Measures the stores and the other users of their filesystems.
///
/// # Errors
/// As [`crate::services::scan::scan`].
pub fn usage(
    request: &Request,
    observer: &dyn Observer,
    config: &Config,
    by: Option<GroupBy>,
) -> Result<Usage, Error> {
    let (result, reach) = reach::scan(request, observer, config)?;
    let scan = &result.scan;
    let other_users =
        outside::measure(request, observer, config, scan, outside::most_inodes(scan, outside::MOST_INODES));
    let disks: Vec<DiskUsage> = (0..scan.inventory.filesystems.len())
        .map(FilesystemIx::from)
        .map(|ix| {
            let used = scan.inventory[ix].used_bytes;
            let sizes = refs::size_on_disk(&scan.inventory, ix);
            let fair = by.map(|by| (by, refs::fair(&scan.inventory, &scan.refs, |node| sizes[node.get()])));
            let grouped = fair.map(|(by, fair)| {
                let keys = GroupKeys::new(&scan.inventory, by);
                grouped(refs::groups(&keys, &fair), &fair, used)
            });
            let large = diagnosis::large(scan, &other_users, ix);
            DiskUsage {
                inode_users: outside::inode_users(scan, &other_users, ix),
                has_unread: other_users.findings.iter().any(|finding| {
                    finding.incomplete && other_usage::filesystem_of(scan, &finding.path) == Some(ix)
                }),
                grouped,
                ..disk_usage(scan, ix, large, outside::parts(scan, &other_users, ix))
            }
        })
        .collect();
    // Data that could not be read counts as the rest, so the column is complete.
    let filesystems = (0..disks.len()).map(FilesystemIx::from);
    let hidden: Vec<_> = filesystems
        .filter_map(|ix| {
            let (text, remedy) = diagnosis::hidden(scan, &other_users, ix)?;
            Some(Finding::new(&scan.inventory[ix].mount, format!("{text}; {remedy}")))
        })
        .collect();
    let unknown_files = other_users.unknown_files(&scan.inventory.findings);
    let unread = other_users.findings.into_iter().map(|finding| Finding { incomplete: false, ..finding });
    let filled = scan.inventory.filesystems.iter().zip(&disks);
    let excess = filled.filter_map(|(filesystem, disk)| outside::excess(filesystem, disk.excess_bytes));
    let findings: Vec<_> = unread
        .chain(unknown_files)
        .chain(hidden)
        .chain(excess)
        .chain(outside::part_of_a_filesystem(request, scan))
        .collect();
    observer.findings(Audience::Usual, &findings);
    let forecasts = forecast::read(request, &scan.inventory.filesystems);
    let stopped = StoppedHolders::find(scan);
    Ok(Usage { disks, forecasts, by, stopped, findings, refused: reach.refused(), result })
}

/// Divides the used bytes of a filesystem among its users. `large` and `outside`: measured parts that are in no store.
fn disk_usage(scan: &Scan, ix: FilesystemIx, large: Vec<Part>, outside: Vec<Part>) -> DiskUsage {
    let column = refs::column(&scan.inventory, &scan.refs, ix);
    let mut disk = DiskUsage {
        lines: column.lines,
        reclaimable_bytes: column.reclaimable_bytes,
        large,
        outside,
        inode_users: Vec::new(),
        rest_bytes: 0,
        rest_inodes: None,
        has_unread: false,
        excess_bytes: 0,
        grouped: None,
    };
    let large: u64 = disk.large.iter().map(|part| part.bytes).sum();
    let other = disk.lines.iter_mut().filter(|line| line.kind == LineKind::Other);
    let large_inodes: u64 = disk.large.iter().map(|part| part.inodes).sum();
    other.for_each(|line| {
        line.bytes = line.bytes.saturating_sub(large);
        line.inodes = line.inodes.saturating_sub(large_inodes);
    });
    disk.rest_inodes = scan.inventory[ix].used_inodes().map(|used| used.saturating_sub(disk.inodes()));
    let lines = disk
        .lines
        .iter_mut()
        .map(|line| &mut line.bytes)
        .chain(disk.large.iter_mut().map(|part| &mut part.bytes));
    let parts = lines.chain(disk.outside.iter_mut().map(|part| &mut part.bytes));
    (disk.rest_bytes, disk.excess_bytes) = refs::fit(parts.collect(), scan.inventory[ix].used_bytes);
    disk
}

/// Returns the scan in a document of `scan` or `report`, and the usage of its filesystems. A document of `scan` says
/// nothing about data outside the stores.
///
/// # Errors
/// Describes in words why the document cannot be shown.
pub fn saved(document: &NodeDocument<'_>) -> Result<(Scan, Vec<DiskUsage>), String> {
    let scan = Scan::saved(saved_inventory::inventory(document)?, document.generated_at);
    let disks = document.filesystems.iter().enumerate().map(|(position, filesystem)| {
        let parts = filesystem.parts.iter().filter(|part| part.store.is_none() && part.path.is_some());
        let outside = parts.map(|part| Part {
            kind: PartKind::Directory,
            label: part.label.to_owned(),
            path: part.path.as_ref().map(Text::to_owned),
            bytes: part.bytes,
            measured_bytes: part.bytes,
            inodes: 0,
            store: None,
            tool: None,
        });
        disk_usage(&scan, position.into(), Vec::new(), outside.collect())
    });
    let filled = disks.collect();
    Ok((scan, filled))
}

/// Returns the grouped column, reduced in proportion if it exceeds the used bytes.
fn grouped(groups: Vec<Group>, fair: &Fair, used: u64) -> Grouped {
    let Fair { build_cache, leaks, metadata, other, .. } = *fair;
    let mut grouped = Grouped { groups, build_cache, leaks, metadata, other, outside_bytes: 0 };
    let groups = grouped.groups.iter_mut().map(|group| &mut group.bytes);
    let rest = [&mut grouped.build_cache, &mut grouped.leaks, &mut grouped.metadata, &mut grouped.other];
    let parts = groups.chain(rest);
    (grouped.outside_bytes, _) = refs::fit(parts.collect(), used);
    grouped
}
