//! Dead containers, sandboxes and logs: what is to be collected, by which rules, from where.

use std::path::Path;

use super::gc_request::Only;
use crate::config::Config;
use crate::cri::{Client, StorePlace};
use crate::execute::containers::{CriContainers, DiskContainers, Scope};
use crate::execute::cri::CriRemover;
use crate::execute::editors::Editors;
use crate::execute::owner::Owners;
use crate::execute::{PreconditionError, Run};
use crate::model::Plan;
use crate::node::kubelet::Kubelet;
use crate::node::places::KubeletPlaces;
use crate::node::static_pods;
use crate::policy::containers::ContainerPolicy;
use crate::stores::{Scan, ScanRequest};
use crate::sys::sysroot::Sysroot;

/// Where static pods are looked for even if they protect no images.
const STATIC_PODS: &str = "/etc/kubernetes/manifests";

/// Who is asked, and who removes.
#[derive(Debug)]
enum ContainerBackend {
    Cri(Client, StorePlace),
    /// Nobody but the disk; with those who may be at work in the stores, unless that was said not to
    /// matter.
    Disk(Option<Owners>),
}

/// What a run collects besides images.
#[derive(Debug)]
pub struct Containers {
    backend: ContainerBackend,
    policy: ContainerPolicy,
    places: KubeletPlaces,
    scope: Scope,
}

impl Containers {
    /// By the configuration, or by what is asked for; `None`: nothing.
    pub fn wanted(config: &Config, only: &[Only], remover: &CriRemover) -> Option<Self> {
        let scope = scope(config, only);
        (scope.containers || scope.logs).then(|| Self::of(config, scope, remover))
    }

    /// The same without a runtime; logs stay then.
    pub fn wanted_on_disk(config: &Config, only: &[Only], owners: Option<&Owners>) -> Option<Self> {
        let scope = Scope { logs: false, ..scope(config, only) };
        scope.containers.then(|| Self::by(config, scope, ContainerBackend::Disk(owners.cloned())))
    }

    /// All of it, whether or not it is switched on.
    pub fn of(config: &Config, scope: Scope, remover: &CriRemover) -> Self {
        Self::by(config, scope, ContainerBackend::Cri(remover.client().clone(), remover.place().clone()))
    }

    fn by(config: &Config, scope: Scope, backend: ContainerBackend) -> Self {
        let policy = ContainerPolicy { decides: config.decides, ..config.containers.policy };
        Self { backend, policy, places: places(config), scope }
    }

    /// Where the kubelet keeps the logs of pods.
    pub fn pod_logs(&self) -> &Path {
        &self.places.pod_logs
    }

    /// What is to be deleted.
    ///
    /// # Errors
    /// When the runtime, or the disk, does not tell.
    pub fn plan(
        &self,
        editors: Option<&Editors>,
        request: &ScanRequest,
        scan: &Scan,
    ) -> Result<Plan, PreconditionError> {
        match (&self.backend, editors) {
            (ContainerBackend::Cri(client, place), _) => self.by_cri(client, place, request).plan(scan),
            (ContainerBackend::Disk(owners), Some(editors)) => {
                self.on_disk(editors, owners.as_ref(), request).plan(scan)
            }
            (ContainerBackend::Disk(_), None) => Ok(Plan::default()),
        }
    }

    /// Deletes it, and returns the plan as it was carried out.
    ///
    /// # Errors
    /// As [`Self::plan`]: then nothing was deleted.
    pub fn run(
        &self,
        run: &mut Run<'_>,
        editors: &Editors,
        request: &ScanRequest,
        scan: &Scan,
    ) -> Result<Plan, PreconditionError> {
        match &self.backend {
            ContainerBackend::Cri(client, place) => self.by_cri(client, place, request).run(run, scan),
            ContainerBackend::Disk(owners) => self.on_disk(editors, owners.as_ref(), request).run(run, scan),
        }
    }

    fn by_cri<'c>(
        &'c self,
        client: &'c Client,
        place: &'c StorePlace,
        request: &'c ScanRequest,
    ) -> CriContainers<'c> {
        let Self { places, policy, scope, .. } = self;
        CriContainers { client, place, request, places, policy, scope: *scope }
    }

    fn on_disk<'c>(
        &'c self,
        editors: &'c Editors,
        owners: Option<&'c Owners>,
        request: &'c ScanRequest,
    ) -> DiskContainers<'c> {
        DiskContainers { editors, owners, request, places: &self.places, policy: &self.policy }
    }
}

fn scope(config: &Config, only: &[Only]) -> Scope {
    let named = |kind| (!only.is_empty()).then(|| only.contains(&kind));
    Scope {
        containers: named(Only::Containers).unwrap_or(config.containers.enabled),
        logs: named(Only::Logs).unwrap_or(config.containers.logs),
    }
}

/// Where the kubelet keeps what, static pods included.
fn places(config: &Config) -> KubeletPlaces {
    let live = Sysroot::live();
    let settings = Kubelet::read_now(&live);
    let manifests = config.static_pods.clone().unwrap_or_else(|| STATIC_PODS.into());
    let manifests = match static_pods::read(&live, &settings, &manifests) {
        Ok(found) => found.looked,
        // Read again by whoever asks whether a pod is gone: then none is.
        Err(error) => vec![manifests, error.path],
    };
    KubeletPlaces { manifests, ..KubeletPlaces::find(&config.kubelet, &settings) }
}
