//! The CRI client against a real containerd with pods: its answers and its behaviour.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support;
use k8s_cri::v1;
use k8s_cri::v1::runtime_service_client::RuntimeServiceClient;
use layersweep::cri::in_use::ImageNames;
use layersweep::cri::{Client, CriProblem, Endpoint, Options, RuntimeImage};
use layersweep::disk::Progress;
use layersweep::execute::runtime_match::{ImageMatch, RuntimeStores, unseen_container};
use layersweep::model::ContainerState;
use layersweep::model::StoreKind;
use layersweep::services::request::Request;
use layersweep::stores::{RunningPrograms, RuntimeStore, ScanRequest};
use support::containerd::{self, Rig};
use tonic::transport::{Channel, Uri};

fn image<'a>(images: &'a [RuntimeImage], name: &str) -> &'a RuntimeImage {
    images.iter().find(|image| image.tags.iter().any(|tag| tag == name)).expect(name)
}

/// Waits until `is_so` returns true, for at most some seconds.
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn containerd_with_pods() {
    if !containerd::require_rig() {
        return;
    }
    let directory = tempfile::Builder::new().prefix("layersweep-cri-").tempdir().unwrap();
    let root = directory.path().join("root");
    let rig = Rig::with_images(&root);
    rig.script("30-pods.sh", &[]);
    let endpoint = Endpoint::at(&rig.socket()).unwrap();
    let options = Options { connecting: Duration::from_millis(500), ..Options::default() };
    let client = Client::connect(endpoint, options.clone()).unwrap();
    let version = client.version().clone();
    assert_eq!(
        (version.runtime_name.as_str(), version.runtime_api_version.as_str()),
        ("containerd", "v1"),
        "{version:?}"
    );

    where_its_images_lie(&client, &root);
    it_is_found_by_what_it_tells(&rig, &root);
    what_it_lists(&client, &rig);
    pins_are_not_to_be_believed(&client, &rig, &root);
    listings_fit_the_disk(&client, &root);
    it_refuses_nothing(&client, &rig);
    containers_and_sandboxes_go(&client, &rig);
    long_listings(&client, &rig);
    it_hangs_dies_and_comes_back(&client, &rig);
}

fn where_its_images_lie(client: &Client, root: &std::path::Path) {
    let store = client.runtime_store().unwrap().unwrap();
    assert_eq!((store.kind, store.root.as_path()), (StoreKind::Containerd, root));
    assert_eq!((store.driver.as_deref(), store.origin.as_str()), (Some("overlayfs"), "the runtime's Status"));
    let filesystems = client.image_filesystems().unwrap();
    let directory = &filesystems.image_filesystems[0].fs_id.as_ref().unwrap().mountpoint;
    assert_eq!(*directory, root.join("io.containerd.snapshotter.v1.overlayfs").display().to_string());
}

/// The root is found without any file that names it: by the command line (`-c`), and by the answer on a socket that is
/// named in the request. A root that is mounted twice is one store.
fn it_is_found_by_what_it_tells(rig: &Rig, root: &std::path::Path) {
    let request = Request::default().stores().unwrap();
    fn found(request: &ScanRequest) -> Vec<PathBuf> {
        let scan = layersweep::stores::run(request, &Progress::default()).unwrap();
        let stores = scan.inventory.stores.into_iter().map(|store| store.root);
        stores.collect::<Vec<_>>()
    }
    assert_eq!(request.running.containerds.len(), 1, "{:?}", request.running);
    assert_eq!(found(&request), [root]);
    let named =
        Request { cri_endpoint: Some(format!("unix://{}", rig.socket().display())), ..Request::default() };
    let running = &named.stores().unwrap().running;
    let [store] = &running.stores[..] else { panic!("{running:?}") };
    assert_eq!((store.root.as_path(), store.driver.as_deref()), (root, Some("overlayfs")));
    assert_eq!(store.state.as_deref(), Some(rig.scratch().join("state").as_path()));
    if let Some(image) = &store.sandbox_image {
        assert_eq!(image, "reg.local/pause:1");
    }
    let again = root.with_file_name("again");
    std::fs::create_dir(&again).unwrap();
    let none = None::<&str>;
    nix::mount::mount(Some(root), &again, none, nix::mount::MsFlags::MS_BIND, none).unwrap();
    let twice = vec![store.clone(), RuntimeStore { root: again.clone(), ..store.clone() }];
    let running = Arc::new(RunningPrograms { containerds: Vec::new(), stores: twice });
    let stores = found(&ScanRequest { running, ..request.clone() });
    nix::mount::umount2(&again, nix::mount::MntFlags::MNT_DETACH).unwrap();
    assert_eq!(stores, [root]);
}

fn what_it_lists(client: &Client, rig: &Rig) {
    // The values are those of a reader of the raw messages.
    let images = client.images().unwrap();
    let mut ours: Vec<_> = images
        .iter()
        .map(|image| {
            (image.id.clone(), image.listed_bytes, image.pinned, image.tags.len(), image.digests.len())
        })
        .collect();
    let raw = rig.images();
    let mut theirs: Vec<_> = raw
        .iter()
        .map(|image| (image.id.clone(), image.size, image.pinned, image.tags.len(), image.digests.len()))
        .collect();
    ours.sort();
    theirs.sort();
    assert_eq!(ours, theirs);
    assert!(images.iter().all(|image| image.id.starts_with("sha256:")), "{images:?}");
    let dup = image(&images, "reg.local/dup:gz1");
    assert!(dup.tags.contains(&"reg.local/dup:gz9".to_owned()), "two manifests, one id: {dup:?}");

    let ended = rig.noted("pods", "ctr3");
    eventually("the short container ends", || {
        let containers = client.containers().unwrap();
        containers.iter().any(|container| container.id == ended && container.state == ContainerState::Exited)
    });
    let containers = client.containers().unwrap();
    assert_eq!(containers.len(), 3);
    let names = ImageNames::new(&images);
    for (key, name) in [("ctr1", "app-a"), ("ctr2", "app-b"), ("ctr3", "app-d")] {
        let id = rig.noted("pods", key);
        let container = containers.iter().find(|container| container.id == id).unwrap();
        let expected = image(&images, &format!("reg.local/{name}:1"));
        assert_eq!(container.image_ref, expected.id, "the listing has the id there");
        let used = names.used_by(container);
        assert!(used.certain && used.images.len() == 1, "{container:?}: {used:?}");
        assert_eq!(images[*used.images.first().unwrap()], *expected);
        assert!(container.created.is_some());
    }
    // image_id exists since 2.3.0, and is then equal.
    assert!(
        containers
            .iter()
            .all(|container| container.image_id.is_empty() || container.image_id == container.image_ref)
    );
    let details = client.container(&ended).unwrap().unwrap();
    // Not compared with the start: containerd records the start of a short container late.
    assert!(details.finished.unwrap() >= details.created.unwrap(), "{details:?}");
    assert_eq!(details.state, ContainerState::Exited);
    let running = client.container(&rig.noted("pods", "ctr1")).unwrap().unwrap();
    assert_eq!(running.finished, None, "{running:?}");
    assert_eq!(client.container(&"0".repeat(64)), Ok(None));

    let sandboxes = client.sandboxes().unwrap();
    let mut uids: Vec<_> = sandboxes.iter().map(|sandbox| (sandbox.uid.as_str(), sandbox.ready)).collect();
    uids.sort_unstable();
    assert_eq!(uids, [("uid-pod1", true), ("uid-pod2", true)]);
}

/// The label is on the disk; CRI does not report it before 1.6.25.
fn pins_are_not_to_be_believed(client: &Client, rig: &Rig, root: &std::path::Path) {
    rig.shell("C images label reg.local/app-c:1 io.cri-containerd.pinned=pinned >/dev/null");
    let scan = containerd::scan(root);
    let mut all = scan.inventory.images.iter();
    let on_disk = all.find(|image| image.names.iter().any(|name| name == "reg.local/app-c:1")).unwrap();
    assert!(!on_disk.pinned_by.is_empty());
    std::thread::sleep(Duration::from_millis(300)); // newer ones see it within milliseconds
    let images = client.images().unwrap();
    let shown = image(&images, "reg.local/app-c:1").pinned;
    let version = client.version().runtime_version.trim_start_matches('v');
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse::<u32>().ok());
    let number: [u32; 3] = std::array::from_fn(|_| numbers.next().unwrap_or_default());
    let tells = number >= [1, 7, 10] || (number[..2] == [1, 6] && number >= [1, 6, 25]);
    assert_eq!(shown, tells, "containerd {version}");
}

fn listings_fit_the_disk(client: &Client, root: &std::path::Path) {
    let inventory = containerd::scan(root).inventory;
    let store = client.runtime_store().unwrap().unwrap();
    let stores = RuntimeStores::find(&store, &inventory).unwrap();
    let images = client.images().unwrap();
    let found = ImageMatch::new(&inventory, &stores, &images);
    assert_eq!(found.known.len(), images.len());
    assert_eq!(found, ImageMatch { known: found.known.clone(), ..ImageMatch::default() });
    for (ix, positions) in &found.known {
        assert_eq!(format!("sha256:{}", inventory.images[ix.get()].id), images[positions[0]].id);
    }
    let (containers, sandboxes) = (client.containers().unwrap(), client.sandboxes().unwrap());
    assert_eq!(unseen_container(&inventory, &stores, &containers, &sandboxes), None);
}

fn it_refuses_nothing(client: &Client, rig: &Rig) {
    let images = client.images().unwrap();
    // The image of a running container, a pinned one, the sandboxes' image.
    for name in ["reg.local/app-a:1", "reg.local/app-c:1", "reg.local/pause:1", "reg.local/dup:gz9"] {
        let id = &image(&images, name).id;
        assert!(still_listed(client, id), "{name}");
        client.remove_image(id, "").unwrap();
        assert!(!still_listed(client, id), "{name}");
        client.remove_image(id, "").unwrap();
    }
    let left = client.images().unwrap();
    assert!(left.iter().flat_map(|image| &image.tags).all(|tag| !tag.contains("/dup:")), "every name goes");
    client.remove_image(&format!("sha256:{}", "0".repeat(64)), "").unwrap();

    // The container keeps running, and its image cannot be found any more.
    let containers = client.containers().unwrap();
    let id = rig.noted("pods", "ctr1");
    let container = containers.iter().find(|container| container.id == id).unwrap();
    assert_eq!(container.state, ContainerState::Running);
    let used = ImageNames::new(&left).used_by(container);
    assert!(used.images.is_empty() && !used.certain, "{used:?}");
}

fn containers_and_sandboxes_go(client: &Client, rig: &Rig) {
    let (running, ended, sandbox) =
        (rig.noted("pods", "ctr2"), rig.noted("pods", "ctr3"), rig.noted("pods", "pod2"));
    client.remove_container(&ended).unwrap();
    client.remove_container(&ended).unwrap();
    client.stop_container(&running, Duration::ZERO).unwrap();
    client.stop_container(&running, Duration::ZERO).unwrap();
    let state = client.container(&running).unwrap().unwrap().state;
    assert_eq!(state, ContainerState::Exited);
    client.remove_container(&running).unwrap();
    assert_eq!(client.container(&running), Ok(None));
    client.stop_sandbox(&sandbox).unwrap();
    let sandboxes = client.sandboxes().unwrap();
    assert!(!sandboxes.iter().find(|listed| listed.id == sandbox).unwrap().ready);
    client.remove_sandbox(&sandbox).unwrap();
    client.remove_sandbox(&sandbox).unwrap();
    assert!(client.sandboxes().unwrap().iter().all(|listed| listed.id != sandbox));
}

/// containerd sends at most 16 MiB; tonic's default limit is 4.
fn long_listings(client: &Client, rig: &Rig) {
    let sandbox = rig.noted("pods", "pod1");
    fn make(rig: &Rig, sandbox: &str, count: u32, from: u32) -> Vec<String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut maker = raw_client(rig.socket()).await;
            let mut ids = Vec::new();
            for number in from..from + count {
                let request = long_container(sandbox, number);
                ids.push(maker.create_container(request).await.unwrap().into_inner().container_id);
            }
            ids
        })
    }
    let mut made = make(rig, &sandbox, 3, 0);
    let containers = client.containers().unwrap();
    let long = containers.iter().filter(|container| container.name.starts_with("long")).collect::<Vec<_>>();
    assert_eq!(long.len(), 3, "6 MiB");
    assert!(
        long.iter()
            .all(|container| container.state == ContainerState::Created && made.contains(&container.id))
    );

    made.extend(make(rig, &sandbox, 6, 3));
    let error = client.containers().unwrap_err();
    assert!(matches!(error.problem, CriProblem::TooLarge(_)), "18 MiB: {error:?}");
    for id in made {
        client.remove_container(&id).unwrap();
    }
    assert_eq!(client.containers().unwrap().len(), 1);
}

async fn raw_client(socket: PathBuf) -> RuntimeServiceClient<Channel> {
    let connector = tower::service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { tokio::net::UnixStream::connect(socket).await.map(hyper_util::rt::TokioIo::new) }
    });
    let endpoint = tonic::transport::Endpoint::from_static("http://localhost");
    RuntimeServiceClient::new(endpoint.connect_with_connector(connector).await.unwrap())
}

/// A container that is not started, with 2 MiB of annotation.
fn long_container(sandbox: &str, number: u32) -> v1::CreateContainerRequest {
    let image = v1::ImageSpec { image: "reg.local/app-d:1".into(), ..v1::ImageSpec::default() };
    let namespaces = v1::NamespaceOption {
        network: v1::NamespaceMode::Node.into(),
        pid: v1::NamespaceMode::Container.into(),
        ..v1::NamespaceOption::default()
    };
    let security = v1::LinuxContainerSecurityContext {
        namespace_options: Some(namespaces),
        ..v1::LinuxContainerSecurityContext::default()
    };
    let linux =
        v1::LinuxContainerConfig { security_context: Some(security), ..v1::LinuxContainerConfig::default() };
    let config = v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: format!("long{number}"), attempt: 0 }),
        image: Some(image),
        annotations: [("long".to_owned(), "x".repeat(2 << 20))].into(),
        linux: Some(linux),
        ..v1::ContainerConfig::default()
    };
    let metadata = v1::PodSandboxMetadata {
        name: "pod1".into(),
        uid: "uid-pod1".into(),
        namespace: "default".into(),
        attempt: 0,
    };
    let sandbox_config = v1::PodSandboxConfig { metadata: Some(metadata), ..v1::PodSandboxConfig::default() };
    v1::CreateContainerRequest {
        pod_sandbox_id: sandbox.to_owned(),
        config: Some(config),
        sandbox_config: Some(sandbox_config),
    }
}

fn it_hangs_dies_and_comes_back(client: &Client, rig: &Rig) {
    let hasty = Options { listing: Duration::from_millis(300), ..client.options().clone() };
    let hasty = client.clone().with_options(hasty);
    let before = client.images().unwrap();
    rig.signal("STOP");
    // On a busy machine its threads stop at different times.
    eventually("it hangs", || {
        hasty.images().is_err_and(|error| error.problem == CriProblem::Deadline(Duration::from_millis(300)))
    });
    rig.signal("CONT");
    assert_eq!(client.images().unwrap(), before);

    rig.signal("KILL");
    // The socket's file is still there.
    eventually("nothing listens", || {
        client.images().is_err_and(|error| error.problem == CriProblem::NotListening)
    });
    rig.stop();
    rig.script("10-start.sh", &[]);
    // The same client works with the new process.
    eventually("its listing is filled again", || client.images().is_ok_and(|now| now.len() == before.len()));
    assert_eq!(client.containers().unwrap().len(), 1);
}

fn still_listed(client: &Client, id: &str) -> bool {
    client.images().unwrap().iter().any(|image| image.id == id)
}
