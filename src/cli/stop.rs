//! Signals that ask to stop: what is being deleted is finished and reported.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use super::failure::Failure;

/// From now on SIGTERM, SIGINT and SIGHUP set `stop` instead of ending the process; the second
/// SIGINT ends it at once, for whoever will not wait.
pub(super) fn listen(stop: &Arc<AtomicBool>) -> Result<(), Failure> {
    let failed =
        |error| Failure::BadArgument { message: format!("catching signals: {error}"), hint: String::new() };
    // First the one that ends it if the flag was set before, then the one that sets it.
    flag::register_conditional_default(SIGINT, Arc::clone(stop)).map_err(failed)?;
    let ignored = ignored();
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // Whoever said nohup means it.
        if ignored & (1 << (signal - 1)) == 0 {
            flag::register(signal, Arc::clone(stop)).map_err(failed)?;
        }
    }
    Ok(())
}

/// The signals that whoever started us has let us ignore, as a mask (`SigIgn` in proc(5)).
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
