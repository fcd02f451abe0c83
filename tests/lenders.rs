//! Stores that other stores take images from: whoever names them, they stay what they are, and
//! what cannot be read of a borrower keeps their images.

#![allow(clippy::unwrap_used)] // the helpers belong to the tests

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use jiff::{SignedDuration, Timestamp};
use layersweep::gc::rules::Judge;
use layersweep::gc::{Ages, Input, Policy};
use layersweep::graphroot::config::Environment;
use layersweep::graphroot::snapshot::Patience;
use layersweep::inventory::LabelsOf;
use layersweep::survey::{self, Request, Survey, Weigh};
use layersweep::sys::sysroot::Sysroot;
use layersweep::usage::Progress;
use tempfile::TempDir;

const PODMAN: &str = "var/podman";
const CRIO: &str = "var/crio";
const SHARED: &str = "var/shared";
const OF_A_USER: &str = "home/ada/.local/share/containers/storage";

/// A node's disk with four stores, each with one image. `borrowers` are the stores of podman and
/// of a user, with what they name as additional image stores.
fn node(borrowers: [&[&str]; 2]) -> TempDir {
    let disk = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = disk.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    for (number, store) in [PODMAN, CRIO, SHARED, OF_A_USER].into_iter().enumerate() {
        let id = format!("{number:064x}");
        let image = format!(r#"[{{"id":"{id}","names":["localhost/{store}:1"],"metadata":"{{}}"}}]"#);
        write(&format!("{store}/overlay-images/images.json"), &image);
        write(&format!("{store}/overlay-layers/layers.json"), "[]");
        write(&format!("{store}/overlay-containers/containers.json"), "[]");
    }
    let options = |named: &[&str]| format!("[storage.options]\nadditionalimagestores = {named:?}\n");
    let podman = format!("[storage]\ndriver = \"overlay\"\ngraphroot = \"/{PODMAN}\"\n");
    write("etc/containers/storage.conf", &(podman + &options(borrowers[0])));
    let ada = "[storage]\ndriver = \"overlay\"\n".to_owned() + &options(borrowers[1]);
    write("home/ada/.config/containers/storage.conf", &ada);
    write("etc/crio/crio.conf", &format!("[crio]\nroot = \"/{CRIO}\"\n"));
    write("etc/passwd", "root:x:0:0::/root:/bin/sh\nada:x:1000:1000::/home/ada:/bin/sh\n");
    disk
}

fn look(disk: &Path, weigh: Weigh) -> Survey {
    let request = Request {
        sysroot: Sysroot::at(disk),
        environment: Environment::default(),
        graphroots: Vec::new(),
        containerd_roots: Vec::new(),
        runroot: None,
        threads: 2,
        patience: Patience::default(),
        weigh,
        labels: LabelsOf::Nobody,
        now: Timestamp::now(),
        remembered: None,
        full: false,
    };
    survey::run(&request, &Progress::default()).unwrap()
}

/// Which rule keeps the image of a store; an image that is not there is not asked for.
fn keeps(survey: &Survey, store: &str) -> Option<(&'static str, String)> {
    let inventory = &survey.inventory;
    let long_ago = Ages::new(survey.taken_at - SignedDuration::from_hours(1000), None, 0);
    let ages = vec![long_ago; inventory.images.len()];
    let (policy, now) = (&Policy::default(), survey.taken_at);
    let judge = Judge::new(Input {
        inventory,
        refs: &survey.refs,
        ages: &ages,
        known: &[],
        policy,
        now,
        scanned: now,
    });
    let name = format!("localhost/{store}:1");
    let at = inventory.images.iter().position(|image| image.names == [name.clone()]);
    let ruling = judge.kept(at.unwrap_or_else(|| panic!("no {name}")).into());
    ruling.map(|ruling| (ruling.rule, ruling.detail))
}

/// The stores by their roots, and whether each is read-only.
fn stores(disk: &Path, survey: &Survey) -> Vec<(String, bool)> {
    let stores = survey.inventory.stores.iter();
    let within = |root: &Path| root.strip_prefix(disk).unwrap().display().to_string();
    let mut stores: Vec<_> = stores.map(|store| (within(&store.root), store.read_only)).collect();
    stores.sort();
    stores
}

/// Who names a store first makes no difference to whose it is.
#[test]
fn a_store_that_somebody_writes_to_is_not_read_only() {
    let paths = [format!("/{CRIO}"), format!("/{PODMAN}"), format!("/{SHARED}")];
    let [crio, podman, shared] = paths.each_ref().map(String::as_str);
    for borrowers in [
        [&[crio, shared][..], &[podman, shared][..]],
        [&["/alias", shared], &["/var/../alias", podman]],
        // In a circle: CRI-O reads root's storage.conf, too.
        [&[podman, crio, shared], &[]],
    ] {
        let disk = node(borrowers);
        symlink(CRIO, disk.path().join("alias")).unwrap();
        let survey = look(disk.path(), Weigh::Nothing);
        let disk = disk.path().canonicalize().unwrap();
        let expected = [(OF_A_USER, false), (CRIO, false), (PODMAN, false), (SHARED, true)];
        assert_eq!(
            stores(&disk, &survey),
            expected.map(|(root, read_only)| (root.to_owned(), read_only)),
            "{borrowers:?}"
        );
        assert_eq!(keeps(&survey, CRIO), None, "{borrowers:?}");
        assert_eq!(keeps(&survey, SHARED).unwrap().0, "read-only-store");
        // A store comes behind those that it takes images from.
        let place = |root: &str| survey.inventory.stores.iter().position(|store| store.root.ends_with(root));
        assert!(place(SHARED) < place(PODMAN));
        assert!(borrowers[0].contains(&podman) || place(CRIO) < place(PODMAN), "{borrowers:?}");
    }
}

/// What damages a store, or makes it unreadable.
fn ruin(store: &Path, how: &str) {
    match how {
        "containers" => fs::write(store.join("overlay-containers/containers.json"), "[{").unwrap(),
        "layers" => fs::write(store.join("overlay-layers/layers.json"), "no JSON").unwrap(),
        "loop" => {
            fs::rename(store, store.with_file_name("was")).unwrap();
            symlink(store.file_name().unwrap(), store).unwrap();
        }
        _ => unreachable!("{how}"),
    }
}

/// The containers of a store that was not read in full may use any image that it takes from others.
#[test]
fn a_damaged_store_keeps_the_images_that_it_borrows() {
    let (crio, podman) = (format!("/{CRIO}"), format!("/{PODMAN}"));
    for (borrower, lender, other, how) in [
        (PODMAN, CRIO, OF_A_USER, "containers"),
        (PODMAN, CRIO, OF_A_USER, "layers"),
        (PODMAN, CRIO, OF_A_USER, "loop"),
        // Its configuration is in a home.
        (OF_A_USER, PODMAN, CRIO, "containers"),
    ] {
        for weigh in [Weigh::Nothing, Weigh::Everything] {
            let case = format!("{borrower} {how} {weigh:?}");
            let disk = node([&[&crio], &[&podman]]);
            let whole = look(disk.path(), weigh);
            assert_eq!(keeps(&whole, lender), None, "{case}: whole");
            assert_eq!(whole.inventory.lent, []);
            ruin(&disk.path().join(borrower), how);
            let survey = look(disk.path(), weigh);
            let (rule, detail) = keeps(&survey, lender).expect(&case);
            assert_eq!(rule, "damaged-store", "{case}: {detail}");
            assert!(detail.contains(borrower), "{case}: {detail}");
            assert_eq!(keeps(&survey, other), None, "{case}: nobody borrows from it");
        }
    }
}

/// An imagestore is lent as well: here it is the graphroot of CRI-O.
#[test]
fn a_damaged_store_keeps_the_images_of_its_imagestore() {
    let disk = node([&[], &[]]);
    let config =
        format!("[storage]\ndriver = \"overlay\"\ngraphroot = \"/{PODMAN}\"\nimagestore = \"/{SHARED}\"\n");
    fs::write(disk.path().join("etc/containers/storage.conf"), config).unwrap();
    let config = format!("[crio]\nroot = \"/{SHARED}\"\nimagestore = \"\"\n");
    fs::write(disk.path().join("etc/crio/crio.conf"), config).unwrap();
    ruin(&disk.path().join(PODMAN), "containers");
    let survey = look(disk.path(), Weigh::Nothing);
    let lent = survey.inventory.lent.iter().map(|lent| &survey.inventory.stores[lent.store.get()].root);
    let lent: Vec<_> = lent.map(|root| root.ends_with(SHARED)).collect();
    assert_eq!(lent, [true], "{:?}", survey.inventory.lent);
}
