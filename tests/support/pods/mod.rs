//! Pods on a real containerd, made as the kubelet makes them: with its labels, attempts and log files, a directory for
//! each pod that it knows, and links to the logs.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use k8s_cri::v1;
use k8s_cri::v1::runtime_service_client::RuntimeServiceClient;
use layersweep::node::places::KubeletPlaces;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Uri};

use crate::support::containerd::Rig;

/// A kubelet that the test imitates.
pub struct Kubelet {
    runtime: Runtime,
    client: RuntimeServiceClient<Channel>,
    cgroup: String,
    scratch: TempDir,
}

/// A pod and its sandbox.
#[derive(Clone, Debug)]
pub struct Pod {
    pub name: String,
    pub uid: String,
    pub sandbox: String,
    /// True if the kubelet made the pod; false if it was made by hand, without labels.
    pub labelled: bool,
    attempt: u32,
}

impl Kubelet {
    pub fn of(rig: &Rig) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let socket = rig.socket();
        let client = runtime.block_on(async move {
            let connector = tower::service_fn(move |_: Uri| {
                let socket = socket.clone();
                async move { tokio::net::UnixStream::connect(socket).await.map(hyper_util::rt::TokioIo::new) }
            });
            let endpoint = tonic::transport::Endpoint::from_static("http://localhost");
            RuntimeServiceClient::new(endpoint.connect_with_connector(connector).await.unwrap())
        });
        let cgroup = rig.shell("printf %s \"$CG\"");
        let scratch = tempfile::Builder::new().prefix("layersweep-kubelet-").tempdir().unwrap();
        for directory in ["kubelet/pods", "pods", "containers"] {
            fs::create_dir_all(scratch.path().join(directory)).unwrap();
        }
        Self { runtime, client, cgroup, scratch }
    }

    /// Returns the places of the kubelet, with the logs in the scratch directory.
    pub fn places(&self) -> KubeletPlaces {
        let top = self.scratch.path();
        KubeletPlaces {
            roots: vec![top.join("kubelet")],
            is_named: false,
            manifests: vec![top.join("manifests")],
            pod_logs: top.join("pods"),
            container_logs: top.join("containers"),
        }
    }

    pub fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// Returns the log directory of a pod.
    pub fn logs(&self, pod: &Pod) -> PathBuf {
        self.scratch.path().join("pods").join(format!("default_{}_{}", pod.name, pod.uid))
    }

    /// Makes a pod that the kubelet knows, and its sandbox.
    pub fn pod(&self, name: &str, uid: &str) -> Pod {
        fs::create_dir_all(self.directory(uid)).unwrap();
        let mut pod =
            Pod { name: name.into(), uid: uid.into(), sandbox: String::new(), labelled: true, attempt: 0 };
        fs::create_dir_all(self.logs(&pod)).unwrap();
        self.run(&mut pod);
        pod
    }

    /// Makes a pod as `crictl runp` does.
    pub fn pod_by_hand(&self, name: &str) -> Pod {
        let mut pod =
            Pod { name: name.into(), uid: name.into(), sandbox: String::new(), labelled: false, attempt: 0 };
        self.run(&mut pod);
        pod
    }

    /// Makes another sandbox for the pod, after the first has ended.
    pub fn run_again(&self, pod: &Pod) -> Pod {
        let mut pod = Pod { attempt: pod.attempt + 1, ..pod.clone() };
        self.run(&mut pod);
        pod
    }

    fn run(&self, pod: &mut Pod) {
        let request = v1::RunPodSandboxRequest { config: Some(self.config(pod)), ..Default::default() };
        let answer = self.runtime.block_on(self.client.clone().run_pod_sandbox(request)).unwrap();
        pod.sandbox = answer.into_inner().pod_sandbox_id;
    }

    /// Makes the kubelet forget the pod.
    pub fn forget(&self, pod: &Pod) {
        fs::remove_dir(self.directory(&pod.uid)).unwrap();
    }

    fn directory(&self, uid: &str) -> PathBuf {
        self.scratch.path().join("kubelet/pods").join(uid)
    }

    pub fn stop_sandbox(&self, pod: &Pod) {
        let request = v1::StopPodSandboxRequest { pod_sandbox_id: pod.sandbox.clone() };
        self.runtime.block_on(self.client.clone().stop_pod_sandbox(request)).unwrap();
    }

    pub fn stop_container(&self, id: &str) {
        let request = v1::StopContainerRequest { container_id: id.into(), timeout: 0 };
        self.runtime.block_on(self.client.clone().stop_container(request)).unwrap();
    }

    /// Makes a container and does not start it.
    pub fn create(&self, pod: &Pod, name: &str, attempt: u32, shell: &str) -> String {
        let security =
            v1::LinuxContainerSecurityContext { namespace_options: Some(namespaces()), ..Default::default() };
        let labels = labels(pod, Some(name));
        let log = if pod.labelled { format!("{name}/{attempt}.log") } else { String::new() };
        if pod.labelled {
            fs::create_dir_all(self.logs(pod).join(name)).unwrap();
        }
        let config = v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata { name: name.into(), attempt }),
            image: Some(v1::ImageSpec { image: "reg.local/app-b:1".into(), ..Default::default() }),
            command: ["/bin/busybox", "sh", "-c", shell].map(str::to_owned).to_vec(),
            log_path: log,
            labels,
            linux: Some(v1::LinuxContainerConfig { security_context: Some(security), ..Default::default() }),
            ..Default::default()
        };
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: pod.sandbox.clone(),
            config: Some(config),
            sandbox_config: Some(self.config(pod)),
        };
        let answer = self.runtime.block_on(self.client.clone().create_container(request)).unwrap();
        let id = answer.into_inner().container_id;
        if pod.labelled {
            let log = self.logs(pod).join(name).join(format!("{attempt}.log"));
            let link = format!("{}_default_{name}-{id}.log", pod.name);
            symlink(log, self.scratch.path().join("containers").join(link)).unwrap();
        }
        id
    }

    pub fn start(&self, id: &str) {
        let request = v1::StartContainerRequest { container_id: id.into() };
        self.runtime.block_on(self.client.clone().start_container(request)).unwrap();
    }

    /// Makes a running container.
    pub fn running(&self, pod: &Pod, name: &str, attempt: u32) -> String {
        let id = self.create(pod, name, attempt, "echo hello; exec sleep 100000");
        self.start(&id);
        id
    }

    /// Makes a container that has written `bytes` into its writable layer and ended.
    pub fn ended(&self, pod: &Pod, name: &str, attempt: u32, bytes: u64) -> String {
        let shell = format!("echo hello; head -c {bytes} /dev/urandom >/written");
        let id = self.create(pod, name, attempt, &shell);
        self.start(&id);
        let end = Instant::now() + Duration::from_secs(20);
        while self.state(&id) != v1::ContainerState::ContainerExited {
            assert!(Instant::now() < end, "{id} does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
        id
    }

    fn state(&self, id: &str) -> v1::ContainerState {
        let request = v1::ContainerStatusRequest { container_id: id.into(), verbose: false };
        let answer = self.runtime.block_on(self.client.clone().container_status(request)).unwrap();
        answer.into_inner().status.unwrap().state()
    }

    fn config(&self, pod: &Pod) -> v1::PodSandboxConfig {
        let metadata = v1::PodSandboxMetadata {
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            namespace: "default".into(),
            attempt: pod.attempt,
        };
        let security =
            v1::LinuxSandboxSecurityContext { namespace_options: Some(namespaces()), ..Default::default() };
        let linux = v1::LinuxPodSandboxConfig {
            cgroup_parent: format!("/{}", self.cgroup),
            security_context: Some(security),
            ..Default::default()
        };
        v1::PodSandboxConfig {
            metadata: Some(metadata),
            log_directory: if pod.labelled { self.logs(pod).display().to_string() } else { String::new() },
            labels: labels(pod, None),
            linux: Some(linux),
            ..Default::default()
        }
    }
}

fn labels(pod: &Pod, container: Option<&str>) -> HashMap<String, String> {
    if !pod.labelled {
        return HashMap::new();
    }
    let mut labels = vec![
        ("io.kubernetes.pod.uid", pod.uid.as_str()),
        ("io.kubernetes.pod.name", &pod.name),
        ("io.kubernetes.pod.namespace", "default"),
    ];
    labels.extend(container.map(|name| ("io.kubernetes.container.name", name)));
    labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Namespaces of the host, so that no network plugin is needed.
fn namespaces() -> v1::NamespaceOption {
    v1::NamespaceOption {
        network: v1::NamespaceMode::Node.into(),
        pid: v1::NamespaceMode::Container.into(),
        ..Default::default()
    }
}
