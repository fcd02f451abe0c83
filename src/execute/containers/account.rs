//! What deletions give back: predicted from the inventory, measured on the filesystems.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use jiff::Timestamp;

use crate::execute::containers::{Deletion, Doomed, Kind, Problem};
use crate::execute::measure::{Ended, Gauge, Patience, Room};
use crate::model::refs::{Live, Root};
use crate::model::{ContainerIx, FilesystemIx, Inventory, Size, StoreIx};
use crate::node::places::Places;
use crate::policy::plan::Gain;
use crate::policy::space::Space;
use crate::stores::Survey;

/// Predictions of one run, in the order of its deletions.
pub(super) struct Account<'a> {
    inventory: &'a Inventory,
    live: Live<'a>,
    containers: HashMap<&'a str, ContainerIx>,
    gauges: BTreeMap<FilesystemIx, Gauge>,
    logs: Option<Gauge>,
}

/// The room before a deletion, on everything that it is expected to change.
pub(super) struct Before {
    stores: Vec<(FilesystemIx, Room)>,
    logs: Option<Room>,
}

impl<'a> Account<'a> {
    /// `own` is the store that the containers are of.
    pub(super) fn open(survey: &'a Survey, own: Option<StoreIx>, places: &Places) -> Self {
        let inventory = &survey.inventory;
        let containers = inventory.containers.iter().enumerate();
        let containers = containers.filter(|(_, one)| Some(one.store) == own);
        let containers = containers.map(|(at, one)| (one.id.as_str(), ContainerIx::from(at))).collect();
        let gauge = |at: usize| {
            let at = FilesystemIx::from(at);
            // A directory of a store, and not the mount point, which may be covered.
            let store = inventory.stores.iter().find(|store| store.filesystem == at);
            let node = || inventory.nodes.iter().find(|node| node.filesystem == at && node.path.is_dir());
            let path = store.map(|store| &store.root).or_else(|| node().map(|node| &node.path))?;
            Gauge::open(path).ok().map(|gauge| (at, gauge))
        };
        Self {
            inventory,
            live: survey.refs.live(),
            containers,
            gauges: (0..inventory.filesystems.len()).filter_map(gauge).collect(),
            logs: Gauge::open(&places.pod_logs).ok(),
        }
    }

    /// Says of each what it gives back after those before it.
    pub(super) fn predict(&self, goes: &mut [Doomed]) {
        let mut live = self.live.clone();
        for doomed in goes {
            if let Some(root) = self.root(doomed) {
                doomed.gains = gains(self.inventory, &live, root);
                live.remove(self.inventory, root);
            }
        }
    }

    /// What it gives back after those that have really gone.
    pub(super) fn predicted_now(&self, mut doomed: Doomed) -> Doomed {
        if let Some(root) = self.root(&doomed) {
            doomed.gains = gains(self.inventory, &self.live, root);
        }
        doomed
    }

    /// It has gone.
    pub(super) fn remove(&mut self, doomed: &Doomed) {
        if let Some(root) = self.root(doomed) {
            self.live.remove(self.inventory, root);
        }
    }

    /// A container that was made after the survey gives back more than nothing, but nobody knows how
    /// much.
    fn root(&self, doomed: &Doomed) -> Option<Root> {
        let is_container = matches!(doomed.kind, Kind::Container | Kind::Sandbox);
        let at = self.containers.get(doomed.id.as_str()).filter(|_| is_container)?;
        Some(Root::Container(*at))
    }

    pub(super) fn before(&self, doomed: &Doomed) -> Before {
        let room = |gain: &Gain| Some((gain.filesystem, self.gauges.get(&gain.filesystem)?.room().ok()?));
        let logs = self.logs.as_ref().filter(|_| doomed.log_bytes > 0);
        Before {
            stores: doomed.gains.iter().filter_map(room).collect(),
            logs: logs.and_then(|gauge| gauge.room().ok()),
        }
    }

    /// Waits for what was deleted to come back.
    pub(super) fn measured(
        &self,
        doomed: Doomed,
        before: &Before,
        patience: Patience,
        problems: &mut Vec<Problem>,
    ) -> Deletion {
        let at = Timestamp::now();
        let began = Instant::now();
        let mut measured_bytes = 0_i64;
        let mut ended = Ended::Came;
        let mut last = None;
        let of_stores = before.stores.iter().filter_map(|(filesystem, room)| {
            let gain = doomed.gains.iter().find(|gain| gain.filesystem == *filesystem)?;
            Some((self.gauges.get(filesystem)?, room, gain.size.frees_bytes))
        });
        let of_logs = before.logs.as_ref().zip(self.logs.as_ref());
        let of_logs = of_logs.map(|(room, gauge)| (gauge, room, doomed.log_bytes));
        for (gauge, room, predicted) in of_stores.chain(of_logs) {
            match gauge.settle(room, predicted, patience) {
                Ok(settled) => {
                    measured_bytes = measured_bytes.saturating_add(settled.measured_bytes);
                    if settled.why != Ended::Came {
                        ended = settled.why;
                    }
                    last = last.or(Space::of_room(&settled.room).ok());
                }
                Err(error) => problems.push(Problem {
                    id: Some(doomed.id.clone()),
                    step: "measure",
                    message: format!("{}: {error}", gauge.path().display()),
                }),
            }
        }
        Deletion {
            doomed,
            at,
            measured_bytes,
            usage_after_percent: last.map(|space| space.used_percent()),
            waited: began.elapsed(),
            ended,
        }
    }
}

fn gains(inventory: &Inventory, live: &Live<'_>, root: Root) -> Vec<Gain> {
    let mut gains: BTreeMap<FilesystemIx, Size> = BTreeMap::new();
    for node in live.last_held(root) {
        let node = &inventory.nodes[node.get()];
        *gains.entry(node.filesystem).or_default() += node.size;
    }
    gains.into_iter().map(|(filesystem, size)| Gain { filesystem, size }).collect()
}
