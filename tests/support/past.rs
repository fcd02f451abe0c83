//! A database with a history, written through the program's library.

use std::path::Path;

use jiff::{SignedDuration, Timestamp};
use layersweep::history::runs::{
    self, Certainty, Command, DeletionRow, OutcomeKind, Reason, RunEnd, RunError, Start, TargetKind,
};
use layersweep::history::usage;
use layersweep::model::deletion::outcome::UsageChange;
use layersweep::model::space::Started;
use layersweep::model::{Filesystem, StoreId, StoreKind};

use super::scan_records;

const GIB: u64 = 1 << 30;

/// A foreign name with escape sequences: colour and right-to-left text.
pub const NASTY: &str = "evil.example/\u{1b}[31mred\u{202e}/x:1";

/// Writes ten days of scans every five minutes that end at `now`, with `gc` runs that freed something, one run that
/// failed, and one that was killed.
pub fn ten_days(state_dir: &Path, now: Timestamp) {
    let mut records = scan_records::open(state_dir);
    records
        .write(|tx| {
            let mut used = 60 * GIB;
            for reading in (0..2880_i64).rev() {
                let time = now - SignedDuration::from_mins(reading * 5);
                // A night without scans.
                if (1400..1500).contains(&reading) {
                    continue;
                }
                used += 9 << 20;
                let spike = if reading == 700 { 25 * GIB } else { 0 };
                usage::record(tx, time, &[filesystem("/var", used + spike), filesystem("/", 20 * GIB)])?;
                let over = time + SignedDuration::from_millis(800);
                let outcome = if reading % 500 == 0 { OutcomeKind::Incomplete } else { OutcomeKind::Done };
                runs::record(tx, &Start::of(Command::Scan, time), &ended(over, outcome))?;
                if used > 75 * GIB {
                    let before = used;
                    let start = Start {
                        policy: Some("exact".into()),
                        via: Some("cri".into()),
                        trigger_space: true,
                        usage: vec![change(percent(used), None)],
                        wanted_bytes: Some(used - 70 * GIB),
                        predicted_bytes: Some(6 * GIB),
                        ..Start::of(Command::Gc, time + SignedDuration::from_secs(30))
                    };
                    let run = runs::begin(tx, &start)?;
                    for (number, deletion) in deletions(time).into_iter().enumerate() {
                        let freed = deletion.measured_bytes.unwrap_or(0).unsigned_abs();
                        used -= freed;
                        let time =
                            time + SignedDuration::from_secs(31 + 2 * i64::try_from(number).expect("few"));
                        runs::deleted(
                            tx,
                            run,
                            number,
                            &DeletionRow { at: time, usage_after_percent: Some(percent(used)), ..deletion },
                        )?;
                    }
                    let end = RunEnd {
                        usage: vec![change(percent(before), Some(percent(used)))],
                        measured_bytes: i64::try_from(before - used).ok(),
                        ..ended(time + SignedDuration::from_secs(42), OutcomeKind::Reached)
                    };
                    runs::end(tx, run, &end)?;
                }
            }
            let failed = RunEnd {
                errors: vec![RunError {
                    id: "0123456789abcdef".repeat(4),
                    step: "remove".into(),
                    message: format!("image is in use by {NASTY}"),
                    ..RunError::default()
                }],
                ..ended(now - SignedDuration::from_mins(29), OutcomeKind::Failed)
            };
            runs::record(tx, &Start::of(Command::Rm, now - SignedDuration::from_mins(30)), &failed)?;
            let killed = runs::begin(tx, &Start::of(Command::Sweep, now - SignedDuration::from_mins(10)))?;
            let leak = DeletionRow {
                kind: TargetKind::Leak,
                id: "overlay/7f3a".into(),
                names: vec![],
                layers: Vec::new(),
                reason: Reason::Leak,
                ..deletions(now - SignedDuration::from_mins(10)).remove(0)
            };
            runs::deleted(
                tx,
                killed,
                0,
                &DeletionRow { error: Some("device busy".into()), measured_bytes: None, ..leak },
            )?;
            Ok(())
        })
        .expect("writing the past");
}

fn ended(time: Timestamp, outcome: OutcomeKind) -> RunEnd {
    RunEnd::of(time, outcome)
}

fn change(before: f64, after: Option<f64>) -> UsageChange {
    UsageChange {
        mount: "/var".into(),
        started: Started { used: true, ..Started::default() },
        usage_before_percent: Some(before),
        usage_after_percent: after,
        measured_bytes: None,
    }
}

fn percent(used: u64) -> f64 {
    #[allow(clippy::cast_precision_loss)] // test figures
    let percent = used as f64 / GIB as f64;
    percent
}

fn deletions(time: Timestamp) -> Vec<DeletionRow> {
    let digest = "0123456789abcdef".repeat(4);
    let image = |name: &str, predicted: u64, measured: u64| DeletionRow {
        at: time,
        kind: TargetKind::Image,
        store: Some(StoreId::new(
            StoreKind::ContainersStorage,
            "/var/lib/containers/storage".into(),
            "overlay".into(),
        )),
        id: digest.clone(),
        names: vec![name.into()],
        layers: Vec::new(),
        reason: Reason::Space,
        predicted_bytes: predicted,
        measured_bytes: i64::try_from(measured).ok(),
        byproduct_bytes: 0,
        others_wrote: false,
        usage_after_percent: None,
        error: None,
        certainty: Certainty::Seen,
    };
    vec![
        image("quay.io/team/app:1.4.2", 2 * GIB, 2 * GIB),
        image(
            &format!("registry.example:5000/some/longer/path/service@sha256:{digest}"),
            3 * GIB,
            3 * GIB - 4096,
        ),
        image(NASTY, GIB, 300 << 20),
    ]
}

fn filesystem(mount: &str, used: u64) -> Filesystem {
    Filesystem {
        mount: mount.into(),
        device: "/dev/vda4".into(),
        fstype: "xfs".into(),
        capacity_bytes: 100 * GIB,
        used_bytes: used,
        available_bytes: (100 * GIB).saturating_sub(used),
        inodes: 52_000_000,
        inodes_free: 40_000_000,
    }
}

/// Changes the records so that an image (name or id) was first detected `days` days ago.
pub fn set_first_detected(state_dir: &Path, image: &str, days: i64) {
    let time = (Timestamp::now() - SignedDuration::from_hours(24 * days)).as_microsecond();
    let database = rusqlite::Connection::open(state_dir.join("layersweep.db")).expect("the database");
    let changed = database
        .execute(
            "UPDATE images SET first_detected = ?1, proven_since = NULL WHERE names LIKE ?2 OR image_id = ?3",
            rusqlite::params![time, format!("%\"{image}\"%"), image],
        )
        .expect("changing the records");
    assert_eq!(changed, 1, "{image}");
}
