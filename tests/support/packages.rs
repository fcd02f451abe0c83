//! The packages of `make packages`, and Debian roots to install them in: one entered by chroot only, and one booted
//! by its own systemd.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use super::loopfs::LoopFs;
use super::program::{self, Run};

/// Timeout for actions of systemd.
const PATIENCE: Duration = Duration::from_secs(120);

/// Returns the directory of the sources.
pub fn sources() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns a path below `target/` for files that take long to make.
fn kept(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("a target directory").join(name)
}

/// Takes a lock that one test program holds at a time, until it is dropped.
fn alone(name: &str) -> Flock<OwnedFd> {
    let file = File::create(kept(&format!("{name}.lock"))).expect("making a lock file");
    Flock::lock(OwnedFd::from(file), FlockArg::LockExclusive).map_err(|(_, error)| error).expect("a lock")
}

/// Returns a command of the packaging, with cargo's and the system's programs in its PATH.
pub fn tool(name: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(name);
    let path = std::env::var("PATH").unwrap_or_default();
    let home = std::env::var("HOME").unwrap_or_else(|_| "/root".into());
    command.env("PATH", format!("{path}:{home}/.cargo/bin:/usr/sbin:/sbin")).current_dir(sources());
    // The packages are not sent over a network: compress them quickly.
    command.env("XZ_LEVEL", "0");
    // These belong to the build of this test, not to that of the packages.
    for name in ["CARGO", "CARGO_MANIFEST_DIR", "RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "LLVM_PROFILE_FILE"] {
        command.env_remove(name);
    }
    command
}

/// Runs a command and returns its standard output; fails with its output.
pub fn succeed(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success(), "{command:?}: {}\n{stdout}\n{stderr}", output.status);
    stdout.into_owned()
}

/// Returns the directory of the packages of [`shipped_program`], and builds them if a file in them is newer.
pub fn packages() -> PathBuf {
    let _alone = alone("test-packages");
    let dir = kept("test-packages");
    let complete = dir.join(".complete");
    let built = std::fs::metadata(&complete).and_then(|facts| facts.modified()).ok();
    if built.is_none_or(|built| newest_source() > built) {
        let started = SystemTime::now();
        succeed(Command::new("rm").args(["-rf", "--one-file-system"]).arg(&dir));
        let program = program_in(&dir);
        std::fs::create_dir_all(program.parent().expect("a directory")).expect("a directory for the program");
        let symbols = program.with_extension("debug");
        // Without the lines and types, which take seconds to compress.
        let keep = ["--only-keep-debug", "--remove-section=.debug_*"];
        succeed(tool("objcopy").args(keep).arg(PROGRAM).arg(symbols));
        succeed(tool("objcopy").arg("--strip-all").arg(PROGRAM).arg(&program));
        succeed(tool("packaging/build.sh").env("OUT", &dir).env("BINARY", &program));
        let file = File::create(&complete).expect("marking the packages as complete");
        file.set_modified(started).expect("dating the packages");
    }
    dir
}

const PROGRAM: &str = env!("CARGO_BIN_EXE_layersweep");

fn newest_source() -> SystemTime {
    let parts =
        ["packaging", "docs", "Cargo.toml", "Cargo.lock", "LICENSE", "NOTICE", "README.md", "CHANGELOG.md"];
    let files = parts.iter().flat_map(|part| walkdir::WalkDir::new(sources().join(part)));
    let times = files.map(|entry| entry.expect("a source").metadata().expect("its facts"));
    let program = std::fs::metadata(PROGRAM).expect("the program").modified().ok();
    times.filter_map(|facts| facts.modified().ok()).chain(program).max().expect("sources")
}

fn program_in(packages: &Path) -> PathBuf {
    packages.join("program/layersweep")
}

/// Returns the path of the program in the packages: that of the tests, without its symbols.
pub fn shipped_program() -> PathBuf {
    program_in(&packages())
}

/// Returns the package in `dir` whose name is `start`, a version, and `end`.
pub fn package(dir: &Path, start: &str, end: &str) -> PathBuf {
    let paths = std::fs::read_dir(dir).expect("the packages").map(|entry| entry.expect("an entry").path());
    let found = paths.into_iter().find(|path| {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        name.strip_prefix(start).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
            && name.ends_with(end)
    });
    found.unwrap_or_else(|| panic!("no {start}*{end} in {}", dir.display()))
}

/// Returns whether packages can be built here and `programs` are installed; skips, or fails under CI.
pub fn ready(programs: &[&str]) -> bool {
    super::require_root()
        && ["dpkg-deb", "rpmbuild", "objcopy", "jq"].iter().all(|program| super::require_program(program))
        && programs.iter().all(|program| super::require_program(program))
}

/// Returns the path of the DEB.
pub fn deb() -> PathBuf {
    package(&packages(), "layersweep_", ".deb")
}

/// Returns the path of the DEB with the cron jobs.
pub fn cron_deb() -> PathBuf {
    package(&packages(), "layersweep-cron_", "_all.deb")
}

/// Returns the path of the RPM.
pub fn rpm() -> PathBuf {
    package(&packages(), "layersweep-", "x86_64.rpm")
}

/// Checks that a run prints nothing but the links of units that it created or removed.
pub fn quietly(run: Run) -> Run {
    let run = run.expect_code(0);
    let unexpected = run.stderr.lines().filter(|line| {
        let is_link = line.contains("layersweep-") && line.contains(" symlink ");
        // Up to Debian 12, systemd's own files are registered below /lib, the same directory.
        !is_link && !line.ends_with("system-preset' not empty so not removed")
    });
    assert_eq!(unexpected.collect::<Vec<_>>(), Vec::<&str>::new(), "{run:?}");
    run
}

/// Lists the files of layersweep that are left in the root.
pub fn remains(root: &Root) -> String {
    root.run("find / -xdev -name '*layersweep*' ! -path '/proc/*' ! -path '/root/*' ! -path '/var/lib/dpkg/*' ! -path '/var/log/*'")
        .stdout
}

/// A small private Debian with systemd, which is deleted when the value is dropped.
#[derive(Debug)]
pub struct Root {
    dir: TempDir,
}

impl Root {
    /// Makes the root.
    pub fn new() -> Self {
        Self::with(&[])
    }

    /// Makes a root with more packages of Debian.
    pub fn with(packages: &[&str]) -> Self {
        let dir = tempfile::Builder::new().prefix("root-").tempdir_in(env!("CARGO_TARGET_TMPDIR"));
        let dir = dir.expect("a directory for a root");
        succeed(tool("tests/rigs/debian-root.sh").arg(dir.path()).args(packages));
        Self { dir }
    }

    /// Returns a path in the root.
    pub fn path(&self, inside: &str) -> PathBuf {
        self.dir.path().join(inside.trim_start_matches('/'))
    }

    /// Copies a package into the root; returns its path there.
    pub fn bring(&self, package: &Path) -> String {
        let name = package.file_name().and_then(OsStr::to_str).expect("the name of a package");
        std::fs::copy(package, self.path(&format!("root/{name}"))).expect("copying a package");
        format!("/root/{name}")
    }

    /// Runs a shell script in a chroot: no systemd runs there, and /proc is this machine's.
    pub fn run(&self, script: &str) -> Run {
        let mut command = Command::new("unshare");
        let enter = "mount -t proc proc \"$0/proc\" && exec chroot \"$0\" /bin/sh -c \"$1\"";
        command.args(["--mount", "sh", "-c", enter]).arg(self.dir.path()).arg(script);
        command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("LC_ALL", "C")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null());
        program::run(&mut command)
    }

    /// Boots the root, with these disks at these paths in it. They outlive the system.
    pub fn boot(self, disks: &[(&LoopFs, &str)]) -> Booted {
        Booted::new(self, disks)
    }
}

/// A root whose systemd runs in a container of systemd-nspawn.
#[derive(Debug)]
pub struct Booted {
    /// Files of the root.
    pub root: Root,
    container: Child,
    init: Pid,
}

impl Booted {
    fn new(root: Root, disks: &[(&LoopFs, &str)]) -> Self {
        let name = root.dir.path().file_name().and_then(OsStr::to_str).expect("a name");
        let machine: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
        let log =
            File::create(root.path("../").join(format!("{name}.console"))).expect("a file for the console");
        let mut container = tool("systemd-nspawn")
            .args(["--boot", "--register=no", "--keep-unit", "--console=pipe", "--quiet"])
            .arg(format!("--machine=layersweep-{machine}"))
            .arg("--directory")
            .arg(root.dir.path())
            .args(disks.iter().map(|(disk, inside)| format!("--bind={}:{inside}", disk.path().display())))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("the same file"))
            .stderr(log)
            .spawn()
            .expect("starting systemd-nspawn");
        let end = Instant::now() + PATIENCE;
        let init = loop {
            if let Some(init) = init_of(container.id()) {
                break init;
            }
            let ended = container.try_wait().expect("looking at systemd-nspawn");
            assert!(ended.is_none() && Instant::now() < end, "systemd-nspawn: {ended:?}");
            std::thread::sleep(Duration::from_millis(50));
        };
        let booted = Self { root, container, init };
        // The system may have just started, without a bus yet.
        booted.wait("the system is up", || {
            let run = booted.run("systemctl is-system-running");
            ["running", "degraded"].contains(&run.stdout.trim())
        });
        booted
    }

    /// Runs a shell script beside the services.
    pub fn run(&self, script: &str) -> Run {
        let mut command = tool("nsenter");
        let init = self.init.to_string();
        command.args(["--target", &init, "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup"]);
        command.args(["--", "/bin/sh", "-c", script]);
        command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("LC_ALL", "C")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null());
        program::run(&mut command)
    }

    /// Returns the journal of a unit, without dates.
    pub fn journal(&self, unit: &str) -> String {
        self.run(&format!("journalctl --no-pager --output=cat --unit={unit}")).stdout
    }

    /// Returns one property of a unit.
    pub fn property(&self, unit: &str, name: &str) -> String {
        let run = self.run(&format!("systemctl show --value --property={name} {unit}"));
        run.expect_code(0).stdout.trim().to_owned()
    }

    /// Waits until `is_so` returns true.
    pub fn wait(&self, what: &str, is_so: impl Fn() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(
                Instant::now() < end,
                "{what}: not within {PATIENCE:?}\n{}",
                self.run("systemctl list-units --no-pager --state=failed; journalctl --no-pager --lines=50")
                    .stdout
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Booted {
    fn drop(&mut self) {
        // Power off, and kill it if it does not.
        let pid = Pid::from_raw(self.container.id().cast_signed());
        let _ = kill(pid, Signal::SIGTERM);
        let end = Instant::now() + Duration::from_secs(30);
        while matches!(self.container.try_wait(), Ok(None)) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(50));
        }
        if matches!(self.container.try_wait(), Ok(None)) {
            let _ = kill(self.init, Signal::SIGKILL);
            let _ = self.container.kill();
        }
        let _ = self.container.wait();
    }
}

/// Returns the first process of the namespace that this child process made. For a moment the child has another child,
/// which makes the namespace and ends.
fn init_of(pid: u32) -> Option<Pid> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    let init = children.split_whitespace().find(|child| {
        let status = std::fs::read_to_string(format!("/proc/{child}/status")).unwrap_or_default();
        status.lines().any(|line| line.starts_with("NSpid:") && line.ends_with("\t1"))
    });
    init?.parse().ok().map(Pid::from_raw)
}
