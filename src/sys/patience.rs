//! Waiting, with an end.

use std::sync::mpsc::{self, Sender};
use std::time::Duration;

/// How long is waited between two tries.
const PAUSE: Duration = Duration::from_millis(10);

/// For how many more tries there is time. One for a whole pass over the processes: where we have
/// no right to look at any of them, waiting for each would take minutes.
#[derive(Debug)]
pub(super) struct Patience(u32);

impl Patience {
    /// For a third of a second in all.
    pub(super) fn new() -> Self {
        Self(32)
    }

    /// Waits before another try; `false` where there is no time left.
    pub(super) fn wait(&mut self) -> bool {
        let Some(left) = self.0.checked_sub(1) else { return false };
        self.0 = left;
        std::thread::sleep(PAUSE);
        true
    }
}

/// How long an answer is waited for.
const ANSWER: Duration = Duration::from_secs(1);

/// After so many that did not come, none is waited for.
const MOST_STUCK: u32 = 3;

type Job = Box<dyn FnOnce() + Send>;

/// Asks in a thread of its own what may never be answered, and leaves that thread behind.
#[derive(Debug, Default)]
pub(super) struct Careful {
    worker: Option<Sender<Job>>,
    stuck: u32,
}

impl Careful {
    /// The answer, if it comes in time.
    pub(super) fn ask<T: Send + 'static>(
        &mut self,
        question: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        if self.stuck >= MOST_STUCK {
            return None;
        }
        let (answer, answered) = mpsc::sync_channel(1);
        let job: Job = Box::new(move || {
            let _ = answer.send(question());
        });
        if self.worker.is_none() {
            let (sender, jobs) = mpsc::channel::<Job>();
            let work = move || jobs.into_iter().for_each(|job| job());
            std::thread::Builder::new().spawn(work).ok()?;
            self.worker = Some(sender);
        }
        self.worker.as_ref()?.send(job).ok()?;
        let answer = answered.recv_timeout(ANSWER).ok();
        if answer.is_none() {
            self.worker = None;
            self.stuck += 1;
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_answer_is_left() {
        let mut careful = Careful::default();
        assert_eq!(careful.ask(|| 1), Some(1));
        let never = || std::thread::sleep(Duration::from_secs(600));
        for _ in 0..MOST_STUCK {
            assert_eq!(careful.ask(never), None);
        }
        assert_eq!(careful.ask(|| 2), None, "nobody waits any more");
    }
}
