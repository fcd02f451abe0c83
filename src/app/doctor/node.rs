//! Facts about the node that several checks need. Each is read once: those that no check can do without at the
//! beginning, the others when a check asks for them.

use std::cell::OnceCell;
use std::io;
use std::path::{Path, PathBuf};

use super::check::Check;
use crate::config::{Config, ConfigProblem};
use crate::disk::Progress;
use crate::history::runs::{self, Query, RunRow};
use crate::history::{Access, StateDirectory};
use crate::model::StoreIx;
use crate::model::kubelet_thresholds::KubeletThresholds;
use crate::node::Unreadable;
use crate::node::kubelet::Kubelet;
use crate::node::static_pods::{self, StaticPods};
use crate::node::timers::{self, GC, SCAN, Timer};
use crate::policy::Policy;
use crate::policy::containers::ContainerPolicy;
use crate::policy::thresholds::Disk;
use crate::services::database::{self, Database};
use crate::services::error::Error;
use crate::services::protect;
use crate::services::reach::Reach;
use crate::services::request::Request;
use crate::services::store_editing;
use crate::stores::{self, Measure, Scan, ScanRequest};
use crate::sys::processes::Processes;

pub(super) struct Node<'a> {
    pub(super) request: &'a Request,
    pub(super) config: &'a Config,
    pub(super) problems: &'a [ConfigProblem],
    /// Request for reading the stores without measuring them.
    pub(super) stores: ScanRequest,
    /// `None` on another node's disk.
    pub(super) processes: Option<io::Result<Processes>>,
    pub(super) scan: Result<Scan, stores::ScanError>,
    pub(super) kubelet: Kubelet,
    pub(super) runtime: RuntimeChecks,
    /// `None` without a kubelet.
    pub(super) settings: Option<CheckedSettings<'a>>,
    pub(super) directory: StateDirectory,
    pub(super) database: Result<Database, Error>,
    runs: OnceCell<Option<Result<Vec<RunRow>, Error>>>,
    scan_timer: OnceCell<TimerRead>,
    gc_timer: OnceCell<TimerRead>,
    static_pods: OnceCell<Option<Result<StaticPods, Unreadable>>>,
    reach: OnceCell<Option<Reach>>,
}

type TimerRead = Result<Timer, (PathBuf, io::Error)>;

/// Maximum number of runs that are read.
const RUNS: usize = 200;

#[derive(Default)]
pub(super) struct RuntimeChecks {
    pub(super) sockets: Vec<Check>,
    pub(super) chosen: Vec<Check>,
    pub(super) store: Option<StoreIx>,
}

/// Settings of the kubelet and of layersweep, and the disks that they apply to.
pub(super) struct CheckedSettings<'a> {
    pub(super) kubelet: KubeletThresholds,
    pub(super) images: &'a Policy,
    /// `None` if layersweep's collection of containers is off.
    pub(super) containers: Option<&'a ContainerPolicy>,
    pub(super) disks: Vec<Disk>,
}

impl<'a> Node<'a> {
    /// Reads the node, without its runtime.
    ///
    /// # Errors
    /// When the request itself cannot be used.
    pub(super) fn read(
        request: &'a Request,
        config: &'a Config,
        problems: &'a [ConfigProblem],
    ) -> Result<Self, Error> {
        let stores = ScanRequest { measure: Measure::RecordsAndMounts, origins: true, ..request.stores()? };
        let processes = (!stores.sysroot.is_foreign()).then(Processes::read_with_kubelet);
        let kubelet = match &processes {
            Some(Ok(processes)) => Kubelet::read_running(&stores.sysroot, processes),
            _ => Kubelet::read(&stores.sysroot),
        };
        Ok(Self {
            request,
            config,
            problems,
            processes,
            scan: stores::run(&stores, &Progress::default()),
            kubelet,
            runtime: RuntimeChecks::default(),
            settings: None,
            directory: database::state_directory(request),
            database: Database::open(request, Access::Read),
            runs: OnceCell::new(),
            scan_timer: OnceCell::new(),
            gc_timer: OnceCell::new(),
            static_pods: OnceCell::new(),
            reach: OnceCell::new(),
            stores,
        })
    }

    pub(super) fn processes(&self) -> Option<&Processes> {
        self.processes.as_ref()?.as_ref().ok()
    }

    pub(super) fn scan(&self) -> Option<&Scan> {
        self.scan.as_ref().ok()
    }

    /// Returns true for another machine's disk, where nothing runs.
    pub(super) fn is_foreign(&self) -> bool {
        self.stores.sysroot.is_foreign()
    }

    /// Returns a path as the node itself names it.
    pub(super) fn shown(&self, path: &Path) -> String {
        self.stores.sysroot.shown(path)
    }

    /// Runs a check of the settings; returns no result without a kubelet.
    pub(super) fn settings(&self, check: fn(&CheckedSettings<'_>) -> Vec<Check>) -> Vec<Check> {
        self.settings.as_ref().map(check).unwrap_or_default()
    }

    /// Returns the last runs, the newest first; `None` without records.
    pub(super) fn runs(&self) -> Option<Result<&[RunRow], &Error>> {
        let runs = self.runs.get_or_init(|| {
            let open = self.database.as_ref().ok()?;
            let query = Query { limit: RUNS, quiet: true, ..Query::default() };
            match open.read(|connection| runs::list(connection, &query)) {
                Ok((runs, _)) if !open.found && runs.is_empty() => None,
                read => Some(read.map(|(runs, _)| runs)),
            }
        });
        Some(runs.as_ref()?.as_deref())
    }

    pub(super) fn scan_timer(&self) -> &TimerRead {
        self.scan_timer.get_or_init(|| timers::read(&self.stores.sysroot, SCAN))
    }

    pub(super) fn gc_timer(&self) -> &TimerRead {
        self.gc_timer.get_or_init(|| timers::read(&self.stores.sysroot, GC))
    }

    /// Returns what a run of `gc` can delete now; `None` if the stores cannot be read, or belong to another node.
    pub(super) fn reach(&self) -> Option<&Reach> {
        let asked = self.reach.get_or_init(|| {
            let scan = self.scan().filter(|_| !self.is_foreign())?;
            let editors = store_editing::editors(self.request, scan);
            Some(Reach::ask(self.request, self.config, scan, &editors))
        });
        asked.as_ref()
    }

    /// Returns the static pods; `None` if their images are not protected.
    pub(super) fn static_pods(&self) -> Option<&Result<StaticPods, Unreadable>> {
        let read = self.static_pods.get_or_init(|| {
            let place = self.config.static_pods.as_deref()?;
            Some(static_pods::read(&self.stores.sysroot, &protect::kubelet_settings(&self.stores), place))
        });
        read.as_ref()
    }
}
