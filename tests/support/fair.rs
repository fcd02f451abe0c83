//! Columns that add up: fair shares to the stores, the rows and groups of `usage` to the filesystem, the
//! owners of `explain` to `du -x`.

use std::ffi::OsStr;
use std::path::Path;

use serde_json::Value;

use super::program::{self, list, number};
use super::{schema, tree};

/// Fair shares of images and containers, and what no image or container reaches, are the stores to the
/// byte.
pub fn assert_shares_add_up(scan: &Value, what: &str) {
    let sum = |of: &str| list(scan, of).iter().map(|one| number(one, "/fair_bytes")).sum::<u64>();
    let fair = &scan["fair_bytes"];
    let of = |part: &str| number(fair, &format!("/{part}"));
    assert_eq!((sum("/images"), sum("/containers")), (of("images"), of("containers")), "{what}: {fair:#}");
    let parts = ["images", "containers", "build_cache", "leaks", "metadata", "other"];
    assert_eq!(parts.map(of).iter().sum::<u64>(), of("total"), "{what}: {fair:#}");
    assert_eq!(of("total"), number(scan, "/totals/bytes"), "{what}: {fair:#}");
    for image in list(scan, "/images") {
        let [share, total, exclusive] =
            ["fair", "total", "exclusive"].map(|name| number(image, &format!("/{name}_bytes")));
        assert!(share <= total, "{what}: {image:#}");
        // What leaks reach besides is not exclusive.
        assert!(share >= exclusive, "{what}: {image:#}");
    }
}

/// Rows and groups of `usage` are what each filesystem says is used, to the byte. Returns the document of
/// `usage --by namespace`.
pub fn assert_usage_adds_up<S: AsRef<OsStr>>(flags: &[S], what: &str) -> Value {
    let usage = |by: &str| {
        let mut command = program::command();
        command.args(["usage", "--format", "json", "--by", by]).args(flags);
        let run = program::run(&mut command).expect_no_crash();
        assert!(matches!(run.code, 0 | 3), "{what}: {run:?}");
        let usage = run.json();
        schema::assert_fits("usage", &usage);
        for filesystem in list(&usage, "/filesystems") {
            let sum = |of: &str, field: &str| {
                list(filesystem, of).iter().map(|one| number(one, field)).sum::<u64>()
            };
            let used = number(filesystem, "/used_bytes");
            assert_eq!(sum("/rows", "/bytes"), used, "{what}: {filesystem:#}");
            assert_eq!(sum("/groups", "/fair_bytes"), used, "{what} by {by}: {filesystem:#}");
            let last = list(filesystem, "/groups").last().expect("closing rows");
            assert_eq!(last["kind"], "not_in_store", "{what} by {by}: {filesystem:#}");
            let outside = number(filesystem, "/not_in_store_bytes");
            assert!(number(last, "/fair_bytes").abs_diff(outside) < 64, "{what} by {by}: {filesystem:#}");
        }
        usage
    };
    ["repository", "registry", "owner", "namespace"].map(usage).into_iter().last().expect("four documents")
}

/// The owners that `explain` names at a path hold what `du -x` counts there, to the byte. Returns its
/// document.
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
