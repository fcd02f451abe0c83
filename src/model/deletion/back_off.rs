//! Back-off after failed deletions.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackOff {
    /// Number of failed attempts in a row.
    pub failures: u32,
    /// Earliest time of the next attempt, in record time.
    pub next_try: Timestamp,
    pub last_error: String,
}

impl BackOff {
    /// Wait after the first failure.
    const FIRST: SignedDuration = SignedDuration::from_mins(5);
    /// Maximum wait.
    const LONGEST: SignedDuration = SignedDuration::from_hours(24);

    /// Returns the state after one more failure: the wait is five minutes at first, doubles each time and is at
    /// most a day.
    #[must_use]
    pub fn after(earlier: Option<&Self>, now: Timestamp, error: &str) -> Self {
        let failures = earlier.map_or(0, |earlier| earlier.failures).saturating_add(1);
        let doubled = 1_i32.checked_shl(failures - 1).filter(|_| failures <= 16);
        let wait = doubled.and_then(|times| Self::FIRST.checked_mul(times)).unwrap_or(Self::LONGEST);
        let next_try = now.checked_add(wait.min(Self::LONGEST)).unwrap_or(Timestamp::MAX);
        Self { failures, next_try, last_error: error.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_doubles_up_to_a_day() {
        let now: Timestamp = "2026-11-21T00:00:00Z".parse().unwrap();
        let mut back_off = None;
        let mut waits = Vec::new();
        for _ in 0..11 {
            let next = BackOff::after(back_off.as_ref(), now, "in use");
            waits.push(next.next_try.duration_since(now).as_mins());
            back_off = Some(next);
        }
        assert_eq!(waits, [5, 10, 20, 40, 80, 160, 320, 640, 1280, 1440, 1440]);
        let many = BackOff { failures: u32::MAX, next_try: now, last_error: String::new() };
        assert_eq!(BackOff::after(Some(&many), now, "").failures, u32::MAX);
    }
}
