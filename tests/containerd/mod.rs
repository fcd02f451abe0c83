//! Real containerds: what is read of them, and what is deleted there.

mod containerd_agrees;
mod containerd_fixtures;
mod containerd_frees;
mod containerd_scan;
mod cri_containerd;
mod gc_containerd;
