//! Reading foreign JSON without trusting any of it.

use jiff::Timestamp;
use serde::de::{Deserializer as _, Error as _, SeqAccess, Visitor};
use serde_json::Value;

/// Calls `each` for every element of the JSON array in `content`; a missing, empty or
/// `null` array has none.
///
/// # Errors
/// In words, when the content is not one array and nothing else. The elements before the
/// fault have been handed over by then.
pub(super) fn each_element(content: &[u8], each: impl FnMut(Value)) -> Result<(), String> {
    struct Elements<F>(F);
    impl<'de, F: FnMut(Value)> Visitor<'de> for Elements<F> {
        type Value = ();

        fn expecting(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            to.write_str("an array of records")
        }

        fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
            Ok(())
        }

        fn visit_seq<A: SeqAccess<'de>>(mut self, mut elements: A) -> Result<(), A::Error> {
            while let Some(element) = elements.next_element()? {
                (self.0)(element);
            }
            Ok(())
        }
    }

    if content.iter().all(u8::is_ascii_whitespace) {
        return Ok(());
    }
    if content.iter().all(|byte| *byte == 0) {
        // What a power cut leaves of a file whose blocks were never written.
        return Err(format!("holds nothing but {} NUL bytes", content.len()));
    }
    let mut deserializer = serde_json::Deserializer::from_slice(content);
    deserializer
        .deserialize_any(Elements(each))
        .and_then(|()| deserializer.end().map_err(|_| serde_json::Error::custom("text after the array")))
        .map_err(|error| format!("is not valid: {error}"))
}

/// The record's id: any text that can be a file name, so that no id leads elsewhere.
pub(super) fn id(object: &Value) -> Result<String, String> {
    match object {
        Value::Object(_) => {}
        _ => return Err("it is not an object".into()),
    }
    let id = text(object, "id").ok_or("it has no id")?;
    let is_name = id.len() <= 255 && id != "." && id != ".." && !id.contains(['/', '\0']);
    if is_name { Ok(id) } else { Err(format!("its id {id:?} cannot be a directory name")) }
}

/// A text that is there and not empty.
pub(super) fn text(object: &Value, field: &str) -> Option<String> {
    object.get(field)?.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

/// The texts of an array, others passed over.
pub(super) fn texts(object: &Value, field: &str) -> Vec<String> {
    let Some(Value::Array(all)) = object.get(field) else { return Vec::new() };
    all.iter().filter_map(|one| one.as_str().map(str::to_owned)).collect()
}

/// A number of bytes; negative ones stand for "unknown".
pub(super) fn length(object: &Value, field: &str) -> Option<u64> {
    object.get(field)?.as_u64()
}

/// A time; Go's zero time (year 1) means that there is none.
pub(super) fn time(object: &Value, field: &str) -> Option<Timestamp> {
    let time: Timestamp = object.get(field)?.as_str()?.parse().ok()?;
    (time > Timestamp::UNIX_EPOCH).then_some(time)
}
