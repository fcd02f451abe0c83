//! Dead containers, sandboxes and logs: what is to be collected, by which rules, from where.

use std::path::Path;

use super::gc_request::Only;
use crate::config::Config;
use crate::execute::containers::{Collection, Scope};
use crate::execute::cri::CriRemover;
use crate::node::kubelet::Kubelet;
use crate::node::places::KubeletPlaces;
use crate::node::static_pods;
use crate::policy::containers::ContainerPolicy;
use crate::stores::ScanRequest;
use crate::sys::sysroot::Sysroot;

/// Where static pods are looked for even if they protect no images.
const STATIC_PODS: &str = "/etc/kubernetes/manifests";

/// What a run collects besides images.
#[derive(Debug)]
pub struct Containers {
    policy: ContainerPolicy,
    places: KubeletPlaces,
    scope: Scope,
}

impl Containers {
    /// By the configuration, or by what is asked for; `None`: nothing.
    pub fn wanted(config: &Config, only: &[Only]) -> Option<Self> {
        let named = |kind| (!only.is_empty()).then(|| only.contains(&kind));
        let scope = Scope {
            containers: named(Only::Containers).unwrap_or(config.containers.enabled),
            logs: named(Only::Logs).unwrap_or(config.containers.logs),
        };
        (scope.containers || scope.logs).then(|| Self::of(config, scope))
    }

    /// All of it, whether or not it is switched on.
    pub fn of(config: &Config, scope: Scope) -> Self {
        Self { policy: config.containers.policy, places: places(config), scope }
    }

    /// Where the kubelet keeps the logs of pods.
    pub fn pod_logs(&self) -> &Path {
        &self.places.pod_logs
    }

    /// The collection through one runtime.
    pub fn by<'c>(&'c self, remover: &'c CriRemover, request: &'c ScanRequest) -> Collection<'c> {
        let Self { policy, places, scope } = self;
        let (client, runtime_store) = (remover.client(), remover.runtime_store());
        Collection { client, runtime_store, request, places, policy, scope: *scope }
    }
}

/// Where the kubelet keeps what, static pods included.
fn places(config: &Config) -> KubeletPlaces {
    let live = Sysroot::live();
    let settings = Kubelet::read_now(&live);
    let manifests = config.static_pods.clone().unwrap_or_else(|| STATIC_PODS.into());
    let manifests = match static_pods::read(&live, &settings, &manifests) {
        Ok(found) => found.places,
        // Read again by whoever asks whether a pod is gone: then none is.
        Err(error) => vec![manifests, error.path],
    };
    KubeletPlaces { manifests, ..KubeletPlaces::find(&config.kubelet, &settings) }
}
