//! Runs the program as a user does, in an environment without this machine's settings.

use std::ffi::OsStr;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Run {
    /// Exit code; -1 if a signal ended the run.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Duration of the run.
    pub took: Duration,
}

impl Run {
    /// Returns standard output as one JSON document.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("stdout is not JSON ({error}): {self:?}"))
    }

    /// Fails unless the exit code is `code`.
    pub fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }

    /// Fails if the run shows signs of a crash, whatever its exit code.
    pub fn expect_no_crash(self) -> Self {
        assert!(
            self.code >= 0 && self.code != 101 && !self.stderr.contains("panicked"),
            "the program crashed: {self:?}"
        );
        self
    }
}

/// Returns the program in a clean environment, without arguments.
pub fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_layersweep"));
    hermetic(&mut command);
    command
}

/// Removes the environment of this machine and this user from a command.
pub fn hermetic(command: &mut Command) {
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", "/nonexistent")
        .env("TZ", "UTC")
        .env("LANG", "C.UTF-8")
        .env("TERM", "dumb")
        .env("RUST_BACKTRACE", "0")
        // Podman spends a third of its time in Go's garbage collector, although it runs for only half a second.
        .env("GOGC", "400")
        .env("LAYERSWEEP_STATE_DIR", state_dir())
        .stdin(Stdio::null());
    // Coverage tools pass the path of their profile in this variable.
    if let Some(profile) = std::env::var_os("LLVM_PROFILE_FILE") {
        command.env("LLVM_PROFILE_FILE", profile);
    }
}

/// Returns a state directory for this test process alone, so that no test writes to the machine's own.
fn state_dir() -> &'static std::path::Path {
    static DIRECTORY: std::sync::OnceLock<tempfile::TempDir> = std::sync::OnceLock::new();
    let directory = DIRECTORY.get_or_init(|| {
        // Statics are never dropped: `make clean` deletes the directory.
        let target = env!("CARGO_TARGET_TMPDIR");
        tempfile::Builder::new().prefix("state-").tempdir_in(target).expect("a state directory")
    });
    directory.path()
}

/// Runs the program with `args` to its end.
pub fn layersweep<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Run {
    let mut command = command();
    command.args(args);
    run(&mut command)
}

/// Adds `--yes` to a command line that deletes: a test runs without a terminal, where deletions need it.
pub fn consent(command: &mut Command) {
    let program = OsStr::new(env!("CARGO_BIN_EXE_layersweep"));
    let mut words = std::iter::once(command.get_program()).chain(command.get_args());
    if words.any(|word| word == program) {
        let words: Vec<_> = words.collect();
        fn has_any(words: &[&OsStr], names: &[&str]) -> bool {
            words.iter().any(|word| names.iter().any(|name| word == name))
        }
        if has_any(&words, &["gc", "rm", "sweep"]) && !has_any(&words, &["-y", "--yes", "--dry-run"]) {
            command.arg("--yes");
        }
    }
}

/// Runs `command` to its end, with [`consent`]. Fails after five minutes.
pub fn run(command: &mut Command) -> Run {
    consent(command);
    let start = Instant::now();
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?} cannot start: {error}"));
    let stdout = drain(child.stdout.take().expect("a pipe"));
    let stderr = drain(child.stderr.take().expect("a pipe"));
    if !ends_within(&child, Duration::from_secs(300)) {
        child.kill().expect("killing a run that hangs");
        panic!("{command:?} did not end within five minutes");
    }
    let status = child.wait().expect("waiting for the program");
    Run {
        code: status.code().unwrap_or(-1),
        stdout: stdout.join().expect("reading stdout"),
        stderr: stderr.join().expect("reading stderr"),
        took: start.elapsed(),
    }
}

/// Returns whether a process ends within `patience`.
fn ends_within(child: &Child, patience: Duration) -> bool {
    let pid = rustix::process::Pid::from_child(child);
    let process = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).expect("a process");
    let patience = rustix::event::Timespec::try_from(patience).expect("a time");
    let mut ends = [rustix::event::PollFd::new(&process, rustix::event::PollFlags::IN)];
    rustix::io::retry_on_intr(|| rustix::event::poll(&mut ends, Some(&patience))).expect("waiting") > 0
}

fn drain(mut pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).expect("reading a pipe");
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Returns the document of `layersweep COMMAND --format json --graphroot ROOT --runroot RUNROOT`, which must exit
/// with 0.
pub fn json_of(command: &str, graphroot: &Path, runroot: &Path) -> Value {
    store_run(command, graphroot, runroot).expect_code(0).json()
}

/// Runs the same command, whatever its exit code.
pub fn store_run(command: &str, graphroot: &Path, runroot: &Path) -> Run {
    layersweep(store_args(command, graphroot, runroot))
}

/// Returns the arguments of [`store_run`].
pub fn store_args(command: &str, graphroot: &Path, runroot: &Path) -> Vec<std::ffi::OsString> {
    let mut args: Vec<std::ffi::OsString> = vec![command.into()];
    for (flag, value) in [
        ("--format", OsStr::new("json")),
        ("--graphroot", graphroot.as_os_str()),
        ("--runroot", runroot.as_os_str()),
    ] {
        args.push(flag.into());
        args.push(value.into());
    }
    if command == "scan" {
        args.push("--no-record".into());
    }
    args
}

/// Returns a required field as a whole number.
pub fn number(value: &Value, pointer: &str) -> u64 {
    value
        .pointer(pointer)
        .and_then(Value::as_u64)
        .unwrap_or_else(|| panic!("no whole number at {pointer} in {value:#}"))
}

/// Returns a required field as a text.
pub fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_else(|| panic!("no text at {pointer} in {value:#}"))
}

/// Returns a required field as a list.
pub fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value
        .pointer(pointer)
        .and_then(Value::as_array)
        .unwrap_or_else(|| panic!("no list at {pointer} in {value:#}"))
}

/// Returns a required list of texts.
pub fn texts(value: &Value, pointer: &str) -> Vec<String> {
    list(value, pointer).iter().map(|item| item.as_str().expect("a list of texts").to_owned()).collect()
}

/// Returns images without the fields that change between scans: an image in use was used just now, and the age on
/// the disk is replaced by the records after the first scan.
pub fn timeless(images: &[Value]) -> Vec<Value> {
    let mut images = images.to_vec();
    for image in images.iter_mut().filter_map(Value::as_object_mut) {
        image.remove("last_used").expect("a last_used");
        image.remove("first_detected_from").expect("a first_detected_from");
    }
    images
}
