//! Objects that other users can plant, hold or hide, and proofs that root does not change their files.

mod border_machine;
mod border_names;
mod border_processes;
mod border_rootless;
mod border_runs;
mod border_scene;
mod border_stores;
mod border_symlinks;
mod border_tmp;
