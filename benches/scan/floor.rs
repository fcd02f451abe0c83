//! The minimal work of any walk: reads each directory and calls `fstatat` for each entry, and keeps only a sum.
//! Mounts, hard links and errors are ignored.

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use anyhow::Result;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir};

type Job = (Option<Arc<OwnedFd>>, CString);

#[derive(Debug, Default)]
struct Shared {
    jobs: Mutex<(Vec<Job>, usize)>,
    changed: Condvar,
    waiting: AtomicUsize,
    bytes: AtomicU64,
}

/// Walks `dir` with `threads` threads and prints the sum of the allocated bytes.
pub fn walk(dir: &Path, threads: usize) -> Result<()> {
    let shared = Shared::default();
    let start = CString::new(dir.as_os_str().as_encoded_bytes())?;
    if let Ok(mut jobs) = shared.jobs.lock() {
        jobs.0.push((None, start));
    }
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| work(&shared, threads));
        }
    });
    println!("{}", shared.bytes.into_inner());
    Ok(())
}

fn work(shared: &Shared, threads: usize) {
    let mut buffer = vec![MaybeUninit::uninit(); 32 * 1024];
    let mut mine: Vec<Job> = Vec::new();
    let mut bytes = 0;
    while let Some(job) = mine.pop().or_else(|| wait(shared, threads)) {
        bytes += read(job, &mut buffer, &mut mine);
        if mine.len() > 1 && shared.waiting.load(Ordering::Relaxed) > 0 {
            let half = mine.drain(..mine.len() / 2).collect::<Vec<_>>();
            shared.jobs.lock().unwrap_or_else(PoisonError::into_inner).0.extend(half);
            shared.changed.notify_all();
        }
    }
    shared.bytes.fetch_add(bytes, Ordering::Relaxed);
}

fn wait(shared: &Shared, threads: usize) -> Option<Job> {
    let mut jobs = shared.jobs.lock().unwrap_or_else(PoisonError::into_inner);
    jobs.1 += 1;
    shared.waiting.store(jobs.1, Ordering::Relaxed);
    loop {
        if let Some(job) = jobs.0.pop() {
            jobs.1 -= 1;
            shared.waiting.store(jobs.1, Ordering::Relaxed);
            return Some(job);
        }
        if jobs.1 >= threads {
            shared.changed.notify_all();
            return None;
        }
        jobs = shared.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner);
    }
}

fn read((parent, name): Job, buffer: &mut [MaybeUninit<u8>], jobs: &mut Vec<Job>) -> u64 {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = match &parent {
        Some(parent) => rustix::fs::openat(parent, &name, flags, Mode::empty()),
        None => rustix::fs::open(&name, flags, Mode::empty()),
    };
    let Ok(fd) = opened.map(Arc::new) else {
        return 0;
    };
    drop(parent);
    let mut blocks = 0;
    let mut entries = RawDir::new(&*fd, buffer);
    while let Some(Ok(entry)) = entries.next() {
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        if let Ok(stat) = rustix::fs::statat(&*fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            blocks += u64::try_from(stat.st_blocks).unwrap_or(0);
        }
        if entry.file_type() == FileType::Directory {
            jobs.push((Some(Arc::clone(&fd)), name.to_owned()));
        }
    }
    blocks * 512
}
