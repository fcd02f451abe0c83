//! Labels of an image, as far as they are known. Pure.

use std::collections::BTreeMap;

use serde_json::Value;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Labels {
    /// They were not requested.
    #[default]
    NotRead,
    /// They could not be read in full, for this reason.
    Unknown(String),
    /// All labels as key and value, each pair once. A key may occur twice: an image of containerd has labels in its
    /// configuration and on each of its names.
    Known(Vec<(String, String)>),
}

impl Labels {
    /// Reads the labels of an image's configuration.
    ///
    /// OCI image specification, `config.md`, `config.Labels`; Docker's configuration has them in the same place.
    /// Docker's tools are written in Go, whose JSON decoder accepts keys in any case. The type of `oci-spec`
    /// accepts one case only, and would miss labels that protect an image.
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
                                // Go decodes null as the empty string.
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

    /// Adds labels; unknown labels stay unknown.
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

/// Returns the members of an object with this name, in any case.
fn member<'a>(object: &'a serde_json::Map<String, Value>, name: &'a str) -> impl Iterator<Item = &'a Value> {
    object.iter().filter(move |(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pair(key: &str, value: &str) -> (String, String) {
        (key.to_owned(), value.to_owned())
    }

    #[test]
    fn labels_of_configurations() {
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
            let Labels::Unknown(reason) = Labels::of_configuration(text.as_bytes()) else {
                panic!("{text} is understood");
            };
            assert!(reason.contains(why), "{text}: {reason}");
        }
    }

    #[test]
    fn labels_are_added_once() {
        let known = Labels::Known(vec![pair("b", "1")]);
        let both = known.and([pair("a", "1"), pair("b", "2"), pair("b", "1")]);
        assert_eq!(both, Labels::Known(vec![pair("a", "1"), pair("b", "1"), pair("b", "2")]));
        let unknown = Labels::Unknown("why".into());
        assert_eq!(unknown.clone().and([pair("a", "1")]), unknown);
    }

    /// Labels that the specification's type reads from a configuration; empty if it rejects the configuration.
    fn by_the_type(bytes: &[u8]) -> Vec<(String, String)> {
        let typed = oci_spec::image::ImageConfiguration::from_reader(bytes).ok();
        typed.and_then(|typed| typed.labels_of_config().cloned()).unwrap_or_default().into_iter().collect()
    }

    #[test]
    fn specifications_type_misses_some_labels() {
        for (config, by_type, expected) in [
            (r#""config":{"Labels":{"a":"1"}}"#, 1, 1),
            (r#""config":{"labels":{"a":"1"}}"#, 0, 1),
            (r#""Config":{"Labels":{"a":"1"}}"#, 0, 1),
            (r#""config":{"Labels":{"a":"1"},"labels":{"b":"2"}}"#, 1, 2),
            // Docker adds fields that the specification does not have, such as the health check: no error.
            (r#""config":{"Labels":{"a":"1"},"Healthcheck":{"Test":["CMD"]}}"#, 1, 1),
            // These make the type reject the whole configuration.
            (r#""config":{"Labels":{"a":"1"},"Env":[null]}"#, 0, 1),
            (r#""config":{"Labels":{"a":"1","b":null}}"#, 0, 2),
        ] {
            let text = format!(
                r#"{{"architecture":"amd64","os":"linux","rootfs":{{"type":"layers","diff_ids":[]}},{config}}}"#
            );
            let Labels::Known(known) = Labels::of_configuration(text.as_bytes()) else { panic!("{text}") };
            assert_eq!((by_the_type(text.as_bytes()).len(), known.len()), (by_type, expected), "{text}");
        }
    }

    proptest! {
        /// Every label that the specification's type finds is found.
        #[test]
        fn every_label_of_the_type_is_found(
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
        fn any_bytes_are_parsed_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Labels::of_configuration(&bytes);
        }
    }
}
