//! Parsers for values of flags: durations and sizes, in the same form as in the configuration, times, and
//! values with names.

use std::fmt;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use crate::services::error::Error;

pub use crate::config::values::{duration, size};

/// Creates a parser for the names of `all`, with a line of help for each; `help` may return an empty one.
pub fn one_of<T>(all: &'static [T], help: fn(T) -> &'static str) -> impl TypedValueParser<Value = T>
where
    T: Copy + fmt::Display + Send + Sync,
{
    let possible = all.iter().map(|value| match help(*value) {
        "" => PossibleValue::new(value.to_string()),
        text => PossibleValue::new(value.to_string()).help(text),
    });
    PossibleValuesParser::new(possible).try_map(move |name| {
        all.iter().copied().find(|value| value.to_string() == name).ok_or("no such value")
    })
}

/// Time in the past, relative or absolute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    Ago(SignedDuration),
    Time(Timestamp),
}

impl Since {
    /// Parses a duration, an RFC 3339 time, or a local date with or without a time.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::parse_in(text, &TimeZone::system())
    }

    fn parse_in(text: &str, zone: &TimeZone) -> Result<Self, String> {
        if let Ok(ago) = duration(text) {
            return Ok(Self::Ago(ago));
        }
        if let Ok(time) = text.parse() {
            return Ok(Self::Time(time));
        }
        let local = text.parse::<DateTime>().ok().and_then(|local| zone.to_timestamp(local).ok());
        local.map(Self::Time).ok_or(format!(
            "{text:?} is neither a duration like 36h or 7d nor a time like 2026-11-21 or 2026-11-21T13:00:00Z"
        ))
    }

    /// Returns the time relative to `now`.
    ///
    /// # Errors
    /// If it is in the future.
    pub fn before(self, now: Timestamp) -> Result<Timestamp, Error> {
        let since = self.at(now);
        if since > now {
            let time = since.strftime("%F %T UTC");
            return Err(Error::usage(format!("--since {time}: this time is in the future")));
        }
        Ok(since)
    }

    /// Returns the time relative to `now`.
    pub fn at(self, now: Timestamp) -> Timestamp {
        match self {
            Self::Ago(ago) => now.saturating_sub(ago).unwrap_or(Timestamp::MIN),
            Self::Time(time) => time,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_parsed_in_the_local_zone() {
        let zone = TimeZone::fixed(jiff::tz::offset(2));
        let now: Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
        for (text, expected) in [
            ("36h", "2026-11-20T00:00:00Z"),
            ("99999999w", "-009999-01-02T01:59:59Z"),
            ("2026-11-21", "2026-11-20T22:00:00Z"),
            ("2026-11-21T13:00", "2026-11-21T11:00:00Z"),
            ("2026-11-21 13:00:30", "2026-11-21T11:00:30Z"),
            ("2026-11-21T13:00:00Z", "2026-11-21T13:00:00Z"),
            ("2026-11-21T13:00:00+01:00", "2026-11-21T12:00:00Z"),
        ] {
            let since = Since::parse_in(text, &zone).unwrap();
            let expected: Timestamp = expected.parse().unwrap();
            assert_eq!(since.at(now), expected, "{text}");
        }
        for text in ["", "yesterday", "2026", "2026-13-01", "13:00"] {
            assert!(Since::parse_in(text, &zone).is_err(), "{text}");
        }
    }
}
