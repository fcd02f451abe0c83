//! Carrying out what was planned: leaks first, then dead containers and logs, where they go at all,
//! then images.

use super::{Job, exit};
use crate::app::error::{Error, Exit};
use crate::app::scan::{self, ScanResult};
use crate::cli::containing::Dead;
use crate::cli::deciding::Mind;
use crate::cli::recording::Recording;
use crate::config::Config;
use crate::execute::by_kubelet::{self, ByKubelet, Theirs};
use crate::execute::containers::Ran as DeadRan;
use crate::execute::editors::Editors;
use crate::execute::hands::{Blind, Hands};
use crate::execute::leaks::{Ran as LeaksRan, Sweeper};
use crate::execute::measure::Patience;
use crate::execute::untag::{self, Untag};
use crate::execute::{Runner, Task};
use crate::policy::leaks::plan::Plan as LeakPlan;
use crate::policy::space::Measured;
use crate::report::json::{self, GcDoc};
use crate::stores::Request;
use crate::sys::stop::{flag, is_asked};

/// All that a run works with.
pub(super) struct Act<'a> {
    pub(super) job: &'a Job<'a>,
    pub(super) surveyed: &'a ScanResult,
    pub(super) config: &'a Config,
    pub(super) request: &'a Request,
    pub(super) mind: &'a Mind<'a>,
    pub(super) editors: &'a Editors,
    pub(super) task: Task<'a>,
    pub(super) theirs: Option<Theirs>,
    pub(super) leaks: Option<&'a LeakPlan>,
    /// Why no leak may go.
    pub(super) barred: Option<&'a str>,
    pub(super) dead: Option<&'a Dead<'a>>,
    pub(super) untags: &'a [Untag],
    /// What the filesystems said when it was planned.
    pub(super) before: &'a [Measured],
    pub(super) planned: &'a GcDoc,
}

impl Act<'_> {
    pub(super) fn carry_out(&self, hands: &mut dyn Hands) -> Result<Exit, Error> {
        let Self { job, surveyed, .. } = self;
        job.listen()?;
        let inventory = &surveyed.survey.inventory;
        let mut recording =
            Recording::begin(job.global, self.mind, inventory, job.command, job.began, self.planned);
        let swept = self.leaks.map(|plan| (plan, self.sweep(plan, &mut recording)));
        if job.is_direct() && !is_asked() {
            self.editors.prepare();
        }
        let began = swept.is_some();
        let collected = match self.dead.map(|dead| self.collect(dead, &mut recording)).transpose() {
            Ok(collected) => collected,
            Err(blind) if began => return self.end(job.refused(&blind.what), recording, swept, None),
            Err(blind) => return Err(Error::from(blind)),
        };
        // What went was in nobody's way, but what it used is not in use any more.
        let fresh = match &collected {
            Some((_, ran)) if !ran.deletions.is_empty() && !is_asked() => {
                Some(scan::scan_for_policy(&job.global.request, job.global, false, job.config)?)
            }
            _ => None,
        };
        let surveyed = fresh.as_ref().unwrap_or(surveyed);
        recording.goes_on_with(&surveyed.survey.inventory);
        let untagged = match self.untag(surveyed, hands, &mut recording) {
            Ok(untagged) => untagged,
            Err(blind) if began => return self.end(job.refused(&blind.what), recording, swept, collected),
            Err(blind) => return Err(Error::from(blind)),
        };
        let began = began || collected.is_some() || !untagged.is_empty();
        let mut document = match self.images(surveyed, hands, &mut recording, began) {
            Ok(document) => document,
            // What went before them is gone all the same, and that is told.
            Err(blind) if began => job.refused(&blind.what),
            Err(blind) => return Err(Error::from(blind)),
        };
        let (inventory, now) = (&surveyed.survey.inventory, Some(recording.now()));
        json::add_untagged(&mut document, inventory, self.untags.iter().zip(untagged), now);
        self.end(document, recording, swept, collected)
    }

    /// Takes names from images that keep others. A signal, or what cannot be proven any more, leaves
    /// the rest as it is.
    fn untag(
        &self,
        surveyed: &ScanResult,
        hands: &mut dyn Hands,
        recording: &mut Recording<'_>,
    ) -> Result<Vec<untag::Outcome>, Blind> {
        let context =
            untag::Context { request: self.request, policy: &self.config.images, memory: self.mind };
        let mut outcomes = Vec::new();
        for one in self.untags {
            if is_asked() {
                break;
            }
            let image = &surveyed.survey.inventory.images[one.image.get()];
            recording.untags(image, &one.names);
            let outcome = match untag::run(one, &surveyed.survey, context, hands) {
                Err(blind) if outcomes.is_empty() => {
                    recording.untagged(image, &one.names, &untag::Outcome::Refused(blind.what.clone()));
                    return Err(blind);
                }
                Err(blind) => untag::Outcome::Refused(blind.what),
                Ok(outcome) => outcome,
            };
            recording.untagged(image, &one.names, &outcome);
            outcomes.push(outcome);
        }
        Ok(outcomes)
    }

    /// Tells and records all of it.
    fn end(
        &self,
        mut document: GcDoc,
        recording: Recording<'_>,
        swept: Option<(&LeakPlan, LeaksRan)>,
        collected: Option<(String, DeadRan)>,
    ) -> Result<Exit, Error> {
        let Self { job, surveyed, .. } = self;
        if job.is_direct() && !is_asked() {
            self.editors.prepare();
        }
        if let Some((store, ran)) = &collected {
            json::add_containers(&mut document, store, &ran.plan, Some(ran));
        }
        if let Some((plan, swept)) = &swept {
            json::add_leaks(&mut document, &surveyed.survey.inventory, plan, Some(swept));
        }
        if let Some(why) = self.barred {
            json::add_refusal(&mut document, why);
        }
        let lost = recording.end(&mut document);
        job.print(&document)?;
        let exit = exit(&document, surveyed);
        Ok(if lost && exit == Exit::Done { Exit::Failed } else { exit })
    }

    /// Collects dead containers and logs; from which store, and what came of it.
    fn collect(&self, dead: &Dead<'_>, recording: &mut Recording<'_>) -> Result<(String, DeadRan), Blind> {
        let survey = &self.surveyed.survey;
        let store = dead.store(survey);
        recording.of_store(&store);
        let ran = dead.run(self.request, survey, recording, flag())?;
        Ok((store, ran))
    }

    fn sweep(&self, plan: &LeakPlan, recording: &mut Recording<'_>) -> LeaksRan {
        let mut sweeper = Sweeper {
            inventory: &self.surveyed.survey.inventory,
            editors: self.editors,
            min_age: self.config.leaks.min_age,
            witness: recording,
            stop: flag(),
            patience: Patience::default(),
        };
        sweeper.run(plan)
    }

    /// Deletes images, and tells of them.
    fn images(
        &self,
        surveyed: &ScanResult,
        hands: &mut dyn Hands,
        recording: &mut Recording<'_>,
        began: bool,
    ) -> Result<GcDoc, Blind> {
        let mut runner = Runner {
            request: self.request,
            policy: &self.config.images,
            memory: self.mind,
            hands,
            witness: recording,
            stop: flag(),
            patience: Patience::default(),
            task: self.task,
        };
        let survey = &surveyed.survey;
        let (ran, report) = match self.theirs {
            None => (runner.run(survey)?, None),
            Some(theirs) => {
                let ByKubelet { ran, report } = by_kubelet::run(&mut runner, survey, theirs)?;
                (ran, Some(report))
            }
        };
        // Before means: before anything else went, too.
        let before = if began { self.before } else { &ran.before };
        Ok(self.job.document(surveyed, self.config, &ran.plan, Some(&ran), before, report.as_ref()))
    }
}
