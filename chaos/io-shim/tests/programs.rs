//! The shim in programs that know nothing of it: `dd` and `date` of the system.

#![allow(clippy::disallowed_methods, reason = "what is tested are the real clocks of other processes")]

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

#[allow(dead_code, reason = "the shim's side uses the rest")]
#[path = "../src/orders.rs"]
mod orders;

use orders::{BOOT_VARIABLE, DATA_VARIABLE, MAGIC, PAGE_BYTES, PAGE_VARIABLE, Place};

/// A page of orders and a folder to hurt, and one beside it.
struct Bench {
    dir: PathBuf,
    page: std::fs::File,
}

impl Bench {
    fn new(name: &str) -> Bench {
        let dir = std::env::temp_dir().join(format!("io-shim-test-{name}-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("data")).unwrap();
        std::fs::create_dir_all(dir.join("other")).unwrap();
        let page = std::fs::File::options().read(true).write(true).create(true).truncate(true).open(dir.join("page"));
        let bench = Bench { page: page.unwrap(), dir };
        bench.page.set_len(PAGE_BYTES as u64).unwrap();
        bench.set(Place::Magic, MAGIC);
        bench
    }

    fn set(&self, place: Place, value: u64) {
        self.page.write_all_at(&value.to_le_bytes(), place as u64).unwrap();
    }

    fn get(&self, place: Place) -> u64 {
        let mut bytes = [0; 8];
        self.page.read_exact_at(&mut bytes, place as u64).unwrap();
        u64::from_le_bytes(bytes)
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Output {
        Command::new(program)
            .args(arguments)
            .env("LD_PRELOAD", shim())
            .env(PAGE_VARIABLE, self.dir.join("page"))
            .env(DATA_VARIABLE, self.dir.join("data"))
            .env(BOOT_VARIABLE, self.dir.join("boot"))
            .env("LC_ALL", "C")
            .output()
            .unwrap()
    }

    /// Writes a file and syncs it; the text of the error if that fails.
    fn write(&self, name: &str) -> Result<(), String> {
        let to = format!("of={}", self.dir.join(name).display());
        let output = self.run("dd", &["if=/dev/zero", &to, "bs=512", "count=2", "conv=fsync", "status=none"]);
        if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
    }

    fn wall_seconds(&self) -> i64 {
        String::from_utf8(self.run("date", &["+%s"]).stdout).unwrap().trim().parse().unwrap()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Built like this test, once: cargo does not build a library that nothing links for the tests of its package.
fn shim() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let build = || {
        let own = std::env::current_exe().unwrap();
        let profile_dir = own.parent().and_then(Path::parent).expect("tests are in a folder of their profile");
        let profile = profile_dir.file_name().and_then(|name| name.to_str()).expect("a profile's name");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let status = Command::new(cargo)
            .args(["build", "-p", "flotilla-io-shim", "--profile", if profile == "debug" { "dev" } else { profile }])
            .arg("--target-dir")
            .arg(profile_dir.parent().expect("the target folder"))
            .status();
        assert!(status.expect("cargo runs").success(), "the library was not built");
        profile_dir.join("libflotilla_io_shim.so")
    };
    BUILT.get_or_init(build).clone()
}

fn now_seconds() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(now.as_secs()).unwrap()
}

#[test]
fn without_orders_nothing_changes() {
    let bench = Bench::new("idle");
    assert_eq!(bench.write("data/f"), Ok(()));
    assert!((bench.wall_seconds() - now_seconds()).abs() < 60);
    assert_eq!((bench.get(Place::WritesHurt), bench.get(Place::SyncsHurt), bench.get(Place::ClockLooks)), (0, 0, 0));
}

#[test]
fn writes_fail_below_the_folder_and_nowhere_else() {
    let bench = Bench::new("write");
    bench.set(Place::WriteErrno, 28);
    let error = bench.write("data/f").unwrap_err();
    assert!(error.contains("No space left"), "{error}");
    assert_eq!(bench.write("other/f"), Ok(()));
    assert_eq!(bench.write("data.log"), Ok(()), "beside the folder, though its name begins alike");
    assert!(bench.get(Place::WritesHurt) > 0);
    bench.set(Place::WriteErrno, 0);
    assert_eq!(bench.write("data/f"), Ok(()));
}

#[test]
fn one_sync_fails_after_some_that_pass_and_later_ones_pass_again() {
    let bench = Bench::new("sync");
    bench.set(Place::SyncsPass, 1);
    bench.set(Place::SyncsFail, 1);
    bench.set(Place::SyncErrno, 5);
    assert_eq!(bench.write("data/a"), Ok(()));
    let error = bench.write("data/b").unwrap_err();
    assert!(error.contains("Input/output error"), "{error}");
    assert_eq!(bench.write("data/c"), Ok(()));
    assert_eq!((bench.get(Place::SyncsHurt), bench.get(Place::SyncErrno)), (1, 0));
}

#[test]
fn a_sync_can_take_longer_or_do_nothing() {
    let bench = Bench::new("slow");
    bench.set(Place::SyncDelayUs, 300_000);
    let begun = std::time::Instant::now();
    assert_eq!(bench.write("data/f"), Ok(()));
    assert!(begun.elapsed() >= std::time::Duration::from_millis(300));
    bench.set(Place::SyncDelayUs, 0);
    bench.set(Place::SyncLies, 1);
    assert_eq!(bench.write("data/f"), Ok(()));
    assert_eq!(bench.get(Place::SyncsHurt), 2);
}

#[test]
fn the_wall_clock_is_shifted_and_can_go_back() {
    let bench = Bench::new("clock");
    for hours in [5_i64, -5] {
        bench.set(Place::ClockOffsetNs, (hours * 3_600 * 1_000_000_000).cast_unsigned());
        let shift = bench.wall_seconds() - now_seconds();
        assert!((shift - hours * 3_600).abs() < 60, "{shift}");
    }
    assert!(bench.get(Place::ClockLooks) > 0);
}

#[test]
fn a_process_finds_the_boot_id_that_it_was_given() {
    let bench = Bench::new("boot");
    std::fs::write(bench.dir.join("boot"), "boot-7\n").unwrap();
    let read = |path: &str| bench.run("dd", &[&format!("if={path}"), "status=none"]).stdout;
    assert_eq!(read("/proc/sys/kernel/random/boot_id"), b"boot-7\n");
    assert_ne!(read("/proc/version"), b"boot-7\n");
}
