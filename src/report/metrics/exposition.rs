//! Text format of Prometheus, version 0.0.4: metric families, their samples, and their syntax.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

use crate::model::text::names::names;
use crate::report::text::{CELL, safe, shorten};

names! {
    Type {
        /// Value that can rise and fall.
        Gauge = "gauge",
        /// Value that only rises, or starts again at 0.
        Counter = "counter",
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    /// Name of the metric, which ends with the unit.
    pub name: &'static str,
    pub kind: Type,
    /// Description in one line, the same in every output.
    pub help: &'static str,
    /// Names of the labels, in their order.
    pub labels: &'static [&'static str],
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exposition {
    /// Values by family name and written labels. A map, because Prometheus rejects a text that contains the
    /// same sample twice.
    samples: BTreeMap<&'static str, BTreeMap<String, String>>,
}

impl Exposition {
    /// Adds a sample, with the values of the family's labels in their order. An existing sample with the same
    /// labels is kept.
    pub fn add(&mut self, family: &Family, labels: &[&str], value: impl Display) {
        assert_eq!(labels.len(), family.labels.len(), "{}", family.name);
        let mut text = String::new();
        for (name, value) in family.labels.iter().zip(labels) {
            let separator = if text.is_empty() { "" } else { "," };
            // Writing to a String cannot fail.
            let _ = write!(text, "{separator}{name}=\"{}\"", escaped(value));
        }
        self.samples.entry(family.name).or_default().entry(text).or_insert_with(|| value.to_string());
    }

    /// Writes the samples of `families` in their order, without families that have none.
    pub fn text(&self, families: &[&Family]) -> String {
        let mut text = String::new();
        for family in families {
            let Some(samples) = self.samples.get(family.name) else { continue };
            let (name, kind) = (family.name, family.kind);
            let help = family.help.replace('\\', "\\\\").replace('\n', "\\n");
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, value) in samples {
                let _ = if labels.is_empty() {
                    writeln!(text, "{name} {value}")
                } else {
                    writeln!(text, "{name}{{{labels}}} {value}")
                };
            }
        }
        text
    }
}

/// Escapes a label value. It can be text from an image, so characters that control a terminal, including ends
/// of lines, are escaped first. It is shortened as in a table, because a name occurs in many samples.
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
    fn families_are_written_in_order_without_duplicates() {
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
    fn long_label_values_are_shortened() {
        let mut page = Exposition::default();
        page.add(&FAMILY, &[&format!("quay.io/{}\n:1", "x".repeat(500_000)), ""], 7);
        let text = page.text(&[&FAMILY]);
        assert!(text.len() < 1000 && text.contains("…xxx") && text.contains("x\\\\u{a}:1\""), "{text}");
    }

    type Labels = Vec<(String, String)>;

    /// Parses a sample into name, labels and value, as Prometheus does.
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
        fn label_value_cannot_end_its_quotes(a in ".*|[\\\\\"\n\r{}=, #\u{202e}\u{1b}\u{0}]{0,20}", b in "\\PC*") {
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
