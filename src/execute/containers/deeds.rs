//! The deletion itself, and whether it has happened.

use std::time::{Duration, Instant};

use crate::cri::{CriError, Problem, RuntimeContainerState};
use crate::execute::containers::{Collector, Doomed, Kind, files, look, proof};
use crate::execute::hands::Blind;
use crate::model::Consistency;
use crate::sys::stop;

/// A record may outlive the runtime's answer for a moment.
const GONE_WITHIN: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(50);
/// How long a container of unknown state may take to end by itself. The kubelet gives it its pod's
/// grace period, 30 seconds by default.
const GRACE: Duration = Duration::from_secs(30);

/// What came of it.
pub(super) enum Done {
    /// It is gone, whatever the answer was.
    Gone,
    /// It was not touched: what the removal needs is not proven.
    Kept { rule: &'static str, detail: String },
    /// It is still there.
    Refused { step: &'static str, message: String },
    /// A signal came before that is known.
    Unknown { message: String },
}

fn refused(step: &'static str, message: impl Into<String>) -> Done {
    Done::Refused { step, message: message.into() }
}

fn unknown(error: &CriError) -> Done {
    Done::Unknown { message: error.to_string() }
}

pub(super) fn remove(collector: &Collector<'_>, doomed: &Doomed) -> Result<Done, Blind> {
    let client = collector.client;
    match doomed.kind {
        Kind::Container => {
            if doomed.stop_first
                && let Some(done) = stopped(collector, &doomed.id)?
            {
                return Ok(done);
            }
            after(collector, doomed, client.remove_container(&doomed.id))
        }
        Kind::Sandbox => match client.stop_sandbox(&doomed.id) {
            Err(error) if error.problem == Problem::Left => Ok(unknown(&error)),
            Err(error) => Ok(refused("stop", error.to_string())),
            Ok(()) => after(collector, doomed, client.remove_sandbox(&doomed.id)),
        },
        Kind::Log => Ok(match files::remove(collector, doomed) {
            Ok(()) => Done::Gone,
            Err(message) if stop::is_asked() => Done::Unknown { message },
            Err(message) => refused("remove", message),
        }),
    }
}

/// Stops a container of unknown state; `None`: it has ended for sure.
fn stopped(collector: &Collector<'_>, id: &str) -> Result<Option<Done>, Blind> {
    if let Err(error) = collector.client.stop_container(id, GRACE) {
        if error.problem == Problem::Left {
            return Ok(Some(unknown(&error)));
        }
        return Ok(Some(refused("stop", error.to_string())));
    }
    let state = collector.client.container(id).map_err(|error| look::blind(&error))?.map(|one| one.state);
    Ok(match state {
        None => Some(Done::Gone),
        Some(RuntimeContainerState::Running) => {
            Some(refused("stop", "it was stopped, but is running all the same"))
        }
        Some(_) => None,
    })
}

/// Only runtime and disk together tell what has happened.
fn after(collector: &Collector<'_>, doomed: &Doomed, answer: Result<(), CriError>) -> Result<Done, Blind> {
    if let Err(error) = &answer
        && !error.problem.leaves_doubt()
        && !matches!(error.problem, Problem::NotFound(_))
    {
        return Ok(refused("remove", error.to_string()));
    }
    let began = Instant::now();
    loop {
        let known = match doomed.kind {
            Kind::Sandbox => collector.client.sandbox_is_listed(&doomed.id),
            _ => collector.client.container_is_known(&doomed.id),
        };
        let inventory = proof::disk(collector)?;
        let recorded = proof::on_disk(&inventory, collector, &doomed.id)?.is_some();
        let own = proof::stores(&inventory, collector)?.own;
        // Of damaged records nothing is proven by what they lack.
        let damaged = inventory.stores[own.get()].consistency == Consistency::Damaged;
        match known {
            Ok(false) if !recorded && !damaged => return Ok(Done::Gone),
            // A runtime that has died cannot be asked; what its records lack it has removed.
            Err(_) if !recorded && !damaged => return Ok(Done::Gone),
            _ => {}
        }
        if stop::is_asked() {
            let message = answer.err().map(|error| error.to_string());
            let message = message.unwrap_or_else(|| "ended by a signal before it was gone".into());
            return Ok(Done::Unknown { message });
        }
        if began.elapsed() >= GONE_WITHIN || answer.is_err() && began.elapsed() >= GONE_WITHIN / 5 {
            let message = match answer {
                Err(error) => error.to_string(),
                Ok(()) => "the runtime said that it is removed, but it is still there".into(),
            };
            return Ok(refused("remove", message));
        }
        std::thread::sleep(PAUSE);
    }
}
