//! Reads other processes in a helper process.
//!
//! Any user can create a process whose memory or files never answer. A reader then blocks in the kernel and cannot
//! even be killed. `processes::read` therefore avoids queries that can block as far as possible, and a
//! child process does the reading, so that this process only waits for it until a deadline. Everything that has not
//! arrived by then is unknown.

use std::ffi::OsString;
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::read::{self, ProcRecord, ProcessFacts, ReadPatience};

/// First argument of a helper. It is not a command, since users never need it.
pub const ARGUMENT: &str = "__read-processes";

/// Timeout for the complete answer.
const DEADLINE: Duration = Duration::from_secs(10);

const MAX_BYTES: usize = 64 << 20;

static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Time for which a process that did not answer is not asked again, so that each command waits for it once.
const MEMORY: Duration = Duration::from_secs(60);

/// Patience for the next answer, and the time of the first missing one.
static PATIENCE: Mutex<Option<(Instant, ReadPatience)>> = Mutex::new(None);

fn patience() -> ReadPatience {
    let patience = PATIENCE.lock().unwrap_or_else(PoisonError::into_inner);
    let recent = patience.as_ref().filter(|(since, _)| since.elapsed() < MEMORY);
    recent.map(|(_, patience)| patience.clone()).unwrap_or_default()
}

fn remember(left: ReadPatience) {
    let mut patience = PATIENCE.lock().unwrap_or_else(PoisonError::into_inner);
    let since = patience.as_ref().map(|(since, _)| *since).filter(|since| since.elapsed() < MEMORY);
    *patience = Some((since.unwrap_or_else(Instant::now), left));
}

/// Sets the path of this program. Before that, as in a program that only links this library, the calling process
/// itself reads the other processes.
pub fn set_program(path: impl Into<PathBuf>) {
    // The first call decides.
    let _ = PROGRAM.set(path.into());
}

/// Returns this program with a first argument that makes it a helper, in an empty environment; `None` until the
/// program is set.
pub(in crate::sys) fn command(argument: &str) -> Option<Command> {
    let mut command = Command::new(PROGRAM.get()?);
    command.arg(argument).env_clear();
    // Coverage tools pass the path of their profile this way.
    command.envs(std::env::var_os("LLVM_PROFILE_FILE").map(|profile| ("LLVM_PROFILE_FILE", profile)));
    Some(command)
}

/// Runs a helper: reads the facts that its argument requests and writes them to stdout.
#[must_use]
pub fn serve(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    // After the death of the parent, no process reads the output.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get().unsigned_abs());
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let facts = arguments.filter_map(|word| word.into_string().ok()).next();
    let Some(facts) = facts.and_then(|facts| serde_json::from_str(&facts).ok()) else {
        return ExitCode::FAILURE;
    };
    let done = read::all(&facts, parent, &mut |record, body| write(&mut out, &record, body));
    match done.and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Requests facts about processes. `each` gets the records in the order in which they are read, with their bodies;
/// the last is [`ProcRecord::End`] if none is missing.
///
/// # Errors
/// If no helper can be started, or `/proc` cannot be listed.
pub(in crate::sys) fn ask(facts: ProcessFacts, each: &mut dyn FnMut(ProcRecord, &[u8])) -> io::Result<()> {
    let facts = ProcessFacts { patience: patience(), ..facts };
    ask_patiently(&facts, &mut |record, body| match record {
        ProcRecord::Patience(left) => remember(left),
        record => each(record, body),
    })
}

fn ask_patiently(facts: &ProcessFacts, each: &mut dyn FnMut(ProcRecord, &[u8])) -> io::Result<()> {
    let Some(mut command) = command(ARGUMENT) else {
        return read::all(facts, std::process::id(), &mut |record, body| {
            each(record, body);
            Ok(())
        });
    };
    command.arg(serde_json::to_string(facts)?);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let result = receive(&mut child, Instant::now() + DEADLINE, each);
    abandon(child);
    result
}

/// Kills a child, and leaves it to its next parent if it is blocked in the kernel.
fn abandon(mut child: Child) {
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
            // The child ended: after the last record, or too early.
            Ok(0) => return Ok(()),
            Ok(length) => waiting.extend_from_slice(&chunk[..length]),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
        let mut position = 0;
        while let Some((record, body, length)) = parse(&waiting[position..])? {
            // Do not wait for the end of the output: a blocked thread of the child keeps the pipe open.
            let is_last = record == ProcRecord::End;
            each(record, body);
            if is_last {
                return Ok(());
            }
            position += length;
        }
        waiting.drain(..position);
    }
}

/// Writes a record: two lengths, the record as JSON, and its body, which is not text.
fn write(out: &mut impl Write, record: &ProcRecord, body: &[u8]) -> io::Result<()> {
    let head = serde_json::to_vec(record)?;
    for part in [head.len(), body.len()] {
        let length = u32::try_from(part).ok().filter(|_| part <= MAX_BYTES);
        out.write_all(&length.ok_or(ErrorKind::InvalidData)?.to_le_bytes())?;
    }
    out.write_all(&head)?;
    out.write_all(body)
}

/// Parses a record and its body, and returns them with their total length; `None` if the record is incomplete.
fn parse(text: &[u8]) -> io::Result<Option<(ProcRecord, &[u8], usize)>> {
    let (Some(head), Some(body)) = (length_at(text, 0)?, length_at(text, 4)?) else { return Ok(None) };
    let Some(content) = text.get(8..8 + head + body) else { return Ok(None) };
    let record = serde_json::from_slice(&content[..head])?;
    Ok(Some((record, &content[head..], 8 + head + body)))
}

fn length_at(text: &[u8], position: usize) -> io::Result<Option<usize>> {
    let Some(bytes) = text.get(position..position + 4).and_then(|bytes| bytes.try_into().ok()) else {
        return Ok(None);
    };
    let length = usize::try_from(u32::from_le_bytes(bytes)).unwrap_or(usize::MAX);
    if length > MAX_BYTES { Err(ErrorKind::InvalidData.into()) } else { Ok(Some(length)) }
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
    fn child_without_an_answer_is_abandoned() {
        let mut child = Command::new("sleep").arg("600").stdout(Stdio::piped()).spawn().unwrap();
        let start = Instant::now();
        receive(&mut child, start + Duration::from_millis(200), &mut |_, _| panic!("it does not answer"))
            .unwrap();
        abandon(child);
        assert!(start.elapsed() < Duration::from_secs(2));
    }
}
