//! What `gc` and `rm` have in common: the lock, a fresh scan, the plan, the question, the run,
//! and what is told and recorded of it.

use std::time::Instant;

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use jiff::Timestamp;

use super::args::{Format, Global, Via};
use super::ask;
use super::deciding::{self, Mind};
use super::exit::Exit;
use super::failure::Failure;
use super::recording::{self, Recording};
use super::surveying::{self, Surveyed};
use super::{output, records, runtime, stop, terminal};
use crate::config::{Config, Decides};
use crate::cri::{Options, StorePlace, StoreType};
use crate::gc::compare::{GATES, kubelet_policy};
use crate::gc::kubelet::Report;
use crate::gc::measure::Patience;
use crate::gc::plan::Plan;
use crate::gc::protect::labels_for;
use crate::gc::run::by_kubelet::{self, ByKubelet, Theirs};
use crate::gc::run::hands::Hands;
use crate::gc::run::through_cri::ThroughCri;
use crate::gc::run::{self, Ran, Runner, Task};
use crate::gc::space::Measured;
use crate::graphroot::edit::Ballast;
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
    /// The images that were named; none of them for a collection by policy.
    pub(super) named: &'a [String],
    /// When it began.
    pub(super) began: Instant,
    pub(super) run_id: String,
    /// Set by a signal while something is being deleted.
    pub(super) stop: Arc<AtomicBool>,
    listening: OnceCell<()>,
    /// Held from the beginning, or where somebody is asked, from the answer on.
    lock: OnceCell<RunLock>,
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
            began,
            run_id,
            stop: Arc::default(),
            listening: OnceCell::new(),
            lock: OnceCell::new(),
        }
    }

    fn kind(&self) -> &'static str {
        self.command.word()
    }

    /// Does it. A refusal is told to programs as a document, too, and recorded.
    pub(super) fn run(&self) -> Result<Exit, Failure> {
        let done = self.carry_out();
        if let Err(refusal @ (Failure::Refused { .. } | Failure::Blind(_))) = &done {
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
    fn hold(&self) -> Result<(), Failure> {
        if self.lock.get().is_none() {
            let lock = lock(&records::place(self.global))?;
            let _ = self.lock.set(lock);
        }
        Ok(())
    }

    /// From now on a signal ends the run after the deletion in flight.
    fn listen(&self) -> Result<(), Failure> {
        if self.listening.get().is_none() {
            stop::listen(&self.stop)?;
            let _ = self.listening.set(());
        }
        Ok(())
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
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
        if !self.dry_run && !ask::somebody_is_there(global) {
            self.hold()?;
        }
        // A signal does not wait for a listing that may never come.
        let options = Options { cancel: Some(Arc::clone(&self.stop)), ..Options::default() };
        let mut hands = ThroughCri::new(runtime::connect(global, &options)?).map_err(Failure::Blind)?;
        let ballast = (!self.dry_run).then(|| ballast(&records::place(global), hands.place())).flatten();
        hands = hands.with_ballast(ballast.clone());
        let result = self.scan_and_delete_patiently(&mut hands);
        // Again, where it was given up and there is room now.
        prepare(ballast.as_ref());
        result
    }

    fn scan_and_delete_patiently(&self, hands: &mut ThroughCri) -> Result<Exit, Failure> {
        let mut attempt = 1;
        loop {
            match self.scan_and_delete(hands) {
                // On a busy node something is always just coming or going, and what was scanned may
                // then be of another moment than what the runtime lists. Nothing was deleted; the
                // next scan takes only what is new, and is fast.
                Err(Failure::Blind(blind)) if blind.stale && attempt < ATTEMPTS && !self.is_stopped() => {
                    tracing::info!("{blind}; scanning again");
                    attempt += 1;
                }
                other => return other,
            }
        }
    }

    fn scan_and_delete(&self, hands: &mut ThroughCri) -> Result<Exit, Failure> {
        let global = self.global;
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
        let mind = Mind::new(global, &surveyed.memory, &config)?;
        let named = self.find(&surveyed)?;
        let task = match self.command {
            Command::Rm => Task::Named(&named),
            _ => Task::Policy,
        };
        let theirs = self.theirs()?;
        let survey = &surveyed.survey;
        let mut planned = match theirs {
            None => {
                let (plan, before) =
                    run::dry(survey, &request, &config.images, task, &mind, hands).map_err(Failure::Blind)?;
                self.document(&surveyed, &config, &plan, None, &before, None)
            }
            Some(theirs) => {
                let ByKubelet { ran, report } =
                    by_kubelet::dry(survey, &request, &config.images, &mind, hands, theirs)
                        .map_err(Failure::Blind)?;
                self.document(&surveyed, &config, &ran.plan, None, &ran.before, Some(&report))
            }
        };
        if self.dry_run {
            if let Some(theirs) = theirs {
                let both = run::side_by_side(survey, &request, &config.images, &mind, hands, theirs.policy);
                let both = both.map_err(Failure::Blind)?;
                planned.comparison =
                    both.iter().map(|both| json::comparison(&survey.inventory, both)).collect();
            }
            self.print(&planned)?;
            return Ok(exit(&planned, &surveyed));
        }
        if !planned.deleted.is_empty() && ask::somebody_is_there(global) {
            // Not to stdout, which holds the result alone.
            output::aside(&text::gc(&planned, &terminal::screen()))?;
            let question = match planned.deleted.len() {
                1 => "Delete this image?".to_owned(),
                count => format!("Delete these {count} images?"),
            };
            if !ask::confirm(global, &question)? {
                if global.format == Format::Json {
                    planned.dry_run = true;
                    output::json(&planned)?;
                }
                return Ok(Exit::Done);
            }
        }
        self.hold()?;
        self.delete(&surveyed, &config, &request, &mind, hands, (task, theirs), &planned)
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
        hands: &mut dyn Hands,
        (task, theirs): (Task<'_>, Option<Theirs>),
        planned: &GcDoc,
    ) -> Result<Exit, Failure> {
        self.listen()?;
        let inventory = &surveyed.survey.inventory;
        let mut recording = Recording::begin(self.global, mind, inventory, self.command, self.began, planned);
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
        let (ran, report) = match theirs {
            None => (runner.run(survey).map_err(Failure::Blind)?, None),
            Some(theirs) => {
                let ByKubelet { ran, report } =
                    by_kubelet::run(&mut runner, survey, theirs).map_err(Failure::Blind)?;
                (ran, Some(report))
            }
        };
        let mut document =
            self.document(surveyed, config, &ran.plan, Some(&ran), &ran.before, report.as_ref());
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

/// The room that this run can give up, if our records lie on the filesystem of the runtime's store.
fn ballast(place: &Place, store: &StorePlace) -> Option<Ballast> {
    // Without containerd's database in between, podman's and CRI-O's stores have their own.
    if store.store_type != StoreType::Containerd {
        return None;
    }
    let ballast = Ballast::in_state_dir(&place.dir, &store.root).unwrap_or_else(|error| {
        tracing::debug!("no ballast: {error}");
        None
    });
    prepare(ballast.as_ref());
    ballast
}

/// A run goes on without it.
fn prepare(ballast: Option<&Ballast>) {
    if let Some(Err(error)) = ballast.map(Ballast::prepare) {
        tracing::debug!("the ballast is not prepared: {error}");
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

fn exit(document: &GcDoc, surveyed: &Surveyed) -> Exit {
    match document.outcome {
        "failed" => Exit::Failed,
        // What a rule keeps is refused; what would not go has failed.
        "not_reached" if document.kind == "rm" && document.errors.is_empty() => Exit::Refused,
        "not_reached" if document.kind == "rm" => Exit::Failed,
        "not_reached" => Exit::NotReached,
        _ => surveyed.exit(),
    }
}
