//! Rules for images by name (`[[images.rule]]`).
//!
//! Each name of an image has the values of the first rule that matches it, and those of the policy for what that rule
//! does not set, or if none matches. Of several names, the values that keep the image longer count.

use jiff::SignedDuration;

use crate::model::Pattern;

/// Ages, and the number of newest images to keep, for the images that a pattern covers.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageRule {
    pub pattern: Pattern,
    pub min_age: Option<SignedDuration>,
    /// `Some(None)`: the images are not deleted by age.
    pub max_age: Option<Option<SignedDuration>>,
    pub keep_newest: Option<usize>,
    /// File and line.
    pub place: String,
}

/// A value for an image, and the rule that sets it; without a rule, the policy does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit<'a, T> {
    pub value: T,
    pub rule: Option<&'a ImageRule>,
}

impl<T> Limit<'_, T> {
    /// Returns ` by the rule …`; empty without a rule.
    #[must_use]
    pub fn origin(&self) -> String {
        self.rule.map_or_else(String::new, |rule| format!(" by the rule {}", rule.title()))
    }
}

impl ImageRule {
    /// Returns the pattern with its file and line.
    #[must_use]
    pub fn title(&self) -> String {
        format!("{} ({})", self.pattern.text(), self.place)
    }
}
