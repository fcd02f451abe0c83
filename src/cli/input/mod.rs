//! Arguments as they are typed, and what help and man pages say of them.

pub mod address;
pub mod args;
pub mod filter;
pub mod help;
pub mod man;
pub mod values;
