//! Parses the JSON of an OCI layout: the index and the manifests that it references. Pure.
//!
//! Parsed field by field; every digest anywhere in a document counts as needed: the blobs of a
//! document of a later version must not be deleted because its type is unknown here.

use std::collections::{BTreeSet, HashSet};

use serde_json::Value;

/// Where an entry of the index has its name (OCI image specification, `annotations.md`).
pub const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// Hex digits of a digest of the longest algorithm, sha512.
const MOST_HEX: usize = 128;

/// One entry of `index.json`: a name of an artifact.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexEntry {
    /// Digest of its manifest, or of an index of manifests.
    pub digest: String,
    /// Its name; an entry can be without.
    pub name: Option<String>,
}

/// What a manifest or an index says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Document {
    /// Digests of further documents: an index has one for each platform.
    pub members: Vec<String>,
    /// Digests and lengths of the layers, in their order.
    pub layers: Vec<(String, Option<u64>)>,
    /// Every digest in it.
    pub needs: BTreeSet<String>,
    /// Annotations, in the order of their keys.
    pub annotations: Vec<(String, String)>,
}

/// A digest as algorithm and hex digits, if it is one that can be the name of a file.
#[must_use]
pub fn split(digest: &str) -> Option<(&str, &str)> {
    let (algorithm, hex) = digest.split_once(':')?;
    let is_word = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    (is_word(algorithm) && is_hex(hex)).then_some((algorithm, hex))
}

/// The hex digits of a digest, as file names have them.
#[must_use]
pub fn is_hex(text: &str) -> bool {
    let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    (32..=MOST_HEX).contains(&text.len()) && text.bytes().all(hex)
}

/// The entry that a row of `manifests` is; `None` where it has no digest.
#[must_use]
pub fn entry(row: &Value) -> Option<IndexEntry> {
    let digest = row.get("digest")?.as_str()?;
    split(digest)?;
    let name = row.get("annotations").and_then(|all| all.get(REF_NAME)).and_then(Value::as_str);
    let name = name.filter(|name| !name.is_empty()).map(str::to_owned);
    Some(IndexEntry { digest: digest.to_owned(), name })
}

/// The rows of an index; `None` where the file is not an index.
#[must_use]
pub fn rows(index: &[u8]) -> Option<Vec<Value>> {
    let Value::Object(mut index) = serde_json::from_slice(index).ok()? else { return None };
    match index.remove("manifests") {
        Some(Value::Array(rows)) => Some(rows),
        // Go writes an empty list so.
        None | Some(Value::Null) => Some(Vec::new()),
        Some(_) => None,
    }
}

/// Reads a manifest or an index; `None` where it is neither.
#[must_use]
pub fn document(bytes: &[u8]) -> Option<Document> {
    let json: Value = serde_json::from_slice(bytes).ok()?;
    let list = |name: &str| json.get(name).and_then(Value::as_array);
    if list("manifests").is_none() && list("layers").is_none() && list("blobs").is_none() {
        return None;
    }
    let digest = |row: &Value| Some(row.get("digest")?.as_str()?.to_owned());
    let layer = |row: &Value| Some((digest(row)?, row.get("size").and_then(Value::as_u64)));
    let members = list("manifests").into_iter().flatten().filter_map(digest).collect();
    let layers = list("layers").or_else(|| list("blobs")).into_iter().flatten().filter_map(layer).collect();
    let annotations = json.get("annotations").and_then(Value::as_object).into_iter().flatten();
    let annotations = annotations.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    let annotations = annotations.collect();
    let mut needs = BTreeSet::new();
    collect(&json, &mut needs);
    Some(Document { members, layers, needs, annotations })
}

fn collect(json: &Value, into: &mut BTreeSet<String>) {
    match json {
        Value::String(text) if split(text).is_some() => {
            into.insert(text.clone());
        }
        Value::Array(all) => all.iter().for_each(|one| collect(one, into)),
        Value::Object(all) => all.values().for_each(|one| collect(one, into)),
        _ => {}
    }
}

/// All that an entry leads to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Its manifests and indexes, the entry's own first, whether or not they are there.
    pub documents: Vec<String>,
    /// Every digest that it needs, its documents too.
    pub blobs: BTreeSet<String>,
    /// Layers of all its manifests, each once, with the length that the manifest says.
    pub layers: Vec<(String, Option<u64>)>,
    /// Documents that are not there, or cannot be understood.
    pub unread: Vec<String>,
    /// Annotations of its first document.
    pub annotations: Vec<(String, String)>,
}

impl Reach {
    /// Sum of the layers' lengths, which CRI-O lists as the size; `None` where one has none.
    #[must_use]
    pub fn listed_bytes(&self) -> Option<u64> {
        self.layers.iter().try_fold(0_u64, |sum, (_, size)| sum.checked_add((*size)?))
    }
}

/// Follows `digest`; `read` gives the document of a blob.
pub fn reach(digest: &str, read: &mut dyn FnMut(&str) -> Option<Document>) -> Reach {
    let mut reach = Reach::default();
    let mut waiting = vec![digest.to_owned()];
    let (mut seen, mut listed) = (HashSet::new(), HashSet::new());
    while let Some(next) = waiting.pop() {
        // An index that leads to itself ends here.
        if !seen.insert(next.clone()) {
            continue;
        }
        reach.blobs.insert(next.clone());
        let document = read(&next);
        if document.is_none() {
            reach.unread.push(next.clone());
        }
        let document = document.unwrap_or_default();
        if reach.documents.is_empty() {
            reach.annotations = document.annotations;
        }
        reach.documents.push(next);
        for layer in document.layers {
            if listed.insert(layer.0.clone()) {
                reach.layers.push(layer);
            }
        }
        reach.blobs.extend(document.needs);
        waiting.extend(document.members.into_iter().rev());
    }
    reach
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn digest(byte: char) -> String {
        format!("sha256:{}", byte.to_string().repeat(64))
    }

    #[test]
    fn entries() {
        let [a, b] = ['a', 'b'].map(digest);
        let index = format!(
            r#"{{"schemaVersion":2,"manifests":[{{"digest":"{a}","annotations":{{"{REF_NAME}":"q.io/m:1"}}}},
            {{"digest":"{b}"}},{{"digest":"sha256:../../etc"}},{{}},7]}}"#
        );
        let entries: Vec<_> = rows(index.as_bytes()).unwrap().iter().filter_map(entry).collect();
        let expected =
            [IndexEntry { digest: a, name: Some("q.io/m:1".into()) }, IndexEntry { digest: b, name: None }];
        assert_eq!(entries, expected);
        assert_eq!(rows(b"{}"), Some(vec![]));
        assert_eq!(rows(br#"{"manifests":null}"#), Some(vec![]));
        for text in ["", "[]", "7", r#"{"manifests":7}"#, "{"] {
            assert_eq!(rows(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn an_index_leads_to_all_its_members() {
        let [top, one, two, config, shared, own, subject] = ['0', '1', '2', '3', '4', '5', '6'].map(digest);
        let manifest = |layers: &[&str]| {
            let layers: Vec<_> = layers.iter().map(|l| format!(r#"{{"digest":"{l}","size":10}}"#)).collect();
            format!(
                r#"{{"config":{{"digest":"{config}"}},"layers":[{}],"subject":{{"digest":"{subject}"}},
                "annotations":{{"k":"v","n":7}}}}"#,
                layers.join(",")
            )
        };
        // It leads to itself, too.
        let index =
            format!(r#"{{"manifests":[{{"digest":"{one}"}},{{"digest":"{two}"}},{{"digest":"{top}"}}]}}"#);
        let mut read = |wanted: &str| {
            let text = match wanted {
                _ if wanted == top => index.clone(),
                _ if wanted == one => manifest(&[&shared, &own]),
                _ if wanted == two => manifest(&[&shared]),
                _ => return None,
            };
            document(text.as_bytes())
        };
        let expected = BTreeSet::from([&top, &one, &two, &config, &shared, &own, &subject].map(Clone::clone));
        let found = reach(&top, &mut read);
        assert_eq!(found.documents, [top.clone(), one.clone(), two.clone()]);
        assert_eq!(found.blobs, expected);
        assert_eq!(found.listed_bytes(), Some(20));
        assert_eq!(found.unread, [""; 0]);
        assert_eq!(reach(&one, &mut read).annotations, [("k".to_owned(), "v".to_owned())]);
        let gone = digest('9');
        assert_eq!(reach(&gone, &mut read).unread, [gone]);
    }

    #[test]
    fn sizes_that_are_absurd() {
        let [a, b] = ['a', 'b'].map(digest);
        let max = u64::MAX;
        let text = format!(r#"{{"layers":[{{"digest":"{a}","size":{max}}},{{"digest":"{b}","size":1}}]}}"#);
        let found = reach(&digest('1'), &mut |_| document(text.as_bytes()));
        assert_eq!(found.listed_bytes(), None);
        let text = format!(r#"{{"layers":[{{"digest":"{a}","size":-1}}]}}"#);
        assert_eq!(reach(&digest('1'), &mut |_| document(text.as_bytes())).listed_bytes(), None);
    }

    fn json() -> impl Strategy<Value = Value> {
        let word = prop_oneof![
            Just("digest".to_owned()),
            Just("manifests".to_owned()),
            Just("layers".to_owned()),
            Just("annotations".to_owned()),
            Just(REF_NAME.to_owned()),
            Just(digest('a')),
            Just(digest('b')),
            Just("sha256:../x".to_owned()),
            ".{0,8}",
        ];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            word.clone().prop_map(Value::from),
        ];
        leaf.prop_recursive(6, 64, 6, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::vec((word.clone(), inner), 0..6)
                    .prop_map(|all| Value::Object(all.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// Whatever an index and its documents say: no panic, an end, and no name of a file but a digest.
        #[test]
        fn nothing_leads_astray(index in json(), one in json(), bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (rows(&bytes), document(&bytes));
            let text = one.to_string();
            for entry in rows(index.to_string().as_bytes()).unwrap_or_default().iter().filter_map(entry) {
                let found = reach(&entry.digest, &mut |_| document(text.as_bytes()));
                prop_assert!(found.documents.len() <= 8);
                prop_assert!(split(&entry.digest).is_some());
                let names = found.blobs.iter().filter(|blob| **blob != entry.digest);
                let all_split = names.filter(|blob| !found.documents.contains(blob)).all(|blob| split(blob).is_some());
                prop_assert!(all_split);
            }
        }
    }
}
