//! The database is small after two years on a node.

#![allow(clippy::unwrap_used)] // a test talks to its reader

use std::collections::VecDeque;
use std::time::Instant;

use crate::support;
use layersweep::history::retention;
use layersweep::model::{Container, Image, Inventory};
use support::scan_records::{add_node, container, image, open, record_fresh, scan_at};

const DAY: i64 = 86_400;
const DAYS: i64 = 2 * 365;

/// The limit for a file with only scan records; the rest of 50 MiB is for usage series, runs and cached sizes.
const MOST_BYTES: u64 = 24 << 20;

/// Simulates two years with a scan every `period` seconds: 200 images of which 40 a day are replaced, and
/// 100 containers of which 200 a day are.
fn live(period: i64) {
    // In memory if possible: the test is about the size, not the disk.
    let state = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let mut records = open(state.path());
    let started = Instant::now();
    let mut images: VecDeque<Image> = VecDeque::new();
    let mut containers: VecDeque<Container> = VecDeque::new();
    let (mut next_image, mut next_container) = (0, 0);
    let mut scans = 0;
    for now in (0..DAYS * DAY).step_by(usize::try_from(period).unwrap()) {
        while next_image < (200 + now * 40 / DAY).unsigned_abs() {
            images.push_back(image(next_image, now - 60));
            next_image += 1;
        }
        images.drain(..images.len() - 200);
        while next_container < (100 + now * 200 / DAY).unsigned_abs() {
            containers.push_back(container(1_000_000 + next_container, now - 30, None));
            next_container += 1;
        }
        containers.drain(..containers.len() - 100);
        let mut seen = scan_at(now);
        seen.images = images.iter().cloned().collect();
        seen.containers = containers.iter().cloned().collect();
        let Inventory { nodes, containers: running, .. } = &mut seen.inventory;
        for (position, container) in running.iter_mut().enumerate() {
            // Most containers use the younger half of the images; their files grow.
            container.image = Some((199 - position).into());
            container.holds = vec![add_node(nodes, 0.into(), 65_536 + now.unsigned_abs() / 60, 0)];
        }
        record_fresh(&mut records, seen);
        scans += 1;
    }
    let count =
        |sql: &str| -> u32 { records.read(|from| from.query_row(sql, [], |row| row.get(0))).unwrap() };
    let ended = count("SELECT count(*) FROM images WHERE gone_since IS NOT NULL");
    let gone = count("SELECT count(*) FROM containers WHERE gone_since IS NOT NULL");
    assert_eq!(count("SELECT count(*) FROM images WHERE gone_since IS NULL"), 200);
    assert_eq!(count("SELECT count(*) FROM containers WHERE gone_since IS NULL"), 100);
    // Both limits were reached, and exceeded by at most one day's additions.
    assert!((retention::LIVES..=retention::LIVES + 40).contains(&ended), "{ended}");
    assert!((retention::CONTAINERS..=retention::CONTAINERS + 200).contains(&gone), "{gone}");
    drop(records);
    let files = std::fs::read_dir(state.path()).unwrap();
    let bytes: u64 = files.map(|file| file.unwrap().metadata().unwrap().len()).sum();
    #[allow(clippy::print_stdout)] // shown with --nocapture
    {
        println!("{scans} scans in {:?}: {bytes} bytes, {ended} lives, {gone} containers", started.elapsed());
    }
    assert!(bytes < MOST_BYTES, "{bytes}");
}

/// A scan every twelve hours, so that changes in between happen at once. The number of rows, and so the size, is the
/// same as with more scans.
#[test]
fn two_years_stay_small() {
    live(12 * 3600);
}

/// The polling period of a real node. Takes minutes.
#[test]
#[ignore = "takes minutes; run it in release"]
fn two_years_of_five_minutes_stay_small() {
    live(300);
}
