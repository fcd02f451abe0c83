//! Recording a scan in the database.

use super::database::{Database, failed, finding, warn};
use super::error::Error;
use super::interrupted::Interrupted;
use super::kept_scans;
use super::observer::Observer;
use super::request::Request;
use super::state::{State, last_gc_failed};
use crate::history::kept_scans::{Packed, Scanned};
use crate::history::scan_record::{ScanRecord, ScanRun};
use crate::history::{self, Access, Degraded, Queue, Saved, back_offs, figures, known, runs, sizes};
use crate::model::refs::Refs;
use crate::model::scan_summary::ScanSummary;
use crate::model::{Finding, Inventory};
use crate::stores::Scan;

/// Records the scan that `state` was opened for.
pub(super) struct ScanRecording<'a> {
    pub request: &'a Request,
    pub state: &'a mut State,
}

impl ScanRecording<'_> {
    /// Records that a scan of all stores has found none where there were some: what is remembered of
    /// them is no figure of this node any more. That it cannot is reported, and changes nothing else.
    pub fn save_none(self, observer: &dyn Observer) {
        let remembered = self.state.read(figures::all);
        let remembered = remembered.is_ok_and(|all| !all.stores.is_empty() || all.unreadable > 0);
        if self.state.directory.foreign || self.state.is_unreadable || !remembered {
            return;
        }
        let nothing = Inventory::default();
        let run = ScanRun {
            seconds: 0.0,
            complete: true,
            figures: Vec::new(),
            all_stores: true,
            ..self.run(&nothing, &Refs::new(&nothing))
        };
        match self.write(&run, Access::Write) {
            Ok((database, saved)) => warn(observer, &[database.degraded, saved.degraded].concat()),
            Err(failure) => tracing::warn!("the absence of stores was not recorded: {failure}"),
        }
    }

    /// Records what a scan saw. What hinders that is added to the scan's findings.
    pub fn save(self, scan: &mut Scan) -> Result<(), Error> {
        if self.state.directory.foreign {
            return Ok(());
        }
        let complete = scan.is_complete();
        let damaged = self.state.degraded.iter().any(|why| matches!(why, Degraded::Corrupt { .. }));
        let access = if damaged { Access::Mend } else { Access::Write };
        let save = || {
            let run = ScanRun {
                seconds: scan.effort.seconds,
                complete,
                figures: figures::of(&scan.inventory, &scan.refs),
                all_stores: !self.request.names_stores,
                ..self.run(&scan.inventory, &scan.refs)
            };
            let (database, saved) = self.write(&run, access)?;
            // The writes below do not affect image ages.
            let known = database.read(known::images)?;
            Ok::<_, Error>((database, saved, known, run))
        };
        // The summary for `diff` needs no database, and takes as long as the rest for a large store.
        let summary = || Packed::new(ScanSummary::of(&scan.inventory, &scan.refs, complete));
        let (saved, packed) = rayon::join(save, summary);
        let (mut database, saved, known, run) = saved?;
        let state = self.state;
        let mut degraded = std::mem::take(&mut database.degraded);
        degraded.extend(saved.degraded);
        // Problems of the reading most likely persist; those of the writing say more.
        degraded.append(&mut state.degraded);
        for why in degraded {
            if state.degraded.iter().all(|known| known.code() != why.code()) {
                state.degraded.push(why);
            }
        }
        state.is_unrecorded = saved.recorded.is_none();
        state.add_findings(scan);
        let about = |message: String| finding(&state.directory, message);
        scan.inventory.findings.extend(saved.warnings.iter().map(|warning| about(warning.to_string())));
        if let Some(at) = saved.recorded {
            Interrupted { inventory: &scan.inventory, complete }.settle(&mut database, state.scanned);
            let seen = Scanned { run_id: &run.run_id, at, all_stores: run.all_stores };
            let findings: &mut Vec<Finding> = &mut scan.inventory.findings;
            findings.extend(kept_scans::keep(&mut database, &seen, packed).map(about));
            if saved.caught_up > 0 {
                tracing::info!("saved {} earlier runs that were waiting", saved.caught_up);
            }
            if let Some(changes) = scan.sizes.take() {
                // Only a cache: what is not kept is measured again.
                let kept = database.records.write(|tx| sizes::store(tx, &changes, run.record.taken_at));
                findings
                    .extend(kept.err().map(|error| about(format!("layer sizes were not cached: {error}"))));
            }
        }
        state.known = known;
        state.back_offs = database.read(back_offs::load)?;
        state.last_gc_failed = last_gc_failed(&database);
        state.is_unreadable = database.unreadable;
        Ok(())
    }

    fn run(&self, inventory: &Inventory, refs: &Refs) -> ScanRun {
        let State { began, clock, known, scanned, .. } = &*self.state;
        ScanRun {
            run_id: runs::new_id(*scanned),
            record: ScanRecord::new(inventory, refs, *began, clock.clone(), known.clock()),
            seconds: 0.0,
            complete: false,
            figures: Vec::new(),
            all_stores: false,
        }
    }

    fn write(&self, run: &ScanRun, access: Access) -> Result<(Database, Saved), Error> {
        let mut database = Database::open(self.request, access)?;
        let queue = Queue::of(&database.directory);
        let saved = history::save(&mut database.records, &queue, run);
        let saved = saved.map_err(|source| failed(&database.directory, source))?;
        Ok((database, saved))
    }
}
