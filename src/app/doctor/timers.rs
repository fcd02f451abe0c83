//! Checks of the timers and cron jobs that scan and delete.

use std::time::SystemTime;

use jiff::{SignedDuration, Timestamp};

use super::check::Check;
use super::node::Node;
use super::thresholds;
use crate::node::timers::{self, GC, SCAN, Timer, TimerState};

/// Maximum time since a timer last elapsed. Both timers run every five minutes, but a scan may take long.
const LATE: SignedDuration = SignedDuration::from_hours(1);

pub(super) fn scan(node: &Node<'_>) -> Vec<Check> {
    let timer = match node.scan_timer() {
        Ok(timer) => timer,
        Err((path, error)) => return vec![Check::unread(path, error)],
    };
    let cron = match timers::cron(&node.stores.sysroot, "scan") {
        Ok(cron) => cron,
        Err(error) => return vec![Check::unread("/etc/cron.d", &error)],
    };
    vec![match (&timer.state, cron) {
        (TimerState::Enabled, _) => pace(node, SCAN, timer),
        (_, Some(job)) => Check::note(job, "a cron job is installed; cron itself was not checked"),
        (TimerState::Missing, None) => Check::note(
            SCAN,
            "no layersweep timer or cron job is installed: image uses are recorded only when you scan \
             (docs/installing.md)",
        ),
        (TimerState::Masked(path), None) => Check::warning(
            path,
            "the timer is masked: no automatic scans, so image uses are not recorded",
            format!("systemctl unmask {SCAN} && systemctl enable --now {SCAN}"),
        ),
        (TimerState::Disabled, None) => Check::warning(
            SCAN,
            "the timer is not enabled: no automatic scans, so image uses are not recorded",
            format!("systemctl enable --now {SCAN}"),
        ),
    }]
}

pub(super) fn gc(node: &Node<'_>) -> Vec<Check> {
    let timer = match node.gc_timer() {
        Ok(timer) => timer,
        Err((path, error)) => return vec![Check::unread(path, error)],
    };
    match &timer.state {
        TimerState::Missing => match timers::cron(&node.stores.sysroot, "gc") {
            Ok(Some(job)) => vec![Check::note(job, "a cron job is installed; cron itself was not checked")],
            Ok(None) => {
                let message = "no timer or cron job for gc is installed: it runs only when you start it";
                vec![gc_off(node, message, "install the timer (docs/installing.md)")]
            }
            Err(error) => vec![Check::unread("/etc/cron.d", &error)],
        },
        TimerState::Enabled => vec![pace(node, GC, timer)],
        TimerState::Disabled | TimerState::Masked(_) => {
            let unmask = match timer.state {
                TimerState::Masked(_) => format!("systemctl unmask {GC} && "),
                _ => String::new(),
            };
            let enable = format!("{unmask}systemctl enable --now {GC}");
            let message = format!(
                "no automatic deletion. `layersweep gc --dry-run` shows what would be deleted; `{enable}` turns it on"
            );
            vec![gc_off(node, &message, &enable)]
        }
    }
}

/// Result for a node on which gc does not run by itself: a warning if the kubelet leaves image collection to it.
fn gc_off(node: &Node<'_>, message: &str, remedy: &str) -> Check {
    let settings = node.settings.as_ref();
    match settings.filter(|settings| thresholds::is_collection_off(&settings.kubelet)) {
        Some(settings) => {
            let source = settings.kubelet.image_high.source();
            let eviction = if thresholds::has_eviction(settings) { " before eviction" } else { "" };
            let message = format!(
                "nothing deletes images{eviction}: the kubelet's image collection is off ({source}), and gc does not \
                 run by itself"
            );
            Check::warning(GC, message, remedy)
        }
        None => Check::note(GC, message),
    }
}

pub(super) fn holds(node: &Node<'_>) -> Vec<Check> {
    let Ok(timer) = node.gc_timer() else { return Vec::new() };
    let checks = timers::holds(&node.stores.sysroot).into_iter().map(|(path, since)| {
        let since = since
            .and_then(|since| Timestamp::try_from(since).ok())
            .map(|since| format!(" since {since:.0}"))
            .unwrap_or_default();
        let message = format!("has held deletion back{since}");
        if timer.state == TimerState::Enabled {
            Check::warning(&path, message, format!("rm {}", path.display()))
        } else {
            Check::note(&path, message)
        }
    });
    checks.collect()
}

fn pace(node: &Node<'_>, unit: &str, timer: &Timer) -> Check {
    if node.is_foreign() {
        return Check::ok(unit, "enabled");
    }
    let ago = timer.last.map(|last| SystemTime::now().duration_since(last).unwrap_or_default());
    match ago.and_then(|ago| SignedDuration::try_from(ago).ok()) {
        Some(ago) if ago <= LATE => Check::ok(unit, format!("enabled; last elapsed {}s ago", ago.as_secs())),
        Some(ago) => {
            let ago = SignedDuration::from_mins(ago.as_mins());
            let message = format!("it is enabled but has not elapsed for {ago:#}");
            Check::warning(unit, message, format!("systemctl status {unit}, and systemctl restart {unit}"))
        }
        None => {
            Check::warning(unit, "it is enabled but was never started", format!("systemctl start {unit}"))
        }
    }
}
