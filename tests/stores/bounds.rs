//! Hostile records of a user cost root little: each reader gets more than its limit.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test talks to its reader

use serde_json::Value;

use crate::support::program::{self, list, number, text};
use crate::support::{self, alice, store};

/// Kinds of records that `hostile_records.py` makes.
const KINDS: [&str; 17] = [
    "repeated-names",
    "names-of-two",
    "layers",
    "equal-ids",
    "chain",
    "images",
    "containers",
    "lists",
    "large-file",
    "lower",
    "directories",
    "mountpoints",
    "sqlite",
    "artifact-index",
    "artifacts",
    "configuration",
    "configuration-types",
];

/// Prints one JSON document for each kind: the output of the scan, its memory and its time.
const SCRIPT: &str = r#"
chmod 755 /home/alice
own=/var/lib/containers/storage
mkdir -p $own/overlay-layers $own/overlay-images $own/overlay-containers
echo '[{"id":"a","names":["localhost/root:1"]}]' >$own/overlay-images/images.json
for kind in $KINDS; do
    rm -rf /home/alice/.local /home/alice/.config /run/user/5001/containers
    python3 "$RIG" $kind /home/alice/.local/share/containers/storage /run/user/5001/containers
    chown -R 5001:5001 /home/alice /run/user/5001
    python3 - $kind $program <<'PY'
import json, resource, subprocess, sys
run = subprocess.run([sys.argv[2], "scan", "--format", "json", "--no-record"], capture_output=True, timeout=300)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
scan = json.loads(run.stdout)
print(json.dumps({
    "kind": sys.argv[1], "code": run.returncode, "kib": used.ru_maxrss, "seconds": int(used.ru_utime + used.ru_stime),
    "names": [name for image in scan["images"] for name in image["names"]],
    "leaks": len(scan["leaks"]), "warnings": [warning["message"] for warning in scan["warnings"]],
}))
PY
done
"#;

/// Returns `MemoryHigh=` of the unit in KiB: above it the kernel slows the process down.
fn memory_high_kib() -> u64 {
    let unit = include_str!("../../packaging/systemd/layersweep-gc.service");
    let value = unit.lines().find_map(|line| line.strip_prefix("MemoryHigh=")).unwrap();
    value.strip_suffix('M').unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn hostile_records_of_user_cost_root_little() {
    if !alice::require() || !support::require_program("python3") {
        return;
    }
    let mut command = alice::command(SCRIPT);
    command.env("KINDS", KINDS.join(" ")).env("RIG", store::rig("hostile_records.py"));
    let run = program::run(&mut command).expect_no_crash().expect_code(0);
    let results: Vec<Value> = run.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(results.len(), KINDS.len(), "{run:?}");
    for result in results {
        let kind = text(&result, "/kind");
        let figures = format!("{kind}: {} KiB, {} s", result["kib"], result["seconds"]);
        println!("{figures}");
        assert!(number(&result, "/kib") < memory_high_kib() * 2 / 3, "{figures}");
        assert!(number(&result, "/seconds") < 60, "{figures}");
        let names = program::texts(&result, "/names");
        assert!(
            names.iter().any(|name| name == "localhost/root:1"),
            "{kind}: root's store goes on: {result}"
        );
        // Within the limit: only the time matters.
        if kind == "lower" {
            continue;
        }
        let warnings = list(&result, "/warnings");
        assert!(!warnings.is_empty() && warnings.len() < 1100, "{kind}: {} warnings", warnings.len());
        let is_damage = number(&result, "/code") == 3 || kind.starts_with("configuration");
        assert!(is_damage, "{kind}: the store counts as damaged: {result}");
    }
}

/// Prints for each round the number of recorded images, the warnings about the records, and the exit code.
const ROUNDS: &str = r#"
chmod 755 /home/alice
store=/home/alice/.local/share/containers/storage
mkdir -p $store/overlay-layers $store/overlay-images $store/overlay-containers $store/overlay
for round in 1 2 3 4 5; do
    python3 - $store/overlay-images/images.json <<'PY'
import json, secrets, sys
images = [{"id": secrets.token_hex(32), "names": [f"localhost/x{n}:1"], "created": "2026-01-01T00:00:00Z"}
          for n in range(3000)]
json.dump(images, open(sys.argv[1], "w"))
PY
    chown -R 5001:5001 /home/alice
    python3 - $program <<'PY'
import json, sqlite3, subprocess, sys
run = subprocess.run([sys.argv[1], "scan", "--format", "json", "--state-dir", "/root/state"], capture_output=True)
count = lambda: sqlite3.connect("/root/state/layersweep.db").execute("SELECT count(*) FROM images").fetchone()[0]
warnings = [warning["message"] for warning in json.loads(run.stdout)["warnings"]]
left_out = [message for message in warnings if "not recorded" in message]
diff = subprocess.run([sys.argv[1], "diff", "--format", "json", "--state-dir", "/root/state"], capture_output=True)
print(json.dumps({"images": count(), "left_out": left_out, "diff": len(diff.stdout)}))
PY
done
"#;

#[test]
fn renewed_images_of_user_fill_no_database() {
    if !alice::require() || !support::require_program("python3") {
        return;
    }
    let run = alice::run(ROUNDS);
    let rounds: Vec<Value> = run.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rounds.len(), 5, "{run:?}");
    for round in &rounds {
        assert_eq!(number(round, "/images"), 2000, "{round}");
        assert_eq!(list(round, "/left_out").len(), 1, "{round}");
    }
}
