//! Removes images through the runtime.
//!
//! The runtime's answers are never trusted alone: containerd removes images in use and pinned ones when
//! asked, and answers success where it removed nothing. So every protection is checked here, its
//! listings are matched with the disk, and the disk confirms deletions.

use std::collections::{HashMap, HashSet};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::cri::in_use::Names;
use crate::cri::{
    Client, CriError, CriProblem, RuntimeContainer, RuntimeImage, RuntimeSandbox, RuntimeStore,
};
use crate::editor::ReserveFile;
use crate::execute::executor::GONE_WITHIN;
use crate::execute::remover::{PreconditionError, Remover};
use crate::execute::runtime_match::{ImageMatch, RuntimeStores, unseen_container};
use crate::model::plan::{self, Failure, Gain, Step};
use crate::model::reference::repository;
use crate::model::refs::{Refs, Root};
use crate::model::rules::Rule;
use crate::model::{Aftermath, Answer, Image, ImageIx, Inventory, RemovalResult, in_namespace};
use crate::policy::Facts;
use crate::policy::kubelet::{ListedContainer, ListedImage, Listing};

/// Works through a CRI socket.
#[derive(Debug)]
pub struct CriRemover {
    client: Client,
    runtime_store: RuntimeStore,
    /// What the runtime calls the images of the last look, by our id.
    handles: HashMap<String, Vec<Handle>>,
    /// What the runtime lists for the next look, while it is being asked.
    asked: Option<JoinHandle<Result<Lists, CriError>>>,
    /// What the runtime listed at the last look.
    listing: Option<Listing>,
    /// The images that each container has mounted as volumes, as it calls them; the mounts of a
    /// container never change.
    mounted: HashMap<String, Vec<String>>,
    /// A removal of ours has made containerd collect its garbage.
    collected: bool,
    /// The reserve file, released if the runtime has no room to start.
    reserve_file: Option<ReserveFile>,
}

/// What the runtime calls an image: it removes it once for each runtime handler.
#[derive(Clone, Debug)]
struct Handle {
    id: String,
    runtime_handler: String,
}

/// All that the runtime lists.
#[derive(Debug)]
struct Lists {
    containers: Vec<RuntimeContainer>,
    sandboxes: Vec<RuntimeSandbox>,
    images: Vec<RuntimeImage>,
}

impl Lists {
    fn of(client: &Client) -> Result<Self, CriError> {
        // Containers first: one that is made in between uses an image of the later listing, and is
        // on the disk by the next look.
        let containers = client.containers()?;
        let sandboxes = client.sandboxes()?;
        Ok(Self { containers, sandboxes, images: client.images()? })
    }
}

impl CriRemover {
    /// Finds out which store the runtime serves.
    ///
    /// # Errors
    /// When it does not say.
    pub fn new(client: Client) -> Result<Self, PreconditionError> {
        let runtime_store = client.runtime_store()?.ok_or_else(|| {
            let endpoint = client.endpoint();
            PreconditionError::new(format!(
                "{endpoint}: the runtime does not report where its images are stored"
            ))
        })?;
        Ok(Self {
            client,
            runtime_store,
            handles: HashMap::new(),
            asked: None,
            listing: None,
            mounted: HashMap::new(),
            collected: false,
            reserve_file: None,
        })
    }

    /// With room on the filesystem of the runtime's store that is given up once, when a removal
    /// fails for want of it. containerd on btrfs can delete nothing with 0 bytes free: its database
    /// is not written in place there.
    #[must_use]
    pub fn with_reserve_file(self, reserve_file: Option<ReserveFile>) -> Self {
        Self { reserve_file, ..self }
    }

    /// The reserve file, if there is one.
    #[must_use]
    pub fn reserve_file(&self) -> Option<&ReserveFile> {
        self.reserve_file.as_ref()
    }

    /// Removes by the runtime's id; once more where giving up the reserve file made room.
    fn remove_one(&self, Handle { id, runtime_handler }: &Handle) -> Result<(), CriError> {
        // Only an artifact's handle has one.
        let is_reference = id.contains('@');
        let remove = |client: &Client| match is_reference {
            true => client.remove_artifact(id, runtime_handler),
            false => client.remove_image(id, runtime_handler),
        };
        let result = remove(&self.client);
        let Err(error) = &result else { return result };
        if !error.is_no_space() {
            return result;
        }
        let Some(reserve_file) = &self.reserve_file else { return result };
        match reserve_file.release() {
            Ok(true) => {
                tracing::info!("{error}; releasing the reserve file {}", reserve_file.path().display());
                remove(&self.client)
            }
            Ok(false) => result,
            Err(fault) => {
                tracing::warn!(
                    "the reserve file {} cannot be released: {fault}",
                    reserve_file.path().display()
                );
                result
            }
        }
    }

    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    #[must_use]
    pub fn runtime_store(&self) -> &RuntimeStore {
        &self.runtime_store
    }

    /// Asks each container once which images it has mounted. One that goes while it is asked has
    /// mounted nothing any more.
    fn ask_mounts(&mut self, containers: &[RuntimeContainer]) -> Result<(), PreconditionError> {
        let listed: HashSet<&str> = containers.iter().map(|one| one.id.as_str()).collect();
        self.mounted.retain(|id, _| listed.contains(id.as_str()));
        for RuntimeContainer { id, .. } in containers {
            if self.mounted.contains_key(id) {
                continue;
            }
            if let Some(details) = self.client.container(id)? {
                self.mounted.insert(id.clone(), details.image_volumes);
            }
        }
        Ok(())
    }

    fn mounted_in(&self, container: &RuntimeContainer) -> &[String] {
        self.mounted.get(&container.id).map_or(&[], Vec::as_slice)
    }

    /// Which images the runtime can remove, and how; and which ones it pins.
    fn reach(
        &mut self,
        inventory: &Inventory,
        stores: &RuntimeStores,
        found: &ImageMatch,
        images: &[RuntimeImage],
    ) -> Vec<Facts> {
        let mut facts = vec![Facts::default(); inventory.images.len()];
        for (image, facts) in inventory.images.iter().zip(&mut facts) {
            if !stores.writes_to(image.store) {
                facts.out_of_reach = Some(format!("not in the store of {}", self.client.endpoint()));
            }
        }
        for at in &found.foreign {
            facts[at.get()].out_of_reach = inventory[*at].id.namespace().map(in_namespace);
        }
        for at in found.unknown.iter().chain(&found.unlisted_artifacts) {
            facts[at.get()].out_of_reach =
                Some("the runtime does not list it, so it cannot remove it".into());
        }
        self.handles.clear();
        for (at, positions) in &found.known {
            let (image, facts) = (&inventory[*at], &mut facts[at.get()]);
            let is_artifact = stores.artifacts == Some(image.store);
            let mut handles = Vec::new();
            for position in positions {
                let RuntimeImage { id, runtime_handler, pinned, .. } = &images[*position];
                match is_artifact {
                    true => handles.extend(artifact_handles(image, runtime_handler)),
                    false => {
                        let (id, runtime_handler) = (id.clone(), runtime_handler.clone());
                        handles.push(Handle { id, runtime_handler });
                    }
                }
                facts.runtime_pins |= *pinned;
            }
            if is_artifact {
                facts.out_of_reach = beyond(inventory, stores, *at);
            }
            self.handles.insert(image.id.to_string(), handles);
        }
        facts
    }

    /// Adds who uses images as the runtime says, where the disk does not say it. `of_listing` are the
    /// images of the positions of `images`.
    fn add_users(
        &self,
        inventory: &Inventory,
        containers: &[RuntimeContainer],
        images: &[RuntimeImage],
        of_listing: &HashMap<usize, ImageIx>,
        facts: &mut [Facts],
    ) {
        let names = Names::new(images);
        for container in containers {
            let name = name(container);
            for position in names.used_by(container).images {
                let Some(at) = of_listing.get(&position) else { continue };
                let known =
                    inventory.containers.iter().any(|one| one.id == container.id && one.image == Some(*at));
                if !known {
                    facts[at.get()].used_by.push(format!("the container {name}, according to the runtime"));
                }
            }
            for reference in self.mounted_in(container) {
                let found = names.find(reference);
                // containerd's snapshots name the pod, not the container.
                let known = |at: ImageIx| {
                    let mut users = inventory.containers.iter().filter(|one| one.uses(at));
                    users.any(|one| one.id == container.id || one.id == container.sandbox_id)
                        || inventory.uses_of(at).any(|one| one.container.as_ref() == Some(&container.id))
                };
                // By a name without a digest, which may have moved on since: then what is
                // mounted is left without a name.
                let nameless = |position: &usize| !found.certain && images[*position].tags.is_empty();
                for (position, at) in of_listing {
                    let sure = found.images.contains(position);
                    if (sure || nameless(position)) && !known(*at) {
                        let perhaps = if sure { "" } else { " perhaps" };
                        facts[at.get()]
                            .used_by
                            .push(format!("the container {name}, which{perhaps} has it mounted as a volume"));
                    }
                }
            }
        }
        for facts in facts {
            // An image that is listed for several handlers.
            let mut seen = HashSet::new();
            facts.used_by.retain(|user| seen.insert(user.clone()));
        }
    }
}

/// What the kubelet sees of a container.
fn listed(container: &RuntimeContainer, sandboxes: &[RuntimeSandbox], mounted: &[String]) -> ListedContainer {
    let RuntimeContainer { image_id, image_ref, sandbox_id, .. } = container;
    let image_id = if image_id.is_empty() { image_ref } else { image_id };
    let sandbox = sandboxes.iter().find(|one| one.id == *sandbox_id);
    let handler = sandbox.map(|one| one.runtime_handler.clone()).unwrap_or_default();
    ListedContainer { image_id: image_id.clone(), handler, mounted_images: mounted.to_vec() }
}

/// A container for people.
fn name(container: &RuntimeContainer) -> &str {
    if container.name.is_empty() { &container.id } else { &container.name }
}

/// What CRI-O takes for an artifact. Given the id, it says that the artifact is deleted and does
/// nothing (1.32 to 1.37): it looks for an image of that id, finds none, and that is no error. Once
/// for each name, since each has an entry of its own.
fn artifact_handles(artifact: &Image, runtime_handler: &str) -> Vec<Handle> {
    let handle = |name: &String| Handle {
        id: format!("{}@sha256:{}", repository(name), artifact.id),
        runtime_handler: runtime_handler.to_owned(),
    };
    artifact.names.iter().map(handle).collect()
}

/// Why CRI-O cannot remove an artifact, or would remove something else.
fn beyond(inventory: &Inventory, stores: &RuntimeStores, artifact: ImageIx) -> Option<String> {
    let artifact = &inventory[artifact];
    if artifact.names.is_empty() {
        return Some("it has no name, and the runtime removes artifacts by name only".into());
    }
    // Names are looked for among the images first.
    let mut images = inventory.images.iter().filter(|image| image.store == stores.own);
    let same = images.find(|image| image.digests.iter().any(|digest| artifact.digests.contains(digest)))?;
    let name = same.title();
    Some(format!("the image {name} has the same digest, and the runtime would remove that one"))
}

/// Returns true if the removal may still be under way.
fn is_in_doubt(error: &CriError) -> bool {
    let problem = &error.problem;
    problem.is_given_up() || !matches!(problem, CriProblem::Other { .. }) && problem.leaves_doubt()
}

/// The result of a removal that failed. `touched`: part of it had succeeded before.
fn failed_removal(step: &Step, error: &CriError, touched: bool) -> RemovalResult {
    let failure = Failure::from(error);
    // After a failure nothing more is to come: on a full disk every removal fails, and there may be thousands.
    let within = if is_in_doubt(error) { GONE_WITHIN } else { Duration::ZERO };
    if touched || is_in_doubt(error) || matches!(error.problem, CriProblem::Other { .. }) {
        let otherwise = Answer::failed(step, failure, Aftermath::StillThere);
        return RemovalResult::Unconfirmed { within, gone: Answer::Removed, otherwise };
    }
    match &error.problem {
        // A container was created since the last listing: that is not a failure of the image.
        CriProblem::InUse(_) => Answer::kept(Rule::InUse, failure.message),
        CriProblem::BadRequest(_) | CriProblem::Contradiction(_) | CriProblem::TooLarge(_) => {
            Answer::failed(step, failure, Aftermath::Untouched)
        }
        // The runtime failed, or layersweep: the image gets no back-off for it.
        _ => Answer::StopRun(failure),
    }
    .into()
}

/// The stores of `inventory` that the runtime serves.
pub(super) fn runtime_stores(
    client: &Client,
    store: &RuntimeStore,
    inventory: &Inventory,
) -> Result<RuntimeStores, PreconditionError> {
    RuntimeStores::find(store, inventory).ok_or_else(|| {
        let (endpoint, root) = (client.endpoint(), store.root.display());
        PreconditionError::new(format!("the store of {endpoint} is {root}, which was not read"))
    })
}

impl Remover for CriRemover {
    fn ask(&mut self) {
        let client = self.client.clone();
        self.asked = thread::Builder::new().spawn(move || Lists::of(&client)).ok();
    }

    fn look(&mut self, inventory: &Inventory) -> Result<Vec<Facts>, PreconditionError> {
        let asked = self.asked.take().and_then(|asked| asked.join().ok());
        let stores = runtime_stores(&self.client, &self.runtime_store, inventory)?;
        let Lists { containers, sandboxes, images } = asked.unwrap_or_else(|| Lists::of(&self.client))?;
        self.ask_mounts(&containers)?;
        let found = ImageMatch::new(inventory, &stores, &images);
        let objection = found
            .objection(&images)
            .or_else(|| unseen_container(inventory, &stores, &containers, &sandboxes));
        if let Some(what) = objection {
            return Err(PreconditionError::stale(what));
        }
        let mut facts = self.reach(inventory, &stores, &found, &images);
        let known = found.known.iter();
        let of_listing: HashMap<usize, ImageIx> =
            known.flat_map(|(at, positions)| positions.iter().map(|position| (*position, *at))).collect();
        self.add_users(inventory, &containers, &images, &of_listing, &mut facts);
        let keys = inventory.store_ids();
        let view = |(position, image): (usize, &RuntimeImage)| {
            let listed = ListedImage {
                id: image.id.clone(),
                size_bytes: image.listed_bytes,
                pinned: image.pinned,
                handler: image.runtime_handler.clone(),
            };
            let on_disk = of_listing.get(&position).map(|at| &inventory[*at]);
            (listed, on_disk.map(|image| (keys[image.store.get()].clone(), image.id.clone())))
        };
        let containers = containers.iter().map(|one| listed(one, &sandboxes, self.mounted_in(one)));
        self.listing = Some(Listing {
            store: keys[stores.own.get()].clone(),
            images: images.iter().enumerate().map(view).collect(),
            containers: containers.collect(),
        });
        Ok(facts)
    }

    fn listing(&self) -> Option<&Listing> {
        self.listing.as_ref()
    }

    fn remove(&mut self, step: &Step, inventory: &Inventory, image: ImageIx) -> RemovalResult {
        let image = &inventory[image];
        let Some(handles) =
            self.handles.get(image.id.as_str()).filter(|handles| !handles.is_empty()).cloned()
        else {
            return Answer::failed(step, "the runtime does not list it", Aftermath::Untouched).into();
        };
        let (mut touched, mut missing) = (false, None);
        for handle in &handles {
            match self.remove_one(handle) {
                Ok(()) => touched = true,
                // The removal for another handler deletes the image as well, and so may another process.
                Err(error) if matches!(error.problem, CriProblem::NotFound(_)) => {
                    missing.get_or_insert_with(|| error.to_string());
                }
                Err(error) => {
                    self.collected |= touched || is_in_doubt(&error);
                    return failed_removal(step, &error, touched);
                }
            }
        }
        if let Some(message) = missing.filter(|_| !touched) {
            return RemovalResult::Unconfirmed {
                within: GONE_WITHIN,
                gone: Answer::AlreadyGone,
                otherwise: Answer::failed(step, message, Aftermath::Untouched),
            };
        }
        self.collected = true;
        let message = "the runtime reported it as removed, but it still exists";
        RemovalResult::Unconfirmed {
            within: GONE_WITHIN,
            gone: Answer::Removed,
            otherwise: Answer::failed(step, message, Aftermath::StillThere),
        }
    }

    /// containerd collects all of its garbage with the first removal.
    fn byproduct(&self, inventory: &Inventory, refs: &Refs) -> Vec<Gain> {
        let Some(stores) = RuntimeStores::find(&self.runtime_store, inventory).filter(|_| !self.collected)
        else {
            return Vec::new();
        };
        let garbage = inventory
            .leaks
            .iter()
            .enumerate()
            .filter(|(_, leak)| leak.store == stores.own && leak.class.is_collected_by_containerd());
        let mut live = refs.live();
        let mut gains = Vec::new();
        for (at, _) in garbage {
            let root = Root::Leak(at.into());
            gains.extend(plan::gains(inventory, &live, root));
            live.remove(inventory, root);
        }
        plan::sum(gains.into_iter())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tonic::Code;

    use super::*;
    use crate::model::plan::{Cause, Target, TargetKind};

    #[test]
    fn failures_of_runtime_and_of_image_are_told_apart() {
        let target =
            Target { kind: TargetKind::Image, store: None, id: "id".into(), names: Vec::new(), leak: None };
        let step = Step::new(target, Cause::Space);
        let other = |code, message: &str| CriProblem::Other { code, message: message.into() };
        let words = || String::from("words");
        let (asked, doubt, failed, refused, kept) = ("not asked", "in doubt", "failed", "refused", "kept");
        for (problem, untouched, touched) in [
            (CriProblem::NotRunning(words()), asked, failed),
            (CriProblem::NotListening, asked, failed),
            (CriProblem::Starting(words()), asked, failed),
            (CriProblem::Denied, asked, failed),
            (CriProblem::Unimplemented(words()), asked, failed),
            (CriProblem::NotGrpc(words()), asked, failed),
            (CriProblem::Cancelled, asked, failed),
            (CriProblem::InUse(words()), kept, failed),
            (CriProblem::BadRequest(words()), refused, failed),
            (CriProblem::Deadline(Duration::from_secs(1)), doubt, doubt),
            (CriProblem::HungUp(words()), doubt, doubt),
            (CriProblem::Left, doubt, doubt),
            (other(Code::DeadlineExceeded, "words"), doubt, doubt),
            (other(Code::Unavailable, "words"), doubt, doubt),
            (other(Code::Cancelled, "context canceled"), doubt, doubt),
            (other(Code::Unknown, "deleting: context deadline exceeded"), doubt, doubt),
            (other(Code::Unknown, "no space left on device"), failed, failed),
        ] {
            let endpoint = "unix:///run/crio/crio.sock".parse().unwrap();
            let error = CriError { endpoint, call: "RemoveImage", problem };
            for (was_touched, expected) in [(false, untouched), (true, touched)] {
                let word = match failed_removal(&step, &error, was_touched) {
                    RemovalResult::Answered(Answer::StopRun(_)) => asked,
                    RemovalResult::Unconfirmed { within: GONE_WITHIN, .. } => doubt,
                    RemovalResult::Unconfirmed { within: Duration::ZERO, .. } => failed,
                    RemovalResult::Answered(Answer::Failed(_, Aftermath::Untouched)) => refused,
                    RemovalResult::Answered(Answer::Kept(_)) => kept,
                    _ => "other",
                };
                assert_eq!(word, expected, "{error}, touched: {was_touched}");
            }
        }
    }
}
