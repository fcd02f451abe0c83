//! The database: runs, ages, uses, damage, and retention.

mod diff_command;
mod growth;
mod history_commands;
mod records_alone;
mod records_faults;
mod records_journal;
mod records_kill;
mod records_observe;
mod records_retention;
mod replay;
mod repull;
mod story_of_image;
