//! Choice of the runtime that deletes images and containers.

use crate::cri::discover::{self, Answers, Candidate};
use crate::cri::{Client, CriError, CriProblem, Endpoint, Options};
use crate::services::crio::{self, StartAdvice};
use crate::services::error::{Error, Exit};
use crate::services::request::Request;
use crate::stores::Scan;
use crate::sys::sysroot::Sysroot;

/// Returns the socket that a flag or the configuration names. Its text was validated when the flag or the
/// configuration was read.
pub fn named(request: &Request) -> Result<Option<Endpoint>, NoRuntime> {
    let Some(text) = &request.cri_endpoint else { return Ok(None) };
    let endpoint = text.parse().map_err(|error| NoRuntime {
        error: Error::usage(format!("--cri-endpoint {text:?}: {error}")).into(),
        remedy: Remedy {
            text: "use a socket like unix:///run/crio/crio.sock".into(),
            is_start: false,
            is_complete: true,
        },
    })?;
    Ok(Some(endpoint))
}

/// Hint for a deletion without a runtime.
const DIRECT: &str = "use --via direct if the runtime cannot run";

/// A runtime whose name is unknown.
pub(crate) const ANY: &str = "the runtime";

const NAME_IT: &str = "name its socket with --cri-endpoint, like unix:///run/crio/crio.sock";

/// Connects to the runtime that the flags or the configuration name, or to the only runtime that answers on this
/// node.
pub fn connect(request: &Request, options: &Options) -> Result<Client, NoRuntime> {
    if let Some(endpoint) = named(request)? {
        return Client::connect(endpoint, options.clone()).map_err(|error| NoRuntime::silent(&error));
    }
    if request.has_stores() {
        return Err(unnamed());
    }
    choose(ask(options))
}

/// Error for named stores without a named socket: the node's own runtime may not use these stores.
pub fn unnamed() -> NoRuntime {
    NoRuntime {
        error: Error::usage("a store is named, but not the socket of its runtime").into(),
        remedy: NAME_IT.into(),
    }
}

pub fn ask(options: &Options) -> Answers {
    let found = discover::discover(&Sysroot::live());
    for (file, why) in &found.problems {
        tracing::warn!("{}: {why}", file.display());
    }
    discover::probe(found.candidates, options)
}

#[derive(Debug)]
pub struct NoRuntime {
    error: Box<Error>,
    remedy: Remedy,
}

impl NoRuntime {
    fn refused(message: impl Into<String>, remedy: impl Into<Remedy>) -> Self {
        Self { error: Error::refused(message).into(), remedy: remedy.into() }
    }

    fn silent(error: &CriError) -> Self {
        Self::refused(format!("no runtime to delete through: {error}"), hint(&error.problem))
    }

    /// Returns true if a flag or the configuration is at fault, and not the runtime.
    pub(crate) fn is_usage(&self) -> bool {
        self.error.exit == Exit::Usage
    }

    /// Returns the hint for a runtime, with a deletion without it if the node has a store that can be edited.
    pub fn hint(&self, runtime: &str, can_edit: bool) -> String {
        let text = self.remedy.words(runtime);
        match (text.as_str(), can_edit && !self.remedy.is_complete) {
            ("", true) => DIRECT.to_owned(),
            ("", false) => format!("start {runtime}"),
            (text, true) => format!("{text}; {DIRECT}"),
            (text, false) => text.to_owned(),
        }
    }

    pub(crate) fn into_error(self, runtime: &str, can_edit: bool) -> Error {
        let hint = self.hint(runtime, can_edit);
        self.error.hint(hint)
    }
}

impl std::fmt::Display for NoRuntime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}

impl From<NoRuntime> for Error {
    fn from(missing: NoRuntime) -> Self {
        missing.into_error(ANY, true)
    }
}

#[derive(Debug, PartialEq, Eq)]
pub struct Remedy {
    /// Other remedies beside the start of the runtime; empty if none is known.
    text: String,
    /// The runtime has to be started.
    is_start: bool,
    /// It contains the deletion without a runtime.
    is_complete: bool,
}

impl Remedy {
    /// Returns the remedy for a runtime in words; empty if none is known.
    #[must_use]
    pub fn words(&self, runtime: &str) -> String {
        match (self.is_start, self.text.as_str()) {
            (true, "") => format!("start {runtime}"),
            (true, other) => format!("start {runtime}, or {other}"),
            (false, text) => text.to_owned(),
        }
    }
}

impl From<StartAdvice> for Remedy {
    fn from(advice: StartAdvice) -> Self {
        let is_complete = advice == StartAdvice::FreeSpaceFirst;
        Self { text: advice.text().to_owned(), is_start: false, is_complete }
    }
}

impl<T: Into<String>> From<T> for Remedy {
    fn from(text: T) -> Self {
        Self { text: text.into(), is_start: false, is_complete: false }
    }
}

pub fn hint(problem: &CriProblem) -> Remedy {
    if let Some(first) = crio::before_start_for(problem) {
        return first.into();
    }
    let text = match problem {
        CriProblem::NotRunning(_) => "name its socket with --cri-endpoint",
        CriProblem::Starting(_) => "try again when it has started",
        CriProblem::Denied => "run as root",
        CriProblem::NotGrpc(_) | CriProblem::NoCri(_) => {
            "name the CRI socket, like unix:///run/crio/crio.sock"
        }
        _ => "",
    };
    let is_start = matches!(problem, CriProblem::NotRunning(_) | CriProblem::NotListening);
    Remedy { is_start, ..text.into() }
}

/// Returns true if the problem proves that no usable runtime listens on the socket.
fn is_absent(problem: &CriProblem) -> bool {
    matches!(
        problem,
        CriProblem::NotRunning(_) | CriProblem::NoCri(_) | CriProblem::NotGrpc(_) | CriProblem::OldApi(_)
    )
}

/// Returns the client of the node's runtime.
pub fn choose(Answers { mut runtimes, silent: unanswered }: Answers) -> Result<Client, NoRuntime> {
    let answering: Vec<_> = runtimes.iter().map(|(candidate, _)| candidate.configured).collect();
    let silent: Vec<_> = unanswered
        .iter()
        .map(|(candidate, error)| (candidate.configured, is_absent(&error.problem)))
        .collect();
    let name_it = "name the one to delete through with --cri-endpoint";
    match decide(&answering, &silent) {
        NodeRuntime::Answering(ix) => Ok(runtimes.swap_remove(ix).1),
        NodeRuntime::Unclear(ix) => {
            let (candidate, error) = &unanswered[ix];
            let message = format!("the node's runtime cannot be determined: {error} ({})", candidate.origin);
            Err(NoRuntime::refused(message, format!("wait until it answers, or {name_it}")))
        }
        NodeRuntime::Several => {
            let names: Vec<_> = runtimes
                .iter()
                .map(|(_, client)| format!("{} at {}", client.version().runtime_name, client.endpoint()))
                .collect();
            let message = format!("several container runtimes answer: {}", names.join(", "));
            Err(NoRuntime::refused(message, name_it))
        }
        NodeRuntime::None => Err(none_answers(&unanswered)),
    }
}

pub(crate) fn none_answers(unanswered: &[(Candidate, CriError)]) -> NoRuntime {
    if unanswered.is_empty() {
        let remedy = crio::before_start().map_or_else(|| NAME_IT.into(), Remedy::from);
        return NoRuntime::refused(
            "no container runtime found: none of the usual CRI sockets exists",
            remedy,
        );
    }
    let errors: Vec<_> =
        unanswered.iter().map(|(candidate, error)| format!("{error} ({})", candidate.origin)).collect();
    let mut hints = unanswered.iter().map(|(_, error)| hint(&error.problem));
    let remedy = hints.find(|hint| hint.is_start || !hint.text.is_empty()).unwrap_or_else(|| "".into());
    NoRuntime::refused(format!("no container runtime answers: {}", errors.join("; ")), remedy)
}

/// Runtime of the node, by its position among the candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeRuntime {
    Answering(usize),
    Unclear(usize),
    /// Several candidates answer, and the node's files do not name exactly one of them.
    Several,
    None,
}

/// Decides which candidate is the runtime of the node: the candidate that the node's files name, if it answers, or
/// else the only candidate that answers. A silent candidate that may be starting prevents the choice of another
/// one. `answering`: true if a file names the candidate. `silent`: the same, and true if it is certain that no
/// runtime listens there.
fn decide(answering: &[bool], silent: &[(bool, bool)]) -> NodeRuntime {
    if answering.is_empty() {
        return NodeRuntime::None;
    }
    let mut named = answering.iter().enumerate().filter(|(_, configured)| **configured);
    let first = named.next();
    let unclear = silent.iter().position(|(configured, is_absent)| match first {
        Some(_) => *configured && !is_absent,
        // If the named runtime is absent, an answering one is still not the runtime of the node.
        None => *configured || !is_absent,
    });
    match (unclear, first, named.next()) {
        (Some(ix), ..) => NodeRuntime::Unclear(ix),
        (None, Some((ix, _)), None) => NodeRuntime::Answering(ix),
        (None, None, _) if answering.len() == 1 => NodeRuntime::Answering(0),
        _ => NodeRuntime::Several,
    }
}

/// Returns true if the node has a runtime that deletes images of these stores: the daemon of a store, or a runtime
/// with a socket.
pub(crate) fn is_seen(request: &Request, scan: &Scan) -> bool {
    if scan.inventory.stores.iter().any(|store| store.kind.facts().is_of_runtime) {
        return true;
    }
    if request.names_stores {
        request.cri_endpoint.is_some()
    } else {
        !discover::discover(&scan.sysroot).candidates.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_direct_deletion() {
        let direct = "use --via direct if the runtime cannot run";
        let advice = Remedy::from(StartAdvice::FreeSpaceFirst);
        for (remedy, with_edits, without) in [
            (Remedy::from(""), direct.to_owned(), "start the runtime"),
            ("wait".into(), format!("wait; {direct}"), "wait"),
            (hint(&CriProblem::NotListening), format!("start the runtime; {direct}"), "start the runtime"),
            (advice, StartAdvice::FreeSpaceFirst.text().to_owned(), StartAdvice::FreeSpaceFirst.text()),
        ] {
            let missing = NoRuntime::refused("m", remedy);
            assert_eq!((missing.hint(ANY, true), missing.hint(ANY, false).as_str()), (with_edits, without));
        }
    }

    #[test]
    fn runtime_that_is_not_the_nodes_is_refused() {
        use NodeRuntime::{Answering, Several, Unclear};
        let (named, found) = (true, false);
        let (absent, starting) = (true, false);
        for (answering, silent, expected) in [
            (&[][..], &[][..], NodeRuntime::None),
            (&[], &[(named, starting)], NodeRuntime::None),
            (&[found], &[], Answering(0)),
            (&[found], &[(found, absent)], Answering(0)),
            // Its socket exists, so that it may be starting.
            (&[found], &[(found, starting)], Unclear(0)),
            // The containerd of Docker answers while CRI-O is stopped.
            (&[found], &[(found, absent), (named, absent)], Unclear(1)),
            (&[found, named], &[], Answering(1)),
            (&[found, named], &[(found, starting)], Answering(1)),
            (&[named], &[(named, absent)], Answering(0)),
            (&[named], &[(named, starting)], Unclear(0)),
            (&[found, found], &[], Several),
            (&[named, named], &[(found, starting)], Several),
        ] {
            assert_eq!(decide(answering, silent), expected, "{answering:?} {silent:?}");
        }
    }
}
