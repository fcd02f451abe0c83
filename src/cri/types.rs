//! Objects of the runtime's listings, converted from the protobuf messages.
//!
//! Texts are untrusted and unchanged, times are the runtime's clock, and ids are compared as a whole, never by prefix.
//! Every inconsistency in a listing is an error, so that an empty list proves that the runtime has no such object.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use jiff::Timestamp;
use k8s_cri::v1;

use super::error::CriProblem;
use crate::model::ContainerState;

/// The kubelet's label with a pod's uid (`pkg/kubelet/types/labels.go`).
const POD_UID: &str = "io.kubernetes.pod.uid";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeImage {
    /// containerd: `sha256:<digest of the configuration>`; CRI-O: the bare hex id.
    pub id: String,
    /// Names with tags. Early versions of CRI-O also listed `<none>:<none>`.
    pub tags: Vec<String>,
    pub digests: Vec<String>,
    /// Size that the runtime reports, in bytes: compressed (containerd) or unpacked (CRI-O), with shared layers counted
    /// in full for each image. It is not the number of bytes that a removal frees.
    pub listed_bytes: u64,
    /// The runtime reports the image as pinned. containerd before 1.6.25 and 1.7.10 reports `false` for pinned images.
    pub pinned: bool,
    /// Runtime handler for which the image was pulled; a removal passes it back to the runtime.
    pub runtime_handler: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeContainer {
    pub id: String,
    pub sandbox_id: String,
    pub name: String,
    /// Number of times that the container was recreated.
    pub attempt: u32,
    /// Uid of the pod, from the kubelet's label; empty without the label (crictl).
    pub pod_uid: String,
    /// `image_id`: id of the image, if the runtime fills it (from CRI-O 1.30 and containerd 2.3.0).
    pub image_id: String,
    /// `image_ref`: the image's id in containerd and newer CRI-O, a repo digest in older CRI-O.
    pub image_ref: String,
    /// `image.image`: the reference that was requested, a name or an id.
    pub image_asked: String,
    /// Name in the pod's specification, if the runtime keeps it.
    pub user_image: String,
    pub state: ContainerState,
    /// Time of creation; `None` if the runtime reports 0.
    pub created: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerDetails {
    pub state: ContainerState,
    /// Time of creation; `None` if the runtime reports 0.
    pub created: Option<Timestamp>,
    /// Time of exit. The age of an exited container starts here.
    pub finished: Option<Timestamp>,
    /// Images that are mounted as volumes, by the references that were requested.
    pub image_volumes: Vec<String>,
    /// Path of the log; empty if the container has none.
    pub log_path: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeSandbox {
    pub id: String,
    pub name: String,
    pub namespace: String,
    pub uid: String,
    /// Uid of the pod, from the kubelet's label; empty without the label (crictl).
    pub pod_uid: String,
    /// The sandbox is ready, which means that it runs.
    pub ready: bool,
    /// Time of creation; `None` if the runtime reports 0.
    pub created: Option<Timestamp>,
    pub runtime_handler: String,
}

/// Converts a listing of images, without repetitions and sorted by id. An id may occur once for each runtime handler.
/// CRI-O lists an image once for each store that contains it (the graphroot and additional image stores), so an exact
/// repetition is not a contradiction.
pub(super) fn images(answer: v1::ListImagesResponse) -> Result<Vec<RuntimeImage>, CriProblem> {
    let images = each_once("an image", answer.images, |image| {
        let handler = image.spec.as_ref().map(|spec| spec.runtime_handler.clone());
        (image.id.clone(), handler.unwrap_or_default())
    })?;
    Ok(images.into_iter().map(RuntimeImage::from).collect())
}

pub(super) fn image(
    id: &str,
    handler: &str,
    answer: v1::ImageStatusResponse,
) -> Result<Option<RuntimeImage>, CriProblem> {
    match answer.image {
        Some(image) if image.id != id => {
            Err(CriProblem::Contradiction(format!("asked for image {id}, got {:?}", image.id)))
        }
        image => Ok(image.map(|image| RuntimeImage { runtime_handler: handler.into(), ..image.into() })),
    }
}

impl From<v1::Image> for RuntimeImage {
    fn from(image: v1::Image) -> Self {
        Self {
            id: image.id,
            tags: image.repo_tags,
            digests: image.repo_digests,
            listed_bytes: image.size,
            pinned: image.pinned,
            runtime_handler: image.spec.unwrap_or_default().runtime_handler,
        }
    }
}

pub(super) fn containers(answer: v1::ListContainersResponse) -> Result<Vec<RuntimeContainer>, CriProblem> {
    let mut containers = Vec::new();
    for mut container in
        each_once("a container", answer.containers, |container| (container.id.clone(), String::new()))?
    {
        let metadata = container.metadata.unwrap_or_default();
        let image = container.image.unwrap_or_default();
        containers.push(RuntimeContainer {
            state: container_state(container.state),
            id: container.id,
            sandbox_id: container.pod_sandbox_id,
            name: metadata.name,
            attempt: metadata.attempt,
            pod_uid: container.labels.remove(POD_UID).unwrap_or_default(),
            image_id: container.image_id,
            image_ref: container.image_ref,
            image_asked: image.image,
            user_image: image.user_specified_image,
            created: moment(container.created_at),
        });
    }
    Ok(containers)
}

pub(super) fn sandboxes(answer: v1::ListPodSandboxResponse) -> Result<Vec<RuntimeSandbox>, CriProblem> {
    let mut sandboxes = Vec::new();
    for mut sandbox in each_once("a sandbox", answer.items, |sandbox| (sandbox.id.clone(), String::new()))? {
        let ready = sandbox.state() == v1::PodSandboxState::SandboxReady;
        let metadata = sandbox.metadata.unwrap_or_default();
        sandboxes.push(RuntimeSandbox {
            id: sandbox.id,
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            pod_uid: sandbox.labels.remove(POD_UID).unwrap_or_default(),
            ready,
            created: moment(sandbox.created_at),
            runtime_handler: sandbox.runtime_handler,
        });
    }
    Ok(sandboxes)
}

pub(super) fn details(id: &str, answer: v1::ContainerStatusResponse) -> Result<ContainerDetails, CriProblem> {
    let Some(status) = answer.status else {
        return Err(CriProblem::Contradiction("an empty status".into()));
    };
    if status.id != id {
        return Err(CriProblem::Contradiction(format!("asked for container {id}, got {:?}", status.id)));
    }
    let volumes = status.mounts.into_iter().filter_map(|mount| Some(mount.image?.image));
    Ok(ContainerDetails {
        state: container_state(status.state),
        created: moment(status.created_at),
        finished: moment(status.finished_at),
        image_volumes: volumes.filter(|image| !image.is_empty()).collect(),
        log_path: status.log_path,
    })
}

/// Returns the objects sorted by their key and without exact repetitions.
///
/// # Errors
/// If an object has an empty id, or two different objects have the same key. The key is the id and a runtime handler;
/// `what` names an object in the message.
fn each_once<W: PartialEq>(
    what: &str,
    objects: Vec<W>,
    key: impl Fn(&W) -> (String, String),
) -> Result<Vec<W>, CriProblem> {
    // containerd lists in another order each time.
    let mut kept: BTreeMap<(String, String), W> = BTreeMap::new();
    for object in objects {
        match kept.entry(key(&object)) {
            Entry::Vacant(new) if new.key().0.is_empty() => {
                return Err(CriProblem::Contradiction(format!("it has {what} without an id")));
            }
            Entry::Vacant(new) => drop(new.insert(object)),
            Entry::Occupied(known) if *known.get() == object => {}
            Entry::Occupied(known) => {
                let message = format!("it has {what} twice, and differently: {}", known.key().0);
                return Err(CriProblem::Contradiction(message));
            }
        }
    }
    Ok(kept.into_values().collect())
}

fn container_state(state: i32) -> ContainerState {
    match v1::ContainerState::try_from(state) {
        Ok(v1::ContainerState::ContainerCreated) => ContainerState::Created,
        Ok(v1::ContainerState::ContainerRunning) => ContainerState::Running,
        Ok(v1::ContainerState::ContainerExited) => ContainerState::Exited,
        Ok(v1::ContainerState::ContainerUnknown) | Err(_) => ContainerState::Unknown,
    }
}

/// Converts nanoseconds since 1970. An event that has not happened is 0, or Go's zero time, which is negative.
fn moment(nanoseconds: i64) -> Option<Timestamp> {
    if nanoseconds <= 0 {
        return None;
    }
    Timestamp::from_nanosecond(i128::from(nanoseconds)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(id: &str, tag: &str, handler: &str) -> v1::Image {
        let spec = v1::ImageSpec { runtime_handler: handler.into(), ..v1::ImageSpec::default() };
        v1::Image { id: id.into(), repo_tags: vec![tag.into()], spec: Some(spec), ..v1::Image::default() }
    }

    fn listed(all: &[v1::Image]) -> Result<usize, String> {
        let answer = v1::ListImagesResponse { images: all.to_vec() };
        images(answer).map(|images| images.len()).map_err(|problem| problem.to_string())
    }

    #[test]
    fn exact_repetitions_and_handlers_are_allowed() {
        assert_eq!(listed(&[]), Ok(0));
        assert_eq!(listed(&[image("a", "x:1", ""), image("b", "y:1", "")]), Ok(2));
        assert_eq!(listed(&[image("a", "x:1", ""), image("a", "x:1", "kata")]), Ok(2), "two handlers");
        assert_eq!(listed(&[image("a", "x:1", ""), image("a", "x:1", "")]), Ok(1), "a repetition");
    }

    #[test]
    fn contradictory_listings_are_rejected() {
        let twice = listed(&[image("a", "x:1", ""), image("b", "y:1", ""), image("a", "y:2", "")]);
        assert!(twice.unwrap_err().contains("image twice, and differently: a"));
        assert!(listed(&[image("", "x:1", "")]).unwrap_err().contains("an image without an id"));

        let nameless = v1::ListContainersResponse { containers: vec![v1::Container::default()] };
        let error = containers(nameless).unwrap_err().to_string();
        assert!(error.contains("a container without an id"), "{error}");
        let nameless = v1::ListPodSandboxResponse { items: vec![v1::PodSandbox::default()] };
        assert!(sandboxes(nameless).unwrap_err().to_string().contains("a sandbox without an id"));

        let other = v1::ContainerStatus { id: "b".into(), ..v1::ContainerStatus::default() };
        let other = v1::ContainerStatusResponse { status: Some(other), ..Default::default() };
        assert!(details("a", other).unwrap_err().to_string().contains("got \"b\""));
        assert!(details("a", v1::ContainerStatusResponse::default()).is_err());
    }

    #[test]
    fn zero_times_are_none() {
        assert_eq!(moment(0), None);
        assert_eq!(moment(-6_795_364_578_871_345_152), None, "Go's zero time");
        assert_eq!(moment(1_700_000_000_000_000_001).unwrap().as_nanosecond(), 1_700_000_000_000_000_001);
    }

    #[test]
    fn states_are_converted() {
        let known = [
            ContainerState::Created,
            ContainerState::Running,
            ContainerState::Exited,
            ContainerState::Unknown,
            ContainerState::Unknown,
        ];
        for (number, state) in (0..).zip(known) {
            assert_eq!(container_state(number), state);
        }
    }
}
