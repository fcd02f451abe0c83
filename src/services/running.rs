//! Stores that programs on this node report.

use std::sync::Arc;
use std::time::Duration;

use crate::cri::discover;
use crate::cri::{Client, CriError, Endpoint, Options};
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
        store(endpoint, &options).inspect_err(|error| tracing::debug!("{error}")).ok().flatten()
    });
    answers.collect()
}

fn store(endpoint: Endpoint, options: &Options) -> Result<Option<RuntimeStore>, CriError> {
    let client = Client::connect(endpoint, options.probing())?;
    let Some(store) = client.runtime_store()? else { return Ok(None) };
    if !store.kind.facts().is_of_runtime {
        return Ok(Some(store));
    }
    // Without this answer, the state of the sandboxes is unknown: nothing is said of their containers then.
    let sandboxes = client.sandboxes().inspect_err(|error| tracing::debug!("{error}")).unwrap_or_default();
    let ended = sandboxes.into_iter().filter(|sandbox| !sandbox.ready).map(|sandbox| sandbox.id);
    Ok(Some(RuntimeStore { ended_sandboxes: ended.collect(), ..store }))
}
