//! What others can plant, hold or hide, and that nothing of theirs is touched.

mod border_names;
mod border_processes;
mod border_rootless;
mod border_runs;
mod border_scene;
mod border_stores;
mod border_symlinks;
mod border_tmp;
