//! Checks of the last runs.

use jiff::{SignedDuration, Timestamp};

use super::check::{Check, Status};
use super::node::Node;
use crate::history::checkup;
use crate::history::runs::{Command, OutcomeKind, RunRow};

/// Maximum age of the last scan. The timer scans every five minutes.
const LATE: SignedDuration = SignedDuration::from_hours(1);
/// Minimum number of consecutive failed runs that is an error.
const IN_A_ROW: u64 = 3;
fn of_command<'n>(node: &'n Node<'_>, command: Command) -> Option<Vec<&'n RunRow>> {
    let runs = node.runs()?.ok()?;
    Some(runs.iter().filter(|run| run.start.command == command).collect())
}

pub(super) fn under_way(node: &Node<'_>) -> Vec<Check> {
    if node.directory.foreign || node.database.is_err() {
        return Vec::new();
    }
    match checkup::run_under_way(&node.directory) {
        Ok(None) => Vec::new(),
        Ok(Some(holder)) => vec![Check::note(&node.directory.dir, format!("{holder} is deleting now"))],
        Err(error) => vec![Check::unread("/proc/locks", &error)],
    }
}

pub(super) fn last_scan(node: &Node<'_>) -> Vec<Check> {
    let Some(scans) = of_command(node, Command::Scan) else { return Vec::new() };
    let remedy = "check its timer: systemctl list-timers layersweep-scan.timer (or cron)";
    let Some(last) = scans.first() else {
        let message = "no scan is recorded, so image ages and uses are unknown";
        return vec![Check::warning("", message, remedy)];
    };
    let ended = last.ended.unwrap_or(last.start.started);
    let ago = Timestamp::now().duration_since(ended);
    vec![if node.is_foreign() {
        Check::ok("", format!("the last scan was at {ended:.0}"))
    } else if ago > LATE {
        let ago = SignedDuration::from_mins(ago.as_mins());
        let message = format!("the last scan was {ago:#} ago: image uses since then are not recorded");
        Check::warning("", message, remedy)
    } else {
        Check::ok("", format!("{}s ago", ago.as_secs().max(0)))
    }]
}

pub(super) fn last_gc(node: &Node<'_>) -> Vec<Check> {
    let Some(runs) = of_command(node, Command::Gc) else { return Vec::new() };
    let Some(last) = runs.first() else { return vec![Check::note("", "gc has not run yet")] };
    let failed = count_consecutive(&runs, |run| {
        run.killed || matches!(run.outcome, Some(OutcomeKind::Failed | OutcomeKind::Refused))
    });
    let short = count_consecutive(&runs, |run| run.outcome == Some(OutcomeKind::NotReached));
    let started = last.start.started;
    vec![if failed > 0 {
        let why = match (last.killed, last.errors.last()) {
            (true, _) => "it was killed",
            (false, Some(error)) => error.message.as_str(),
            (false, None) => "no reason was recorded",
        };
        let runs = match failed {
            1 => "the last run of gc".to_owned(),
            failed => format!("the last {failed} runs of gc"),
        };
        let status = if failed >= IN_A_ROW { Status::Error } else { Status::Warning };
        let message = format!("{runs} failed or refused, the last one at {started:.0}: {why}");
        let remedy = if node.is_foreign() {
            "see `layersweep history`, and `layersweep report` for the state of the disk"
        } else {
            "see `layersweep history`, and `layersweep gc --dry-run` for the current state"
        };
        Check::new(status, "", message, remedy)
    } else if short >= IN_A_ROW {
        let message = format!("the last {short} runs of gc did not reach the low threshold");
        let remedy = "see `layersweep usage` for what fills the disk, and `layersweep gc --dry-run` for what keeps the images";
        Check::warning("", message, remedy)
    } else if short > 0 {
        Check::note("", format!("the last run of gc, at {started:.0}, did not reach the low threshold"))
    } else {
        Check::ok("", format!("gc ran last at {started:.0}"))
    }]
}

/// Counts the newest consecutive runs for which `is_wrong` returns true.
fn count_consecutive(runs: &[&RunRow], is_wrong: impl Fn(&RunRow) -> bool) -> u64 {
    runs.iter().take_while(|run| is_wrong(run)).map(|run| run.runs.max(1)).sum()
}
