//! The bytes of a tree, the bytes that a filesystem frees, and sizes that are kept from earlier scans.

mod archive;
mod filesystem_costs;
mod frees_bytes;
mod inode_chunks;
mod loopfs;
mod mount_points;
mod rescan;
mod rescan_frees;
mod shared_extents;
mod sum_is_du;
mod walker;
mod walker_descriptors;
