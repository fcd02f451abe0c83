//! The labels of an image, and how far they are known. Pure.

use std::collections::BTreeMap;

use serde_json::Value;

/// The labels of an image, as far as known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Labels {
    /// They were not requested.
    #[default]
    NotRead,
    /// They cannot be read in full, and why.
    Unknown(String),
    /// All of them, as key and value, each pair once. A key may stand there twice: an image of
    /// containerd has labels in its configuration and on each of its names.
    Known(Vec<(String, String)>),
}

/// The images whose labels are requested.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LabelsOf {
    /// None.
    #[default]
    None,
    /// Every image's.
    All,
    /// Those of the images with these ids.
    Images(Vec<String>),
}

impl LabelsOf {
    /// Whether those of the image with this id are asked for.
    #[must_use]
    pub fn covers(&self, id: &str) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Images(ids) => ids.iter().any(|one| one == id),
        }
    }

    /// The same question about some images only.
    #[must_use]
    pub fn only<'a>(&self, ids: impl IntoIterator<Item = &'a str>) -> Self {
        let asked: Vec<_> = ids.into_iter().filter(|id| self.covers(id)).map(str::to_owned).collect();
        if asked.is_empty() { Self::None } else { Self::Images(asked) }
    }
}

impl Labels {
    /// The labels that an image's configuration has.
    ///
    /// OCI image specification, `config.md`, `config.Labels`; Docker's configuration has them in
    /// the same place. Docker's tools are written in Go, which takes keys in any case: `oci-spec`'s
    /// type takes them in one, and would miss labels that protect an image.
    #[must_use]
    pub fn of_configuration(bytes: &[u8]) -> Self {
        let json: Value = match serde_json::from_slice(bytes) {
            Ok(json) => json,
            Err(error) => return Self::Unknown(format!("its configuration is not JSON: {error}")),
        };
        let Some(configuration) = json.as_object() else {
            return Self::Unknown("its configuration is no JSON object".into());
        };
        let mut labels = BTreeMap::new();
        for inner in member(configuration, "config") {
            let inner = match inner {
                Value::Null => continue,
                Value::Object(inner) => inner,
                _ => return Self::Unknown("`config` of its configuration is no JSON object".into()),
            };
            for found in member(inner, "labels") {
                match found {
                    Value::Null => {}
                    Value::Object(found) => {
                        for (key, value) in found {
                            let value = match value {
                                Value::String(value) => value.as_str(),
                                // Go takes it for the empty text.
                                Value::Null => "",
                                _ => return Self::Unknown(format!("its label {key:?} has no text")),
                            };
                            labels.insert((key.clone(), value.to_owned()), ());
                        }
                    }
                    _ => return Self::Unknown("the labels of its configuration are no JSON object".into()),
                }
            }
        }
        Self::Known(labels.into_keys().collect())
    }

    /// These and `more`. What is unknown stays so.
    #[must_use]
    pub fn and(self, more: impl IntoIterator<Item = (String, String)>) -> Self {
        match self {
            Self::Known(mut labels) => {
                labels.extend(more);
                labels.sort();
                labels.dedup();
                Self::Known(labels)
            }
            other => other,
        }
    }
}

/// The members of an object with this name in any case.
fn member<'a>(object: &'a serde_json::Map<String, Value>, name: &'a str) -> impl Iterator<Item = &'a Value> {
    object.iter().filter(move |(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn configurations() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        for (text, expected) in [
            (r#"{"config": {"Labels": {"b": "2", "a": ""}}}"#, vec![pair("a", ""), pair("b", "2")]),
            (r#"{"Config": {"labels": {"a": "1"}}, "rootfs": {}}"#, vec![pair("a", "1")]),
            (r#"{"config": {"Labels": {"a": null}}}"#, vec![pair("a", "")]),
            (r#"{"config": {"Labels": null}}"#, vec![]),
            (r#"{"config": null, "container_config": {"Labels": {"a": "1"}}}"#, vec![]),
            ("{}", vec![]),
        ] {
            assert_eq!(Labels::of_configuration(text.as_bytes()), Labels::Known(expected), "{text}");
        }
        for (text, why) in [
            ("", "not JSON"),
            (r#"{"config": {"Labels": {"a": "#, "not JSON"),
            ("\0\0\0\0", "not JSON"),
            ("[]", "no JSON object"),
            (r#"{"config": []}"#, "`config`"),
            (r#"{"config": {"Labels": ["a=b"]}}"#, "labels"),
            (r#"{"config": {"Labels": {"a": {}}}}"#, "\"a\""),
        ] {
            let Labels::Unknown(said) = Labels::of_configuration(text.as_bytes()) else {
                panic!("{text} is understood");
            };
            assert!(said.contains(why), "{text}: {said}");
        }
    }

    #[test]
    fn whose_labels() {
        let one = LabelsOf::Images(vec!["a".into()]);
        for (asked, of_a, of_b) in
            [(&LabelsOf::None, false, false), (&LabelsOf::All, true, true), (&one, true, false)]
        {
            assert_eq!((asked.covers("a"), asked.covers("b")), (of_a, of_b), "{asked:?}");
            assert_eq!(
                (asked.only(["a"]).covers("a"), asked.only(["a"]).covers("b")),
                (of_a, false),
                "{asked:?}"
            );
        }
    }

    #[test]
    fn more_labels() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let known = Labels::Known(vec![pair("b", "1")]);
        let both = known.and([pair("a", "1"), pair("b", "2"), pair("b", "1")]);
        assert_eq!(both, Labels::Known(vec![pair("a", "1"), pair("b", "1"), pair("b", "2")]));
        let unknown = Labels::Unknown("why".into());
        assert_eq!(unknown.clone().and([pair("a", "1")]), unknown);
    }

    /// What the specification's type makes of a configuration; none where it refuses it.
    fn by_the_type(bytes: &[u8]) -> Vec<(String, String)> {
        let typed = oci_spec::image::ImageConfiguration::from_reader(bytes).ok();
        typed.and_then(|typed| typed.labels_of_config().cloned()).unwrap_or_default().into_iter().collect()
    }

    #[test]
    fn what_the_specifications_type_misses() {
        let with = |config: &str| {
            format!(
                r#"{{"architecture":"amd64","os":"linux","rootfs":{{"type":"layers","diff_ids":[]}},{config}}}"#
            )
        };
        for (config, by_type, ours) in [
            (r#""config":{"Labels":{"a":"1"}}"#, 1, 1),
            (r#""config":{"labels":{"a":"1"}}"#, 0, 1),
            (r#""Config":{"Labels":{"a":"1"}}"#, 0, 1),
            (r#""config":{"Labels":{"a":"1"},"labels":{"b":"2"}}"#, 1, 2),
            // Docker's healthcheck and the like are no fields of the specification, and are no trouble.
            (r#""config":{"Labels":{"a":"1"},"Healthcheck":{"Test":["CMD"]}}"#, 1, 1),
            // These are: it refuses all of it.
            (r#""config":{"Labels":{"a":"1"},"Env":[null]}"#, 0, 1),
            (r#""config":{"Labels":{"a":"1","b":null}}"#, 0, 2),
        ] {
            let text = with(config);
            let Labels::Known(known) = Labels::of_configuration(text.as_bytes()) else { panic!("{text}") };
            assert_eq!((by_the_type(text.as_bytes()).len(), known.len()), (by_type, ours), "{text}");
        }
    }

    proptest! {
        /// Never a label less than the specification's type finds.
        #[test]
        fn all_that_the_type_finds(
            keys in prop::collection::vec(("[a-z.]{0,6}", "[ -~]{0,6}"), 0..5),
            outer in "(config|Config)",
            inner in "(Labels|labels|LABELS)",
            more in "(,\"User\":\"x\"|,\"Env\":\\[null\\]|,\"Volumes\":null|)",
        ) {
            let labels: BTreeMap<_, _> = keys.into_iter().collect();
            let labels = serde_json::to_string(&labels).unwrap();
            let text = format!(
                r#"{{"architecture":"amd64","os":"linux","rootfs":{{"type":"layers","diff_ids":[]}},"{outer}":{{"{inner}":{labels}{more}}}}}"#
            );
            let Labels::Known(known) = Labels::of_configuration(text.as_bytes()) else {
                return Err(TestCaseError::fail(text));
            };
            for label in by_the_type(text.as_bytes()) {
                prop_assert!(known.contains(&label), "{text}: {label:?}");
            }
        }

        #[test]
        fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Labels::of_configuration(&bytes);
        }
    }
}
