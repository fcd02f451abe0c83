//! Protections that the node's own files define: images of static pods and quadlets, images that pod sandboxes are
//! made from, and images that the kubelet is pulling.
//!
//! A quadlet protects only images of the stores that its owner uses. Root's quadlets apply to all stores except
//! those of users; a user's quadlets apply to the stores of that user and to the additional stores that the user
//! can read.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::{Config, ConfigOrigin, ConfigProblem};
use crate::model::kubelet_thresholds::{IMAGEFS, NODEFS};
use crate::model::reference_set::ReferenceSet;
use crate::model::text::reference;
use crate::model::{Finding, Image, Inventory};
use crate::node::kubelet::Kubelet;
use crate::node::quadlets::{self, OF_USERS, SYSTEM, UnitDirectory};
use crate::node::{NamedImage, Unreadable, expected_images, pulls, static_pods, thresholds};
use crate::policy::input::{Protect, Quadlet, StoreSelection};
use crate::services::crio;
use crate::services::error::Error;
use crate::services::request::Request;
use crate::stores::containers_storage::config::{self as graphroot, UserStores};
use crate::stores::{self, ScanRequest};
use crate::sys::root::{Root, Who};
use crate::sys::sysroot::Sysroot;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct FromNode {
    pub static_pods: Vec<NamedImage>,
    pub quadlets: Vec<Quadlet>,
    pub sandboxes: Vec<NamedImage>,
    pub pulling: Vec<NamedImage>,
    pub references: ReferenceSet,
    /// Roots of the graphroots that CRI-O or its configuration names.
    pub crio_stores: Vec<PathBuf>,
    /// Problems of these files.
    pub findings: Vec<Finding>,
}

impl FromNode {
    /// Reads the protections for the stores of `request`.
    ///
    /// Reads some dozen small files and no store, so that each deletion can be proven with fresh facts.
    ///
    /// # Errors
    /// When static pods, root's quadlets, the runtimes' settings or the declared set cannot be read: nothing may be
    /// deleted then.
    pub fn read(request: &ScanRequest, config: &Config) -> Result<Self, Unreadable> {
        let request = &ScanRequest { sysroot: request.sysroot.at_once(), ..request.clone() };
        let sysroot = &request.sysroot;
        let settings = kubelet_settings(request);
        let manifests = config.static_pods.as_deref();
        let pods = manifests
            .map(|manifests| static_pods::read(sysroot, &settings, manifests))
            .transpose()?
            .unwrap_or_default();
        let references = config.references_file.as_deref().map(|file| expected_images::read(sysroot, file));
        let pulls = pulls::read(sysroot, &settings, config.kubelet.root_dir.as_deref());
        let (quadlets, findings) = quadlets(request)?;
        Ok(Self {
            pulling: pulls.images,
            quadlets,
            static_pods: pods.images,
            references: references.transpose()?.unwrap_or_default(),
            sandboxes: stores::sandbox_images(request, &settings)?,
            crio_stores: crio_stores(request),
            findings: [findings, pods.findings, pulls.findings].concat(),
        })
    }

    #[must_use]
    pub(crate) fn without(self, known: &Protect) -> Self {
        fn new(mut named: Vec<NamedImage>, known: &[NamedImage]) -> Vec<NamedImage> {
            named.retain(|named| known.iter().all(|known| known.reference != named.reference));
            named
        }
        let mut quadlets = self.quadlets;
        let known_quadlets: HashSet<_> = known
            .quadlets
            .iter()
            .map(|quadlet| (&quadlet.named.reference, &quadlet.stores, quadlet.any))
            .collect();
        quadlets.retain(|quadlet| {
            !known_quadlets.contains(&(&quadlet.named.reference, &quadlet.stores, quadlet.any))
        });
        Self {
            static_pods: new(self.static_pods, &known.static_pods),
            quadlets,
            sandboxes: new(self.sandboxes, &known.sandboxes),
            pulling: new(self.pulling, &known.pulling),
            references: self.references.without(&known.references),
            crio_stores: self.crio_stores,
            findings: self.findings,
        }
    }

    /// Returns the reasons why an image is protected now. `self` contains only protections that were not known when
    /// the run began ([`Self::without`]).
    pub(crate) fn names(&self, inventory: &Inventory, image: &Image) -> Vec<String> {
        fn source<'a>(list: &'a [NamedImage], image: &Image) -> Option<&'a str> {
            let mut list = list.iter();
            let found = list.find(|named| reference::means(&named.reference, &image.names, &image.digests));
            found.map(|named| named.source.as_str())
        }
        let store = &inventory[image.store];
        let quadlet = self.quadlets.iter().find(|quadlet| quadlet.means(store, image));
        [
            source(&self.static_pods, image).map(|source| format!("the static pod {source}, which is new")),
            quadlet.map(|quadlet| format!("the quadlet {}, which is new", quadlet.named.source)),
            source(&self.sandboxes, image)
                .map(|source| format!("{source}, which now names it for pod sandboxes")),
            source(&self.pulling, image).map(|source| format!("the kubelet is pulling it: {source}")),
            self.references.place_of(image).map(|place| format!("{place}, which now names it")),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Sets the protections of the node's files in `protect`, replacing those of an earlier reading.
    pub fn apply(&self, protect: &mut Protect) {
        protect.static_pods.clone_from(&self.static_pods);
        protect.quadlets.clone_from(&self.quadlets);
        protect.sandboxes.clone_from(&self.sandboxes);
        protect.pulling.clone_from(&self.pulling);
        protect.references.clone_from(&self.references);
        protect.crio_stores.clone_from(&self.crio_stores);
    }
}

/// Returns problems with which a valid configuration protects less than it seems to, or stops `gc`: rules that never
/// decide, and a declared set that cannot be read.
///
/// # Errors
/// When the request itself cannot be used.
pub fn warnings(request: &Request, config: &Config) -> Result<Vec<ConfigProblem>, Error> {
    const KEY: &str = "protect.references_file";
    let sysroot = request.stores()?.sysroot;
    let references = config.references_file.as_deref().map(|file| expected_images::read(&sysroot, file));
    let origin = config.origins.get(KEY).and_then(|origins| origins.first());
    let unreadable = references.and_then(Result::err).map(|unreadable| ConfigProblem {
        origin: origin.cloned().unwrap_or(ConfigOrigin::Default),
        field: KEY.to_owned(),
        message: unreadable.to_string(),
        remedy: String::new(),
    });
    let late = late_threshold(&Kubelet::read_now(&sysroot), config);
    Ok(config.shadowed_rules().into_iter().chain(unreadable).chain(late).collect())
}

/// Returns the problem of an `images.high_percent` that a threshold of this node's kubelet comes before.
fn late_threshold(kubelet: &Kubelet, config: &Config) -> Option<ConfigProblem> {
    const KEY: &str = "images.high_percent";
    let targets = &config.images.targets;
    let high = targets.used.filter(|_| kubelet.is_here() && targets.free.is_none())?.high;
    let kubelet = thresholds::read(kubelet).0;
    let evictions = [IMAGEFS, NODEFS].into_iter().filter_map(|signal| {
        let amount = kubelet.hard.value.get(signal)?;
        Some((amount.used_percent(0)?, format!("pods are evicted ({signal}<{amount})")))
    });
    #[allow(clippy::cast_precision_loss)] // a percentage
    let image_high = kubelet.image_high.value as f64;
    let collects = (image_high, "the kubelet's image collection starts".to_owned());
    let first = std::iter::once(collects).chain(evictions).min_by(|(a, _), (b, _)| a.total_cmp(b));
    let (percent, words) = first.filter(|(percent, _)| *percent <= f64::from(high))?;
    let origin = config.origins.get(KEY).and_then(|origins| origins.first());
    Some(ConfigProblem {
        origin: origin.cloned().unwrap_or(ConfigOrigin::Default),
        field: KEY.to_owned(),
        message: format!("gc starts at {high}% used, but {words} at {percent}% used"),
        remedy: "set it lower; `layersweep doctor` compares all thresholds".to_owned(),
    })
}

/// Returns the kubelet's settings on disk, with the data directories that contain a store of `request`.
pub(crate) fn kubelet_settings(request: &ScanRequest) -> Kubelet {
    let mut settings = Kubelet::read(&request.sysroot);
    settings.add_data_dirs(stores::data_dirs(request));
    settings
}

/// Returns the roots of the graphroots and imagestores that CRI-O or its configuration names. A node with podman alone
/// may have an empty directory of CRI-O's configuration.
pub(crate) fn crio_stores(request: &ScanRequest) -> Vec<PathBuf> {
    let sysroot = &request.sysroot;
    let configured = graphroot::crio_roots(sysroot, &request.environment, crio::has_run(sysroot));
    // A store of a kind that only runtimes have needs no report.
    let reported = request
        .running
        .stores
        .iter()
        .filter(|store| !store.kind.facts().is_of_runtime)
        .flat_map(|store| store.image_root.iter().chain([&store.root]));
    let mut roots: Vec<_> =
        configured.iter().chain(reported).filter_map(|root| sysroot.resolve(root).ok()).collect();
    // A store can be named by another path.
    let identity = |root: &Path| Root::open(root).ok().map(|root| root.identity());
    let identities: HashSet<_> = roots.iter().filter_map(|root| identity(root)).collect();
    let mut named = named_graphroots(request).unwrap_or_default();
    named.retain(|root| identity(root).is_some_and(|identity| identities.contains(&identity)));
    roots.extend(named);
    roots
}

/// Reads the quadlets of root and of all users.
///
/// # Errors
/// When root's quadlets cannot be read.
fn quadlets(request: &ScanRequest) -> Result<(Vec<Quadlet>, Vec<Finding>), Unreadable> {
    let sysroot = &request.sysroot;
    let environment = &request.environment;
    let users = graphroot::users_stores(sysroot, environment);
    let graphroots: Vec<_> = users.iter().map(|user| owned_graphroots(request, user)).collect();
    let mut directories = Vec::new();
    let mut add = |path: PathBuf, foreign: bool, stores: &Arc<StoreSelection>| {
        directories.push((UnitDirectory { path, foreign }, Arc::clone(stores)));
    };
    let of_root = Arc::new(StoreSelection::Except(graphroots.concat()));
    // Another user may be unable to read root's quadlets. That is not an error: the user cannot delete from root's
    // stores either.
    let is_root = environment.uid == 0;
    SYSTEM.iter().for_each(|path| add(path.into(), !is_root, &of_root));
    let of_users = Arc::new(StoreSelection::Only(graphroots.concat()));
    for (user, mut stores) in users.iter().zip(graphroots) {
        stores.extend(readable_additional_stores(sysroot, user));
        let scope = Arc::new(StoreSelection::Only(stores));
        let foreign = user.uid != environment.uid;
        add(user.config.join("containers/systemd"), foreign, &scope);
        add(format!("/run/user/{}/containers/systemd", user.uid).into(), foreign, &scope);
        OF_USERS.iter().for_each(|path| add(Path::new(path).join(user.uid.to_string()), false, &scope));
    }
    if !users.is_empty() {
        OF_USERS.iter().for_each(|path| add(path.into(), false, &of_users));
    }
    // A run with named stores deletes from them alone: quadlets of users who cannot use these stores are skipped.
    let named_roots = named_graphroots(request);
    directories.retain(|(_, stores)| match (&named_roots, stores.as_ref()) {
        (Some(roots), StoreSelection::Only(_)) => roots.iter().any(|root| stores.has(root)),
        _ => true,
    });
    let (mut found, mut findings) = (Vec::new(), Vec::new());
    for (directory, stores) in directories {
        let read = quadlets::read(sysroot, &directory)?;
        findings.extend(read.findings);
        if read.names_more {
            let named = NamedImage { reference: String::new(), source: directory.path.display().to_string() };
            found.push(Quadlet { named, stores: Arc::clone(&stores), any: true });
        }
        let named = read.images.into_iter();
        found.extend(named.map(|named| Quadlet { named, stores: Arc::clone(&stores), any: false }));
    }
    Ok((found, findings))
}

/// Returns the graphroots of a user that exist and that the user owns. The system's storage.conf may name root's
/// graphroot for users too: that is not a store of the user.
fn owned_graphroots(request: &ScanRequest, user: &UserStores) -> Vec<PathBuf> {
    let graphroots = user.stores.iter().filter_map(|store| request.sysroot.resolve(&store.graphroot).ok());
    graphroots
        .filter(|root| {
            request.environment.uid != 0 || Root::open(root).is_ok_and(|root| root.owner() == user.uid)
        })
        .collect()
}

/// Returns the additional stores and imagestores of a user that the user can read. The quadlets of a user must not
/// keep images in stores that the user cannot read.
fn readable_additional_stores(sysroot: &Sysroot, user: &UserStores) -> Vec<PathBuf> {
    let additional =
        user.stores.iter().flat_map(|store| store.additional_image_stores.iter().chain(&store.imagestore));
    additional
        .filter_map(|path| sysroot.resolve(path).ok())
        .filter(|root| {
            sysroot.is_foreign() || Root::open(root).is_ok_and(|root| root.way().admits(&Who::user(user.uid)))
        })
        .collect()
}

/// Returns the graphroots that the request names; `None` if it names no store or one of them does not exist.
fn named_graphroots(request: &ScanRequest) -> Option<Vec<PathBuf>> {
    let sysroot = &request.sysroot;
    if !request.names_stores() {
        return None;
    }
    let graphroots = request.graphroots.iter().map(|path| {
        if sysroot.is_foreign() {
            sysroot.resolve(path).ok()
        } else {
            sysroot.resolve(&std::path::absolute(path).ok()?).ok()
        }
    });
    graphroots.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::kubelet::SettingsFile;
    use crate::policy::scenario::Scenario;
    use crate::policy::space::Thresholds;

    #[test]
    fn threshold_behind_that_of_kubelet_is_named() {
        let eviction = "imageGCHighThresholdPercent: 100\nevictionHard: {imagefs.available: 10%}\n";
        for (high, settings, expected) in [
            (
                95,
                Some(""),
                Some("gc starts at 95% used, but the kubelet's image collection starts at 85% used"),
            ),
            (95, Some(eviction), Some("but pods are evicted (imagefs.available<10%) at 90% used")),
            (75, Some(""), None),
            (95, None, None),
        ] {
            let configs =
                settings.map(|text| SettingsFile { path: "/config.yaml".into(), text: text.into() });
            let kubelet = Kubelet { configs: configs.into_iter().collect(), ..Kubelet::default() };
            let mut config = Config::defaults(&[]).unwrap();
            config.images.targets.used = Some(Thresholds { high, low: 50 });
            let message = late_threshold(&kubelet, &config).map(|problem| problem.message);
            let is_expected = match (&message, expected) {
                (Some(message), Some(expected)) => message.ends_with(expected),
                (message, expected) => message.is_none() && expected.is_none(),
            };
            assert!(is_expected, "{high} {settings:?}: {message:?}");
        }
    }

    #[test]
    fn image_that_is_named_during_the_run_is_protected() {
        let inventory = Scenario::article().inventory();
        let image = &inventory.images[0];
        let [sandboxes, pulling] = ["crio.conf", "the pull record"]
            .map(|source| vec![NamedImage { reference: image.names[0].clone(), source: source.into() }]);
        let mut known = Protect::default();
        let all = FromNode { sandboxes, pulling, ..FromNode::default() };
        assert_eq!(
            all.clone().without(&known).names(&inventory, image),
            ["crio.conf, which now names it for pod sandboxes", "the kubelet is pulling it: the pull record"]
        );
        assert!(all.clone().without(&known).names(&inventory, &inventory.images[1]).is_empty());
        all.apply(&mut known);
        assert!(all.without(&known).names(&inventory, image).is_empty(), "known from the beginning");
    }
}
