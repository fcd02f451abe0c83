//! The runtime that deletions go through.

use super::args::Global;
use super::failure::Failure;
use crate::cri::discover::{self, Answers, Candidate};
use crate::cri::{Client, CriError, Options, Problem};
use crate::sys::sysroot::Sysroot;

/// Connects to the runtime that the flags or the configuration name, else to the only one that
/// answers on this node.
pub(super) fn connect(global: &Global, options: &Options) -> Result<Client, Failure> {
    if let Some(named) = &global.cri_endpoint {
        let endpoint = named.parse().map_err(|error| Failure::BadArgument {
            message: format!("--cri-endpoint {named:?}: {error}"),
            hint: "give a socket, like unix:///run/crio/crio.sock".into(),
        })?;
        return Client::connect(endpoint, options.clone()).map_err(|error| silent(&error));
    }
    if !global.graphroot.is_empty() || !global.containerd_root.is_empty() {
        return Err(Failure::BadArgument {
            message: "a store is named, but not the runtime that deletes from it".into(),
            hint: "name its socket with --cri-endpoint, like unix:///run/crio/crio.sock".into(),
        });
    }
    let found = discover::discover(&Sysroot::live());
    for (file, why) in &found.problems {
        tracing::warn!("{}: {why}", file.display());
    }
    choose(discover::ask(found.candidates, options))
}

fn silent(error: &CriError) -> Failure {
    Failure::Refused { message: format!("no runtime to delete through: {error}"), hint: hint(&error.problem) }
}

/// What to do about a runtime that cannot be used.
fn hint(problem: &Problem) -> String {
    match problem {
        Problem::NotRunning(_) => "start the runtime, or name its socket with --cri-endpoint",
        Problem::Refused => "start the runtime",
        Problem::Starting(_) => "try again when it has started",
        Problem::Denied => "run as root",
        Problem::NotGrpc(_) | Problem::NoCri(_) => "name the CRI socket, like unix:///run/crio/crio.sock",
        _ => "",
    }
    .into()
}

fn choose(Answers { mut runtimes, silent: unanswered }: Answers) -> Result<Client, Failure> {
    match (runtimes.len(), unanswered.as_slice()) {
        (1, _) => Ok(runtimes.remove(0).1),
        (0, []) => Err(Failure::Refused {
            message: "no container runtime found: none of the usual CRI sockets is there".into(),
            hint: "name its socket with --cri-endpoint, like unix:///run/crio/crio.sock".into(),
        }),
        (0, unanswered) => {
            let what = |(candidate, error): &(Candidate, CriError)| format!("{error} ({})", candidate.origin);
            let what: Vec<_> = unanswered.iter().map(what).collect();
            let hint = unanswered.iter().map(|(_, error)| hint(&error.problem)).find(|hint| !hint.is_empty());
            Err(Failure::Refused {
                message: format!("no container runtime answers: {}", what.join("; ")),
                hint: hint.unwrap_or_default(),
            })
        }
        _ => {
            let names: Vec<_> = runtimes
                .iter()
                .map(|(_, client)| format!("{} at {}", client.version().name, client.endpoint()))
                .collect();
            Err(Failure::Refused {
                message: format!("several container runtimes answer: {}", names.join(", ")),
                hint: "name the one to delete through with --cri-endpoint".into(),
            })
        }
    }
}
