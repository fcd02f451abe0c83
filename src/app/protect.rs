//! What the node's own files protect: images of static pods and of quadlets, those that pod sandboxes
//! are made from, and those that the kubelet is pulling.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::model::reference;
use crate::model::{Finding, Image, Inventory, LabelsOf};
use crate::node::kubelet::Kubelet;
use crate::node::quadlets::{self, OF_USERS, SYSTEM, UnitDirectory};
use crate::node::{NamedImage, Unreadable, pulls, static_pods};
use crate::policy::input::{Protect, Quadlet, StoreSelection};
use crate::stores::containers_storage::config::{self as graphroot, UserStores};
use crate::stores::{self, ScanRequest};
use crate::sys::root::{Root, Who};

/// What was read from the files of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FromNode {
    /// Images that static pods name.
    pub static_pods: Vec<NamedImage>,
    /// Images that quadlets name.
    pub quadlets: Vec<Quadlet>,
    /// Images that pod sandboxes are made from.
    pub sandboxes: Vec<NamedImage>,
    /// Images that the kubelet is pulling.
    pub pulling: Vec<NamedImage>,
    /// What was not understood.
    pub findings: Vec<Finding>,
}

impl FromNode {
    /// Reads what protects images of the stores of `request`. `manifests` is where static pods are
    /// defined, besides what the kubelet's own settings say; `None`: static pods protect nothing.
    /// `kubelet` is the kubelet's own directory, where it is configured for us.
    ///
    /// Reads some dozen small files, and no store: it can be asked again whenever a deletion is to be
    /// proven.
    ///
    /// # Errors
    /// When it cannot be known what static pods, root's quadlets or the runtimes' own settings name: then nothing may be
    /// deleted.
    pub fn read(
        request: &ScanRequest,
        manifests: Option<&Path>,
        kubelet: Option<&Path>,
    ) -> Result<Self, Unreadable> {
        let settings = kubelet_settings(request);
        let pods = manifests.map(|manifests| static_pods::read(&request.sysroot, &settings, manifests));
        let pods = pods.transpose()?.unwrap_or_default();
        let pulls = pulls::read(&request.sysroot, &settings, kubelet);
        let (quadlets, findings) = quadlets(request)?;
        Ok(Self {
            pulling: pulls.images,
            quadlets,
            static_pods: pods.images,
            sandboxes: stores::sandbox_images(request, &settings)?,
            findings: [findings, pods.findings, pulls.findings].concat(),
        })
    }

    /// Leaves out what `known` has already.
    #[must_use]
    pub(super) fn without(self, known: &Protect) -> Self {
        let new = |mut named: Vec<NamedImage>, known: &[NamedImage]| {
            named.retain(|one| known.iter().all(|known| known.reference != one.reference));
            named
        };
        let mut quadlets = self.quadlets;
        let known_quadlets: HashSet<_> =
            known.quadlets.iter().map(|one| (&one.named.reference, &one.stores, one.any)).collect();
        quadlets.retain(|one| !known_quadlets.contains(&(&one.named.reference, &one.stores, one.any)));
        Self {
            static_pods: new(self.static_pods, &known.static_pods),
            quadlets,
            sandboxes: new(self.sandboxes, &known.sandboxes),
            pulling: new(self.pulling, &known.pulling),
            findings: self.findings,
        }
    }

    /// Why it protects an image, as far as that was not known when the run began.
    pub(super) fn names(&self, inventory: &Inventory, image: &Image) -> Vec<String> {
        let by = |list: &[NamedImage], say: fn(&str) -> String| {
            let mut list = list.iter();
            let found = list.find(|one| reference::means(&one.reference, &image.names, &image.digests));
            found.map(|one| say(&one.source))
        };
        let store = &inventory[image.store];
        let quadlet = self.quadlets.iter().find(|one| one.means(store, image));
        [
            by(&self.static_pods, |source| format!("the static pod {source}, which is new")),
            quadlet.map(|one| format!("the quadlet {}, which is new", one.named.source)),
            by(&self.sandboxes, |source| format!("{source}, which now names it for pod sandboxes")),
            by(&self.pulling, |source| format!("the kubelet is pulling it: {source}")),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Adds it to what configuration protects, in the place of what an earlier reading added.
    pub fn apply(&self, protect: &mut Protect) {
        protect.static_pods.clone_from(&self.static_pods);
        protect.quadlets.clone_from(&self.quadlets);
        protect.sandboxes.clone_from(&self.sandboxes);
        protect.pulling.clone_from(&self.pulling);
    }
}

/// The kubelet's settings on disk, with the data directories that hold a store of `request`.
pub(super) fn kubelet_settings(request: &ScanRequest) -> Kubelet {
    let mut settings = Kubelet::read(&request.sysroot);
    settings.add_data_dirs(stores::data_dirs(request));
    settings
}

/// What quadlets name by now: root's for the stores that are no user's, a user's for that user's
/// stores and those that they borrow from.
///
/// # Errors
/// When it cannot be known what root's name.
fn quadlets(request: &ScanRequest) -> Result<(Vec<Quadlet>, Vec<Finding>), Unreadable> {
    let sysroot = &request.sysroot;
    let environment = &request.environment;
    let users = graphroot::users_stores(sysroot, environment);
    let roots = |paths: &mut dyn Iterator<Item = &PathBuf>| -> Vec<PathBuf> {
        paths.filter_map(|path| sysroot.resolve(path).ok()).collect()
    };
    // The system's storage.conf may name root's graphroot for users as well. It is not a user's.
    let is_owned =
        |root: &PathBuf, uid| environment.uid != 0 || Root::open(root).is_ok_and(|root| root.owner() == uid);
    let own = |user: &UserStores| {
        let mut own = roots(&mut user.stores.iter().map(|store| &store.graphroot));
        own.retain(|root| is_owned(root, user.uid));
        own
    };
    let all: Vec<PathBuf> = users.iter().flat_map(own).collect();
    let mut places = Vec::new();
    let mut add = |path: PathBuf, foreign: bool, stores: &Arc<StoreSelection>| {
        places.push((UnitDirectory { path, foreign }, Arc::clone(stores)));
    };
    let of_root = Arc::new(StoreSelection::Except(all.clone()));
    // What a user may not read of root's stops nobody: root's stores are not that user's to delete.
    let is_root = environment.uid == 0;
    SYSTEM.iter().for_each(|path| add(path.into(), !is_root, &of_root));
    let of_users = Arc::new(StoreSelection::Only(all));
    for user in &users {
        // What it borrows from counts as far as the user can read it: nobody keeps others' images.
        let can_read = |root: &PathBuf| {
            let admits = |root: Root| root.way().admits(&Who::user(user.uid));
            sysroot.is_foreign() || Root::open(root).is_ok_and(admits)
        };
        let stores = &user.stores;
        let mut additional = roots(
            &mut stores
                .iter()
                .flat_map(|store| store.additional_image_stores.iter().chain(&store.imagestore)),
        );
        additional.retain(can_read);
        let scope = Arc::new(StoreSelection::Only([own(user), additional].concat()));
        let foreign = user.uid != environment.uid;
        add(user.config.join("containers/systemd"), foreign, &scope);
        add(format!("/run/user/{}/containers/systemd", user.uid).into(), foreign, &scope);
        OF_USERS.iter().for_each(|path| add(Path::new(path).join(user.uid.to_string()), false, &scope));
    }
    if !users.is_empty() {
        OF_USERS.iter().for_each(|path| add(path.into(), false, &of_users));
    }
    // Where stores are named, nothing else is deleted: whoever has no business there is not asked.
    let asked = asked(request);
    places.retain(|(_, stores)| match (&asked, stores.as_ref()) {
        (Some(asked), StoreSelection::Only(_)) => asked.iter().any(|root| stores.has(root)),
        _ => true,
    });
    let (mut found, mut findings) = (Vec::new(), Vec::new());
    for (place, stores) in places {
        let read = quadlets::read(sysroot, &place)?;
        findings.extend(read.findings);
        if read.names_more {
            let named = NamedImage { reference: String::new(), source: place.path.display().to_string() };
            found.push(Quadlet { named, stores: Arc::clone(&stores), any: true });
        }
        let named = read.images.into_iter();
        found.extend(named.map(|named| Quadlet { named, stores: Arc::clone(&stores), any: false }));
    }
    Ok((found, findings))
}

/// The graphroots that are named; `None` where none is, or one is not to be found.
fn asked(request: &ScanRequest) -> Option<Vec<PathBuf>> {
    let sysroot = &request.sysroot;
    let place = |path: &PathBuf| match sysroot.is_foreign() {
        true => sysroot.resolve(path).ok(),
        false => sysroot.resolve(&std::path::absolute(path).ok()?).ok(),
    };
    match (&request.graphroots[..], request.containerd_roots.is_empty()) {
        ([], true) => None,
        (named, _) => named.iter().map(place).collect(),
    }
}

/// Whose labels a scan has to read for these protections.
pub fn labels_for(protect: &Protect) -> LabelsOf {
    if protect.labels.is_empty() { LabelsOf::None } else { LabelsOf::All }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::scenario::Scenario;

    #[test]
    fn what_is_named_since_the_run_began_protects() {
        let inventory = Scenario::article().inventory();
        let image = &inventory.images[0];
        let by = |source: &str| NamedImage { reference: image.names[0].clone(), source: source.into() };
        let now =
            |sandboxes: Vec<NamedImage>, pulling| FromNode { sandboxes, pulling, ..FromNode::default() };
        let mut known = Protect::default();
        let all = now(vec![by("crio.conf")], vec![by("the pull record")]);
        assert_eq!(
            all.clone().without(&known).names(&inventory, image),
            ["crio.conf, which now names it for pod sandboxes", "the kubelet is pulling it: the pull record"]
        );
        assert!(all.clone().without(&known).names(&inventory, &inventory.images[1]).is_empty());
        all.apply(&mut known);
        assert!(all.without(&known).names(&inventory, image).is_empty(), "known from the beginning");
    }
}
