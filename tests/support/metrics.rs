//! Parses metrics as Prometheus does, and checks them with promtool.
#![allow(clippy::unwrap_used)] // a test talks to its reader

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

use regex::Regex;
use serde_json::Value;

use super::program::{list, number, text};

/// Labels of a sample by name.
pub type Labels = BTreeMap<String, String>;

/// Parsed metrics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scrape {
    /// Types of families by name.
    pub types: BTreeMap<String, String>,
    /// Samples by name.
    pub samples: BTreeMap<String, Vec<(Labels, f64)>>,
}

impl Scrape {
    /// Parses the text format strictly: each family in one piece, each sample once.
    pub fn read(text: &str) -> Self {
        let sample = Regex::new(r#"^([a-z_]+)(?:\{(.*)\})? (\S+)$"#).unwrap();
        let label = Regex::new(r#"([a-z_]+)="((?:[^"\\]|\\.)*)",?"#).unwrap();
        let mut scrape = Self::default();
        let mut family = String::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                family = rest.split(' ').next().unwrap().to_owned();
                assert!(!scrape.types.contains_key(&family), "twice: {line}");
                continue;
            }
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert_eq!(name, family, "{line}");
                scrape.types.insert(name.to_owned(), kind.to_owned());
                continue;
            }
            let parts = sample.captures(line).unwrap_or_else(|| panic!("no sample: {line}"));
            assert_eq!(&parts[1], family, "{line}");
            let all = parts.get(2).map_or("", |all| all.as_str());
            let labels: Labels = label
                .captures_iter(all)
                .map(|found| (found[1].to_owned(), found[2].replace("\\\"", "\"").replace("\\\\", "\\")))
                .collect();
            let samples = scrape.samples.entry(family.clone()).or_default();
            assert!(samples.iter().all(|(other, _)| *other != labels), "twice: {line}");
            samples.push((labels, parts[3].parse().unwrap()));
        }
        scrape
    }

    /// Returns the samples of `layersweep_<name>` that have at least these labels.
    pub fn all<'a>(
        &'a self,
        name: &str,
        labels: &'a [(&str, &str)],
    ) -> impl Iterator<Item = (&'a Labels, f64)> {
        let samples = self.samples.get(&format!("layersweep_{name}"));
        let samples = samples.into_iter().flatten().filter(move |(has, _)| {
            labels.iter().all(|(name, value)| has.get(*name).map_or("", String::as_str) == *value)
        });
        samples.map(|(labels, value)| (labels, *value))
    }

    /// Returns the sum of these samples.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.all(name, labels).map(|(_, value)| value).sum()
    }

    /// Returns the value of the only sample.
    pub fn one(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let found: Vec<_> = self.all(name, labels).collect();
        assert_eq!(found.len(), 1, "{name} {labels:?}: {found:?}");
        found[0].1
    }

    /// Counters by name and labels.
    pub fn counters(&self) -> BTreeMap<(String, Labels), f64> {
        let counters = self.samples.iter().filter(|(name, _)| self.types[*name] == "counter");
        let each = counters.flat_map(|(name, samples)| {
            samples.iter().map(move |(labels, value)| ((name.clone(), labels.clone()), *value))
        });
        each.collect()
    }
}

/// Fails if promtool reports a problem.
pub fn check(text: &str) {
    let mut command = Command::new("promtool");
    let mut child = command
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said =
        [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    assert!(output.status.success() && said.is_empty(), "{said}\n{text}");
}

/// Converts a number to the type of a sample.
#[allow(clippy::cast_precision_loss)] // small figures
pub fn float(number: u64) -> f64 {
    number as f64
}

/// Checks that every figure of the metrics is that of the scan.
pub fn assert_same(scrape: &Scrape, scan: &Value) {
    let stores = list(scan, "/stores");
    assert!(!stores.is_empty());
    assert_eq!(scrape.all("scan_complete", &[]).count(), stores.len());
    for store in stores {
        let root = text(store, "/root");
        let is = [("store", root), ("driver", text(store, "/driver"))];
        let with = |name: &'static str, value| [is[0], is[1], (name, value)];
        let mut total = 0.0;
        for kind in ["images", "containers", "build_cache", "leaks", "metadata", "other"] {
            let bytes = scrape.one("storage_bytes", &with("kind", kind));
            assert_eq!(bytes, float(number(store, &format!("/bytes/{kind}"))), "{kind}");
            total += bytes;
        }
        assert_eq!(total, float(number(store, "/bytes/total")));
        assert_eq!(scrape.sum("storage_bytes", &is), total, "no other kind");
        assert_eq!(scrape.one("storage_reclaimable_bytes", &is), float(number(store, "/reclaimable_bytes")));
        assert_eq!(scrape.one("layers", &is), float(number(store, "/layers")));
        let images = list(scan, "/images").iter().filter(|image| image["store"] == root);
        let (mut used, mut pinned, mut unused) = (0, 0, 0);
        for image in images {
            match (image["in_use"] == true, image["pinned"] == true) {
                (true, _) => used += 1,
                (false, true) => pinned += 1,
                (false, false) => unused += 1,
            }
        }
        for (state, count) in [("in_use", used), ("pinned", pinned), ("unused", unused), ("read_only", 0)] {
            assert_eq!(scrape.one("images", &with("state", state)), float(count), "{state}");
        }
        for state in ["created", "running", "exited", "unknown"] {
            let containers = list(scan, "/containers").iter();
            let count = containers
                .filter(|container| container["store"] == root && container["state"] == state)
                .count();
            assert_eq!(scrape.one("containers", &with("state", state)), float(count as u64), "{state}");
        }
        let leaks: Vec<_> = list(scan, "/leaks").iter().filter(|leak| leak["store"] == root).collect();
        assert_eq!(scrape.sum("leaks", &is), float(leaks.len() as u64));
        for leak in leaks {
            let (class, verdict) = (text(leak, "/class"), text(leak, "/verdict"));
            let labels = [is[0], is[1], ("class", class), ("verdict", verdict)];
            let same = list(scan, "/leaks").iter().filter(|other| {
                other["store"] == root && other["class"] == class && other["verdict"] == verdict
            });
            let bytes: u64 = same.clone().map(|leak| number(leak, "/bytes")).sum();
            assert_eq!(scrape.one("leaks", &labels), float(same.count() as u64), "{class}");
            assert_eq!(scrape.one("leak_bytes", &labels), float(bytes), "{class}");
        }
        assert_eq!(scrape.one("scan_complete", &is), f64::from(u8::from(scan["complete"] == true)));
        let took = scan["scan"]["seconds"].as_f64().unwrap();
        assert!((scrape.one("scan_duration_seconds", &is) - took).abs() < 0.01);
        let info = [is[0], is[1], ("kind", text(store, "/kind")), ("mountpoint", text(store, "/filesystem"))];
        assert_eq!(scrape.one("store_info", &info), 1.0);
        let age = jiff::Timestamp::now().as_second() - scrape.one("scan_timestamp_seconds", &is) as i64;
        assert!((0..300).contains(&age), "scanned {age} s ago");
    }
    assert_eq!(scrape.sum("storage_inodes", &[]), float(number(scan, "/totals/inodes")));
    assert_eq!(scrape.sum("images", &[]), float(number(scan, "/totals/images")));
    for filesystem in list(scan, "/filesystems") {
        let mount = [("mountpoint", text(filesystem, "/mount"))];
        assert_eq!(scrape.one("filesystem_size_bytes", &mount), float(number(filesystem, "/capacity_bytes")));
        let avail = scrape.one("filesystem_avail_bytes", &mount);
        assert!(avail > 0.0 && avail <= scrape.one("filesystem_size_bytes", &mount));
    }
}
