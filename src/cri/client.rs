//! The calls of CRI.

use std::time::Duration;

use k8s_cri::v1::image_service_client::ImageServiceClient;
use k8s_cri::v1::runtime_service_client::RuntimeServiceClient;
use k8s_cri::{v1, v1alpha2};
use tonic::transport::Channel;
use tonic::{Response, Status};

use super::connection::{Call, CallKind};
use super::deadlines::Options;
use super::endpoint::Endpoint;
use super::error::{CriError, CriProblem, one_line};
use super::raw;
use super::types::{self, ContainerDetails, RuntimeContainer, RuntimeImage, RuntimeSandbox};
use crate::model::reference::bare_id;

/// What CRI calls its own version in a request for a version (`Version` ignores it).
const KUBELET_API_VERSION: &str = "0.1.0";

/// A runtime that has said that it speaks CRI v1. Every method blocks until the answer is
/// there or its deadline has passed; it is not to be used inside an async runtime.
#[derive(Clone, Debug)]
pub struct Client {
    endpoint: Endpoint,
    options: Options,
    version: v1::VersionResponse,
}

impl Client {
    /// Connects to the runtime at `endpoint` and asks its version.
    ///
    /// # Errors
    /// [`CriProblem::NotRunning`], [`CriProblem::NotListening`], [`CriProblem::Denied`], [`CriProblem::Deadline`];
    /// [`CriProblem::NotGrpc`], [`CriProblem::NoCri`] and [`CriProblem::OldApi`] for what is no runtime with
    /// CRI v1.
    pub fn connect(endpoint: Endpoint, options: Options) -> Result<Self, CriError> {
        let mut client = Self { endpoint, options, version: v1::VersionResponse::default() };
        client.version = client.ask_version()?;
        Ok(client)
    }

    /// The same runtime with other deadlines, without asking it again.
    #[must_use]
    pub fn with_options(self, options: Options) -> Self {
        Self { options, ..self }
    }

    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The version that the runtime reported when we connected.
    #[must_use]
    pub fn version(&self) -> &v1::VersionResponse {
        &self.version
    }

    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The runtime's status, the verbose part included.
    pub fn status(&self) -> Result<v1::StatusResponse, CriError> {
        let request = v1::StatusRequest { verbose: true };
        let ask = async |channel| self.runtime(channel).status(request).await;
        self.call("Status", CallKind::Query, self.options.asking, ask)
    }

    /// All images.
    ///
    /// # Errors
    /// When the call fails, or the listing contradicts itself: then it is discarded.
    pub fn images(&self) -> Result<Vec<RuntimeImage>, CriError> {
        // No filter: containerd ignores it, so an answer to a filter proves nothing.
        let request = v1::ListImagesRequest { filter: None };
        let ask = async |channel| self.image(channel).list_images(request).await;
        let answer = self.call("ListImages", CallKind::Query, self.options.listing, ask)?;
        types::images(answer).map_err(|problem| self.error("ListImages", problem))
    }

    /// All containers in every state, without sandboxes. CRI-O leaves out those that are
    /// just being made.
    ///
    /// # Errors
    /// When the call fails, or the listing contradicts itself: then it is discarded.
    pub fn containers(&self) -> Result<Vec<RuntimeContainer>, CriError> {
        let request = v1::ListContainersRequest { filter: None };
        let ask = async |channel| self.runtime(channel).list_containers(request).await;
        let answer = self.call("ListContainers", CallKind::Query, self.options.listing, ask)?;
        types::containers(answer).map_err(|problem| self.error("ListContainers", problem))
    }

    /// Details that only the status of a container has: its exit, its mounts. `None` if the
    /// runtime does not know it (any more): a container that goes while containers are looked
    /// through is no failure.
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

    /// Whether the runtime still knows a container: the runtime's half of the proof that a
    /// removal has happened, asked even after a signal.
    pub fn container_is_known(&self, id: &str) -> Result<bool, CriError> {
        Ok(self.container_status(id, CallKind::Completion)?.is_some())
    }

    /// Likewise for a sandbox.
    pub fn sandbox_is_listed(&self, id: &str) -> Result<bool, CriError> {
        Ok(self.list_sandboxes(CallKind::Completion)?.iter().any(|sandbox| sandbox.id == id))
    }

    /// All pod sandboxes in every state.
    ///
    /// # Errors
    /// When the call fails, or the listing contradicts itself: then it is discarded.
    pub fn sandboxes(&self) -> Result<Vec<RuntimeSandbox>, CriError> {
        self.list_sandboxes(CallKind::Query)
    }

    fn list_sandboxes(&self, kind: CallKind) -> Result<Vec<RuntimeSandbox>, CriError> {
        let request = v1::ListPodSandboxRequest { filter: None };
        let ask = async |channel| self.runtime(channel).list_pod_sandbox(request).await;
        let answer = self.call("ListPodSandbox", kind, self.options.listing, ask)?;
        types::sandboxes(answer).map_err(|problem| self.error("ListPodSandbox", problem))
    }

    /// Where the runtime reports its images to be stored. Its byte counts are not measurements.
    pub fn image_filesystems(&self) -> Result<v1::ImageFsInfoResponse, CriError> {
        let ask = async |channel| self.image(channel).image_fs_info(v1::ImageFsInfoRequest {}).await;
        self.call("ImageFsInfo", CallKind::Query, self.options.listing, ask)
    }

    /// Asks for the removal of an image, all of its names with it. Success proves nothing:
    /// look at the disk.
    ///
    /// `id` as [`Self::images`] has it, never a name: containerd takes a name for the whole image
    /// behind it and CRI-O untags it. `handler` is that of the listing, mostly empty.
    ///
    /// # Errors
    /// [`CriProblem::InUse`] where the runtime refuses; [`CriProblem::Deadline`] and [`CriProblem::HungUp`]
    /// leave open whether it has happened, or still will.
    pub fn remove_image(&self, id: &str, handler: &str) -> Result<(), CriError> {
        self.remove(id, id, handler)
    }

    /// Asks CRI-O for the removal of an artifact: of the one entry that `reference`, a name with the
    /// digest of the manifest, means. By its id CRI-O removes none, and says that it has.
    pub fn remove_artifact(&self, reference: &str, handler: &str) -> Result<(), CriError> {
        let digest = reference.split_once('@').filter(|(name, _)| !name.is_empty());
        self.remove(reference, digest.map_or("", |(_, digest)| digest), handler)
    }

    fn remove(&self, what: &str, id: &str, handler: &str) -> Result<(), CriError> {
        let image =
            v1::ImageSpec { image: what.into(), runtime_handler: handler.into(), ..v1::ImageSpec::default() };
        let request = v1::RemoveImageRequest { image: Some(image) };
        let ask = async |channel| self.image(channel).remove_image(request).await;
        self.act("RemoveImage", id, self.options.removing, ask)
    }

    /// Stops a container: politely for `grace`, then by force. A stopped one is fine.
    pub fn stop_container(&self, id: &str, grace: Duration) -> Result<(), CriError> {
        let timeout = i64::try_from(grace.as_secs()).unwrap_or(i64::MAX);
        let request = v1::StopContainerRequest { container_id: id.into(), timeout };
        let ask = async |channel| self.runtime(channel).stop_container(request).await;
        self.act("StopContainer", id, self.options.asking.saturating_add(grace), ask)
    }

    /// Removes a container, by force if it runs: the caller has made sure that it does not.
    pub fn remove_container(&self, id: &str) -> Result<(), CriError> {
        let request = v1::RemoveContainerRequest { container_id: id.into() };
        let ask = async |channel| self.runtime(channel).remove_container(request).await;
        self.act("RemoveContainer", id, self.options.removing, ask)
    }

    /// Stops a sandbox and gives its network back. A stopped one is fine.
    pub fn stop_sandbox(&self, id: &str) -> Result<(), CriError> {
        let request = v1::StopPodSandboxRequest { pod_sandbox_id: id.into() };
        let ask = async |channel| self.runtime(channel).stop_pod_sandbox(request).await;
        self.act("StopPodSandbox", id, self.options.removing, ask)
    }

    /// Removes a sandbox, and by force every container in it: the caller has made sure
    /// that there is none.
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
                let foreign = raw::foreign(&self.endpoint);
                let not_grpc = |words| CriProblem::NotGrpc(format!("it begins with {words:?}"));
                return Err(CriError { problem: foreign.map_or(error.problem, not_grpc), ..error });
            }
            _ => return Err(error),
        };
        // A gRPC server; an old runtime answers to the old service name.
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

    /// Does something to the object with this id, and to nothing else.
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
        let result = run.run(ask).map_err(|problem| self.error(call, problem));
        tracing::debug!(endpoint = %self.endpoint, call, took = ?started.elapsed(), ok = result.is_ok());
        result
    }

    fn runtime(&self, channel: Channel) -> RuntimeServiceClient<Channel> {
        RuntimeServiceClient::new(channel).max_decoding_message_size(self.options.max_answer_bytes)
    }

    fn image(&self, channel: Channel) -> ImageServiceClient<Channel> {
        ImageServiceClient::new(channel).max_decoding_message_size(self.options.max_answer_bytes)
    }

    fn error(&self, call: &'static str, problem: CriProblem) -> CriError {
        CriError { endpoint: self.endpoint.clone(), call, problem }
    }

    /// Refuses everything but a whole id: the runtimes take names, and prefixes of ids, for
    /// whatever they happen to fit.
    fn whole_id(&self, call: &'static str, id: &str) -> Result<(), CriError> {
        if is_whole_id(id) {
            return Ok(());
        }
        Err(self.error(call, CriProblem::BadRequest(format!("{id:?} is not a whole id"))))
    }
}

/// 64 hexadecimal digits, as every runtime makes its ids; containerd writes `sha256:` before those
/// of images.
fn is_whole_id(id: &str) -> bool {
    let hex = bare_id(id);
    hex.len() == 64 && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_ids() {
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
