//! Fullness of the filesystems with stores, and forecasts.

use jiff::SignedDuration;

use super::check::{Check, Status};
use super::node::Node;
use crate::app::report::thresholds;
use crate::disk::Progress;
use crate::model::Filesystem;
use crate::model::text::display::{bytes, shell_word, two_decimals};
use crate::policy::forecast::Forecast;
use crate::policy::thresholds::{Counted, DiskThreshold, ThresholdName};
use crate::services::{by_hand, forecast, outside};
use crate::stores::{self, Measure, ScanRequest};

/// Used percentage of bytes or inodes at which a warning is given, whatever the thresholds are.
const NEARLY_FULL_PERCENT: f64 = 90.0;
/// Maximum time until a disk is full for which a warning is given.
const SOON: SignedDuration = SignedDuration::from_hours(24);

pub(super) fn filesystems(node: &Node<'_>) -> Vec<Check> {
    let Some(scan) = node.scan() else { return Vec::new() };
    // A plain directory as sysroot has the figures of the disk that it is on.
    if outside::part_of_a_filesystem(node.request, scan).is_some() {
        return Vec::new();
    }
    // Sizes are not measured, unless the user of the inodes is to be named.
    let is_short = scan.inventory.filesystems.iter().any(Filesystem::is_short_of_inodes);
    let request = ScanRequest { measure: Measure::Everything, ..node.stores.clone() };
    let measured = is_short.then(|| stores::run(&request, &Progress::default()).ok()).flatten();
    let scan = measured.as_ref().unwrap_or(scan);
    let filesystems = &scan.inventory.filesystems;
    // Measures only the usual places of large data, because measuring a whole disk takes long.
    let others = outside::measure_quietly(node.request, node.config, scan, Some(0), &Progress::default());
    let thresholds = thresholds::all(node.config, scan);
    let forecasts = forecast::read(node.request, filesystems);
    let mut checks = Vec::new();
    for (ix, (filesystem, forecast)) in filesystems.iter().zip(forecasts).enumerate() {
        let object = node.shown(&filesystem.mount);
        if scan.is_full_by_design(ix.into()) {
            let message = "mounted read-only, so it cannot fill up".to_owned();
            checks.push(Check::new(Status::Ok, object, message, ""));
            continue;
        }
        let mut check = judge(filesystem, &thresholds[ix], forecast.as_ref(), node.is_foreign());
        if filesystem.is_short_of_inodes() {
            match outside::with_most_inodes(&outside::inode_users(scan, &others, ix.into())) {
                users if users.is_empty() => {}
                users => check.message.push_str(&format!("; most inodes: {users}")),
            }
        }
        match outside::largest(&outside::parts(scan, &others, ix.into())) {
            largest if largest.is_empty() => {}
            largest => check.message.push_str(&format!(
                "; known data outside the stores: {largest}; `layersweep report` finds the rest"
            )),
        }
        checks.push(Check { object, ..check });
    }
    checks
}

fn judge(
    filesystem: &Filesystem,
    thresholds: &[DiskThreshold],
    forecast: Option<&Forecast>,
    is_foreign: bool,
) -> Check {
    let Some(percent) = filesystem.used_percent().map(two_decimals) else {
        let message = "its figures contradict each other: gc deletes nothing for lack of space";
        return Check::warning("", message, "check the filesystem and the kernel log (dmesg)");
    };
    #[allow(clippy::cast_precision_loss)] // a percentage
    let inodes = match filesystem.inodes {
        0 => 0.0,
        all => all.saturating_sub(filesystem.inodes_free) as f64 * 100.0 / all as f64,
    };
    let passed: Vec<_> = thresholds
        .iter()
        .filter(|threshold| {
            let used = if threshold.of == Counted::Bytes { percent } else { inodes };
            threshold.acts() && threshold.percent <= used
        })
        .collect();
    let full = forecast.map(Forecast::until_full);
    let evicts =
        passed.iter().any(|threshold| matches!(threshold.name, ThresholdName::Eviction { hard: true, .. }));
    let is_out_of_bytes = filesystem.available_bytes < by_hand::LEAST;
    let is_out_of_inodes = by_hand::is_out_of_inodes(filesystem);
    let status = match full {
        _ if is_out_of_bytes || is_out_of_inodes || (evicts && !is_foreign) => Status::Error,
        _ if !passed.is_empty() || percent.max(inodes) >= NEARLY_FULL_PERCENT => Status::Warning,
        Some(full) if full.after <= SOON => Status::Warning,
        _ => Status::Ok,
    };
    let mut message = format!("{percent:.1}% used, {} available", bytes(filesystem.available_bytes));
    if inodes >= 50.0 {
        message.push_str(&format!(", {:.0}% of the inodes used", inodes.floor()));
    }
    if !passed.is_empty() {
        let names: Vec<_> = passed.iter().map(ToString::to_string).collect();
        message.push_str(&format!("; above {}", names.join(", ")));
    }
    if let Some(forecast) = forecast {
        message.push_str(&format!("; {forecast}"));
    }
    let remedy = match status {
        Status::Ok | Status::Note => String::new(),
        _ if is_out_of_inodes || inodes >= NEARLY_FULL_PERCENT => format!(
            "`layersweep layers` shows the inodes of layers, `du -x --inodes {} | sort -n | tail` what else uses inodes{}",
            shell_word(&filesystem.mount.to_string_lossy()),
            if is_foreign { "" } else { "; `layersweep gc --dry-run` what can be deleted" }
        ),
        // layersweep never deletes from another machine's disk.
        _ if is_foreign => "`layersweep report` shows what uses the space, and what can be deleted".into(),
        _ => "`layersweep usage` shows what uses the space, `layersweep gc --dry-run` what can be deleted; what is \
              not in any store is deleted by hand"
            .into(),
    };
    Check::new(status, "", message, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::thresholds::Source;

    const MIB: f64 = 1_048_576.0;

    fn threshold(name: ThresholdName, percent: f64, source: Source) -> DiskThreshold {
        DiskThreshold { name, percent, source, of: Counted::Bytes }
    }

    #[test]
    fn status_depends_on_thresholds_and_forecast() {
        let thresholds = [
            threshold(ThresholdName::GcLow, 70.0, Source::Layersweep),
            threshold(ThresholdName::GcHigh, 75.0, Source::Layersweep),
            threshold(
                ThresholdName::Eviction { hard: true, signal: "imagefs.available" },
                85.0,
                Source::Eviction,
            ),
        ];
        let soon = Forecast {
            window: SignedDuration::from_hours(6),
            rate: 100.0 * MIB / 86_400.0,
            slowest: 50.0 * MIB / 86_400.0,
            fastest: 200.0 * MIB / 86_400.0,
            available_bytes: 0,
        };
        for (available, ahead, is_foreign, status, expected) in [
            (500, None, false, Status::Ok, "50.0% used, 500.0 MiB available"),
            (280, None, false, Status::Ok, "72.0% used"),
            (250, None, false, Status::Warning, "above layersweep's gc at 75%"),
            (150, None, false, Status::Error, "at 75%, hard eviction (imagefs.available) at 85%"),
            (150, None, true, Status::Warning, "hard eviction"),
            (0, None, true, Status::Error, "0 B available"),
            (
                400,
                Some(90),
                false,
                Status::Warning,
                "full in 21h36m at the rate of the last 6h (10h48m to 1d19h)",
            ),
            (400, Some(400), false, Status::Ok, "full in 4d at the rate"),
        ] {
            let filesystem = Filesystem {
                mount: "/".into(),
                device: "/dev/vda".into(),
                fstype: "xfs".into(),
                capacity_bytes: 1000 << 20,
                used_bytes: (1000 - available) << 20,
                available_bytes: available << 20,
                inodes: 0,
                inodes_free: 0,
            };
            let forecast = ahead.map(|ahead: u64| Forecast { available_bytes: ahead << 20, ..soon });
            let check = judge(&filesystem, &thresholds, forecast.as_ref(), is_foreign);
            assert_eq!(check.status, status, "{check:?}");
            assert!(check.message.contains(expected), "{expected}: {check:?}");
            assert_eq!(check.remedy.is_empty(), status == Status::Ok, "{check:?}");
        }
    }

    #[test]
    fn disk_is_full_with_its_last_kibibytes() {
        for (available_bytes, capacity_bytes, status, expected) in [
            (20 << 10, 1 << 30, Status::Error, "100.0% used, 20.0 KiB available"),
            (1 << 20, 1 << 30, Status::Warning, "99.9% used, 1.0 MiB available"),
            (178_520 << 10, 1_000_000 << 10, Status::Warning, "82.2% used"),
        ] {
            let filesystem = Filesystem {
                mount: "/".into(),
                device: "/dev/vda".into(),
                fstype: "xfs".into(),
                capacity_bytes,
                used_bytes: capacity_bytes - available_bytes,
                available_bytes,
                inodes: 10_000,
                inodes_free: 714,
            };
            let check = judge(&filesystem, &[], None, false);
            assert!(check.message.contains(expected), "{expected}: {check:?}");
            assert!(check.message.contains(", 92% of the inodes used"), "{check:?}");
            assert_eq!(check.status, status, "{check:?}");
        }
    }

    #[test]
    fn disk_without_free_inodes_is_an_error() {
        let filesystem = Filesystem {
            mount: "/var".into(),
            device: "/dev/vda".into(),
            fstype: "ext4".into(),
            capacity_bytes: 1 << 30,
            used_bytes: 1 << 29,
            available_bytes: 1 << 29,
            inodes: 1000,
            inodes_free: 0,
        };
        // One free inode is not enough for a deletion.
        for (is_foreign, inodes_free) in [(false, 0), (true, 0), (false, 1)] {
            let check = judge(&Filesystem { inodes_free, ..filesystem.clone() }, &[], None, is_foreign);
            assert_eq!(check.status, Status::Error, "{check:?}");
            assert!(check.remedy.contains("du -x --inodes /var |"), "{check:?}");
            assert_eq!(check.remedy.contains("layersweep gc"), !is_foreign, "{check:?}");
        }
    }
}
