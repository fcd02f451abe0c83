//! A line on stderr while a scan is under way: only on a terminal, only if it takes a
//! while, gone when it is done.

use std::io::{IsTerminal, stderr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::terminal;
use crate::app::observer::Shown;
use crate::disk::Progress;
use crate::report::text::bytes;

/// Shorter scans show nothing.
const DELAY: Duration = Duration::from_millis(500);
const TICK: Duration = Duration::from_millis(100);

/// Shows how far a measurement is, until what is returned is dropped.
pub(super) fn show(wanted: bool, progress: &Arc<Progress>) -> Shown {
    if !wanted || !stderr().is_terminal() {
        return Shown::default();
    }
    let (done, ended) = std::sync::mpsc::channel::<()>();
    let progress = Arc::clone(progress);
    let thread = std::thread::spawn(move || {
        if !still_running(&ended, DELAY) {
            return;
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        set_style(&bar, "{spinner} {msg}  {elapsed}");
        loop {
            let inodes = progress.inodes.load(Ordering::Relaxed);
            let allocated = progress.bytes.load(Ordering::Relaxed);
            bar.set_message(format!("measuring: {inodes} inodes, {}", bytes(allocated)));
            bar.tick();
            if !still_running(&ended, TICK) {
                break;
            }
        }
        bar.finish_and_clear();
    });
    Shown::until(move || {
        drop(done);
        // A bar that panicked has nothing left to show.
        let _ = thread.join();
    })
}

fn set_style(bar: &ProgressBar, template: &str) {
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(if terminal::is_unicode() { style } else { style.tick_chars("-\\|/ ") });
    }
}

/// One line that says what is being done just now; gone when it is dropped.
#[derive(Debug)]
pub(super) struct Line(Option<ProgressBar>);

impl Line {
    pub(super) fn new(wanted: bool) -> Self {
        Self((wanted && stderr().is_terminal()).then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            set_style(&bar, "{spinner} {wide_msg}");
            bar.enable_steady_tick(TICK);
            bar
        }))
    }

    /// `text` has no foreign control characters.
    pub(super) fn say(&self, text: String) {
        if let Some(bar) = &self.0 {
            bar.set_message(text);
        }
    }

    /// Lets something else be written to stderr.
    pub(super) fn hidden(&self, write: impl FnOnce()) {
        match &self.0 {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

/// Waits; false as soon as the work is done.
fn still_running(ended: &std::sync::mpsc::Receiver<()>, time: Duration) -> bool {
    matches!(ended.recv_timeout(time), Err(std::sync::mpsc::RecvTimeoutError::Timeout))
}
