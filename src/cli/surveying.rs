//! From global flags to a survey.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;

use super::args::Global;
use super::exit::Exit;
use super::failure::Failure;
use super::progress;
use super::records::Memory;
use crate::app::protect::labels_for;
use crate::config::Config;
use crate::disk::Progress;
use crate::disk::kept::Remembered;
use crate::history::ages::Ages;
use crate::model::{Finding, ImageIx, LabelsOf};
use crate::report::json::{self, ImageDoc};
use crate::report::text::safe;
use crate::stores::containers_storage::config::Environment;
use crate::stores::containers_storage::snapshot::Patience;
use crate::stores::{self, Request, Survey};
use crate::sys::ioprio::IoPriority;
use crate::sys::sysroot::Sysroot;

/// A survey, and what is remembered of what it found.
#[derive(Debug)]
pub(super) struct Surveyed {
    pub(super) survey: Survey,
    pub(super) ages: Ages,
    pub(super) memory: Memory,
    /// Nothing that was to be recorded is lost.
    kept: bool,
}

impl Surveyed {
    /// An image with what is remembered of it.
    pub(super) fn image(&self, at: ImageIx) -> ImageDoc {
        let mut document = json::image(&self.survey, at);
        document.remember(self.ages.of(at));
        document
    }

    /// All images.
    pub(super) fn images(&self) -> impl Iterator<Item = ImageDoc> + '_ {
        (0..self.survey.inventory.images.len()).map(|at| self.image(ImageIx::from(at)))
    }

    /// Done, done with lower bounds, or what was seen could be saved nowhere.
    pub(super) fn exit(&self) -> Exit {
        if !self.kept {
            return Exit::Failed;
        }
        if self.survey.is_complete() { Exit::Done } else { Exit::Incomplete }
    }
}

/// Surveys what the flags name, and records nothing.
pub(super) fn survey(global: &Global) -> Result<Surveyed, Failure> {
    surveyed(global, |_| false, LabelsOf::Nobody)
}

/// Surveys what the flags name, and records it (never with `--sysroot`).
pub(super) fn survey_and_record(global: &Global) -> Result<Surveyed, Failure> {
    surveyed(global, |_| global.sysroot.is_none(), LabelsOf::Nobody)
}

/// Surveys what the flags name, with what the policy needs to know of it. `record`: and records
/// it, unless there are records that cannot be read. Whoever deletes refuses then, and they stay
/// as they are: setting them aside loses what they pin, and the next run would not know of it.
pub(super) fn survey_to_judge(global: &Global, record: bool, config: &Config) -> Result<Surveyed, Failure> {
    surveyed(global, |memory| record && !memory.is_blind(), labels_for(&config.images.protect))
}

/// Surveys what the flags name, with what the policy needs to know of it, for who only tells of
/// it, whatever state the records are in.
pub(super) fn survey_to_tell(global: &Global, config: &Config) -> Result<Surveyed, Failure> {
    let mut findings = Vec::new();
    let memory = Memory::open_to_tell(global, &mut findings)?;
    surveyed_with(global, memory, findings, |_| false, labels_for(&config.images.protect))
}

fn surveyed(
    global: &Global,
    record: impl FnOnce(&Memory) -> bool,
    labels: LabelsOf,
) -> Result<Surveyed, Failure> {
    let mut findings = Vec::new();
    let memory = Memory::open(global, &mut findings)?;
    surveyed_with(global, memory, findings, record, labels)
}

fn surveyed_with(
    global: &Global,
    mut memory: Memory,
    findings: Vec<Finding>,
    record: impl FnOnce(&Memory) -> bool,
    labels: LabelsOf,
) -> Result<Surveyed, Failure> {
    let measured = measured(global, memory.sizes(), labels);
    memory.ended()?;
    let record = record(&memory);
    if let Err(failure) = &measured
        && failure.proves_no_store()
        && record
        && !global.named.stores
    {
        memory.save_none(global);
    }
    let mut survey = measured?;
    survey.inventory.findings.extend(findings);
    stores::note_pulls(&mut survey, global.kubelet_root.as_deref());
    memory.pin(&mut survey);
    let kept = !record || memory.save(global, &mut survey)?;
    memory.tell(&mut survey);
    // A scan from a timer is quiet, but not about what is wrong.
    if !global.quiet || record {
        warn(&survey.inventory.findings);
    }
    let ages = memory.ages(&survey);
    Ok(Surveyed { survey, ages, memory, kept })
}

fn measured(global: &Global, remembered: Arc<Remembered>, labels: LabelsOf) -> Result<Survey, Failure> {
    if let Err(error) = IoPriority::from(global.io_priority).apply() {
        tracing::warn!("setting the IO priority: {error}; going on at normal priority");
    }
    let request = Request { remembered: Some(remembered), labels, ..request(global)? };
    let progress = Progress::default();
    Ok(progress::shown(global, &progress, || stores::run(&request, &progress))?)
}

/// What the flags ask to look at.
pub(super) fn request(global: &Global) -> Result<Request, Failure> {
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
    Ok(Request {
        environment: Environment::of_process(&sysroot),
        sysroot,
        graphroots: inside(global, absolute(&global.graphroot)?),
        containerd_roots: inside(global, absolute(&global.containerd_root)?),
        runroot: absolute(global.runroot.as_slice())?.into_iter().next(),
        threads: global.threads.map_or(0, usize::from),
        patience: Patience::default(),
        weigh: stores::Weigh::Everything,
        labels: LabelsOf::Nobody,
        now: Timestamp::now(),
        remembered: None,
        full: global.full,
    })
}

/// Paths are taken inside the sysroot; one that was given with it in front means the same.
pub(super) fn inside(global: &Global, paths: Vec<PathBuf>) -> Vec<PathBuf> {
    let sysroot = global.sysroot.as_deref().and_then(|path| std::path::absolute(path).ok());
    let Some(sysroot) = sysroot.filter(|path| path != Path::new("/")) else { return paths };
    let inside = |path: PathBuf| match path.strip_prefix(&sysroot) {
        Ok(below) => Path::new("/").join(below),
        Err(_) => path,
    };
    paths.into_iter().map(inside).collect()
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

/// What could not be read goes to stderr, one line each; stdout holds results alone.
pub(super) fn warn(findings: &[Finding]) {
    let mut stderr = std::io::stderr().lock();
    for finding in findings {
        let bound = if finding.incomplete { " (figures are lower bounds)" } else { "" };
        let path = match finding.path.as_os_str().is_empty() {
            true => String::new(),
            false => format!("{}: ", safe(&finding.path.display().to_string())),
        };
        // A stderr that is gone cannot be told so.
        let _ = writeln!(stderr, "warning: {path}{}{bound}", safe(&finding.message));
    }
}
