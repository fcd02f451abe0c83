//! Reads other processes from a helper process.
//!
//! Any user can create a process whose memory or files never answer; a reader then blocks in the
//! kernel and cannot even be killed, and neither can we while it does. `super::processes::read` asks as
//! little as possible that can block, and a child does the reading: we wait for it only until a deadline.
//! Whatever has not arrived by then is unknown.

use std::ffi::OsString;
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::processes::read::{self, ProcRecord, ProcessFacts};

/// The first argument of a helper. No command: nobody but we should need it.
pub const ARGUMENT: &str = "__read-processes";

/// How long is waited for all of an answer.
const DEADLINE: Duration = Duration::from_secs(10);

/// No record is longer.
const MOST_BYTES: usize = 64 << 20;

static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Says which program is ours. Until then, as in a program that only links this library, processes
/// are read by the caller itself.
pub fn set_program(path: impl Into<PathBuf>) {
    // The first counts.
    let _ = PROGRAM.set(path.into());
}

/// This program with a first argument that makes it a helper, in an empty environment; `None` until
/// the program is known.
pub(super) fn command(argument: &str) -> Option<Command> {
    let mut command = Command::new(PROGRAM.get()?);
    command.arg(argument).env_clear();
    // Coverage tools pass the place of their profile this way.
    command.envs(std::env::var_os("LLVM_PROFILE_FILE").map(|profile| ("LLVM_PROFILE_FILE", profile)));
    Some(command)
}

/// What a helper does: reads what its argument asks for and writes it to stdout.
#[must_use]
pub fn serve(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    // Nobody reads what is written after the death of who asked.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let own = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get().unsigned_abs());
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let wanted = arguments.filter_map(|word| word.into_string().ok()).next();
    let Some(wanted) = wanted.and_then(|facts| serde_json::from_str(&facts).ok()) else {
        return ExitCode::FAILURE;
    };
    let done = read::all(wanted, own, &mut |record, body| write(&mut out, &record, body));
    match done.and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Asks for what is wanted; `each` gets the records in the order in which they are read, with what
/// belongs to them: the last is [`ProcRecord::End`] if none is missing.
///
/// # Errors
/// When no helper can be started, or `/proc` cannot be listed.
pub(super) fn ask(wanted: ProcessFacts, each: &mut dyn FnMut(ProcRecord, &[u8])) -> io::Result<()> {
    let Some(mut command) = command(ARGUMENT) else {
        return read::all(wanted, std::process::id(), &mut |record, body| {
            each(record, body);
            Ok(())
        });
    };
    command.arg(serde_json::to_string(&wanted)?);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let result = receive(&mut child, Instant::now() + DEADLINE, each);
    leave(child);
    result
}

/// A child that stands in the kernel is left to whoever inherits it.
fn leave(mut child: Child) {
    drop(child.stdout.take());
    for pause in [0, 1, 5, 20, 50] {
        std::thread::sleep(Duration::from_millis(pause));
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        let _ = child.kill();
    }
    tracing::info!(pid = child.id(), "the helper process that reads /proc does not exit; leaving it behind");
}

fn receive(child: &mut Child, until: Instant, each: &mut dyn FnMut(ProcRecord, &[u8])) -> io::Result<()> {
    let Some(pipe) = child.stdout.as_mut() else { return Err(io::Error::other("no pipe")) };
    let mut waiting: Vec<u8> = Vec::new();
    let mut chunk = vec![0; 1 << 16];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            tracing::warn!("not all processes could be read within {} s", DEADLINE.as_secs());
            return Ok(());
        }
        let timeout = Timespec::try_from(left).unwrap_or_default();
        match poll(&mut [PollFd::new(pipe, PollFlags::IN)], Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        match pipe.read(&mut chunk) {
            // It ended: with the last record, or before its time.
            Ok(0) => return Ok(()),
            Ok(length) => waiting.extend_from_slice(&chunk[..length]),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
        let mut at = 0;
        while let Some((record, body, length)) = parse(&waiting[at..])? {
            // A thread of it that is stuck keeps the pipe open.
            let is_last = record == ProcRecord::End;
            each(record, body);
            if is_last {
                return Ok(());
            }
            at += length;
        }
        waiting.drain(..at);
    }
}

/// Two lengths, the record as JSON, and bytes that are no text.
fn write(out: &mut impl Write, record: &ProcRecord, body: &[u8]) -> io::Result<()> {
    let head = serde_json::to_vec(record)?;
    for part in [head.len(), body.len()] {
        let length = u32::try_from(part).ok().filter(|_| part <= MOST_BYTES);
        out.write_all(&length.ok_or(ErrorKind::InvalidData)?.to_le_bytes())?;
    }
    out.write_all(&head)?;
    out.write_all(body)
}

/// A record, its bytes and how long it is; `None` if not all of it is there yet.
fn parse(text: &[u8]) -> io::Result<Option<(ProcRecord, &[u8], usize)>> {
    let length = |at: usize| -> io::Result<Option<usize>> {
        let Some(bytes) = text.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()) else {
            return Ok(None);
        };
        let length = usize::try_from(u32::from_le_bytes(bytes)).unwrap_or(usize::MAX);
        if length > MOST_BYTES { Err(ErrorKind::InvalidData.into()) } else { Ok(Some(length)) }
    };
    let (Some(head), Some(body)) = (length(0)?, length(4)?) else { return Ok(None) };
    let Some(content) = text.get(8..8 + head + body) else { return Ok(None) };
    let record = serde_json::from_slice(&content[..head])?;
    Ok(Some((record, &content[head..], 8 + head + body)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_the_pipe() {
        let mut text = Vec::new();
        write(&mut text, &ProcRecord::Files { id: 7, is_complete: true }, b"/a\xff\0/b").unwrap();
        write(&mut text, &ProcRecord::End, b"").unwrap();
        let (record, body, length) = parse(&text).unwrap().unwrap();
        assert_eq!((record, body), (ProcRecord::Files { id: 7, is_complete: true }, &b"/a\xff\0/b"[..]));
        assert_eq!(parse(&text[length..]).unwrap().unwrap().0, ProcRecord::End);
        for short in 0..length {
            assert!(parse(&text[..short]).unwrap().is_none(), "{short}");
        }
        assert!(parse(&[0xff; 8]).is_err());
    }

    #[test]
    fn a_child_that_never_answers_is_left() {
        let mut child = Command::new("sleep").arg("600").stdout(Stdio::piped()).spawn().unwrap();
        let start = Instant::now();
        receive(&mut child, start + Duration::from_millis(200), &mut |_, _| panic!("it says nothing"))
            .unwrap();
        leave(child);
        assert!(start.elapsed() < Duration::from_secs(2));
    }
}
