//! Signals that stop the program. Every operation that waits checks [`stop::is_requested`]. An operation that
//! does not end in time is abandoned, and its entry in the journal tells the next run about it.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

use crate::services::error::{Error, Exit};
use crate::sys::stop;

/// Time from the signal to the end of the process, during any operation: two seconds are documented.
const DEADLINE: Duration = Duration::from_millis(1800);

/// Makes SIGTERM, SIGINT and SIGHUP set [`stop::flag`] instead of ending the process at once. The process
/// still ends within two seconds. A second SIGINT ends it at once, for an operator who does not want to wait.
/// Further calls have no effect.
pub fn listen() -> Result<(), Error> {
    static LISTENING: OnceLock<()> = OnceLock::new();
    if LISTENING.get().is_some() {
        return Ok(());
    }
    let requested = stop::flag();
    // In this order: the first handler ends the process if the flag is set already, then the second sets it.
    flag::register_conditional_default(SIGINT, Arc::clone(requested)).map_err(failed)?;
    for signal in heard() {
        flag::register(signal, Arc::clone(requested)).map_err(failed)?;
    }
    signals().and_then(watch).map_err(failed)?;
    let _ = LISTENING.set(());
    Ok(())
}

fn failed(error: std::io::Error) -> Error {
    Error::usage(format!("catching signals: {error}"))
}

/// Makes SIGTERM, SIGINT and SIGHUP write a byte to the returned stream instead of ending the process.
pub fn signals() -> std::io::Result<UnixStream> {
    let (reader, writer) = UnixStream::pair()?;
    for signal in heard() {
        low_level::pipe::register(signal, writer.try_clone()?)?;
    }
    reader.set_nonblocking(true)?;
    Ok(reader)
}

/// Returns the signals that are handled: all except those that nohup(1) has made the process ignore.
fn heard() -> impl Iterator<Item = i32> {
    let ignored = ignored();
    [SIGINT, SIGTERM, SIGHUP].into_iter().filter(move |signal| ignored & (1 << (signal - 1)) == 0)
}

/// Ends the process after the deadline that follows a signal. Nothing is recorded here: the journal contains
/// the start of every deletion before it is requested, and the next run determines its result.
fn watch(mut heard: UnixStream) -> std::io::Result<()> {
    heard.set_nonblocking(false)?;
    std::thread::Builder::new()
        .name("deadline".into())
        .spawn(move || {
            if heard.read_exact(&mut [0]).is_err() {
                return;
            }
            std::thread::sleep(DEADLINE);
            say("stopped by a signal; the next run finishes what was interrupted\n");
            low_level::exit(Exit::Failed as i32);
        })
        .map(drop)
}

/// Writes to stderr without blocking: a full pipe must not delay the end of the process.
fn say(line: &str) {
    use rustix::event::{PollFd, PollFlags, poll};
    let stderr = std::io::stderr();
    let mut ready = [PollFd::new(&stderr, PollFlags::OUT)];
    let nothing = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    if poll(&mut ready, Some(&nothing)) == Ok(1) {
        // Bypass the lock of stderr, which a blocked thread may hold.
        let _ = rustix::io::write(&stderr, line.as_bytes());
    }
}

/// Returns the signals that the parent process made this one ignore, as a mask (`SigIgn` in proc(5)).
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
