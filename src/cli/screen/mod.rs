//! Streams, the terminal, signals and files that are written.

pub mod full_screen;
pub mod outfile;
pub mod output;
pub mod own_commands;
pub mod progress;
pub mod stop;
pub mod terminal;
