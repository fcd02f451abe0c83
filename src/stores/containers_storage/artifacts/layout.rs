//! Parses the JSON of an OCI layout: the index and the manifests that it references. Pure.
//!
//! Parsed field by field; every digest anywhere in a document counts as needed: the blobs of a
//! document of a later version must not be deleted because its type is unknown here.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::stores::oci;
use crate::sys::allowance::{self, Allowance};

/// The directory of the blobs.
pub(super) const BLOBS: &str = "blobs";

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

/// Where a blob is below the store.
#[must_use]
pub fn path_of(digest: &str) -> Option<PathBuf> {
    let (algorithm, hex) = split(digest)?;
    Some(Path::new(BLOBS).join(algorithm).join(hex))
}

/// The hex digits of a digest, as file names have them.
#[must_use]
pub fn is_hex(text: &str) -> bool {
    let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    (32..=MOST_HEX).contains(&text.len()) && text.bytes().all(hex)
}

/// The entry that a row of `manifests` is; `None` where it has no digest.
fn entry(row: &Value) -> Option<IndexEntry> {
    let digest = row.get("digest")?.as_str()?;
    split(digest)?;
    let name = row.get("annotations").and_then(|all| all.get(REF_NAME)).and_then(Value::as_str);
    let name = name.filter(|name| !name.is_empty()).map(str::to_owned);
    Some(IndexEntry { digest: digest.to_owned(), name })
}

/// The entries of an index in their order, `None` for a row without a digest; `None` where the file is no index.
#[must_use]
pub fn index(bytes: &[u8]) -> Option<Vec<Option<IndexEntry>>> {
    let mut fields: BTreeMap<String, Value> = serde_json::from_slice(bytes).ok()?;
    match fields.remove("manifests") {
        // Go writes an empty list as `null`.
        None | Some(Value::Null) => Some(Vec::new()),
        Some(Value::Array(rows)) => Some(rows.iter().map(entry).collect()),
        Some(_) => None,
    }
}

/// Reads a manifest or an index; `None` where it is neither.
#[must_use]
pub fn document(bytes: &[u8]) -> Option<Document> {
    let json: Value = serde_json::from_slice(bytes).ok()?;
    let (members, layers) = match oci::document(&json)? {
        oci::Document::Index(members) => (members, Vec::new()),
        oci::Document::Manifest { layers, .. } => (Vec::new(), layers),
    };
    let members = members.into_iter().map(|member| member.digest).collect();
    let layers = layers.into_iter().map(|layer| (layer.digest, layer.size)).collect();
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

/// The documents of blobs, each as it was when it was first read.
pub type Documents = HashMap<String, Option<Document>>;

/// Follows `digest`; `read` gives the document of a blob that is not known yet. A document beyond the allowance counts
/// as unread.
pub fn reach(
    digest: &str,
    known: &mut Documents,
    read: &dyn Fn(&str) -> Option<Document>,
    allowance: &Allowance,
) -> Reach {
    let mut reach = Reach::default();
    let mut waiting = vec![digest.to_owned()];
    let (mut seen, mut listed) = (HashSet::new(), HashSet::new());
    while let Some(next) = waiting.pop() {
        // An index that leads to itself ends here.
        if !seen.insert(next.clone()) {
            continue;
        }
        reach.blobs.insert(next.clone());
        let document = known.entry(next.clone()).or_insert_with(|| read(&next)).as_ref();
        let weight = |document: &&Document| allowance::TEXT * document.needs.len() as u64;
        let document = document.filter(|document| allowance.charge(weight(document)).is_ok());
        let is_first = reach.documents.is_empty();
        let Some(document) = document else {
            reach.unread.push(next.clone());
            reach.documents.push(next);
            continue;
        };
        reach.documents.push(next);
        if is_first {
            reach.annotations.clone_from(&document.annotations);
        }
        for layer in &document.layers {
            if listed.insert(layer.0.clone()) {
                reach.layers.push(layer.clone());
            }
        }
        reach.blobs.extend(document.needs.iter().cloned());
        waiting.extend(document.members.iter().rev().cloned());
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
        let index = super::index(index.as_bytes()).unwrap();
        let expected =
            [IndexEntry { digest: a, name: Some("q.io/m:1".into()) }, IndexEntry { digest: b, name: None }];
        assert_eq!(index.len(), 5);
        assert_eq!(index.into_iter().flatten().collect::<Vec<_>>(), expected);
        for none in ["{}", r#"{"manifests":null}"#] {
            assert_eq!(super::index(none.as_bytes()), Some(Vec::new()), "{none}");
        }
        for text in ["", "[]", "7", r#"{"manifests":7}"#, r#"{"manifests":{}}"#, "{"] {
            assert!(super::index(text.as_bytes()).is_none(), "{text}");
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
        let read = |wanted: &str| {
            let text = match wanted {
                _ if wanted == top => index.clone(),
                _ if wanted == one => manifest(&[&shared, &own]),
                _ if wanted == two => manifest(&[&shared]),
                _ => return None,
            };
            document(text.as_bytes())
        };
        let expected = BTreeSet::from([&top, &one, &two, &config, &shared, &own, &subject].map(Clone::clone));
        let mut known = Documents::new();
        let found = reach(&top, &mut known, &read, &Allowance::default());
        assert_eq!(found.documents, [top.clone(), one.clone(), two.clone()]);
        assert_eq!(found.blobs, expected);
        assert_eq!(found.listed_bytes(), Some(20));
        assert_eq!(found.unread, [""; 0]);
        assert_eq!(
            reach(&one, &mut known, &read, &Allowance::default()).annotations,
            [("k".to_owned(), "v".to_owned())]
        );
        let gone = digest('9');
        assert_eq!(reach(&gone, &mut known, &read, &Allowance::default()).unread, [gone]);
    }

    #[test]
    fn sizes_that_are_absurd() {
        let [a, b] = ['a', 'b'].map(digest);
        let max = u64::MAX;
        let text = format!(r#"{{"layers":[{{"digest":"{a}","size":{max}}},{{"digest":"{b}","size":1}}]}}"#);
        let found =
            reach(&digest('1'), &mut Documents::new(), &|_| document(text.as_bytes()), &Allowance::default());
        assert_eq!(found.listed_bytes(), None);
        let text = format!(r#"{{"layers":[{{"digest":"{a}","size":-1}}]}}"#);
        assert_eq!(
            reach(&digest('1'), &mut Documents::new(), &|_| document(text.as_bytes()), &Allowance::default())
                .listed_bytes(),
            None
        );
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
            let _ = (super::index(&bytes), document(&bytes));
            let text = one.to_string();
            let index = super::index(index.to_string().as_bytes());
            for entry in index.iter().flatten().flatten() {
                let found = reach(&entry.digest, &mut Documents::new(), &|_| document(text.as_bytes()), &Allowance::default());
                prop_assert!(found.documents.len() <= 8);
                prop_assert!(split(&entry.digest).is_some());
                let names = found.blobs.iter().filter(|blob| **blob != entry.digest);
                let all_split = names.filter(|blob| !found.documents.contains(blob)).all(|blob| split(blob).is_some());
                prop_assert!(all_split);
            }
        }
    }
}
