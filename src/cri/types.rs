//! What is taken from the runtime's listings. Texts are untrusted and unchanged; times are the runtime's
//! clock; ids are compared as a whole, never by prefix. Every inconsistency in a listing is an error, so
//! that an empty list proves that there is nothing.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use jiff::Timestamp;
use k8s_cri::v1;

use super::error::CriProblem;
use crate::model::ContainerState;

/// The kubelet's label with a pod's uid (`pkg/kubelet/types/labels.go`).
const POD_UID: &str = "io.kubernetes.pod.uid";

/// An image as a runtime lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeImage {
    /// containerd: `sha256:<digest of the configuration>`; CRI-O: the bare hex id.
    pub id: String,
    /// Names with tags. CRI-O wrote `<none>:<none>` in early versions.
    pub tags: Vec<String>,
    /// Names with digests.
    pub digests: Vec<String>,
    /// The size that the runtime reports: compressed (containerd) or unpacked (CRI-O)
    /// bytes, shared layers in full for each image. Not what its removal frees.
    pub listed_bytes: u64,
    /// The runtime calls it pinned. containerd before 1.6.25 and 1.7.10 says false of images
    /// that are.
    pub pinned: bool,
    /// The runtime handler that it was pulled for; goes back to the runtime with a removal.
    pub runtime_handler: String,
}

/// A container as a runtime lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeContainer {
    pub id: String,
    /// The id of its pod's sandbox.
    pub sandbox_id: String,
    /// Its name in the pod.
    pub name: String,
    /// How often it was recreated.
    pub attempt: u32,
    /// The pod's uid from the kubelet's label; empty where there is none (crictl).
    pub pod_uid: String,
    /// `image_id`: the image's id where the runtime fills it (CRI-O 1.30, containerd 2.3.0 on).
    pub image_id: String,
    /// `image_ref`: the image's id in containerd and newer CRI-O, a repo digest in older CRI-O.
    pub image_ref: String,
    /// `image.image`: what was asked for, a name or an id.
    pub image_asked: String,
    /// The name in the pod's specification, where the runtime keeps it.
    pub user_image: String,
    pub state: ContainerState,
    /// When it was made; `None` where the runtime says 0.
    pub created: Option<Timestamp>,
}

/// Details that only the status of one container has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerDetails {
    pub state: ContainerState,
    /// When it was made; `None` where the runtime says 0.
    pub created: Option<Timestamp>,
    /// When it ended: its death, from which its age as a dead container counts.
    pub finished: Option<Timestamp>,
    /// The images that are mounted into it as volumes, as they were asked for.
    pub image_volumes: Vec<String>,
    /// Where its log is, empty if it has none.
    pub log_path: String,
}

/// A pod sandbox as a runtime lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeSandbox {
    pub id: String,
    /// The pod's name.
    pub name: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's uid.
    pub uid: String,
    /// The same from the kubelet's label; empty where there is none (crictl).
    pub pod_uid: String,
    /// Ready: it runs.
    pub ready: bool,
    /// When it was made; `None` where the runtime says 0.
    pub created: Option<Timestamp>,
    /// The runtime handler it runs with.
    pub runtime_handler: String,
}

/// Images, each once and in order of their ids. One id may stand for several handlers. CRI-O lists an
/// image that an additional image store has too once for each store: an exact repetition contradicts
/// nothing.
pub(super) fn images(answer: v1::ListImagesResponse) -> Result<Vec<RuntimeImage>, CriProblem> {
    let image = |one: v1::Image| RuntimeImage {
        id: one.id,
        tags: one.repo_tags,
        digests: one.repo_digests,
        listed_bytes: one.size,
        pinned: one.pinned,
        runtime_handler: one.spec.unwrap_or_default().runtime_handler,
    };
    each_once("an image", answer.images, image, |one| {
        let handler = one.spec.as_ref().map(|spec| spec.runtime_handler.clone());
        (one.id.clone(), handler.unwrap_or_default())
    })
}

pub(super) fn containers(answer: v1::ListContainersResponse) -> Result<Vec<RuntimeContainer>, CriProblem> {
    let container = |mut one: v1::Container| {
        let metadata = one.metadata.unwrap_or_default();
        let image = one.image.unwrap_or_default();
        RuntimeContainer {
            state: container_state(one.state),
            id: one.id,
            sandbox_id: one.pod_sandbox_id,
            name: metadata.name,
            attempt: metadata.attempt,
            pod_uid: one.labels.remove(POD_UID).unwrap_or_default(),
            image_id: one.image_id,
            image_ref: one.image_ref,
            image_asked: image.image,
            user_image: image.user_specified_image,
            created: moment(one.created_at),
        }
    };
    each_once("a container", answer.containers, container, |one| (one.id.clone(), String::new()))
}

pub(super) fn sandboxes(answer: v1::ListPodSandboxResponse) -> Result<Vec<RuntimeSandbox>, CriProblem> {
    let sandbox = |mut one: v1::PodSandbox| {
        let ready = one.state() == v1::PodSandboxState::SandboxReady;
        let metadata = one.metadata.unwrap_or_default();
        RuntimeSandbox {
            id: one.id,
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            pod_uid: one.labels.remove(POD_UID).unwrap_or_default(),
            ready,
            created: moment(one.created_at),
            runtime_handler: one.runtime_handler,
        }
    };
    each_once("a sandbox", answer.items, sandbox, |one| (one.id.clone(), String::new()))
}

/// The status of the container `id`.
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

/// `all` in order of their keys (an id first), if each has an id and no key stands for two different things.
fn each_once<W: PartialEq, T>(
    what: &str,
    all: Vec<W>,
    convert: impl Fn(W) -> T,
    key: impl Fn(&W) -> (String, String),
) -> Result<Vec<T>, CriProblem> {
    // containerd lists in another order each time.
    let mut kept: BTreeMap<(String, String), W> = BTreeMap::new();
    for one in all {
        match kept.entry(key(&one)) {
            Entry::Vacant(new) if new.key().0.is_empty() => {
                return Err(CriProblem::Contradiction(format!("it has {what} without an id")));
            }
            Entry::Vacant(new) => drop(new.insert(one)),
            Entry::Occupied(known) if *known.get() == one => {}
            Entry::Occupied(known) => {
                let message = format!("it has {what} twice, and differently: {}", known.key().0);
                return Err(CriProblem::Contradiction(message));
            }
        }
    }
    Ok(kept.into_values().map(convert).collect())
}

fn container_state(state: i32) -> ContainerState {
    match v1::ContainerState::try_from(state) {
        Ok(v1::ContainerState::ContainerCreated) => ContainerState::Created,
        Ok(v1::ContainerState::ContainerRunning) => ContainerState::Running,
        Ok(v1::ContainerState::ContainerExited) => ContainerState::Exited,
        Ok(v1::ContainerState::ContainerUnknown) | Err(_) => ContainerState::Unknown,
    }
}

/// Nanoseconds since 1970. What has not happened is 0, or Go's zero time, which is negative.
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
    fn listings_that_count() {
        assert_eq!(listed(&[]), Ok(0));
        assert_eq!(listed(&[image("a", "x:1", ""), image("b", "y:1", "")]), Ok(2));
        assert_eq!(listed(&[image("a", "x:1", ""), image("a", "x:1", "kata")]), Ok(2), "two handlers");
        assert_eq!(listed(&[image("a", "x:1", ""), image("a", "x:1", "")]), Ok(1), "a repetition");
    }

    #[test]
    fn listings_that_cannot_be_trusted() {
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
    fn moments() {
        assert_eq!(moment(0), None);
        assert_eq!(moment(-6_795_364_578_871_345_152), None, "Go's zero time");
        assert_eq!(moment(1_700_000_000_000_000_001).unwrap().as_nanosecond(), 1_700_000_000_000_000_001);
    }

    #[test]
    fn states() {
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
