//! Runs the program as a user does, in an environment without settings of this machine.

use std::ffi::OsStr;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// What a run said.
#[derive(Clone, Debug)]
pub struct Run {
    /// Exit code; -1 where a signal ended it.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// How long it took.
    pub took: Duration,
}

impl Run {
    /// Standard output as one JSON document.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("stdout is not JSON ({error}): {self:?}"))
    }

    /// Fails unless the exit code is `code`.
    pub fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }

    /// Fails on the signs of a crash, whatever the exit code.
    pub fn expect_no_crash(self) -> Self {
        assert!(
            self.code >= 0 && self.code != 101 && !self.stderr.contains("panicked"),
            "the program crashed: {self:?}"
        );
        self
    }
}

/// The program with its environment, ready for arguments.
pub fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_layersweep"));
    hermetic(&mut command);
    command
}

/// Takes away what this machine and this user would add.
pub fn hermetic(command: &mut Command) {
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", "/nonexistent")
        .env("TZ", "UTC")
        .env("LANG", "C.UTF-8")
        .env("TERM", "dumb")
        .env("RUST_BACKTRACE", "0")
        // Podman spends a third of its time in Go's garbage collector, though it runs for half a second.
        .env("GOGC", "400")
        .env("LAYERSWEEP_STATE_DIR", state_dir())
        .stdin(Stdio::null());
    // Coverage tools pass the place of their profile this way.
    if let Some(profile) = std::env::var_os("LLVM_PROFILE_FILE") {
        command.env("LLVM_PROFILE_FILE", profile);
    }
}

/// A state directory for this test process alone, so that no test writes the machine's own.
fn state_dir() -> &'static std::path::Path {
    static DIRECTORY: std::sync::OnceLock<tempfile::TempDir> = std::sync::OnceLock::new();
    let make = || {
        // Statics are never dropped: what is left lies where `make clean` finds it.
        let target = env!("CARGO_TARGET_TMPDIR");
        tempfile::Builder::new().prefix("state-").tempdir_in(target).expect("a state directory")
    };
    DIRECTORY.get_or_init(make).path()
}

/// Runs the program with `args` to its end.
pub fn layersweep<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Run {
    let mut command = command();
    command.args(args);
    run(&mut command)
}

/// Adds `--yes` to a command line of the program that deletes: a test is no terminal, where deleting needs it.
pub fn consent(command: &mut Command) {
    let program = OsStr::new(env!("CARGO_BIN_EXE_layersweep"));
    let is_deletion = |word: &OsStr| ["gc", "rm", "sweep"].iter().any(|name| word == *name);
    let is_consent = |word: &OsStr| ["-y", "--yes", "--dry-run"].iter().any(|flag| word == *flag);
    let mut words = std::iter::once(command.get_program()).chain(command.get_args());
    if words.any(|word| word == program) {
        let words: Vec<_> = words.collect();
        if words.iter().any(|word| is_deletion(word)) && !words.iter().any(|word| is_consent(word)) {
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

/// Whether it has ended; waits until it has, but not longer than `patience`.
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

/// `layersweep COMMAND --format json --graphroot ROOT --runroot RUNROOT`, which must end
/// with exit code 0.
pub fn json_of(command: &str, graphroot: &Path, runroot: &Path) -> Value {
    store_run(command, graphroot, runroot).expect_code(0).json()
}

/// The same run whatever it ends with.
pub fn store_run(command: &str, graphroot: &Path, runroot: &Path) -> Run {
    layersweep(store_args(command, graphroot, runroot))
}

/// The arguments of [`store_run`].
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

/// A field that must be there and be a whole number.
pub fn number(value: &Value, pointer: &str) -> u64 {
    value
        .pointer(pointer)
        .and_then(Value::as_u64)
        .unwrap_or_else(|| panic!("no whole number at {pointer} in {value:#}"))
}

/// A field that must be there and be a text.
pub fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_else(|| panic!("no text at {pointer} in {value:#}"))
}

/// A field that must be there and be a list.
pub fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value
        .pointer(pointer)
        .and_then(Value::as_array)
        .unwrap_or_else(|| panic!("no list at {pointer} in {value:#}"))
}

/// The texts of a list.
pub fn texts(value: &Value, pointer: &str) -> Vec<String> {
    list(value, pointer).iter().map(|item| item.as_str().expect("a list of texts").to_owned()).collect()
}

/// Images without what moves with the looks at them: an image in use was used just now, and
/// what the disk says of its age is in the records after the first scan.
pub fn timeless(images: &[Value]) -> Vec<Value> {
    let timeless = |image: &Value| {
        let mut image = image.clone();
        if let Some(image) = image.as_object_mut() {
            image.remove("last_used").expect("a last_used");
            image.remove("first_detected_from").expect("a first_detected_from");
        }
        image
    };
    images.iter().map(timeless).collect()
}
