//! Stores that other stores borrow images from: whichever store names them, they keep their own rules, and an
//! unreadable borrower keeps their images.

#![allow(clippy::unwrap_used)] // the helpers belong to the tests

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::{self, rulings::rulings_of_old};
use layersweep::disk::Progress;
use layersweep::policy::Policy;
use layersweep::stores::{self, Measure, Scan, ScanRequest};
use layersweep::sys::sysroot::Sysroot;
use tempfile::TempDir;

const PODMAN: &str = "var/podman";
const CRIO: &str = "var/crio";
const SHARED: &str = "var/shared";
const OF_A_USER: &str = "home/ada/.local/share/containers/storage";

/// Makes a node's disk with four stores, each with one image. `borrowers` are the additional image stores that podman's
/// and a user's configuration name.
fn node(borrowers: [&[&str]; 2]) -> TempDir {
    let disk = tempfile::tempdir().unwrap();
    for (number, store) in [PODMAN, CRIO, SHARED, OF_A_USER].into_iter().enumerate() {
        let id = format!("{number:064x}");
        let image = format!(r#"[{{"id":"{id}","names":["localhost/{store}:1"],"metadata":"{{}}"}}]"#);
        write(disk.path(), &format!("{store}/overlay-images/images.json"), &image);
        write(disk.path(), &format!("{store}/overlay-layers/layers.json"), "[]");
        write(disk.path(), &format!("{store}/overlay-containers/containers.json"), "[]");
    }
    let [of_root, of_ada] =
        borrowers.map(|named| format!("[storage.options]\nadditionalimagestores = {named:?}\n"));
    let podman = format!("[storage]\ndriver = \"overlay\"\ngraphroot = \"/{PODMAN}\"\n");
    let users = "root:x:0:0::/root:/bin/sh\nada:x:1000:1000::/home/ada:/bin/sh\n";
    for (path, text) in [
        ("etc/containers/storage.conf", podman + &of_root),
        (
            "home/ada/.config/containers/storage.conf",
            "[storage]\ndriver = \"overlay\"\n".to_owned() + &of_ada,
        ),
        ("etc/crio/crio.conf", format!("[crio]\nroot = \"/{CRIO}\"\n")),
        ("etc/passwd", users.to_owned()),
    ] {
        write(disk.path(), path, &text);
    }
    disk
}

/// Writes a file of a node and its directories.
fn write(disk: &Path, path: &str, text: &str) {
    let path = disk.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
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

/// Returns rule and detail that keep the image of a store, which must exist.
fn keeps(scan: &Scan, store: &str) -> Option<(&'static str, String)> {
    let name = format!("localhost/{store}:1");
    let image_ix = scan.inventory.images.iter().position(|image| image.names == [name.clone()]);
    let ruling =
        rulings_of_old(scan, &Policy::default()).swap_remove(image_ix.unwrap_or_else(|| panic!("no {name}")));
    ruling.map(|ruling| (ruling.rule.as_str(), ruling.detail))
}

/// Returns the stores by their roots, and whether each is read-only.
fn stores(disk: &Path, scan: &Scan) -> Vec<(String, bool)> {
    let mut stores: Vec<_> = (scan.inventory.stores.iter())
        .map(|store| (store.root.strip_prefix(disk).unwrap().display().to_string(), store.read_only))
        .collect();
    stores.sort();
    stores
}

/// The order in which stores are named makes no difference.
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
        // A store is listed after those that it borrows from.
        let [shared, podmans, crios] = [SHARED, PODMAN, CRIO]
            .map(|root| scan.inventory.stores.iter().position(|store| store.root.ends_with(root)));
        assert!(shared < podmans);
        assert!(borrowers[0].contains(&podman) || crios < podmans, "{borrowers:?}");
    }
}

/// Damages a store, or makes it unreadable.
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

/// Containers of a partly read store may use any image that it borrows.
#[test]
fn damaged_store_keeps_borrowed_images() {
    let (crio, podman) = (format!("/{CRIO}"), format!("/{PODMAN}"));
    for (borrower, lender, other, how) in [
        (PODMAN, CRIO, OF_A_USER, "containers"),
        (PODMAN, CRIO, OF_A_USER, "layers"),
        (PODMAN, CRIO, OF_A_USER, "loop"),
        // The configuration of this borrower is in a home.
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
            assert_eq!(keeps(&scan, other), None, "{case}: it has no borrower");
        }
    }
}

/// An imagestore is lent too: here it is the graphroot of CRI-O.
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

/// Records a container of the image that [`node`] has put in `image_of`.
fn container(disk: &Path, store: &str, image_of: &str) {
    let number =
        [PODMAN, CRIO, SHARED, OF_A_USER].iter().position(|store_root| *store_root == image_of).unwrap();
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

/// A named store limits the output, not the search for borrowers: the borrower is not named.
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
        // Its damage is reported only if it affects an image.
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

/// Two graphroots with one imagestore: each image is listed once, and the containers of both use it.
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

/// The files of a user count only for the images that the user could be using.
#[test]
fn user_keeps_only_reachable_stores() {
    if !support::require_root() {
        return;
    }
    let podman = format!("/{PODMAN}");
    let disk = node([&[], &[&podman]]);
    let store = disk.path().join(OF_A_USER);
    std::os::unix::fs::chown(&store, Some(1000), Some(1000)).unwrap();
    fn mode(disk: &tempfile::TempDir, path: &str, mode: u32) {
        fs::set_permissions(disk.path().join(path), fs::Permissions::from_mode(mode)).unwrap();
    }
    for (change, reaches) in
        [(None, true), (Some(PODMAN.to_owned()), false), (Some(format!("{PODMAN}/overlay-layers")), false)]
    {
        change.iter().for_each(|path| mode(&disk, path, 0o700));
        for named in [&[][..], &[PODMAN]] {
            let case = format!("{change:?} {named:?}");
            container(disk.path(), OF_A_USER, PODMAN);
            let scan = look_at(disk.path(), Measure::RecordsAndMounts, named);
            // If no store is named, the borrower itself is shown and lists its lenders.
            assert!(is_in_use(&scan, PODMAN) == reaches, "{case}");
            ruin(&store, "containers");
            let scan = look_at(disk.path(), Measure::RecordsAndMounts, named);
            let rule = keeps(&scan, PODMAN).map(|(rule, _)| rule);
            assert_eq!(rule, reaches.then_some("damaged-store"), "{case}");
        }
        change.iter().for_each(|path| mode(&disk, path, 0o755));
    }
    // A record with the same id in a store that borrows nothing is another image.
    fs::write(disk.path().join("home/ada/.config/containers/storage.conf"), "[storage]\n").unwrap();
    container(disk.path(), OF_A_USER, PODMAN);
    assert_eq!(keeps(&look(disk.path(), Measure::RecordsAndMounts), PODMAN), None);
}

/// More stores are named than are read: the user may be using any image that he can read.
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
        let named: Vec<_> = (0..count).map(|number| format!("/home/ada/{number}")).collect();
        let disk = node([&[], &named.iter().map(String::as_str).collect::<Vec<_>>()]);
        let config = disk.path().join("home/ada/.config/containers");
        fs::create_dir(config.join("storage.conf.d")).unwrap();
        for number in 0..drop_ins {
            fs::write(config.join(format!("storage.conf.d/{number}.conf")), "[storage]\n").unwrap();
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
            let is_expected =
                kept.iter().all(|(rule, detail)| *rule == "damaged-store" && detail.contains("/home/ada"));
            assert!(is_expected, "{case}: {kept:?}");
            let mut findings = scan.inventory.findings.iter();
            let is_reported = findings.any(|finding| finding.message.contains("any store that ada can read"));
            assert_eq!(is_reported, keeps_podmans && named.is_empty(), "{case}");
        }
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(disk.path().join(OF_A_USER), Some(1000), Some(1000)).unwrap();
            let private = fs::Permissions::from_mode(0o700);
            fs::set_permissions(disk.path().join(PODMAN), private).unwrap();
            assert_eq!(keeps(&look(disk.path(), Measure::RecordsAndMounts), PODMAN), None, "{case}");
        }
    }
}

/// A chain that no driver can mount, with an image on each layer: the number of steps is layers times images.
#[test]
fn unmountable_chain_affects_only_its_owner() {
    let podman = format!("/{PODMAN}");
    for measure in [Measure::RecordsAndMounts, Measure::Everything] {
        let disk = node([&[], &[&podman]]);
        fn id(number: usize) -> String {
            format!("{number:064x}")
        }
        let numbers = 1000..9000;
        let layers: Vec<_> = numbers
            .clone()
            .map(|number| format!(r#"{{"id":"{}","parent":"{}"}}"#, id(number), id(number - 1)))
            .collect();
        let images: Vec<_> =
            numbers.map(|number| format!(r#"{{"id":"{}","layer":"{}"}}"#, id(number), id(number))).collect();
        let store = disk.path().join(OF_A_USER);
        fs::write(store.join("overlay-layers/layers.json"), format!("[{}]", layers.join(","))).unwrap();
        let path = store.join("overlay-images/images.json");
        let records = fs::read_to_string(&path).unwrap();
        let records = records.strip_suffix(']').unwrap();
        fs::write(&path, format!("{records},{}]", images.join(","))).unwrap();
        let started = Instant::now();
        let scan = look(disk.path(), measure);
        assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
        let listed: usize = scan.inventory.images.iter().map(|image| image.layers.len()).sum();
        assert!(listed < 1_000_000, "{listed}");
        let findings = &scan.inventory.findings;
        let mut messages = findings.iter().map(|finding| &finding.message);
        assert!(messages.any(|message| message.contains("more than can be mounted")), "{findings:?}");
        for store in [OF_A_USER, PODMAN] {
            let (rule, _) = keeps(&scan, store).unwrap();
            assert_eq!(rule, "damaged-store", "{store}");
        }
        assert_eq!(keeps(&scan, CRIO), None, "it has no borrower");
    }
}

/// bootc's store is found without configuration, once, whichever of its paths leads to it; it lends images, and
/// nothing is deleted from it even if it is named.
#[test]
fn bootcs_store_is_shown_and_read_only() {
    for (place, link) in [
        ("sysroot/ostree/bootc/storage", "usr/lib/bootc/storage"),
        ("sysroot/composefs/bootc/storage", "sysroot/ostree/bootc"),
    ] {
        let disk = node([&[], &[]]);
        let top = disk.path();
        let id = "b".repeat(64);
        let image = format!(r#"[{{"id":"{id}","names":["localhost/bootc:1"],"metadata":"{{}}"}}]"#);
        write(top, &format!("{place}/overlay-images/images.json"), &image);
        write(top, &format!("{place}/overlay-layers/layers.json"), "[]");
        write(top, &format!("{place}/overlay-containers/containers.json"), "[]");
        let target = if link.ends_with("storage") { place } else { "sysroot/composefs/bootc" };
        fs::create_dir_all(top.join(link).parent().unwrap()).unwrap();
        symlink(Path::new("/").join(target), top.join(link)).unwrap();

        let scan = look(top, Measure::RecordsAndMounts);
        let top = top.canonicalize().unwrap();
        assert!(stores(&top, &scan).contains(&(place.to_owned(), true)), "{:?}", stores(&top, &scan));
        let found: Vec<_> = scan.inventory.stores.iter().filter(|store| store.origin == "bootc").collect();
        assert_eq!(found.len(), 1, "{place}: once");
        assert_eq!(keeps(&scan, "bootc").unwrap().0, "read-only-store");

        // A quadlet of root's podman runs the image from there.
        let used = format!(r#"[{{"id":"{}","image":"{id}","layer":"","metadata":"{{}}"}}]"#, "c".repeat(64));
        write(&top, &format!("{PODMAN}/overlay-containers/containers.json"), &used);
        let scan = look(&top, Measure::RecordsAndMounts);
        let image_ix = scan.inventory.images.iter().position(|image| image.id == id).unwrap();
        let container =
            scan.inventory.containers.iter().find(|container| container.id.starts_with("cc")).unwrap();
        assert_eq!(container.image, Some(image_ix.into()), "{place}: its container's image is known");

        let named = look_at(&top, Measure::RecordsAndMounts, &[place]);
        assert_eq!(stores(&top, &named), [(place.to_owned(), true)]);
        assert_eq!(keeps(&named, "bootc").unwrap().0, "in-use", "by podman's container");
    }
}

/// A configuration that cannot be read may name any store that its owner can read: without this rule, images that only
/// its owner uses would be deleted.
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
            fn is_kept(file: &str, named: &[&str], disk: &Path) -> (bool, layersweep::stores::Scan) {
                let scan = look_at(disk, Measure::RecordsAndMounts, named);
                let kept = keeps(&scan, CRIO);
                let is_expected =
                    kept.iter().all(|(rule, detail)| *rule == "damaged-store" && detail.contains(file));
                assert!(is_expected, "{file}: {kept:?}");
                (kept.is_some(), scan)
            }
            assert!(!is_kept(file, named, disk.path()).0, "{file}: whole");
            match text {
                "" => {
                    fs::remove_file(&path).unwrap();
                    fs::create_dir(&path).unwrap();
                }
                text => fs::write(&path, text).unwrap(),
            }
            assert!(is_kept(file, named, disk.path()).0, "{file}: {text}");
            if !of_root {
                // A user without a known store may have one in that configuration; that warns no other user.
                fs::rename(disk.path().join(OF_A_USER), disk.path().join("moved")).unwrap();
                let (kept, scan) = is_kept(file, named, disk.path());
                assert!(kept, "{file}: without a store");
                assert_eq!(scan.inventory.findings, []);
            }
            let private = fs::Permissions::from_mode(0o700);
            fs::set_permissions(disk.path().join(CRIO), private).unwrap();
            assert_eq!(is_kept(file, named, disk.path()).0, of_root, "{file}: where only root can read");
        }
    }
    // A home that is not a directory contains no configuration.
    let disk = node([&[], &[]]);
    fs::create_dir(disk.path().join("dev")).unwrap();
    fs::write(disk.path().join("dev/null"), "").unwrap();
    let users = "root:x:0:0::/root:/bin/sh\ntss:x:59:59::/dev/null:/bin/false\nbin:x:1:1::/none:/bin/false\n";
    fs::write(disk.path().join("etc/passwd"), users).unwrap();
    assert_eq!(keeps(&look(disk.path(), Measure::RecordsAndMounts), CRIO), None);
}
