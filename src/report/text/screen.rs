//! Terminal or file that text is printed to.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::format::{first_of, wrapped};
use crate::model::text::reference::host;

#[derive(Clone, Debug)]
pub struct Screen {
    /// Width in columns; `None` if the output is not a terminal. Tables then shorten only what is wider than 60 columns,
    /// and `report` the names of the largest objects.
    pub width: Option<usize>,
    /// True if the locale can show characters outside ASCII.
    pub unicode: bool,
    /// True if tables shorten long names and fit the terminal; false with `--no-trunc`.
    pub truncates: bool,
    /// True if notes and footers are printed with the results; false with `--quiet`.
    pub notes: bool,
    pub zone: TimeZone,
}

impl Screen {
    /// Formats date and time to the second.
    pub(super) fn time(&self, time: Timestamp) -> String {
        self.format(time, "%Y-%m-%d %H:%M:%S")
    }

    /// Formats date and time to the minute.
    pub fn minute(&self, time: Timestamp) -> String {
        self.format(time, "%Y-%m-%d %H:%M")
    }

    /// Formats a time to the second, with its date unless that is the date of `known`: the present, or a time that
    /// the reader has just read.
    pub(super) fn time_on(&self, time: Timestamp, known: Timestamp) -> String {
        if self.date(time) == self.date(known) { self.format(time, "%H:%M:%S") } else { self.time(time) }
    }

    pub(super) fn date(&self, time: Timestamp) -> String {
        self.format(time, "%Y-%m-%d")
    }

    /// Returns the name of the zone at a time, for example `UTC` or `CET`. A text names it once.
    pub(super) fn zone_name(&self, time: Timestamp) -> String {
        match self.format(time, "%Z") {
            // A system without a setting has UTC.
            name if name == "Etc/Unknown" => "UTC".into(),
            name => name,
        }
    }

    /// Formats the line below texts with times and ids of runs and scans, which contain a time in UTC.
    pub(super) fn zone_line(&self, time: Timestamp) -> String {
        self.note(&match self.zone_name(time).as_str() {
            "UTC" => "Times are in UTC.".into(),
            zone => format!("Times are in {zone}; ids of runs and scans begin with their time in UTC."),
        })
    }

    fn format(&self, time: Timestamp, format: &str) -> String {
        time.to_zoned(self.zone.clone()).strftime(format).to_string()
    }

    /// Formats the first element and the number of others, or all elements if nothing is shortened; `none` without
    /// elements.
    pub(super) fn list<T>(&self, all: &[T], none: &str, name: impl Fn(&T) -> String) -> String {
        if self.truncates || all.is_empty() {
            first_of(all, none, name)
        } else {
            all.iter().map(name).collect::<Vec<_>>().join(", ")
        }
    }

    /// Formats a note or footer on lines that fit the terminal; empty if notes are not printed.
    pub(super) fn note(&self, text: &str) -> String {
        if self.notes { wrapped(text, self.width.unwrap_or(usize::MAX), "") } else { String::new() }
    }

    /// Shortens `text` to at most `width` columns, see [`shorten`].
    pub(super) fn shorten(&self, text: &str, width: usize) -> String {
        shorten(text, width, if self.unicode { "…" } else { ".." })
    }
}

/// Shortens `text` to at most `width` columns and puts `mark` in place of the removed part.
///
/// The end of a name says most: an image loses its registry first, then the parts that follow it, as in
/// `…/library/nginx:1.27`. Of a digest, the first twelve digits are enough. Other text, for example a path,
/// also keeps a third of the room for its beginning.
pub(crate) fn shorten(text: &str, width: usize, mark: &str) -> String {
    const DIGITS: usize = 12;
    if text.width() <= width {
        return text.to_owned();
    }
    if let Some((name, digest)) = text.split_once("@sha256:")
        && digest.is_ascii()
        && digest.len() > DIGITS
        && digest.as_bytes()[..DIGITS].iter().all(u8::is_ascii_hexdigit)
    {
        return shorten(&format!("{name}@sha256:{}", &digest[..DIGITS]), width, mark);
    }
    let room = width.saturating_sub(mark.width());
    let front = if has_registry(text) { 0 } else { room / 3 };
    let front = fitting(text.chars(), front);
    let back = fitting(text.chars().rev(), room - front.width());
    format!("{front}{mark}{}", back.chars().rev().collect::<String>())
}

/// Returns true for an image reference with a registry, by the rule of the runtimes' tools.
fn has_registry(text: &str) -> bool {
    host(text).is_some_and(|host| !host.contains(char::is_whitespace))
}

/// Returns the first characters that fit into `room` columns.
fn fitting(characters: impl Iterator<Item = char>, room: usize) -> String {
    let mut used = 0;
    characters
        .take_while(|c| {
            used += c.width().unwrap_or(0);
            used <= room
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortened_names_keep_their_end() {
        let mut screen =
            Screen { width: None, unicode: true, truncates: true, notes: true, zone: TimeZone::UTC };
        let digest = format!("quay.io/a/b@sha256:{}", "0123456789abcdef".repeat(4));
        for (text, width, expected) in [
            ("short", 5, "short"),
            ("docker.io/library/nginx:1.27", 20, "…/library/nginx:1.27"),
            ("docker.io/library/nginx:1.27 +2", 14, "…nginx:1.27 +2"),
            ("/var/lib/containers/storage", 15, "/var…rs/storage"),
            (&digest, 40, "quay.io/a/b@sha256:0123456789ab"),
            (&digest, 25, "…/a/b@sha256:0123456789ab"),
            ("画像画像画像", 7, "画…画像"),
            ("abc", 0, "…"),
        ] {
            let short = screen.shorten(text, width);
            assert_eq!(short, expected);
            assert!(short.width() <= width.max(1), "{short}");
        }
        screen.unicode = false;
        assert_eq!(screen.shorten("docker.io/library/nginx:1.27", 20), "..library/nginx:1.27");
    }
}
