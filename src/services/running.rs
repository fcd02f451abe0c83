//! Stores that programs on this node report.

use std::sync::Arc;
use std::time::Duration;

use crate::cri::discover;
use crate::cri::{Client, Endpoint, Options};
use crate::stores::{RunningPrograms, RuntimeStore};
use crate::sys::stop::flag;
use crate::sys::sysroot::Sysroot;

/// Timeout of each request to a runtime. A runtime that does not answer is skipped: its files are read anyway.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Reads the command lines of containerd processes, and asks the runtimes at `named` and at all sockets of this node.
pub(crate) fn read(named: Option<&str>) -> RunningPrograms {
    let (containerds, stores) = (discover::containerds().to_vec(), stores(named));
    RunningPrograms { containerds, stores }
}

fn stores(named: Option<&str>) -> Vec<RuntimeStore> {
    let mut endpoints: Vec<Endpoint> = named.iter().filter_map(|text| text.parse().ok()).collect();
    for candidate in discover::discover(&Sysroot::live()).candidates {
        if !endpoints.contains(&candidate.endpoint) {
            endpoints.push(candidate.endpoint);
        }
    }
    let options = Options { asking: TIMEOUT, cancel: Some(Arc::clone(flag())), ..Options::default() };
    let answers = endpoints.into_iter().filter_map(|endpoint| {
        let store = Client::connect(endpoint, options.probing()).and_then(|client| client.runtime_store());
        store.inspect_err(|error| tracing::debug!("{error}")).ok().flatten()
    });
    answers.collect()
}
