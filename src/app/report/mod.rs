//! `report`: shows what fills a node's disks, what can be deleted, and the past usage.

mod changes;
mod planned;
pub(super) mod thresholds;

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::history::{HistoryOrigin, PastRuns, PastUsage, read_runs};
use super::waste::{self, StoreWaste};
use crate::config::Config;
use crate::history::runs::{self, Query};
use crate::history::usage;
use crate::model::{FilesystemIx, Finding};
use crate::policy::forecast::Forecast;
use crate::services::database::Database;
use crate::services::diagnosis::{self, Advice, Cause, Disk, StoppedHolders};
use crate::services::error::{Error, Exit};
use crate::services::forecast;
use crate::services::observer::Observer;
use crate::services::outside;
use crate::services::request::Request;
use crate::services::scan::{self, ScanOptions, ScanResult};
use crate::services::state::Purpose;
use crate::stores::Scan;
use crate::stores::other_usage::OtherUsers;
pub use changes::Changes;

const RUNS: usize = 100;

#[derive(Debug)]
pub struct Report {
    pub result: ScanResult,
    pub sysroot: Option<PathBuf>,
    /// Everything was read: figures are exact.
    pub complete: bool,
    /// Three sentences: how full the disk is, what fills it, and what can be done.
    pub sentences: [String; 3],
    /// The same in one line, and the next steps.
    pub advice: Advice,
    /// Changes of the filesystems since earlier scans.
    pub changes: Vec<Changes>,
    /// Causes of the usage, ranked as in [`diagnosis::rank`].
    pub causes: Vec<Cause>,
    /// Stopped containers, which are among the causes.
    pub stopped: StoppedHolders,
    /// Stores in which hidden or equal files take more than 1 % of the filesystem.
    pub waste: Vec<StoreWaste>,
    pub disks: Vec<Disk>,
    pub forecasts: Vec<Option<Forecast>>,
    pub other_users: OtherUsers,
    pub runs: PastRuns,
    pub usage: PastUsage,
    /// Directory of a database that cannot be read, and the reason.
    pub unread: Option<String>,
    pub findings: Vec<Finding>,
}

impl Report {
    pub fn exit(&self) -> Exit {
        match self.result.exit() {
            Exit::Done if !self.complete || self.unread.is_some() => Exit::Incomplete,
            exit => exit,
        }
    }

    /// Directories of the stores: roots, runroots and imagestores.
    pub fn places(&self) -> impl Iterator<Item = &Path> {
        self.result.scan.directories()
    }
}

/// Measures the stores and all other users of their filesystems, and reads the history since `since`.
///
/// # Errors
/// When there is no store, or SQLite fails.
pub fn report(
    request: &Request,
    observer: &dyn Observer,
    config: &Config,
    since: Timestamp,
) -> Result<Report, Error> {
    let mut result =
        scan::scan_with(request, observer, Purpose::Report, false, ScanOptions::for_policy(config))?;
    let plans = planned::plans(request, observer, config, &mut result)?;
    let scan = &result.scan;
    let other_users = outside::measure_with_files(request, observer, config, scan, None);
    let inventory = &scan.inventory;
    let filesystems = (0..inventory.filesystems.len()).map(FilesystemIx::from);
    let divided: Vec<_> = filesystems.clone().map(|ix| diagnosis::divide(scan, &other_users, ix)).collect();
    let planned: Vec<_> = filesystems.map(|ix| plans.on(&result, ix)).collect();
    let stopped = StoppedHolders::find(scan);
    let context = diagnosis::Context {
        scan,
        other_users: &other_users,
        stopped: &stopped,
        ages: &result.ages,
        divided: &divided,
        leaks: &plans.leaks,
        min_age: config.leaks.min_age,
        planned: &planned,
    };
    let thresholds = thresholds::all(config, scan);
    let mut findings = other_users.findings.clone();
    let unknown_files = other_users.unknown_files(&scan.inventory.findings);
    findings.extend(unknown_files.clone());
    let filled = inventory.filesystems.iter().zip(&divided);
    findings.extend(filled.filter_map(|(disk, divided)| outside::excess(disk, divided.excess_bytes)));
    findings.extend(outside::part_of_a_filesystem(request, scan));
    findings.extend(thresholds::impossible(config, scan));
    let disks: Vec<_> = inventory
        .filesystems
        .iter()
        .zip(&divided)
        .zip(thresholds)
        .zip(&planned)
        .enumerate()
        .map(|(position, (((filesystem, divided), thresholds), planned))| Disk {
            ix: position.into(),
            filesystem: filesystem.clone(),
            parts: divided.parts.clone(),
            thresholds,
            planned: planned.clone(),
            inode_users: outside::inode_users(scan, &other_users, position.into()),
            is_full_by_design: scan.is_full_by_design(position.into()),
        })
        .collect();
    let causes = diagnosis::causes(&context, &disks);
    let mut incomplete = other_users.findings.iter().chain(&unknown_files);
    let complete = scan.is_complete() && !incomplete.any(|finding| finding.incomplete);
    let foreign = scan.sysroot.is_foreign();
    let sentences = diagnosis::summary(&disks, &causes, complete, foreign);
    let advice = diagnosis::advice(&disks, &causes, foreign);
    let mut database = Database::open_for_report(request)?;
    let (unsaved, _) = database.apply_waiting()?;
    Ok(Report {
        sysroot: request.sysroot.clone().filter(|_| foreign),
        complete,
        sentences,
        advice,
        changes: changes::changes(request, &database, scan)?,
        causes,
        disks,
        forecasts: forecast::read(request, &scan.inventory.filesystems),
        runs: read_runs(
            &database,
            unsaved,
            &Query { since: Some(since), limit: RUNS, kind: None, quiet: false },
        )?,
        usage: past_usage(&database, since, &result.scan)?,
        unread: unread(&database),
        findings,
        other_users,
        stopped,
        waste: waste::noticeable(scan),
        result,
    })
}

/// Returns the directory of a database that cannot be read, and the reason.
fn unread(database: &Database) -> Option<String> {
    let why = database
        .newer
        .clone()
        .or_else(|| database.degraded.first().map(ToString::to_string))
        .unwrap_or_default();
    database.unreadable.then(|| format!("{} ({why})", database.directory.dir.display()))
}

fn past_usage(database: &Database, since: Timestamp, scan: &Scan) -> Result<PastUsage, Error> {
    let since = Some(since);
    let (mut series, runs) = database.read(|connection| {
        Ok((usage::series(connection, since, None)?, runs::that_deleted(connection, since)?))
    })?;
    if !scan.sysroot.is_foreign() {
        usage::add_present(&mut series, scan.taken_at, &scan.inventory.filesystems);
    }
    let series = series.into_iter().filter(|series| !series.points.is_empty()).collect();
    Ok(PastUsage { origin: HistoryOrigin::of(database, since, HashSet::new()), series, runs })
}
