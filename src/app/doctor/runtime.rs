//! The runtime's socket, and which store is behind it.

use super::examination::Examination;
use super::examination::{Check, Status};
use crate::app::crio;
use crate::app::runtime::{choose, hint};
use crate::app::via;
use crate::config::Via;
use crate::cri::discover::{self, Candidate};
use crate::cri::{Client, CriProblem, Options};
use crate::execute::runtime_match::RuntimeStores;
use crate::model::display::shell_word;
use crate::model::{StoreIx, StoreKind};
use crate::node::kubelet::Kubelet;
use crate::node::timers::{self, TimerState};
use crate::stores::Scan;

const NAME: &str = "runtime";

/// Podman alone has no socket. `by_timer`: our timer deletes.
fn alone(message: &str, via: Via, by_timer: bool) -> Check {
    match (via, by_timer) {
        (Via::Cri, true) => Check::new(
            NAME,
            Status::Warning,
            "",
            format!("{message}, and layersweep-gc.timer is enabled: each of its runs is refused"),
            "set images.via to \"auto\"",
        ),
        (Via::Cri, false) => {
            Check::note(NAME, "", format!("{message}; --via auto deletes in the store itself"))
        }
        (Via::Auto | Via::Direct, _) => {
            Check::note(NAME, "", format!("{message}; it deletes in the store itself"))
        }
    }
}

impl Examination<'_> {
    /// The store that the node's runtime writes to, if that is known.
    pub(super) fn runtime(&mut self, kubelet: &Kubelet, scan: Option<&Scan>) -> Option<StoreIx> {
        if self.is_foreign() {
            self.ok(NAME, "", "not asked: this is another node's disk (--sysroot)");
            return None;
        }
        let candidates = self.candidates()?;
        let answers = discover::ask(candidates, &Options::default());
        for (candidate, client) in &answers.runtimes {
            let version = client.version();
            let runtime = format!("{} {}", version.runtime_name, version.runtime_version);
            let message = format!("{runtime} answers ({})", candidate.origin);
            self.ok("socket", client.endpoint().to_string(), message);
        }
        for (candidate, error) in &answers.silent {
            let status = match (&error.problem, candidate.configured) {
                (CriProblem::Denied, _) | (_, true) => Status::Warning,
                _ => Status::Note,
            };
            self.unread |= matches!(error.problem, CriProblem::Denied);
            let remedy = match (status, hint(&error.problem)) {
                (Status::Note, _) => String::new(),
                (_, hint) if hint.is_empty() => {
                    let usual = "start the runtime, or fix the file that names the socket";
                    crio::before_start().unwrap_or(usual).into()
                }
                (_, hint) => hint,
            };
            let object = candidate.endpoint.to_string();
            self.checks.push(Check::new(
                "socket",
                status,
                object,
                format!("{error} ({})", candidate.origin),
                remedy,
            ));
        }
        let is_expected = via::is_expected(&answers, kubelet, &self.stores.sysroot);
        match choose(answers) {
            Ok(client) => self.serves(&client, scan),
            Err(failure) => {
                let remedy = failure.hint.clone().unwrap_or_default();
                let message = format!("gc cannot delete through a runtime: {failure}");
                match (kubelet.is_here(), is_expected) {
                    (true, _) => self.error(NAME, "", message, remedy),
                    // Podman alone has none.
                    (false, false) => {
                        let by_timer = timers::read(&self.stores.sysroot, timers::GC)
                            .is_ok_and(|timer| timer.state == TimerState::Enabled);
                        self.checks.push(alone(&message, self.config.via, by_timer));
                    }
                    (false, true) => self.warning(NAME, "", message, remedy),
                }
                None
            }
        }
    }

    fn candidates(&mut self) -> Option<Vec<Candidate>> {
        if let Some(named) = &self.request.cri_endpoint {
            return match named.parse() {
                Ok(endpoint) => {
                    let origin = "--cri-endpoint, or stores.cri_endpoint".to_owned();
                    Some(vec![Candidate { endpoint, origin, configured: true }])
                }
                Err(error) => {
                    let remedy = "use a socket like unix:///run/crio/crio.sock";
                    self.error("socket", named.clone(), error.to_string(), remedy);
                    None
                }
            };
        }
        if self.request.has_stores() {
            let message = "not asked: a store is named, but no socket (--cri-endpoint)";
            self.ok(NAME, "", message);
            return None;
        }
        let found = discover::discover(&self.stores.sysroot);
        for (file, why) in &found.problems {
            let remedy = "fix the file, or name the socket with --cri-endpoint";
            self.warning("socket", file.display().to_string(), why.clone(), remedy);
        }
        Some(found.candidates)
    }

    /// Whether the runtime's store is among those that were read.
    fn serves(&mut self, client: &Client, scan: Option<&Scan>) -> Option<StoreIx> {
        let object = client.endpoint().to_string();
        match client.runtime_store() {
            Ok(Some(store)) => {
                let own = scan.and_then(|scan| RuntimeStores::find(&store, &scan.inventory));
                let root = store.root.display();
                match &own {
                    Some(_) => {
                        let message =
                            format!("gc deletes through it; its store is {root} ({})", store.origin);
                        self.ok(NAME, object, message);
                    }
                    None => {
                        let flag = match store.store_type {
                            StoreKind::Containerd => "--containerd-root",
                            StoreKind::ContainersStorage => "--graphroot",
                        };
                        let message =
                            format!("its store is {root} ({}), which was not read: gc refuses", store.origin);
                        self.error(
                            NAME,
                            object,
                            message,
                            format!("add {flag} {}", shell_word(&root.to_string())),
                        );
                    }
                }
                own.map(|stores| stores.own)
            }
            Ok(None) => {
                let message = "it does not report its store: gc refuses to delete through it";
                self.error(NAME, object, message, "use CRI-O or containerd, or gc --via direct");
                None
            }
            Err(error) => {
                self.error(NAME, object, error.to_string(), hint(&error.problem));
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_that_deletes_nothing_is_a_warning() {
        for via in [Via::Auto, Via::Direct] {
            assert_eq!(alone("m", via, true).status, Status::Note);
        }
        assert_eq!(alone("m", Via::Cri, false).status, Status::Note);
        let check = alone("m", Via::Cri, true);
        assert_eq!(check.status, Status::Warning);
        assert!(check.remedy.contains("images.via"), "{check:?}");
    }
}
