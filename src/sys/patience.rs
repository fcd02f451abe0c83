//! Waiting with a timeout.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Pause between two attempts.
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

/// Maximum time for one answer of a thread that has work to do, or waits for a processor.
const LONGEST: Duration = Duration::from_secs(3);

/// Signs of life of a thread whose answer takes long.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    beats: AtomicU64,
    thread: AtomicI32,
}

impl Pulse {
    pub(super) fn beat(&self) {
        self.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes the calling thread as the one that answers.
    fn begin(&self) {
        self.thread.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Relaxed);
    }

    /// Returns true if the thread does not wait for anything but a processor: the machine is busy.
    fn is_running(&self) -> bool {
        let thread = self.thread.load(Ordering::Relaxed);
        let stat = std::fs::read(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
        // The state follows the name, which may contain brackets.
        let end = stat.iter().rposition(|byte| *byte == b')');
        thread == 0 || end.is_some_and(|end| stat.get(end + 2) == Some(&b'R'))
    }
}

/// Reason why there is no answer.
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

/// Time for the questions of a pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Time {
    /// Time that is left to wait for silent ones, in all.
    pub(super) left: Duration,
    /// End of the pass.
    pub(super) until: Option<Instant>,
}

impl Time {
    fn is_over(&self) -> bool {
        self.left.is_zero() || self.until.is_some_and(|until| Instant::now() >= until)
    }
}

/// Calls `ask` for each of `jobs`, in order, in a thread. If an answer is missing, the thread is abandoned, and another
/// one goes on with the next job.
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
    while answers.len() < jobs.len() && !time.is_over() {
        let (sender, receiver) = mpsc::channel();
        let pulse = Arc::new(Pulse::default());
        let thread = std::thread::Builder::new().spawn({
            let (jobs, ask, pulse, first) = (jobs.clone(), ask.clone(), pulse.clone(), answers.len());
            move || {
                pulse.begin();
                jobs.iter().skip(first).all(|job| sender.send(ask(job, &pulse)).is_ok())
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
                break;
            }
        }
    }
    answers.resize_with(jobs.len(), || Err(Unanswered::NotAsked));
    answers
}

/// Waits for the next answer.
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
