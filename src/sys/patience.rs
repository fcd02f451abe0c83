//! Waiting with a timeout.

use std::sync::mpsc;
use std::time::Duration;

/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(10);

/// Number of attempts that are left for a whole pass over the processes. If none of them may be examined, waiting
/// for each would take minutes.
#[derive(Debug)]
pub(super) struct Patience(u32);

impl Patience {
    /// Allows a third of a second in all.
    pub(super) fn new() -> Self {
        Self(32)
    }

    /// Waits before another attempt; returns `false` if no time is left.
    pub(super) fn wait(&mut self) -> bool {
        let Some(left) = self.0.checked_sub(1) else { return false };
        self.0 = left;
        std::thread::sleep(PAUSE);
        true
    }
}

/// Timeout for one answer.
const SILENCE: Duration = Duration::from_secs(1);

/// Calls `ask` for each of `all`, in order, in a thread that is abandoned if an answer does not arrive in time:
/// that answer and all after it are `None`.
pub(super) fn ask_each<J, T>(all: Vec<J>, mut ask: impl FnMut(J) -> T + Send + 'static) -> Vec<Option<T>>
where
    J: Send + 'static,
    T: Send + 'static,
{
    let mut answers: Vec<Option<T>> = all.iter().map(|_| None).collect();
    let (sender, answered) = mpsc::channel();
    let thread = std::thread::Builder::new()
        .spawn(move || all.into_iter().map(&mut ask).all(|answer| sender.send(answer).is_ok()));
    if thread.is_ok() {
        for answer in &mut answers {
            let Ok(next) = answered.recv_timeout(SILENCE) else { break };
            *answer = Some(next);
        }
    }
    answers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_answer_ends_the_pass() {
        let start = std::time::Instant::now();
        let answers = ask_each((0..200).collect(), move |number| {
            if number == 13 {
                std::thread::sleep(Duration::from_secs(600));
            }
            number
        });
        let expected: Vec<_> = (0..200).map(|number| (number < 13).then_some(number)).collect();
        assert_eq!(answers, expected);
        assert!(start.elapsed() < Duration::from_secs(10));
    }
}
