//! Real containerds, Docker's and BuildKit's too: what is read of them, and what is deleted there.

mod containerd_agrees;
mod containerd_fixtures;
mod containerd_frees;
mod containerd_scan;
mod cri_containerd;
mod docker_stores;
mod gc_containerd;
