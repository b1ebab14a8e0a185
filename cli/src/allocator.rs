//! How the C library's allocator keeps memory of processes that run for months.
//!
//! glibc takes buffers of up to 32 MiB from its heaps once such a buffer was freed before, and has eight heaps for each core. A
//! buffer for a checkpoint then lies now in one heap, now in another, with what lives longer right behind it, so that its pages do
//! not go back to the system: replicas under a steady load grew with each checkpoint (mallopt(3): `M_MMAP_THRESHOLD`,
//! `M_ARENA_MAX`). Here large buffers are mappings of their own, which end with them, and there is a heap for each core.

/// Bytes from which on a buffer is a mapping of its own: a checkpoint's, not a message's. With 1 MiB messages of 2 MB were sent at
/// little more than half the rate, for each of their buffers was mapped, cleared and unmapped.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAPPED_FROM_BYTES: libc::c_int = 6 << 20;

/// To be called before threads are started. With another C library this does nothing.
pub fn settle() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let heaps = libc::c_int::try_from(cores.max(2)).unwrap_or(libc::c_int::MAX);
        for (parameter, value) in [(libc::M_MMAP_THRESHOLD, MAPPED_FROM_BYTES), (libc::M_ARENA_MAX, heaps)] {
            // SAFETY: the call takes two numbers, and the allocator guards itself; nothing else runs yet.
            #[allow(unsafe_code, reason = "the C library's allocator has no safe face")]
            let taken = unsafe { libc::mallopt(parameter, value) };
            debug_assert_eq!(taken, 1, "mallopt({parameter}, {value})");
        }
    }
}
