//! What scans and deletes by itself here.

use std::time::SystemTime;

use jiff::{SignedDuration, Timestamp};

use super::examination::Examination;
use crate::node::timers::{self, Timer, TimerState};

const SCAN: &str = "scan-timer";
const GC: &str = "gc-timer";

/// Both timers run every five minutes; a scan may take its time.
const LATE: SignedDuration = SignedDuration::from_hours(1);

impl Examination<'_> {
    pub(super) fn timers(&mut self) {
        if let Some(timer) = self.timer(SCAN, timers::SCAN) {
            self.scan_timer(&timer);
        }
        if let Some(timer) = self.timer(GC, timers::GC) {
            self.gc_timer(&timer);
        }
    }

    fn timer(&mut self, name: &'static str, unit: &str) -> Option<Timer> {
        match timers::read(&self.stores.sysroot, unit) {
            Ok(timer) => Some(timer),
            Err((path, error)) => {
                self.unread(name, path.display().to_string(), &error);
                None
            }
        }
    }

    fn scan_timer(&mut self, timer: &Timer) {
        let cron = match timers::cron(&self.stores.sysroot) {
            Ok(cron) => cron,
            Err(error) => return self.unread(SCAN, "/etc/cron.d", &error),
        };
        match (&timer.state, cron) {
            (TimerState::Enabled, _) => self.pace(SCAN, timers::SCAN, timer),
            (_, Some(job)) => {
                self.ok(SCAN, job.display().to_string(), "cron runs layersweep");
            }
            (TimerState::Missing, None) => self.note(
                SCAN,
                timers::SCAN,
                "no layersweep timer or cron job is installed: image uses are recorded only when you scan \
                    (docs/installing.md)",
            ),
            (TimerState::Masked(path), None) => self.warning(
                SCAN,
                path.display().to_string(),
                "the timer is masked: no automatic scans, so image uses are not recorded",
                format!("systemctl unmask {0} && systemctl enable --now {0}", timers::SCAN),
            ),
            (TimerState::Disabled, None) => self.warning(
                SCAN,
                timers::SCAN,
                "the timer is not enabled: no automatic scans, so image uses are not recorded",
                format!("systemctl enable --now {}", timers::SCAN),
            ),
        }
    }

    fn gc_timer(&mut self, timer: &Timer) {
        let enabled = timer.state == TimerState::Enabled;
        match &timer.state {
            TimerState::Missing => {}
            TimerState::Enabled => self.pace(GC, timers::GC, timer),
            TimerState::Disabled | TimerState::Masked(_) => self.note(
                GC,
                timers::GC,
                format!(
                    "no automatic deletion. `layersweep gc --dry-run` shows what would be deleted; \
                        `systemctl enable --now {}` turns it on",
                    timers::GC
                ),
            ),
        }
        for (path, since) in timers::holds(&self.stores.sysroot) {
            let object = path.display().to_string();
            let since = since.and_then(|since| Timestamp::try_from(since).ok());
            let since = since.map(|since| format!(" since {since:.0}")).unwrap_or_default();
            let message = format!("it blocks deletion{since}");
            match enabled {
                true => self.warning("hold", object.clone(), message, format!("rm {object}")),
                false => self.note("hold", object, message),
            }
        }
    }

    /// Whether an enabled timer really elapses.
    fn pace(&mut self, name: &'static str, unit: &str, timer: &Timer) {
        if self.is_foreign() {
            return self.ok(name, unit, "enabled");
        }
        let ago = timer.last.map(|last| SystemTime::now().duration_since(last).unwrap_or_default());
        match ago.and_then(|ago| SignedDuration::try_from(ago).ok()) {
            Some(ago) if ago <= LATE => {
                self.ok(name, unit, format!("enabled; last elapsed {}s ago", ago.as_secs()));
            }
            Some(ago) => {
                let ago = SignedDuration::from_mins(ago.as_mins());
                let message = format!("it is enabled but has not elapsed for {ago:#}");
                self.warning(
                    name,
                    unit,
                    message,
                    format!("systemctl status {unit}, and systemctl restart {unit}"),
                );
            }
            None => self.warning(
                name,
                unit,
                "it is enabled but was never started",
                format!("systemctl start {unit}"),
            ),
        }
    }
}
