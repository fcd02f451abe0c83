//! From global flags to a survey.

use std::io::Write;
use std::path::PathBuf;

use jiff::Timestamp;

use super::args::Global;
use super::exit::Exit;
use super::failure::Failure;
use super::progress;
use crate::graphroot::config::Environment;
use crate::graphroot::snapshot::Patience;
use crate::report::text::safe;
use crate::survey::{self, Request, Survey};
use crate::sys::ioprio::IoPriority;
use crate::sys::sysroot::Sysroot;
use crate::usage::Progress;

/// Surveys what the flags name.
pub(super) fn survey(global: &Global) -> Result<Survey, Failure> {
    let sysroot = match &global.sysroot {
        None => Sysroot::live(),
        Some(path) if path.is_dir() => Sysroot::at(path),
        Some(path) => {
            return Err(Failure::BadArgument {
                message: format!("--sysroot {}: not a directory", path.display()),
                hint: "name the directory where the disk is mounted".into(),
            });
        }
    };
    if let Err(error) = IoPriority::from(global.io_priority).apply() {
        tracing::warn!("setting the IO priority: {error}; going on at normal priority");
    }
    let request = Request {
        environment: Environment::of_process(&sysroot),
        sysroot,
        graphroots: absolute(&global.graphroot)?,
        containerd_roots: absolute(&global.containerd_root)?,
        runroot: absolute(global.runroot.as_slice())?.into_iter().next(),
        threads: global.threads.map_or(0, usize::from),
        patience: Patience::default(),
        now: Timestamp::now(),
    };
    let progress = Progress::default();
    let survey = progress::shown(global, &progress, || survey::run(&request, &progress))?;
    if !global.quiet {
        warn(&survey);
    }
    Ok(survey)
}

/// Relative paths count from where we are, not from where a store's configuration stands.
fn absolute(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let absolute = |path: &PathBuf| {
        std::path::absolute(path).map_err(|error| Failure::BadArgument {
            message: format!("{}: {error}", path.display()),
            hint: String::new(),
        })
    };
    paths.iter().map(absolute).collect()
}

/// Done, or done with lower bounds.
pub(super) fn exit(survey: &Survey) -> Exit {
    if survey.is_complete() { Exit::Done } else { Exit::Incomplete }
}

/// What could not be read goes to stderr, one line each; stdout holds results alone.
fn warn(survey: &Survey) {
    let mut stderr = std::io::stderr().lock();
    for finding in &survey.inventory.findings {
        let bound = if finding.incomplete { " (figures are lower bounds)" } else { "" };
        let path = match finding.path.as_os_str().is_empty() {
            true => String::new(),
            false => format!("{}: ", safe(&finding.path.display().to_string())),
        };
        // A stderr that is gone cannot be told so.
        let _ = writeln!(stderr, "warning: {path}{}{bound}", safe(&finding.message));
    }
}
