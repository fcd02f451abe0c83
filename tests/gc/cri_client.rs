//! The CRI client against the test CRI server, with a real podman store behind it.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support;
use crate::support::cri_server;
use cri_server::{Behaviour, CriServer, Listing, Removal};
use layersweep::cri::in_use::ImageNames;
use layersweep::cri::{Client, CriError, CriProblem, Endpoint, Options, RuntimeImage};
use layersweep::disk::Progress;
use layersweep::execute::runtime_match::{ImageMatch, RuntimeStores, unseen_container};
use layersweep::model::ContainerState;
use layersweep::model::StoreKind;
use layersweep::model::{Inventory, Owner};
use layersweep::stores::ScanRequest;
use layersweep::sys::sysroot::Sysroot;
use support::archive::{ImageSpec, LayerSpec};
use support::store::{self, Store};
use tempfile::TempDir;

const APP: &str = "reg.local/app:1";
const ALIAS: &str = "reg.local/app:alias";
const USED: &str = "reg.local/used:1";
const PAUSE: &str = "reg.local/pause:1";

/// A store with three images, one of them with two names, and a server in front of it.
struct Setup {
    server: CriServer,
    store: Arc<Store>,
    client: Client,
    _directory: TempDir,
}

impl Setup {
    fn new() -> Option<Self> {
        if !store::require_tools() {
            return None;
        }
        let directory = tempfile::Builder::new().prefix("layersweep-cri-").tempdir().unwrap();
        let images = [
            image_spec(&[APP, ALIAS], &["base", "app"]),
            image_spec(&[USED], &["base", "used"]),
            image_spec(&[PAUSE], &["pause"]),
        ];
        let store = Arc::new(Store::of(&directory.path().join("graphroot"), "overlay", &images));
        let server = CriServer::start(&store);
        let client = Client::connect(server.endpoint().parse().unwrap(), Options::default()).unwrap();
        Some(Self { server, store, client, _directory: directory })
    }

    fn quick(&self, deadline: Duration) -> Client {
        let options = Options {
            connecting: Duration::from_millis(100),
            listing: deadline,
            removing: deadline,
            ..Options::default()
        };
        self.client.clone().with_options(options)
    }

    fn behave(&self, change: impl FnOnce(&mut Behaviour)) {
        self.server.behave(change);
    }

    fn image(&self, name: &str) -> RuntimeImage {
        let images = self.client.images().unwrap();
        images.into_iter().find(|image| image.tags.iter().any(|tag| tag == name)).expect(name)
    }

    fn remove(&self, name: &str) -> Result<(), CriProblem> {
        let id = self.image(name).id;
        self.client.remove_image(&id, "").map_err(|error| error.problem)
    }

    /// Returns whether podman still has the image.
    fn on_disk(&self, id: &str) -> bool {
        support::program::run(self.store.podman_command().args(["image", "exists", id])).code == 0
    }

    fn inventory(&self) -> Inventory {
        let request = ScanRequest {
            graphroots: vec![self.store.root().to_path_buf()],
            runroots: vec![self.store.runroot()],
            measure: layersweep::stores::Measure::RecordsAndMounts,
            ..ScanRequest::of(Sysroot::live())
        };
        layersweep::stores::run(&request, &Progress::default()).unwrap().inventory
    }
}

fn image_spec(names: &[&str], layers: &[&str]) -> ImageSpec {
    ImageSpec {
        names: names.iter().map(|name| (*name).to_owned()).collect(),
        layers: layers.iter().map(|name| LayerSpec { small_files: 3, ..LayerSpec::new(name) }).collect(),
        label: names[0].to_owned(),
    }
}

fn listing_problem<T: std::fmt::Debug>(result: Result<T, CriError>) -> CriProblem {
    let error = result.expect_err("nothing of this listing may be used");
    assert!(error.to_string().starts_with("unix:///"), "{error}");
    error.problem
}

#[test]
fn honest_runtime_lists_and_removes() {
    let Some(setup) = Setup::new() else { return };
    let client = &setup.client;
    assert_eq!(client.version().runtime_name, "cri-o");
    assert_eq!(client.version().runtime_api_version, "v1");
    let status = client.status().unwrap().status.unwrap();
    assert!(status.conditions.iter().all(|condition| condition.status), "{status:?}");

    // The runtime reports the place of its images over HTTP on the same socket.
    let store = client.runtime_store().unwrap().unwrap();
    assert_eq!(store.kind, StoreKind::ContainersStorage);
    assert_eq!(store.root, setup.store.root().canonicalize().unwrap());
    assert_eq!((store.driver.as_deref(), store.origin.as_str()), (Some("overlay"), "CRI-O's /info"));
    let filesystems = client.image_filesystems().unwrap();
    assert!(
        filesystems.image_filesystems[0]
            .fs_id
            .as_ref()
            .unwrap()
            .mountpoint
            .ends_with("graphroot/overlay-images"),
        "{filesystems:?}"
    );

    setup.behave(|behaviour| behaviour.pinned = vec![PAUSE.into()]);
    let images = client.images().unwrap();
    assert_eq!(images.len(), 3);
    let app = setup.image(APP);
    assert_eq!(app.id, setup.image(ALIAS).id);
    assert!(app.id.len() == 64 && app.digests[0].starts_with("reg.local/app@sha256:"), "{app:?}");
    let pinned: Vec<_> = images.iter().filter(|image| image.pinned).flat_map(|image| &image.tags).collect();
    assert_eq!(pinned, [PAUSE]);

    // Pods: one container runs, one has ended.
    let podman = setup.server.podman();
    let sandbox = podman.sandbox("web", PAUSE);
    let running = podman.container(&sandbox, "web", "main", USED);
    let ended = podman.container(&sandbox, "web", "init", USED);
    podman.set_state(&ended, "exited");
    setup.store.podman(["create", "--network=host", "--name=people", USED, "true"]);
    let containers = client.containers().unwrap();
    assert_eq!(containers.len(), 2, "CRI does not list podman's container: {containers:?}");
    let of = |id: &str| containers.iter().find(|container| container.id == id).unwrap();
    assert_eq!(of(&running).state, ContainerState::Running);
    assert_eq!(of(&ended).state, ContainerState::Exited);
    assert_eq!((of(&ended).name.as_str(), of(&ended).pod_uid.as_str()), ("init", "uid-web"));
    assert!(
        containers.iter().all(|container| container.sandbox_id == sandbox && container.created.is_some())
    );
    let details = client.container(&ended).unwrap().unwrap();
    assert!(details.finished > details.created, "{details:?}");
    assert_eq!(client.container(&"0".repeat(64)), Ok(None));
    let sandboxes = client.sandboxes().unwrap();
    assert!(matches!(&sandboxes[..], [only] if only.id == sandbox && only.ready && only.uid == "uid-web"));

    // Images that they use, by the ids of today and by the digests of older releases.
    let images = client.images().unwrap();
    for old in [false, true] {
        setup.behave(|behaviour| behaviour.old_image_ref = old);
        let containers = client.containers().unwrap();
        assert_eq!(containers[0].image_id.is_empty(), old);
        let used = ImageNames::new(&images).used_by(&containers[0]);
        assert!(used.certain);
        let ids: Vec<_> = used.images.iter().map(|image_ix| images[*image_ix].tags[0].as_str()).collect();
        assert_eq!(ids, [USED], "old: {old}");
    }

    // The scan and the runtime agree.
    let inventory = setup.inventory();
    let stores = RuntimeStores::find(&store, &inventory).unwrap();
    let found = ImageMatch::new(&inventory, &stores, &images);
    assert_eq!((found.known.len(), found.unknown.len(), found.unseen.len()), (3, 0, 0), "{found:?}");
    let containers = client.containers().unwrap();
    assert_eq!(unseen_container(&inventory, &stores, &containers, &sandboxes), None);
    let owners: Vec<_> = inventory.containers.iter().map(|container| container.owner).collect();
    assert_eq!(owners.iter().filter(|owner| **owner == Owner::CriO).count(), 3, "{owners:?}");

    // Removals: first containers, then their sandbox, then the image.
    assert!(matches!(setup.remove(USED), Err(CriProblem::InUse(why)) if why.contains("in use")));
    client.stop_container(&running, Duration::ZERO).unwrap();
    for id in [&running, &ended] {
        client.remove_container(id).unwrap();
    }
    client.remove_container(&running).unwrap();
    client.stop_sandbox(&sandbox).unwrap();
    assert!(!client.sandboxes().unwrap()[0].ready);
    client.remove_sandbox(&sandbox).unwrap();
    assert!(client.sandboxes().unwrap().is_empty() && client.containers().unwrap().is_empty());
    setup.store.podman(["rm", "people"]);
    setup.remove(USED).unwrap();

    // Removing an image by id removes both of its names; removing it again is not an error.
    assert!(still_listed(client, &app.id));
    setup.server.take_calls();
    client.remove_image(&app.id, "").unwrap();
    assert_eq!(setup.server.take_calls(), [format!("RemoveImage {}", app.id)]);
    assert!(!still_listed(client, &app.id));
    assert!(!setup.on_disk(&app.id));
    client.remove_image(&app.id, "").unwrap();

    // An old scan that knows images that are gone is not an objection, but a new image is.
    let images = client.images().unwrap();
    let found = ImageMatch::new(&inventory, &stores, &images);
    assert_eq!((found.known.len(), found.unknown.len()), (1, 2));
    assert_eq!(found.objection(&images), None);
    setup.behave(|behaviour| behaviour.extra_images = 1);
    let images = client.images().unwrap();
    let found = ImageMatch::new(&inventory, &stores, &images);
    assert!(found.objection(&images).unwrap().contains("stale"));

    // Names and prefixes never reach the runtime.
    setup.server.take_calls();
    for wrong in ["", PAUSE, &app.id[..12], "reg.local/pause"] {
        let error = client.remove_image(wrong, "").unwrap_err();
        assert!(matches!(error.problem, CriProblem::BadRequest(_)), "{error}");
        assert!(client.remove_container(wrong).is_err() && client.remove_sandbox(wrong).is_err());
    }
    assert!(setup.server.take_calls().is_empty());
}

#[test]
fn untrusted_listings_are_refused() {
    let Some(setup) = Setup::new() else { return };
    let podman = setup.server.podman();
    let sandbox = podman.sandbox("web", PAUSE);
    podman.container(&sandbox, "web", "a", USED);
    podman.container(&sandbox, "web", "b", USED);
    podman.sandbox("db", PAUSE);
    let client = setup.quick(Duration::from_millis(700));

    for listing in [Listing::SameId, Listing::EmptyId, Listing::Hang, Listing::Error("layers not known")] {
        setup.behave(|behaviour| {
            behaviour.images = listing.clone();
            behaviour.containers = listing.clone();
            behaviour.sandboxes = listing.clone();
        });
        for problem in [
            listing_problem(client.images()),
            listing_problem(client.containers()),
            listing_problem(client.sandboxes()),
        ] {
            let is_expected = match listing {
                Listing::SameId | Listing::EmptyId => matches!(problem, CriProblem::Contradiction(_)),
                Listing::Hang => matches!(problem, CriProblem::Deadline(_)),
                _ => matches!(&problem, CriProblem::Other { message, .. } if message == "layers not known"),
            };
            assert!(is_expected, "{listing:?}: {problem:?}");
        }
    }

    // The disk shows errors that no answer shows.
    let inventory = setup.inventory();
    let store = client.runtime_store().unwrap().unwrap();
    let stores = RuntimeStores::find(&store, &inventory).unwrap();
    let objection = |listing: Listing| {
        setup.behave(|behaviour| behaviour.images = listing);
        let images = client.images().unwrap();
        let found = ImageMatch::new(&inventory, &stores, &images);
        (found.known.len(), found.unknown.len(), found.objection(&images))
    };
    assert_eq!(objection(Listing::Honest), (3, 0, None));
    assert_eq!(objection(Listing::LeaveOut(1)), (2, 1, None));
    let (_, _, why) = objection(Listing::LeaveOut(3));
    assert!(why.unwrap().contains("partial"));
    let (_, _, why) = objection(Listing::WrongIds);
    assert!(why.unwrap().contains("stale"));

    setup.behave(|behaviour| {
        behaviour.containers = Listing::LeaveOut(1);
        behaviour.sandboxes = Listing::Honest;
    });
    let (containers, sandboxes) = (client.containers().unwrap(), client.sandboxes().unwrap());
    assert_eq!(unseen_container(&inventory, &stores, &containers, &sandboxes), None);
}

#[test]
fn failed_removals_are_recognised() {
    let Some(mut setup) = Setup::new() else { return };
    let (app, pause) = (setup.image(APP).id, setup.image(PAUSE).id);
    setup.behave(|behaviour| behaviour.remove_all(Removal::Refuse));
    assert!(matches!(setup.remove(APP), Err(CriProblem::InUse(_))));

    setup.behave(|behaviour| behaviour.remove_all(Removal::Lie));
    setup.remove(APP).unwrap();
    assert!(still_listed(&setup.client, &app) && setup.on_disk(&app));

    setup.behave(|behaviour| behaviour.remove_all(Removal::HalfFail));
    let problem = setup.remove(APP).unwrap_err();
    assert!(matches!(&problem, CriProblem::Other { message, .. } if message.contains("busy")), "{problem:?}");
    assert!(problem.leaves_doubt());
    assert_eq!(setup.client.images().unwrap().iter().find(|image| image.id == app).unwrap().tags.len(), 1);

    // A timeout: the runtime does nothing here, but the client cannot know.
    setup.behave(|behaviour| behaviour.remove_all(Removal::Hang));
    let error = setup.quick(Duration::from_millis(300)).remove_image(&app, "").unwrap_err();
    assert!(matches!(&error.problem, problem @ CriProblem::Deadline(_) if problem.leaves_doubt()), "{error}");
    assert!(error.to_string().ends_with("RemoveImage: no answer after 0.3 s"), "{error}");
    assert!(still_listed(&setup.client, &app));

    setup.behave(|behaviour| behaviour.remove_all(Removal::Late(Duration::from_millis(400))));
    setup.remove(APP).unwrap();
    assert!(still_listed(&setup.client, &app), "not yet");
    setup.server.finish_late();
    assert!(!still_listed(&setup.client, &app));

    // A signal during a removal: the client leaves it, in doubt, and begins nothing more.
    setup.behave(|behaviour| behaviour.remove_all(Removal::Slow(Duration::from_millis(400))));
    let used = setup.image(USED).id;
    let cancel = Arc::new(AtomicBool::new(false));
    let options = Options { cancel: Some(Arc::clone(&cancel)), ..Options::default() };
    let client = setup.client.clone().with_options(options);
    let signal = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(150));
        cancel.store(true, Ordering::Relaxed);
    });
    let began = Instant::now();
    let error = client.remove_image(&used, "").unwrap_err();
    assert!(error.problem == CriProblem::Left && error.problem.leaves_doubt(), "{error}");
    assert!(began.elapsed() < Duration::from_millis(390), "{:?}", began.elapsed());
    signal.join().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    setup.server.take_calls();
    assert_eq!(client.remove_image(&pause, "").unwrap_err().problem, CriProblem::Cancelled);
    assert_eq!(client.images().unwrap_err().problem, CriProblem::Cancelled);
    assert!(setup.server.take_calls().is_empty());

    // The runtime is killed before and after the removal, and restarted.
    setup.behave(|behaviour| behaviour.remove_all(Removal::DieBefore));
    let client = setup.quick(Duration::from_secs(20));
    let started = Instant::now();
    let error = client.remove_image(&pause, "").unwrap_err();
    assert!(matches!(&error.problem, problem @ CriProblem::HungUp(_) if problem.leaves_doubt()), "{error:?}");
    assert!(started.elapsed() < Duration::from_secs(10));
    setup.server.wait_for_death();
    assert_eq!(client.images().unwrap_err().problem, CriProblem::NotListening);
    setup.server.restart();
    assert!(still_listed(&client, &pause), "the same client still works");
    setup.behave(|behaviour| behaviour.remove_all(Removal::DieAfter));
    assert!(matches!(client.remove_image(&pause, "").unwrap_err().problem, CriProblem::HungUp(_)));
    setup.server.restart();
    assert!(!still_listed(&client, &pause) && !setup.on_disk(&pause));

    setup.server.stop();
    assert!(matches!(client.images().unwrap_err().problem, CriProblem::NotRunning(_)));
}

#[test]
fn long_listings_are_read() {
    let Some(setup) = Setup::new() else { return };
    // More than the 4 MiB that tonic accepts by default, and a good part of containerd's 16 MiB.
    setup.behave(|behaviour| behaviour.extra_images = 40_000);
    let images = setup.client.images().unwrap();
    assert_eq!(images.len(), 40_003);
    assert!(images.iter().any(|image| image.id == format!("{:064x}", 39_999)), "to the last");
    assert!(images.is_sorted_by_key(|image| &image.id));

    let narrow = Options { max_answer_bytes: 1 << 20, ..Options::default() };
    let problem = listing_problem(setup.client.clone().with_options(narrow).images());
    assert!(matches!(problem, CriProblem::TooLarge(_)), "{problem:?}");

    // A delay within the deadline has no effect.
    setup.behave(|behaviour| {
        behaviour.extra_images = 0;
        behaviour.delay = Some(Duration::from_millis(200));
    });
    assert_eq!(setup.client.images().unwrap().len(), 3);
}

#[test]
fn configured_endpoint_is_found() {
    let Some(setup) = Setup::new() else { return };
    let node = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(node.path().join("etc")).unwrap();
    std::fs::create_dir_all(node.path().join("run/crio")).unwrap();
    std::fs::create_dir_all(node.path().join("run/containerd")).unwrap();
    std::fs::write(node.path().join("run/containerd/containerd.sock"), "").unwrap();
    std::fs::hard_link(setup.server.socket(), node.path().join("run/crio/crio.sock")).unwrap();
    let found = layersweep::cri::discover::discover(&Sysroot::at(node.path()));
    assert!(found.problems.is_empty(), "{found:?}");
    let answers = layersweep::cri::discover::probe(found.candidates, &Options::default());
    let [(candidate, client)] = &answers.runtimes[..] else { panic!("{answers:?}") };
    assert_eq!(candidate.origin, "CRI-O's default socket");
    assert_eq!(client.images().unwrap().len(), 3);
    let [(candidate, error)] = &answers.silent[..] else { panic!("{answers:?}") };
    assert!(!candidate.configured && matches!(error.problem, CriProblem::NotRunning(_)), "{error}");
    assert_ne!(client.endpoint(), &setup.server.endpoint().parse::<Endpoint>().unwrap());
}

fn still_listed(client: &Client, id: &str) -> bool {
    client.images().unwrap().iter().any(|image| image.id == id)
}
