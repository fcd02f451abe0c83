//! The calls of CRI that layersweep uses.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use k8s_cri::v1::image_service_client::ImageServiceClient;
use k8s_cri::v1::runtime_service_client::RuntimeServiceClient;
use k8s_cri::{v1, v1alpha2};
use tonic::transport::Channel;
use tonic::{Response, Status};

use super::connection::{Call, CallKind, Connection};
use super::deadlines::Options;
use super::endpoint::Endpoint;
use super::error::{CriError, CriProblem, one_line};
use super::raw;
use super::types::{self, ContainerDetails, RuntimeContainer, RuntimeImage, RuntimeSandbox};
use crate::model::text::reference::bare_id;

/// Version of the kubelet's API that a `Version` request carries. Runtimes ignore it.
const KUBELET_API_VERSION: &str = "0.1.0";

/// Client of a runtime that speaks CRI v1.
///
/// Every method blocks until the answer arrives or the deadline expires, so do not use it in an async runtime.
#[derive(Clone, Debug)]
pub struct Client {
    endpoint: Endpoint,
    options: Options,
    version: v1::VersionResponse,
    /// Connection of all calls, which the first one opens; `None`: each call has one of its own.
    connection: Option<Arc<OnceLock<Connection>>>,
}

impl Client {
    /// Connects to the runtime at `endpoint` and asks for its version.
    ///
    /// # Errors
    /// [`CriProblem::NotRunning`], [`CriProblem::NotListening`], [`CriProblem::Denied`] and
    /// [`CriProblem::Deadline`]; [`CriProblem::NotGrpc`], [`CriProblem::NoCri`] and [`CriProblem::OldApi`] if the
    /// service is not a runtime with CRI v1.
    pub fn connect(endpoint: Endpoint, options: Options) -> Result<Self, CriError> {
        let version = v1::VersionResponse::default();
        let mut client = Self { endpoint, options, version, connection: None };
        client.version = client.ask_version()?;
        Ok(client)
    }

    /// Replaces the deadlines, without a new connection.
    #[must_use]
    pub fn with_options(self, options: Options) -> Self {
        Self { options, ..self }
    }

    /// Returns a client for a few queries in a row: they share a connection, which closes with the client.
    #[must_use]
    pub(crate) fn for_queries(&self) -> Self {
        Self { connection: Some(Arc::default()), ..self.clone() }
    }

    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    #[must_use]
    pub fn version(&self) -> &v1::VersionResponse {
        &self.version
    }

    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the runtime's status, including the verbose part.
    pub fn status(&self) -> Result<v1::StatusResponse, CriError> {
        let request = v1::StatusRequest { verbose: true };
        let ask = async |channel| self.runtime(channel).status(request).await;
        self.call("Status", CallKind::Query, self.options.asking, ask)
    }

    /// Lists all images.
    ///
    /// # Errors
    /// If the call fails, or the listing contradicts itself and is discarded.
    pub fn images(&self) -> Result<Vec<RuntimeImage>, CriError> {
        // Without a filter: containerd ignores filters, so a filtered answer would prove nothing.
        let request = v1::ListImagesRequest { filter: None };
        let ask = async |channel| self.image_service(channel).list_images(request).await;
        let answer = self.call("ListImages", CallKind::Query, self.options.listing, ask)?;
        types::images(answer).map_err(|problem| self.error("ListImages", problem))
    }

    /// Returns an image as [`Self::images`] lists it for the runtime handler `handler`; `None` if the runtime does not
    /// have it. `id` is an id of that listing.
    pub fn image(&self, id: &str, handler: &str) -> Result<Option<RuntimeImage>, CriError> {
        const CALL: &str = "ImageStatus";
        self.whole_id(CALL, id)?;
        let spec = image_spec(id, handler);
        let request = v1::ImageStatusRequest { image: Some(spec), verbose: false };
        let ask = async |channel| self.image_service(channel).image_status(request).await;
        let answer = self.call(CALL, CallKind::Query, self.options.asking, ask)?;
        types::image(id, handler, answer).map_err(|problem| self.error(CALL, problem))
    }

    /// Lists the containers in every state, without sandboxes. CRI-O omits containers whose creation has not
    /// finished.
    ///
    /// # Errors
    /// If the call fails, or the listing contradicts itself and is discarded.
    pub fn containers(&self) -> Result<Vec<RuntimeContainer>, CriError> {
        self.list_containers(None)
    }

    /// Lists the containers of one sandbox, in every state.
    pub fn containers_in(&self, sandbox: &str) -> Result<Vec<RuntimeContainer>, CriError> {
        self.whole_id("ListContainers", sandbox)?;
        let filter = v1::ContainerFilter { pod_sandbox_id: sandbox.into(), ..Default::default() };
        let mut listed = self.list_containers(Some(filter))?;
        listed.retain(|container| container.sandbox_id == sandbox);
        Ok(listed)
    }

    fn list_containers(
        &self,
        filter: Option<v1::ContainerFilter>,
    ) -> Result<Vec<RuntimeContainer>, CriError> {
        let request = v1::ListContainersRequest { filter };
        let ask = async |channel| self.runtime(channel).list_containers(request).await;
        let answer = self.call("ListContainers", CallKind::Query, self.options.listing, ask)?;
        types::containers(answer).map_err(|problem| self.error("ListContainers", problem))
    }

    /// Returns the details that only a container's status contains: its exit and its mounts. Returns `None` if
    /// the runtime does not know the container, which may be deleted between the listing and this call.
    pub fn container(&self, id: &str) -> Result<Option<ContainerDetails>, CriError> {
        self.container_status(id, CallKind::Query)
    }

    fn container_status(&self, id: &str, kind: CallKind) -> Result<Option<ContainerDetails>, CriError> {
        const CALL: &str = "ContainerStatus";
        self.whole_id(CALL, id)?;
        let request = v1::ContainerStatusRequest { container_id: id.into(), verbose: false };
        let ask = async |channel| self.runtime(channel).container_status(request).await;
        match self.call(CALL, kind, self.options.asking, ask) {
            Ok(answer) => types::details(id, answer).map(Some).map_err(|problem| self.error(CALL, problem)),
            Err(CriError { problem: CriProblem::NotFound(_), .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Checks whether the runtime still knows a container. This is the runtime's part of the proof that a
    /// container was removed, so the call is made even after a signal.
    pub fn container_is_known(&self, id: &str) -> Result<bool, CriError> {
        Ok(self.container_status(id, CallKind::Completion)?.is_some())
    }

    /// Checks whether the runtime still lists a sandbox, even after a signal.
    pub fn sandbox_is_listed(&self, id: &str) -> Result<bool, CriError> {
        Ok(self.list_sandboxes(CallKind::Completion)?.iter().any(|sandbox| sandbox.id == id))
    }

    /// Lists the pod sandboxes in every state.
    ///
    /// # Errors
    /// If the call fails, or the listing contradicts itself and is discarded.
    pub fn sandboxes(&self) -> Result<Vec<RuntimeSandbox>, CriError> {
        self.list_sandboxes(CallKind::Query)
    }

    fn list_sandboxes(&self, kind: CallKind) -> Result<Vec<RuntimeSandbox>, CriError> {
        let request = v1::ListPodSandboxRequest { filter: None };
        let ask = async |channel| self.runtime(channel).list_pod_sandbox(request).await;
        let answer = self.call("ListPodSandbox", kind, self.options.listing, ask)?;
        types::sandboxes(answer).map_err(|problem| self.error("ListPodSandbox", problem))
    }

    /// Returns the directories in which the runtime stores images. The byte counts in the answer are not
    /// measurements.
    pub fn image_filesystems(&self) -> Result<v1::ImageFsInfoResponse, CriError> {
        let ask = async |channel| self.image_service(channel).image_fs_info(v1::ImageFsInfoRequest {}).await;
        self.call("ImageFsInfo", CallKind::Query, self.options.listing, ask)
    }

    /// Asks the runtime to remove an image with all its names. Success proves nothing: check the disk.
    ///
    /// `id` is an id of [`Self::images`], never a name: given a name, containerd removes the whole image behind it
    /// and CRI-O only untags it. `handler` is the runtime handler from the listing, usually empty.
    ///
    /// # Errors
    /// [`CriProblem::InUse`] if the runtime refuses. After [`CriProblem::Deadline`] and [`CriProblem::HungUp`] the
    /// image may be removed already, or may still be removed.
    pub fn remove_image(&self, id: &str, handler: &str) -> Result<(), CriError> {
        self.remove(id, id, handler)
    }

    /// Asks CRI-O to remove an artifact. `reference` is a name with the digest of the manifest, and identifies one
    /// entry. Given an id, CRI-O removes no artifact but reports success.
    pub fn remove_artifact(&self, reference: &str, handler: &str) -> Result<(), CriError> {
        let digest = reference.split_once('@').filter(|(name, _)| !name.is_empty());
        self.remove(reference, digest.map_or("", |(_, digest)| digest), handler)
    }

    fn remove(&self, reference: &str, id: &str, handler: &str) -> Result<(), CriError> {
        let request = v1::RemoveImageRequest { image: Some(image_spec(reference, handler)) };
        let ask = async |channel| self.image_service(channel).remove_image(request).await;
        self.act("RemoveImage", id, self.options.removing, ask)
    }

    /// Stops a container with a signal, and by force after `grace`. Succeeds if the container is already stopped.
    pub fn stop_container(&self, id: &str, grace: Duration) -> Result<(), CriError> {
        let timeout = i64::try_from(grace.as_secs()).unwrap_or(i64::MAX);
        let request = v1::StopContainerRequest { container_id: id.into(), timeout };
        let ask = async |channel| self.runtime(channel).stop_container(request).await;
        self.act("StopContainer", id, self.options.asking.saturating_add(grace), ask)
    }

    /// Removes a container. The runtime kills a running one, so the caller must have checked that it is stopped.
    pub fn remove_container(&self, id: &str) -> Result<(), CriError> {
        let request = v1::RemoveContainerRequest { container_id: id.into() };
        let ask = async |channel| self.runtime(channel).remove_container(request).await;
        self.act("RemoveContainer", id, self.options.removing, ask)
    }

    /// Stops a sandbox and releases its network. Succeeds if the sandbox is already stopped.
    pub fn stop_sandbox(&self, id: &str) -> Result<(), CriError> {
        let request = v1::StopPodSandboxRequest { pod_sandbox_id: id.into() };
        let ask = async |channel| self.runtime(channel).stop_pod_sandbox(request).await;
        self.act("StopPodSandbox", id, self.options.removing, ask)
    }

    /// Removes a sandbox. The runtime kills and removes its containers, so the caller must have checked that it
    /// contains no container.
    pub fn remove_sandbox(&self, id: &str) -> Result<(), CriError> {
        let request = v1::RemovePodSandboxRequest { pod_sandbox_id: id.into() };
        let ask = async |channel| self.runtime(channel).remove_pod_sandbox(request).await;
        self.act("RemovePodSandbox", id, self.options.removing, ask)
    }

    fn ask_version(&self) -> Result<v1::VersionResponse, CriError> {
        const CALL: &str = "Version";
        let version = String::from(KUBELET_API_VERSION);
        let request = v1::VersionRequest { version: version.clone() };
        let ask = async |channel| self.runtime(channel).version(request).await;
        let error = match self.call(CALL, CallKind::Query, self.options.asking, ask) {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        let words = match error.problem {
            CriProblem::Unimplemented(words) => words,
            CriProblem::HungUp(_) => {
                let problem = match raw::foreign(&self.endpoint) {
                    Some(words) => CriProblem::NotGrpc(format!("it begins with {words:?}")),
                    None => error.problem,
                };
                return Err(CriError { problem, ..error });
            }
            _ => return Err(error),
        };
        // The socket serves gRPC. A runtime older than CRI v1 answers under the old service name.
        let request = v1alpha2::VersionRequest { version };
        let ask = async |channel| {
            v1alpha2::runtime_service_client::RuntimeServiceClient::new(channel).version(request).await
        };
        let problem = match self.call(CALL, CallKind::Query, self.options.asking, ask) {
            Ok(old) => {
                let name = one_line(&format!("{} {}", old.runtime_name, old.runtime_version));
                CriProblem::OldApi(name)
            }
            Err(_) => CriProblem::NoCri(words),
        };
        Err(self.error(CALL, problem))
    }

    /// Makes a call that changes the object `id` and no other.
    fn act<T>(
        &self,
        call: &'static str,
        id: &str,
        deadline: Duration,
        ask: impl AsyncFnOnce(Channel) -> Result<Response<T>, Status>,
    ) -> Result<(), CriError> {
        self.whole_id(call, id)?;
        self.call(call, CallKind::Action, deadline, ask).map(drop)
    }

    fn call<T>(
        &self,
        call: &'static str,
        kind: CallKind,
        deadline: Duration,
        ask: impl AsyncFnOnce(Channel) -> Result<Response<T>, Status>,
    ) -> Result<T, CriError> {
        let started = std::time::Instant::now();
        let run = Call { endpoint: &self.endpoint, options: &self.options, kind, deadline };
        let answer = match &self.connection {
            None => run.run(ask),
            Some(connection) => match connection.get() {
                Some(open) => run.run_on(open, ask),
                None => run.connect().and_then(|made| run.run_on(connection.get_or_init(|| made), ask)),
            },
        };
        let result = answer.map_err(|problem| self.error(call, problem));
        tracing::debug!(endpoint = %self.endpoint, call, took = ?started.elapsed(), ok = result.is_ok());
        result
    }

    fn runtime(&self, channel: Channel) -> RuntimeServiceClient<Channel> {
        RuntimeServiceClient::new(channel).max_decoding_message_size(self.options.max_answer_bytes)
    }

    fn image_service(&self, channel: Channel) -> ImageServiceClient<Channel> {
        ImageServiceClient::new(channel).max_decoding_message_size(self.options.max_answer_bytes)
    }

    fn error(&self, call: &'static str, problem: CriProblem) -> CriError {
        CriError { endpoint: self.endpoint.clone(), call, problem }
    }

    /// Rejects every text that is not a whole id: runtimes also accept names and prefixes of ids, and act on any
    /// object that matches.
    fn whole_id(&self, call: &'static str, id: &str) -> Result<(), CriError> {
        if is_whole_id(id) {
            return Ok(());
        }
        Err(self.error(call, CriProblem::BadRequest(format!("{id:?} is not a whole id"))))
    }
}

fn image_spec(reference: &str, handler: &str) -> v1::ImageSpec {
    v1::ImageSpec { image: reference.into(), runtime_handler: handler.into(), ..v1::ImageSpec::default() }
}

/// Checks for 64 hexadecimal digits, the form of all runtimes' ids. containerd writes `sha256:` before image ids.
fn is_whole_id(id: &str) -> bool {
    let hex = bare_id(id);
    hex.len() == 64 && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_ids_are_accepted() {
        let hex = "0123456789abcdef".repeat(4);
        assert!(is_whole_id(&hex));
        assert!(is_whole_id(&format!("sha256:{hex}")));
        for other in [
            "",
            "sha256:",
            "busybox",
            "reg.local/app:1",
            &hex[..63],
            &hex.to_uppercase(),
            &format!("sha512:{hex}"),
            &format!("reg.local/app@sha256:{hex}"),
            &format!("{hex} "),
        ] {
            assert!(!is_whole_id(other), "{other:?}");
        }
    }
}
