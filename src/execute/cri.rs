//! Removes images through the runtime.
//!
//! The runtime's answers are never trusted alone: containerd removes images that are in use or pinned, and it reports
//! success if it removed nothing. So every protection is checked here, the runtime's listings are matched with the
//! disk, and the disk confirms deletions.

use std::collections::{HashMap, HashSet};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::cri::in_use::ImageNames;
use crate::cri::{
    Client, CriError, CriProblem, RuntimeContainer, RuntimeImage, RuntimeSandbox, RuntimeStore,
};
use crate::editor::ReserveFile;
use crate::execute::remover::{GONE_WITHIN, PreconditionError, Remover, reported_removed};
use crate::execute::runtime_match::{ImageMatch, RuntimeStores, unseen_container};
use crate::model::deletion::plan::{self, Failure, Gain, Step, Target};
use crate::model::refs::{Refs, Root};
use crate::model::rules::Rule;
use crate::model::text::reference::{bare_id, repository};
use crate::model::{Aftermath, Answer, Image, ImageIx, Inventory, RemovalResult, in_namespace};
use crate::policy::Facts;
use crate::policy::kubelet::{ListedContainer, ListedImage, Listing};

/// Reason for which containerd keeps an image although its CRI reports success: `kind load` and `ctr images import
/// --digests` make such names.
const LEFT_BY_CRI: &str = "the runtime would remove some of its names and leave one that it does not know";

/// Works through a CRI socket.
#[derive(Debug)]
pub struct CriRemover {
    client: Client,
    runtime_store: RuntimeStore,
    /// The runtime's names of the images at the last look, by layersweep's image id.
    handles: HashMap<String, Vec<Handle>>,
    /// The runtime's images at the last look at all of them, each as it was when it was last looked at by itself.
    images: Vec<RuntimeImage>,
    pending: Option<(String, JoinHandle<Result<Answers, CriError>>)>,
    /// The runtime's listings at the last look.
    listing: Option<Listing>,
    /// References of the images that each container has mounted as volumes, by container id. The mounts of a container
    /// never change.
    mounted: HashMap<String, Vec<String>>,
    /// A removal by this remover has made containerd collect its garbage.
    collected: bool,
    /// The reserve file, released if the runtime has no room to start a removal.
    reserve_file: Option<ReserveFile>,
}

/// The runtime's name of an image. The runtime removes the image once for each runtime handler.
#[derive(Clone, Debug)]
struct Handle {
    id: String,
    runtime_handler: String,
}

/// The runtime's answers about its containers and about all images, or about one image.
#[derive(Debug)]
struct Answers {
    containers: Vec<RuntimeContainer>,
    sandboxes: Vec<RuntimeSandbox>,
    images: Vec<RuntimeImage>,
}

impl Answers {
    /// Asks for the images last: a container created in between uses an image of the later answer, and is on the disk
    /// by the next look.
    fn new(
        client: &Client,
        images: impl FnOnce(&Client) -> Result<Vec<RuntimeImage>, CriError>,
    ) -> Result<Self, CriError> {
        let client = client.for_queries();
        let containers = client.containers()?;
        let sandboxes = client.sandboxes()?;
        Ok(Self { containers, sandboxes, images: images(&client)? })
    }

    /// Asks for all images. CRI-O needs longer for that than for the removal of an image.
    fn of_all(client: &Client) -> Result<Self, CriError> {
        Self::new(client, Client::images)
    }

    fn of_image(client: &Client, handles: &[Handle]) -> Result<Self, CriError> {
        Self::new(client, |client| {
            let statuses = handles.iter().map(|handle| client.image(&handle.id, &handle.runtime_handler));
            Ok(statuses.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
        })
    }
}

impl CriRemover {
    /// Asks the runtime for its store.
    ///
    /// # Errors
    /// When the runtime does not report it.
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
            images: Vec::new(),
            pending: None,
            listing: None,
            mounted: HashMap::new(),
            collected: false,
            reserve_file: None,
        })
    }

    /// Sets a reserve file on the filesystem of the runtime's store, which is released once a removal fails for want of
    /// space. containerd on btrfs can delete nothing with 0 bytes free: its database is not written in place there.
    #[must_use]
    pub fn with_reserve_file(self, reserve_file: Option<ReserveFile>) -> Self {
        Self { reserve_file, ..self }
    }

    #[must_use]
    pub fn reserve_file(&self) -> Option<&ReserveFile> {
        self.reserve_file.as_ref()
    }

    /// Removes an image by one handle; tries again if releasing the reserve file made room.
    fn remove_handle(&self, handle: &Handle) -> Result<(), CriError> {
        let result = handle.remove(&self.client);
        let Err(error) = &result else { return result };
        if !error.is_no_space() {
            return result;
        }
        let Some(reserve_file) = &self.reserve_file else { return result };
        match reserve_file.release() {
            Ok(true) => {
                tracing::info!("{error}; releasing the reserve file {}", reserve_file.path().display());
                handle.remove(&self.client)
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

    /// Asks once for the images that each container has mounted. A container that is deleted meanwhile has none
    /// mounted.
    fn ask_mounts(&mut self, containers: &[RuntimeContainer]) -> Result<(), PreconditionError> {
        let listed: HashSet<&str> = containers.iter().map(|container| container.id.as_str()).collect();
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

    /// Returns the facts about images whose match is `found`, and about their users in the runtime.
    ///
    /// # Errors
    /// When the runtime has a container or sandbox that is not on the disk.
    fn facts(
        &mut self,
        inventory: &Inventory,
        stores: &RuntimeStores,
        found: &ImageMatch,
        (containers, sandboxes): (&[RuntimeContainer], &[RuntimeSandbox]),
    ) -> Result<Vec<Facts>, PreconditionError> {
        if let Some(message) = unseen_container(inventory, stores, containers, sandboxes) {
            return Err(PreconditionError::stale(message));
        }
        let mut facts = self.reach(inventory, stores, found);
        self.add_users(inventory, containers, &by_position(found), &mut facts);
        Ok(facts)
    }

    /// Determines the images that the runtime can remove, with their handles, and those that it pins.
    fn reach(&mut self, inventory: &Inventory, stores: &RuntimeStores, found: &ImageMatch) -> Vec<Facts> {
        let mut facts = vec![Facts::default(); inventory.images.len()];
        for (image, facts) in inventory.images.iter().zip(&mut facts) {
            if !stores.writes_to(image.store) {
                let of_tool = inventory.obstacle_of_store(image.store);
                facts.out_of_reach = Some(
                    of_tool.unwrap_or_else(|| format!("not in the store of {}", self.client.endpoint())),
                );
            }
        }
        for image_ix in &found.foreign {
            let facts = &mut facts[image_ix.get()];
            facts.out_of_reach = inventory[*image_ix].id.namespace().map(in_namespace);
            facts.removal = inventory.removal_by_ctr(*image_ix);
        }
        for image_ix in found.unknown.iter().chain(&found.unlisted_artifacts) {
            let facts = &mut facts[image_ix.get()];
            facts.out_of_reach = Some("the runtime does not list it, so it cannot remove it".into());
            facts.removal = inventory.removal_by_ctr(*image_ix);
        }
        self.handles.clear();
        for (image_ix, positions) in &found.known {
            let (image, facts) = (&inventory[*image_ix], &mut facts[image_ix.get()]);
            let is_artifact = stores.artifacts == Some(image.store);
            let mut handles = Vec::new();
            for position in positions {
                let RuntimeImage { id, runtime_handler, pinned, .. } = &self.images[*position];
                if is_artifact {
                    handles.extend(artifact_handles(image, runtime_handler));
                } else {
                    let (id, runtime_handler) = (id.clone(), runtime_handler.clone());
                    handles.push(Handle { id, runtime_handler });
                }
                facts.runtime_pins |= *pinned;
            }
            if is_artifact {
                facts.out_of_reach = why_artifact_stays(inventory, stores, *image_ix);
            } else if inventory.is_left_by_cri(*image_ix) {
                facts.out_of_reach = Some(LEFT_BY_CRI.into());
                facts.removal = inventory.removal_by_ctr(*image_ix);
            }
            self.handles.insert(image.id.to_string(), handles);
        }
        facts
    }

    /// Adds the containers that use images according to the runtime, but not according to the disk. `of_listing` maps
    /// positions in the runtime's images to images of the inventory.
    fn add_users(
        &self,
        inventory: &Inventory,
        containers: &[RuntimeContainer],
        of_listing: &HashMap<usize, ImageIx>,
        facts: &mut [Facts],
    ) {
        let names = ImageNames::new(&self.images);
        for container in containers {
            let name = name(container);
            for position in names.used_by(container).images {
                let Some(image_ix) = of_listing.get(&position) else { continue };
                let mut on_disk = inventory.containers.iter();
                if !on_disk.any(|recorded| recorded.id == container.id && recorded.image == Some(*image_ix)) {
                    let user = format!("the container {name}, according to the runtime");
                    facts[image_ix.get()].used_by.push(user);
                }
            }
            for reference in self.mounted_in(container) {
                let found = names.find(reference);
                for (position, image_ix) in of_listing {
                    let is_certain = found.images.contains(position);
                    // The reference may be a tag that was moved to another image since. Then the mounted image may be
                    // any that has no name.
                    let is_possible = !found.certain && self.images[*position].tags.is_empty();
                    if (is_certain || is_possible) && !is_known_user(inventory, container, *image_ix) {
                        let perhaps = if is_certain { "" } else { " perhaps" };
                        facts[image_ix.get()]
                            .used_by
                            .push(format!("the container {name}, which{perhaps} has it mounted as a volume"));
                    }
                }
            }
        }
        for facts in facts {
            // An image that is listed for several handlers has the same user several times.
            let mut seen = HashSet::new();
            facts.used_by.retain(|user| seen.insert(user.clone()));
        }
    }
}

impl Handle {
    /// Only the handle of an artifact is a reference.
    fn is_artifact(&self) -> bool {
        self.id.contains('@')
    }

    fn remove(&self, client: &Client) -> Result<(), CriError> {
        if self.is_artifact() {
            client.remove_artifact(&self.id, &self.runtime_handler)
        } else {
            client.remove_image(&self.id, &self.runtime_handler)
        }
    }
}

fn by_position(found: &ImageMatch) -> HashMap<usize, ImageIx> {
    let known = found.known.iter();
    let pairs =
        known.flat_map(|(image_ix, positions)| positions.iter().map(|position| (*position, *image_ix)));
    pairs.collect()
}

/// Returns true if the disk has the container as a user of the image. Snapshots of containerd name the pod, not the
/// container.
fn is_known_user(inventory: &Inventory, container: &RuntimeContainer, image_ix: ImageIx) -> bool {
    let mut users = inventory.containers.iter().filter(|user| user.uses(image_ix));
    users.any(|user| user.id == container.id || user.id == container.sandbox_id)
        || inventory.uses_of(image_ix).any(|usage| usage.container.as_ref() == Some(&container.id))
}

fn listed(container: &RuntimeContainer, sandboxes: &[RuntimeSandbox], mounted: &[String]) -> ListedContainer {
    let RuntimeContainer { image_id, image_ref, sandbox_id, .. } = container;
    let image_id = if image_id.is_empty() { image_ref } else { image_id };
    let sandbox = sandboxes.iter().find(|sandbox| sandbox.id == *sandbox_id);
    let handler = sandbox.map(|sandbox| sandbox.runtime_handler.clone()).unwrap_or_default();
    ListedContainer { image_id: image_id.clone(), handler, mounted_images: mounted.to_vec() }
}

fn name(container: &RuntimeContainer) -> &str {
    if container.name.is_empty() { &container.id } else { &container.name }
}

/// References by which CRI-O removes an artifact, one for each name, since each name has an entry of its own. An id
/// does not work: CRI-O (1.32 to 1.37) looks for an image with that id, finds none, and reports success without
/// removing anything.
fn artifact_handles(artifact: &Image, runtime_handler: &str) -> Vec<Handle> {
    let handles = artifact.names.iter().map(|name| Handle {
        id: format!("{}@sha256:{}", repository(name), artifact.id),
        runtime_handler: runtime_handler.to_owned(),
    });
    handles.collect()
}

/// Reason for which CRI-O cannot remove an artifact, or would remove an image instead.
fn why_artifact_stays(inventory: &Inventory, stores: &RuntimeStores, artifact: ImageIx) -> Option<String> {
    let artifact = &inventory[artifact];
    if artifact.names.is_empty() {
        return Some("it has no name, and the runtime removes artifacts by name only".into());
    }
    // CRI-O looks for a name among the images first.
    let mut images = inventory.images.iter().filter(|image| image.store == stores.main);
    let same = images.find(|image| image.digests.iter().any(|digest| artifact.digests.contains(digest)))?;
    let name = same.title();
    Some(format!("the image {name} has the same digest, and the runtime would remove that one"))
}

/// Returns true if the removal may still be in progress.
fn is_in_doubt(error: &CriError) -> bool {
    let problem = &error.problem;
    problem.is_given_up() || !matches!(problem, CriProblem::Other { .. }) && problem.leaves_doubt()
}

/// Result of a failed removal. `touched`: a part of it succeeded before.
fn failed_removal(step: &Step, error: &CriError, touched: bool) -> RemovalResult {
    let failure = Failure::from(error);
    // After a definite failure it does not wait: on a full disk every removal fails, and there may be thousands.
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
    fn ask(&mut self, image: &Target) {
        let handles = self.handles.get(&image.id).filter(|handles| !handles.iter().any(Handle::is_artifact));
        self.pending = handles.cloned().filter(|handles| !handles.is_empty()).and_then(|handles| {
            let client = self.client.clone();
            let asking = thread::Builder::new().spawn(move || Answers::of_image(&client, &handles));
            Some((image.id.clone(), asking.ok()?))
        });
    }

    fn look(&mut self, inventory: &Inventory) -> Result<Vec<Facts>, PreconditionError> {
        let stores = runtime_stores(&self.client, &self.runtime_store, inventory)?;
        let Answers { containers, sandboxes, images } = Answers::of_all(&self.client)?;
        self.ask_mounts(&containers)?;
        let found = ImageMatch::new(inventory, &stores, &images);
        if let Some(message) = found.objection(&images) {
            return Err(PreconditionError::stale(message));
        }
        self.images = images;
        let facts = self.facts(inventory, &stores, &found, (&containers, &sandboxes))?;
        let store_ids = inventory.store_ids();
        let of_listing = by_position(&found);
        let images = self.images.iter().enumerate().map(|(position, image)| {
            let listed = ListedImage {
                id: image.id.clone(),
                size_bytes: image.listed_bytes,
                pinned: image.pinned,
                handler: image.runtime_handler.clone(),
            };
            let on_disk = of_listing.get(&position).map(|image_ix| &inventory[*image_ix]);
            (listed, on_disk.map(|image| (store_ids[image.store.get()].clone(), image.id.clone())))
        });
        let containers =
            containers.iter().map(|container| listed(container, &sandboxes, self.mounted_in(container)));
        self.listing = Some(Listing {
            store: store_ids[stores.main.get()].clone(),
            images: images.collect(),
            containers: containers.collect(),
        });
        Ok(facts)
    }

    /// Takes the other images from the last listing. They matter for one question only: whether a container's reference
    /// is certain to mean another image. An id or a digest means the same image at any time, and a name that has moved
    /// since then is found at this image, or counts as uncertain.
    fn look_at(&mut self, inventory: &Inventory, image_ix: ImageIx) -> Result<Vec<Facts>, PreconditionError> {
        let id = &inventory[image_ix].id;
        let pending = self.pending.take().filter(|(asked, _)| asked == id.as_str());
        // The runtime may pin or use a list that contains the image.
        let is_alone = inventory.lists_of(image_ix).next().is_none();
        let answers = pending.filter(|_| is_alone).and_then(|(_, asking)| asking.join().ok());
        let Some(answers) = answers else { return self.look(inventory) };
        let Answers { containers, sandboxes, images } = answers?;
        let stores = runtime_stores(&self.client, &self.runtime_store, inventory)?;
        self.ask_mounts(&containers)?;
        self.images.retain(|image| bare_id(&image.id) != id.as_str());
        self.images.extend(images);
        let found = ImageMatch::new(inventory, &stores, &self.images);
        self.facts(inventory, &stores, &found, (&containers, &sandboxes))
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
            match self.remove_handle(handle) {
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
        reported_removed(step)
    }

    /// Bytes of the garbage that containerd collects with the first removal.
    fn byproduct(&self, _: &Target, inventory: &Inventory, refs: &Refs) -> Vec<Gain> {
        let Some(stores) = RuntimeStores::find(&self.runtime_store, inventory).filter(|_| !self.collected)
        else {
            return Vec::new();
        };
        let garbage = inventory
            .leaks
            .iter()
            .enumerate()
            .filter(|(_, leak)| leak.store == stores.main && leak.class.is_collected_by_containerd());
        let mut live = refs.live();
        let mut gains = Vec::new();
        for (leak_ix, _) in garbage {
            let root = Root::Leak(leak_ix.into());
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
    use crate::model::deletion::plan::{Cause, TargetKind};

    #[test]
    fn failures_of_runtime_and_of_image_differ() {
        let target =
            Target { kind: TargetKind::Image, store: None, id: "id".into(), names: Vec::new(), leak: None };
        let step = Step::new(target, Cause::Space);
        fn other(code: Code, message: &str) -> CriProblem {
            CriProblem::Other { code, message: message.into() }
        }
        fn words() -> String {
            String::from("words")
        }
        let (stopped, doubt, failed, refused, kept) = ("stopped", "in doubt", "failed", "refused", "kept");
        for (problem, untouched, touched) in [
            (CriProblem::NotRunning(words()), stopped, failed),
            (CriProblem::NotListening, stopped, failed),
            (CriProblem::Starting(words()), stopped, failed),
            (CriProblem::Denied, stopped, failed),
            (CriProblem::Unimplemented(words()), stopped, failed),
            (CriProblem::NotGrpc(words()), stopped, failed),
            (CriProblem::Cancelled, stopped, failed),
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
                    RemovalResult::Answered(Answer::StopRun(_)) => stopped,
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
