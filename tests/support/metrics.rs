//! Metrics as Prometheus reads them, and what promtool thinks of them.
#![allow(clippy::unwrap_used)] // a test talks to its reader

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

use regex::Regex;

/// Labels of a sample.
pub type Labels = BTreeMap<String, String>;

/// An answer, read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scrape {
    /// Types of families by name.
    pub types: BTreeMap<String, String>,
    /// Samples by name.
    pub samples: BTreeMap<String, Vec<(Labels, f64)>>,
}

impl Scrape {
    /// Reads the text format, strictly: families in one piece, each sample once.
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
                .map(|one| (one[1].to_owned(), one[2].replace("\\\"", "\"").replace("\\\\", "\\")))
                .collect();
            let samples = scrape.samples.entry(family.clone()).or_default();
            assert!(samples.iter().all(|(other, _)| *other != labels), "twice: {line}");
            samples.push((labels, parts[3].parse().unwrap()));
        }
        scrape
    }

    /// Samples of `layersweep_<name>` that have these labels, among others.
    pub fn all<'a>(
        &'a self,
        name: &str,
        labels: &'a [(&str, &str)],
    ) -> impl Iterator<Item = (&'a Labels, f64)> {
        let samples = self.samples.get(&format!("layersweep_{name}"));
        let wanted = move |has: &Labels| {
            labels.iter().all(|(name, value)| has.get(*name).map_or("", String::as_str) == *value)
        };
        let samples = samples.into_iter().flatten().filter(move |(has, _)| wanted(has));
        samples.map(|(labels, value)| (labels, *value))
    }

    /// Their sum.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.all(name, labels).map(|(_, value)| value).sum()
    }

    /// The only one.
    pub fn one(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let found: Vec<_> = self.all(name, labels).collect();
        assert_eq!(found.len(), 1, "{name} {labels:?}: {found:?}");
        found[0].1
    }

    /// Counters, by name and labels.
    pub fn counters(&self) -> BTreeMap<(String, Labels), f64> {
        let counters = self.samples.iter().filter(|(name, _)| self.types[*name] == "counter");
        let each = counters.flat_map(|(name, samples)| {
            samples.iter().map(move |(labels, value)| ((name.clone(), labels.clone()), *value))
        });
        each.collect()
    }
}

/// Fails if promtool has anything to say of metrics.
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
