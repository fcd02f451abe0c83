//! What `gc` and `rm` have in common: the lock, a fresh scan, the plan, the question, the run,
//! and what is told and recorded of it.

mod acting;
mod ballast;

use std::cell::OnceCell;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;

use super::args::{Format, Only, Via};
use super::ask;
use super::containing::Dead;
use super::deciding::{self, Mind};
use super::global::Global;
use super::{directly, output, recording, runtime, stop, terminal};
use crate::app::database;
use crate::app::error::{Error, Exit};
use crate::app::observer::{Observer as _, Weight};
use crate::app::protect::labels_for;
use crate::app::scan::{self, ScanResult};
use crate::config::{Config, Decides};
use crate::cri::Options;
use crate::execute::by_kubelet::{self, ByKubelet, Theirs};
use crate::execute::containers::Foreseen;
use crate::execute::direct::Direct;
use crate::execute::editors::{Editors, Keep};
use crate::execute::hands::{Blind, Hands};
use crate::execute::measure;
use crate::execute::owner::Owners;
use crate::execute::through_cri::ThroughCri;
use crate::execute::{self, Ran, Task, untag};
use crate::history::runs::{self, Command};
use crate::history::{LockError, Place, RunLock};
use crate::model::Outcome;
use crate::model::{Finding, Store};
use crate::policy::compare::{GATES, kubelet_policy};
use crate::policy::kubelet::Report;
use crate::policy::plan::{Gain, Plan};
use crate::policy::space::{Measured, Targets};
use crate::report::json::{self, GcDoc, GcFacts};
use crate::report::text;
use crate::stores::{Request, Survey};
use crate::sys::stop::{flag, is_asked};

use acting::Act;

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
    /// A name means the image with all its names.
    pub(super) all_tags: bool,
    /// The kinds that `--only` names.
    pub(super) only: Option<&'a [Only]>,
    /// When it began.
    pub(super) began: Instant,
    pub(super) run_id: String,
    listening: OnceCell<()>,
    /// Filesystems that were not synchronised before the first measurement; unset: none has to be yet.
    not_written_out: OnceCell<Vec<Finding>>,
    /// Held from the beginning, or where somebody is asked, from the answer on.
    lock: OnceCell<RunLock>,
}

/// What removes images.
enum Through {
    Cri(Box<ThroughCri>),
    /// With those who may be at work in the stores, unless that does not matter.
    Direct(Option<Owners>),
}

/// What a run will do.
struct Planned {
    document: GcDoc,
    /// What the filesystems say before.
    before: Vec<Measured>,
    images: usize,
    names: usize,
    containers: usize,
    leaks: usize,
    /// Leaks are deleted too, if there are any.
    leaks_go: bool,
}

impl<'a> Job<'a> {
    pub(super) fn new(global: &'a Global, config: &'a Config, command: Command, via: Option<Via>) -> Self {
        let began = Instant::now();
        let run_id = runs::new_id(Timestamp::now());
        Self {
            global,
            config,
            command,
            dry_run: false,
            via: via.unwrap_or(Via::Cri),
            while_runtime_runs: false,
            named: &[],
            all_tags: false,
            only: None,
            began,
            run_id,
            listening: OnceCell::new(),
            not_written_out: OnceCell::new(),
            lock: OnceCell::new(),
        }
    }

    pub(super) fn is_direct(&self) -> bool {
        self.via == Via::Direct
    }

    fn kind(&self) -> &'static str {
        self.command.word()
    }

    /// Does it. A refusal is told to programs as a document, too, and recorded.
    pub(super) fn run(&self) -> Result<Exit, Error> {
        let done = self.carry_out();
        if let Err(refusal) = &done
            && refusal.exit == Exit::Refused
        {
            let document = self.refused(&refusal.to_string());
            // Of a run that another one keeps from beginning that one tells.
            if self.lock.get().is_some() {
                recording::refusal(self, &document);
            }
            if self.global.format == Format::Json {
                output::json(&document)?;
            }
        }
        done
    }

    /// The document of a run that was refused.
    fn refused(&self, message: &str) -> GcDoc {
        json::refused(self.kind(), &self.run_id, self.via.word(), self.dry_run, message, Timestamp::now())
    }

    /// Takes the lock, unless it is held already.
    fn hold(&self) -> Result<(), Error> {
        if self.lock.get().is_none() {
            let lock = lock(&database::place(&self.global.request))?;
            let _ = self.lock.set(lock);
        }
        Ok(())
    }

    /// From now on a signal ends the run in good order.
    fn listen(&self) -> Result<(), Error> {
        if self.listening.get().is_none() {
            stop::listen()?;
            let _ = self.listening.set(());
        }
        Ok(())
    }

    fn carry_out(&self) -> Result<Exit, Error> {
        let global = self.global;
        if global.request.sysroot.is_some() {
            return Err(Error::usage(format!(
                "--sysroot: nothing is ever deleted there, so `{}` has nothing to do",
                self.kind()
            ))
            .hint("`layersweep explain IMAGE` and `layersweep usage` tell what could go"));
        }
        if self.is_direct() && self.only.is_some_and(|only| only.contains(&Only::Logs)) {
            return Err(Error::usage("--only logs: with --via direct logs stay, since which of them nobody needs only the runtime tells").hint("leave out logs, or use --via cri when the runtime runs again"));
        }
        let theirs = self.theirs()?;
        if !self.dry_run && !ask::somebody_is_there(global) {
            self.hold()?;
        }
        let mut through = self.through()?;
        let result = self.scan_and_delete_patiently(&mut through, theirs);
        if let Through::Cri(hands) = &through {
            // Again, where it was given up and there is room now.
            ballast::prepare(hands.ballast());
        }
        result
    }

    fn scan_and_delete_patiently(
        &self,
        through: &mut Through,
        theirs: Option<Theirs>,
    ) -> Result<Exit, Error> {
        let mut attempt = 1;
        loop {
            match self.scan_and_delete(through, theirs) {
                // On a busy node something is always just coming or going, and what was scanned may
                // then be of another moment than what the runtime lists. Nothing was deleted; the
                // next scan takes only what is new, and is fast.
                Err(error) if error.is_stale() && attempt < ATTEMPTS && !is_asked() => {
                    tracing::info!("{error}; scanning again");
                    attempt += 1;
                }
                other => return other,
            }
        }
    }

    fn through(&self) -> Result<Through, Error> {
        match self.via {
            Via::Cri => {
                // A signal does not wait for a listing that may never come.
                let options = Options { cancel: Some(Arc::clone(flag())), ..Options::default() };
                let client = runtime::connect(self.global, &options)?;
                let hands = ThroughCri::new(client).map_err(Error::from)?;
                let place = database::place(&self.global.request);
                let ballast = (!self.dry_run).then(|| ballast::of(&place, hands.place())).flatten();
                Ok(Through::Cri(Box::new(hands.with_ballast(ballast))))
            }
            Via::Direct => Ok(Through::Direct(directly::owners(self.global, self.while_runtime_runs)?)),
        }
    }

    fn scan_and_delete(&self, through: &mut Through, theirs: Option<Theirs>) -> Result<Exit, Error> {
        let global = self.global;
        let mut surveyed = self.survey()?;
        if surveyed.state.is_unreadable() {
            return Err(Error::refused("our records cannot be read, so that it is not known what is pinned")
                .hint("see the warning above; `layersweep scan` sets a damaged database aside"));
        }
        if surveyed.state.is_new() {
            let dir = surveyed.state.place().dir.display();
            global.note(&format!(
                "no records in {dir} yet: nothing is pinned, and ages are what the disk tells"
            ));
        }
        let keep = if self.is_direct() { Keep::Make } else { Keep::Use };
        let editors = Editors::of(
            &surveyed.survey,
            &surveyed.state.place().dir,
            keep,
            global.request.trust_pid_namespace,
        );
        let mut config = self.config.clone();
        if self.leaves_out(Only::Images) {
            // Nothing starts, so nothing goes.
            config.images.targets = Targets::default();
            config.images.max_age = None;
        }
        let dead = match (&through, self.command) {
            (Through::Cri(hands), Command::Gc) => Dead::wanted(&config, self.only, hands.client()),
            (Through::Direct(owners), Command::Gc) => {
                Dead::wanted_on_disk(&config, self.only, &editors, owners.as_ref())
            }
            _ => None,
        };
        let mut direct;
        let hands: &mut dyn Hands = match through {
            Through::Cri(hands) => hands.as_mut(),
            Through::Direct(owners) => {
                directly::check_namespace(global)?;
                directly::check(owners.as_ref(), &surveyed, &editors)?;
                if !self.dry_run && self.resume(&editors) {
                    surveyed = self.survey()?;
                }
                direct = Direct::new(&editors, owners.as_ref());
                &mut direct
            }
        };
        let (leaks, barred) = match directly::leaks(self, &config, &surveyed, &editors) {
            Ok(leaks) => (leaks, None),
            Err(why) => (None, Some(why)),
        };
        let labels = labels_for(&config.images.protect);
        let request = Request { labels, ..global.request.stores()? };
        deciding::protect(global, &mut config, &request)?;
        let mut mind = Mind::new(global, &surveyed.state, &config)?;
        let named = super::rm::named(&surveyed.survey, self.named, self.all_tags)?;
        if !self.is_direct() {
            super::rm::refuse_untags(&surveyed.survey, &named.untags)?;
        }
        let task = match self.command {
            Command::Rm => Task::Named(&named.images),
            _ => Task::Policy,
        };
        let survey = &surveyed.survey;
        let made = leaks.as_ref().map(|leaks| leaks.gains(&survey.inventory)).unwrap_or_default();
        let dead_plan = dead.as_ref().map(|dead| dead.plan(&request, survey)).transpose();
        let dead_plan = dead_plan.map_err(Error::from)?;
        if let Some(plan) = &dead_plan {
            mind.releases(&survey.inventory, plan);
        }
        let plan_images = |made: &[Gain], survey: &Survey, hands: &mut dyn Hands| match theirs {
            None => {
                let (plan, before) =
                    execute::dry(made, survey, &request, &config.images, task, &mind, hands)?;
                Ok((self.document(&surveyed, &config, &plan, None, &before, None), before))
            }
            Some(theirs) => {
                let ByKubelet { ran, report } =
                    by_kubelet::dry(made, survey, &request, &config.images, &mind, hands, theirs)?;
                Ok((
                    self.document(&surveyed, &config, &ran.plan, None, &ran.before, Some(&report)),
                    ran.before,
                ))
            }
        };
        let plan_all = |hands: &mut dyn Hands| -> Result<Planned, Error> {
            let planned: Result<_, Blind> = match &dead_plan {
                None => plan_images(&made, survey, hands),
                // Containers first: what they hold is free then.
                Some(dead) => Foreseen::of(survey, dead).with(&made, hands, plan_images),
            };
            let (mut document, before) = planned.map_err(Error::from)?;
            let images = document.deleted.len();
            let context = untag::Context { request: &request, policy: &config.images, memory: &mind };
            let outcomes = untag::dry(&named.untags, survey, context, hands).map_err(Error::from)?;
            json::add_untagged(&mut document, &survey.inventory, named.untags.iter().zip(outcomes), None);
            let names = document.deleted.len() - images;
            if let (Some(dead), Some(plan)) = (&dead, &dead_plan) {
                json::add_containers(&mut document, &dead.store(survey), plan, None);
            }
            let containers = document.deleted.len() - images - names;
            // What is kept for the first bytes of a full disk is not spent for nothing.
            let leaks_go = self.command == Command::Gc || images > 0;
            if let Some(leaks) = leaks.as_ref().filter(|_| leaks_go) {
                json::add_leaks(&mut document, &survey.inventory, leaks, None);
            }
            if let Some(why) = &barred {
                json::add_refusal(&mut document, why);
            }
            let leaks = document.deleted.len() - containers - images - names;
            Ok(Planned { document, before, images, names, containers, leaks, leaks_go })
        };
        let mut all = plan_all(hands)?;
        if self.write_out(survey, &all.document) {
            // The filesystems may say now that there is less to do, a dry run's like any other.
            all = plan_all(hands)?;
        }
        let Planned { document: mut planned, before, .. } = all;
        let leaks = leaks.filter(|_| all.leaks_go);
        if self.dry_run {
            if let Some(theirs) = theirs {
                let both =
                    execute::side_by_side(survey, &request, &config.images, &mind, hands, theirs.policy);
                let both = both.map_err(Error::from)?;
                planned.comparison =
                    both.iter().map(|both| json::comparison(&survey.inventory, both)).collect();
            }
            self.print(&planned)?;
            return Ok(exit(&planned, &surveyed));
        }
        if !planned.deleted.is_empty() && ask::somebody_is_there(global) {
            // Not to stdout, which holds the result alone.
            output::aside(&text::gc(&planned, &terminal::screen()))?;
            if !ask::confirm(global, &question(all.images, all.containers, all.leaks, all.names))? {
                match global.format {
                    Format::Json => {
                        planned.dry_run = true;
                        output::json(&planned)?;
                    }
                    Format::Table => output::text("Nothing was deleted.\n")?,
                }
                return Ok(Exit::Done);
            }
        }
        self.hold()?;
        let act = Act {
            job: self,
            surveyed: &surveyed,
            config: &config,
            request: &request,
            mind: &mind,
            editors: &editors,
            task,
            theirs,
            leaks: leaks.as_ref(),
            barred: barred.as_deref(),
            dead: dead.as_ref(),
            untags: &named.untags,
            before: &before,
            planned: &planned,
        };
        act.carry_out(hands)
    }

    /// Makes the filesystems that something is deleted from write out what was just written, if that was
    /// not done yet; whether it was done now. A run that deletes nothing disturbs nobody.
    fn write_out(&self, survey: &Survey, planned: &GcDoc) -> bool {
        if planned.deleted.is_empty() || self.not_written_out.get().is_some() {
            return false;
        }
        let goes =
            |store: &&Store| planned.deleted.iter().any(|deleted| Path::new(&deleted.store) == store.root);
        let stores = survey.inventory.stores.iter().filter(goes);
        let findings = self.not_written_out.get_or_init(|| measure::write_out(stores));
        self.global.findings(Weight::Always, findings);
        true
    }

    /// Whether `--only` leaves a kind out.
    fn leaves_out(&self, kind: Only) -> bool {
        self.only.is_some_and(|only| !only.contains(&kind))
    }

    /// The kubelet's settings, where its algorithm decides: not over what somebody names.
    fn theirs(&self) -> Result<Option<Theirs>, Error> {
        if self.config.decides == Decides::Exact || self.command == Command::Rm {
            return Ok(None);
        }
        let policy = kubelet_policy(&self.config.images).ok_or_else(|| {
            Error::usage("policy kubelet knows percentages only, and there are none")
                .hint("set images.high_percent and images.low_percent, or --high and --low")
        })?;
        Ok(Some(Theirs { policy, gates: GATES }))
    }

    fn survey(&self) -> Result<ScanResult, Error> {
        scan::scan_for_policy(&self.global.request, self.global, !self.dry_run, self.config)
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

    fn document(
        &self,
        surveyed: &ScanResult,
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
            failed_before: self.command == Command::Gc && surveyed.state.last_failed(self.command),
            at: Timestamp::now(),
        });
        document.warnings = json::warnings(survey);
        document.warnings.extend(self.not_written_out.get().into_iter().flatten().map(json::warning));
        if self.leaves_out(Only::Images) {
            document.kept.clear();
        }
        document
    }

    fn print(&self, document: &GcDoc) -> Result<(), Error> {
        match self.global.format {
            Format::Json => output::json(document),
            // From a timer: only what happened.
            Format::Table if self.global.quiet && document.outcome == Outcome::NotNeeded => Ok(()),
            Format::Table => output::text(&text::gc(document, &terminal::screen())),
        }
    }
}

fn question(images: usize, containers: usize, leaks: usize, names: usize) -> String {
    let some = |count: usize, one: &str, many: &str| match count {
        0 => None,
        1 => Some(format!("1 {one}")),
        count => Some(format!("{count} {many}")),
    };
    let parts = [
        some(leaks, "leak", "leaks"),
        some(containers, "container, sandbox or log", "containers, sandboxes and logs"),
        some(images, "image", "images"),
    ];
    let deleted = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
    match (deleted.as_str(), some(names, "name", "names")) {
        ("", Some(names)) => format!("Remove {names}?"),
        (deleted, Some(names)) => format!("Delete {deleted} and remove {names}?"),
        (deleted, None) => format!("Delete {deleted}?"),
    }
}

/// The lock of the state directory, or where there can be none, of its stand-in.
pub(super) fn lock(place: &Place) -> Result<RunLock, Error> {
    let refused = |error: LockError| {
        Error::refused(error.to_string()).hint(match &error {
            LockError::Held { .. } => "wait for it to end",
            LockError::Io { .. } => "name another state directory with --state-dir DIR",
        })
    };
    match RunLock::acquire(&place.dir) {
        Err(LockError::Io { path, source }) => {
            // On a full or read-only disk that has no state directory yet.
            let stand_in = place.pending.last().filter(|dir| !dir.starts_with(&place.dir));
            let Some(stand_in) = stand_in else { return Err(refused(LockError::Io { path, source })) };
            tracing::warn!("locking {}: {source}; taking the lock of {}", path.display(), stand_in.display());
            RunLock::acquire(stand_in).map_err(refused)
        }
        other => other.map_err(refused),
    }
}

fn exit(document: &GcDoc, surveyed: &ScanResult) -> Exit {
    match document.outcome {
        Outcome::Failed => Exit::Failed,
        // What a rule keeps is refused; what would not go has failed.
        Outcome::NotReached if document.kind == "rm" && document.errors.is_empty() => Exit::Refused,
        Outcome::NotReached if document.kind == "rm" => Exit::Failed,
        // "Everything worked" is not so where something could not be read.
        Outcome::NotReached if surveyed.exit() != Exit::Done => surveyed.exit(),
        Outcome::NotReached => Exit::NotReached,
        Outcome::Refused => Exit::Refused,
        _ => surveyed.exit(),
    }
}
