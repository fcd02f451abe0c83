//! Signals that ask to stop. Everything that waits looks at [`stop::is_asked`]; what does not come
//! to its end in time is left, with what the journal says of it.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

use crate::app::error::{Error, Exit};
use crate::sys::stop;

/// So long after a signal the process ends, whatever it waits for: two seconds are promised.
const DEADLINE: Duration = Duration::from_millis(1800);

/// From now on SIGTERM, SIGINT and SIGHUP set [`stop::flag`] instead of ending the process, which
/// ends within two seconds all the same; the second SIGINT ends it at once, for whoever will not
/// wait. A second call changes nothing.
pub(super) fn listen() -> Result<(), Error> {
    static LISTENING: OnceLock<()> = OnceLock::new();
    if LISTENING.get().is_some() {
        return Ok(());
    }
    let failed = |error| Error::usage(format!("catching signals: {error}"));
    let asked = stop::flag();
    // First the one that ends it if the flag was set before, then the one that sets it.
    flag::register_conditional_default(SIGINT, Arc::clone(asked)).map_err(failed)?;
    for signal in heard() {
        flag::register(signal, Arc::clone(asked)).map_err(failed)?;
    }
    signals().and_then(watch).map_err(failed)?;
    let _ = LISTENING.set(());
    Ok(())
}

/// From now on each SIGTERM, SIGINT and SIGHUP writes a byte that can be read here, and does not end
/// the process.
pub(super) fn signals() -> std::io::Result<UnixStream> {
    let (reader, writer) = UnixStream::pair()?;
    for signal in heard() {
        low_level::pipe::register(signal, writer.try_clone()?)?;
    }
    reader.set_nonblocking(true)?;
    Ok(reader)
}

/// The signals that are listened to: all but those that nohup(1) has made us ignore.
fn heard() -> impl Iterator<Item = i32> {
    let ignored = ignored();
    [SIGINT, SIGTERM, SIGHUP].into_iter().filter(move |signal| ignored & (1 << (signal - 1)) == 0)
}

/// Ends the process when a signal came and the deadline has passed. It records nothing: that what
/// is in flight has begun is in the journal before it is asked for, and the next run looks what came
/// of it.
fn watch(mut heard: UnixStream) -> std::io::Result<()> {
    heard.set_nonblocking(false)?;
    let wait = move || {
        if heard.read_exact(&mut [0]).is_err() {
            return;
        }
        std::thread::sleep(DEADLINE);
        say("stopped by a signal; the next run finishes what was interrupted\n");
        low_level::exit(Exit::Failed as i32);
    };
    std::thread::Builder::new().name("deadline".into()).spawn(wait).map(drop)
}

/// To stderr, unless nobody reads that: then it would never end.
fn say(line: &str) {
    use rustix::event::{PollFd, PollFlags, poll};
    let stderr = std::io::stderr();
    let mut ready = [PollFd::new(&stderr, PollFlags::OUT)];
    let nothing = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    if poll(&mut ready, Some(&nothing)) == Ok(1) {
        // Past the lock, which a thread that writes in vain may hold.
        let _ = rustix::io::write(&stderr, line.as_bytes());
    }
}

/// The signals that whoever started us has let us ignore, as a mask (`SigIgn` in proc(5)).
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
