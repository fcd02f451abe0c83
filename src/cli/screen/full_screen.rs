//! The full screen of a terminal, which is given back after any end, a panic included.
//!
//! While it is shown, lines of the log would be written across it: they are kept, and printed when it ends.

use std::io::{self, Write, stderr, stdout};
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::thread;

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::{DefaultTerminal, Terminal};

use crate::services::error::Error;

static IS_SHOWN: AtomicBool = AtomicBool::new(false);
static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// Maximum length of the log that is kept.
const MOST_LOG: usize = 64 << 10;

/// Shows an empty full screen.
pub fn enter() -> Result<DefaultTerminal, Error> {
    static HOOK: Once = Once::new();
    HOOK.call_once(add_hook);
    enable_raw_mode().map_err(Error::output)?;
    IS_SHOWN.store(true, Ordering::Relaxed);
    execute!(stdout(), EnterAlternateScreen, Clear(ClearType::All)).map_err(Error::output)?;
    // A new one draws everything. It could not ask where the cursor is: not every terminal answers.
    Terminal::new(CrosstermBackend::new(stdout())).map_err(Error::output)
}

/// Shows the usual screen again, and the log since [`enter`].
pub fn leave() {
    if IS_SHOWN.load(Ordering::Relaxed) {
        give_back(&mut stdout());
        // The terminal may be gone.
        let _ = disable_raw_mode();
        let _ = stderr().write_all(&take_log());
    }
}

fn give_back(to: &mut impl Write) {
    let _ = execute!(to, LeaveAlternateScreen, Show);
    IS_SHOWN.store(false, Ordering::Relaxed);
}

fn take_log() -> Vec<u8> {
    std::mem::take(&mut LOG.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A panic of the thread that draws ends the program: it is printed on the usual screen. A panic of any other thread is
/// the failure of its work, which the view reports.
fn add_hook() {
    let (drawing, usual) = (thread::current().id(), panic::take_hook());
    panic::set_hook(Box::new(move |panic| {
        let is_shown = IS_SHOWN.load(Ordering::Relaxed);
        if thread::current().id() == drawing {
            leave();
        }
        if !is_shown || thread::current().id() == drawing {
            usual(panic);
        }
    }));
}

/// Writer of the log: to stderr, or to memory while the full screen is shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if !IS_SHOWN.load(Ordering::Relaxed) {
            return stderr().write(line);
        }
        let mut log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
        if log.len() < MOST_LOG {
            log.extend_from_slice(line);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn screen_is_given_back_after_a_panic() {
        IS_SHOWN.store(true, Ordering::Relaxed);
        LogWriter.write_all(b"WARN a store was locked\n").unwrap();
        let mut screen = Vec::new();
        give_back(&mut screen);
        assert_eq!(screen, b"\x1b[?1049l\x1b[?25h");
        assert_eq!(take_log(), b"WARN a store was locked\n", "it waits for the usual screen");
        add_hook();
        IS_SHOWN.store(true, Ordering::Relaxed);
        assert!(thread::spawn(|| panic!("in a measurement")).join().is_err());
        assert!(IS_SHOWN.load(Ordering::Relaxed), "the view goes on");
        assert!(panic::catch_unwind(|| panic!("in the view")).is_err());
        assert!(!IS_SHOWN.load(Ordering::Relaxed));
    }
}
