//! What a rule says of an image: the form of a verdict, which every policy fills. Pure.

/// What one rule says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ruling {
    /// The rule's name.
    pub rule: &'static str,
    /// The rule keeps the image.
    pub stays: bool,
    /// Why, in words.
    pub detail: String,
}
