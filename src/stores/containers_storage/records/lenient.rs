//! Parser for untrusted JSON. A field of an unexpected type counts as absent, and unused fields are skipped without
//! using memory.
//!
//! Invalid JSON is always an error: a damaged field must not count as absent.

use std::borrow::Cow;
use std::fmt;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer as _, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::Deserializer;
use serde_json::value::RawValue;

/// Maximum number of members of a record or of one of its fields, for example of an image's names. A record with more is
/// invalid; real images have a few dozen names.
pub(crate) const MOST_MEMBERS: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Truth {
    /// `false`, `null` or absent.
    No,
    Yes,
    /// A value of another type.
    Odd,
}

/// Unparsed fields of a JSON object. As in Go, the last of several fields with the same name counts.
#[derive(Default)]
pub(crate) struct Object<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Object<'a> {
    /// Parses an object. Returns `None` if the value has another type.
    pub(super) fn parse(value: &'a RawValue) -> Result<Option<Self>, String> {
        if !value.get().starts_with('{') {
            return Ok(None);
        }
        let mut fields = Vec::new();
        let each = Each { most: MOST_MEMBERS, take: |name, value| fields.push((name, value)) };
        Deserializer::from_str(value.get()).deserialize_map(each).map_err(|error| error.to_string())?;
        Ok(Some(Self(fields)))
    }

    /// Parses the object in `content`. If it contains something else, the result has no fields.
    pub(crate) fn of(content: &'a [u8]) -> Self {
        let value = serde_json::from_slice::<&RawValue>(content).ok();
        value.and_then(|value| Self::parse(value).ok().flatten()).unwrap_or_default()
    }

    fn field(&self, name: &str) -> Option<&'a RawValue> {
        self.0.iter().rev().find(|(field, _)| field == name).map(|(_, value)| *value)
    }

    /// Returns a field of type `T`, or `None` if it is absent or has another type.
    pub(crate) fn get<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, String> {
        self.field(name).map_or(Ok(None), of_type)
    }

    /// Returns a string, or `None` if it is empty.
    pub(super) fn text(&self, name: &str) -> Result<Option<String>, String> {
        Ok(self.get(name)?.filter(|text: &String| !text.is_empty()))
    }

    /// Returns a time, or `None` for Go's zero time (year 1).
    pub(super) fn time(&self, name: &str) -> Result<Option<Timestamp>, String> {
        let time = self.text(name)?.and_then(|text| text.parse().ok());
        Ok(time.filter(|time| *time > Timestamp::UNIX_EPOCH))
    }

    pub(crate) fn truth(&self, name: &str) -> Truth {
        match self.field(name).map(RawValue::get) {
            None | Some("null" | "false") => Truth::No,
            Some("true") => Truth::Yes,
            Some(_) => Truth::Odd,
        }
    }

    /// Returns true if the field exists and is not `null`.
    pub(super) fn has(&self, name: &str) -> bool {
        self.field(name).is_some_and(|value| value.get() != "null")
    }

    /// Returns a nested object. If the field has another type, the result has no fields.
    pub(super) fn object(&self, name: &str) -> Result<Self, String> {
        Ok(self.field(name).map_or(Ok(None), Self::parse)?.unwrap_or_default())
    }

    pub(super) fn texts(&self, name: &str) -> Result<Vec<String>, String> {
        let Some(array) = self.field(name).map(RawValue::get).filter(|text| text.starts_with('[')) else {
            return Ok(Vec::new());
        };
        let mut texts = Ok(Vec::new());
        let each = Each {
            most: MOST_MEMBERS,
            take: |_, element: &RawValue| match (&mut texts, of_type(element)) {
                (Ok(texts), Ok(text)) => texts.extend(text),
                (Ok(_), Err(error)) => texts = Err(error),
                (Err(_), _) => {}
            },
        };
        Deserializer::from_str(array).deserialize_seq(each).map_err(|error| error.to_string())?;
        texts
    }

    pub(super) fn members<T: DeserializeOwned>(&self, name: &str) -> Result<Vec<(String, T)>, String> {
        let mut members = Vec::new();
        for (name, value) in self.object(name)?.0 {
            members.extend(of_type(value)?.map(|value| (name.into_owned(), value)));
        }
        Ok(members)
    }
}

/// Parses a value of type `T`. Returns `None` for a value of another type, and an error for invalid JSON.
fn of_type<T: DeserializeOwned>(value: &RawValue) -> Result<Option<T>, String> {
    match serde_json::from_str(value.get()) {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_data() => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// Passes each member of an array or an object to `take`, with an empty name for members of an array. Fails if there are
/// more than `most`.
struct Each<F> {
    most: usize,
    take: F,
}

#[derive(Deserialize)]
#[serde(transparent)]
struct MemberName<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de, F: FnMut(Cow<'de, str>, &'de RawValue)> Each<F> {
    fn pass<E: serde::de::Error>(&mut self, name: Cow<'de, str>, value: &'de RawValue) -> Result<(), E> {
        if self.most == 0 {
            return Err(E::custom(format_args!("it has a field with more than {MOST_MEMBERS} members")));
        }
        self.most -= 1;
        (self.take)(name, value);
        Ok(())
    }
}

impl<'de, F: FnMut(Cow<'de, str>, &'de RawValue)> Visitor<'de> for Each<F> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an array of records")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut elements: A) -> Result<(), A::Error> {
        while let Some(element) = elements.next_element()? {
            self.pass(Cow::Borrowed(""), element)?;
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut members: A) -> Result<(), A::Error> {
        while let Some((MemberName(name), value)) = members.next_entry()? {
            self.pass(name, value)?;
        }
        Ok(())
    }
}

/// Calls `each` with batches of the elements of the JSON array in `content`: a hostile file may have very many. Empty
/// content and `null` count as an empty array.
///
/// # Errors
/// A message if the content is not a single array. The elements before the error have been passed to `each`.
pub(crate) fn each_batch(content: &[u8], mut each: impl FnMut(&[&RawValue])) -> Result<(), String> {
    const BATCH: usize = 4096;
    if content.iter().all(u8::is_ascii_whitespace) || content.trim_ascii() == b"null" {
        return Ok(());
    }
    if content.iter().all(|byte| *byte == 0) {
        // After a power failure, a file whose blocks were never written contains only NUL bytes.
        return Err(format!("holds nothing but {} NUL bytes", content.len()));
    }
    let mut batch = Vec::with_capacity(BATCH);
    let visitor = Each {
        most: usize::MAX,
        take: |_, element| {
            batch.push(element);
            if batch.len() == BATCH {
                each(&batch);
                batch.clear();
            }
        },
    };
    let mut deserializer = Deserializer::from_slice(content);
    let result = deserializer
        .deserialize_seq(visitor)
        .and_then(|()| deserializer.end().map_err(|_| serde_json::Error::custom("text after the array")))
        .map_err(|error| format!("is not valid: {error}"));
    each(&batch);
    result
}

/// Parses an element that has to be an object.
///
/// # Errors
/// A message if it is not an object, or is invalid.
pub(crate) fn object(element: &RawValue) -> Result<Object<'_>, String> {
    Object::parse(element)?.ok_or_else(|| "it is not an object".into())
}
