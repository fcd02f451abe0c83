//! The CRI calls, modified by [`Behaviour`].

use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;

use k8s_cri::v1;
use k8s_cri::v1::image_service_server::ImageService;
use k8s_cri::v1::runtime_service_server::RuntimeService;
use tokio::time::sleep;
use tonic::{Request, Response, Status};

use super::Shared;
use super::behaviour::{Answers, Behaviour, Listing, Removal};
use super::podman::Podman;

pub(super) struct Images(pub(super) Arc<Shared>);
pub(super) struct Runtime(pub(super) Arc<Shared>);

type Answer<T> = Result<Response<T>, Status>;

impl Shared {
    /// Records a call and waits for the delay of every answer.
    async fn enter(&self, call: &str, id: &str) -> Behaviour {
        let line = if id.is_empty() { call.to_owned() } else { format!("{call} {id}") };
        self.calls.lock().unwrap().push(line);
        let behaviour = self.behaviour.lock().unwrap().clone();
        if let Some(delay) = behaviour.delay {
            sleep(delay).await;
        }
        behaviour
    }

    /// Asks the store on a thread that may block.
    async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Podman) -> Result<T, String> + Send + 'static,
    ) -> Result<T, Status> {
        let podman = self.podman.clone();
        let done = tokio::task::spawn_blocking(move || work(&podman)).await;
        // CRI-O passes the library's errors on without its own code.
        done.map_err(|error| Status::internal(error.to_string()))?.map_err(Status::unknown)
    }

    /// The images as a behaviour shows them.
    async fn images(&self, behaviour: &Behaviour) -> Result<Vec<v1::Image>, Status> {
        let mut images = self.ask(Podman::images).await?;
        for image in &mut images {
            image.pinned = image.repo_tags.iter().any(|tag| behaviour.pinned.contains(tag));
        }
        images.retain(|image| !image.repo_tags.iter().any(|tag| behaviour.unlisted.contains(tag)));
        Ok(images)
    }

    /// Ends the server in the middle of a call.
    async fn die(&self) -> ! {
        self.end.lock().unwrap().notify_one();
        pending::<()>().await;
        unreachable!()
    }
}

/// Changes a listing according to the behaviour.
async fn spoil<T>(
    listing: Listing,
    mut all: Vec<T>,
    id: fn(&mut T) -> &mut String,
) -> Result<Vec<T>, Status> {
    match listing {
        Listing::Honest => {}
        Listing::Error(message) => return Err(Status::unknown(message)),
        Listing::Hang => pending().await,
        Listing::LeaveOut(count) => drop(all.drain(..count.min(all.len()))),
        Listing::WrongIds => all.iter_mut().for_each(|object| {
            let id = id(object);
            let first = if id.starts_with('0') { "1" } else { "0" };
            id.replace_range(..1, first);
        }),
        Listing::SameId => {
            let first = id(&mut all[0]).clone();
            *id(&mut all[1]) = first;
        }
        Listing::EmptyId => id(&mut all[0]).clear(),
    }
    Ok(all)
}

#[tonic::async_trait]
impl ImageService for Images {
    async fn list_images(&self, _: Request<v1::ListImagesRequest>) -> Answer<v1::ListImagesResponse> {
        let behaviour = self.0.enter("ListImages", "").await;
        let mut images = self.0.images(&behaviour).await?;
        images.extend(self.0.ask(|podman| Ok(podman.artifacts())).await?);
        images.extend((0..behaviour.extra_images).map(extra_image));
        let images = spoil(behaviour.images, images, |image| &mut image.id).await?;
        Ok(Response::new(v1::ListImagesResponse { images }))
    }

    async fn image_status(
        &self,
        request: Request<v1::ImageStatusRequest>,
    ) -> Answer<v1::ImageStatusResponse> {
        let wanted = request.into_inner().image.unwrap_or_default().image;
        let behaviour = self.0.enter("ImageStatus", &wanted).await;
        match behaviour.images {
            Listing::Error(message) => return Err(Status::unknown(message)),
            Listing::Hang => pending().await,
            _ => {}
        }
        let images = self.0.images(&behaviour).await?;
        let image = images.into_iter().find(|image| image.id == wanted || image.repo_tags.contains(&wanted));
        Ok(Response::new(v1::ImageStatusResponse { image, ..Default::default() }))
    }

    async fn pull_image(&self, _: Request<v1::PullImageRequest>) -> Answer<v1::PullImageResponse> {
        Err(Status::unimplemented("this server has no network"))
    }

    async fn remove_image(
        &self,
        request: Request<v1::RemoveImageRequest>,
    ) -> Answer<v1::RemoveImageResponse> {
        let wanted = request.into_inner().image.unwrap_or_default().image;
        let behaviour = self.0.enter("RemoveImage", &wanted).await;
        let done = Ok(Response::new(v1::RemoveImageResponse {}));
        let images = self.0.ask(Podman::images).await?;
        let image = images.into_iter().find(|image| image.id == wanted || image.repo_tags.contains(&wanted));
        let Some(image) = image else {
            // An id that no image has counts as removed; artifacts are only looked up by name.
            if wanted.contains('@') && behaviour.removal(&wanted, &[]) == Removal::Honest {
                self.0.podman.remove_artifact(&wanted);
            }
            return done;
        };
        let removal = behaviour.removal(&image.id, &image.repo_tags);
        match removal {
            Removal::Honest => self.0.ask(move |podman| podman.remove_image(&image)).await?,
            Removal::Refuse => {
                let words = "delete image: image used by 9e0f: image is in use by a container";
                return Err(Status::unknown(words));
            }
            Removal::Fail => return Err(Status::unknown("delete image: input/output error")),
            Removal::HalfFail => {
                self.0.ask(move |podman| podman.untag_one(&image)).await?;
                return Err(Status::unknown("delete image: unlinkat: device or resource busy"));
            }
            Removal::Lie => {}
            Removal::Late(after) => {
                let podman = self.0.podman.clone();
                let late = std::thread::spawn(move || {
                    std::thread::sleep(after);
                    podman.remove_image(&image).expect("a late removal");
                });
                self.0.late.lock().unwrap().push(late);
            }
            Removal::Slow(time) => {
                sleep(time).await;
                self.0.ask(move |podman| podman.remove_image(&image)).await?;
            }
            Removal::DieBefore => self.0.die().await,
            Removal::DieAfter => {
                self.0.ask(move |podman| podman.remove_image(&image)).await?;
                self.0.die().await;
            }
            Removal::Hang => pending().await,
        }
        done
    }

    async fn image_fs_info(&self, _: Request<v1::ImageFsInfoRequest>) -> Answer<v1::ImageFsInfoResponse> {
        self.0.enter("ImageFsInfo", "").await;
        let store = self.0.podman.store();
        let directory = store.root().join(format!("{}-images", store.driver()));
        // CRI-O counts only the image records; the figure must not be used.
        let usage = v1::FilesystemUsage {
            fs_id: Some(v1::FilesystemIdentifier { mountpoint: directory.display().to_string() }),
            used_bytes: Some(v1::UInt64Value { value: 37_000 }),
            inodes_used: Some(v1::UInt64Value { value: 12 }),
            ..v1::FilesystemUsage::default()
        };
        Ok(Response::new(v1::ImageFsInfoResponse {
            image_filesystems: vec![usage.clone()],
            container_filesystems: vec![usage],
        }))
    }
}

/// Returns an image that no store contains, with names as long as real ones.
fn extra_image(number: usize) -> v1::Image {
    let name = format!("registry.example.com/team/project/service-{number:06}");
    v1::Image {
        id: format!("{number:064x}"),
        repo_tags: vec![format!("{name}:2026.11.21-build.{number}")],
        repo_digests: vec![format!("{name}@sha256:{:064x}", number + 1)],
        size: 1,
        ..v1::Image::default()
    }
}

/// Calls that the tests do not need.
macro_rules! not_offered {
    ($($name:ident($request:ident) -> $response:ident;)*) => {$(
        fn $name<'life0, 'async_trait>(
            &'life0 self,
            _: Request<v1::$request>,
        ) -> Pin<Box<dyn Future<Output = Answer<v1::$response>> + Send + 'async_trait>>
        where
            'life0: 'async_trait,
            Self: 'async_trait,
        {
            Box::pin(async { Err(Status::unimplemented("not offered by the test server")) })
        }
    )*};
}

impl Runtime {
    /// Removes a container or sandbox, or does what the behaviour wants instead. Like every runtime, it does not check
    /// whether a process runs in it.
    async fn remove(&self, removal: Removal, id: String) -> Result<(), Status> {
        let shared = &self.0;
        let honest = |id: String| async move { shared.ask(move |podman| podman.remove_container(&id)).await };
        match removal {
            Removal::Honest => honest(id).await,
            Removal::Refuse => Err(Status::unknown("failed to set removing state: it is busy")),
            Removal::Fail | Removal::HalfFail => Err(Status::unknown("unlinkat: device or resource busy")),
            Removal::Lie => Ok(()),
            Removal::Late(after) => {
                let podman = shared.podman.clone();
                let late = std::thread::spawn(move || {
                    std::thread::sleep(after);
                    podman.remove_container(&id).expect("a late removal");
                });
                shared.late.lock().unwrap().push(late);
                Ok(())
            }
            Removal::Slow(time) => {
                sleep(time).await;
                honest(id).await
            }
            Removal::DieBefore => shared.die().await,
            Removal::DieAfter => {
                honest(id).await?;
                shared.die().await;
            }
            Removal::Hang => pending().await,
        }
    }
}

/// Returns the state that the behaviour reports for a container.
fn told(states: &[(String, &'static str)], id: &str) -> Option<i32> {
    let (_, text) = states.iter().find(|(about, _)| about == id)?;
    Some(super::podman::state(text).into())
}

#[tonic::async_trait]
impl RuntimeService for Runtime {
    async fn version(&self, _: Request<v1::VersionRequest>) -> Answer<v1::VersionResponse> {
        self.0.enter("Version", "").await;
        Ok(Response::new(v1::VersionResponse {
            version: "0.1.0".into(),
            runtime_name: "cri-o".into(),
            runtime_version: "1.30.0-test".into(),
            runtime_api_version: "v1".into(),
        }))
    }

    async fn status(&self, request: Request<v1::StatusRequest>) -> Answer<v1::StatusResponse> {
        self.0.enter("Status", "").await;
        let conditions = ["RuntimeReady", "NetworkReady"].map(|kind| v1::RuntimeCondition {
            r#type: kind.into(),
            status: true,
            ..Default::default()
        });
        let config = ("config".to_owned(), "{\"sandboxImage\":\"registry.k8s.io/pause:3.9\"}".to_owned());
        Ok(Response::new(v1::StatusResponse {
            status: Some(v1::RuntimeStatus { conditions: conditions.into() }),
            info: if request.into_inner().verbose { [config].into() } else { [].into() },
            ..v1::StatusResponse::default()
        }))
    }

    async fn list_containers(
        &self,
        request: Request<v1::ListContainersRequest>,
    ) -> Answer<v1::ListContainersResponse> {
        let sandbox = request.into_inner().filter.unwrap_or_default().pod_sandbox_id;
        let behaviour = self.0.enter("ListContainers", &sandbox).await;
        let mut containers = self.0.ask(move |podman| podman.containers(behaviour.old_image_ref)).await?;
        containers.retain(|container| sandbox.is_empty() || container.pod_sandbox_id == sandbox);
        for container in &mut containers {
            if let Some(told) = told(&behaviour.listed_states, &container.id) {
                container.state = told;
            }
        }
        let containers = spoil(behaviour.containers, containers, |container| &mut container.id).await?;
        Ok(Response::new(v1::ListContainersResponse { containers }))
    }

    async fn container_status(
        &self,
        request: Request<v1::ContainerStatusRequest>,
    ) -> Answer<v1::ContainerStatusResponse> {
        let id = request.into_inner().container_id;
        let behaviour = self.0.enter("ContainerStatus", &id).await;
        let wanted = id.clone();
        let status = self.0.ask(move |podman| podman.container_status(&wanted)).await?;
        let status = match behaviour.statuses {
            Answers::Honest => status,
            Answers::Error(message) => return Err(Status::unknown(message)),
            Answers::Gone => None,
        };
        let volumes = behaviour.image_volumes.iter().filter(|(container, _)| *container == id);
        let mounts = volumes.map(|(_, image)| v1::Mount {
            container_path: "/models".into(),
            readonly: true,
            image: Some(v1::ImageSpec { image: image.clone(), ..Default::default() }),
            ..v1::Mount::default()
        });
        let mounts = mounts.collect();
        let Some(mut status) = status.map(|status| v1::ContainerStatus { mounts, ..status }) else {
            return Err(Status::not_found(format!("could not find container {id:?}")));
        };
        status.state = told(&behaviour.told_states, &id).unwrap_or(status.state);
        Ok(Response::new(v1::ContainerStatusResponse { status: Some(status), ..Default::default() }))
    }

    async fn list_pod_sandbox(
        &self,
        _: Request<v1::ListPodSandboxRequest>,
    ) -> Answer<v1::ListPodSandboxResponse> {
        let behaviour = self.0.enter("ListPodSandbox", "").await;
        let sandboxes = self.0.ask(Podman::sandboxes).await?;
        let items = spoil(behaviour.sandboxes, sandboxes, |sandbox| &mut sandbox.id).await?;
        Ok(Response::new(v1::ListPodSandboxResponse { items }))
    }

    async fn stop_container(
        &self,
        request: Request<v1::StopContainerRequest>,
    ) -> Answer<v1::StopContainerResponse> {
        let id = request.into_inner().container_id;
        let behaviour = self.0.enter("StopContainer", &id).await;
        if behaviour.unstoppable.contains(&id) {
            return Err(Status::unknown("it does not stop"));
        }
        self.0.podman.set_state(&id, "exited");
        Ok(Response::new(v1::StopContainerResponse {}))
    }

    async fn remove_container(
        &self,
        request: Request<v1::RemoveContainerRequest>,
    ) -> Answer<v1::RemoveContainerResponse> {
        let id = request.into_inner().container_id;
        let behaviour = self.0.enter("RemoveContainer", &id).await;
        self.remove(behaviour.removal(&id, &[]), id).await?;
        Ok(Response::new(v1::RemoveContainerResponse {}))
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<v1::StopPodSandboxRequest>,
    ) -> Answer<v1::StopPodSandboxResponse> {
        let id = request.into_inner().pod_sandbox_id;
        let behaviour = self.0.enter("StopPodSandbox", &id).await;
        if behaviour.unstoppable.contains(&id) {
            return Err(Status::unknown("it does not stop"));
        }
        self.0.podman.set_state(&id, "exited");
        Ok(Response::new(v1::StopPodSandboxResponse {}))
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<v1::RemovePodSandboxRequest>,
    ) -> Answer<v1::RemovePodSandboxResponse> {
        let id = request.into_inner().pod_sandbox_id;
        let behaviour = self.0.enter("RemovePodSandbox", &id).await;
        self.remove(behaviour.removal(&id, &[]), id).await?;
        Ok(Response::new(v1::RemovePodSandboxResponse {}))
    }

    type GetContainerEventsStream = tokio_stream::Empty<Result<v1::ContainerEventResponse, Status>>;

    async fn get_container_events(
        &self,
        _: Request<v1::GetEventsRequest>,
    ) -> Answer<Self::GetContainerEventsStream> {
        Err(Status::unimplemented("not offered by the test server"))
    }

    not_offered! {
        run_pod_sandbox(RunPodSandboxRequest) -> RunPodSandboxResponse;
        pod_sandbox_status(PodSandboxStatusRequest) -> PodSandboxStatusResponse;
        create_container(CreateContainerRequest) -> CreateContainerResponse;
        start_container(StartContainerRequest) -> StartContainerResponse;
        update_container_resources(UpdateContainerResourcesRequest) -> UpdateContainerResourcesResponse;
        reopen_container_log(ReopenContainerLogRequest) -> ReopenContainerLogResponse;
        exec_sync(ExecSyncRequest) -> ExecSyncResponse;
        exec(ExecRequest) -> ExecResponse;
        attach(AttachRequest) -> AttachResponse;
        port_forward(PortForwardRequest) -> PortForwardResponse;
        container_stats(ContainerStatsRequest) -> ContainerStatsResponse;
        list_container_stats(ListContainerStatsRequest) -> ListContainerStatsResponse;
        pod_sandbox_stats(PodSandboxStatsRequest) -> PodSandboxStatsResponse;
        list_pod_sandbox_stats(ListPodSandboxStatsRequest) -> ListPodSandboxStatsResponse;
        update_runtime_config(UpdateRuntimeConfigRequest) -> UpdateRuntimeConfigResponse;
        checkpoint_container(CheckpointContainerRequest) -> CheckpointContainerResponse;
        list_metric_descriptors(ListMetricDescriptorsRequest) -> ListMetricDescriptorsResponse;
        list_pod_sandbox_metrics(ListPodSandboxMetricsRequest) -> ListPodSandboxMetricsResponse;
        runtime_config(RuntimeConfigRequest) -> RuntimeConfigResponse;
    }
}
