//! What `gc` and `rm` have in common: the lock, a fresh scan, the plan, the question, the run,
//! and what is told and recorded of it.

use std::time::Instant;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use jiff::Timestamp;

use super::args::{Format, Global, Only, Via};
use super::ask;
use super::containing::Dead;
use super::deciding::{self, Mind};
use super::exit::Exit;
use super::failure::Failure;
use super::recording::Recording;
use super::surveying::{self, Surveyed};
use super::{output, records, runtime, stop, terminal};
use crate::config::Config;
use crate::cri::Options;
use crate::gc::containers::run::Foreseen;
use crate::gc::measure::Patience;
use crate::gc::plan::Plan;
use crate::gc::protect::labels_for;
use crate::gc::run::hands::{Blind, Hands};
use crate::gc::run::through_cri::ThroughCri;
use crate::gc::run::{self, Ran, Runner, Task};
use crate::gc::space::{Measured, Targets};
use crate::inventory::ImageIx;
use crate::records::runs::{self, Command};
use crate::records::{LockError, Place, RunLock};
use crate::report::json::{self, GcDoc, GcFacts};
use crate::report::text;
use crate::survey::Request;

/// What is to be done.
pub(super) struct Job<'a> {
    pub(super) global: &'a Global,
    pub(super) config: &'a Config,
    pub(super) command: Command,
    pub(super) dry_run: bool,
    pub(super) via: Via,
    /// The images that were named; none of them for a collection by policy.
    pub(super) named: &'a [String],
    /// The kinds that `--only` names.
    pub(super) only: Option<&'a [Only]>,
    /// When it began.
    pub(super) began: Instant,
    pub(super) run_id: String,
    /// Set by a signal while something is being deleted.
    pub(super) stop: Arc<AtomicBool>,
}

impl<'a> Job<'a> {
    pub(super) fn new(global: &'a Global, config: &'a Config, command: Command, via: Option<Via>) -> Self {
        let began = Instant::now();
        let run_id = runs::new_id(Timestamp::now());
        let via = via.unwrap_or(Via::Cri);
        Self {
            global,
            config,
            command,
            dry_run: false,
            via,
            named: &[],
            only: None,
            began,
            run_id,
            stop: Arc::default(),
        }
    }

    fn kind(&self) -> &'static str {
        self.command.word()
    }

    /// Does it. A refusal is told to programs as a document, too.
    pub(super) fn run(&self) -> Result<Exit, Failure> {
        match self.carry_out() {
            Err(Failure::Refused { message, hint }) if self.global.format == Format::Json => {
                let at = Timestamp::now();
                let document =
                    json::refused(self.kind(), &self.run_id, self.via.word(), self.dry_run, &message, at);
                output::json(&document)?;
                Err(Failure::Refused { message, hint })
            }
            other => other,
        }
    }

    fn carry_out(&self) -> Result<Exit, Failure> {
        let global = self.global;
        if global.sysroot.is_some() {
            return Err(Failure::BadArgument {
                message: format!(
                    "--sysroot: nothing is ever deleted there, so `{}` has nothing to do",
                    self.kind()
                ),
                hint: "`layersweep explain IMAGE` and `layersweep usage` tell what could go".into(),
            });
        }
        // Held until the end.
        let _lock = (!self.dry_run).then(|| lock(&records::place(global))).transpose()?;
        // A signal does not wait for a listing that may never come.
        let options = Options { cancel: Some(Arc::clone(&self.stop)), ..Options::default() };
        let mut hands = ThroughCri::new(runtime::connect(global, &options)?).map_err(refusal)?;
        let surveyed = surveying::survey_to_judge(global, !self.dry_run, self.config)?;
        if surveyed.memory.is_blind() {
            return Err(Failure::Refused {
                message: "our records cannot be read, so that it is not known what is pinned".into(),
                hint: "see the warning above; `layersweep scan` sets a damaged database aside".into(),
            });
        }
        let mut config = self.config.clone();
        let labels = labels_for(&config.images.protect);
        let request = Request { labels, ..surveying::request(global)? };
        deciding::protect(global, &mut config, &request)?;
        if self.only.is_some_and(|only| !only.contains(&Only::Images)) {
            // Nothing starts, so nothing goes.
            config.images.targets = Targets::default();
            config.images.max_age = None;
        }
        let dead = match self.command {
            Command::Gc => Dead::wanted(&config, self.only, hands.client()),
            _ => None,
        };
        let mind = Mind::new(global, &surveyed.memory, &config)?;
        let named = self.find(&surveyed)?;
        let task = match self.command {
            Command::Rm => Task::Named(&named),
            _ => Task::Policy,
        };
        let survey = &surveyed.survey;
        let dead_plan = dead.as_ref().map(|dead| dead.plan(&request, survey)).transpose().map_err(refusal)?;
        let (plan, before) = match &dead_plan {
            None => run::dry(survey, &config.images, task, &mind, &mut hands),
            // Containers first: what they hold is free then.
            Some(dead) => Foreseen::of(survey, dead).images(&config.images, task, &mind, &mut hands),
        }
        .map_err(refusal)?;
        let mut planned = self.document(&surveyed, &config, &plan, None, &before);
        if let (Some(dead), Some(plan)) = (&dead, &dead_plan) {
            json::add_containers(&mut planned, &dead.store(survey), plan, None);
        }
        if self.dry_run {
            self.print(&planned)?;
            return Ok(exit(&planned, &surveyed));
        }
        if !planned.deleted.is_empty() && ask::somebody_is_there(global) {
            output::text(&text::gc(&planned, &terminal::screen()))?;
            let question = match (plan.steps.len(), planned.deleted.len() - plan.steps.len()) {
                (1, 0) => "Delete this image?".to_owned(),
                (count, 0) => format!("Delete these {count} images?"),
                (0, count) => format!("Delete these {count} containers, sandboxes and logs?"),
                (images, others) => {
                    format!("Delete these {others} containers, sandboxes and logs, and {images} images?")
                }
            };
            if !ask::confirm(global, &question)? {
                return Ok(Exit::Done);
            }
        }
        self.delete(&surveyed, &config, &request, &mind, &mut hands, (task, dead.as_ref(), &before), &planned)
    }

    #[allow(clippy::too_many_arguments)] // all that a run works with
    fn delete(
        &self,
        surveyed: &Surveyed,
        config: &Config,
        request: &Request,
        mind: &Mind<'_>,
        hands: &mut dyn Hands,
        (task, dead, before): (Task<'_>, Option<&Dead>, &[Measured]),
        planned: &GcDoc,
    ) -> Result<Exit, Failure> {
        stop::listen(&self.stop)?;
        let inventory = &surveyed.survey.inventory;
        let mut recording = Recording::begin(self.global, mind, inventory, self.command, self.began, planned);
        let mut fresh = None;
        let mut collected = None;
        if let Some(dead) = dead {
            let store = dead.store(&surveyed.survey);
            recording.of_store(&store);
            let ran = dead.run(request, &surveyed.survey, &mut recording, &self.stop).map_err(refusal)?;
            if !ran.deletions.is_empty() {
                // What these held is free now, and what they used is not in use any more.
                fresh = Some(surveying::survey_to_judge(self.global, false, self.config)?);
            }
            collected = Some((store, ran));
        }
        let surveyed = fresh.as_ref().unwrap_or(surveyed);
        let mut runner = Runner {
            request,
            policy: &config.images,
            memory: mind,
            hands,
            witness: &mut recording,
            stop: &self.stop,
            patience: Patience::default(),
            task,
        };
        let ran = runner.run(&surveyed.survey).map_err(refusal)?;
        // Before anything went.
        let before = if collected.is_some() { before } else { &ran.before };
        let mut document = self.document(surveyed, config, &ran.plan, Some(&ran), before);
        if let Some((store, ran)) = &collected {
            json::add_containers(&mut document, store, &ran.plan, Some(ran));
        }
        let lost = recording.end(&mut document);
        self.print(&document)?;
        let exit = exit(&document, surveyed);
        Ok(if lost && exit == Exit::Done { Exit::Failed } else { exit })
    }

    /// The images that were named.
    fn find(&self, surveyed: &Surveyed) -> Result<Vec<ImageIx>, Failure> {
        let mut found = Vec::new();
        for reference in self.named {
            let at = super::rm::image(&surveyed.survey, reference)?;
            if !found.contains(&at) {
                found.push(at);
            }
        }
        Ok(found)
    }

    fn document(
        &self,
        surveyed: &Surveyed,
        config: &Config,
        plan: &Plan,
        ran: Option<&Ran>,
        before: &[Measured],
    ) -> GcDoc {
        let survey = &surveyed.survey;
        let mut document = json::gc(&GcFacts {
            kind: self.kind(),
            inventory: &survey.inventory,
            plan,
            ran,
            before,
            targets: &config.images.targets,
            policy: "exact",
            via: self.via.word(),
            run_id: &self.run_id,
            failed_before: surveyed.memory.last_failed(self.command),
            at: Timestamp::now(),
        });
        document.warnings = json::warnings(survey);
        if self.only.is_some_and(|only| !only.contains(&Only::Images)) {
            document.kept.clear();
        }
        document
    }

    fn print(&self, document: &GcDoc) -> Result<(), Failure> {
        match self.global.format {
            Format::Json => output::json(document),
            // From a timer: only what happened.
            Format::Table if self.global.quiet && document.outcome == "not_needed" => Ok(()),
            Format::Table => output::text(&text::gc(document, &terminal::screen())),
        }
    }
}

/// The lock of the state directory, or where there can be none, of its stand-in.
fn lock(place: &Place) -> Result<RunLock, Failure> {
    let refused = |error: LockError| Failure::Refused {
        hint: match &error {
            LockError::Held { .. } => "wait for it to end".into(),
            LockError::Io { .. } => "name another state directory with --state-dir DIR".into(),
        },
        message: error.to_string(),
    };
    match RunLock::acquire(&place.dir) {
        Err(LockError::Io { path, source }) => {
            // On a full or read-only disk that has no state directory yet.
            let stand_in = place.spool.last().filter(|spool| !spool.starts_with(&place.dir));
            let Some(stand_in) = stand_in else { return Err(refused(LockError::Io { path, source })) };
            tracing::warn!("locking {}: {source}; taking the lock of {}", path.display(), stand_in.display());
            RunLock::acquire(stand_in).map_err(refused)
        }
        other => other.map_err(refused),
    }
}

fn refusal(blind: Blind) -> Failure {
    Failure::Refused { message: format!("nothing was deleted: {blind}"), hint: String::new() }
}

fn exit(document: &GcDoc, surveyed: &Surveyed) -> Exit {
    match document.outcome {
        "failed" => Exit::Failed,
        "not_reached" if document.kind == "rm" => Exit::Refused,
        "not_reached" => Exit::NotReached,
        _ => surveyed.exit(),
    }
}
