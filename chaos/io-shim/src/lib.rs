//! Loaded into a server process (`LD_PRELOAD`): its file writes, syncs and wall clock then fail as a page of orders says, and
//! it finds the boot id that it is given: a machine that lost power has booted since.
//!
//! The program itself is unmodified. Calls go to the C library as ever unless an order stands; only descriptors of
//! regular files below one folder are hurt, so that logs and sockets go on. What was done is counted on the page.

#![allow(unsafe_code, reason = "taking over C functions has no safe face")]
// The C library's own names and signatures.
#![allow(clippy::missing_safety_doc, reason = "each is the C function of that name and asks what that asks")]

mod orders;

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::orders::{BOOT_VARIABLE, DATA_VARIABLE, MAGIC, PAGE_BYTES, PAGE_VARIABLE, Place};

/// The mapped page and the folder, found once.
struct Orders {
    page: *const AtomicU64,
    data: Vec<u8>,
}

// SAFETY: the page is a shared map that lives as long as the process, and is only touched by atomics.
unsafe impl Send for Orders {}
// SAFETY: as above.
unsafe impl Sync for Orders {}

impl Orders {
    fn at(&self, place: Place) -> &AtomicU64 {
        // SAFETY: `Place` values are multiples of 8 below `PAGE_BYTES`, the map is page-aligned and never unmapped.
        unsafe { &*self.page.add(place as usize / 8) }
    }

    fn get(&self, place: Place) -> u64 {
        u64::from_le(self.at(place).load(Ordering::Relaxed))
    }

    fn count(&self, place: Place) {
        self.at(place).fetch_add(1, Ordering::Relaxed);
    }

    /// Whether `fd` is a file below the folder.
    fn owns(&self, fd: c_int) -> bool {
        let Ok(link) = CString::new(format!("/proc/self/fd/{fd}")) else { return false };
        let mut path = [0_u8; 4_096];
        // SAFETY: `link` is a C string and `path` is writable for the length given; both outlive the call.
        let length = unsafe { libc::readlink(link.as_ptr(), path.as_mut_ptr().cast(), path.len()) };
        usize::try_from(length).is_ok_and(|length| self.holds(&path[..length]))
    }

    /// Whether a path is the folder or below it: `data.log` beside `data` is not.
    fn holds(&self, path: &[u8]) -> bool {
        path.strip_prefix(self.data.as_slice()).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
    }
}

fn orders() -> Option<&'static Orders> {
    static ORDERS: OnceLock<Option<Orders>> = OnceLock::new();
    ORDERS.get_or_init(find_orders).as_ref()
}

/// A variable of the environment, without `std::env`: this may run before the program's `main`, inside any call.
fn variable(name: &str) -> Option<CString> {
    let name = CString::new(name).ok()?;
    // SAFETY: `name` is a C string; the answer is null or a C string that nobody changes: the harness sets these
    // variables before the process starts, and servers set none.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: as above, and not null.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_owned())
}

/// No use of `std::fs`, for the same reason.
fn find_orders() -> Option<Orders> {
    let (page, data) = (variable(PAGE_VARIABLE)?, variable(DATA_VARIABLE)?);
    // SAFETY: a C string and constant flags.
    let fd = unsafe { libc::open(page.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    if fd < 0 {
        return None;
    }
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new map of a file that the harness made `PAGE_BYTES` long and never shortens.
    let map = unsafe { libc::mmap(std::ptr::null_mut(), PAGE_BYTES, protection, libc::MAP_SHARED, fd, 0) };
    // SAFETY: `fd` is ours; the map stays.
    unsafe { libc::close(fd) };
    if map == libc::MAP_FAILED {
        return None;
    }
    let orders = Orders { page: map.cast(), data: data.into_bytes() };
    (orders.get(Place::Magic) == MAGIC).then_some(orders)
}

/// Calls the C library's own function of that name with the arguments that the program gave.
macro_rules! pass {
    ($name:literal, ($($kind:ty),*) -> $answer:ty, $($argument:expr),*) => {{
        static REAL: OnceLock<usize> = OnceLock::new();
        let address = *REAL.get_or_init(|| {
            let name: &CStr = $name;
            // SAFETY: a C string; `RTLD_NEXT` asks for the next object that has it, the C library.
            unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) as usize }
        });
        // SAFETY: the C library has a function of this name with exactly this signature; the arguments are those of a
        // caller who meant to call it.
        unsafe { std::mem::transmute::<usize, unsafe extern "C" fn($($kind),*) -> $answer>(address)($($argument),*) }
    }};
}

/// Where the system tells the id of the boot.
const BOOT_ID: &CStr = c"/proc/sys/kernel/random/boot_id";

/// The file to open in place of the one asked for, if that is the id of the boot.
fn boot_instead(path: *const c_char) -> *const c_char {
    static BOOT: OnceLock<Option<CString>> = OnceLock::new();
    // SAFETY: whoever opens a file gives a C string.
    if path.is_null() || unsafe { CStr::from_ptr(path) } != BOOT_ID {
        return path;
    }
    BOOT.get_or_init(|| variable(BOOT_VARIABLE)).as_ref().map_or(path, |given| given.as_ptr())
}

// Both are variadic in C: callers that create no file leave the third argument out, and whatever stands in its place is then
// passed on to a function that does not look at it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    let path = boot_instead(path);
    pass!(c"open", (*const c_char, c_int, libc::mode_t) -> c_int, path, flags, mode)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    let path = boot_instead(path);
    pass!(c"open64", (*const c_char, c_int, libc::mode_t) -> c_int, path, flags, mode)
}

fn fail(errno: u64) {
    // SAFETY: the address of this thread's own error number.
    unsafe { *libc::__errno_location() = c_int::try_from(errno).unwrap_or(libc::EIO) };
}

/// The error that a write to `fd` must answer, if any.
fn write_fails(fd: c_int) -> bool {
    let Some(orders) = orders() else { return false };
    let errno = orders.get(Place::WriteErrno);
    if errno == 0 || !orders.owns(fd) {
        return false;
    }
    orders.count(Place::WritesHurt);
    fail(errno);
    true
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, bytes: *const c_void, count: usize) -> isize {
    if write_fails(fd) {
        return -1;
    }
    pass!(c"write", (c_int, *const c_void, usize) -> isize, fd, bytes, count)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn writev(fd: c_int, parts: *const libc::iovec, count: c_int) -> isize {
    if write_fails(fd) {
        return -1;
    }
    pass!(c"writev", (c_int, *const libc::iovec, c_int) -> isize, fd, parts, count)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwrite64(fd: c_int, bytes: *const c_void, count: usize, at: i64) -> isize {
    if write_fails(fd) {
        return -1;
    }
    pass!(c"pwrite64", (c_int, *const c_void, usize, i64) -> isize, fd, bytes, count, at)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fallocate(fd: c_int, mode: c_int, at: i64, count: i64) -> c_int {
    if write_fails(fd) {
        return -1;
    }
    pass!(c"fallocate", (c_int, c_int, i64, i64) -> c_int, fd, mode, at, count)
}

/// What a sync does instead of the real one: `Some` is its answer.
fn sync_instead(fd: c_int) -> Option<c_int> {
    let orders = orders()?;
    let (delay_us, errno, lies) =
        (orders.get(Place::SyncDelayUs), orders.get(Place::SyncErrno), orders.get(Place::SyncLies));
    if (delay_us == 0 && errno == 0 && lies == 0) || !orders.owns(fd) {
        return None;
    }
    if delay_us > 0 {
        orders.count(Place::SyncsHurt);
        let pause = libc::timespec {
            tv_sec: i64::try_from(delay_us / 1_000_000).unwrap_or(i64::MAX),
            tv_nsec: (delay_us % 1_000_000) as i64 * 1_000,
        };
        // SAFETY: `pause` outlives the call; the rest of an interrupted pause is not asked for.
        unsafe { libc::nanosleep(&pause, std::ptr::null_mut()) };
    }
    if lies != 0 {
        orders.count(Place::SyncsHurt);
        return Some(0);
    }
    if errno == 0 {
        return None;
    }
    let counted = |place| {
        let one_less = |value: u64| u64::from_le(value).checked_sub(1).map(u64::to_le);
        orders.at(place).fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    };
    if counted(Place::SyncsPass) {
        return None;
    }
    // The last of a limited number takes the order away.
    if counted(Place::SyncsFail) && orders.get(Place::SyncsFail) == 0 {
        orders.at(Place::SyncErrno).store(0, Ordering::Relaxed);
    }
    orders.count(Place::SyncsHurt);
    fail(errno);
    Some(-1)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fsync(fd: c_int) -> c_int {
    sync_instead(fd).unwrap_or_else(|| pass!(c"fsync", (c_int) -> c_int, fd))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdatasync(fd: c_int) -> c_int {
    sync_instead(fd).unwrap_or_else(|| pass!(c"fdatasync", (c_int) -> c_int, fd))
}

/// Tells less room than there is, where the order says so.
fn told_less(path: *const c_char, stat: *mut libc::statvfs) {
    let Some(orders) = orders() else { return };
    let told = orders.get(Place::FreeBytesPlusOne);
    if told == 0 || path.is_null() || stat.is_null() {
        return;
    }
    // SAFETY: the caller gave a C string.
    let path = unsafe { CStr::from_ptr(path) };
    if orders.holds(path.to_bytes()) {
        // SAFETY: the C library has just filled it.
        let stat = unsafe { &mut *stat };
        let blocks = (told - 1) / stat.f_frsize.max(1);
        (stat.f_bavail, stat.f_bfree) = (stat.f_bavail.min(blocks), stat.f_bfree.min(blocks));
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn statvfs(path: *const c_char, stat: *mut libc::statvfs) -> c_int {
    let answer = pass!(c"statvfs", (*const c_char, *mut libc::statvfs) -> c_int, path, stat);
    if answer == 0 {
        told_less(path, stat);
    }
    answer
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn statvfs64(path: *const c_char, stat: *mut libc::statvfs) -> c_int {
    let answer = pass!(c"statvfs64", (*const c_char, *mut libc::statvfs) -> c_int, path, stat);
    if answer == 0 {
        told_less(path, stat);
    }
    answer
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> c_int {
    let real = |clock, time| pass!(c"clock_gettime", (libc::clockid_t, *mut libc::timespec) -> c_int, clock, time);
    let answer = real(clock, time);
    if answer != 0 || (clock != libc::CLOCK_REALTIME && clock != libc::CLOCK_REALTIME_COARSE) {
        return answer;
    }
    let Some(orders) = orders() else { return answer };
    let (offset, drift) =
        (orders.get(Place::ClockOffsetNs).cast_signed(), orders.get(Place::ClockDriftPpm).cast_signed());
    if offset == 0 && drift == 0 {
        return answer;
    }
    let mut shift = i128::from(offset);
    if drift != 0 {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        real(libc::CLOCK_MONOTONIC, &mut now);
        let now = i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec);
        let first = u64::try_from(now).unwrap_or(1);
        let since = orders.at(Place::ClockDriftSinceNs);
        let since = match since.compare_exchange(0, first.to_le(), Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => first,
            Err(set) => u64::from_le(set),
        };
        shift += (now - i128::from(since)) * i128::from(drift) / 1_000_000;
    }
    // SAFETY: the C library has just filled it.
    let time = unsafe { &mut *time };
    let shifted = (i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec) + shift).max(0);
    time.tv_sec = i64::try_from(shifted / 1_000_000_000).unwrap_or(i64::MAX);
    time.tv_nsec = (shifted % 1_000_000_000) as i64;
    orders.count(Place::ClockLooks);
    answer
}
