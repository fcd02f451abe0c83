//! Running a program once, and measuring its time and memory.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::libc;

/// The cost of one run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub wall: Duration,
    /// User and system time of all threads.
    pub cpu: Duration,
    /// The maximum of memory in use, in bytes.
    pub peak: u64,
}

/// Runs `command` to its end and discards its output.
pub fn run(command: &mut Command) -> Result<Run> {
    run_into(command, Stdio::null())
}

/// Runs `command` to its end; its output goes to `stdout`. This program stays small, because the kernel counts its
/// memory at the fork as the child's.
pub fn run_into(command: &mut Command, stdout: Stdio) -> Result<Run> {
    command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::null());
    let begin = Instant::now();
    let child = command.spawn().with_context(|| format!("starting {command:?}"))?;
    let (status, usage) = wait(child.id()).with_context(|| format!("waiting for {command:?}"))?;
    let wall = begin.elapsed();
    // Some peers end with 1 after a warning; only a signal or a missing program is a failure.
    if !libc::WIFEXITED(status) || libc::WEXITSTATUS(status) > 4 {
        bail!("{command:?} ended with status {status}");
    }
    fn time(time: libc::timeval) -> Duration {
        Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0))
            + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0))
    }
    Ok(Run {
        wall,
        cpu: time(usage.ru_utime) + time(usage.ru_stime),
        peak: u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024,
    })
}

#[allow(unsafe_code)]
fn wait(pid: u32) -> Result<(libc::c_int, libc::rusage)> {
    let pid = libc::pid_t::try_from(pid)?;
    let mut status = 0;
    // SAFETY: `rusage` is plain integers, for which all zeros is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `pid` is a child of this process, and no other code waits for it; both pointers are to locals
    // that outlive the call.
    let done = unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut usage) };
    if done != pid {
        bail!(std::io::Error::last_os_error());
    }
    Ok((status, usage))
}

/// Returns the output of `command`.
pub fn output(command: &mut Command) -> Result<String> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("starting {command:?}"))?;
    let mut bytes = Vec::new();
    if let Some(mut pipe) = child.stdout.take() {
        pipe.read_to_end(&mut bytes)?;
    }
    child.wait()?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Runs a helper program; its failure is returned with its output.
pub fn must(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("starting {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
