//! Carrying out what was planned: leaks first, where they go at all, then images.

use super::{Job, exit};
use crate::cli::deciding::Mind;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::recording::Recording;
use crate::cli::surveying::Surveyed;
use crate::config::Config;
use crate::gc::editors::Editors;
use crate::gc::leaks::plan::Plan as LeakPlan;
use crate::gc::leaks::run::{Ran as LeaksRan, Sweeper};
use crate::gc::measure::Patience;
use crate::gc::run::by_kubelet::{self, ByKubelet, Theirs};
use crate::gc::run::hands::{Blind, Hands};
use crate::gc::run::{Runner, Task};
use crate::gc::space::Measured;
use crate::report::json::{self, GcDoc};
use crate::survey::Request;

/// All that a run works with.
pub(super) struct Act<'a> {
    pub(super) job: &'a Job<'a>,
    pub(super) surveyed: &'a Surveyed,
    pub(super) config: &'a Config,
    pub(super) request: &'a Request,
    pub(super) mind: &'a Mind<'a>,
    pub(super) editors: &'a Editors,
    pub(super) task: Task<'a>,
    pub(super) theirs: Option<Theirs>,
    pub(super) leaks: Option<&'a LeakPlan>,
    /// What the filesystems said when it was planned.
    pub(super) before: &'a [Measured],
    pub(super) planned: &'a GcDoc,
}

impl Act<'_> {
    pub(super) fn carry_out(&self, hands: &mut dyn Hands) -> Result<Exit, Failure> {
        let Self { job, surveyed, .. } = self;
        job.listen()?;
        let inventory = &surveyed.survey.inventory;
        let mut recording =
            Recording::begin(job.global, self.mind, inventory, job.command, job.began, self.planned);
        let swept = self.leaks.map(|plan| (plan, self.sweep(plan, &mut recording)));
        if job.is_direct() {
            self.editors.prepare();
        }
        let mut document = match (self.images(hands, &mut recording, swept.is_some()), &swept) {
            (Ok(document), _) => document,
            (Err(blind), None) => return Err(Failure::Blind(blind)),
            // The leaks are gone all the same, and that is told.
            (Err(blind), Some(_)) => job.refused(&blind.what),
        };
        if job.is_direct() {
            self.editors.prepare();
        }
        if let Some((plan, swept)) = &swept {
            json::add_leaks(&mut document, inventory, plan, Some(swept));
        }
        let lost = recording.end(&mut document);
        job.print(&document)?;
        let exit = exit(&document, surveyed);
        Ok(if lost && exit == Exit::Done { Exit::Failed } else { exit })
    }

    fn sweep(&self, plan: &LeakPlan, recording: &mut Recording<'_>) -> LeaksRan {
        let mut sweeper = Sweeper {
            inventory: &self.surveyed.survey.inventory,
            editors: self.editors,
            min_age: self.config.leaks.min_age,
            witness: recording,
            stop: &self.job.stop,
            patience: Patience::default(),
        };
        sweeper.run(plan)
    }

    /// Deletes images, and tells of them.
    fn images(
        &self,
        hands: &mut dyn Hands,
        recording: &mut Recording<'_>,
        swept: bool,
    ) -> Result<GcDoc, Blind> {
        let mut runner = Runner {
            request: self.request,
            policy: &self.config.images,
            memory: self.mind,
            hands,
            witness: recording,
            stop: &self.job.stop,
            patience: Patience::default(),
            task: self.task,
        };
        let survey = &self.surveyed.survey;
        let (ran, report) = match self.theirs {
            None => (runner.run(survey)?, None),
            Some(theirs) => {
                let ByKubelet { ran, report } = by_kubelet::run(&mut runner, survey, theirs)?;
                (ran, Some(report))
            }
        };
        // Before means: before the leaks went, too.
        let before = if swept { self.before } else { &ran.before };
        let (job, surveyed) = (self.job, self.surveyed);
        Ok(job.document(surveyed, self.config, &ran.plan, Some(&ran), before, report.as_ref()))
    }
}
