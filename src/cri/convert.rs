//! Converts protocol messages to our own types. Every inconsistency in a listing is an error, so that an
//! empty list proves that there is nothing.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use k8s_cri::v1;

use super::error::CriProblem;
use super::types::{
    Condition, ContainerDetails, ImageFilesystem, ImageFilesystems, Mount, POD_UID, RuntimeContainer,
    RuntimeImage, RuntimeSandbox, RuntimeStatus, RuntimeVersion,
};
use crate::model::ContainerState;

pub(super) fn version(answer: v1::VersionResponse) -> RuntimeVersion {
    RuntimeVersion {
        name: answer.runtime_name,
        version: answer.runtime_version,
        api_version: answer.runtime_api_version,
    }
}

pub(super) fn status(answer: v1::StatusResponse) -> RuntimeStatus {
    let conditions = answer.status.map(|status| status.conditions).unwrap_or_default();
    let condition = |one: v1::RuntimeCondition| Condition {
        kind: one.r#type,
        holds: one.status,
        reason: one.reason,
        message: one.message,
    };
    RuntimeStatus {
        conditions: conditions.into_iter().map(condition).collect(),
        info: answer.info.into_iter().collect(),
        handlers: answer.runtime_handlers.into_iter().map(|handler| handler.name).collect(),
    }
}

/// Images, each once and in order of their ids. One id may stand for several handlers. CRI-O lists an
/// image that an additional image store has too once for each store: an exact repetition contradicts
/// nothing.
pub(super) fn images(answer: v1::ListImagesResponse) -> Result<Vec<RuntimeImage>, CriProblem> {
    let image = |one: v1::Image| {
        let spec = one.spec.unwrap_or_default();
        RuntimeImage {
            id: one.id,
            tags: one.repo_tags,
            digests: one.repo_digests,
            listed_bytes: one.size,
            pinned: one.pinned,
            spec_image: spec.image,
            runtime_handler: spec.runtime_handler,
        }
    };
    let images = answer.images.into_iter().map(image);
    each_once("an image", images, |image| (image.id.clone(), image.runtime_handler.clone()))
}

pub(super) fn containers(answer: v1::ListContainersResponse) -> Result<Vec<RuntimeContainer>, CriProblem> {
    let container = |one: v1::Container| {
        let metadata = one.metadata.unwrap_or_default();
        let image = one.image.unwrap_or_default();
        RuntimeContainer {
            state: container_state(one.state),
            id: one.id,
            sandbox_id: one.pod_sandbox_id,
            name: metadata.name,
            attempt: metadata.attempt,
            pod_uid: one.labels.get(POD_UID).cloned().unwrap_or_default(),
            image_id: one.image_id,
            image_ref: one.image_ref,
            image_asked: image.image,
            user_image: image.user_specified_image,
            created: moment(one.created_at),
            labels: sorted(one.labels),
            annotations: sorted(one.annotations),
        }
    };
    let containers = answer.containers.into_iter().map(container);
    each_once("a container", containers, |container| (container.id.clone(), String::new()))
}

pub(super) fn sandboxes(answer: v1::ListPodSandboxResponse) -> Result<Vec<RuntimeSandbox>, CriProblem> {
    let sandbox = |one: v1::PodSandbox| {
        let ready = one.state() == v1::PodSandboxState::SandboxReady;
        let metadata = one.metadata.unwrap_or_default();
        RuntimeSandbox {
            id: one.id,
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            attempt: metadata.attempt,
            ready,
            created: moment(one.created_at),
            labels: sorted(one.labels),
            annotations: sorted(one.annotations),
            runtime_handler: one.runtime_handler,
        }
    };
    let sandboxes = answer.items.into_iter().map(sandbox);
    each_once("a sandbox", sandboxes, |sandbox| (sandbox.id.clone(), String::new()))
}

/// The status of the container `id`.
pub(super) fn details(id: &str, answer: v1::ContainerStatusResponse) -> Result<ContainerDetails, CriProblem> {
    let Some(status) = answer.status else {
        return Err(CriProblem::Contradiction("an empty status".into()));
    };
    if status.id != id {
        return Err(CriProblem::Contradiction(format!("asked for container {id}, got {:?}", status.id)));
    }
    let mount = |one: v1::Mount| Mount {
        container_path: one.container_path,
        host_path: one.host_path,
        image: one.image.map(|image| image.image).unwrap_or_default(),
    };
    Ok(ContainerDetails {
        state: container_state(status.state),
        id: status.id,
        created: moment(status.created_at),
        started: moment(status.started_at),
        finished: moment(status.finished_at),
        exit_code: status.exit_code,
        image_id: status.image_id,
        image_ref: status.image_ref,
        image_asked: status.image.map(|image| image.image).unwrap_or_default(),
        mounts: status.mounts.into_iter().map(mount).collect(),
        log_path: status.log_path,
    })
}

pub(super) fn filesystems(answer: v1::ImageFsInfoResponse) -> ImageFilesystems {
    let usage = |one: v1::FilesystemUsage| ImageFilesystem {
        directory: one.fs_id.map(|id| id.mountpoint).unwrap_or_default(),
        claimed_bytes: one.used_bytes.map(|bytes| bytes.value),
        claimed_inodes: one.inodes_used.map(|inodes| inodes.value),
    };
    ImageFilesystems {
        images: answer.image_filesystems.into_iter().map(usage).collect(),
        containers: answer.container_filesystems.into_iter().map(usage).collect(),
    }
}

/// `all` in order of their ids, if each has one and no id stands for two different things.
fn each_once<T: PartialEq>(
    what: &str,
    all: impl Iterator<Item = T>,
    key: impl Fn(&T) -> (String, String),
) -> Result<Vec<T>, CriProblem> {
    let mut places: HashMap<(String, String), usize> = HashMap::new();
    let mut kept: Vec<T> = Vec::new();
    for one in all {
        let own = key(&one);
        if own.0.is_empty() {
            return Err(CriProblem::Contradiction(format!("it has {what} without an id")));
        }
        match places.get(&own) {
            None => {
                places.insert(own, kept.len());
                kept.push(one);
            }
            Some(at) if kept.get(*at) == Some(&one) => {}
            Some(_) => {
                return Err(CriProblem::Contradiction(format!(
                    "it has {what} twice, and differently: {}",
                    own.0
                )));
            }
        }
    }
    // containerd lists in another order each time.
    kept.sort_by_cached_key(|one| key(one));
    Ok(kept)
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

fn sorted(map: HashMap<String, String>) -> BTreeMap<String, String> {
    map.into_iter().collect()
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
