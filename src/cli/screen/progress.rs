//! Progress line on stderr: only on a terminal, only during long operations, removed at the end.

use std::io::{IsTerminal, stderr};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::cli::screen::terminal;
use crate::services::observer::Shown;

/// Minimum duration of an operation that shows a line.
const DELAY: Duration = Duration::from_millis(500);
const TICK: Duration = Duration::from_millis(100);

/// Shows how far an operation is until the returned value is dropped.
pub fn show(wanted: bool, message: Box<dyn Fn() -> String + Send>) -> Shown {
    if !wanted || !stderr().is_terminal() {
        return Shown::default();
    }
    let (done, ended) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        if !still_running(&ended, DELAY) {
            return;
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        set_style(&bar, "{spinner} {msg}  {elapsed}");
        loop {
            bar.set_message(message());
            bar.tick();
            if !still_running(&ended, TICK) {
                break;
            }
        }
        bar.finish_and_clear();
    });
    Shown::until(move || {
        drop(done);
        // The thread of a bar that panicked needs no action.
        let _ = thread.join();
    })
}

fn set_style(bar: &ProgressBar, template: &str) {
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(if terminal::is_unicode() { style } else { style.tick_chars("-\\|/ ") });
    }
}

/// Line about the current action, removed when it is dropped.
#[derive(Debug)]
pub struct ProgressLine(Option<ProgressBar>);

impl ProgressLine {
    pub fn new(wanted: bool) -> Self {
        Self((wanted && stderr().is_terminal()).then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            set_style(&bar, "{spinner} {wide_msg}");
            bar.enable_steady_tick(TICK);
            bar
        }))
    }

    /// `text` must not contain control characters from outside.
    pub fn say(&self, text: String) {
        if let Some(bar) = &self.0 {
            bar.set_message(text);
        }
    }

    /// Hides the line while something else is written to stderr.
    pub fn hidden(&self, write: impl FnOnce()) {
        match &self.0 {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

/// Waits for `time` and returns true, or returns false as soon as the work is done.
fn still_running(ended: &std::sync::mpsc::Receiver<()>, time: Duration) -> bool {
    matches!(ended.recv_timeout(time), Err(std::sync::mpsc::RecvTimeoutError::Timeout))
}
