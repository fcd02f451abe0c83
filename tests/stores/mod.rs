//! Reading of stores: images, containers, leaks, artifacts and lenders; damaged, busy and read-only stores.

mod artifact_runtime;
mod artifact_store;
mod bounds;
mod busy_store;
mod fixtures_read;
mod hostile;
mod leak_proofs;
mod lenders;
mod node_volumes;
pub mod origins;
mod podman_agrees;
mod podman_records;
mod read_only_proof;
mod read_only_stores;
mod scan_faults;
mod scan_kill;
mod scan_records;
mod settling;
mod storage_163;
mod store_config;
mod store_config_podman;
mod stray_files;
mod traps;
mod unmeasured_drivers;
mod waste;
