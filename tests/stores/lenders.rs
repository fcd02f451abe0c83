//! Stores that other stores take images from: whoever names them, they stay what they are, and
//! what cannot be read of a borrower keeps their images.

#![allow(clippy::unwrap_used)] // the helpers belong to the tests

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::rulings::rulings_of_old;
use layersweep::disk::Progress;
use layersweep::model::Finding;
use layersweep::policy::Policy;
use layersweep::stores::{self, Measure, Scan, ScanRequest};
use layersweep::sys::sysroot::Sysroot;
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

fn look(disk: &Path, measure: Measure) -> Scan {
    look_at(disk, measure, &[])
}

fn look_at(disk: &Path, measure: Measure, graphroots: &[&str]) -> Scan {
    let request = ScanRequest {
        graphroots: graphroots.iter().map(|path| Path::new("/").join(path)).collect(),
        measure,
        ..ScanRequest::of(Sysroot::at(disk))
    };
    stores::run(&request, &Progress::default()).unwrap()
}

/// Which rule keeps the image of a store; an image that is not there is not asked for.
fn keeps(scan: &Scan, store: &str) -> Option<(&'static str, String)> {
    let name = format!("localhost/{store}:1");
    let at = scan.inventory.images.iter().position(|image| image.names == [name.clone()]);
    let ruling =
        rulings_of_old(scan, &Policy::default()).swap_remove(at.unwrap_or_else(|| panic!("no {name}")));
    ruling.map(|ruling| (ruling.rule.as_str(), ruling.detail))
}

/// The stores by their roots, and whether each is read-only.
fn stores(disk: &Path, scan: &Scan) -> Vec<(String, bool)> {
    let stores = scan.inventory.stores.iter();
    let within = |root: &Path| root.strip_prefix(disk).unwrap().display().to_string();
    let mut stores: Vec<_> = stores.map(|store| (within(&store.root), store.read_only)).collect();
    stores.sort();
    stores
}

/// Who names a store first makes no difference to whose it is.
#[test]
fn store_with_a_writer_is_not_read_only() {
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
        let scan = look(disk.path(), Measure::RecordsAndMounts);
        let disk = disk.path().canonicalize().unwrap();
        let expected = [(OF_A_USER, false), (CRIO, false), (PODMAN, false), (SHARED, true)];
        assert_eq!(
            stores(&disk, &scan),
            expected.map(|(root, read_only)| (root.to_owned(), read_only)),
            "{borrowers:?}"
        );
        assert_eq!(keeps(&scan, CRIO), None, "{borrowers:?}");
        assert_eq!(keeps(&scan, SHARED).unwrap().0, "read-only-store");
        // A store comes behind those that it takes images from.
        let place = |root: &str| scan.inventory.stores.iter().position(|store| store.root.ends_with(root));
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
fn damaged_store_keeps_borrowed_images() {
    let (crio, podman) = (format!("/{CRIO}"), format!("/{PODMAN}"));
    for (borrower, lender, other, how) in [
        (PODMAN, CRIO, OF_A_USER, "containers"),
        (PODMAN, CRIO, OF_A_USER, "layers"),
        (PODMAN, CRIO, OF_A_USER, "loop"),
        // Its configuration is in a home.
        (OF_A_USER, PODMAN, CRIO, "containers"),
    ] {
        for measure in [Measure::RecordsAndMounts, Measure::Everything] {
            let case = format!("{borrower} {how} {measure:?}");
            let disk = node([&[&crio], &[&podman]]);
            let whole = look(disk.path(), measure);
            assert_eq!(keeps(&whole, lender), None, "{case}: whole");
            assert_eq!(whole.inventory.unread_users, []);
            ruin(&disk.path().join(borrower), how);
            let scan = look(disk.path(), measure);
            let (rule, detail) = keeps(&scan, lender).expect(&case);
            assert_eq!(rule, "damaged-store", "{case}: {detail}");
            assert!(detail.contains(borrower), "{case}: {detail}");
            assert_eq!(keeps(&scan, other), None, "{case}: nobody borrows from it");
        }
    }
}

/// An imagestore is lent as well: here it is the graphroot of CRI-O.
#[test]
fn damaged_store_keeps_images_of_imagestore() {
    let disk = node([&[], &[]]);
    let config =
        format!("[storage]\ndriver = \"overlay\"\ngraphroot = \"/{PODMAN}\"\nimagestore = \"/{SHARED}\"\n");
    fs::write(disk.path().join("etc/containers/storage.conf"), config).unwrap();
    let config = format!("[crio]\nroot = \"/{SHARED}\"\nimagestore = \"\"\n");
    fs::write(disk.path().join("etc/crio/crio.conf"), config).unwrap();
    ruin(&disk.path().join(PODMAN), "containers");
    let scan = look(disk.path(), Measure::RecordsAndMounts);
    let lent = scan.inventory.unread_users.iter();
    let lent = lent.map(|user| &scan.inventory.stores[user.store.get()].root);
    let lent: Vec<_> = lent.map(|root| root.ends_with(SHARED)).collect();
    assert_eq!(lent, [true], "{:?}", scan.inventory.unread_users);
}

/// Records a container of the image that node() has put in `image_of`.
fn container(disk: &Path, store: &str, image_of: &str) {
    let number = [PODMAN, CRIO, SHARED, OF_A_USER].iter().position(|one| *one == image_of).unwrap();
    let text =
        format!(r#"[{{"id":"{:064x}","names":["web"],"image":"{number:064x}","metadata":"{{}}"}}]"#, 99);
    fs::write(disk.join(store).join("overlay-containers/containers.json"), text).unwrap();
}

fn is_in_use(scan: &Scan, store: &str) -> bool {
    keeps(scan, store).is_some_and(|(rule, detail)| {
        assert!(rule != "in-use" || detail.contains("container web"), "{detail}");
        rule == "in-use"
    })
}

/// A name limits what is shown, never who is asked: the borrower is not named.
#[test]
fn named_store_is_checked_for_all_borrowers() {
    let crio = format!("/{CRIO}");
    for measure in [Measure::RecordsAndMounts, Measure::Everything] {
        let disk = node([&[&crio], &[]]);
        let scan = look_at(disk.path(), measure, &[CRIO]);
        assert_eq!((scan.inventory.stores.len(), keeps(&scan, CRIO)), (1, None));
        container(disk.path(), PODMAN, CRIO);
        let scan = look_at(disk.path(), measure, &[CRIO]);
        assert_eq!((scan.inventory.stores.len(), scan.inventory.containers.len()), (1, 0));
        assert!(is_in_use(&scan, CRIO));
        assert!(is_in_use(&look(disk.path(), measure), CRIO));
        // Whatever is wrong with it is told only where it matters.
        ruin(&disk.path().join(PODMAN), "containers");
        let scan = look_at(disk.path(), measure, &[CRIO]);
        assert_eq!(keeps(&scan, CRIO).unwrap().0, "damaged-store");
        assert_eq!(scan.inventory.findings, []);
        let scan = look_at(disk.path(), measure, &[OF_A_USER]);
        assert_eq!((scan.inventory.findings.as_slice(), keeps(&scan, OF_A_USER)), (&[][..], None));
    }
}

/// One storage.conf names both stores, and each reads it.
#[test]
fn stores_borrowing_from_each_other_are_kept() {
    let paths = [format!("/{PODMAN}"), format!("/{CRIO}")];
    let both = paths.each_ref().map(String::as_str);
    let disk = node([&both, &[]]);
    container(disk.path(), PODMAN, CRIO);
    container(disk.path(), CRIO, PODMAN);
    let scan = look(disk.path(), Measure::RecordsAndMounts);
    for store in [PODMAN, CRIO] {
        assert!(is_in_use(&scan, store), "{store}: {:?} {:?}", keeps(&scan, store), scan.inventory);
    }
    for named in [PODMAN, CRIO] {
        assert!(is_in_use(&look_at(disk.path(), Measure::RecordsAndMounts, &[named]), named), "{named}");
    }
}

/// Two graphroots with one imagestore: each image is there once, and the containers of both use it.
#[test]
fn imagestore_of_two_stores_is_kept() {
    let disk = node([&[], &[]]);
    let config =
        format!("[storage]\ndriver = \"overlay\"\ngraphroot = \"/{PODMAN}\"\nimagestore = \"/{SHARED}\"\n");
    fs::write(disk.path().join("etc/containers/storage.conf"), config).unwrap();
    for user in [PODMAN, CRIO] {
        for named in [&[][..], &[PODMAN], &[CRIO], &[PODMAN, CRIO]] {
            fs::write(disk.path().join(PODMAN).join("overlay-containers/containers.json"), "[]").unwrap();
            fs::write(disk.path().join(CRIO).join("overlay-containers/containers.json"), "[]").unwrap();
            let scan = look_at(disk.path(), Measure::Everything, named);
            let shared = format!("localhost/{SHARED}:1");
            let same = scan.inventory.images.iter().filter(|image| image.names == [shared.clone()]);
            assert_eq!(same.count(), 1, "{named:?}");
            assert_eq!(keeps(&scan, SHARED), None, "{named:?}");
            let records = scan.inventory.nodes.iter().filter(|node| node.path.ends_with("images.json"));
            assert!(records.count() <= 3);
            container(disk.path(), user, SHARED);
            let scan = look_at(disk.path(), Measure::Everything, named);
            assert!(is_in_use(&scan, SHARED), "{user} {named:?}");
        }
    }
}

/// What a user writes counts for what the user could be using, and for nothing else.
#[test]
fn user_keeps_only_reachable_stores() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let podman = format!("/{PODMAN}");
    let disk = node([&[], &[&podman]]);
    let store = disk.path().join(OF_A_USER);
    std::os::unix::fs::chown(&store, Some(1000), Some(1000)).unwrap();
    let mode = |path: &str, mode: u32| {
        fs::set_permissions(disk.path().join(path), fs::Permissions::from_mode(mode)).unwrap();
    };
    for (change, reaches) in
        [(None, true), (Some(PODMAN.to_owned()), false), (Some(format!("{PODMAN}/overlay-layers")), false)]
    {
        change.iter().for_each(|path| mode(path, 0o700));
        for named in [&[][..], &[PODMAN]] {
            let case = format!("{change:?} {named:?}");
            container(disk.path(), OF_A_USER, PODMAN);
            let scan = look_at(disk.path(), Measure::RecordsAndMounts, named);
            // With nothing named the store is shown, and says itself what it takes from where.
            assert!(is_in_use(&scan, PODMAN) == reaches, "{case}");
            ruin(&store, "containers");
            let scan = look_at(disk.path(), Measure::RecordsAndMounts, named);
            let rule = keeps(&scan, PODMAN).map(|(rule, _)| rule);
            assert_eq!(rule, reaches.then_some("damaged-store"), "{case}");
        }
        change.iter().for_each(|path| mode(path, 0o755));
    }
    // A record of the same id in a store that takes nothing from ours is another image.
    fs::write(disk.path().join("home/ada/.config/containers/storage.conf"), "[storage]\n").unwrap();
    container(disk.path(), OF_A_USER, PODMAN);
    assert_eq!(keeps(&look(disk.path(), Measure::RecordsAndMounts), PODMAN), None);
}

/// More stores than are looked at: then the user may be using any that he can read.
#[test]
fn endless_store_list_keeps_readable_stores() {
    for (count, drop_ins, bytes, keeps_podmans) in [
        (100, 100, 0, false),
        (101, 0, 0, true),
        (20_000, 0, 0, true),
        (0, 101, 0, true),
        (0, 0, 2 << 20, true),
    ] {
        let case = format!("{count} stores, {drop_ins} files, {bytes} bytes");
        let named: Vec<_> = (0..count).map(|at| format!("/home/ada/{at}")).collect();
        let disk = node([&[], &named.iter().map(String::as_str).collect::<Vec<_>>()]);
        let config = disk.path().join("home/ada/.config/containers");
        fs::create_dir(config.join("storage.conf.d")).unwrap();
        for at in 0..drop_ins {
            fs::write(config.join(format!("storage.conf.d/{at}.conf")), "[storage]\n").unwrap();
        }
        if bytes > 0 {
            fs::write(config.join("storage.conf"), " ".repeat(bytes)).unwrap();
        }
        for named in [&[][..], &[PODMAN]] {
            let started = Instant::now();
            let scan = look_at(disk.path(), Measure::RecordsAndMounts, named);
            assert!(started.elapsed() < Duration::from_secs(20), "{case}: {:?}", started.elapsed());
            let kept = keeps(&scan, PODMAN);
            assert_eq!(kept.is_some(), keeps_podmans, "{case}: {kept:?}");
            let said =
                |(rule, detail): &(_, String)| *rule == "damaged-store" && detail.contains("/home/ada");
            assert!(kept.iter().all(said), "{case}: {kept:?}");
            let finding = scan.inventory.findings.iter();
            let finding = finding.clone().find(|one| one.message.contains("any store that ada can read"));
            assert_eq!(finding.is_some(), keeps_podmans && named.is_empty(), "{case}");
        }
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(disk.path().join(OF_A_USER), Some(1000), Some(1000)).unwrap();
            let private = fs::Permissions::from_mode(0o700);
            fs::set_permissions(disk.path().join(PODMAN), private).unwrap();
            assert_eq!(keeps(&look(disk.path(), Measure::RecordsAndMounts), PODMAN), None, "{case}");
        }
    }
}

/// A chain that no driver mounts, with an image on each layer: as many steps as layers times images.
#[test]
fn unmountable_chain_affects_only_its_owner() {
    let podman = format!("/{PODMAN}");
    for measure in [Measure::RecordsAndMounts, Measure::Everything] {
        let disk = node([&[], &[&podman]]);
        let id = |at: usize| format!("{at:064x}");
        let all = |record: &dyn Fn(usize) -> String| {
            format!("[{}]", (1000..9000).map(record).collect::<Vec<_>>().join(","))
        };
        let layer = |at: usize| format!(r#"{{"id":"{}","parent":"{}"}}"#, id(at), id(at - 1));
        let image = |at: usize| format!(r#"{{"id":"{}","layer":"{}"}}"#, id(at), id(at));
        let store = disk.path().join(OF_A_USER);
        fs::write(store.join("overlay-layers/layers.json"), all(&layer)).unwrap();
        let path = store.join("overlay-images/images.json");
        let own = fs::read_to_string(&path).unwrap();
        let own = own.strip_suffix(']').unwrap();
        fs::write(&path, format!("{own},{}", &all(&image)[1..])).unwrap();
        let started = Instant::now();
        let scan = look(disk.path(), measure);
        assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
        let listed: usize = scan.inventory.images.iter().map(|image| image.layers.len()).sum();
        assert!(listed < 1_000_000, "{listed}");
        let said = |finding: &Finding| finding.message.contains("more than can be mounted");
        assert!(scan.inventory.findings.iter().any(said), "{:?}", scan.inventory.findings);
        for store in [OF_A_USER, PODMAN] {
            let (rule, _) = keeps(&scan, store).unwrap();
            assert_eq!(rule, "damaged-store", "{store}");
        }
        assert_eq!(keeps(&scan, CRIO), None, "nobody borrows from it");
    }
}

/// bootc's store is found by itself, once, whichever of its names leads there; it lends, and nobody
/// deletes from it even where it is named.
#[test]
fn bootcs_store_is_shown_and_read_only() {
    for (place, link) in [
        ("sysroot/ostree/bootc/storage", "usr/lib/bootc/storage"),
        ("sysroot/composefs/bootc/storage", "sysroot/ostree/bootc"),
    ] {
        let disk = node([&[], &[]]);
        let top = disk.path();
        let write = |path: &str, text: &str| {
            fs::create_dir_all(top.join(path).parent().unwrap()).unwrap();
            fs::write(top.join(path), text).unwrap();
        };
        let id = "b".repeat(64);
        let image = format!(r#"[{{"id":"{id}","names":["localhost/bootc:1"],"metadata":"{{}}"}}]"#);
        write(&format!("{place}/overlay-images/images.json"), &image);
        write(&format!("{place}/overlay-layers/layers.json"), "[]");
        write(&format!("{place}/overlay-containers/containers.json"), "[]");
        let target = if link.ends_with("storage") { place } else { "sysroot/composefs/bootc" };
        fs::create_dir_all(top.join(link).parent().unwrap()).unwrap();
        symlink(Path::new("/").join(target), top.join(link)).unwrap();

        let scan = look(top, Measure::RecordsAndMounts);
        let top = top.canonicalize().unwrap();
        assert!(stores(&top, &scan).contains(&(place.to_owned(), true)), "{:?}", stores(&top, &scan));
        let found: Vec<_> = scan.inventory.stores.iter().filter(|store| store.origin == "bootc").collect();
        assert_eq!(found.len(), 1, "{place}: once");
        assert_eq!(keeps(&scan, "bootc").unwrap().0, "read-only-store");

        // A quadlet of root's podman runs it from there.
        let used = format!(r#"[{{"id":"{}","image":"{id}","layer":"","metadata":"{{}}"}}]"#, "c".repeat(64));
        write(&format!("{PODMAN}/overlay-containers/containers.json"), &used);
        let scan = look(&top, Measure::RecordsAndMounts);
        let at = scan.inventory.images.iter().position(|image| image.id == id).unwrap();
        let container = scan.inventory.containers.iter().find(|one| one.id.starts_with("cc")).unwrap();
        assert_eq!(container.image, Some(at.into()), "{place}: its container's image is known");

        let named = look_at(&top, Measure::RecordsAndMounts, &[place]);
        assert_eq!(stores(&top, &named), [(place.to_owned(), true)]);
        assert_eq!(keeps(&named, "bootc").unwrap().0, "in-use", "by podman's container");
    }
}

/// A configuration that cannot be read may name any store that its owner can read: images that only its owner uses
/// would go.
#[test]
fn unreadable_configuration_keeps_readable_stores() {
    const OF_ADA: &str = "home/ada/.config/containers/storage.conf";
    let lists_nothing = "[storage.options]\nadditionalimagestores = 7\n";
    for (file, text, of_root) in [
        ("etc/containers/storage.conf", "[storage", true),
        ("etc/containers/storage.conf.d/x.conf", lists_nothing, true),
        ("etc/containers/containers.conf", "[engine", true),
        ("etc/containers/containers.conf.d/x.conf", "[engine]\nstatic_dir = 7\n", true),
        ("etc/crio/crio.conf.d/x", "[crio]\nstorage_option = \"x\"\n", true),
        ("etc/passwd", "", true),
        (OF_ADA, "[storage", false),
        (OF_ADA, lists_nothing, false),
    ] {
        for named in [&[][..], &[CRIO]] {
            let disk = node([&[], &[]]);
            let path = disk.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let is_kept = |disk: &Path| {
                let scan = look_at(disk, Measure::RecordsAndMounts, named);
                let kept = keeps(&scan, CRIO);
                let said = |(rule, detail): &(_, String)| *rule == "damaged-store" && detail.contains(file);
                assert!(kept.iter().all(said), "{file}: {kept:?}");
                (kept.is_some(), scan)
            };
            assert!(!is_kept(disk.path()).0, "{file}: whole");
            match text {
                "" => {
                    fs::remove_file(&path).unwrap();
                    fs::create_dir(&path).unwrap();
                }
                text => fs::write(&path, text).unwrap(),
            }
            assert!(is_kept(disk.path()).0, "{file}: {text}");
            if !of_root {
                // One who has no known store may have one where that configuration says; that warns nobody else.
                fs::rename(disk.path().join(OF_A_USER), disk.path().join("moved")).unwrap();
                let (kept, scan) = is_kept(disk.path());
                assert!(kept, "{file}: without a store");
                assert_eq!(scan.inventory.findings, []);
            }
            let private = fs::Permissions::from_mode(0o700);
            fs::set_permissions(disk.path().join(CRIO), private).unwrap();
            assert_eq!(is_kept(disk.path()).0, of_root, "{file}: where only root can read");
        }
    }
    // Homes that are no directories hold no configuration.
    let disk = node([&[], &[]]);
    fs::create_dir(disk.path().join("dev")).unwrap();
    fs::write(disk.path().join("dev/null"), "").unwrap();
    let users = "root:x:0:0::/root:/bin/sh\ntss:x:59:59::/dev/null:/bin/false\nbin:x:1:1::/none:/bin/false\n";
    fs::write(disk.path().join("etc/passwd"), users).unwrap();
    assert_eq!(keeps(&look(disk.path(), Measure::RecordsAndMounts), CRIO), None);
}
