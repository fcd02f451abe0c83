//! The settings of one file or flag, and the syntax of their values.

use std::fmt;
use std::marker::PhantomData;
use std::path::PathBuf;

use jiff::SignedDuration;
use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};

use super::values;
use crate::cri::Endpoint;
use crate::model::Pattern;
use crate::model::text::names::names;
use crate::policy::input::{DeletionOrder, NotRepullable};

/// The keys of one file. A key that the file does not contain is `None`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Fragment {
    pub(super) state_dir: Set<PathBuf>,
    pub(super) trust_pid_namespace: Set<bool>,
    pub(super) stores: StoresTable,
    pub(super) images: ImagesTable,
    pub(super) protect: ProtectTable,
    pub(super) containers: ContainersTable,
    pub(super) kubelet: KubeletTable,
    pub(super) leaks: LeaksTable,
    pub(super) metrics: MetricsTable,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct StoresTable {
    pub(super) graphroot: Option<Vec<Value<PathBuf>>>,
    pub(super) runroot: Option<Vec<Value<PathBuf>>>,
    pub(super) containerd_root: Option<Vec<Value<PathBuf>>>,
    pub(super) docker_root: Option<Vec<Value<PathBuf>>>,
    pub(super) cri_endpoint: Set<Endpoint>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ImagesTable {
    pub(super) via: Set<Via>,
    pub(super) high_percent: Set<OrOff<Percent>>,
    pub(super) low_percent: Set<Percent>,
    pub(super) min_free: Set<OrOff<Bytes>>,
    pub(super) free_until: Set<OrOff<Bytes>>,
    pub(super) inodes_high_percent: Set<OrOff<Percent>>,
    pub(super) inodes_low_percent: Set<Percent>,
    pub(super) min_age: Set<SignedDuration>,
    pub(super) max_age: Set<OrOff<SignedDuration>>,
    pub(super) order: Set<DeletionOrder>,
    /// Rules of all files together.
    pub(super) rule: Vec<Rule>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rule {
    #[serde(rename = "match")]
    pub(super) pattern: Value<Pattern>,
    pub(super) min_age: Set<SignedDuration>,
    pub(super) max_age: Set<OrOff<SignedDuration>>,
    pub(super) keep_newest: Set<usize>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ProtectTable {
    /// Patterns of all files together; labels likewise.
    pub(super) names: Vec<Value<Pattern>>,
    pub(super) labels: Vec<Value<Label>>,
    pub(super) keep_newest: Set<usize>,
    pub(super) not_repullable: Set<NotRepullable>,
    pub(super) static_pods: Set<OrOff<PathBuf>>,
    pub(super) references_file: Set<OrOff<PathBuf>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ContainersTable {
    pub(super) enabled: Set<bool>,
    pub(super) logs: Set<bool>,
    pub(super) min_age: Set<SignedDuration>,
    pub(super) max_per_unit: Set<OrOff<usize>>,
    pub(super) max_total: Set<OrOff<usize>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct KubeletTable {
    pub(super) root_dir: Set<PathBuf>,
    pub(super) pod_logs_dir: Set<PathBuf>,
    pub(super) container_logs_dir: Set<PathBuf>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct LeaksTable {
    pub(super) delete: Set<bool>,
    pub(super) min_age: Set<SignedDuration>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct MetricsTable {
    pub(super) textfile: Set<Textfile>,
    pub(super) namespaces: Set<usize>,
    pub(super) places: Set<usize>,
}

pub(super) type Set<T> = Option<Value<T>>;
/// A value, or `None` for `"off"`.
pub(super) type OrOff<T> = Option<T>;
/// Key of a label, and its value if only that value matches.
pub(super) type Label = (String, Option<String>);

#[derive(Clone, Copy, Debug)]
pub(super) struct Percent(pub(super) u8);

#[derive(Clone, Copy, Debug)]
pub(super) struct Bytes(pub(super) u64);

names! {
    /// Way in which images are deleted.
    Via {
        /// The runtime if it owns the store, layersweep otherwise.
        Auto = "auto",
        /// The container runtime, through its CRI socket.
        Cri = "cri",
        /// layersweep itself, in the graphroot.
        Direct = "direct",
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Textfile {
    /// The directory that node_exporter reads, if it exists.
    Auto,
    Off,
    /// This file, or `layersweep.prom` in this directory.
    At(PathBuf),
}

/// A value whose type has not been checked yet.
#[derive(Clone, Copy)]
pub(super) enum Raw<'a> {
    Number(i64),
    Text(&'a str),
    Bool(bool),
}

impl<'a> Raw<'a> {
    fn text(self) -> Option<&'a str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }
}

impl fmt::Display for Raw<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Bool(truth) => truth.fmt(f),
        }
    }
}

pub(super) trait Written: Sized {
    const EXPECTED: &'static str;
    /// `true` if the key also accepts `"off"`.
    const OR_OFF: bool = false;

    /// Parses `raw`. Returns `None` if it does not have the expected syntax, and an error message for any
    /// other mistake.
    fn read(raw: Raw<'_>) -> Option<Result<Self, String>>;
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Value<T>(pub(super) T);

impl<'de, T: Written> Deserialize<'de> for Value<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor(PhantomData)).map(Self)
    }
}

struct ValueVisitor<T>(PhantomData<T>);

fn read<T: Written, E: Error>(raw: Raw<'_>) -> Result<T, E> {
    let value = T::read(raw).unwrap_or_else(|| Err(format!("{raw} is not {}", T::EXPECTED)));
    value.map_err(E::custom)
}

impl<T: Written> Visitor<'_> for ValueVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)?;
        f.write_str(if T::OR_OFF { ", or \"off\"" } else { "" })
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        read(Raw::Number(number))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        read(Raw::Text(text))
    }

    fn visit_bool<E: Error>(self, truth: bool) -> Result<T, E> {
        read(Raw::Bool(truth))
    }
}

impl<T: Written> Written for Option<T> {
    const EXPECTED: &'static str = T::EXPECTED;
    const OR_OFF: bool = true;

    fn read(raw: Raw<'_>) -> Option<Result<Self, String>> {
        match raw {
            Raw::Text("off") => Some(Ok(None)),
            raw => Some(T::read(raw)?.map(Some)),
        }
    }
}

/// Implements [`Written`]: for each type the expected syntax, and the function that parses it.
macro_rules! written {
    ($($type:ty: $expected:literal, $read:expr;)+) => {
        $(impl Written for $type {
            const EXPECTED: &'static str = $expected;

            fn read(raw: Raw<'_>) -> Option<Result<Self, String>> {
                let read: fn(Raw<'_>) -> Option<Result<Self, String>> = $read;
                read(raw)
            }
        })+
    };
}

written! {
    Percent: "a whole number from 0 to 100", |raw| {
        let Raw::Number(number) = raw else { return None };
        Some(Ok(Self(u8::try_from(number).ok().filter(|percent| *percent <= 100)?)))
    };
    Bytes: "a size like \"10GiB\"", |raw| match raw {
        Raw::Number(number) => Some(Ok(Self(number.try_into().ok()?))),
        raw => Some(values::size(raw.text()?).map(Self)),
    };
    SignedDuration: "a duration like \"5m30s\"", |raw| Some(values::duration(raw.text()?));
    usize: "a whole number", |raw| {
        let Raw::Number(number) = raw else { return None };
        Some(number.try_into().map_err(|_| format!("{number} is less than 0")))
    };
    bool: "true or false", |raw| if let Raw::Bool(truth) = raw { Some(Ok(truth)) } else { None };
    PathBuf: "an absolute path", |raw| {
        raw.text().filter(|text| text.starts_with('/')).map(|path| Ok(path.into()))
    };
    Textfile: "\"auto\", \"off\" or an absolute path", |raw| match raw.text()? {
        "auto" => Some(Ok(Self::Auto)),
        "off" => Some(Ok(Self::Off)),
        _ => Some(PathBuf::read(raw)?.map(Self::At)),
    };
    Endpoint: "a socket like \"unix:///run/crio/crio.sock\"", |raw| {
        Some(raw.text()?.parse().map_err(|error: crate::cri::BadEndpoint| error.to_string()))
    };
    Via: "\"auto\", \"cri\" or \"direct\"", |raw| {
        let text = raw.text()?;
        Self::ALL.iter().copied().find(|via| via.as_str() == text).map(Ok)
    };
    DeletionOrder: "\"idle\" or \"cheapest\"", |raw| {
        let text = raw.text()?;
        Self::ALL.iter().copied().find(|order| order.as_str() == text).map(Ok)
    };
    NotRepullable: "\"kubernetes\", \"always\" or \"never\"", |raw| {
        let text = raw.text()?;
        Self::ALL.iter().copied().find(|stores| stores.as_str() == text).map(Ok)
    };
    Pattern: "a pattern like \"quay.io/team/*\"", |raw| {
        let text = raw.text()?;
        Some(Self::new(text).map_err(|error| format!("{text:?} is not a pattern: {error}")))
    };
    Label: "a label like \"keep\" or \"tier=base\"", |raw| {
        let text = raw.text()?;
        let (key, value) = text.split_once('=').map_or((text, None), |(key, value)| (key, Some(value.into())));
        Some(if key.is_empty() { Err(format!("{text:?} names no label")) } else { Ok((key.into(), value)) })
    };
}
