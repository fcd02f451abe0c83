//! Real containerds, with those of Docker and BuildKit: reading them, and deleting in them.

mod containerd_agrees;
mod containerd_fixtures;
mod containerd_frees;
mod containerd_growth;
mod containerd_origins;
mod containerd_scan;
mod containerd_unknown;
mod cri_containerd;
mod docker_stores;
mod every_store;
mod gc_containerd;
mod stopped_containers;
