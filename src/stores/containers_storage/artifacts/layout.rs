//! Parser for the JSON of an OCI layout: the index, and the manifests that it references. Pure.
//!
//! Every digest anywhere in a document counts as needed, even in unknown fields: layersweep must not delete the blobs of
//! a document of a later version because it does not know that version's fields.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::stores::oci;
use crate::sys::allowance::{self, Allowance};

/// Name of the directory of blobs.
pub(super) const BLOBS: &str = "blobs";

/// Annotation with the name of an index entry (OCI image specification, `annotations.md`).
pub const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// Maximum number of hex digits: those of sha512, the longest algorithm.
const MOST_HEX: usize = 128;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexEntry {
    /// Digest of the manifest, or of an index of manifests.
    pub digest: String,
    /// An entry can lack a name.
    pub name: Option<String>,
}

/// Content of a manifest or an index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayoutDocument {
    /// Digests of further documents: an index has a document for each platform.
    pub members: Vec<String>,
    /// Digests and lengths (in bytes) of the layers, in the order of the manifest.
    pub layers: Vec<(String, Option<u64>)>,
    pub needs: BTreeSet<String>,
    pub annotations: Vec<(String, String)>,
}

/// Splits a digest into algorithm and hex digits. Returns `None` unless both are safe as file names.
#[must_use]
pub fn split(digest: &str) -> Option<(&str, &str)> {
    let (algorithm, hex) = digest.split_once(':')?;
    let is_word = !algorithm.is_empty() && algorithm.bytes().all(|byte| byte.is_ascii_alphanumeric());
    (is_word && is_hex(hex)).then_some((algorithm, hex))
}

/// Returns the path of a blob, relative to the store.
#[must_use]
pub fn path_of(digest: &str) -> Option<PathBuf> {
    let (algorithm, hex) = split(digest)?;
    Some(Path::new(BLOBS).join(algorithm).join(hex))
}

/// Returns true for the hex digits of a digest, in lower case as in file names.
#[must_use]
pub fn is_hex(text: &str) -> bool {
    (32..=MOST_HEX).contains(&text.len())
        && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Parses an element of `manifests`. Returns `None` if it has no digest.
fn entry(element: &Value) -> Option<IndexEntry> {
    let digest = element.get("digest")?.as_str()?;
    split(digest)?;
    let annotations = element.get("annotations");
    let name = annotations
        .and_then(|annotations| annotations.get(REF_NAME))
        .and_then(Value::as_str)
        .filter(|name| !name.is_empty())
        .map(str::to_owned);
    Some(IndexEntry { digest: digest.to_owned(), name })
}

/// Parses an index and returns its entries in order, with `None` for an entry without a digest. Returns `None` if the
/// file is not an index.
#[must_use]
pub fn index(bytes: &[u8]) -> Option<Vec<Option<IndexEntry>>> {
    let mut fields: BTreeMap<String, Value> = serde_json::from_slice(bytes).ok()?;
    match fields.remove("manifests") {
        // Go writes an empty list as `null`.
        None | Some(Value::Null) => Some(Vec::new()),
        Some(Value::Array(elements)) => Some(elements.iter().map(entry).collect()),
        Some(_) => None,
    }
}

/// Parses a manifest or an index. Returns `None` for anything else.
#[must_use]
pub fn document(bytes: &[u8]) -> Option<LayoutDocument> {
    let json: Value = serde_json::from_slice(bytes).ok()?;
    let (members, layers) = match oci::document(&json)? {
        oci::Document::Index(members) => (members, Vec::new()),
        oci::Document::Manifest { layers, .. } => (Vec::new(), layers),
    };
    let members = members.into_iter().map(|member| member.digest).collect();
    let layers = layers.into_iter().map(|layer| (layer.digest, layer.size)).collect();
    let annotations = json
        .get("annotations")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect();
    let mut needs = BTreeSet::new();
    collect(&json, &mut needs);
    Some(LayoutDocument { members, layers, needs, annotations })
}

fn collect(json: &Value, digests: &mut BTreeSet<String>) {
    match json {
        Value::String(text) if split(text).is_some() => {
            digests.insert(text.clone());
        }
        Value::Array(elements) => elements.iter().for_each(|element| collect(element, digests)),
        Value::Object(fields) => fields.values().for_each(|value| collect(value, digests)),
        _ => {}
    }
}

/// Documents and blobs that an index entry needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Digests of manifests and indexes, beginning with that of the entry. The blobs may be missing.
    pub documents: Vec<String>,
    /// Every needed digest, including those of the documents.
    pub blobs: BTreeSet<String>,
    /// Layers of all manifests, each once, with the length in the manifest.
    pub layers: Vec<(String, Option<u64>)>,
    /// Documents that are missing or cannot be parsed.
    pub unread: Vec<String>,
    pub annotations: Vec<(String, String)>,
}

impl Reached {
    /// Returns the sum of the layers' lengths, which CRI-O lists as the size, or `None` if a length is unknown.
    #[must_use]
    pub fn listed_bytes(&self) -> Option<u64> {
        self.layers.iter().try_fold(0_u64, |sum, (_, size)| sum.checked_add((*size)?))
    }
}

/// Cache of parsed documents, by digest.
pub type LayoutDocuments = HashMap<String, Option<LayoutDocument>>;

/// Follows the references of `digest`. Calls `read` for documents that are not in the cache `known`. A document that
/// exceeds the allowance counts as unread.
pub fn reach(
    digest: &str,
    known: &mut LayoutDocuments,
    read: &dyn Fn(&str) -> Option<LayoutDocument>,
    allowance: &Allowance,
) -> Reached {
    let mut reach = Reached::default();
    let mut waiting = vec![digest.to_owned()];
    let (mut seen, mut listed) = (HashSet::new(), HashSet::new());
    while let Some(next) = waiting.pop() {
        // An index may refer to itself.
        if !seen.insert(next.clone()) {
            continue;
        }
        reach.blobs.insert(next.clone());
        let document = known
            .entry(next.clone())
            .or_insert_with(|| read(&next))
            .as_ref()
            .filter(|document| allowance.charge(allowance::TEXT * document.needs.len() as u64).is_ok());
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
    fn entry_without_digest_is_counted() {
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
        for empty in ["{}", r#"{"manifests":null}"#] {
            assert_eq!(super::index(empty.as_bytes()), Some(Vec::new()), "{empty}");
        }
        for text in ["", "[]", "7", r#"{"manifests":7}"#, r#"{"manifests":{}}"#, "{"] {
            assert!(super::index(text.as_bytes()).is_none(), "{text}");
        }
    }

    #[test]
    fn all_members_of_an_index_are_reached() {
        let [top, first, second, config, shared, unshared, subject] =
            ['0', '1', '2', '3', '4', '5', '6'].map(digest);
        let config_and_subject = format!(
            r#""config":{{"digest":"{config}"}},"subject":{{"digest":"{subject}"}},"annotations":{{"k":"v","n":7}}"#
        );
        // The index also refers to itself.
        let documents = HashMap::from([
            (
                top.clone(),
                format!(
                    r#"{{"manifests":[{{"digest":"{first}"}},{{"digest":"{second}"}},{{"digest":"{top}"}}]}}"#
                ),
            ),
            (
                first.clone(),
                format!(
                    r#"{{{config_and_subject},"layers":[{{"digest":"{shared}","size":10}},
                    {{"digest":"{unshared}","size":10}}]}}"#
                ),
            ),
            (
                second.clone(),
                format!(r#"{{{config_and_subject},"layers":[{{"digest":"{shared}","size":10}}]}}"#),
            ),
        ]);
        let read: &dyn Fn(&str) -> Option<LayoutDocument> =
            &|digest| document(documents.get(digest)?.as_bytes());
        let expected =
            BTreeSet::from([&top, &first, &second, &config, &shared, &unshared, &subject].map(Clone::clone));
        let mut known = LayoutDocuments::new();
        let found = reach(&top, &mut known, read, &Allowance::default());
        assert_eq!(found.documents, [top.clone(), first.clone(), second.clone()]);
        assert_eq!(found.blobs, expected);
        assert_eq!(found.listed_bytes(), Some(20));
        assert_eq!(found.unread, [""; 0]);
        assert_eq!(
            reach(&first, &mut known, read, &Allowance::default()).annotations,
            [("k".to_owned(), "v".to_owned())]
        );
        let absent = digest('9');
        assert_eq!(reach(&absent, &mut known, read, &Allowance::default()).unread, [absent]);
    }

    #[test]
    fn invalid_sizes_are_unknown() {
        let [a, b] = ['a', 'b'].map(digest);
        let max = u64::MAX;
        let text = format!(r#"{{"layers":[{{"digest":"{a}","size":{max}}},{{"digest":"{b}","size":1}}]}}"#);
        let found = reach(
            &digest('1'),
            &mut LayoutDocuments::new(),
            &|_| document(text.as_bytes()),
            &Allowance::default(),
        );
        assert_eq!(found.listed_bytes(), None);
        let text = format!(r#"{{"layers":[{{"digest":"{a}","size":-1}}]}}"#);
        assert_eq!(
            reach(
                &digest('1'),
                &mut LayoutDocuments::new(),
                &|_| document(text.as_bytes()),
                &Allowance::default()
            )
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
        /// With any content of an index and its documents, the walk ends, does not panic, and finds only digests.
        #[test]
        fn hostile_documents_yield_only_digests(index in json(), content in json(), bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (super::index(&bytes), document(&bytes));
            let text = content.to_string();
            let index = super::index(index.to_string().as_bytes());
            for entry in index.iter().flatten().flatten() {
                let found = reach(&entry.digest, &mut LayoutDocuments::new(), &|_| document(text.as_bytes()), &Allowance::default());
                prop_assert!(found.documents.len() <= 8);
                prop_assert!(split(&entry.digest).is_some());
                let names = found.blobs.iter().filter(|blob| **blob != entry.digest);
                let all_split = names.filter(|blob| !found.documents.contains(blob)).all(|blob| split(blob).is_some());
                prop_assert!(all_split);
            }
        }
    }
}
