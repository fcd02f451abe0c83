//! Direct edits of a graphroot: locks, crashes, full disks, other tools at work.

mod edit_crash;
mod edit_full_disk;
mod edit_hostile;
mod edit_images;
mod edit_killed_on_full_disk;
mod edit_layouts;
mod edit_leftovers;
mod edit_nothing_prepared;
mod edit_power_cuts;
mod edit_resume;
mod edit_storm;
