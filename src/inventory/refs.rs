//! Reference counts, exclusive bytes, and what would leave the disk if a set went.
