//! Discovery finds the store that Podman reports. Podman runs in a separate root, an overlayfs over the machine's, so
//! that it finds the test's files in their usual places and leaves no trace; that needs root. Without root, only
//! stores that variables can name are compared.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use layersweep::stores::Environment;
use layersweep::stores::RunningPrograms;
use layersweep::stores::containers_storage::config::{StoreConfig, discover};
use layersweep::sys::sysroot::Sysroot;

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

/// Returns whether a test that needs `what` can run; fails under CI if it cannot.
#[allow(clippy::print_stderr)] // the reason of a skipped test
fn available(what: &str, there: bool) -> bool {
    if !there {
        assert!(std::env::var_os("CI").is_none(), "{what} is missing, and CI is to test it");
        eprintln!("skipped: {what} is missing");
    }
    there
}

/// Returns Podman's major version.
fn podman() -> Option<u32> {
    let output = Command::new("podman").arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.split_whitespace().last()?.split('.').next()?.parse().ok()
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
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
    let Some(major) = podman().filter(|_| is_root()) else {
        available("podman", podman().is_some());
        return eprintln!("skipped: this takes root");
    };
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
    let Some(major) = podman().filter(|_| is_root()) else {
        available("podman", podman().is_some());
        return eprintln!("skipped: this takes root");
    };
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
    if is_root() {
        return eprintln!("skipped: as root, podman is compared in a separate root");
    }
    let major = podman();
    if !available("podman", major.is_some()) {
        return;
    }
    let top = tempfile::tempdir().expect("a directory");
    let top = top.path();
    let runtime = top.join("runtime");
    fs::create_dir(&runtime).expect("a directory");
    fs::set_permissions(&runtime, fs::Permissions::from_mode(0o700)).expect("a mode");
    fn place(top: &Path, name: &str) -> String {
        top.join(name).display().to_string()
    }
    write(top, "xdg/containers/storage.conf", &place(top, "of-xdg"));
    write(top, "named.conf", &place(top, "of-named"));
    let base = Environment {
        uid: nix::unistd::geteuid().as_raw(),
        home: Some(top.join("home")),
        xdg_config_home: Some(top.join("xdg")),
        xdg_runtime_dir: Some(runtime),
        ..Environment::default()
    };
    let named = Environment { containers_storage_conf: Some(top.join("named.conf")), ..base.clone() };
    for environment in [base, named] {
        let mut command = Command::new("podman");
        command.args(INFO).env_clear().envs(variables(&environment, "user"));
        let says = answer(&command.output().expect("podman runs"));
        agree(&Sysroot::live(), &environment, &says, major.unwrap_or(0), "variables");
    }
}
