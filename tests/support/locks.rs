//! Takes the library's locks as the library does, and observes the locks of other processes.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use super::program::{self, Run};
use super::store::Store;

/// Takes a POSIX write lock on a whole file. Closing the returned file releases it, and so does closing any other
/// descriptor of that file in this process.
pub fn write_lock(path: &Path) -> File {
    let file = File::options().read(true).write(true).open(path);
    let file = file.expect("opening a lock file");
    while fcntl(&file, FcntlArg::F_SETLK(&whole_file(libc::F_WRLCK))).is_err() {
        std::thread::sleep(Duration::from_millis(1));
    }
    file
}

fn whole_file(kind: i32) -> libc::flock {
    libc::flock {
        l_type: i16::try_from(kind).expect("a lock type"),
        l_whence: i16::try_from(libc::SEEK_SET).expect("a position"),
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

/// Writes another token into a lock file under its lock, as a writer does.
pub fn touch(path: &Path) {
    let file = write_lock(path);
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed();
    let mut token = [7; 64];
    token[..16].copy_from_slice(&now.expect("a clock").as_nanos().to_le_bytes());
    file.write_all_at(&token, 0).expect("writing a token");
}

/// Threads that repeatedly take a shared lock, as a reader of a store does.
#[derive(Debug)]
pub struct Readers {
    is_over: Arc<AtomicBool>,
    of_the_store: JoinHandle<Duration>,
    alone: JoinHandle<Duration>,
    _file: tempfile::NamedTempFile,
}

impl Readers {
    /// Starts a reader of the lock file at `path`, and one of a file that no other process locks.
    pub fn start(path: &Path) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let file = tempfile::NamedTempFile::new().expect("making a file");
        let [of_the_store, alone] = [path, file.path()].map(|path| {
            let (path, is_over) = (path.to_path_buf(), is_over.clone());
            std::thread::spawn(move || longest_wait(&path, &is_over))
        });
        Self { of_the_store, alone, is_over, _file: file }
    }

    /// Returns the longest wait for the store's lock, less the delay that the machine itself caused.
    pub fn end(self) -> Duration {
        self.is_over.store(true, Ordering::Relaxed);
        let longest = [self.of_the_store, self.alone].map(|reader| reader.join().expect("a reader"));
        longest[0].saturating_sub(longest[1])
    }
}

fn longest_wait(path: &Path, is_over: &AtomicBool) -> Duration {
    let file = File::open(path).expect("opening a lock file");
    let mut longest = Duration::ZERO;
    while !is_over.load(Ordering::Relaxed) {
        let began = Instant::now();
        fcntl(&file, FcntlArg::F_OFD_SETLKW(&whole_file(libc::F_RDLCK))).expect("taking a lock");
        longest = longest.max(began.elapsed());
        fcntl(&file, FcntlArg::F_OFD_SETLK(&whole_file(libc::F_UNLCK))).expect("releasing a lock");
        std::thread::sleep(Duration::from_millis(1));
    }
    longest
}

/// Scans under strace; returns the run, and the time that each shared lock was held (including strace's own
/// delay).
pub fn trace_locks(store: &Store) -> (Run, Vec<Duration>) {
    let output = store.scratch().join("locks.out");
    let mut command = store.command("strace");
    command
        .args(["-f", "-ttt", "-y", "-e", "trace=fcntl,close", "-o"])
        .arg(&output)
        .arg(env!("CARGO_BIN_EXE_layersweep"))
        .args(program::store_args("scan", store.root(), &store.runroot()));
    let run = program::run(&mut command);
    let text = std::fs::read_to_string(&output).expect("strace writes its output");
    (run, held_times(&text))
}

/// Pairs every `F_OFD_SETLK … F_RDLCK … = 0` with the unlocking or closing of the same descriptor.
fn held_times(trace: &str) -> Vec<Duration> {
    let mut since: HashMap<&str, f64> = HashMap::new();
    let mut held = Vec::new();
    for line in trace.lines() {
        let mut words = line.split_whitespace();
        let (Some(_pid), Some(time), Some(call)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let Ok(time) = time.parse::<f64>() else {
            continue;
        };
        let Some((_, descriptor)) = call.split_once('(') else {
            continue;
        };
        let descriptor = descriptor.trim_end_matches([',', ')']);
        let takes = line.contains("_SETLK") && line.contains("F_RDLCK") && line.ends_with("= 0");
        let gives = line.contains("F_UNLCK") || call.starts_with("close(");
        if takes {
            since.insert(descriptor, time);
        } else if gives && let Some(start) = since.remove(descriptor) {
            held.push(Duration::from_secs_f64((time - start).max(0.0)));
        }
    }
    held
}
