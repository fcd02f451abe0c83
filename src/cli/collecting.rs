//! What `gc` and `rm` have in common: the lock, a fresh scan, the plan, the question, the run,
//! and what is told and recorded of it.

use std::time::Instant;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use jiff::Timestamp;

use super::args::{Format, Global, Via};
use super::ask;
use super::deciding::{self, Mind};
use super::exit::Exit;
use super::failure::Failure;
use super::recording::Recording;
use super::surveying::{self, Surveyed};
use super::{directly, output, records, runtime, stop, terminal};
use crate::config::{Config, Decides};
use crate::cri::Options;
use crate::gc::compare::{GATES, kubelet_policy};
use crate::gc::editors::{Editors, Keep};
use crate::gc::kubelet::Report;
use crate::gc::leaks;
use crate::gc::leaks::run::Sweeper;
use crate::gc::measure::Patience;
use crate::gc::plan::Plan;
use crate::gc::protect::labels_for;
use crate::gc::run::by_kubelet::{self, ByKubelet, Theirs};
use crate::gc::run::direct::Direct;
use crate::gc::run::hands::Hands;
use crate::gc::run::through_cri::ThroughCri;
use crate::gc::run::{self, Ran, Runner, Task};
use crate::gc::space::Measured;
use crate::inventory::ImageIx;
use crate::records::runs::{self, Command};
use crate::records::{LockError, Place, RunLock};
use crate::report::json::{self, GcDoc, GcFacts};
use crate::report::text;
use crate::survey::Request;

/// How often it is scanned again because the node does not keep still.
const ATTEMPTS: u32 = 5;

/// What is to be done.
pub(super) struct Job<'a> {
    pub(super) global: &'a Global,
    pub(super) config: &'a Config,
    pub(super) command: Command,
    pub(super) dry_run: bool,
    pub(super) via: Via,
    /// With `--via direct`: even while the runtime that owns the store is at work.
    pub(super) while_runtime_runs: bool,
    /// The images that were named; none of them for a collection by policy.
    pub(super) named: &'a [String],
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
            while_runtime_runs: false,
            named: &[],
            began,
            run_id,
            stop: Arc::default(),
        }
    }

    pub(super) fn is_direct(&self) -> bool {
        self.via == Via::Direct
    }

    fn kind(&self) -> &'static str {
        self.command.word()
    }

    /// Does it. A refusal is told to programs as a document, too.
    pub(super) fn run(&self) -> Result<Exit, Failure> {
        match self.carry_out() {
            Err(refusal @ (Failure::Refused { .. } | Failure::Blind(_)))
                if self.global.format == Format::Json =>
            {
                let (message, at) = (refusal.to_string(), Timestamp::now());
                let document =
                    json::refused(self.kind(), &self.run_id, self.via.word(), self.dry_run, &message, at);
                output::json(&document)?;
                Err(refusal)
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
        let mut through_cri = match self.via {
            Via::Cri => Some(ThroughCri::new(runtime::connect(global, &options)?).map_err(Failure::Blind)?),
            Via::Direct => None,
        };
        let mut attempt = 1;
        loop {
            match self.scan_and_delete(&mut through_cri) {
                // On a busy node something is always just coming or going, and what was scanned may
                // then be of another moment than what the runtime lists. Nothing was deleted; the
                // next scan takes only what is new, and is fast.
                Err(Failure::Blind(blind)) if blind.stale && attempt < ATTEMPTS => {
                    tracing::info!("{blind}; scanning again");
                    attempt += 1;
                }
                other => return other,
            }
        }
    }

    fn scan_and_delete(&self, through_cri: &mut Option<ThroughCri>) -> Result<Exit, Failure> {
        let global = self.global;
        let mut surveyed = self.survey()?;
        if surveyed.memory.is_blind() {
            return Err(Failure::Refused {
                message: "our records cannot be read, so that it is not known what is pinned".into(),
                hint: "see the warning above; `layersweep scan` sets a damaged database aside".into(),
            });
        }
        let keep = if self.is_direct() { Keep::Make } else { Keep::Use };
        let editors = Editors::of(&surveyed.survey, &surveyed.memory.place().dir, keep);
        let mut direct = None;
        if self.is_direct() {
            let owners = directly::owners(global, self.while_runtime_runs)?;
            directly::check(owners.as_ref(), &surveyed, &editors)?;
            if !self.dry_run && self.resume(&editors) {
                surveyed = self.survey()?;
            }
            direct = Some(Direct::new(&editors, owners));
        }
        let hands: &mut dyn Hands = match (through_cri, &mut direct) {
            (Some(hands), _) => hands,
            (None, Some(hands)) => hands,
            (None, None) => return Ok(Exit::Failed),
        };
        let mut config = self.config.clone();
        let leaks = directly::leaks(self, &config, &surveyed, &editors);
        let labels = labels_for(&config.images.protect);
        let request = Request { labels, ..surveying::request(global)? };
        deciding::protect(global, &mut config, &request)?;
        let mind = Mind::new(global, &surveyed.memory, &config)?;
        let named = self.find(&surveyed)?;
        let task = match self.command {
            Command::Rm => Task::Named(&named),
            _ => Task::Policy,
        };
        let theirs = self.theirs()?;
        let survey = &surveyed.survey;
        let made = leaks.as_ref().map(|leaks| leaks.gains(&survey.inventory)).unwrap_or_default();
        let (mut planned, before) = match theirs {
            None => {
                let (plan, before) = run::dry_after(&made, survey, &config.images, task, &mind, hands)
                    .map_err(Failure::Blind)?;
                (self.document(&surveyed, &config, &plan, None, &before, None), before)
            }
            Some(theirs) => {
                let ByKubelet { ran, report } =
                    by_kubelet::dry(survey, &config.images, &mind, hands, theirs).map_err(Failure::Blind)?;
                (self.document(&surveyed, &config, &ran.plan, None, &ran.before, Some(&report)), ran.before)
            }
        };
        if let Some(leaks) = &leaks {
            json::add_leaks(&mut planned, &survey.inventory, leaks, None);
        }
        if self.dry_run {
            if let Some(theirs) = theirs {
                let both = run::side_by_side(survey, &config.images, &mind, hands, theirs.policy);
                let both = both.map_err(Failure::Blind)?;
                planned.comparison =
                    both.iter().map(|both| json::comparison(&survey.inventory, both)).collect();
            }
            self.print(&planned)?;
            return Ok(exit(&planned, &surveyed));
        }
        if !planned.deleted.is_empty() && ask::somebody_is_there(global) {
            output::text(&text::gc(&planned, &terminal::screen()))?;
            let leaks = leaks.as_ref().map_or(0, |leaks| leaks.order.len());
            let question = match (planned.deleted.len() - leaks, leaks) {
                (1, 0) => "Delete this image?".to_owned(),
                (images, 0) => format!("Delete these {images} images?"),
                (0, leaks) => format!("Delete what nothing uses ({leaks} findings)?"),
                (images, leaks) => format!("Delete these {images} images, and {leaks} leaks before them?"),
            };
            if !ask::confirm(global, &question)? {
                return Ok(Exit::Done);
            }
        }
        let todo = (task, theirs, leaks.as_ref(), before.as_slice());
        self.delete(&surveyed, &config, &request, &mind, (hands, &editors), todo, &planned)
    }

    /// The kubelet's settings, where its algorithm decides: not over what somebody names.
    fn theirs(&self) -> Result<Option<Theirs>, Failure> {
        if self.config.decides == Decides::Exact || self.command == Command::Rm {
            return Ok(None);
        }
        let policy = kubelet_policy(&self.config.images).ok_or_else(|| Failure::BadArgument {
            message: "policy kubelet knows percentages only, and there are none".into(),
            hint: "set images.high_percent and images.low_percent, or --high and --low".into(),
        })?;
        Ok(Some(Theirs { policy, gates: GATES }))
    }

    #[allow(clippy::too_many_arguments)] // all that a run works with
    fn delete(
        &self,
        surveyed: &Surveyed,
        config: &Config,
        request: &Request,
        mind: &Mind<'_>,
        (hands, editors): (&mut dyn Hands, &Editors),
        (task, theirs, leaks, before): (Task<'_>, Option<Theirs>, Option<&leaks::plan::Plan>, &[Measured]),
        planned: &GcDoc,
    ) -> Result<Exit, Failure> {
        stop::listen(&self.stop)?;
        let inventory = &surveyed.survey.inventory;
        let mut recording = Recording::begin(self.global, mind, inventory, self.command, self.began, planned);
        let swept = leaks.map(|plan| {
            let mut sweeper = Sweeper {
                inventory,
                editors,
                min_age: config.leaks.min_age,
                witness: &mut recording,
                stop: &self.stop,
                patience: Patience::default(),
            };
            (plan, sweeper.run(plan))
        });
        if self.is_direct() {
            editors.prepare();
        }
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
        let survey = &surveyed.survey;
        let came = match theirs {
            None => runner.run(survey).map(|ran| (ran, None)),
            Some(theirs) => by_kubelet::run(&mut runner, survey, theirs)
                .map(|ByKubelet { ran, report }| (ran, Some(report))),
        };
        let (ran, report) = match (came, &swept) {
            (Ok(came), _) => came,
            (Err(blind), None) => return Err(Failure::Blind(blind)),
            // The leaks are gone all the same, and that is told.
            (Err(blind), Some((plan, swept))) => {
                let (id, via, at) = (&self.run_id, self.via.word(), Timestamp::now());
                let mut document = json::refused(self.kind(), id, via, false, &blind.what, at);
                json::add_leaks(&mut document, inventory, plan, Some(swept));
                recording.end(&mut document);
                self.print(&document)?;
                return Ok(Exit::Refused);
            }
        };
        if self.is_direct() {
            editors.prepare();
        }
        // Before means: before the leaks went, too.
        let before = if swept.is_some() { before } else { &ran.before };
        let mut document = self.document(surveyed, config, &ran.plan, Some(&ran), before, report.as_ref());
        if let Some((plan, swept)) = &swept {
            json::add_leaks(&mut document, inventory, plan, Some(swept));
        }
        let lost = recording.end(&mut document);
        self.print(&document)?;
        let exit = exit(&document, surveyed);
        Ok(if lost && exit == Exit::Done { Exit::Failed } else { exit })
    }

    fn survey(&self) -> Result<Surveyed, Failure> {
        surveying::survey_to_judge(self.global, !self.dry_run, self.config)
    }

    /// Finishes what killed runs began; whether there was anything.
    fn resume(&self, editors: &Editors) -> bool {
        let (resumed, problems) = super::sweep::resume(editors);
        if resumed > 0 {
            tracing::warn!("finished what a run that was killed had begun: {resumed} images and layers");
        }
        for problem in problems {
            tracing::warn!("what a killed run began is not finished: {}", problem.message);
        }
        resumed > 0
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
        theirs: Option<&Report>,
    ) -> GcDoc {
        let survey = &surveyed.survey;
        let mut document = json::gc(&GcFacts {
            kind: self.kind(),
            inventory: &survey.inventory,
            plan,
            ran,
            before,
            targets: &config.images.targets,
            theirs,
            via: self.via.word(),
            run_id: &self.run_id,
            failed_before: surveyed.memory.last_failed(self.command),
            at: Timestamp::now(),
        });
        document.warnings = json::warnings(survey);
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
pub(super) fn lock(place: &Place) -> Result<RunLock, Failure> {
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

fn exit(document: &GcDoc, surveyed: &Surveyed) -> Exit {
    match document.outcome {
        "failed" => Exit::Failed,
        "not_reached" if document.kind == "rm" => Exit::Refused,
        "not_reached" => Exit::NotReached,
        _ => surveyed.exit(),
    }
}
