//! The first steps of every command that deletes: id of the run, lock, and writing out the filesystems.

use std::time::Instant;

use jiff::Timestamp;

use crate::execute::measure;
use crate::history::RunLock;
use crate::history::runs::{self, Command};
use crate::model::deletion::plan::Step;
use crate::model::{Finding, Inventory, StoreId};
use crate::services::database;
use crate::services::error::Error;
use crate::services::observer::{Audience, Observer};
use crate::services::request::Request;

#[derive(Debug)]
pub(crate) struct CommandRun<'a> {
    pub(crate) command: Command,
    pub(crate) id: String,
    pub(crate) began: Instant,
    pub(crate) observer: &'a dyn Observer,
    /// Held until the end.
    lock: Option<RunLock>,
}

impl<'a> CommandRun<'a> {
    pub(crate) fn new(command: Command, observer: &'a dyn Observer) -> Self {
        Self { command, id: runs::new_id(Timestamp::now()), began: Instant::now(), observer, lock: None }
    }

    /// Acquires the lock of the state directory, if this run does not hold it yet.
    ///
    /// # Errors
    /// When another run holds it.
    pub(crate) fn lock(&mut self, request: &Request) -> Result<(), Error> {
        if self.lock.is_none() {
            self.lock = Some(database::acquire_lock(&database::state_directory(request))?);
        }
        Ok(())
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.lock.is_some()
    }

    /// Writes out cached data of the filesystems that `steps` delete from. Returns a finding for each that failed.
    pub(crate) fn write_out(&self, inventory: &Inventory, steps: &[Step]) -> Vec<Finding> {
        let stores = inventory
            .stores
            .iter()
            .filter(|store| {
                let id = StoreId::of(store);
                steps.iter().any(|step| step.target.store.as_ref() == Some(&id))
            })
            .map(|store| (store.filesystem, store.root.as_path()));
        // A snapshotter or imagestore may be on another disk than its store.
        let gains = steps.iter().flat_map(|step| &step.gains).map(|gain| gain.filesystem);
        let others = gains.map(|ix| (ix, inventory[ix].mount.as_path()));
        let findings = measure::write_out(others.chain(stores));
        self.observer.findings(Audience::Always, &findings);
        findings
    }
}
