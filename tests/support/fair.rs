//! Checks that columns add up: fair shares to the stores, rows and groups of `usage` to the filesystem, owners of
//! `explain` to `du -x`.

use std::ffi::OsStr;
use std::path::Path;

use serde_json::Value;

use super::program::{self, list, number};
use super::{schema, tree};

/// Checks that the fair shares of images and containers, and the bytes that no image or container reaches, add up
/// exactly: on ext4 to the stores, elsewhere to less, since files share extents or are in the metadata.
pub fn assert_shares_add_up(scan: &Value, what: &str) {
    let [images, containers] = ["/images", "/containers"]
        .map(|of| list(scan, of).iter().map(|row| number(row, "/fair_bytes")).sum());
    let fair = &scan["fair_bytes"];
    assert_eq!(
        (images, containers),
        (number(fair, "/images"), number(fair, "/containers")),
        "{what}: {fair:#}"
    );
    let parts = ["images", "containers", "build_cache", "leaks", "metadata", "other"];
    let sum: u64 = parts.iter().map(|part| number(fair, &format!("/{part}"))).sum();
    assert_eq!(sum, number(fair, "/total"), "{what}: {fair:#}");
    let is_whole = list(scan, "/filesystems").iter().all(|filesystem| filesystem["fstype"] == "ext4");
    let stores = number(scan, "/totals/bytes");
    assert!(if is_whole { sum == stores } else { sum <= stores && sum > stores / 3 }, "{what}: {fair:#}");
    for image in list(scan, "/images") {
        let [share, total, exclusive] =
            ["fair", "total", "exclusive"].map(|name| number(image, &format!("/{name}_bytes")));
        assert!(share <= total, "{what}: {image:#}");
        // Bytes that a leak reaches too are not exclusive.
        assert!(share >= exclusive || !is_whole, "{what}: {image:#}");
    }
}

/// Checks that the rows and groups of `usage` add up to the used bytes of each filesystem exactly. Returns the
/// document of `usage --by namespace`.
pub fn assert_usage_adds_up<S: AsRef<OsStr>>(flags: &[S], what: &str) -> Value {
    let mut last = Value::Null;
    for by in ["repository", "registry", "owner", "namespace"] {
        let mut command = program::command();
        command.args(["usage", "--format", "json", "--by", by]).args(flags);
        let run = program::run(&mut command).expect_no_crash();
        assert!(matches!(run.code, 0 | 3), "{what}: {run:?}");
        let usage = run.json();
        schema::assert_fits("usage", &usage);
        for filesystem in list(&usage, "/filesystems") {
            let used = number(filesystem, "/used_bytes");
            let rows: u64 = list(filesystem, "/rows").iter().map(|row| number(row, "/bytes")).sum();
            assert_eq!(rows, used, "{what}: {filesystem:#}");
            let groups: u64 = list(filesystem, "/groups").iter().map(|row| number(row, "/fair_bytes")).sum();
            assert_eq!(groups, used, "{what} by {by}: {filesystem:#}");
            let last = list(filesystem, "/groups").last().expect("closing rows");
            assert_eq!(last["kind"], "not_in_store", "{what} by {by}: {filesystem:#}");
            let outside = number(filesystem, "/not_in_store_bytes");
            assert!(number(last, "/fair_bytes").abs_diff(outside) < 64, "{what} by {by}: {filesystem:#}");
        }
        last = usage;
    }
    last
}

/// Checks that the owners that `explain` names for a path add up to `du -x` exactly. Returns its document.
pub fn assert_owners_add_up<S: AsRef<OsStr>>(flags: &[S], path: &Path, what: &str) -> Value {
    let mut command = program::command();
    command.args(["explain", "--format", "json"]).arg(path).args(flags);
    let run = program::run(&mut command).expect_no_crash();
    assert!(matches!(run.code, 0 | 3), "{what}: {run:?}");
    let explained = run.json();
    schema::assert_fits("explain", &explained);
    let below = &explained["below"];
    let sum = list(below, "/rows").iter().map(|row| number(row, "/bytes")).sum::<u64>();
    assert_eq!(sum, number(below, "/bytes"), "{what}: {below:#}");
    assert_eq!(sum, tree::du(path), "{what}: {} {below:#}", path.display());
    explained
}
