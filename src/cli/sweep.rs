//! `layersweep sweep`

use std::time::Instant;

use jiff::Timestamp;

use super::args::{Format, SweepArgs};
use super::collecting::lock;
use super::global::Global;
use super::leak_recording::LeakRecording;
use super::{ask, directly, output, stop, terminal};
use crate::app::database;
use crate::app::error::{Error, Exit};
use crate::app::observer::{Observer as _, Weight};
use crate::app::scan;
use crate::config::Config;
use crate::execute::editors::{Editors, Keep};
use crate::execute::leaks::{Ran, Sweeper};
use crate::execute::measure::{self, Patience};
use crate::history::runs;
use crate::model::Outcome;
use crate::model::{Consistency, Finding, Inventory, StoreIx};
use crate::policy::leaks::plan::{self, Fate, Plan, Wish};
use crate::report::json::{self, SweepDoc, SweepErrorDoc, SweepFacts};
use crate::report::text;
use crate::stores::Survey;
use crate::sys::stop::flag;

pub(super) fn run(global: &Global, config: &Config, own: &SweepArgs) -> Result<Exit, Error> {
    let wish = Wish { classes: own.class.clone(), min_age: config.leaks.min_age, repair: own.repair.clone() };
    // A dry run of nothing would tell nothing.
    let delete = own.delete || (own.dry_run && own.repair.is_empty());
    let changes = delete || !wish.repair.is_empty();
    if global.request.sysroot.is_some() && changes {
        return Err(Error::usage("--sysroot: nothing is ever changed there, so `sweep` can only report")
            .hint("`layersweep sweep --sysroot DIR` lists what could go"));
    }
    let began = Instant::now();
    let run_id = runs::new_id(Timestamp::now());
    let sweep = Sweep { global, wish, delete, dry_run: own.dry_run, began, run_id };
    if !changes || own.dry_run {
        return sweep.show();
    }
    match sweep.carry_out() {
        Err(refusal) if refusal.exit == Exit::Refused && global.format == Format::Json => {
            let at = Timestamp::now();
            output::json(&json::sweep_refused(&sweep.run_id, &sweep.wish, delete, &refusal.message, at))?;
            Err(refusal)
        }
        other => other,
    }
}

struct Sweep<'a> {
    global: &'a Global,
    wish: Wish,
    delete: bool,
    dry_run: bool,
    began: Instant,
    run_id: String,
}

impl Sweep<'_> {
    /// Changes nothing.
    fn show(&self) -> Result<Exit, Error> {
        let surveyed = scan::scan(&self.global.request, self.global)?;
        let editors = Editors::of(
            &surveyed.survey,
            &database::place(&self.global.request).dir,
            Keep::Use,
            self.global.request.trust_pid_namespace,
        );
        let plan = self.plan(&surveyed.survey, &editors);
        let document = self.document(&surveyed.survey, &plan, None, 0);
        self.print(&document)?;
        Ok(surveyed.exit())
    }

    fn carry_out(&self) -> Result<Exit, Error> {
        let global = self.global;
        let place = database::place(&global.request);
        // Held until the end.
        let _lock = lock(&place)?;
        directly::check_namespace(global)?;
        let mut surveyed = scan::scan_and_record(&global.request, global)?;
        let editors =
            Editors::of(&surveyed.survey, &place.dir, Keep::Use, global.request.trust_pid_namespace);
        let (resumed, unfinished) = match surveyed.state.was_unreadable() {
            // Nor are notes obeyed that lie beside records that cannot be read.
            true => (0, Vec::new()),
            false => resume(&editors),
        };
        if resumed > 0 {
            surveyed = scan::scan_and_record(&global.request, global)?;
        }
        let plan = self.plan(&surveyed.survey, &editors);
        let planned = self.document(&surveyed.survey, &plan, None, resumed);
        if !plan.order.is_empty() && ask::somebody_is_there(global) {
            output::text(&text::sweep(&SweepDoc { dry_run: true, ..planned }, &terminal::screen()))?;
            if !ask::confirm(global, &question(&plan))? {
                return Ok(Exit::Done);
            }
        }
        stop::listen()?;
        let not_written_out = write_out(&surveyed.survey.inventory, &plan);
        global.findings(Weight::Always, &not_written_out);
        surveyed.survey.inventory.findings.extend(not_written_out);
        let inventory = &surveyed.survey.inventory;
        let mut recording =
            LeakRecording::begin(global, &surveyed.state, inventory, &self.run_id, self.began, &plan);
        let mut sweeper = Sweeper {
            inventory,
            editors: &editors,
            min_age: self.wish.min_age,
            witness: &mut recording,
            stop: flag(),
            patience: Patience::default(),
        };
        let ran = sweeper.run(&plan);
        let mut document = self.document(&surveyed.survey, &plan, Some(&ran), resumed);
        if !unfinished.is_empty() {
            document.errors.extend(unfinished);
            document.outcome = Outcome::Failed;
        }
        let unproven = unproven(inventory, &editors);
        if !unproven.is_empty() {
            document.errors.extend(unproven);
            if document.outcome != Outcome::Failed {
                document.outcome = Outcome::Refused;
            }
        }
        let lost = recording.end(&document);
        self.print(&document)?;
        let exit = match document.outcome {
            Outcome::Failed => Exit::Failed,
            Outcome::Refused => Exit::Refused,
            _ => surveyed.exit(),
        };
        Ok(if lost && exit == Exit::Done { Exit::Failed } else { exit })
    }

    /// What is to go, and to be mended. Without `--delete` what it would delete is planned as
    /// well, to be shown.
    fn plan(&self, survey: &Survey, editors: &Editors) -> Plan {
        let inventory = &survey.inventory;
        let closed = |store: StoreIx| editors.store(&inventory.stores[store.get()]).err().map(str::to_owned);
        let mut plan = plan::plan(inventory, &survey.refs, &self.wish, survey.taken_at, &closed);
        if !self.delete && !self.wish.repair.is_empty() {
            plan.order.retain(|at| plan.entries[*at].fate == Fate::Repair);
        }
        plan
    }

    fn document(&self, survey: &Survey, plan: &Plan, ran: Option<&Ran>, resumed: usize) -> SweepDoc {
        let changes = self.delete || !self.wish.repair.is_empty();
        json::sweep(&SweepFacts {
            survey,
            wish: &self.wish,
            plan,
            ran,
            delete: self.delete,
            run_id: (changes && !self.dry_run).then_some(self.run_id.as_str()),
            dry_run: self.dry_run,
            resumed,
        })
    }

    fn print(&self, document: &SweepDoc) -> Result<(), Error> {
        match self.global.format {
            Format::Json => output::json(document),
            // From a timer: only what happened.
            Format::Table
                if self.global.quiet
                    && matches!(document.outcome, Outcome::Reported | Outcome::NotNeeded) =>
            {
                Ok(())
            }
            Format::Table => output::text(&text::sweep(document, &terminal::screen())),
        }
    }
}

/// Makes the filesystems that something is deleted from write out what was just written.
fn write_out(inventory: &Inventory, plan: &Plan) -> Vec<Finding> {
    let goes = |at: &StoreIx| plan.turns().any(|entry| inventory.leaks[entry.leak.get()].store == *at);
    let stores = (0..inventory.stores.len()).map(StoreIx::from).filter(goes);
    measure::write_out(stores.map(|at| &inventory.stores[at.get()]))
}

/// Stores of which nothing is proven: whatever was lost there, it stays for this time.
fn unproven(inventory: &Inventory, editors: &Editors) -> Vec<SweepErrorDoc> {
    let doubtful = inventory.stores.iter().filter_map(|store| {
        let message = match store.consistency {
            Consistency::Consistent => return None,
            Consistency::WriterActive => "another program was writing to it all the time; try again later",
            Consistency::Damaged => "its records are damaged; see the warnings",
        };
        editors.store(store).is_ok().then(|| SweepErrorDoc {
            id: Some(store.root.to_string_lossy().into_owned()),
            step: "read".into(),
            message: message.into(),
            measured_bytes: None,
        })
    });
    doubtful.collect()
}

/// Finishes what killed runs began: how many images, layers and leftovers, and what would not be
/// finished.
pub(super) fn resume(editors: &Editors) -> (usize, Vec<SweepErrorDoc>) {
    let (mut resumed, mut problems) = (0, Vec::new());
    for (store, result) in editors.resume() {
        match result {
            Ok(done) => {
                resumed += done.images.len() + done.layers.len() + done.leftovers.len();
                resumed += done.containers.len();
                resumed += usize::from(done.removed > 0 && done.is_unnamed());
            }
            Err(error) => problems.push(SweepErrorDoc {
                id: Some(store.root().to_string_lossy().into_owned()),
                step: "resume".into(),
                message: error.to_string(),
                measured_bytes: None,
            }),
        }
    }
    (resumed, problems)
}

fn question(plan: &Plan) -> String {
    let mending = plan.turns().filter(|entry| entry.fate == Fate::Repair).count();
    let going = plan.order.len() - mending;
    let bytes = text::bytes(plan.predicted_bytes());
    match (going, mending) {
        (1, 0) => format!("Delete this finding ({bytes})?"),
        (going, 0) => format!("Delete these {going} findings ({bytes})?"),
        (0, 1) => "Mend this finding?".to_owned(),
        (0, mending) => format!("Mend these {mending} findings?"),
        (going, mending) => format!("Delete {going} findings ({bytes}) and mend {mending}?"),
    }
}
