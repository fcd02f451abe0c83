//! Finds the sockets on which a node's runtime may listen: those configured for crictl and the kubelet, then those that
//! the runtimes' own configurations name, then the default sockets.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::client::Client;
use super::deadlines::Options;
use super::endpoint::Endpoint;
use super::error::CriError;
use crate::node;
use crate::node::kubelet::Kubelet;
use crate::stores::containerd::config::sockets;
use crate::stores::containers_storage::config::crio_socket;
use crate::sys::processes;
use crate::sys::sysroot::Sysroot;

/// Maximum size of a settings file; a larger file is reported as unreadable.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Default sockets of runtimes. Sockets that are certain to belong to the kubelet's runtime come first: containerd's
/// default socket may belong to the containerd of Docker.
const USUAL: [(&str, &str); 6] = [
    ("/run/crio/crio.sock", "CRI-O's default socket"),
    ("/run/k3s/containerd/containerd.sock", "the default socket of k3s and RKE2"),
    ("/run/k0s/containerd.sock", "k0s' usual place"),
    ("/var/snap/microk8s/common/run/containerd.sock", "MicroK8s' usual place"),
    ("/run/containerd/containerd.sock", "containerd's default socket"),
    ("/var/run/cri-dockerd.sock", "cri-dockerd's default socket"),
];

const CRICTL: &str = "/etc/crictl.yaml";

/// The kubelet's flag for the socket; `containerRuntimeEndpoint` in its configuration means the same.
const ENDPOINT_FLAG: &str = "--container-runtime-endpoint";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub endpoint: Endpoint,
    /// The file and key that name it, or the runtime whose default it is.
    pub origin: String,
    /// A file names the socket, so it is reported if no runtime answers.
    pub configured: bool,
}

/// The candidates from the node's files and the default sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointDiscovery {
    /// The sockets, without repetitions. Those that a file names come first; they need not exist.
    pub candidates: Vec<Candidate>,
    /// Files that could not be read or parsed: path and reason. They do not prevent the use of the others.
    pub problems: Vec<(PathBuf, String)>,
}

#[derive(Debug, Default)]
pub struct Answers {
    /// Runtimes with CRI v1, in the order of the candidates. If there are several, the caller chooses one or
    /// refuses.
    pub runtimes: Vec<(Candidate, Client)>,
    /// The other candidates, each with the reason for its rejection.
    pub silent: Vec<(Candidate, CriError)>,
}

/// Finds the sockets that the files below `root` name, and the default sockets that exist below it. Paths in the files
/// are resolved inside `root`.
#[must_use]
pub fn discover(root: &Sysroot) -> EndpointDiscovery {
    let mut finder = Finder { root, seen: HashSet::new(), found: EndpointDiscovery::default() };
    let crictl = Path::new(CRICTL);
    match root.read(crictl, MAX_FILE_BYTES) {
        Ok(text) => finder.yaml(crictl, &text, "runtime-endpoint", "image-endpoint"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => finder.unreadable(crictl, &error),
    }
    let kubelet = Kubelet::read(root);
    for setting in kubelet.flag(ENDPOINT_FLAG) {
        finder.add(&setting.value, format!("{ENDPOINT_FLAG} in {}", setting.file.display()), true);
    }
    for file in &kubelet.configs {
        finder.yaml(&file.path, &file.text, "containerRuntimeEndpoint", "imageServiceEndpoint");
    }
    for (path, error) in &kubelet.unreadable {
        finder.unreadable(path, error);
    }
    // The runtime's own configuration does not make it the kubelet's runtime: containerd may be Docker's.
    let usual = USUAL.map(|(path, origin)| (PathBuf::from(path), origin.to_owned()));
    // One socket may be at both paths.
    let default: Vec<_> = usual.iter().filter_map(|(path, _)| identity(root, path)).collect();
    let named = named_by_runtimes(root)
        .into_iter()
        .filter(|(path, _)| identity(root, path).is_none_or(|socket| !default.contains(&socket)));
    for (path, origin) in named.chain(usual) {
        if root.resolve(&path).is_ok() {
            finder.add(&path.to_string_lossy(), origin, false);
        }
    }
    finder.found
}

fn identity(root: &Sysroot, path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let facts = std::fs::metadata(root.resolve(path).ok()?).ok()?;
    Some((facts.dev(), facts.ino()))
}

/// Returns the sockets that runtimes' configurations and the command lines of running containerds name, if they are not
/// the default ones.
fn named_by_runtimes(root: &Sysroot) -> Vec<(PathBuf, String)> {
    let lines = if root.is_foreign() { Vec::new() } else { containerds().to_vec() };
    let crio = crio_socket(root).map(|(path, file)| (path, format!("listen in {}", file.display())));
    let sockets = crio.into_iter().chain(sockets(root, lines));
    // CRI-O's configuration has `/var/run`.
    let is_usual = |path: &Path| USUAL.iter().any(|(usual, _)| path.ends_with(usual.trim_start_matches('/')));
    sockets.filter(|(path, _)| !is_usual(path)).collect()
}

/// Returns the command lines of the containerds that ran when they were first read. A run asks several times, and a
/// reading may take long beside very many processes.
pub fn containerds() -> &'static [Vec<String>] {
    static COMMAND_LINES: OnceLock<Vec<Vec<String>>> = OnceLock::new();
    COMMAND_LINES.get_or_init(|| {
        processes::arguments_of_containerds().unwrap_or_else(|error| {
            tracing::warn!("looking for a containerd that runs: {error}");
            Vec::new()
        })
    })
}

/// Connects to each candidate and sorts them by whether a runtime answers.
#[must_use]
pub fn probe(candidates: Vec<Candidate>, options: &Options) -> Answers {
    let mut answers = Answers::default();
    for candidate in candidates {
        match Client::connect(candidate.endpoint.clone(), options.probing()) {
            Ok(client) => answers.runtimes.push((candidate, client.with_options(options.clone()))),
            Err(error) => answers.silent.push((candidate, error)),
        }
    }
    answers
}

struct Finder<'a> {
    root: &'a Sysroot,
    /// Real paths of the sockets, without symlinks (`/var/run` is a symlink).
    seen: HashSet<PathBuf>,
    found: EndpointDiscovery,
}

impl Finder<'_> {
    fn yaml(&mut self, file: &Path, text: &str, key: &str, images_key: &str) {
        let mut values = [None, None];
        for (value, key) in values.iter_mut().zip([key, images_key]) {
            match node::top_level(text, key) {
                Ok(text) => *value = text,
                Err(why) => self.problem(file, why),
            }
        }
        let [endpoint, images] = values;
        if let (Some(images), Some(endpoint)) = (&images, &endpoint)
            && images != endpoint
        {
            let why = format!(
                "{images_key} differs from {key}: different image and runtime services are not supported"
            );
            self.problem(file, why);
        }
        if let Some(endpoint) = endpoint {
            self.add(&endpoint, format!("{key} in {}", file.display()), true);
        }
    }

    fn add(&mut self, text: &str, origin: String, configured: bool) {
        let placed = text.parse::<Endpoint>().and_then(|inside| {
            let placed = self.place(inside.path());
            Endpoint::at(&placed)
        });
        match placed {
            Ok(endpoint) => {
                if self.seen.insert(endpoint.path().to_path_buf()) {
                    self.found.candidates.push(Candidate { endpoint, origin, configured });
                }
            }
            Err(error) => self.problem(Path::new(&origin), error.to_string()),
        }
    }

    /// Returns the real path of a path inside the root. If the path does not exist, its parent is resolved, or else
    /// it is appended to the root as written.
    fn place(&self, inside: &Path) -> PathBuf {
        self.root.resolve(inside).unwrap_or_else(|_| {
            let parent = inside.parent().and_then(|parent| self.root.resolve(parent).ok());
            match (parent, inside.file_name()) {
                (Some(parent), Some(name)) => parent.join(name),
                _ => self
                    .root
                    .resolve(Path::new("/"))
                    .unwrap_or_default()
                    .join(inside.strip_prefix("/").unwrap_or(inside)),
            }
        })
    }

    fn unreadable(&mut self, file: &Path, error: &io::Error) {
        self.problem(file, format!("reading it: {error}"));
    }

    /// Adds a problem. A file that is not YAML fails once for each key, but is reported once.
    fn problem(&mut self, file: &Path, why: String) {
        let problem = (file.to_path_buf(), why);
        if !self.found.problems.contains(&problem) {
            self.found.problems.push(problem);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Node(tempfile::TempDir);

    impl Node {
        fn new(files: &[(&str, &str)]) -> Self {
            let node = Self(tempfile::Builder::new().prefix("layersweep-cri-").tempdir().unwrap());
            for (path, text) in files {
                let path = node.0.path().join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            node
        }

        /// Returns the candidates as path inside the node and origin, and the problems.
        fn found(&self) -> (Vec<(String, String)>, Vec<String>) {
            let found = discover(&Sysroot::at(self.0.path()));
            let root = std::fs::canonicalize(self.0.path()).unwrap();
            let mut candidates = Vec::new();
            for Candidate { endpoint, origin, .. } in found.candidates {
                let inside = endpoint.path().strip_prefix(&root).unwrap();
                candidates.push((format!("/{}", inside.display()), origin));
            }
            let problems = found.problems.iter().map(|(file, why)| format!("{}: {why}", file.display()));
            (candidates, problems.collect())
        }
    }

    #[test]
    fn empty_node_has_no_candidates() {
        assert_eq!(Node::new(&[]).found(), (vec![], vec![]));
    }

    #[test]
    fn configured_sockets_come_before_default_ones() {
        let node = Node::new(&[
            ("etc/crictl.yaml", "runtime-endpoint: unix:///opt/a.sock\nimage-endpoint: unix:///opt/a.sock\n"),
            (
                "var/lib/kubelet/kubeadm-flags.env",
                "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=unix:///var/run/crio/crio.sock\"",
            ),
            ("var/lib/kubelet/config.yaml", "kind: X\ncontainerRuntimeEndpoint: /opt/none/b.sock\n"),
            ("run/crio/crio.sock", ""),
            ("run/containerd/containerd.sock", ""),
        ]);
        std::os::unix::fs::symlink("../run", node.0.path().join("var/run")).unwrap();
        let (found, problems) = node.found();
        let expected = [
            ("/opt/a.sock", "runtime-endpoint in /etc/crictl.yaml"),
            ("/run/crio/crio.sock", "--container-runtime-endpoint in /var/lib/kubelet/kubeadm-flags.env"),
            ("/opt/none/b.sock", "containerRuntimeEndpoint in /var/lib/kubelet/config.yaml"),
            ("/run/containerd/containerd.sock", "containerd's default socket"),
        ];
        let found: Vec<_> = found.iter().map(|(path, origin)| (path.as_str(), origin.as_str())).collect();
        assert_eq!(found, expected);
        assert!(problems.is_empty(), "{problems:?}");
    }

    #[test]
    fn all_default_sockets_are_found() {
        let files: Vec<_> = USUAL.iter().map(|(path, _)| (path.trim_start_matches('/'), "")).collect();
        let (found, _) = Node::new(&files).found();
        let found: Vec<_> = found.iter().map(|(path, origin)| (path.as_str(), origin.as_str())).collect();
        assert_eq!(found, USUAL);
    }

    #[test]
    fn sockets_of_runtimes_configurations_are_found() {
        let node = Node::new(&[
            ("etc/containerd/config.toml", "[grpc]\naddress = \"/run/dockershim.sock\"\n"),
            ("etc/crio/crio.conf", "[crio.api]\nlisten = \"/run/other/crio.sock\"\n"),
            ("etc/k0s/containerd.toml", "[grpc]\naddress = \"/run/absent.sock\"\n"),
            ("run/dockershim.sock", ""),
            ("run/other/crio.sock", ""),
            ("run/containerd/containerd.sock", ""),
        ]);
        let (found, problems) = node.found();
        let found: Vec<_> = found.iter().map(|(path, origin)| (path.as_str(), origin.as_str())).collect();
        let expected = [
            ("/run/other/crio.sock", "listen in /etc/crio/crio.conf"),
            ("/run/dockershim.sock", "[grpc] address in /etc/containerd/config.toml"),
            ("/run/containerd/containerd.sock", "containerd's default socket"),
        ];
        assert_eq!(found, expected);
        assert!(problems.is_empty(), "{problems:?}");
        let all = discover(&Sysroot::at(node.0.path())).candidates;
        assert!(all.iter().all(|candidate| !candidate.configured), "containerd may be Docker's");
    }

    #[test]
    fn unusable_settings_are_reported() {
        let node = Node::new(&[
            ("etc/crictl.yaml", "runtime-endpoint: tcp://127.0.0.1:1\n"),
            ("etc/default/kubelet", "KUBELET_EXTRA_ARGS=--container-runtime-endpoint=npipe:////./pipe/x"),
            ("var/lib/kubelet/config.yaml", "containerRuntimeEndpoint: [1]\n"),
            (
                "etc/kubernetes/kubelet.conf",
                "{\"containerRuntimeEndpoint\": \"unix:///a\", \"imageServiceEndpoint\": \"unix:///b\"}",
            ),
        ]);
        std::fs::create_dir_all(node.0.path().join("etc/sysconfig/kubelet")).unwrap();
        let (found, problems) = node.found();
        let found: Vec<_> = found.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!(found, ["/a"]);
        for part in [
            "runtime-endpoint in /etc/crictl.yaml: \"tcp://127.0.0.1:1\"",
            "/etc/default/kubelet: \"npipe:",
            "/var/lib/kubelet/config.yaml: containerRuntimeEndpoint must be a string",
            "/etc/kubernetes/kubelet.conf: imageServiceEndpoint differs",
            "/etc/sysconfig/kubelet: reading it:",
        ] {
            assert!(problems.iter().any(|problem| problem.contains(part)), "{part}: {problems:#?}");
        }
    }
}
