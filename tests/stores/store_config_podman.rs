//! Discovery finds the store that Podman reports. Podman runs in a separate root, an overlayfs over the machine's, so
//! that it finds the test's files in their usual places and leaves no trace.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use layersweep::stores::Environment;
use layersweep::stores::RunningPrograms;
use layersweep::stores::containers_storage::config::{StoreConfig, discover};
use layersweep::sys::sysroot::Sysroot;

use crate::support;

/// Runs the following words in the root `$1/m`: the machine's root without its `storage.conf`, plus `$2`, as user
/// `$3` with home `$4`. Everything is removed with the last process.
const IN_A_ROOT: &str = r#"
set -e
top=$1 files=$2 uid=$3 home=$4
shift 4
mount -t tmpfs tmpfs "$top"
mkdir "$top/u" "$top/w" "$top/m"
mount -t overlay overlay -o "lowerdir=/,upperdir=$top/u,workdir=$top/w" "$top/m"
cd "$top/m"
mount -t proc proc proc
mount --rbind /dev dev
mount --rbind /sys sys
mount -t tmpfs tmpfs run
mkdir -p var/lib/containers
mount -t tmpfs tmpfs var/lib/containers
rm -rf etc/containers/storage* usr/share/containers/storage* etc/subuid etc/subgid
cp -R "$files/." .
if [ "$uid" != 0 ]; then
    mkdir -p ".$home" scratch "run/user/$uid"
    chown -R "$uid:$uid" ".$home" scratch "run/user/$uid"
    chmod 700 "run/user/$uid"
fi
mkdir -p outside
pivot_root . outside
umount -l /outside
[ "$uid" = 0 ] || set -- setpriv --reuid "$uid" --regid "$uid" --clear-groups "$@"
"$@"
"#;

const INFO: [&str; 3] =
    ["info", "--format", "{{.Store.GraphRoot}} {{.Store.RunRoot}} {{.Store.GraphDriverName}}"];

/// Returns Podman's major version; skips without root or Podman, or fails under CI.
fn podman() -> Option<u32> {
    if !support::require_root() || !support::require_program("podman") {
        return None;
    }
    let output = Command::new("podman").arg("--version").output().expect("podman runs");
    let text = String::from_utf8(output.stdout).expect("a version");
    let version = text.split_whitespace().last().and_then(|version| version.split('.').next());
    Some(version.and_then(|major| major.parse().ok()).unwrap_or_else(|| panic!("a version: {text}")))
}

/// Returns the environment variables for Podman.
fn variables(environment: &Environment, name: &str) -> Vec<(&'static str, String)> {
    let mut variables = vec![("PATH", std::env::var("PATH").unwrap_or_default()), ("USER", name.to_owned())];
    for (key, path) in [
        ("HOME", &environment.home),
        ("XDG_CONFIG_HOME", &environment.xdg_config_home),
        ("XDG_DATA_HOME", &environment.xdg_data_home),
        ("XDG_RUNTIME_DIR", &environment.xdg_runtime_dir),
        ("CONTAINERS_STORAGE_CONF", &environment.containers_storage_conf),
    ] {
        variables.extend(path.as_ref().map(|path| (key, path.display().to_string())));
    }
    variables.extend(environment.storage_driver.iter().map(|d| ("STORAGE_DRIVER", d.clone())));
    variables
}

/// Runs `podman info` in a root with these files.
fn podman_in_a_root(files: &Path, environment: &Environment, name: &str) -> Output {
    let top = tempfile::tempdir().expect("a directory");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", IN_A_ROOT, "sh"]);
    command.arg(top.path()).arg(files).arg(environment.uid.to_string());
    command.arg(environment.home.as_ref().expect("a home")).args(["podman"]).args(INFO);
    command.env_clear().envs(variables(environment, name));
    command.output().expect("unshare runs")
}

/// Returns `graphroot runroot driver`, as Podman prints it.
fn answer(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !text.is_empty(), "podman: {text} {error}");
    text
}

fn expected_answer(store: &StoreConfig, driver: &str) -> String {
    // Without a configured driver, Podman picks one that works here.
    let driver = store.driver.as_deref().unwrap_or(driver);
    format!("{} {} {driver}", store.graphroot.display(), store.runroot.display())
}

/// Checks that the candidates include Podman's answer; the first follows the rule of libraries up to 1.62.
fn agree(sysroot: &Sysroot, environment: &Environment, says: &str, major: u32, case: &str) {
    let driver = says.rsplit(' ').next().unwrap_or_default();
    let stores = discover(sysroot, environment, &RunningPrograms::default()).stores;
    let candidates: Vec<String> = stores.iter().map(|store| expected_answer(store, driver)).collect();
    if major < 6 {
        assert_eq!(candidates[0], says, "{case}: {environment:?}");
    } else {
        assert!(candidates.iter().any(|candidate| candidate == says), "{case}: {says} not in {candidates:?}");
    }
}

fn write(root: &Path, file: &str, graphroot: &str) {
    let file = root.join(file.trim_start_matches('/'));
    fs::create_dir_all(file.parent().expect("a parent")).expect("directories");
    let text =
        format!("[storage]\ndriver = \"vfs\"\ngraphroot = \"{graphroot}\"\nrunroot = \"{graphroot}-run\"\n");
    fs::write(file, text).expect("a file");
}

#[test]
fn root_store_matches_podman() {
    let Some(major) = podman() else { return };
    fn file(directory: &str) -> String {
        format!("{directory}/containers/storage.conf")
    }
    for there in [&[][..], &["/usr/share"], &["/etc"], &["/usr/share", "/etc"]] {
        let root = tempfile::tempdir().expect("a directory");
        for directory in there {
            write(root.path(), &file(directory), &format!("/of{directory}"));
        }
        write(root.path(), &file("/srv/xdg"), "/of/xdg");
        write(root.path(), "/srv/named.conf", "/of/named");
        fs::create_dir(root.path().join("srv/empty")).expect("a directory");
        let sysroot = Sysroot::at(root.path());
        let base = Environment { home: Some("/root".into()), ..Environment::default() };
        let xdg = |path: &str| Environment { xdg_config_home: Some(path.into()), ..base.clone() };
        let named =
            Environment { containers_storage_conf: Some("/srv/named.conf".into()), ..xdg("/srv/xdg") };
        for environment in [base.clone(), xdg("/srv/empty"), xdg("/srv/xdg"), named] {
            let output = podman_in_a_root(root.path(), &environment, "root");
            agree(&sysroot, &environment, &answer(&output), major, &format!("{there:?}"));
        }
    }
}

#[test]
fn user_store_matches_podman() {
    let Some(major) = podman() else { return };
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/config");
    for (case, uid, name) in
        [("rootless", 1000, "alice"), ("rootless", 1001, "bob"), ("rootless-default", 1000, "alice")]
    {
        let environment = Environment {
            uid,
            home: Some(PathBuf::from(format!("/home/{name}"))),
            xdg_runtime_dir: Some(format!("/run/user/{uid}").into()),
            // A driver that works on overlayfs.
            storage_driver: Some("vfs".into()),
            ..Environment::default()
        };
        let files = fixtures.join(case);
        let output = podman_in_a_root(&files, &environment, name);
        agree(&Sysroot::at(&files), &environment, &answer(&output), major, case);
    }
}

#[test]
fn store_from_variables_matches_podman() {
    let Some(major) = podman() else { return };
    let files = tempfile::tempdir().expect("a directory");
    let home = PathBuf::from("/home/alice");
    write(files.path(), "/home/alice/xdg/containers/storage.conf", "/home/alice/of-xdg");
    write(files.path(), "/home/alice/named.conf", "/home/alice/of-named");
    let base = Environment {
        uid: 1000,
        xdg_config_home: Some(home.join("xdg")),
        xdg_runtime_dir: Some("/run/user/1000".into()),
        home: Some(home.clone()),
        ..Environment::default()
    };
    let named = Environment { containers_storage_conf: Some(home.join("named.conf")), ..base.clone() };
    for environment in [base, named] {
        let says = answer(&podman_in_a_root(files.path(), &environment, "alice"));
        agree(&Sysroot::at(files.path()), &environment, &says, major, "variables");
    }
}
