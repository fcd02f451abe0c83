//! Images and layers that are needed although no record of their store uses them.
//!
//! There are two cases. A store can use images of another store, its additional image store ([`elsewhere`]). And the
//! images of a store can have users that are not in its records ([`beside_records`]): a container of a transient store,
//! an image mounted into a container, a mount by `podman image mount`.
//!
//! A user does not always name an image exactly. A reference can match several images, a mount shows only the top layer,
//! and a container in a database that cannot be read may use any image. In doubt, all of these images are needed: a
//! false match only keeps an image.

use std::cell::LazyCell;
use std::collections::{HashMap, HashSet};

use super::engine::{self, Engine, PodmanContainer};
use super::inspect::data;
use super::inspect::mountpoints;
use super::lists;
use super::owner;
use super::places::{RecordKind, StorePlaces};
use super::records::{ImageRecord, LayerRecord, is_id};
use super::snapshot::Snapshot;
use crate::model::Consistency;
use crate::model::text::reference::{bare_id, is_surely};
use crate::stores::lending::Need;

/// Returns the need of a mount of an image. A mount shows only the image's top layer.
pub(super) fn of_mount(top: &str) -> Need {
    let by = "a mount (`podman image unmount` ends it)".to_owned();
    Need { by, layers: vec![top.to_owned()], tops: vec![top.to_owned()], ..Need::default() }
}

/// Returns the need of possible containers in a database that cannot be read.
fn perhaps(engine: &Engine) -> Option<Need> {
    let Engine::Unreadable(why) = engine else { return None };
    let by = format!("possibly a podman container: podman's database cannot be read ({why})");
    Some(Need { by, any_image: true, ..Need::default() })
}

/// Returns the needs for images and layers that the store itself lacks. It can only use them from another store.
///
/// A store never uses an image of another store if it has that image itself.
#[must_use]
pub fn elsewhere(snapshot: &Snapshot) -> Vec<Need> {
    let recorded = RecordsById::new(snapshot);
    let mut reached = HashSet::new();
    let mut needs: Vec<Need> = Vec::new();
    for image in &snapshot.images {
        let layers = image.tops().filter_map(|top| recorded.missing_below(top, &mut reached)).collect();
        let by = format!("the image {}", image.names.first().unwrap_or(&image.id));
        let members =
            if lists::is_list(image) { lists::digests(&snapshot.places, image) } else { Ok(HashSet::new()) };
        let any_image = members.is_err();
        let members = members.unwrap_or_default().into_iter().filter(|digest| !recorded.surely_has(digest));
        // Tagging an image of another store copies its record into this one. Podman 4 does not copy the data: the
        // library reads the manifest from the first store that has it (container-libs, `storage/store.go`,
        // `updateNames`, `ImageBigData`).
        let original = data::lacks(image).map(|_| image.id.clone());
        let images = members.chain(original).collect();
        needs.push(Need { by, layers, images, any_image, ..Need::default() });
    }
    let directory = snapshot.places.records_dir(&snapshot.places.graphroot, RecordKind::Containers);
    let within = snapshot.places.within();
    for container in &snapshot.containers {
        let top = container.layer.iter();
        let layers: Vec<_> = top.filter_map(|top| recorded.missing_below(top, &mut reached)).collect();
        let images: Vec<_> = container.image.iter().filter(|id| !recorded.surely_has(id)).cloned().collect();
        if !(layers.is_empty() && images.is_empty()) {
            let origin = owner::origin(&within, container, &directory.join(&container.id));
            let by = format!("the {} container {}", origin.owner.as_str(), origin.name);
            needs.push(Need { by, layers, images, ..Need::default() });
        }
    }
    for (id, container) in snapshot.inspection.engine.containers() {
        let mut need = recorded.images_of_podman(id, container);
        need.images.retain(|image| !recorded.surely_has(image));
        needs.push(need);
    }
    needs.extend(of_repeated(snapshot).into_iter().map(|mut need| {
        need.images.retain(|image| !recorded.surely_has(image));
        need.layers =
            need.layers.iter().filter_map(|top| recorded.missing_below(top, &mut reached)).collect();
        need
    }));
    for layer in snapshot.layers.iter().filter(|layer| !reached.contains(layer.id.as_str())) {
        let parent = layer.parent.iter().filter(|parent| !recorded.layers.contains_key(parent.as_str()));
        let layers = parent.cloned().collect();
        needs.push(Need { by: format!("the layer {}", layer.id), layers, ..Need::default() });
    }
    needs.retain(|need| !need.is_nothing());
    needs
}

/// Returns the needs of users that are not containers in the store's records:
///
/// * containers that are only in podman's database, since the records of a transient store are in its runroot, or whose
///   record there names no image or another one;
/// * objects that are recorded twice: what the other record names;
/// * images mounted into podman's containers;
/// * with vfs and btrfs, images mounted by `podman image mount`, since these drivers do not create a mount.
#[must_use]
pub fn beside_records(snapshot: &Snapshot) -> Vec<Need> {
    let recorded = LazyCell::new(|| RecordsById::new(snapshot));
    let mut needs: Vec<_> = perhaps(&snapshot.inspection.engine).into_iter().collect();
    for (id, container) in snapshot.inspection.engine.containers() {
        needs.push(recorded.images_of_podman(id, container));
    }
    needs.extend(of_repeated(snapshot));
    if snapshot.places.has_whole_layers() {
        let writable: HashSet<&String> =
            snapshot.containers.iter().filter_map(|container| container.layer.as_ref()).collect();
        let mounted = mounted(&snapshot.places).into_iter();
        needs.extend(mounted.filter(|need| !need.layers.iter().any(|layer| writable.contains(layer))));
    }
    needs.retain(|need| !need.is_nothing());
    needs
}

/// Returns the needs of podman's containers and of mounts, for the editor.
///
/// Unlike [`beside_records`] it includes containers that have a record. The editor reads the records later, under the
/// locks.
#[must_use]
pub fn beside(places: &StorePlaces) -> Vec<Need> {
    let engine = engine::read(places);
    let mut needs: Vec<_> = perhaps(&engine).into_iter().collect();
    needs.extend(engine.containers().map(|(_, container)| {
        let images = container.image.iter().chain(&container.image_volumes).cloned().collect();
        Need { by: by_podman(container), images, ..Need::default() }
    }));
    if places.has_whole_layers() {
        needs.extend(mounted(places));
    }
    needs
}

/// Returns the needs of records that do not count, since another one has the same id: a tool of another version uses them.
/// A record that names the same as the one that counts needs nothing more.
fn of_repeated(snapshot: &Snapshot) -> Vec<Need> {
    let repeated = &snapshot.repeated;
    if repeated.objects().next().is_none() {
        return Vec::new();
    }
    let parents: HashMap<_, _> = snapshot.layers.iter().map(|layer| (&layer.id, &layer.parent)).collect();
    let tops: HashMap<&String, Vec<&String>> =
        snapshot.images.iter().map(|image| (&image.id, image.tops().collect())).collect();
    let used: HashMap<_, _> = snapshot
        .containers
        .iter()
        .map(|container| (&container.id, (&container.image, &container.layer)))
        .collect();
    fn need(object: &str, name: &str, layers: Vec<String>) -> Need {
        Need { by: format!("the {object} {name}, which is recorded twice"), layers, ..Need::default() }
    }
    let layers = repeated
        .layers
        .iter()
        .filter(|layer| parents.get(&layer.id) != Some(&&layer.parent))
        .map(|layer| need("layer", &layer.id, layer.parent.iter().cloned().collect()));
    let images = repeated
        .images
        .iter()
        .filter(|image| tops.get(&image.id) != Some(&image.tops().collect::<Vec<_>>()))
        .map(|image| {
            need("image", image.names.first().unwrap_or(&image.id), image.tops().cloned().collect())
        });
    let containers = repeated
        .containers
        .iter()
        .filter(|container| used.get(&container.id) != Some(&(&container.image, &container.layer)))
        .map(|container| Need {
            images: container.image.iter().cloned().collect(),
            ..need(
                "container",
                container.names.first().unwrap_or(&container.id),
                container.layer.iter().cloned().collect(),
            )
        });
    layers.chain(images).chain(containers).collect()
}

fn mounted(places: &StorePlaces) -> Vec<Need> {
    match mountpoints::counted(places) {
        Ok(counted) => counted.iter().map(|mounted| of_mount(&mounted.layer)).collect(),
        Err(error) => {
            let by =
                format!("possibly a mount: which images are mounted is unknown (mountpoints.json: {error})");
            vec![Need { by, any_image: true, ..Need::default() }]
        }
    }
}

/// Returns true if all users of images are known: the records are not damaged, and podman's database was read if there
/// is one.
#[must_use]
pub fn knows_all(snapshot: &Snapshot) -> bool {
    snapshot.consistency != Consistency::Damaged
        && !matches!(snapshot.inspection.engine, Engine::Unreadable(_))
}

/// Returns the containers in podman's database that have no record. Their layers are unknown.
pub(super) fn lost_containers(snapshot: &Snapshot) -> Vec<(&str, &PodmanContainer)> {
    // This function is called for every unused layer, so it has to be fast on a node without podman.
    if snapshot.inspection.engine.containers().next().is_none() {
        return Vec::new();
    }
    let known: HashSet<&str> = snapshot.containers.iter().map(|container| container.id.as_str()).collect();
    snapshot.inspection.engine.containers().filter(|(id, _)| !known.contains(id)).collect()
}

fn by_podman(container: &PodmanContainer) -> String {
    format!("the podman container {}", container.name)
}

/// The store's records, by id.
struct RecordsById<'a> {
    layers: HashMap<&'a str, &'a LayerRecord>,
    image_ids: HashSet<&'a str>,
    images: &'a [ImageRecord],
    containers: HashMap<&'a str, Option<&'a String>>,
}

impl<'a> RecordsById<'a> {
    fn new(snapshot: &'a Snapshot) -> Self {
        Self {
            layers: snapshot.layers.iter().map(|layer| (layer.id.as_str(), layer)).collect(),
            image_ids: snapshot.images.iter().map(|image| image.id.as_str()).collect(),
            images: &snapshot.images,
            containers: snapshot
                .containers
                .iter()
                .map(|container| (container.id.as_str(), container.image.as_ref()))
                .collect(),
        }
    }

    /// Returns true if `reference` certainly means an image of this store.
    fn surely_has(&self, reference: &str) -> bool {
        // A full id or digest is unique, so a lookup is enough. There may be very many of them.
        let id = bare_id(reference);
        if is_id(id) {
            return self.image_ids.contains(id);
        }
        self.images.iter().any(|image| is_surely(reference, &image.id, &image.names, &image.digests))
    }

    /// Returns the need of a container in podman's database: its image volumes, and its image unless its record names that.
    fn images_of_podman(&self, id: &str, container: &PodmanContainer) -> Need {
        let recorded = self.containers.get(id).copied().flatten();
        let made_from = container.image.iter().filter(|image| recorded != Some(*image));
        let images = container.image_volumes.iter().chain(made_from).cloned().collect();
        Need { by: by_podman(container), images, ..Need::default() }
    }

    /// Returns the first layer of the chain from `top` down that has no record. Adds the recorded layers above it to
    /// `reached`.
    fn missing_below(&self, top: &str, reached: &mut HashSet<&'a str>) -> Option<String> {
        let mut seen = HashSet::new();
        let mut next = Some(top);
        while let Some(id) = next {
            let Some(layer) = self.layers.get(id) else { return Some(id.to_owned()) };
            if !seen.insert(id) {
                return None;
            }
            reached.insert(&layer.id);
            next = layer.parent.as_deref();
        }
        None
    }
}
