//! The packages: their contents, and their whole life in separate systems without systemd, from the first installation
//! to the purge. `packages_node.rs` tests them with systemd.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::support;
use support::packages::{
    Root, cron_deb, deb, package, packages, quietly, ready, remains, rpm, shipped_program, sources, succeed,
    tool,
};
use support::store::{self, Store};
use support::{require_program, small};

/// The files that both packages have at the same path.
const FILES: [&str; 35] = [
    "/usr/bin/layersweep",
    "/usr/lib/layersweep/layersweep.toml",
    "/etc/layersweep/layersweep.toml",
    "/etc/layersweep/layersweep.toml.d",
    "/usr/lib/systemd/system/layersweep-scan.service",
    "/usr/lib/systemd/system/layersweep-scan.timer",
    "/usr/lib/systemd/system/layersweep-gc.service",
    "/usr/lib/systemd/system/layersweep-gc.timer",
    "/usr/lib/systemd/system/layersweep-uses.path",
    "/usr/lib/systemd/system/layersweep-uses.service",
    "/usr/lib/systemd/user/layersweep.service",
    "/usr/lib/systemd/user/layersweep.timer",
    "/usr/lib/systemd/system-preset/90-layersweep.preset",
    "/usr/lib/tmpfiles.d/layersweep.conf",
    "/usr/share/man/man1/layersweep.1.gz",
    "/usr/share/man/man1/layersweep-gc.1.gz",
    "/usr/share/man/man1/layersweep-scan.1.gz",
    "/usr/share/man/man5/layersweep.toml.5.gz",
    "/usr/share/bash-completion/completions/layersweep",
    "/usr/share/fish/vendor_completions.d/layersweep.fish",
    "/usr/share/doc/layersweep/README.md",
    "/usr/share/doc/layersweep/layersweep.cdx.json",
    "/usr/share/doc/layersweep/docs/README.md",
    "/usr/share/doc/layersweep/docs/installing.md",
    "/usr/share/doc/layersweep/docs/configuration.md",
    "/usr/share/doc/layersweep/docs/schema/scan.json",
    "/usr/share/doc/layersweep/examples/kubernetes/daemonset-crio.yaml",
    "/usr/share/doc/layersweep/examples/kubernetes/base/daemonset.yaml",
    "/usr/share/doc/layersweep/examples/kubelet/50-layersweep-first.conf",
    "/usr/share/doc/layersweep/examples/kubelet/50-layersweep-only.conf",
    "/usr/share/doc/layersweep/examples/openshift/worker.bu",
    "/usr/share/doc/layersweep/examples/sos/layersweep.py",
    "/usr/share/doc/layersweep/examples/prometheus/layersweep.rules.yml",
    "/usr/share/doc/layersweep/examples/grafana/layersweep.json",
    "/usr/share/doc/layersweep/examples/openshift/Containerfile",
];

#[test]
fn deb_and_rpm_contain_the_same_files() {
    if !ready(&["rpm"]) {
        return;
    }
    let listing = succeed(tool("dpkg-deb").arg("--contents").arg(deb()));
    let of_deb: Vec<String> = listing
        .lines()
        .map(|line| {
            line.split_whitespace().nth(5).unwrap().trim_start_matches('.').trim_end_matches('/').into()
        })
        .collect();
    let of_rpm: Vec<String> =
        succeed(tool("rpm").args(["-qpl", "--nosignature"]).arg(rpm())).lines().map(str::to_owned).collect();
    for (files, special) in [
        (
            &of_deb,
            [
                "/usr/share/doc/layersweep/copyright",
                "/usr/share/doc/layersweep/changelog.gz",
                "/usr/share/doc/layersweep/LICENSE.dependencies.gz",
                "/usr/share/zsh/vendor-completions/_layersweep",
            ],
        ),
        (
            &of_rpm,
            [
                "/usr/share/licenses/layersweep/LICENSE",
                "/usr/share/doc/layersweep/CHANGELOG.md",
                "/usr/share/licenses/layersweep/LICENSE.dependencies",
                "/usr/share/zsh/site-functions/_layersweep",
            ],
        ),
    ] {
        for wanted in FILES.iter().chain(&special) {
            assert!(files.iter().any(|file| file == wanted), "no {wanted} in {files:#?}");
        }
        // ostree systems do not install a package's files below /var.
        let strays = files.iter().filter(|file| {
            ["/var", "/run", "/usr/local", "/opt"].iter().any(|dir| Path::new(file).starts_with(dir))
        });
        assert_eq!(strays.collect::<Vec<_>>(), Vec::<&String>::new());
    }
    // Only root may write to any of it, and there is no setuid or setgid file.
    for line in listing.lines() {
        let mode = line.split_whitespace().next().unwrap();
        assert!(!mode.contains('s') && &mode[8..9] != "w" && &mode[5..6] != "w", "{line}");
        assert!(line.contains("root/root"), "{line}");
    }
    let conffiles = succeed(tool("dpkg-deb").arg("--info").arg(deb()).arg("conffiles"));
    assert_eq!(conffiles, "/etc/layersweep/layersweep.toml\n");
    let config = succeed(tool("rpm").args(["-qpc", "--nosignature"]).arg(rpm()));
    assert_eq!(config, "/etc/layersweep/layersweep.toml\n");
}

#[test]
fn package_checkers_report_nothing() {
    if !ready(&["lintian", "rpmlint", "shellcheck"]) {
        return;
    }
    let said = succeed(tool("lintian").args(["--fail-on", "error,warning"]).arg(deb()).arg(cron_deb()));
    assert_eq!(said, "");
    let cron = package(&packages(), "layersweep-cron-", "noarch.rpm");
    let said = succeed(tool("rpmlint").args(["-c", "packaging/rpmlint.toml"]).arg(rpm()).arg(cron));
    assert!(said.contains("2 packages and 0 specfiles checked; 0 errors, 0 warnings"), "{said}");
    let scripts = [
        "binary",
        "build",
        "check",
        "deb",
        "licences",
        "prove",
        "release",
        "rpm",
        "setup",
        "stage",
        "tar",
        "cron/cron",
    ]
    .map(|script| format!("packaging/{script}.sh"));
    let maintainers =
        ["postinst", "prerm", "postrm", "cron.postrm"].map(|script| format!("packaging/debian/{script}"));
    succeed(tool("shellcheck").args(scripts).args(maintainers));
}

#[test]
fn licences_and_versions_agree() {
    if !require_program("jq") {
        return;
    }
    let all = succeed(&mut tool("packaging/licences.sh"));
    for wanted in
        ["Apache-2.0: k8s-cri ", "MIT: rusqlite ", "blessing: sqlite ", "Permission is hereby granted"]
    {
        assert!(all.contains(wanted), "no {wanted} in LICENSE.dependencies");
    }
    assert!(!all.contains("proptest "), "what tests need is not linked in");
    let union = succeed(tool("packaging/licences.sh").arg("--spdx"));
    assert!(union.contains("Apache-2.0 AND ") && union.lines().count() == 1, "{union}");
    // A library with an unknown licence is reported.
    let refused = tool("packaging/licences.sh").env("GOOD_LICENCES", "MIT Apache-2.0").output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("not a licence that we know: matchit"), "{said}");

    fn read(path: &str) -> String {
        std::fs::read_to_string(sources().join(path)).unwrap()
    }
    let version = env!("CARGO_PKG_VERSION");
    assert!(read("packaging/debian/changelog").starts_with(&format!("layersweep ({version}-1) ")));
    let spec = read("packaging/layersweep.spec");
    assert!(
        spec.contains(&format!("%global version_of {version}}}"))
            && spec.contains(&format!("> - {version}-1\n"))
    );
}

#[test]
fn make_install_respects_its_directories() {
    if !require_program("jq") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fn install(dir: &tempfile::TempDir) -> String {
        let mut make = tool("make");
        make.args(["--silent", "install", "PREFIX=/opt/x"]).arg(format!("DESTDIR={}", dir.path().display()));
        make.arg(format!("BINARY={}", env!("CARGO_BIN_EXE_layersweep")));
        succeed(&mut make)
    }
    install(&dir);
    fn installed(dir: &tempfile::TempDir, path: &str) -> std::path::PathBuf {
        dir.path().join(path)
    }
    let unit =
        std::fs::read_to_string(installed(&dir, "opt/x/lib/systemd/system/layersweep-gc.service")).unwrap();
    assert!(
        unit.contains("ExecStart=/opt/x/bin/layersweep gc") && !unit.contains("/usr/bin/layersweep"),
        "{unit}"
    );
    std::fs::write(installed(&dir, "etc/layersweep/layersweep.toml"), EDITED).unwrap();
    install(&dir);
    assert_eq!(std::fs::read_to_string(installed(&dir, "etc/layersweep/layersweep.toml")).unwrap(), EDITED);
    assert!(
        installed(&dir, "opt/x/bin/layersweep").exists()
            && installed(&dir, "opt/x/share/man/man1/layersweep.1").exists()
    );
}

/// `make release` proves that the programs which it ships run with old versions of glibc.
#[test]
fn proof_refuses_program_of_this_machine() {
    if !ready(&["readelf"]) {
        return;
    }
    for (glibc, why) in
        [("2.17", "it needs glibc 2."), ("9.9", "it needs libgcc_s.so.1, which is no part of glibc")]
    {
        let refused = tool("packaging/prove.sh").arg(shipped_program()).env("GLIBC", glibc).output().unwrap();
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.contains(why), "{glibc}: {said}");
    }
}

#[test]
fn deb_contains_the_program() {
    if !ready(&[]) {
        return;
    }
    let depends = succeed(tool("dpkg-deb").arg("--field").arg(deb()).arg("Depends"));
    assert!(depends.starts_with("libc6 (>= 2.28), "), "{depends}");
    let dir = tempfile::tempdir().unwrap();
    succeed(tool("dpkg-deb").arg("--extract").arg(deb()).arg(dir.path()));
    let shipped = std::fs::read(shipped_program()).unwrap();
    assert!(std::fs::read(dir.path().join("usr/bin/layersweep")).unwrap() == shipped);
}

/// Makes a store in the root with this machine's podman.
fn store_in(root: &Root) -> Store {
    let store = small::still(&root.path("/var/lib/containers/storage"));
    // Podman's database has this machine's paths.
    for name in ["libpod", "db.sql"] {
        succeed(Command::new("rm").args(["-rf", "--one-file-system"]).arg(store.root().join(name)));
    }
    store
}

/// Writes records of an older layersweep, with a pin.
fn old_records(root: &Root) {
    let dir = root.path("/var/lib/layersweep");
    std::fs::create_dir(&dir).unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o750)).unwrap();
    let database = rusqlite::Connection::open(dir.join("layersweep.db")).unwrap();
    fn text(path: &str) -> String {
        std::fs::read_to_string(sources().join(path)).unwrap()
    }
    database.execute_batch(&text("migrations/0001_history.sql")).unwrap();
    let pin = "INSERT INTO pins VALUES ('quay.io/kept', '', 1767225600000000)";
    database.execute_batch(pin).unwrap();
    database.execute_batch("PRAGMA user_version = 1; PRAGMA application_id = 1819506544").unwrap();
}

/// Builds a package of an older version, without the symbols, whose package takes longest.
fn older_packages(kind: &str) -> tempfile::TempDir {
    let out = tempfile::tempdir().unwrap();
    let program = out.path().join("layersweep");
    std::fs::copy(shipped_program(), &program).unwrap();
    succeed(
        tool("packaging/build.sh")
            .arg(kind)
            .env("BINARY", program)
            .env("OUT", out.path())
            .env("PACKAGE_VERSION", "0.0.9"),
    );
    out
}

const EDITED: &str = "[images]\nhigh_percent = 60\nlow_percent = 55\n";

#[test]
fn deb_is_installed_and_purged_without_systemd() {
    if !ready(&["mmdebstrap"]) || !store::require_tools() {
        return;
    }
    let root = Root::new();
    let _store = store_in(&root);
    let older = older_packages("deb");
    let old = root.bring(&package(older.path(), "layersweep_", ".deb"));
    let new = root.bring(&deb());
    quietly(root.run(&format!("dpkg --install {old}")));
    let wants = root.path("/etc/systemd/system/timers.target.wants");
    assert!(wants.join("layersweep-scan.timer").is_symlink(), "scanning is on");
    assert!(!wants.join("layersweep-gc.timer").exists(), "deleting is off");
    old_records(&root);
    let scan = root.run("layersweep scan --format json");
    let scan = scan.expect_code(0).json();
    assert_eq!(scan["images"].as_array().unwrap().len(), 5);
    assert_eq!(scan["warnings"].as_array().unwrap().len(), 0, "{:#}", scan["warnings"]);
    fn history(root: &Root) -> serde_json::Value {
        root.run("layersweep history --all --format json").expect_code(0).json()
    }
    let before = history(&root)["runs"].as_array().unwrap().len();
    assert!(before > 0);
    // Changes by an administrator.
    std::fs::write(root.path("/etc/layersweep/layersweep.toml"), EDITED).unwrap();
    std::fs::write(root.path("/etc/layersweep/layersweep.toml.d/50-own.toml"), "[leaks]\nmin_age = \"2w\"\n")
        .unwrap();
    root.run("layersweep pin add 'quay.io/own/*'").expect_code(0);
    quietly(root.run("systemctl enable layersweep-gc.timer"));

    quietly(root.run(&format!("dpkg --install {new}")));
    assert_eq!(std::fs::read_to_string(root.path("/etc/layersweep/layersweep.toml")).unwrap(), EDITED);
    assert!(wants.join("layersweep-gc.timer").is_symlink(), "as the administrator left it");
    assert_eq!(history(&root)["runs"].as_array().unwrap().len(), before);
    assert!(root.run("layersweep pin list").expect_code(0).stdout.contains("quay.io/own/*"));
    let version = root.run("layersweep --version").expect_code(0).stdout;
    assert_eq!(version.trim(), concat!("layersweep ", env!("CARGO_PKG_VERSION")));
    root.run("dpkg --verify layersweep").expect_code(0);

    quietly(root.run("dpkg --remove layersweep"));
    assert!(root.path("/var/lib/layersweep/layersweep.db").exists(), "records stay");
    assert_eq!(std::fs::read_to_string(root.path("/etc/layersweep/layersweep.toml")).unwrap(), EDITED);
    // Installed again, with the same state.
    quietly(root.run(&format!("dpkg --install {new}")));
    assert!(root.run("layersweep pin list").expect_code(0).stdout.contains("quay.io/own/*"));
    assert!(wants.join("layersweep-gc.timer").is_symlink(), "as the administrator left it");

    quietly(root.run("dpkg --purge layersweep"));
    assert_eq!(remains(&root), "");
}

#[test]
fn rpm_is_installed_and_erased_without_systemd() {
    if !ready(&["mmdebstrap", "rpm"]) || !store::require_tools() {
        return;
    }
    // Its scriptlets need a shell, its program a C library: those of a Debian, which rpm does not know, so the
    // dependencies are compared with the package's list below.
    let root = Root::new();
    let _store = store_in(&root);
    fn rpm_in(root: &Root, args: &[&str]) -> std::process::Command {
        let mut command = tool("rpm");
        command.arg("--root").arg(root.path("/")).args(["--define", "_dbpath /var/lib/rpm"]);
        command.args(args);
        command
    }
    let older = older_packages("rpm");
    let old = package(older.path(), "layersweep-", "x86_64.rpm");
    let new = rpm();
    succeed(&mut rpm_in(&root, &["--initdb"]));
    succeed(rpm_in(&root, &["--install", "--nodeps", "--nosignature"]).arg(&old));
    let wants = root.path("/etc/systemd/system/timers.target.wants");
    assert!(wants.join("layersweep-scan.timer").is_symlink(), "the preset turns scanning on");
    assert!(!wants.join("layersweep-gc.timer").exists(), "and leaves deleting off");
    old_records(&root);
    root.run("layersweep scan --quiet").expect_code(0);
    let verified = succeed(&mut rpm_in(&root, &["--verify", "--nodeps", "layersweep"]));
    assert_eq!(verified, "");
    std::fs::write(root.path("/etc/layersweep/layersweep.toml"), EDITED).unwrap();

    succeed(rpm_in(&root, &["--upgrade", "--nodeps", "--nosignature"]).arg(&new));
    let version = succeed(&mut rpm_in(&root, &["-q", "--qf", "%{version}", "layersweep"]));
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
    assert_eq!(std::fs::read_to_string(root.path("/etc/layersweep/layersweep.toml")).unwrap(), EDITED);
    assert!(!root.path("/etc/layersweep/layersweep.toml.rpmnew").exists(), "the shipped file did not change");
    let changed = rpm_in(&root, &["--verify", "--nodeps", "layersweep"]).output().unwrap();
    let changed = String::from_utf8(changed.stdout).unwrap();
    assert!(
        changed.lines().count() == 1 && changed.contains("c /etc/layersweep/layersweep.toml"),
        "{changed}"
    );
    assert!(wants.join("layersweep-scan.timer").is_symlink());
    root.run("layersweep history usage --format json").expect_code(0);

    succeed(&mut rpm_in(&root, &["--erase", "layersweep"]));
    assert!(!wants.join("layersweep-scan.timer").is_symlink());
    assert!(root.path("/var/lib/layersweep/layersweep.db").exists(), "records stay");
    assert_eq!(
        std::fs::read_to_string(root.path("/etc/layersweep/layersweep.toml.rpmsave")).unwrap(),
        EDITED,
        "what was edited is saved"
    );
    assert!(!root.path("/usr/bin/layersweep").exists());

    let payload =
        succeed(tool("rpm").args(["-qp", "--nosignature", "--qf", "%{payloadcompressor}"]).arg(&new));
    assert_eq!(payload, "xz", "RHEL 8 reads no zstd");
}

#[test]
fn units_are_valid_and_confined() {
    if !ready(&["systemd-analyze"]) {
        return;
    }
    // The small scan is confined as the whole one.
    let [scan, uses] = ["scan", "uses"].map(|name| {
        let path = sources().join(format!("packaging/systemd/layersweep-{name}.service"));
        let text = std::fs::read_to_string(path).unwrap();
        let confinement = text.lines().skip_while(|line| !line.starts_with("Nice=")).filter(|line| {
            line.contains('=') && !line.starts_with('#') && !line.starts_with("ReadWritePaths=")
        });
        confinement.map(str::to_owned).collect::<Vec<_>>()
    });
    assert_eq!(scan, uses);
    let dir = tempfile::tempdir().unwrap();
    succeed(tool("dpkg-deb").arg("--extract").arg(deb()).arg(dir.path()));
    for (manager, unit, starter) in [
        ("system", "layersweep-scan", "timer"),
        ("system", "layersweep-gc", "timer"),
        ("system", "layersweep-uses", "path"),
        ("user", "layersweep", "timer"),
    ] {
        let path = |end: &str| dir.path().join(format!("usr/lib/systemd/{manager}/{unit}.{end}"));
        // It searches the program at the path of this machine; the tested one is elsewhere.
        for end in ["service", starter] {
            let text = std::fs::read_to_string(path(end)).unwrap();
            let program = dir.path().join("usr/bin/layersweep");
            std::fs::write(path(end), text.replace("/usr/bin/layersweep", program.to_str().unwrap()))
                .unwrap();
        }
        let mut verify = tool("systemd-analyze");
        verify
            .args(["verify", "--man=no"])
            .arg(format!("--{manager}"))
            .arg(path("service"))
            .arg(path(starter));
        let output = verify.env("XDG_RUNTIME_DIR", dir.path()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        // Warnings about units of this machine are ignored.
        assert!(output.status.success() && !said.contains("layersweep"), "{said}");
        // A user's unit cannot be confined: podman needs its helpers with more rights.
        if manager == "system" {
            succeed(
                tool("systemd-analyze")
                    .args(["security", "--offline=true", "--threshold=22"])
                    .arg(path("service")),
            );
        }
    }
}

#[test]
fn cron_jobs_replace_timers_without_mail() {
    if !ready(&["mmdebstrap"]) || !store::require_tools() {
        return;
    }
    let root = Root::new();
    let packages = format!("{} {}", root.bring(&deb()), root.bring(&cron_deb()));
    quietly(root.run(&format!("dpkg --install {packages}")));
    fn job(root: &Root, command: &str) -> String {
        let run =
            root.run(&format!("LAYERSWEEP_CRON_NOW=1 /usr/lib/layersweep/cron {command}")).expect_code(0);
        assert_eq!((run.stdout.as_str(), run.stderr.as_str()), ("", ""), "what cron hears, it mails");
        std::fs::read_to_string(root.path("/var/log/layersweep.log")).unwrap_or_default()
    }
    // Without a store, only that is reported; the line of gc has to be enabled.
    assert!(!job(&root, "scan").contains("ended with"), "10 is no bad end");
    let _store = store_in(&root);
    std::fs::remove_file(root.path("/var/log/layersweep.log")).unwrap();
    assert_eq!(job(&root, "scan"), "");
    let history = root.run("layersweep history --all --format json").expect_code(0).json();
    assert_eq!(history["runs"][0]["command"], "scan", "{history:#}");
    let through_cri = root.path("/etc/layersweep/layersweep.toml.d/cri.toml");
    std::fs::create_dir_all(through_cri.parent().unwrap()).unwrap();
    std::fs::write(&through_cri, "images.via = \"cri\"\n").unwrap();
    let log = job(&root, "gc");
    std::fs::remove_file(through_cri).unwrap();
    assert!(log.contains("no container runtime found") && log.contains("ended with exit code 5"), "{log}");
    std::fs::remove_file(root.path("/var/log/layersweep.log")).unwrap();
    std::fs::write(root.path("/etc/layersweep/hold"), "").unwrap();
    assert_eq!(job(&root, "gc"), "", "held");
    std::fs::remove_file(root.path("/etc/layersweep/hold")).unwrap();
    // A run at work is not disturbed.
    let run = root.run(
        "flock /run/layersweep/cron-gc.lock env LAYERSWEEP_CRON_NOW=1 /usr/lib/layersweep/cron gc; cat /var/log/layersweep.log",
    );
    assert_eq!(run.stdout, "", "{run:?}");
    root.run("/usr/lib/layersweep/cron sweep").expect_code(2);
    let lines = std::fs::read_to_string(root.path("/etc/cron.d/layersweep-cron")).unwrap();
    let active: Vec<&str> = lines.lines().filter(|line| line.starts_with('*')).collect();
    assert!(active.len() == 1 && active[0].ends_with("/usr/lib/layersweep/cron scan"), "{lines}");
    root.run("dpkg --purge layersweep-cron layersweep").expect_code(0);
    assert_eq!(remains(&root), "");
    assert!(!root.path("/var/log/layersweep.log").exists());
}
