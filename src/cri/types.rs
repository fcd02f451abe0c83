//! The runtime's answers as plain types. Texts are untrusted and unchanged; times are
//! the runtime's clock; ids are compared as a whole, never by prefix.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::model::ContainerState;

/// The kubelet's label with a pod's uid (`pkg/kubelet/types/labels.go`).
pub(super) const POD_UID: &str = "io.kubernetes.pod.uid";

/// Name and version of a runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeVersion {
    /// Its name, for example `containerd` or `cri-o`.
    pub name: String,
    /// Its version, for example `1.6.20` or `v2.3.4`.
    pub version: String,
    /// Its CRI version, for example `v1`.
    pub api_version: String,
}

/// One condition of a runtime, for example `RuntimeReady`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    pub kind: String,
    pub holds: bool,
    /// A word for why, empty if it holds.
    pub reason: String,
    pub message: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeStatus {
    /// `RuntimeReady`, `NetworkReady`, ….
    pub conditions: Vec<Condition>,
    /// The verbose part, specific to the runtime, mostly JSON.
    pub info: BTreeMap<String, String>,
    /// Runtime handlers; runtimes older than CRI 0.30 name none.
    pub handlers: Vec<String>,
}

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
    /// `spec.image`, empty in most runtimes.
    pub spec_image: String,
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
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
}

/// A mount of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mount {
    pub container_path: String,
    /// What is mounted there; empty for an image.
    pub host_path: String,
    /// The image that is mounted there as a volume, as it was asked for; empty if none is.
    pub image: String,
}

/// Details that only the status of one container has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerDetails {
    pub id: String,
    pub state: ContainerState,
    /// When it was made, started, ended; `None` where that has not happened.
    pub created: Option<Timestamp>,
    /// When it was started; of one that ends at once, containerd notes the start after the end.
    pub started: Option<Timestamp>,
    /// When it ended: its death, from which its age as a dead container counts.
    pub finished: Option<Timestamp>,
    /// Its exit code, meaningful once it has ended.
    pub exit_code: i32,
    /// `image_id` (empty in runtimes that do not fill it).
    pub image_id: String,
    /// `image_ref`: in containerd a repo digest here, unlike in the listing.
    pub image_ref: String,
    pub image_asked: String,
    /// Mounts, image volumes among them.
    pub mounts: Vec<Mount>,
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
    /// How often it was recreated.
    pub attempt: u32,
    /// Ready: it runs.
    pub ready: bool,
    /// When it was made; `None` where the runtime says 0.
    pub created: Option<Timestamp>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// The runtime handler it runs with.
    pub runtime_handler: String,
}

impl RuntimeSandbox {
    /// The pod's uid from the kubelet's label; empty where there is none (crictl).
    #[must_use]
    pub fn pod_uid(&self) -> &str {
        self.labels.get(POD_UID).map_or("", String::as_str)
    }
}

/// Where a runtime reports its images to be stored, and how much they use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageFilesystem {
    /// A directory of the store, in spite of its name in CRI: `mountpoint`.
    pub directory: String,
    /// As the runtime reports it. **Not a measurement**: CRI-O counts only its image records,
    /// containerd leaves out the content store.
    pub claimed_bytes: Option<u64>,
    /// Likewise for inodes.
    pub claimed_inodes: Option<u64>,
}

/// The image filesystems of a runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageFilesystems {
    pub images: Vec<ImageFilesystem>,
    /// Of containers' writable layers; empty where the runtime does not tell.
    pub containers: Vec<ImageFilesystem>,
}
