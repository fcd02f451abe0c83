//! What deletions of containers free, predicted from the inventory.

use std::collections::HashMap;

use crate::model::plan::{self, Step, TargetKind};
use crate::model::refs::{Live, Root};
use crate::model::{ContainerIx, Inventory, StoreId, StoreIx};
use crate::stores::Scan;

/// Predictions of one run, in the order of its deletions.
pub(super) struct Account<'a> {
    inventory: &'a Inventory,
    live: Live<'a>,
    containers: HashMap<&'a str, ContainerIx>,
    store: Option<StoreId>,
}

impl<'a> Account<'a> {
    /// `own` is the store that the containers are of.
    pub(super) fn open(scan: &'a Scan, own: Option<StoreIx>) -> Self {
        let inventory = &scan.inventory;
        let containers = inventory.containers.iter().enumerate();
        let containers = containers.filter(|(_, one)| Some(one.store) == own);
        Self {
            inventory,
            live: scan.refs.live(),
            containers: containers.map(|(at, one)| (one.id.as_str(), at.into())).collect(),
            store: own.map(|own| StoreId::of(&inventory.stores[own.get()])),
        }
    }

    /// Says of each what it frees after those before it.
    pub(super) fn predict(&self, steps: &mut [Step]) {
        let mut live = self.live.clone();
        for step in steps {
            if step.target.kind != TargetKind::Log {
                step.target.store.clone_from(&self.store);
            }
            if let Some(root) = self.root(step) {
                step.gains = plan::gains(self.inventory, &live, root);
                live.remove(self.inventory, root);
            }
        }
    }

    /// What it frees after those that are really gone.
    pub(super) fn predicted_now(&self, mut step: Step) -> Step {
        if let Some(root) = self.root(&step) {
            step.gains = plan::gains(self.inventory, &self.live, root);
        }
        step
    }

    /// It is deleted.
    pub(super) fn remove(&mut self, step: &Step) {
        if let Some(root) = self.root(step) {
            self.live.remove(self.inventory, root);
        }
    }

    /// A container created after the scan frees something, but the amount is unknown.
    fn root(&self, step: &Step) -> Option<Root> {
        let is_container = matches!(step.target.kind, TargetKind::Container | TargetKind::Sandbox);
        let at = self.containers.get(step.target.id.as_str()).filter(|_| is_container)?;
        Some(Root::Container(*at))
    }
}
