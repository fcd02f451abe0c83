//! The terminal or file that text is printed to.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::model::reference::host;

/// Where text is to appear.
#[derive(Clone, Debug)]
pub struct Screen {
    /// Columns; `None` where no terminal listens: then nothing is cut.
    pub width: Option<usize>,
    /// The locale can show more than ASCII.
    pub unicode: bool,
    /// Tables cut long names and fit the terminal; `false` for `--no-trunc`.
    pub truncates: bool,
    /// The zone that times are printed in.
    pub zone: TimeZone,
}

impl Screen {
    /// Date and time to the second.
    pub(super) fn time(&self, at: Timestamp) -> String {
        at.to_zoned(self.zone.clone()).strftime("%Y-%m-%d %H:%M:%S").to_string()
    }

    /// Date and time to the minute.
    pub fn minute(&self, at: Timestamp) -> String {
        at.to_zoned(self.zone.clone()).strftime("%Y-%m-%d %H:%M").to_string()
    }

    /// The date.
    pub(super) fn date(&self, at: Timestamp) -> String {
        at.to_zoned(self.zone.clone()).strftime("%Y-%m-%d").to_string()
    }

    /// The time of the day.
    pub(super) fn clock(&self, at: Timestamp) -> String {
        at.to_zoned(self.zone.clone()).strftime("%H:%M:%S").to_string()
    }

    /// `text` in at most `width` columns, see [`shorten`].
    pub(super) fn shorten(&self, text: &str, width: usize) -> String {
        shorten(text, width, if self.unicode { "…" } else { ".." })
    }
}

/// `text` in at most `width` columns, with `mark` where something is left out. Of a name, the end says most: of an
/// image's only its registry is cut, and then what follows; of a digest, the beginning is enough.
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

/// Whether it is an image reference with a registry, by the rule of the tools.
fn has_registry(text: &str) -> bool {
    host(text).is_some_and(|host| !host.contains(char::is_whitespace))
}

/// As many of the characters as have room.
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
    fn names_are_cut_where_they_say_least() {
        let mut screen = Screen { width: None, unicode: true, truncates: true, zone: TimeZone::UTC };
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
