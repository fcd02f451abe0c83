//! Checks of the runtimes' sockets and of the store of the chosen runtime.

use super::check::Check;
use super::node::{Node, RuntimeChecks};
use crate::config::Via;
use crate::cri::discover::{self, Candidate};
use crate::cri::{Client, CriError, CriProblem, Options};
use crate::execute::runtime_match::RuntimeStores;
use crate::model::StoreIx;
use crate::model::text::display::shell_word;
use crate::node::timers::{self, TimerState};
use crate::services::crio;
use crate::services::runtime::{ANY, choose, hint};
use crate::services::via;

pub(super) fn ask(node: &Node<'_>) -> RuntimeChecks {
    let not_asked = if node.is_foreign() {
        Some("not asked: this is another node's disk (--sysroot)")
    } else if node.request.cri_endpoint.is_none() && node.request.has_stores() {
        Some("not asked: a store is named, but no socket (--cri-endpoint)")
    } else if node.request.cri_endpoint.is_none() && node.stores.environment.uid != 0 {
        Some("not asked: the runtimes of the node do not use a user's store")
    } else {
        None
    };
    if let Some(why) = not_asked {
        return RuntimeChecks { chosen: vec![Check::note("", why)], ..RuntimeChecks::default() };
    }
    let (candidates, mut sockets) = match &node.request.cri_endpoint {
        None => {
            let found = discover::discover(&node.stores.sysroot);
            let remedy = "fix the file, or name the socket with --cri-endpoint";
            let problems = found.problems.into_iter();
            (found.candidates, problems.map(|(file, why)| Check::warning(file, why, remedy)).collect())
        }
        Some(named) => match named.parse() {
            Ok(endpoint) => {
                let origin = "--cri-endpoint, or stores.cri_endpoint".to_owned();
                (vec![Candidate { endpoint, origin, configured: true }], Vec::new())
            }
            Err(error) => {
                let remedy = "use a socket like unix:///run/crio/crio.sock";
                let sockets = vec![Check::error(named, error.to_string(), remedy)];
                return RuntimeChecks { sockets, ..RuntimeChecks::default() };
            }
        },
    };
    let answers = discover::probe(candidates, &Options::default());
    for (candidate, client) in &answers.runtimes {
        let (version, origin) = (client.version(), &candidate.origin);
        let message = format!("{} {} answers ({origin})", version.runtime_name, version.runtime_version);
        sockets.push(Check::ok(client.endpoint().to_string(), message));
    }
    sockets.extend(answers.silent.iter().map(|(candidate, error)| silent(node, candidate, error)));
    let is_expected = via::is_expected(&answers, &node.kubelet, &node.stores.sysroot);
    let (chosen, store) = match choose(answers) {
        Ok(client) => serves(node, &client),
        Err(failure) => {
            let message = format!("gc cannot delete through a runtime: {failure}");
            let remedy = failure.hint(name(node), can_edit(node));
            let check = if node.kubelet.is_here() {
                Check::error("", message, remedy)
            } else if is_expected {
                Check::warning("", message, remedy)
            } else {
                let timer = timers::read(&node.stores.sysroot, timers::GC);
                let by_timer = timer.is_ok_and(|timer| timer.state == TimerState::Enabled);
                without_runtime(&message, node.config.via, by_timer)
            };
            (check, None)
        }
    };
    RuntimeChecks { sockets, chosen: vec![chosen], store }
}

/// Returns true if the images of the runtime may be in stores that can be edited: no store that only its daemon edits
/// has images of Kubernetes.
fn can_edit(node: &Node<'_>) -> bool {
    let Some(scan) = node.scan() else { return true };
    let mut images = scan.inventory.images.iter().filter(|image| {
        image.id.namespace().is_none() && scan.inventory[image.store].kind.obstacle().is_none()
    });
    images.all(|image| scan.inventory[image.store].kind.facts().is_editable)
}

/// Returns the name of the runtime if the stores of the node, or the configuration of CRI-O, tell.
fn name(node: &Node<'_>) -> &'static str {
    let inventory = node.scan().map(|scan| &scan.inventory);
    let of_runtime = inventory.and_then(|inventory| {
        let mut stores = inventory.stores.iter().enumerate();
        stores.find(|(store_ix, _)| inventory.is_of_runtime((*store_ix).into()))
    });
    match of_runtime {
        Some((_, store)) => store.kind.runtime(),
        None if via::has_crio(&node.stores.sysroot) => "CRI-O",
        None => ANY,
    }
}

fn silent(node: &Node<'_>, candidate: &Candidate, error: &CriError) -> Check {
    let message = format!("{error} ({})", candidate.origin);
    let is_denied = matches!(error.problem, CriProblem::Denied);
    if !is_denied && !candidate.configured {
        return Check::note(candidate.endpoint.to_string(), message);
    }
    let mut remedy = hint(&error.problem).words(name(node));
    if remedy.is_empty() {
        let default = format!("start {}, or fix the file that names the socket", name(node));
        remedy = crio::before_start().map_or(default, |advice| advice.text().to_owned());
    }
    Check { is_unread: is_denied, ..Check::warning(candidate.endpoint.to_string(), message, remedy) }
}

/// Returns the result for a node without a runtime, for example with podman alone. `by_timer`: layersweep's timer
/// deletes.
fn without_runtime(message: &str, via: Via, by_timer: bool) -> Check {
    match (via, by_timer) {
        (Via::Cri, true) => {
            let message =
                format!("{message}, and layersweep-gc.timer is enabled: each of its runs is refused");
            Check::warning("", message, "set images.via to \"auto\"")
        }
        (Via::Cri, false) => Check::note("", format!("{message}; --via auto deletes in the store itself")),
        (Via::Auto | Via::Direct, _) => Check::note("", format!("{message}; it deletes in the store itself")),
    }
}

/// Checks that the store of the runtime was read.
fn serves(node: &Node<'_>, client: &Client) -> (Check, Option<StoreIx>) {
    let object = client.endpoint().to_string();
    let store = match client.runtime_store() {
        Ok(Some(store)) => store,
        Ok(None) => {
            let message = "it does not report its store: gc refuses to delete through it";
            let remedy = "use CRI-O or containerd, or gc --via direct";
            return (Check::error(object, message, remedy), None);
        }
        Err(error) => {
            return (Check::error(object, error.to_string(), hint(&error.problem).words(ANY)), None);
        }
    };
    let (root, origin) = (store.root.to_string_lossy(), &store.origin);
    match node.scan().and_then(|scan| RuntimeStores::find(&store, &scan.inventory)) {
        Some(stores) => {
            let message = format!("gc deletes through it; its store is {root} ({origin})");
            (Check::ok(object, message), Some(stores.main))
        }
        None => {
            let flag = store.kind.facts().flag;
            let message = format!("its store is {root} ({origin}), which was not read: gc refuses");
            (Check::error(object, message, format!("add {flag} {}", shell_word(&root))), None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::doctor::check::Status;

    #[test]
    fn timer_that_cannot_delete_is_a_warning() {
        for via in [Via::Auto, Via::Direct] {
            assert_eq!(without_runtime("m", via, true).status, Status::Note);
        }
        assert_eq!(without_runtime("m", Via::Cri, false).status, Status::Note);
        let check = without_runtime("m", Via::Cri, true);
        assert_eq!(check.status, Status::Warning);
        assert!(check.remedy.contains("images.via"), "{check:?}");
    }
}
