//! The runtime that deletions go through.

use super::crio;
use super::error::Error;
use super::request::Request;
use crate::cri::discover::{self, Answers, Candidate};
use crate::cri::{Client, CriError, CriProblem, Endpoint, Options};
use crate::model::StoreKind;
use crate::stores::Scan;
use crate::sys::sysroot::Sysroot;

/// The socket that a flag or the configuration names. Both were looked at when they were read.
pub fn named(request: &Request) -> Result<Option<Endpoint>, Error> {
    let parsed = |text: &String| {
        text.parse().map_err(|error| {
            Error::usage(format!("--cri-endpoint {text:?}: {error}"))
                .hint("use a socket like unix:///run/crio/crio.sock")
        })
    };
    request.cri_endpoint.as_ref().map(parsed).transpose()
}

/// What works without a runtime.
const DIRECT: &str = "use --via direct if the runtime cannot run";

/// What helps where there is none to be seen.
const NAME_IT: &str = "name its socket with --cri-endpoint, like unix:///run/crio/crio.sock";

/// Connects to the runtime that the flags or the configuration name, else to the only one that
/// answers on this node.
pub fn connect(request: &Request, options: &Options) -> Result<Client, Error> {
    if let Some(endpoint) = named(request)? {
        return Client::connect(endpoint, options.clone()).map_err(|error| silent(&error));
    }
    if request.has_stores() {
        return Err(unnamed());
    }
    choose(ask(options))
}

/// The stores are not the node's own, so neither is their runtime.
pub fn unnamed() -> Error {
    Error::usage("a store is named, but not the socket of its runtime").hint(or_direct(NAME_IT))
}

/// Asks the runtimes of this node.
pub fn ask(options: &Options) -> Answers {
    let found = discover::discover(&Sysroot::live());
    for (file, why) in &found.problems {
        tracing::warn!("{}: {why}", file.display());
    }
    discover::probe(found.candidates, options)
}

fn silent(error: &CriError) -> Error {
    refused(format!("no runtime to delete through: {error}"), &hint(&error.problem))
}

fn refused(message: impl Into<String>, remedy: &str) -> Error {
    Error::refused(message).hint(or_direct(remedy))
}

/// What helps, and what works without a runtime.
fn or_direct(remedy: &str) -> String {
    match remedy {
        "" => DIRECT.to_owned(),
        named if named.contains("--via direct") => named.to_owned(),
        remedy => format!("{remedy}; {DIRECT}"),
    }
}

/// The error of a node where nothing can be deleted without a runtime.
pub(super) fn without_direct(error: Error) -> Error {
    let remedy = error.hint.as_deref().and_then(|hint| hint.strip_suffix(DIRECT));
    match remedy.map(|remedy| remedy.trim_end_matches("; ").to_owned()) {
        Some(remedy) if remedy.is_empty() => error.hint("start the runtime"),
        Some(remedy) => error.hint(remedy),
        None => error,
    }
}

/// What to do about a runtime that cannot be used.
pub fn hint(problem: &CriProblem) -> String {
    if let Some(first) = crio::before_start_for(problem) {
        return first.to_owned();
    }
    match problem {
        CriProblem::NotRunning(_) => "start the runtime, or name its socket with --cri-endpoint",
        CriProblem::NotListening => "start the runtime",
        CriProblem::Starting(_) => "try again when it has started",
        CriProblem::Denied => "run as root",
        CriProblem::NotGrpc(_) | CriProblem::NoCri(_) => {
            "name the CRI socket, like unix:///run/crio/crio.sock"
        }
        _ => "",
    }
    .into()
}

/// The one to delete through, or why there is none.
pub fn choose(Answers { mut runtimes, silent: unanswered }: Answers) -> Result<Client, Error> {
    let away = |problem: &CriProblem| {
        matches!(
            problem,
            CriProblem::NotRunning(_) | CriProblem::NoCri(_) | CriProblem::NotGrpc(_) | CriProblem::OldApi(_)
        )
    };
    let answering: Vec<_> = runtimes.iter().map(|(one, _)| one.configured).collect();
    let silent: Vec<_> =
        unanswered.iter().map(|(one, error)| (one.configured, away(&error.problem))).collect();
    let name_it = "name the one to delete through with --cri-endpoint";
    match which(&answering, &silent) {
        Which::This(at) => Ok(runtimes.swap_remove(at).1),
        Which::Unclear(at) => {
            let (candidate, error) = &unanswered[at];
            let message = format!("the node's runtime cannot be determined: {error} ({})", candidate.origin);
            Err(refused(message, &format!("wait until it answers, or {name_it}")))
        }
        Which::Several => {
            let names: Vec<_> = runtimes
                .iter()
                .map(|(_, client)| format!("{} at {}", client.version().runtime_name, client.endpoint()))
                .collect();
            Err(refused(format!("several container runtimes answer: {}", names.join(", ")), name_it))
        }
        Which::None if unanswered.is_empty() => {
            let remedy = crio::before_start().unwrap_or(NAME_IT);
            Err(refused("no container runtime found: none of the usual CRI sockets exists", remedy))
        }
        Which::None => {
            let what = |(candidate, error): &(Candidate, CriError)| format!("{error} ({})", candidate.origin);
            let what: Vec<_> = unanswered.iter().map(what).collect();
            let mut hints = unanswered.iter().map(|(_, error)| hint(&error.problem));
            let remedy = hints.find(|hint| !hint.is_empty()).unwrap_or_default();
            Err(refused(format!("no container runtime answers: {}", what.join("; ")), &remedy))
        }
    }
}

/// Which runtime is the node's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    /// That answering one.
    This(usize),
    /// That silent one may be it.
    Unclear(usize),
    /// Nothing tells which of those that answer.
    Several,
    None,
}

/// The one that the node's files name, if that answers; else the only one that answers. Where one
/// may only just be starting, another one is not taken for it. `answering`: whether a file
/// names it; `silent`: the same, and whether it is certain that no runtime is there.
fn which(answering: &[bool], silent: &[(bool, bool)]) -> Which {
    if answering.is_empty() {
        return Which::None;
    }
    let mut named = answering.iter().enumerate().filter(|(_, configured)| **configured);
    let first = named.next();
    let may_be_it = |(configured, away): &(bool, bool)| match first {
        Some(_) => *configured && !away,
        // The one that a file names is not here at all: another one is not the node's.
        None => *configured || !away,
    };
    match (silent.iter().position(may_be_it), first, named.next()) {
        (Some(at), ..) => Which::Unclear(at),
        (None, Some((at, _)), None) => Which::This(at),
        (None, None, _) if answering.len() == 1 => Which::This(0),
        _ => Which::Several,
    }
}

/// Whether a runtime is there that deletes images of these stores: containerd's, or one with a socket.
pub(super) fn is_seen(request: &Request, scan: &Scan) -> bool {
    let has_socket = || match request.names_stores {
        true => request.cri_endpoint.is_some(),
        false => !discover::discover(&scan.sysroot).candidates.is_empty(),
    };
    scan.inventory.stores.iter().any(|store| store.kind == StoreKind::Containerd) || has_socket()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_direct_deletion() {
        let direct = "use --via direct if the runtime cannot run";
        assert_eq!(refused("m", "").hint.unwrap(), direct);
        assert_eq!(refused("m", "start the runtime").hint.unwrap(), format!("start the runtime; {direct}"));
    }

    #[test]
    fn another_runtime_is_not_taken_for_the_nodes() {
        let (named, found) = (true, false);
        let (away, perhaps) = (true, false);
        for (answering, silent, expected) in [
            (&[][..], &[][..], Which::None),
            (&[], &[(named, perhaps)], Which::None),
            (&[found], &[], Which::This(0)),
            (&[found], &[(found, away)], Which::This(0)),
            // Its socket is there, so that it may be starting.
            (&[found], &[(found, perhaps)], Which::Unclear(0)),
            // Docker's containerd, while CRI-O is stopped.
            (&[found], &[(found, away), (named, away)], Which::Unclear(1)),
            (&[found, named], &[], Which::This(1)),
            (&[found, named], &[(found, perhaps)], Which::This(1)),
            (&[named], &[(named, away)], Which::This(0)),
            (&[named], &[(named, perhaps)], Which::Unclear(0)),
            (&[found, found], &[], Which::Several),
            (&[named, named], &[(found, perhaps)], Which::Several),
        ] {
            assert_eq!(which(answering, silent), expected, "{answering:?} {silent:?}");
        }
    }
}
