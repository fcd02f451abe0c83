//! Kernel interfaces that several modules share. Knows nothing about stores.

pub mod allocator;
pub mod allowance;
pub mod beneath;
pub mod btrfs;
mod cgroups;
pub mod clock;
pub mod deleted;
pub mod ext4;
pub mod fiemap;
pub mod helper;
pub mod ioprio;
pub mod mounts;
pub mod namespaces;
pub mod new_file;
mod patience;
pub mod processes;
pub mod quiet;
pub mod readlink;
pub mod removal;
pub mod root;
mod servers;
pub mod sqlite;
pub mod stop;
pub mod sync;
pub mod sysroot;
pub mod users;
pub mod xfs;
