//! Damaged and hostile stores: a clear warning, exit code 3, the rest is still read, and never a crash.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)] // a test talks to its reader

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support;
use support::archive::Noise;
use support::program::{self, Run, list, number, text};
use support::store::{self, Store};
use support::{small, tree};

/// A store and its record files as podman wrote them.
struct Bed {
    _dir: tempfile::TempDir,
    store: Store,
    records: Vec<(&'static str, Vec<u8>)>,
}

const RECORDS: [&str; 3] = ["layers.json", "images.json", "containers.json"];

impl Bed {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = small::still(&dir.path().join("root"));
        let records = RECORDS.map(|name| (name, std::fs::read(store.record(name)).unwrap())).into();
        Self { _dir: dir, store, records }
    }

    fn parsed(&self, name: &str) -> Value {
        let found = self.records.iter().find(|(record, _)| *record == name);
        serde_json::from_slice(&found.unwrap().1).unwrap()
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.store.record(name), bytes).unwrap();
    }

    fn restore(&self) {
        for (name, bytes) in &self.records {
            self.write(name, bytes);
        }
    }

    /// Runs a scan that must not crash or hang, and whose output must be JSON.
    fn scan(&self) -> (Run, Value) {
        let run = self.store.run("scan").expect_no_crash();
        assert!(matches!(run.code, 0 | 3), "{run:?}");
        assert!(run.took < Duration::from_secs(20), "{run:?}");
        let scan = run.json();
        (run, scan)
    }
}

/// A way to damage a record file.
struct Damage {
    what: &'static str,
    make: fn(&[u8]) -> Vec<u8>,
}

const DAMAGES: [Damage; 8] = [
    Damage { what: "cut in half", make: |bytes| bytes[..bytes.len() / 2].to_vec() },
    Damage { what: "zeroed, as a power cut leaves it on XFS", make: |bytes| vec![0; bytes.len()] },
    Damage { what: "an object in place of the array", make: |_| b"{}".to_vec() },
    Damage { what: "an array of texts", make: |_| br#"["x","y"]"#.to_vec() },
    Damage {
        what: "an array in which every field has the wrong type",
        make: |_| br#"[{"id":5,"names":"x","parent":[],"layer":{},"image":7}]"#.to_vec(),
    },
    Damage { what: "records without an id", make: |_| br#"[{"names":["x"]},{}]"#.to_vec() },
    Damage { what: "nested a hundred thousand deep", make: |_| b"[".repeat(100_000) },
    Damage { what: "not UTF-8", make: |bytes| bytes.iter().map(|byte| byte | 0x80).collect() },
];

#[test]
fn damaged_record_file_is_named() {
    if !store::require_tools() {
        return;
    }
    let bed = Bed::new();
    let (_, whole) = bed.scan();
    for (name, bytes) in &bed.records {
        for damage in &DAMAGES {
            let what = format!("{name}: {}", damage.what);
            bed.write(name, &(damage.make)(bytes));
            let (run, scan) = bed.scan();
            assert_eq!(run.code, 3, "{what}: {run:?}");
            let path = bed.store.record(name);
            let warnings = list(&scan, "/warnings");
            let mut lines = warnings.iter().map(Value::to_string);
            assert!(lines.any(|line| line.contains(path.to_str().unwrap())), "{what}: {warnings:#?}");
            let table = program::layersweep(["usage".as_ref(), "--graphroot".as_ref(), bed.store.root()]);
            assert_eq!(table.code, 3, "{what}: {table:?}");
            let full = ["--high", "1", "--low", "1", "--min-age", "0s", "--via", "direct", "--dry-run"];
            let mut words: Vec<&std::ffi::OsStr> = vec!["gc".as_ref(), "--graphroot".as_ref()];
            words.push(bed.store.root().as_ref());
            words.extend(full.iter().map(std::ffi::OsStr::new));
            let collected = program::layersweep(words);
            assert!(matches!(collected.code, 3 | 5), "{what}: not everything worked: {collected:?}");
            let said = table.stdout.clone() + &table.stderr;
            assert!(said.contains(path.to_str().unwrap()), "{what}: {table:?}");
            for (kind, record) in [("layers", "layers.json"), ("images", "images.json")] {
                if record != *name {
                    let pointer = format!("/{kind}");
                    assert_eq!(list(&scan, &pointer).len(), list(&whole, &pointer).len(), "{what}: {kind}");
                }
            }
            nothing_is_doomed(&scan, &what);
            sum_is_du(&bed, &scan, &what);
            bed.restore();
        }
    }
    let (run, _) = bed.scan();
    assert_eq!(run.code, 0, "{run:?}");
}

/// Checks that no leak is reclaimable: this store has no garbage, whatever a damaged file does not name.
fn nothing_is_doomed(scan: &Value, what: &str) {
    for leak in list(scan, "/leaks") {
        assert_ne!(leak["verdict"], "reclaim", "{what}: {leak:#}");
        // A container whose image or layer is in the unread part is not broken either.
        let missing = text(leak, "/class") == "inconsistent" && text(leak, "/path").contains("-containers/");
        assert!(!missing, "{what}: {leak:#}");
    }
}

fn sum_is_du(bed: &Bed, scan: &Value, what: &str) {
    let total = number(scan, "/stores/0/bytes/total");
    assert_eq!(total, tree::du(bed.store.root()), "{what}");
}

#[test]
fn oversized_record_file_is_not_read() {
    if !store::require_tools() {
        return;
    }
    let bed = Bed::new();
    let images = bed.store.record("images.json");
    let file = std::fs::File::options().write(true).open(images).unwrap();
    file.set_len(8 << 30).unwrap();
    let (run, scan) = bed.scan();
    assert_eq!(run.code, 3, "{run:?}");
    nothing_is_doomed(&scan, "8 GiB of zeros");
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_CHILDREN);
    let peak_kib = usage.unwrap().max_rss(); // of any child so far: podman's included
    assert!(peak_kib < 600 << 10, "{peak_kib} KiB");
}

/// Records that are JSON of the right shape and still contradict themselves. They must not lead the program out of the
/// store, into a loop, or to a wrong sum.
#[test]
fn contradictory_records_are_reported() {
    if !store::require_tools() {
        return;
    }
    let bed = Bed::new();
    let layers = bed.parsed("layers.json");
    let count = layers.as_array().unwrap().len();
    let ids: Vec<String> = (0..count).map(|n| text(&layers[n], "/id").to_owned()).collect();
    let edits: Vec<(&str, &str, Value)> = vec![
        ("a layer is its own parent", "layers.json", {
            let mut cycle = layers.clone();
            cycle[0]["parent"] = json!(ids[0]);
            cycle
        }),
        ("parents in a ring", "layers.json", {
            let mut ring = layers.clone();
            for n in 0..count {
                ring[n]["parent"] = json!(ids[(n + 1) % count]);
            }
            ring
        }),
        ("every layer twice", "layers.json", {
            let twice = layers.as_array().unwrap().iter();
            Value::Array(twice.clone().chain(twice).cloned().collect())
        }),
        ("every image twice", "images.json", {
            let images = bed.parsed("images.json");
            let twice = images.as_array().unwrap().iter();
            Value::Array(twice.clone().chain(twice).cloned().collect())
        }),
        ("ids that lead out", "layers.json", {
            let mut out = layers.clone();
            for (n, id) in
                ["../../../../../etc", "..", "", "/", "a/../../b", "l"].iter().enumerate().take(count)
            {
                out[n]["id"] = json!(id);
            }
            out
        }),
        ("an image whose id leads out", "images.json", {
            let mut out = bed.parsed("images.json");
            out[0]["id"] = json!("../../../../../../../etc");
            out[1]["layer"] = json!("../../../../../../usr");
            out
        }),
        ("a container whose ids lead out", "containers.json", {
            let mut out = bed.parsed("containers.json");
            out[0]["id"] = json!("../../../../../../etc");
            out[0]["layer"] = json!("../..");
            out
        }),
        ("sizes beyond reason", "layers.json", {
            let mut huge = layers.clone();
            for n in 0..count {
                huge[n]["diff-size"] = json!(i64::MAX);
                huge[n]["compressed-size"] = json!(-1);
            }
            huge
        }),
    ];
    for (what, name, edited) in edits {
        bed.write(name, edited.to_string().as_bytes());
        let (_, scan) = bed.scan();
        sum_is_du(&bed, &scan, what);
        fn outside(bed: &Bed, node: &&Value) -> bool {
            let path = node["path"].as_str().unwrap_or_default();
            path.contains("..") || (!path.is_empty() && !inside(path, bed.store.root()))
        }
        let leaks = list(&scan, "/leaks");
        assert!(!leaks.iter().any(|leak| outside(&bed, &leak)), "{what}: {leaks:#?}");
        for command in ["images", "layers", "usage"] {
            let run = bed.store.run(command).expect_no_crash();
            assert!(matches!(run.code, 0 | 3), "{what}: {command}: {run:?}");
        }
        bed.restore();
    }
}

fn inside(path: &str, root: &Path) -> bool {
    Path::new(path).starts_with(root)
}

#[test]
fn foreign_names_are_escaped() {
    if !store::require_tools() || !support::require_program("script") {
        return;
    }
    let bed = Bed::new();
    let mut images = bed.parsed("images.json");
    images[0]["names"] = json!(["localhost/\u{1b}[31mred\u{7}\u{9b}2J:1", "x/\u{202e}gpj.y:1"]);
    bed.write("images.json", images.to_string().as_bytes());
    for command in ["images", "scan", "layers"] {
        let mut line = format!(
            "{} {command} --graphroot {} --runroot {}",
            env!("CARGO_BIN_EXE_layersweep"),
            bed.store.root().display(),
            bed.store.runroot().display()
        );
        if command == "scan" {
            line += " --no-record";
        }
        line += " --color never --no-progress";
        let mut terminal = bed.store.command("script");
        terminal.args(["-q", "-e", "-c", &line, "/dev/null"]);
        let run = program::run(&mut terminal).expect_no_crash();
        for character in ['\u{1b}', '\u{7}', '\u{9b}', '\u{202e}'] {
            assert!(!run.stdout.contains(character), "{command}: {run:?}");
        }
        if command == "images" {
            assert!(run.stdout.contains("red"), "{run:?}");
        }
    }
}

/// A failure prints the seed; `HOSTILE_SEED` repeats it.
#[test]
fn random_damage_never_crashes() {
    if !store::require_tools() {
        return;
    }
    let bed = Bed::new();
    let seed = std::env::var("HOSTILE_SEED").unwrap_or_else(|_| {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
        now.as_nanos().to_string()
    });
    println!("HOSTILE_SEED={seed}");
    let mut noise = Noise::new(&seed);
    for _ in 0..60 {
        let files = 1 + noise.below(2);
        let mut damaged = Vec::new();
        for _ in 0..files {
            let (name, bytes) = &bed.records[usize::try_from(noise.below(3)).unwrap()];
            let bytes = mutate(bytes, &mut noise);
            bed.write(name, &bytes);
            damaged.push((name, String::from_utf8_lossy(&bytes).into_owned()));
        }
        let command =
            ["scan", "images", "layers", "usage", "waste"][usize::try_from(noise.below(5)).unwrap()];
        let run = bed.store.run(command);
        let fine = matches!(run.code, 0 | 3)
            && !run.stderr.contains("panicked")
            && run.took < Duration::from_secs(30)
            && serde_json::from_str::<Value>(&run.stdout).is_ok();
        assert!(fine, "seed {seed}: {command}: {run:?}\non {damaged:#?}");
        bed.restore();
    }
}

/// Makes a few random edits, some of bytes, some that keep the JSON valid.
fn mutate(bytes: &[u8], noise: &mut Noise) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=noise.below(4) {
        let start = usize::try_from(noise.below(bytes.len() as u64)).unwrap();
        match noise.below(7) {
            0 => bytes[start] ^= 1 << noise.below(8),
            1 => bytes.truncate(start.max(1)),
            2 => bytes[start] = b"\"{}[]:,0-\\\n\0"[usize::try_from(noise.below(12)).unwrap()],
            3 => {
                let end = (start + usize::try_from(noise.below(200)).unwrap()).min(bytes.len());
                bytes[start..end].fill(0);
            }
            4 => {
                let end = (start + usize::try_from(noise.below(300)).unwrap()).min(bytes.len());
                let piece = bytes[start..end].to_vec();
                let to = usize::try_from(noise.below(bytes.len() as u64)).unwrap();
                bytes.splice(to..to, piece);
            }
            5 => swap_values(&mut bytes, noise),
            _ => drop_field(&mut bytes, noise),
        }
    }
    bytes
}

/// Replaces the value of one field with that of another, if the bytes are still JSON.
fn swap_values(bytes: &mut Vec<u8>, noise: &mut Noise) {
    let Ok(Value::Array(mut records)) = serde_json::from_slice(bytes) else {
        return;
    };
    let odd = [
        json!(null),
        json!(-1),
        json!(1e300),
        json!("../.."),
        json!([[], {}]),
        json!({"a": "b"}),
        json!("0001-01-01T00:00:00Z"),
        json!("9999-99-99T99:99:99Z"),
        json!("x".repeat(70_000)),
    ];
    if let Some(fields) = pick(&mut records, noise).and_then(Value::as_object_mut) {
        let mut values: Vec<&mut Value> = fields.values_mut().collect();
        if let Some(value) = pick(&mut values, noise) {
            **value = odd[usize::try_from(noise.below(odd.len() as u64)).unwrap()].clone();
        }
    }
    *bytes = Value::Array(records).to_string().into_bytes();
}

fn drop_field(bytes: &mut Vec<u8>, noise: &mut Noise) {
    let Ok(Value::Array(mut records)) = serde_json::from_slice(bytes) else {
        return;
    };
    if let Some(fields) = pick(&mut records, noise).and_then(Value::as_object_mut) {
        let keys: Vec<String> = fields.keys().cloned().collect();
        if !keys.is_empty() {
            let key = usize::try_from(noise.below(keys.len() as u64)).unwrap();
            fields.remove(&keys[key]);
        }
    }
    *bytes = Value::Array(records).to_string().into_bytes();
}

fn pick<'a, T>(items: &'a mut [T], noise: &mut Noise) -> Option<&'a mut T> {
    let position = usize::try_from(noise.below(items.len() as u64)).unwrap();
    items.get_mut(position)
}
