//! Reads untrusted JSON: a field of an unexpected type is absent, and unused fields are
//! skipped without taking memory.
//!
//! Invalid JSON is always an error: a damaged field must not be taken for an absent
//! one.

use std::borrow::Cow;
use std::fmt;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer as _, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::Deserializer;
use serde_json::value::RawValue;

/// Maximum number of members of a record or of one of its fields, names for example: real images have a few dozen. A
/// record with more is left out.
pub(crate) const MOST_MEMBERS: usize = 4096;

/// What a flag is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Truth {
    /// `false`, `null`, or not there.
    No,
    /// `true` itself.
    Yes,
    /// Something of another type.
    Odd,
}

/// The fields of a JSON object, unparsed. Of two with one name the last counts, as in Go.
#[derive(Default)]
pub(crate) struct Object<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Object<'a> {
    /// `None` where the value is not an object.
    pub(super) fn parse(value: &'a RawValue) -> Result<Option<Self>, String> {
        if !value.get().starts_with('{') {
            return Ok(None);
        }
        let mut fields = Vec::new();
        let each = Each { most: MOST_MEMBERS, take: |name, value| fields.push((name, value)) };
        Deserializer::from_str(value.get()).deserialize_map(each).map_err(|error| error.to_string())?;
        Ok(Some(Self(fields)))
    }

    /// The object in `content`; one without fields where there is none.
    pub(crate) fn of(content: &'a [u8]) -> Self {
        let value = serde_json::from_slice::<&RawValue>(content).ok();
        value.and_then(|value| Self::parse(value).ok().flatten()).unwrap_or_default()
    }

    fn field(&self, name: &str) -> Option<&'a RawValue> {
        self.0.iter().rev().find(|(one, _)| one == name).map(|(_, value)| *value)
    }

    /// A field of type `T`.
    pub(crate) fn get<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, String> {
        self.field(name).map_or(Ok(None), of_type)
    }

    /// A text that is not empty.
    pub(super) fn text(&self, name: &str) -> Result<Option<String>, String> {
        Ok(self.get(name)?.filter(|text: &String| !text.is_empty()))
    }

    /// A time; Go's zero time (year 1) means that there is none.
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

    /// Whether there is such a field, of any type but `null`.
    pub(super) fn has(&self, name: &str) -> bool {
        self.field(name).is_some_and(|value| value.get() != "null")
    }

    /// An object; one without fields where the field is of another type.
    pub(super) fn object(&self, name: &str) -> Result<Self, String> {
        Ok(self.field(name).map_or(Ok(None), Self::parse)?.unwrap_or_default())
    }

    /// The elements of an array that are texts.
    pub(super) fn texts(&self, name: &str) -> Result<Vec<String>, String> {
        let Some(array) = self.field(name).map(RawValue::get).filter(|text| text.starts_with('[')) else {
            return Ok(Vec::new());
        };
        let mut texts = Ok(Vec::new());
        let take = |_, element: &RawValue| match (&mut texts, of_type(element)) {
            (Ok(texts), Ok(text)) => texts.extend(text),
            (Ok(_), Err(error)) => texts = Err(error),
            (Err(_), _) => {}
        };
        let each = Each { most: MOST_MEMBERS, take };
        Deserializer::from_str(array).deserialize_seq(each).map_err(|error| error.to_string())?;
        texts
    }

    /// The members of an object that are of type `T`.
    pub(super) fn members<T: DeserializeOwned>(&self, name: &str) -> Result<Vec<(String, T)>, String> {
        let mut members = Vec::new();
        for (name, value) in self.object(name)?.0 {
            members.extend(of_type(value)?.map(|value| (name.into_owned(), value)));
        }
        Ok(members)
    }
}

/// The value, if it is of type `T`.
fn of_type<T: DeserializeOwned>(value: &RawValue) -> Result<Option<T>, String> {
    match serde_json::from_str(value.get()) {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_data() => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// Hands over the members of an array (without a name) or an object, one by one.
struct Each<F> {
    most: usize,
    take: F,
}

#[derive(Deserialize)]
#[serde(transparent)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de, F: FnMut(Cow<'de, str>, &'de RawValue)> Each<F> {
    fn one<E: serde::de::Error>(&mut self, name: Cow<'de, str>, value: &'de RawValue) -> Result<(), E> {
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

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("an array of records")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut elements: A) -> Result<(), A::Error> {
        while let Some(element) = elements.next_element()? {
            self.one(Cow::Borrowed(""), element)?;
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut members: A) -> Result<(), A::Error> {
        while let Some((Name(name), value)) = members.next_entry()? {
            self.one(name, value)?;
        }
        Ok(())
    }
}

/// Calls `each` with the elements of the JSON array in `content`, some thousand at once: a hostile file may
/// have very many. A missing, empty or `null` array has none.
///
/// # Errors
/// In words, when the content is not one array and nothing else. The elements before the
/// fault have been handed over by then.
pub(crate) fn each_batch(content: &[u8], mut each: impl FnMut(&[&RawValue])) -> Result<(), String> {
    const BATCH: usize = 4096;
    if content.iter().all(u8::is_ascii_whitespace) || content.trim_ascii() == b"null" {
        return Ok(());
    }
    if content.iter().all(|byte| *byte == 0) {
        // What a power cut leaves of a file whose blocks were never written.
        return Err(format!("holds nothing but {} NUL bytes", content.len()));
    }
    let mut batch = Vec::with_capacity(BATCH);
    let take = |_, element| {
        batch.push(element);
        if batch.len() == BATCH {
            each(&batch);
            batch.clear();
        }
    };
    let mut deserializer = Deserializer::from_slice(content);
    let ended = deserializer
        .deserialize_seq(Each { most: usize::MAX, take })
        .and_then(|()| deserializer.end().map_err(|_| serde_json::Error::custom("text after the array")))
        .map_err(|error| format!("is not valid: {error}"));
    each(&batch);
    ended
}

/// The object that an element is.
///
/// # Errors
/// In words, when it is none.
pub(crate) fn object(element: &RawValue) -> Result<Object<'_>, String> {
    Object::parse(element)?.ok_or_else(|| "it is not an object".into())
}
