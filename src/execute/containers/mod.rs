//! Exited containers, sandboxes and logs, deleted through CRI.
//!
//! Every runtime removes a container by force, even if it runs. So a listing is never enough: right before a container
//! is removed through CRI, its status is requested again, all processes are searched for its control group, and the
//! store's own records are read. Failures are collected; a run ends early only if the runtime does not answer any more.

mod collection;
mod cri_source;
mod look;

use std::time::Duration;

use crate::execute::executor::Run;
use crate::execute::measure::SettlePatience;
use crate::execute::remover::PreconditionError;
use crate::execute::runtime_match::RuntimeStores;
use crate::model::{Inventory, Plan, StoreIx};
use crate::stores::Scan;

use collection::Predictions;
use cri_source::CriSource;
pub use look::{Collection, Scope};

impl Collection<'_> {
    /// The plan. [`Self::run`] follows the same plan as long as nothing changes and every deletion succeeds. `scan` is
    /// a measuring scan of the stores.
    ///
    /// # Errors
    /// When the runtime does not answer, or the disk cannot be read.
    pub fn plan(&self, scan: &Scan) -> Result<Plan, PreconditionError> {
        let mut predictions = Predictions::open(scan, self.own_store(&scan.inventory));
        collection::plan(&mut CriSource::new(self), self.scope, &mut predictions)
    }

    /// Deletes the objects that the policy selects, and returns the plan as it was carried out.
    ///
    /// # Errors
    /// As [`Self::plan`]: then nothing was deleted.
    pub fn run(&self, run: &mut Run<'_>, scan: &Scan) -> Result<Plan, PreconditionError> {
        let mut predictions = Predictions::open(scan, self.own_store(&scan.inventory));
        // containerd deletes a writable layer with its next garbage collection, seconds after its answer.
        let still = run.patience.still.max(Duration::from_secs(5));
        let patience = SettlePatience { still, ..run.patience };
        let before = std::mem::replace(&mut run.patience, patience);
        let plan = collection::run(run, &mut CriSource::new(self), self.scope, &mut predictions);
        run.patience = before;
        plan
    }

    fn own_store(&self, inventory: &Inventory) -> Option<StoreIx> {
        RuntimeStores::find(self.runtime_store, inventory).map(|stores| stores.main)
    }
}
