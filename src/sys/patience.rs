//! Waiting with a deadline.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long is waited between two tries.
const PAUSE: Duration = Duration::from_millis(10);

/// For how many more tries there is time. One for a whole pass over the processes: where we have
/// no right to look at any of them, waiting for each would take minutes.
#[derive(Debug)]
pub(super) struct Patience(AtomicU32);

impl Patience {
    /// For a third of a second in all.
    pub(super) fn new() -> Self {
        Self(AtomicU32::new(32))
    }

    /// Waits before another try; `false` where there is no time left.
    pub(super) fn wait(&self) -> bool {
        let left = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if left.is_ok() {
            std::thread::sleep(PAUSE);
        }
        left.is_ok()
    }
}

/// After so long without any answer none is waited for.
const SILENCE: Duration = Duration::from_secs(1);

/// After so long without any answer another thread asks as well.
const SHORT: Duration = Duration::from_millis(30);

/// A service's limit of tasks is not met by so many.
const MOST_THREADS: usize = 48;

/// Asks about each of `all`, in their order, what may never be answered: in threads that are left
/// behind where they are stuck. `None` for what was not answered.
pub(super) fn ask_each<J, T>(all: Vec<J>, ask: impl Fn(J) -> T + Send + Sync + 'static) -> Vec<Option<T>>
where
    J: Send + 'static,
    T: Send + 'static,
{
    let mut answers: Vec<Option<T>> = all.iter().map(|_| None).collect();
    let waiting: Arc<Mutex<VecDeque<(usize, J)>>> =
        Arc::new(Mutex::new(all.into_iter().enumerate().collect()));
    let ask = Arc::new(ask);
    let (sender, answered) = mpsc::channel();
    let another = || {
        let (waiting, ask, sender) = (Arc::clone(&waiting), Arc::clone(&ask), sender.clone());
        let work = move || {
            loop {
                let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                let Some((at, job)) = next else { return };
                if sender.send((at, ask(job))).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().spawn(work).is_ok()
    };
    let mut threads = 0;
    let mut left = answers.len();
    let mut silence = Duration::ZERO;
    while left > 0 && silence < SILENCE {
        if threads < MOST_THREADS && (threads == 0 || !silence.is_zero()) {
            threads += if another() { 1 } else { MOST_THREADS };
        }
        match answered.recv_timeout(SHORT) {
            Ok((at, answer)) => {
                answers[at] = Some(answer);
                left -= 1;
                silence = Duration::ZERO;
            }
            Err(RecvTimeoutError::Timeout) => silence += SHORT,
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    answers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_answer_is_left() {
        let start = std::time::Instant::now();
        let never = || std::thread::sleep(Duration::from_secs(600));
        let answers = ask_each((0..200).collect(), move |at| {
            if at % 10 == 3 {
                never();
            }
            at
        });
        let expected: Vec<_> = (0..200).map(|at| (at % 10 != 3).then_some(at)).collect();
        assert_eq!(answers, expected);
        let answers = ask_each((0..200).collect(), move |at| {
            if at > 10 {
                never();
            }
            at
        });
        assert_eq!(answers.iter().flatten().count(), 11, "the first are asked first");
        assert!(start.elapsed() < Duration::from_secs(10));
    }
}
