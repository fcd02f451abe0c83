//! A line on stderr while a scan is under way: only on a terminal, only if it takes a
//! while, gone when it is done.

use std::io::{IsTerminal, stderr};
use std::sync::atomic::Ordering;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::args::{Format, Global};
use crate::report::text::bytes;
use crate::usage::Progress;

/// Shorter scans show nothing.
const DELAY: Duration = Duration::from_millis(500);
const TICK: Duration = Duration::from_millis(100);

/// Runs `work` and shows how far `progress` is.
pub(super) fn shown<T>(global: &Global, progress: &Progress, work: impl FnOnce() -> T) -> T {
    let wanted = !global.no_progress && !global.quiet && global.format == Format::Table;
    if !wanted || !stderr().is_terminal() {
        return work();
    }
    let (done, ended) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if !still_running(&ended, DELAY) {
                return;
            }
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}  {elapsed}") {
                bar.set_style(style);
            }
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
        let result = work();
        drop(done);
        result
    })
}

/// Waits; false as soon as the work is done.
fn still_running(ended: &std::sync::mpsc::Receiver<()>, time: Duration) -> bool {
    matches!(ended.recv_timeout(time), Err(std::sync::mpsc::RecvTimeoutError::Timeout))
}
