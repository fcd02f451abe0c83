//! The terminal or file that text is printed to.

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use jiff::tz::TimeZone;

use crate::report::text::Screen;

/// Minimum width of a layout.
const NARROWEST: usize = 40;
const DEFAULT: usize = 80;

static TRUNCATES: AtomicBool = AtomicBool::new(true);
static NOTES: AtomicBool = AtomicBool::new(true);

/// Sets whether tables are shortened (false with `--no-trunc`), and whether notes are printed (false with `--quiet`).
pub fn set_screen(truncates: bool, notes: bool) {
    TRUNCATES.store(truncates, Ordering::Relaxed);
    NOTES.store(notes, Ordering::Relaxed);
}

pub fn screen() -> Screen {
    Screen {
        width: width(io::stdout()),
        unicode: is_unicode(),
        truncates: TRUNCATES.load(Ordering::Relaxed),
        notes: NOTES.load(Ordering::Relaxed),
        zone: TimeZone::system(),
    }
}

/// Returns the width of a terminal; `None` if the output is not one.
pub fn width(output: impl IsTerminal + AsFd) -> Option<usize> {
    output.is_terminal().then(|| {
        // `COLUMNS`, which shells and tests set, or else the size of the terminal.
        let variable = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse::<usize>().ok());
        let columns = variable
            .or_else(|| rustix::termios::tcgetwinsize(&output).ok().map(|size| usize::from(size.ws_col)));
        columns.filter(|columns| *columns > 0).unwrap_or(DEFAULT).max(NARROWEST)
    })
}

/// Returns true if the locale of this process can show characters outside ASCII.
pub fn is_unicode() -> bool {
    is_utf8(&["LC_ALL", "LC_CTYPE", "LANG"].map(|name| std::env::var(name).unwrap_or_default()))
}

pub fn is_one() -> bool {
    io::stdout().is_terminal()
}

/// Returns true if a locale uses UTF-8; the first variable that is set decides.
fn is_utf8(locale: &[String]) -> bool {
    let decides = locale.iter().find(|value| !value.is_empty());
    decides.is_some_and(|value| {
        let codeset = value.rsplit_once('.').map_or("", |(_, codeset)| codeset).to_ascii_lowercase();
        codeset.starts_with("utf-8") || codeset.starts_with("utf8")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_set_locale_decides() {
        for (locale, expected) in [
            (["", "", ""], false),
            (["", "", "C"], false),
            (["", "", "C.UTF-8"], true),
            (["", "", "en_GB.utf8"], true),
            (["", "", "en_GB.UTF-8@euro"], true),
            (["C", "", "en_GB.UTF-8"], false),
            (["", "de_DE.ISO-8859-1", "C.UTF-8"], false),
            (["", "C.UTF-8", "C"], true),
        ] {
            assert_eq!(is_utf8(&locale.map(str::to_owned)), expected, "{locale:?}");
        }
    }
}
