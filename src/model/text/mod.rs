//! Names, references, paths and sizes as text.

pub mod display;
pub(crate) mod names;
pub mod path_text;
pub mod pattern;
pub mod reference;
pub mod volume;
