//! Dead containers and logs in `gc` and `explain`: what is to be collected, by which rules, from
//! where.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use super::args::Only;
use crate::config::{Config, Decides};
use crate::cri::Client;
use crate::gc::containers::run::{Collector, Plan, Ran, Scope, Witness};
use crate::gc::containers::{self, Policy};
use crate::gc::run::hands::Blind;
use crate::gc::runtime_match::RuntimeStores;
use crate::node::kubelet::Kubelet;
use crate::node::places::Places;
use crate::node::static_pods;
use crate::survey::{Request, Survey};
use crate::sys::processes::Processes;
use crate::sys::sysroot::Sysroot;

/// Where static pods are looked for even if they protect no images.
const STATIC_PODS: &str = "/etc/kubernetes/manifests";

/// What a run collects besides images.
pub(super) struct Dead {
    client: Client,
    policy: Policy,
    places: Places,
    scope: Scope,
}

impl Dead {
    /// By the configuration, or by what `--only` asks for; `None`: nothing.
    pub(super) fn wanted(config: &Config, only: Option<&[Only]>, client: &Client) -> Option<Self> {
        let named = |kind| only.map(|only| only.contains(&kind));
        let scope = Scope {
            containers: named(Only::Containers).unwrap_or(config.containers.enabled),
            logs: named(Only::Logs).unwrap_or(config.containers.logs),
        };
        (scope.containers || scope.logs).then(|| Self::of(config, scope, client))
    }

    /// All of it, whether or not it is switched on.
    pub(super) fn of(config: &Config, scope: Scope, client: &Client) -> Self {
        let decides = match config.decides {
            Decides::Exact => containers::Decides::Exact,
            Decides::Kubelet => containers::Decides::Kubelet,
        };
        let policy = Policy { decides, ..config.containers.policy };
        Self { client: client.clone(), policy, places: places(config), scope }
    }

    /// What would go.
    pub(super) fn plan(&self, request: &Request, survey: &Survey) -> Result<Plan, Blind> {
        let never = AtomicBool::new(false);
        self.collector(request, &never)?.dry(survey)
    }

    /// Collects.
    pub(super) fn run(
        &self,
        request: &Request,
        survey: &Survey,
        witness: &mut dyn Witness,
        stop: &AtomicBool,
    ) -> Result<Ran, Blind> {
        self.collector(request, stop)?.run(survey, witness)
    }

    /// The root of the runtime's store, for documents.
    pub(super) fn store(&self, survey: &Survey) -> String {
        let place = self.client.store_place().ok().flatten();
        let stores = place.and_then(|place| RuntimeStores::find(&place, &survey.inventory));
        let root = stores.map(|stores| survey.inventory.stores[stores.own.get()].root.clone());
        root.unwrap_or_default().to_string_lossy().into_owned()
    }

    fn collector<'a>(&'a self, request: &'a Request, stop: &'a AtomicBool) -> Result<Collector<'a>, Blind> {
        Collector::new(&self.client, request, &self.places, &self.policy, self.scope, stop)
    }
}

/// Where the kubelet keeps what: by the configuration, else where it says, or usually does.
fn places(config: &Config) -> Places {
    let mut places = Places::default();
    let kubelet = &config.kubelet;
    let set = |place: &mut PathBuf, named: &Option<PathBuf>| {
        if let Some(named) = named {
            place.clone_from(named);
        }
    };
    set(&mut places.pod_logs, &kubelet.pod_logs_dir);
    set(&mut places.container_logs, &kubelet.container_logs_dir);
    let settings = Kubelet::read(&Sysroot::live());
    if kubelet.pod_logs_dir.is_none()
        && let [only] = settings.setting("podLogsDir").0.as_slice()
        && only.value.starts_with('/')
    {
        places.pod_logs = PathBuf::from(&only.value);
    }
    let manifests = config.static_pods.clone().unwrap_or_else(|| STATIC_PODS.into());
    places.manifests = match static_pods::read(&Sysroot::live(), &manifests) {
        Ok(found) => found.looked,
        // Read again by whoever asks whether a pod is gone: then none is.
        Err(error) => vec![manifests, error.path],
    };
    if let Some(root) = &kubelet.root_dir {
        return Places { roots: vec![root.clone()], said_by_kubelet: true, ..places };
    }
    let said = settings.flag("--root-dir").into_iter().map(|setting| PathBuf::from(setting.value));
    for root in said.filter(|root| root.is_absolute()) {
        if !places.roots.contains(&root) {
            places.roots.push(root);
        }
    }
    match Processes::read() {
        Ok(processes) => places.with_running(&processes),
        Err(error) => {
            tracing::warn!("looking for a kubelet that runs: {error}");
            places
        }
    }
}
