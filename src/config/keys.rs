//! Every key there is, what its value looks like, and the settings that were made.

use std::collections::BTreeMap;
use std::path::PathBuf;

use jiff::SignedDuration;

use super::{Flag, Origin, Problem, values};
use crate::cri::Endpoint;
use crate::policy::Pattern;

/// A key of the configuration.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its full name: `images.high_percent`.
    pub name: &'static str,
    /// What its value looks like.
    pub kind: Kind,
    /// What it means, in a line.
    pub meaning: &'static str,
}

/// What a value looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A whole number from 0 to 100; `"off"` where that is allowed.
    Percent {
        /// It may be off.
        off: bool,
    },
    /// `"90s"`, `"14d"`; `"off"` where that is allowed.
    Duration {
        /// It may be off.
        off: bool,
    },
    /// `"10GiB"`, or bytes as a number; or `"off"`.
    Size,
    /// A whole number.
    Count,
    /// A whole number, or `"off"`.
    Limit,
    /// `true` or `false`.
    Truth,
    /// One of some words.
    Word(&'static [&'static str]),
    /// An absolute path; `"off"` where that is allowed.
    Path {
        /// It may be off.
        off: bool,
    },
    /// `"auto"`, `"off"` or an absolute path.
    AutoPath,
    /// A runtime's socket.
    Endpoint,
    /// A list of absolute paths.
    Paths,
    /// A list of globs on full references; adds up.
    Patterns,
    /// A list of `key` or `key=value`; adds up.
    Labels,
}

/// All keys, by name.
pub const KEYS: &[Key] = &[
    key("containers.enabled", Kind::Truth, "collect dead containers and sandboxes too"),
    key("containers.logs", Kind::Truth, "collect logs of pods that are gone; default: as enabled"),
    key("containers.max_per_unit", Kind::Limit, "keep so many dead containers of each in a pod"),
    key("containers.max_total", Kind::Limit, "keep so many dead containers on the node"),
    key("containers.min_age", Kind::Duration { off: false }, "collect nothing that died later"),
    key("images.free_until", Kind::Size, "delete until so much is available; default: min_free"),
    key("images.high_percent", Kind::Percent { off: true }, "delete from this share of used bytes on"),
    key(
        "images.inodes_high_percent",
        Kind::Percent { off: true },
        "delete from this share of used inodes on",
    ),
    key("images.inodes_low_percent", Kind::Percent { off: false }, "and until this; default: 5 below"),
    key("images.low_percent", Kind::Percent { off: false }, "delete until this share of used bytes"),
    key("images.max_age", Kind::Duration { off: true }, "delete what has been idle for longer"),
    key("images.min_age", Kind::Duration { off: false }, "delete nothing that came later"),
    key("images.min_free", Kind::Size, "delete if less than this is available"),
    key("images.policy", Kind::Word(&["exact", "kubelet"]), "whose rules decide"),
    key("kubelet.container_logs_dir", Kind::Path { off: false }, "where links to logs of containers lie"),
    key("kubelet.pod_logs_dir", Kind::Path { off: false }, "where logs of pods lie"),
    key("kubelet.root_dir", Kind::Path { off: false }, "the kubelet's own directory"),
    key("leaks.delete", Kind::Truth, "delete leaks that are proven safe"),
    key("leaks.min_age", Kind::Duration { off: false }, "but none younger than this"),
    key("metrics.textfile", Kind::AutoPath, "where node_exporter finds our metrics"),
    key("protect.keep_newest", Kind::Count, "keep so many of the newest images of each repository"),
    key("protect.labels", Kind::Labels, "keep images that have one of these labels"),
    key("protect.names", Kind::Patterns, "keep images with a name that matches one of these"),
    key("protect.static_pods", Kind::Path { off: true }, "keep images that pods defined here name"),
    key("state_dir", Kind::Path { off: false }, "where the database lives"),
    key("stores.containerd_root", Kind::Paths, "read these roots of containerd"),
    key("stores.cri_endpoint", Kind::Endpoint, "the socket of the runtime"),
    key("stores.graphroot", Kind::Paths, "read these graphroots"),
    key("stores.runroot", Kind::Path { off: false }, "the runroot that belongs to the graphroot"),
    key("trust_pid_namespace", Kind::Truth, "all processes that can use the stores are in our PID namespace"),
];

const fn key(name: &'static str, kind: Kind, meaning: &'static str) -> Key {
    Key { name, kind, meaning }
}

/// The key of a name.
pub(super) fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// A value. `None` in it means off.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Percent(Option<u8>),
    Duration(Option<SignedDuration>),
    Size(Option<u64>),
    Count(usize),
    Limit(Option<usize>),
    Truth(bool),
    Text(String),
    Path(Option<PathBuf>),
    Paths(Vec<PathBuf>),
    Patterns(Vec<Pattern>),
    Labels(Vec<(String, Option<String>)>),
}

/// What a file or a flag has for a value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Raw<'a> {
    Integer(i64),
    Truth(bool),
    Text(&'a str),
}

impl Kind {
    /// Whether it is a list.
    #[must_use]
    pub fn is_list(self) -> bool {
        matches!(self, Self::Paths | Self::Patterns | Self::Labels)
    }

    /// Whether lists from several files add up.
    fn adds_up(self) -> bool {
        matches!(self, Self::Patterns | Self::Labels)
    }

    /// The value, or one element of a list; what is wrong with it otherwise.
    pub(super) fn value(self, raw: Raw<'_>) -> Result<Value, String> {
        match (self, raw) {
            (Self::Percent { off: true }, Raw::Text("off")) => Ok(Value::Percent(None)),
            (Self::Percent { .. }, Raw::Integer(number)) => match u8::try_from(number) {
                Ok(percent @ 0..=100) => Ok(Value::Percent(Some(percent))),
                _ => Err(format!("{number} is not within 0 and 100")),
            },
            (Self::Duration { off: true }, Raw::Text("off")) => Ok(Value::Duration(None)),
            (Self::Duration { .. }, Raw::Text(text)) => {
                values::duration(text).map(|duration| Value::Duration(Some(duration)))
            }
            (Self::Size, Raw::Text("off")) => Ok(Value::Size(None)),
            (Self::Size, Raw::Text(text)) => values::size(text).map(|bytes| Value::Size(Some(bytes))),
            (Self::Size, Raw::Integer(bytes)) => match u64::try_from(bytes) {
                Ok(bytes) => Ok(Value::Size(Some(bytes))),
                Err(_) => Err(format!("{bytes} is no size")),
            },
            (Self::Count, Raw::Integer(number)) => match usize::try_from(number) {
                Ok(count) => Ok(Value::Count(count)),
                Err(_) => Err(format!("{number} is no number of images")),
            },
            (Self::Limit, Raw::Text("off")) => Ok(Value::Limit(None)),
            (Self::Limit, Raw::Integer(number)) => match usize::try_from(number) {
                Ok(limit) => Ok(Value::Limit(Some(limit))),
                Err(_) => Err(format!("{number} is no limit; \"off\" is none")),
            },
            (Self::Truth, Raw::Truth(truth)) => Ok(Value::Truth(truth)),
            (Self::Word(words), Raw::Text(text)) if words.contains(&text) => Ok(Value::Text(text.into())),
            (Self::Path { off: true }, Raw::Text("off")) => Ok(Value::Path(None)),
            (Self::AutoPath, Raw::Text("auto")) => Ok(Value::Text("auto".into())),
            (Self::AutoPath, Raw::Text("off")) => Ok(Value::Path(None)),
            (Self::Path { .. } | Self::AutoPath, Raw::Text(text)) => {
                absolute(text).map(|path| Value::Path(Some(path)))
            }
            (Self::Paths, Raw::Text(text)) => absolute(text).map(|path| Value::Paths(vec![path])),
            (Self::Endpoint, Raw::Text(text)) => match text.parse::<Endpoint>() {
                Ok(_) => Ok(Value::Text(text.into())),
                Err(error) => Err(error.to_string()),
            },
            (Self::Patterns, Raw::Text(text)) => match Pattern::new(text) {
                Ok(pattern) => Ok(Value::Patterns(vec![pattern])),
                Err(error) => Err(format!("{text:?} is no pattern: {error}")),
            },
            (Self::Labels, Raw::Text(text)) => {
                let (key, value) = match text.split_once('=') {
                    Some((key, value)) => (key, Some(value.to_owned())),
                    None => (text, None),
                };
                if key.is_empty() {
                    return Err(format!("{text:?} names no label"));
                }
                Ok(Value::Labels(vec![(key.to_owned(), value)]))
            }
            (_, raw) => Err(format!("{raw} is not {}", self.wanted())),
        }
    }

    /// An empty list of this kind.
    pub(super) fn no_elements(self) -> Option<Value> {
        match self {
            Self::Paths => Some(Value::Paths(vec![])),
            Self::Patterns => Some(Value::Patterns(vec![])),
            Self::Labels => Some(Value::Labels(vec![])),
            _ => None,
        }
    }

    /// What a value is to be, in words.
    pub(super) fn wanted(self) -> String {
        match self {
            Self::Percent { off: true } => "a whole number from 0 to 100, or \"off\"".into(),
            Self::Percent { off: false } => "a whole number from 0 to 100".into(),
            Self::Duration { off: true } => "a duration like \"14d\", or \"off\"".into(),
            Self::Duration { off: false } => "a duration like \"5m30s\"".into(),
            Self::Size => "a size like \"10GiB\", or \"off\"".into(),
            Self::Count => "a whole number".into(),
            Self::Limit => "a whole number, or \"off\"".into(),
            Self::Truth => "true or false".into(),
            Self::Word(words) => format!("one of \"{}\"", words.join("\", \"")),
            Self::Path { off: true } => "an absolute path, or \"off\"".into(),
            Self::Path { off: false } => "an absolute path".into(),
            Self::AutoPath => "\"auto\", \"off\" or an absolute path".into(),
            Self::Endpoint => "a socket like \"unix:///run/crio/crio.sock\"".into(),
            Self::Paths => "a list of absolute paths".into(),
            Self::Patterns => "a list of patterns like [\"quay.io/team/*\"]".into(),
            Self::Labels => "a list of labels like [\"keep\", \"tier=base\"]".into(),
        }
    }
}

impl std::fmt::Display for Raw<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Integer(number) => write!(f, "{number}"),
            Self::Truth(truth) => write!(f, "{truth}"),
            Self::Text(text) => write!(f, "{text:?}"),
        }
    }
}

fn absolute(text: &str) -> Result<PathBuf, String> {
    if text.starts_with('/') { Ok(text.into()) } else { Err(format!("{text:?} is not an absolute path")) }
}

/// What was set, and where.
#[derive(Debug, Default)]
pub(super) struct Settings(BTreeMap<&'static str, (Value, Origin)>);

impl Settings {
    pub(super) fn get(&self, name: &str) -> Option<&(Value, Origin)> {
        debug_assert!(find(name).is_some(), "no such key: {name}");
        self.0.get(name)
    }

    /// Sets a key; a list that adds up gets more elements.
    pub(super) fn set(&mut self, key: &'static Key, value: Value, origin: Origin) {
        match (self.0.get_mut(key.name), value) {
            (Some((Value::Patterns(all), at)), Value::Patterns(more)) if key.kind.adds_up() => {
                all.extend(more);
                *at = origin;
            }
            (Some((Value::Labels(all), at)), Value::Labels(more)) if key.kind.adds_up() => {
                all.extend(more);
                *at = origin;
            }
            // A flag is given once for each element.
            (Some((Value::Paths(all), at @ Origin::Flag(_))), Value::Paths(more))
                if matches!(origin, Origin::Flag(_)) =>
            {
                all.extend(more);
                *at = origin;
            }
            (_, value) => {
                self.0.insert(key.name, (value, origin));
            }
        }
    }

    pub(super) fn set_by_flag(&mut self, flag: &Flag, problems: &mut Vec<Problem>) {
        let Some(key) = find(flag.key) else {
            debug_assert!(false, "no such key: {}", flag.key);
            return;
        };
        // On the command line everything is a text.
        let raw = match (key.kind, flag.text.as_str()) {
            (Kind::Percent { .. } | Kind::Count | Kind::Limit, text) => {
                text.parse().map_or(Raw::Text(text), Raw::Integer)
            }
            (Kind::Truth, "true") => Raw::Truth(true),
            (Kind::Truth, "false") => Raw::Truth(false),
            (_, text) => Raw::Text(text),
        };
        match key.kind.value(raw) {
            Ok(value) => self.set(key, value, Origin::Flag(flag.flag)),
            Err(message) => problems.push(Problem {
                origin: Origin::Flag(flag.flag),
                field: String::new(),
                message,
                remedy: format!("give {}", key.kind.wanted()),
            }),
        }
    }
}
