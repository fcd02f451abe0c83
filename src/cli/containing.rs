//! Dead containers and logs in `gc` and `explain`: what is to be collected, by which rules, from
//! where.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use super::args::Only;
use crate::config::{Config, Decides};
use crate::cri::Client;
use crate::execute::containers::{Collector, Direct, Plan, Ran, Scope, Witness, own_store};
use crate::execute::editors::Editors;
use crate::execute::hands::Blind;
use crate::execute::owner::Owners;
use crate::execute::runtime_match::RuntimeStores;
use crate::node::kubelet::Kubelet;
use crate::node::places::Places;
use crate::node::static_pods;
use crate::policy::containers;
use crate::policy::containers::Policy;
use crate::stores::{Request, Survey};
use crate::sys::processes::Processes;
use crate::sys::sysroot::Sysroot;

/// Where static pods are looked for even if they protect no images.
const STATIC_PODS: &str = "/etc/kubernetes/manifests";

/// Who is asked, and who removes.
enum Way<'a> {
    Cri(Client),
    /// Nobody but the disk; with those who may be at work in the stores, unless that was said not to
    /// matter.
    Disk(&'a Editors, Option<Owners>),
}

/// What a run collects besides images.
pub(super) struct Dead<'a> {
    way: Way<'a>,
    policy: Policy,
    places: Places,
    scope: Scope,
}

impl<'a> Dead<'a> {
    /// By the configuration, or by what `--only` asks for; `None`: nothing.
    pub(super) fn wanted(config: &Config, only: Option<&[Only]>, client: &Client) -> Option<Self> {
        let scope = scope(config, only);
        (scope.containers || scope.logs).then(|| Self::of(config, scope, client))
    }

    /// The same without a runtime; logs stay then.
    pub(super) fn wanted_on_disk(
        config: &Config,
        only: Option<&[Only]>,
        editors: &'a Editors,
        owners: Option<&Owners>,
    ) -> Option<Self> {
        let scope = Scope { logs: false, ..scope(config, only) };
        scope.containers.then(|| Self::by(config, scope, Way::Disk(editors, owners.cloned())))
    }

    /// All of it, whether or not it is switched on.
    pub(super) fn of(config: &Config, scope: Scope, client: &Client) -> Self {
        Self::by(config, scope, Way::Cri(client.clone()))
    }

    fn by(config: &Config, scope: Scope, way: Way<'a>) -> Self {
        let decides = match config.decides {
            Decides::Exact => containers::Decides::Exact,
            Decides::Kubelet => containers::Decides::Kubelet,
        };
        let policy = Policy { decides, ..config.containers.policy };
        Self { way, policy, places: places(config), scope }
    }

    /// What would go.
    pub(super) fn plan(&self, request: &Request, survey: &Survey) -> Result<Plan, Blind> {
        let never = AtomicBool::new(false);
        match &self.way {
            Way::Cri(client) => self.collector(client, request, &never)?.dry(survey),
            Way::Disk(editors, owners) => self.direct(editors, owners.as_ref(), request, &never).dry(survey),
        }
    }

    /// Collects.
    pub(super) fn run(
        &self,
        request: &Request,
        survey: &Survey,
        witness: &mut dyn Witness,
        stop: &AtomicBool,
    ) -> Result<Ran, Blind> {
        match &self.way {
            Way::Cri(client) => self.collector(client, request, stop)?.run(survey, witness),
            Way::Disk(editors, owners) => {
                self.direct(editors, owners.as_ref(), request, stop).run(survey, witness)
            }
        }
    }

    /// The root of the runtime's store, for documents.
    pub(super) fn store(&self, survey: &Survey) -> String {
        let inventory = &survey.inventory;
        let own = match &self.way {
            Way::Cri(client) => {
                let place = client.store_place().ok().flatten();
                place.and_then(|place| RuntimeStores::find(&place, inventory)).map(|stores| stores.own)
            }
            Way::Disk(editors, _) => own_store(editors, inventory),
        };
        let root = own.map(|own| inventory.stores[own.get()].root.clone());
        root.unwrap_or_default().to_string_lossy().into_owned()
    }

    fn collector<'c>(
        &'c self,
        client: &'c Client,
        request: &'c Request,
        stop: &'c AtomicBool,
    ) -> Result<Collector<'c>, Blind> {
        Collector::new(client, request, &self.places, &self.policy, self.scope, stop)
    }

    fn direct<'c>(
        &'c self,
        editors: &'c Editors,
        owners: Option<&'c Owners>,
        request: &'c Request,
        stop: &'c AtomicBool,
    ) -> Direct<'c> {
        Direct { editors, owners, request, places: &self.places, policy: &self.policy, stop }
    }
}

fn scope(config: &Config, only: Option<&[Only]>) -> Scope {
    let named = |kind| only.map(|only| only.contains(&kind));
    Scope {
        containers: named(Only::Containers).unwrap_or(config.containers.enabled),
        logs: named(Only::Logs).unwrap_or(config.containers.logs),
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
    match Processes::read_with_kubelet() {
        Ok(processes) => places.with_running(&processes),
        Err(error) => {
            tracing::warn!("looking for a kubelet that runs: {error}");
            places
        }
    }
}
