//! Reading foreign JSON without trusting any of it: a field of another type than ours is
//! absent, and what we have no use for is passed over and takes no memory.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use jiff::Timestamp;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// More texts in one field than any record has. Beyond it the record is left out.
pub(in crate::stores::containers_storage) const MOST_TEXTS: usize = 1 << 16;

/// The fields of an object that are needed.
pub(in crate::stores::containers_storage) trait Fields:
    Default
{
    /// Takes the value of the field `name`; called for each field once, exactly. Of two with
    /// one name the last counts.
    fn take<'de, A: MapAccess<'de>>(&mut self, name: &str, from: &mut A) -> Result<(), A::Error>;
}

/// An object, or something else.
pub(in crate::stores::containers_storage) struct Object<F>(
    pub(in crate::stores::containers_storage) Option<F>,
);

/// A text, perhaps empty.
#[derive(Default)]
pub(in crate::stores::containers_storage) struct Text(
    pub(in crate::stores::containers_storage) Option<String>,
);

/// The texts of an array, others passed over.
#[derive(Default)]
pub(super) struct Texts {
    list: Vec<String>,
    too_many: bool,
}

/// Members of an object whose values have one type.
pub(super) struct Members<T> {
    all: BTreeMap<String, T>,
    too_many: bool,
}

impl<T> Default for Members<T> {
    fn default() -> Self {
        Self { all: BTreeMap::new(), too_many: false }
    }
}

/// A number of bytes; negative ones stand for "unknown".
#[derive(Default)]
pub(in crate::stores::containers_storage) struct Length(
    pub(in crate::stores::containers_storage) Option<u64>,
);

/// Neither `false` nor `null`.
#[derive(Default)]
pub(in crate::stores::containers_storage) struct Flag(pub(in crate::stores::containers_storage) Truth);

/// What a flag is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::stores::containers_storage) enum Truth {
    /// `false`, `null`, or not there.
    #[default]
    No,
    /// `true` itself.
    Yes,
    /// Something of another type.
    Odd,
}

/// Anything; each text of it is still checked, and so is how deep it goes.
pub(in crate::stores::containers_storage) struct Skip;

/// Takes values of any type; each kind of value that is not overridden is passed over.
trait Taker<'de>: Sized {
    type Taken;
    fn other(self) -> Self::Taken;
    fn null(self) -> Self::Taken {
        self.other()
    }
    fn bool(self, _: bool) -> Self::Taken {
        self.other()
    }
    fn number(self, _: u64) -> Self::Taken {
        self.other()
    }
    fn text(self, _: &str) -> Self::Taken {
        self.other()
    }
    fn array<A: SeqAccess<'de>>(self, mut from: A) -> Result<Self::Taken, A::Error> {
        while from.next_element::<Skip>()?.is_some() {}
        Ok(self.other())
    }
    fn object<A: MapAccess<'de>>(self, mut from: A) -> Result<Self::Taken, A::Error> {
        while from.next_entry::<Skip, Skip>()?.is_some() {}
        Ok(self.other())
    }
}

struct Taking<T>(T);

impl<'de, T: Taker<'de>> Visitor<'de> for Taking<T> {
    type Value = T::Taken;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a value")
    }
    fn visit_unit<E: Error>(self) -> Result<T::Taken, E> {
        Ok(self.0.null())
    }
    fn visit_bool<E: Error>(self, value: bool) -> Result<T::Taken, E> {
        Ok(self.0.bool(value))
    }
    fn visit_u64<E: Error>(self, value: u64) -> Result<T::Taken, E> {
        Ok(self.0.number(value))
    }
    fn visit_i64<E: Error>(self, value: i64) -> Result<T::Taken, E> {
        Ok(match u64::try_from(value) {
            Ok(value) => self.0.number(value),
            Err(_) => self.0.other(),
        })
    }
    fn visit_f64<E: Error>(self, _: f64) -> Result<T::Taken, E> {
        Ok(self.0.other())
    }
    fn visit_str<E: Error>(self, value: &str) -> Result<T::Taken, E> {
        Ok(self.0.text(value))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, from: A) -> Result<T::Taken, A::Error> {
        self.0.array(from)
    }
    fn visit_map<A: MapAccess<'de>>(self, from: A) -> Result<T::Taken, A::Error> {
        self.0.object(from)
    }
}

macro_rules! deserialize_by_taking {
    ($($type:ident $(<$of:ident: $bound:path>)?),* $(,)?) => {$(
        impl<'de $(, $of: $bound)?> Deserialize<'de> for $type$(<$of>)? {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_any(Taking(PhantomData::<Self>))
            }
        }
    )*};
}

/// A field's value of one type, as a member of [`Members`].
pub(super) trait Member: for<'de> Deserialize<'de> {}
impl Member for Text {}
impl Member for Length {}

deserialize_by_taking!(Skip, Text, Texts, Length, Flag, Object<F: Fields>, Members<T: Member>);

impl<'de> Taker<'de> for PhantomData<Skip> {
    type Taken = Skip;
    fn other(self) -> Skip {
        Skip
    }
}

impl<'de> Taker<'de> for PhantomData<Text> {
    type Taken = Text;
    fn other(self) -> Text {
        Text(None)
    }
    fn text(self, value: &str) -> Text {
        Text(Some(value.to_owned()))
    }
}

impl<'de> Taker<'de> for PhantomData<Texts> {
    type Taken = Texts;
    fn other(self) -> Texts {
        Texts::default()
    }
    fn array<A: SeqAccess<'de>>(self, mut from: A) -> Result<Texts, A::Error> {
        let mut texts = Texts::default();
        while let Some(Text(text)) = from.next_element()? {
            let Some(text) = text else { continue };
            if texts.list.len() == MOST_TEXTS {
                texts.too_many = true;
                while from.next_element::<Skip>()?.is_some() {}
                break;
            }
            texts.list.push(text);
        }
        Ok(texts)
    }
}

impl<'de> Taker<'de> for PhantomData<Length> {
    type Taken = Length;
    fn other(self) -> Length {
        Length(None)
    }
    fn number(self, value: u64) -> Length {
        Length(Some(value))
    }
}

impl<'de> Taker<'de> for PhantomData<Flag> {
    type Taken = Flag;
    fn other(self) -> Flag {
        Flag(Truth::Odd)
    }
    fn null(self) -> Flag {
        Flag(Truth::No)
    }
    fn bool(self, value: bool) -> Flag {
        Flag(if value { Truth::Yes } else { Truth::No })
    }
}

impl<'de, F: Fields> Taker<'de> for PhantomData<Object<F>> {
    type Taken = Object<F>;
    fn other(self) -> Object<F> {
        Object(None)
    }
    fn object<A: MapAccess<'de>>(self, mut from: A) -> Result<Object<F>, A::Error> {
        let mut fields = F::default();
        while let Some(name) = from.next_key::<Cow<'de, str>>()? {
            fields.take(&name, &mut from)?;
        }
        Ok(Object(Some(fields)))
    }
}

impl<'de, T: Member> Taker<'de> for PhantomData<Members<T>> {
    type Taken = Members<T>;
    fn other(self) -> Members<T> {
        Members::default()
    }
    fn object<A: MapAccess<'de>>(self, mut from: A) -> Result<Members<T>, A::Error> {
        let mut members = Members::default();
        while let Some((name, value)) = from.next_entry::<String, T>()? {
            if members.all.len() == MOST_TEXTS {
                members.too_many = true;
                while from.next_entry::<Skip, Skip>()?.is_some() {}
                break;
            }
            members.all.insert(name, value);
        }
        Ok(members)
    }
}

/// Calls `each` for every element of the JSON array in `content`; a missing, empty or
/// `null` array has none.
///
/// # Errors
/// In words, when the content is not one array and nothing else. The elements before the
/// fault have been handed over by then.
pub(in crate::stores::containers_storage) fn each_element<F: Fields>(
    content: &[u8],
    each: impl FnMut(Option<F>),
) -> Result<(), String> {
    struct Elements<E, F>(E, PhantomData<F>);
    impl<'de, F: Fields, E: FnMut(Option<F>)> Visitor<'de> for Elements<E, F> {
        type Value = ();

        fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
            to.write_str("an array of records")
        }

        fn visit_unit<R: Error>(self) -> Result<(), R> {
            Ok(())
        }

        fn visit_seq<A: SeqAccess<'de>>(mut self, mut elements: A) -> Result<(), A::Error> {
            while let Some(Object(element)) = elements.next_element()? {
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
        .deserialize_any(Elements(each, PhantomData))
        .and_then(|()| deserializer.end().map_err(|_| serde_json::Error::custom("text after the array")))
        .map_err(|error| format!("is not valid: {error}"))
}

/// The object in `content`, if there is one.
pub(in crate::stores::containers_storage) fn object<F: Fields>(content: &[u8]) -> Option<F> {
    serde_json::from_slice::<Object<F>>(content).ok()?.0
}

/// The record's id: any text that can be a file name, so that no id leads elsewhere.
pub(super) fn id(id: Text) -> Result<String, String> {
    let id = id.filled().ok_or("it has no id")?;
    let is_name = id.len() <= 255 && id != "." && id != ".." && !id.contains(['/', '\0']);
    if is_name { Ok(id) } else { Err(format!("its id {:?} cannot be a directory name", beginning(&id))) }
}

fn beginning(text: &str) -> String {
    text.chars().take(255).collect()
}

impl Text {
    /// A text that is there and not empty.
    pub(super) fn filled(self) -> Option<String> {
        self.0.filter(|text| !text.is_empty())
    }

    /// A time; Go's zero time (year 1) means that there is none.
    pub(super) fn time(self) -> Option<Timestamp> {
        let time: Timestamp = self.0?.parse().ok()?;
        (time > Timestamp::UNIX_EPOCH).then_some(time)
    }
}

fn too_many(what: &str) -> String {
    format!("it has more than {MOST_TEXTS} {what}")
}

impl Texts {
    /// All of them; `what` they are, for the error when they are too many.
    pub(super) fn all(self, what: &str) -> Result<Vec<String>, String> {
        if self.too_many { Err(too_many(what)) } else { Ok(self.list) }
    }
}

impl<T> Members<T> {
    /// As [`Texts::all`].
    pub(super) fn all(self, what: &str) -> Result<BTreeMap<String, T>, String> {
        if self.too_many { Err(too_many(what)) } else { Ok(self.all) }
    }
}
