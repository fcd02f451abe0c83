//! Controls a running program, for tests that act during a run.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::node;
use super::program::{Run, consent};

/// A run in progress, which is killed when the value is dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    stdout: Option<JoinHandle<String>>,
    stderr: Option<JoinHandle<String>>,
    began: Instant,
}

impl Running {
    /// Starts `command`, with [`consent`].
    pub fn start(command: &mut Command) -> Self {
        consent(command);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starting the program");
        let stdout = drain(child.stdout.take().expect("a pipe"));
        let stderr = drain(child.stderr.take().expect("a pipe"));
        Self { child, stdout: Some(stdout), stderr: Some(stderr), began: Instant::now() }
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns whether the process has not ended yet.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("asking for the program").is_none()
    }

    /// Sends a signal to the process.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("a process id");
        kill(Pid::from_raw(pid), signal).expect("signalling the program");
    }

    /// Waits until the process ends. Fails after five minutes.
    pub fn end(mut self) -> Run {
        while self.is_running() {
            assert!(self.began.elapsed() < Duration::from_secs(300), "the program does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        let status = self.child.wait().expect("waiting for the program");
        let [stdout, stderr] = [self.stdout.take(), self.stderr.take()]
            .map(|reader| reader.expect("a reader").join().expect("reading"));
        Run { code: status.code().unwrap_or(-1), stdout, stderr, took: self.began.elapsed() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process has ended, or the test has failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A run of `gc` whose log is read while it runs.
#[derive(Debug)]
pub struct Watched {
    child: Child,
    log: std::io::Lines<BufReader<ChildStderr>>,
}

impl Watched {
    /// Starts `command`, with [`consent`].
    pub fn start(command: &mut Command) -> Self {
        consent(command);
        let mut child = command
            .args(["-v", "--format", "json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starting the program");
        let log = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        Self { child, log }
    }

    /// Waits for a line that contains `words`.
    pub fn until(&mut self, words: &str) {
        let mut seen = Vec::new();
        for line in self.log.by_ref() {
            seen.push(line.expect("reading the log"));
            if seen.last().is_some_and(|line| line.contains(words)) {
                return;
            }
        }
        panic!("the run ended before it said {words:?}: {seen:#?}");
    }

    /// Sends a signal to the process.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).expect("signalling the program");
    }

    /// Kills the process, unless it has ended.
    pub fn kill(mut self) {
        self.child.kill().expect("killing the program");
        self.child.wait().expect("waiting for the program");
    }

    /// Returns exit code and document.
    pub fn end(mut self) -> (i32, Value) {
        let stdout: ChildStdout = self.child.stdout.take().expect("a pipe");
        let rest = std::thread::spawn(move || self.log.map_while(Result::ok).collect::<Vec<_>>());
        let document: Value = serde_json::from_reader(stdout).expect("a document");
        node::assert_fits(&document);
        let code = self.child.wait().expect("waiting for the program").code().expect("a code");
        rest.join().expect("reading");
        (code, document)
    }
}

fn drain(mut pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).expect("reading a pipe");
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
