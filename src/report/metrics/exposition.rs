//! The text format of Prometheus, version 0.0.4: families, their samples, and how both are written.
//! Pure.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

use crate::model::names::names;
use crate::report::text::{CELL, safe, shorten};

names! {
    /// What a metric is to Prometheus.
    Type {
        /// It goes up and down.
        Gauge = "gauge",
        /// It only goes up, or starts again at 0.
        Counter = "counter",
    }
}

/// A metric: what its samples have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    /// Its name, with the unit at its end.
    pub name: &'static str,
    /// What it is to Prometheus.
    pub kind: Type,
    /// What it says, in a line; the same wherever it is printed.
    pub help: &'static str,
    /// The labels of its samples, in order.
    pub labels: &'static [&'static str],
}

/// All samples of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exposition {
    /// By the family's name and the labels as they are written: what would be said twice is said once,
    /// since a reader refuses the whole text otherwise.
    samples: BTreeMap<&'static str, BTreeMap<String, String>>,
}

impl Exposition {
    /// Adds a sample, with the values of the family's labels in their order. One with the same labels
    /// that is there already stays.
    pub fn add(&mut self, family: &Family, labels: &[&str], value: impl Display) {
        assert_eq!(labels.len(), family.labels.len(), "{}", family.name);
        let mut text = String::new();
        for (name, value) in family.labels.iter().zip(labels) {
            let separator = if text.is_empty() { "" } else { "," };
            // A String takes everything.
            let _ = write!(text, "{separator}{name}=\"{}\"", escaped(value));
        }
        self.samples.entry(family.name).or_default().entry(text).or_insert_with(|| value.to_string());
    }

    /// The text: `families` in their order, those without a sample left out.
    pub fn text(&self, families: &[&Family]) -> String {
        let mut text = String::new();
        for family in families {
            let Some(samples) = self.samples.get(family.name) else { continue };
            let (name, kind) = (family.name, family.kind);
            let help = family.help.replace('\\', "\\\\").replace('\n', "\\n");
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, value) in samples {
                let _ = match labels.is_empty() {
                    true => writeln!(text, "{name} {value}"),
                    false => writeln!(text, "{name}{{{labels}}} {value}"),
                };
            }
        }
        text
    }
}

/// A label's value between its quotes. It may be anybody's text, so what acts on a terminal, an end of line too, is
/// written out first. It is cut as in a table: a name is in many samples.
fn escaped(value: &str) -> String {
    shorten(&safe(value), CELL, "…").replace('\\', "\\\\").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FAMILY: Family =
        Family { name: "x_bytes", kind: Type::Gauge, help: "A \\ of\ntwo lines.", labels: &["a", "b"] };
    const PLAIN: Family = Family { name: "y_total", kind: Type::Counter, help: "Plain.", labels: &[] };

    #[test]
    fn families_are_written_once_and_in_order() {
        let mut page = Exposition::default();
        page.add(&FAMILY, &["2", ""], 7);
        page.add(&PLAIN, &[], 1);
        page.add(&FAMILY, &["1", "q\"\\"], 0.75);
        page.add(&FAMILY, &["2", ""], 8);
        assert_eq!(
            page.text(&[&PLAIN, &FAMILY]),
            "# HELP y_total Plain.\n# TYPE y_total counter\ny_total 1\n\
             # HELP x_bytes A \\\\ of\\ntwo lines.\n# TYPE x_bytes gauge\n\
             x_bytes{a=\"1\",b=\"q\\\"\\\\\"} 0.75\nx_bytes{a=\"2\",b=\"\"} 7\n"
        );
        assert_eq!(page.text(&[]), "");
    }

    #[test]
    fn long_values_are_cut() {
        let mut page = Exposition::default();
        page.add(&FAMILY, &[&format!("quay.io/{}\n:1", "x".repeat(500_000)), ""], 7);
        let text = page.text(&[&FAMILY]);
        assert!(text.len() < 1000 && text.contains("…xxx") && text.contains("x\\\\u{a}:1\""), "{text}");
    }

    type Labels = Vec<(String, String)>;

    /// A sample's line read as a reader does: name, labels, value.
    fn read(line: &str) -> Option<(String, Labels, String)> {
        let (name, rest) = line.split_once('{')?;
        let mut labels = Vec::new();
        let mut rest = rest.chars();
        loop {
            let label: String = rest.by_ref().take_while(|c| *c != '=').collect();
            if rest.next()? != '"' {
                return None;
            }
            let mut value = String::new();
            loop {
                match rest.next()? {
                    '"' => break,
                    '\\' => value.push(match rest.next()? {
                        'n' => '\n',
                        c @ ('\\' | '"') => c,
                        _ => return None,
                    }),
                    c => value.push(c),
                }
            }
            labels.push((label, value));
            match rest.next()? {
                ',' => {}
                '}' => break,
                _ => return None,
            }
        }
        let value = rest.as_str().strip_prefix(' ')?.to_owned();
        Some((name.to_owned(), labels, value))
    }

    proptest! {
        #[test]
        fn no_label_value_breaks_out(a in ".*|[\\\\\"\n\r{}=, #\u{202e}\u{1b}\u{0}]{0,20}", b in "\\PC*") {
            let mut page = Exposition::default();
            page.add(&FAMILY, &[&a, &b], 5);
            let text = page.text(&[&FAMILY]);
            let lines: Vec<_> = text.split('\n').collect();
            prop_assert_eq!(lines.len(), 4, "{}", text);
            prop_assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{}", text);
            let (name, labels, value) = read(lines[2]).unwrap();
            prop_assert_eq!((name.as_str(), value.as_str()), ("x_bytes", "5"));
            let expected = [("a", &a), ("b", &b)].map(|(name, value)| (name.to_owned(), safe(value)));
            prop_assert_eq!(labels, expected.to_vec());
        }
    }
}
