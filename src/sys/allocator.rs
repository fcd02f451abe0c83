//! The allocator of glibc, told to keep little.

/// Larger blocks are mapped one by one, so that they go back to the system when they are freed. glibc raises
/// its own limit to the largest block that was freed so far: 32 MiB.
#[cfg(target_env = "gnu")]
const MAPPED_FROM: i32 = 1 << 20;

/// Call this first thing, before any thread starts. Otherwise each of the first threads, up to eight a core,
/// gets a heap of its own, and what it frees there is of no use to the others.
pub fn keep_little() {
    #[cfg(target_env = "gnu")]
    {
        set(nix::libc::M_ARENA_MAX, 1);
        set(nix::libc::M_MMAP_THRESHOLD, MAPPED_FROM);
    }
}

#[cfg(target_env = "gnu")]
#[allow(unsafe_code)]
fn set(option: i32, value: i32) {
    // SAFETY: mallopt takes two integers, touches no memory of ours and takes the allocator's own lock.
    let is_set = unsafe { nix::libc::mallopt(option, value) };
    if is_set == 0 {
        tracing::debug!(option, value, "the allocator does not know this option");
    }
}
