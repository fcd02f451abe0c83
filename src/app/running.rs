//! Stores that programs on this node report.

use std::sync::Arc;
use std::time::Duration;

use crate::cri::discover;
use crate::cri::{Client, Endpoint, Options};
use crate::stores::{RunningPrograms, RuntimeStore};
use crate::sys::processes;
use crate::sys::stop::flag;
use crate::sys::sysroot::Sysroot;

/// Timeout of each question to a runtime. One that does not answer is left out: its files are read anyway.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Reads command lines, and asks the runtimes at `named` and at all sockets of this node.
pub(super) fn read(named: Option<&str>) -> RunningPrograms {
    let (containerds, stores) = rayon::join(command_lines, || stores(named));
    RunningPrograms { containerds, stores }
}

fn command_lines() -> Vec<Vec<String>> {
    processes::arguments_of_containerds().unwrap_or_else(|error| {
        tracing::warn!("looking for a containerd that runs: {error}");
        Vec::new()
    })
}

fn stores(named: Option<&str>) -> Vec<RuntimeStore> {
    let mut endpoints: Vec<Endpoint> = named.iter().filter_map(|text| text.parse().ok()).collect();
    for candidate in discover::discover(&Sysroot::live()).candidates {
        if !endpoints.contains(&candidate.endpoint) {
            endpoints.push(candidate.endpoint);
        }
    }
    let options = Options { asking: TIMEOUT, cancel: Some(Arc::clone(flag())), ..Options::default() };
    let ask = |endpoint| Client::connect(endpoint, options.probing())?.runtime_store();
    let answers = endpoints
        .into_iter()
        .filter_map(|endpoint| ask(endpoint).inspect_err(|error| tracing::debug!("{error}")).ok().flatten());
    answers.collect()
}
