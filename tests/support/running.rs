//! Controls a running program, for tests that act during a run.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

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

fn drain(mut pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).expect("reading a pipe");
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
