//! A record file for editing: every unchanged record and field remains identical byte for byte. Pure.
//!
//! The library drops unknown fields when it rewrites a file. The editor must not, or a newer runtime on the same store
//! would lose the fields that it wrote.

use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

#[derive(Debug, thiserror::Error)]
pub enum TableFault {
    /// It is not a JSON array of objects.
    #[error("is not an array of records: {0}")]
    Json(#[from] serde_json::Error),
    /// A record has no id, or its id is not a string.
    #[error("record {0} has no id")]
    NoId(usize),
    /// Two records have the same id.
    #[error("has {0} twice")]
    Twice(String),
    /// It has no record with this id (any more).
    #[error("has no {0}")]
    Unknown(String),
}

#[derive(Clone, Debug)]
pub struct RecordTable {
    records: Vec<RawRecord>,
}

#[derive(Clone, Debug)]
struct RawRecord {
    id: String,
    raw: Box<RawValue>,
}

/// An object with the raw text of its values, in the order of the file.
#[derive(Debug)]
struct RawObject(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for RawObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor;
        impl<'de> Visitor<'de> for ObjectVisitor {
            type Value = RawObject;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawObject, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(RawObject(fields))
            }
        }
        deserializer.deserialize_map(ObjectVisitor)
    }
}

impl Serialize for RawObject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl RawObject {
    /// The last field of that name, which is the one that Go's decoder uses.
    fn get(&self, name: &str) -> Option<&RawValue> {
        self.0.iter().rev().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }

    fn set(&mut self, name: &str, value: Box<RawValue>) {
        match self.0.iter_mut().rev().find(|(known, _)| known == name) {
            Some((_, known)) => *known = value,
            None => self.0.push((name.to_owned(), value)),
        }
    }
}

impl RecordTable {
    /// Reads a record file. An empty file and `null` have no records.
    ///
    /// # Errors
    /// When any part of it cannot be parsed: then the file is not edited.
    pub fn parse(bytes: &[u8]) -> Result<Self, TableFault> {
        if bytes.is_empty() {
            return Ok(Self { records: Vec::new() });
        }
        let raw: Option<Vec<Box<RawValue>>> = serde_json::from_slice(bytes)?;
        let mut records = Vec::new();
        let mut seen = std::collections::HashSet::new();
        for (position, raw) in raw.unwrap_or_default().into_iter().enumerate() {
            let object: RawObject = serde_json::from_str(raw.get())?;
            let id: String = object
                .get("id")
                .and_then(|id| serde_json::from_str(id.get()).ok())
                .ok_or(TableFault::NoId(position))?;
            if !seen.insert(id.clone()) {
                return Err(TableFault::Twice(id));
            }
            records.push(RawRecord { id, raw });
        }
        Ok(Self { records })
    }

    #[must_use]
    pub fn has(&self, id: &str) -> bool {
        self.records.iter().any(|record| record.id == id)
    }

    /// Removes a record.
    ///
    /// # Errors
    /// When it does not exist.
    pub fn remove(&mut self, id: &str) -> Result<(), TableFault> {
        let position = self.position(id)?;
        self.records.remove(position);
        Ok(())
    }

    /// Flags a layer as incomplete: every version of the library then deletes it when it next opens the
    /// store.
    ///
    /// # Errors
    /// When it does not exist, or its flags are not an object.
    pub fn flag_incomplete(&mut self, id: &str) -> Result<(), TableFault> {
        let position = self.position(id)?;
        let mut record: RawObject = serde_json::from_str(self.records[position].raw.get())?;
        let flags: Option<Option<RawObject>> =
            record.get("flags").map(|flags| serde_json::from_str(flags.get())).transpose()?;
        let mut flags = flags.flatten().unwrap_or(RawObject(Vec::new()));
        flags.set("incomplete", RawValue::from_string("true".into())?);
        record.set("flags", serde_json::value::to_raw_value(&flags)?);
        self.records[position].raw = serde_json::value::to_raw_value(&record)?;
        Ok(())
    }

    fn position(&self, id: &str) -> Result<usize, TableFault> {
        self.records
            .iter()
            .position(|record| record.id == id)
            .ok_or_else(|| TableFault::Unknown(id.to_owned()))
    }

    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![b'['];
        for (position, record) in self.records.iter().enumerate() {
            if position > 0 {
                bytes.push(b',');
            }
            bytes.extend_from_slice(record.raw.get().as_bytes());
        }
        bytes.push(b']');
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A file with everything that a lossy rewrite would change: unknown fields, big and odd numbers, escapes of Go's
    /// encoder, spaces, a field twice.
    const FILE: &str = concat!(
        r#"[{"id":"aa","future":{"x":[1e400,18446744073709551616,-0.0]},"names":["a\u003cb\u0026","\ud83d\ude00"]},"#,
        r#"{"id":"bb", "flags" : {"y":1,"incomplete":false},"zz":null},"#,
        r#"{"created":"2026-01-01T00:00:00.123456789Z","id":"no","id":"cc","flags":null}]"#
    );

    #[test]
    fn other_records_are_kept_byte_for_byte() {
        let table = RecordTable::parse(FILE.as_bytes()).unwrap();
        let ids: Vec<_> = table.records.iter().map(|record| record.id.as_str()).collect();
        assert_eq!(ids, ["aa", "bb", "cc"], "Go takes the last field");
        assert_eq!(String::from_utf8(table.to_bytes()).unwrap(), FILE);
        let mut table = table;
        table.remove("bb").unwrap();
        let start = FILE.find(r#"{"id":"bb""#).unwrap();
        let end = FILE.find(r#"{"created""#).unwrap();
        assert_eq!(
            String::from_utf8(table.to_bytes()).unwrap(),
            format!("{}{}", &FILE[..start], &FILE[end..])
        );
        assert!(matches!(table.remove("bb"), Err(TableFault::Unknown(_))));
    }

    #[test]
    fn flag_is_set_beside_other_flags() {
        let mut table = RecordTable::parse(FILE.as_bytes()).unwrap();
        for id in ["aa", "bb", "cc"] {
            table.flag_incomplete(id).unwrap();
        }
        let text = String::from_utf8(table.to_bytes()).unwrap();
        assert!(
            text.contains(r#""names":["a\u003cb\u0026","\ud83d\ude00"],"flags":{"incomplete":true}}"#),
            "{text}"
        );
        assert!(text.contains(r#"{"id":"bb","flags":{"y":1,"incomplete":true},"zz":null}"#), "{text}");
        assert!(text.contains(r#""id":"no","id":"cc","flags":{"incomplete":true}}"#), "{text}");
        assert!(text.contains("[1e400,18446744073709551616,-0.0]"), "{text}");
    }

    #[test]
    fn unparsable_files_are_not_edited() {
        for bad in [
            "[",
            "{}",
            "[1]",
            "[{}]",
            r#"[{"id":1}]"#,
            r#"[{"id":"a"}{"id":"b"}]"#,
            "\0\0\0",
            "[{\"id\":\"a\"}] x",
            r#"[{"id":"a"},{"id":"a"}]"#,
        ] {
            assert!(RecordTable::parse(bad.as_bytes()).is_err(), "{bad}");
        }
        let mut odd = RecordTable::parse(br#"[{"id":"a","flags":[]}]"#).unwrap();
        assert!(odd.flag_incomplete("a").is_err());
        assert_eq!(odd.to_bytes(), br#"[{"id":"a","flags":[]}]"#);
    }

    #[test]
    fn empty_files_have_no_records() {
        for none in ["", "null", "[]", " [ ] "] {
            assert_eq!(RecordTable::parse(none.as_bytes()).unwrap().to_bytes(), b"[]", "{none:?}");
        }
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(table) = RecordTable::parse(&bytes) {
                RecordTable::parse(&table.to_bytes()).unwrap();
            }
        }

        #[test]
        fn cut_files_are_refused(cut in 1..FILE.len()) {
            prop_assert!(RecordTable::parse(&FILE.as_bytes()[..cut]).is_err());
        }
    }
}
