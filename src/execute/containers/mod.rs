//! Exited containers, sandboxes and logs, deleted through CRI.
//!
//! What runs is never touched, whatever a listing says: before a container is removed through CRI
//! (which every runtime does by force) its status is asked for afresh, its control group is looked for
//! among all processes, and the store's own records are read. Failures are collected; only a
//! runtime that cannot be asked any more ends a run.

mod collection;
mod cri;
mod files;
mod look;

use std::time::Duration;

use crate::execute::executor::Run;
use crate::execute::measure::SettlePatience;
use crate::execute::remover::PreconditionError;
use crate::execute::runtime_match::RuntimeStores;
use crate::model::{Inventory, Plan, StoreIx};
use crate::stores::Scan;

use collection::Predictions;
use look::CriSource;
pub use look::{Collection, Scope};

impl Collection<'_> {
    /// The plan without carrying it out: the same that [`Self::run`] follows as long as nothing
    /// changes and everything is deleted that is to be deleted. `scan` has measured the stores.
    ///
    /// # Errors
    /// When the runtime cannot be asked, or the disk cannot be read.
    pub fn plan(&self, scan: &Scan) -> Result<Plan, PreconditionError> {
        let mut predictions = Predictions::open(scan, self.own_store(&scan.inventory));
        collection::plan(&mut CriSource::new(self), self.scope, &mut predictions)
    }

    /// Carries out what the policy asks for, and returns the plan as it was carried out.
    ///
    /// # Errors
    /// As [`Self::plan`]: then nothing was deleted.
    pub fn run(&self, run: &mut Run<'_>, scan: &Scan) -> Result<Plan, PreconditionError> {
        let mut predictions = Predictions::open(scan, self.own_store(&scan.inventory));
        // containerd unlinks a writable layer with its next collection, seconds after its answer.
        let still = run.patience.still.max(Duration::from_secs(5));
        let patience = SettlePatience { still, ..run.patience };
        let before = std::mem::replace(&mut run.patience, patience);
        let plan = collection::run(run, &mut CriSource::new(self), self.scope, &mut predictions);
        run.patience = before;
        plan
    }

    /// The store that the containers are of.
    fn own_store(&self, inventory: &Inventory) -> Option<StoreIx> {
        RuntimeStores::find(self.runtime_store, inventory).map(|stores| stores.own)
    }
}
