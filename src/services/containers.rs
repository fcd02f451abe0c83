//! Settings for collecting exited containers, sandboxes and logs: kinds, policy and the kubelet's directories.

use std::path::Path;

use crate::config::Config;
use crate::execute::containers::{Collection, Scope};
use crate::execute::cri::CriRemover;
use crate::node::kubelet::Kubelet;
use crate::node::places::KubeletPlaces;
use crate::node::static_pods;
use crate::policy::containers::ContainerPolicy;
use crate::services::gc_request::Only;
use crate::stores::ScanRequest;
use crate::sys::sysroot::Sysroot;

/// Default directory of static pods, which is read even if static pods protect no images.
const STATIC_PODS: &str = "/etc/kubernetes/manifests";

#[derive(Debug)]
pub struct Containers {
    policy: ContainerPolicy,
    places: KubeletPlaces,
    scope: Scope,
}

impl Containers {
    /// The kinds in `only`; if that is empty, the configured kinds. `None`: nothing is collected.
    pub fn wanted(config: &Config, only: &[Only]) -> Option<Self> {
        let scope = match only {
            [] => Scope { containers: config.containers.enabled, logs: config.containers.logs },
            only => Scope { containers: only.contains(&Only::Containers), logs: only.contains(&Only::Logs) },
        };
        (scope.containers || scope.logs).then(|| Self::of(config, scope))
    }

    /// The kinds in `scope`, even if the configuration does not enable them.
    pub fn of(config: &Config, scope: Scope) -> Self {
        Self { policy: config.containers.policy, places: places(config), scope }
    }

    pub fn pod_logs(&self) -> &Path {
        &self.places.pod_logs
    }

    pub fn by<'c>(&'c self, remover: &'c CriRemover, request: &'c ScanRequest) -> Collection<'c> {
        let Self { policy, places, scope } = self;
        let (client, runtime_store) = (remover.client(), remover.runtime_store());
        Collection { client, runtime_store, request, places, policy, scope: *scope }
    }
}

fn places(config: &Config) -> KubeletPlaces {
    let live = Sysroot::live();
    let settings = Kubelet::read_now(&live);
    let manifests = config.static_pods.clone().unwrap_or_else(|| STATIC_PODS.into());
    let manifests = match static_pods::read(&live, &settings, &manifests) {
        Ok(found) => found.places,
        // The path is kept although it cannot be read: the check for deleted pods reads it again, fails, and counts no
        // pod as deleted.
        Err(error) => vec![manifests, error.path],
    };
    KubeletPlaces { manifests, ..KubeletPlaces::find(&config.kubelet, &settings) }
}
