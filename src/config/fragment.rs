//! The settings of one file or flag, and the syntax of values.

use std::fmt;
use std::marker::PhantomData;
use std::path::PathBuf;

use jiff::SignedDuration;
use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};

use super::values;
use crate::cri::Endpoint;
use crate::model::Pattern;
use crate::model::names::names;
use crate::policy::PolicyKind;

/// The keys of a file; `None` is a key that the file does not have.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Fragment {
    pub(super) state_dir: Set<PathBuf>,
    pub(super) trust_pid_namespace: Set<bool>,
    pub(super) stores: Stores,
    pub(super) images: Images,
    pub(super) protect: Protect,
    pub(super) containers: Containers,
    pub(super) kubelet: Kubelet,
    pub(super) leaks: Leaks,
    pub(super) metrics: Metrics,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Stores {
    pub(super) graphroot: Option<Vec<Value<PathBuf>>>,
    pub(super) runroot: Set<PathBuf>,
    pub(super) containerd_root: Option<Vec<Value<PathBuf>>>,
    pub(super) cri_endpoint: Set<Endpoint>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Images {
    pub(super) policy: Set<PolicyKind>,
    pub(super) via: Set<Via>,
    pub(super) high_percent: Set<OrOff<Percent>>,
    pub(super) low_percent: Set<Percent>,
    pub(super) min_free: Set<OrOff<Bytes>>,
    pub(super) free_until: Set<OrOff<Bytes>>,
    pub(super) inodes_high_percent: Set<OrOff<Percent>>,
    pub(super) inodes_low_percent: Set<Percent>,
    pub(super) min_age: Set<SignedDuration>,
    pub(super) max_age: Set<OrOff<SignedDuration>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Protect {
    /// Adds up over all files, as labels do.
    pub(super) names: Vec<Value<Pattern>>,
    pub(super) labels: Vec<Value<Label>>,
    pub(super) keep_newest: Set<usize>,
    pub(super) static_pods: Set<OrOff<PathBuf>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Containers {
    pub(super) enabled: Set<bool>,
    pub(super) logs: Set<bool>,
    pub(super) min_age: Set<SignedDuration>,
    pub(super) max_per_unit: Set<OrOff<usize>>,
    pub(super) max_total: Set<OrOff<usize>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Kubelet {
    pub(super) root_dir: Set<PathBuf>,
    pub(super) pod_logs_dir: Set<PathBuf>,
    pub(super) container_logs_dir: Set<PathBuf>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Leaks {
    pub(super) delete: Set<bool>,
    pub(super) min_age: Set<SignedDuration>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Metrics {
    pub(super) textfile: Set<Textfile>,
}

pub(super) type Set<T> = Option<Value<T>>;
/// `None` is `"off"`.
pub(super) type OrOff<T> = Option<T>;
/// A label's key, and its value if that matters.
pub(super) type Label = (String, Option<String>);

#[derive(Clone, Copy, Debug)]
pub(super) struct Percent(pub(super) u8);

#[derive(Clone, Copy, Debug)]
pub(super) struct Bytes(pub(super) u64);

names! {
    /// What removes images.
    Via {
        /// The runtime where one owns a store, ourselves where none does.
        Auto = "auto",
        /// The container runtime, through its CRI socket.
        Cri = "cri",
        /// Ourselves, in the graphroot.
        Direct = "direct",
    }
}

/// Where metrics are written to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Textfile {
    /// Where node_exporter looks, if there is such a place.
    Auto,
    Off,
    /// To this file, or to `layersweep.prom` in this directory.
    At(PathBuf),
}

/// How a type is written in a file: what it does not accept is an error that says what it wants.
pub(super) trait Written: Sized {
    /// The expected syntax, for error messages.
    fn wanted() -> String;

    fn of_number(number: i64) -> Result<Self, String> {
        Err(format!("{number} is not {}", Self::wanted()))
    }

    fn of_text(text: &str) -> Result<Self, String> {
        Err(format!("{text:?} is not {}", Self::wanted()))
    }

    fn of_bool(truth: bool) -> Result<Self, String> {
        Err(format!("{truth} is not {}", Self::wanted()))
    }
}

/// A value as it stands in a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Value<T>(pub(super) T);

impl<'de, T: Written> Deserialize<'de> for Value<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reading(PhantomData)).map(Self)
    }
}

struct Reading<T>(PhantomData<T>);

impl<T: Written> Visitor<'_> for Reading<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&T::wanted())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        T::of_number(number).map_err(E::custom)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        T::of_text(text).map_err(E::custom)
    }

    fn visit_bool<E: Error>(self, truth: bool) -> Result<T, E> {
        T::of_bool(truth).map_err(E::custom)
    }
}

impl<T: Written> Written for Option<T> {
    fn wanted() -> String {
        format!("{}, or \"off\"", T::wanted())
    }

    fn of_number(number: i64) -> Result<Self, String> {
        T::of_number(number).map(Some)
    }

    fn of_text(text: &str) -> Result<Self, String> {
        if text == "off" { Ok(None) } else { T::of_text(text).map(Some) }
    }

    fn of_bool(truth: bool) -> Result<Self, String> {
        T::of_bool(truth).map(Some)
    }
}

impl Written for Percent {
    fn wanted() -> String {
        "a whole number from 0 to 100".into()
    }

    fn of_number(number: i64) -> Result<Self, String> {
        let percent = u8::try_from(number).ok().filter(|percent| *percent <= 100);
        percent.map(Self).ok_or_else(|| format!("{number} is not {}", Self::wanted()))
    }
}

impl Written for Bytes {
    fn wanted() -> String {
        "a size like \"10GiB\"".into()
    }

    fn of_number(number: i64) -> Result<Self, String> {
        number.try_into().map(Self).map_err(|_| format!("{number} is not {}", Self::wanted()))
    }

    fn of_text(text: &str) -> Result<Self, String> {
        values::size(text).map(Self)
    }
}

impl Written for SignedDuration {
    fn wanted() -> String {
        "a duration like \"5m30s\"".into()
    }

    fn of_text(text: &str) -> Result<Self, String> {
        values::duration(text)
    }
}

impl Written for usize {
    fn wanted() -> String {
        "a whole number".into()
    }

    fn of_number(number: i64) -> Result<Self, String> {
        number.try_into().map_err(|_| format!("{number} is less than 0"))
    }
}

impl Written for bool {
    fn wanted() -> String {
        "true or false".into()
    }

    fn of_bool(truth: bool) -> Result<Self, String> {
        Ok(truth)
    }
}

impl Written for PathBuf {
    fn wanted() -> String {
        "an absolute path".into()
    }

    fn of_text(text: &str) -> Result<Self, String> {
        let is_absolute = text.starts_with('/');
        is_absolute.then(|| text.into()).ok_or_else(|| format!("{text:?} is not an absolute path"))
    }
}

impl Written for Textfile {
    fn wanted() -> String {
        "\"auto\", \"off\" or an absolute path".into()
    }

    fn of_text(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            text if text.starts_with('/') => Ok(Self::At(text.into())),
            text => Err(format!("{text:?} is not {}", Self::wanted())),
        }
    }
}

impl Written for Endpoint {
    fn wanted() -> String {
        "a socket like \"unix:///run/crio/crio.sock\"".into()
    }

    fn of_text(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: crate::cri::BadEndpoint| error.to_string())
    }
}

impl Written for PolicyKind {
    fn wanted() -> String {
        "\"exact\" or \"kubelet\"".into()
    }

    fn of_text(text: &str) -> Result<Self, String> {
        let named = Self::ALL.iter().find(|policy| policy.as_str() == text);
        named.copied().ok_or_else(|| format!("{text:?} is not {}", Self::wanted()))
    }
}

impl Written for Via {
    fn wanted() -> String {
        "\"auto\", \"cri\" or \"direct\"".into()
    }

    fn of_text(text: &str) -> Result<Self, String> {
        let named = Self::ALL.iter().find(|via| via.as_str() == text);
        named.copied().ok_or_else(|| format!("{text:?} is not {}", Self::wanted()))
    }
}

impl Written for Pattern {
    fn wanted() -> String {
        "a pattern like \"quay.io/team/*\"".into()
    }

    fn of_text(text: &str) -> Result<Self, String> {
        Self::new(text).map_err(|error| format!("{text:?} is not a pattern: {error}"))
    }
}

impl Written for Label {
    fn wanted() -> String {
        "a label like \"keep\" or \"tier=base\"".into()
    }

    fn of_text(text: &str) -> Result<Self, String> {
        let (key, value) = match text.split_once('=') {
            Some((key, value)) => (key, Some(value.to_owned())),
            None => (text, None),
        };
        if key.is_empty() { Err(format!("{text:?} names no label")) } else { Ok((key.to_owned(), value)) }
    }
}
