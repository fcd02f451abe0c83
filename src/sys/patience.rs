//! Waiting with a timeout.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(10);

/// Number of attempts that are left for a whole pass over the processes. If none of them may be examined, waiting
/// for each would take minutes.
#[derive(Debug)]
pub(super) struct Patience(AtomicU32);

impl Patience {
    /// Allows a third of a second in all.
    pub(super) fn new() -> Self {
        Self(AtomicU32::new(32))
    }

    /// Waits before another attempt; returns `false` if no time is left.
    pub(super) fn wait(&self) -> bool {
        let left = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if left.is_ok() {
            std::thread::sleep(PAUSE);
        }
        left.is_ok()
    }
}

/// Timeout for one answer, since its last sign of life.
const SILENCE: Duration = Duration::from_millis(300);

/// Interval at which a missing answer is checked for signs of life.
const SLICE: Duration = Duration::from_millis(20);

/// Maximum number of threads of a process whose states are read.
const THREADS: usize = 64;

/// Maximum time for one answer of a thread that has work to do, or waits for a processor.
const LONGEST: Duration = Duration::from_secs(3);

#[derive(Debug, Default)]
pub(super) struct Pulse {
    beats: AtomicU64,
    thread: AtomicI32,
    /// Directory in `/proc` of the process that is asked.
    process: Mutex<PathBuf>,
    /// Another thread has gone on with the next job.
    is_abandoned: AtomicBool,
}

impl Pulse {
    pub(super) fn beat(&self) {
        self.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes the calling thread as the one that answers.
    fn begin(&self) {
        self.thread.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Relaxed);
    }

    /// Notes the process that is asked next, by its directory in `/proc`.
    pub(super) fn ask_process(&self, directory: &Path) {
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = directory.to_path_buf();
    }

    fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Relaxed);
    }

    fn is_abandoned(&self) -> bool {
        self.is_abandoned.load(Ordering::Relaxed)
    }

    /// Returns true if the thread does not wait for anything but a processor: the machine is busy.
    fn is_running(&self) -> bool {
        let thread = self.thread.load(Ordering::Relaxed);
        thread == 0 || is_running(Path::new(&format!("/proc/self/task/{thread}")))
    }

    /// Returns true if one of the first threads of the process that is asked runs or waits for a processor.
    fn is_process_running(&self) -> bool {
        let process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        let threads = std::fs::read_dir(process.join("task")).into_iter().flatten().flatten();
        threads.take(THREADS).any(|thread| is_running(&thread.path()))
    }
}

/// Returns true if a thread runs or waits for a processor. Unlike `stat`, this file is written without the lock that a
/// process holds while it executes another program (`exec_update_lock`, kernels since 6.18).
fn is_running(thread: &Path) -> bool {
    let status = std::fs::read_to_string(thread.join("status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:\tR"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum Unanswered {
    /// It was asked, and gave no sign of life.
    Silent,
    /// The time was over before.
    NotAsked,
}

impl std::fmt::Display for Unanswered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Silent => "it does not answer",
            Self::NotAsked => "other processes took too long",
        })
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Time {
    /// Time that is left to wait for silent ones, in all.
    pub(super) left: Duration,
    pub(super) until: Option<Instant>,
}

impl Time {
    fn is_over(&self) -> bool {
        self.left.is_zero() || self.until.is_some_and(|until| Instant::now() >= until)
    }
}

/// Calls `ask` for each of `jobs`, in order, in a thread. If an answer is missing, the thread is abandoned, and another
/// one goes on with the next job. The missing answers of busy processes are awaited together at the end: a process that
/// executes a program, or maps memory, holds a lock until its container has processor time again.
pub(super) fn ask_each<J, T>(
    jobs: Vec<J>,
    time: &mut Time,
    ask: impl Fn(&J, &Pulse) -> T + Send + Sync + 'static,
) -> Vec<Result<T, Unanswered>>
where
    J: Send + Sync + 'static,
    T: Send + 'static,
{
    let (jobs, ask) = (Arc::new(jobs), Arc::new(ask));
    let mut answers = Vec::with_capacity(jobs.len());
    let mut late = Vec::new();
    while answers.len() < jobs.len() && !time.is_over() {
        let (sender, receiver) = mpsc::channel();
        let pulse = Arc::new(Pulse::default());
        let thread = std::thread::Builder::new().spawn({
            let (jobs, ask, pulse, first) = (jobs.clone(), ask.clone(), pulse.clone(), answers.len());
            move || {
                pulse.begin();
                let mut rest = jobs.iter().skip(first);
                rest.all(|job| sender.send(ask(job, &pulse)).is_ok() && !pulse.is_abandoned())
            }
        });
        if thread.is_err() {
            break;
        }
        while answers.len() < jobs.len() && !time.is_over() {
            let answer = receive(&receiver, &pulse, time);
            let is_missing = answer.is_err();
            answers.push(answer);
            if is_missing {
                pulse.abandon();
                late.push((answers.len() - 1, receiver, pulse));
                break;
            }
        }
    }
    await_late(late, &mut answers, time);
    answers.resize_with(jobs.len(), || Err(Unanswered::NotAsked));
    answers
}

/// Waits for the missing answers of processes that run or wait for a processor, for at most half of the time left.
fn await_late<T>(
    mut late: Vec<(usize, Receiver<T>, Arc<Pulse>)>,
    answers: &mut [Result<T, Unanswered>],
    time: &mut Time,
) {
    if late.is_empty() {
        return;
    }
    let (start, limit) = (Instant::now(), time.left / 2);
    loop {
        late.retain(|(job, receiver, pulse)| match receiver.try_recv() {
            Ok(answer) => {
                answers[*job] = Ok(answer);
                false
            }
            Err(TryRecvError::Disconnected) => false,
            Err(TryRecvError::Empty) => pulse.is_process_running(),
        });
        if late.is_empty() || start.elapsed() >= limit || time.is_over() {
            break;
        }
        std::thread::sleep(SLICE);
    }
    time.left = time.left.saturating_sub(start.elapsed());
}

fn receive<T>(receiver: &Receiver<T>, pulse: &Pulse, time: &mut Time) -> Result<T, Unanswered> {
    let limit = SILENCE.min(time.left);
    let mut beats = pulse.beats.load(Ordering::Relaxed);
    let start = Instant::now();
    let mut last = start;
    loop {
        match receiver.recv_timeout(SLICE) {
            Ok(answer) => return Ok(answer),
            Err(RecvTimeoutError::Disconnected) => return Err(Unanswered::Silent),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let now = pulse.beats.load(Ordering::Relaxed);
        if now != beats || start.elapsed() < LONGEST && pulse.is_running() {
            (beats, last) = (now, Instant::now());
        }
        if last.elapsed() >= limit {
            time.left = time.left.saturating_sub(last.elapsed());
            return Err(Unanswered::Silent);
        }
        if time.is_over() {
            return Err(Unanswered::NotAsked);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(left: Duration) -> Time {
        Time { left, until: None }
    }

    #[test]
    fn silent_ones_do_not_hide_others() {
        let start = Instant::now();
        let mut time = time(Duration::from_secs(1));
        let answers = ask_each((0..200).collect(), &mut time, move |number, _| {
            if [13, 77].contains(number) {
                std::thread::sleep(Duration::from_secs(600));
            }
            *number
        });
        let expected: Vec<_> = (0..200)
            .map(|number| if [13, 77].contains(&number) { Err(Unanswered::Silent) } else { Ok(number) })
            .collect();
        assert_eq!(answers, expected);
        assert!(start.elapsed() < Duration::from_secs(10));
        assert!(time.left < Duration::from_millis(401), "{time:?}");
    }

    /// Both answers arrive after the third one.
    #[test]
    fn busy_process_has_more_time() {
        let directory = tempfile::tempdir().unwrap();
        let processes = [("busy", 'R'), ("asleep", 'S'), ("other", 'S')].map(|(name, state)| {
            let process = directory.path().join(name);
            for (thread, state) in [("7", 'S'), ("8", state)] {
                let thread = process.join("task").join(thread);
                std::fs::create_dir_all(&thread).unwrap();
                std::fs::write(thread.join("status"), format!("Name:\tR\nState:\t{state} (x)\n")).unwrap();
            }
            process
        });
        let mut time = time(Duration::from_secs(3));
        let answers = ask_each(processes.to_vec(), &mut time, |process, pulse| {
            pulse.ask_process(process);
            if !process.ends_with("other") {
                std::thread::sleep(3 * SILENCE);
            }
        });
        assert_eq!(answers, [Ok(()), Err(Unanswered::Silent), Ok(())]);
    }

    #[test]
    fn many_silent_ones_cost_the_time_of_all() {
        let start = Instant::now();
        let answers = ask_each(vec![(); 1000], &mut time(Duration::from_secs(1)), |(), _| {
            std::thread::sleep(Duration::from_secs(600));
        });
        assert_eq!(answers[0], Err(Unanswered::Silent));
        assert_eq!(answers[999], Err(Unanswered::NotAsked));
        assert!(start.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn slow_answer_with_signs_of_life_is_awaited() {
        let answers = ask_each(vec![()], &mut time(Duration::from_secs(1)), |(), pulse| {
            for _ in 0..40 {
                std::thread::sleep(Duration::from_millis(20));
                pulse.beat();
            }
        });
        assert_eq!(answers, [Ok(())]);
        let until = Some(Instant::now() + Duration::from_millis(100));
        let mut time = Time { left: Duration::from_secs(1), until };
        let answers = ask_each(vec![()], &mut time, |(), pulse| {
            loop {
                std::thread::sleep(Duration::from_millis(1));
                pulse.beat();
            }
        });
        assert_eq!(answers, [Err::<(), _>(Unanswered::NotAsked)]);
    }
}
