//! Finds objects without a record or without a user.

use std::convert::Infallible;
use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};

use super::GraphrootFiller;
use crate::model::Orphan;
use crate::model::{Consistency, Finding, LeakClass, NodeIx, Verdict};
use crate::stores::containers_storage::engine::Engine;
use crate::stores::containers_storage::leaks::{self, Circumstances, UseByProcess};
use crate::stores::containers_storage::locks::LockFile;
use crate::stores::containers_storage::needs;
use crate::stores::containers_storage::quarantine_name;
use crate::stores::containers_storage::records::ImageRecord;
use crate::stores::containers_storage::since;
use crate::stores::containers_storage::temporary_files::{self, TOOLS};
use crate::stores::containers_storage::units::GraphrootUnit;
use crate::stores::leaks::{Judgement, age};
use crate::sys::processes::{Processes, describe_unknown};

impl GraphrootFiller<'_> {
    pub(super) fn changed(&self, path: &Path) -> Option<Timestamp> {
        since::changed(&self.within, path)
    }

    /// Reports a record whose object or whose parts are missing. Unless the records are consistent, the verdict is only
    /// "report".
    pub(super) fn broken(&mut self, judged: Judgement, id: &str, node: NodeIx, since: Option<Timestamp>) {
        let path = self.writer.inventory[node].path.clone();
        let judged = match self.snapshot.consistency {
            Consistency::Consistent => judged,
            _ => judged.with(Verdict::Report),
        };
        self.writer.leak(judged, id, &path, since, Vec::new());
    }

    pub(super) fn circumstances(&self, path: &Path, since: Option<Timestamp>) -> Circumstances {
        Circumstances {
            consistency: self.snapshot.consistency,
            mounted: self.writer.is_mounted(path),
            lock_held: None,
            has_link: true,
            is_unfinished: false,
            age: age(since, self.writer.present),
            has_database: self.snapshot.inspection.engine != Engine::Absent,
            lost_container: self.lost_container(since),
            doubt: None,
            presence: UseByProcess::Unknown("not checked".into()),
        }
    }

    /// Describes a container without a record that may own an object of this age. Such a container is only in podman's
    /// database, or may be in it.
    fn lost_container(&self, since: Option<Timestamp>) -> Option<String> {
        if let Engine::Unreadable(_) = self.snapshot.inspection.engine {
            return Some("podman's database, which may name its container, cannot be read".into());
        }
        // Podman creates the layer of a container right before it records the container.
        const MARGIN: SignedDuration = SignedDuration::from_hours(1);
        let lost = needs::lost_containers(self.snapshot).into_iter().find(|(_, container)| {
            let times = container.created.zip(since);
            times.is_none_or(|(container_time, object_time)| {
                object_time >= container_time.saturating_sub(MARGIN).unwrap_or(container_time)
            })
        });
        let name = &lost?.1.name;
        Some(format!("podman's database has a container {name} without any record"))
    }

    pub(super) fn orphans(&mut self) {
        let orphans = std::mem::take(&mut self.orphans);
        for (orphan, unit, node) in &orphans {
            let orphan = *orphan;
            let since = since::of_orphan(&self.within, orphan, &unit.path);
            let mut known = self.circumstances(&unit.path, since);
            known.has_link = self.within.facts(&unit.path.join("link")).is_ok();
            known.is_unfinished = orphan == Orphan::LayerDirectory && self.is_unfinished(&unit.id);
            known.lock_held = self.lock_held(orphan, unit);
            if orphan == Orphan::VarTmp {
                known.doubt = temporary_files::doubt(&self.within, &unit.path);
            }
            known.presence = match orphan {
                Orphan::ContainerDirectory if self.is_known_to_podman(&unit.id) => {
                    UseByProcess::InUse("podman's own database".into())
                }
                Orphan::ContainerDirectory => self.presence(&unit.id, Some(&unit.path), &TOOLS),
                Orphan::GraphrootTmp | Orphan::VarTmp => self.presence("", Some(&unit.path), &TOOLS),
                _ => self.presence("", Some(&unit.path), &[]),
            };
            self.writer.leak(leaks::orphan(orphan, &known), &unit.id, &unit.path, since, vec![*node]);
        }
        self.orphans = orphans;
    }

    /// Returns true for the name of a directory that an interrupted deletion emptied, whose layer still has a record.
    fn is_unfinished(&self, name: &str) -> bool {
        let ids = self.snapshot.layers.iter().map(|layer| layer.id.as_str());
        let lost =
            quarantine_name::lost_layer(name, ids, |layer| Ok::<_, Infallible>(self.has_directory[layer]));
        lost != Ok(None)
    }

    fn is_known_to_podman(&self, id: &str) -> bool {
        self.snapshot.inspection.engine.containers().any(|(known, _)| known == id)
    }

    /// Returns true if a process holds the lock file of a staging area or temporary directory, and `None` if there is no
    /// lock file.
    fn lock_held(&self, orphan: Orphan, unit: &GraphrootUnit) -> Option<bool> {
        let lock = match orphan {
            Orphan::Staging => unit.path.join("staging.lock"),
            Orphan::TempDirectory => unit.path.parent()?.join(format!("lock-{}", unit.id)),
            _ => return None,
        };
        // A lock that cannot be opened or queried counts as held. Querying writes nothing, so locks below a mounted root
        // are queried, too: it may be the root of a running node.
        match LockFile::open(&self.within, &lock) {
            Ok(file) => Some(file?.is_held().unwrap_or(true)),
            Err(_) => Some(true),
        }
    }

    /// Returns true for the nodes of layers that an image or container uses.
    fn used_nodes(&self) -> Vec<bool> {
        let snapshot = self.snapshot;
        let mut used = vec![false; self.writer.inventory.nodes.len()];
        let tops = snapshot.images.iter().flat_map(ImageRecord::tops);
        for top in tops.chain(snapshot.containers.iter().filter_map(|container| container.layer.as_ref())) {
            let mut next = self.find_layer(top);
            while let Some(node) = next.filter(|node| !std::mem::replace(&mut used[node.get()], true)) {
                // The first need of a layer is its parent.
                next = self.writer.inventory[node].needs.first().copied();
            }
        }
        used
    }

    /// Reports recorded layers without a directory that an image or container uses.
    pub(super) fn lost_directories(&mut self) {
        let snapshot = self.snapshot;
        if !self.is_measured() || self.has_directory.iter().all(|listed| *listed) {
            return;
        }
        let used = self.used_nodes();
        for (position, record) in snapshot.layers.iter().enumerate() {
            let Some(node) = self.layers[position].filter(|node| used[node.get()]) else { continue };
            if !record.incomplete && !self.has_directory[position] {
                let evidence = "the layer has a record and is in use, but its directory does not exist";
                let judged = Judgement::of(LeakClass::LayerNoDir, evidence);
                self.broken(judged, &record.id, node, record.created);
            }
        }
    }

    /// Reports layers that no image and no container uses, and layers flagged incomplete.
    pub(super) fn unused_layers(&mut self) {
        let snapshot = self.snapshot;
        let used = self.used_nodes();
        let is_measured = self.is_measured();
        for (position, record) in snapshot.layers.iter().enumerate() {
            let Some(node) = self.layers[position] else { continue };
            if !is_measured {
                // The path of its files is unknown, and layersweep does not edit stores with such a driver.
                if record.incomplete {
                    let path = self.writer.inventory[node].path.clone();
                    let judged = leaks::incomplete(&self.circumstances(&path, record.created))
                        .but(Verdict::Report, "with this driver only they do: run `podman images`");
                    self.writer.leak(judged, &record.id, &path, record.created, vec![node]);
                }
                continue;
            }
            if !record.incomplete && used[node.get()] {
                continue;
            }
            let path = self.writer.inventory[node].path.clone();
            if record.incomplete {
                let mut known = self.circumstances(&path, record.created);
                known.presence = self.presence("", Some(&path), &[]);
                let is_stuck = known.consistency == Consistency::Consistent
                    && (known.mounted
                        || self.within.is_immutable(&path)
                        || self.within.is_immutable(&path.join("diff")));
                let judged =
                    if is_stuck { leaks::stuck(known.mounted, &path) } else { leaks::incomplete(&known) };
                self.writer.leak(judged, &record.id, &path, record.created, vec![node]);
            } else {
                let mut known = self.circumstances(&path, record.created);
                known.presence = self.presence("", Some(&path), &[]);
                let judged = leaks::unreferenced(record.volatile, &known);
                self.writer.leak(judged, &record.id, &path, record.created, vec![node]);
            }
        }
    }

    /// Returns whether a process belongs to the container `id` or has a file below `path` open. `makers` are programs
    /// that may be creating the object.
    pub(super) fn presence(&self, id: &str, path: Option<&Path>, makers: &[&str]) -> UseByProcess {
        if self.snapshot.places.foreign {
            return UseByProcess::Unknown("this is another machine's disk".into());
        }
        let read = || Processes::read_for(&self.layer_directories()).ok();
        let Some(all) = self.processes.get_or_init(read) else {
            return UseByProcess::Unknown("/proc cannot be read".into());
        };
        if let Some(user) = all.of_container(id).or_else(|| path.and_then(|path| all.holding(path))) {
            return UseByProcess::InUse(user.describe());
        }
        let doubt = match path {
            Some(path) => all.doubt(path),
            None => self.layer_directories().iter().find_map(|layers| all.doubt(layers)),
        };
        match doubt {
            None => UseByProcess::Unused { maker: all.running(makers).map(|process| process.describe()) },
            Some(why) => UseByProcess::Unknown(why.into()),
        }
    }

    /// Returns the directories that contain the layers of the store.
    fn layer_directories(&self) -> Vec<PathBuf> {
        let places = &self.snapshot.places;
        places.areas().map(|area| places.layer_directories(area)).collect()
    }

    /// Reports the processes that may use the store and do not answer.
    pub(super) fn silent_processes(&mut self) {
        let Some(Some(processes)) = self.processes.get() else { return };
        let layers = self.layer_directories();
        let silent = processes.hidden_from(&layers).filter(|process| process.is_silent());
        let finding = describe_unknown(silent).map(|why| Finding::incomplete("/proc", why));
        let findings = &mut self.writer.inventory.findings;
        findings.extend(finding.filter(|finding| !findings.contains(finding)));
    }
}
