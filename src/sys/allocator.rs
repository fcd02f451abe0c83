//! Settings of glibc's allocator, so that it keeps little memory.

/// Size from which blocks are mapped separately, so that the system gets them back when they are freed. glibc
/// itself raises its limit to the largest block freed so far, up to 32 MiB.
#[cfg(target_env = "gnu")]
const MAPPED_FROM: i32 = 1 << 20;

/// Limits the memory that the allocator keeps.
///
/// Call this before any thread starts. Otherwise each of the first threads, up to eight per core, gets a heap of
/// its own, and memory that it frees there cannot be used by other threads.
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
    // SAFETY: mallopt takes two integers, does not touch the caller's memory and takes the allocator's own lock.
    let is_set = unsafe { nix::libc::mallopt(option, value) };
    if is_set == 0 {
        tracing::debug!(option, value, "the allocator does not know this option");
    }
}
