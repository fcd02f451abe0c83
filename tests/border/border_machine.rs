//! No test depends on the machine: those that read most of it also pass on a node with misleading configuration
//! (`tests/hermetic.sh`).

use std::path::Path;
use std::process::Command;

use crate::support;
use support::program;

/// Runs the tests whose names begin with `$1`, each in a process of its own.
const EACH: &str = r#"
count=0
for test in $("$0" --list --format terse "$1" | sed -n 's/: test$//p'); do
    "$0" --exact "$test" 2>&1 || exit 1
    count=$((count + 1))
done
echo "$count tests"
"#;

fn pass_on_misleading_node(module: &str, count: usize) {
    if !support::require_root() || !support::require_program("unshare") {
        return;
    }
    let mut node = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hermetic.sh"));
    node.args(["sh", "-c", EACH]).arg(std::env::current_exe().expect("this program")).arg(module);
    let run = program::run(&mut node).expect_code(0);
    assert!(run.stdout.ends_with(&format!("\n{count} tests\n")), "{run:?}");
}

#[test]
fn protection_ignores_the_machine() {
    pass_on_misleading_node("gc::protection::", 5);
}

#[test]
fn diff_ignores_the_machine() {
    pass_on_misleading_node("history::diff_command::", 3);
}

#[test]
fn fixtures_ignore_the_machine() {
    pass_on_misleading_node("stores::fixtures_read::", 2);
}
