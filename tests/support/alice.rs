//! A node with one more user, alice: a mount namespace in which `/etc/passwd`, `/home`, `/run` and
//! other files about users and containers are replaced.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::program::{self, Run};

/// Uid and gid of alice, the only other user on the node.
pub const UID: u32 = 5001;

/// Setup of the node (sh). `as_alice COMMAND` runs a command as alice. Every user can run `$program` and `$test`.
const SETUP: &str = r#"
set -e
mount --make-rprivate /
for top in /home /run /var/tmp /var/lib/containers /etc/containers /root; do
    [ ! -d "$top" ] || mount -t tmpfs -o mode=755 alice "$top"
done
chmod 1777 /var/tmp
chmod 700 /root
echo '{"default":[{"type":"insecureAcceptAnything"}]}' >/etc/containers/policy.json
mkdir /home/etc
printf 'root:x:0:0::/root:/bin/sh\nalice:x:5001:5001::/home/alice:/bin/sh\n' >/home/etc/passwd
printf 'root:x:0:\nalice:x:5001:\n' >/home/etc/group
echo alice:500000:65536 >/home/etc/subuid
cp /home/etc/subuid /home/etc/subgid
for file in passwd group subuid subgid; do mount --bind /home/etc/$file /etc/$file; done
mkdir -p /run/user/5001 /home/alice /home/bin
chown 5001:5001 /run/user/5001 /home/alice
chmod 700 /run/user/5001
cp "$PROGRAM" /home/bin/program
cp "$TEST" /home/bin/test
# No other process uses these stores, and the processes of this node have their own PID namespace.
echo 'trust_pid_namespace = true' >/home/bin/trust.toml
printf '#!/bin/sh\nexec /home/bin/program --config /home/bin/trust.toml "$@"\n' >/home/bin/layersweep
chmod 755 /home/bin/layersweep
program=/home/bin/layersweep test=/home/bin/test
as_alice() {
    setpriv --reuid 5001 --regid 5001 --clear-groups \
        env -i "PATH=$PATH" HOME=/home/alice XDG_RUNTIME_DIR=/run/user/5001 LANG=C.UTF-8 "$@"
}
cd /home/alice
"#;

/// Returns whether the test can make this node; skips, or fails under CI.
pub fn require() -> bool {
    super::require_root() && super::require_program("unshare") && super::require_program("setpriv")
}

/// Returns a command that runs `script` (sh) in a new node, which ends with it.
pub fn command(script: &str) -> Command {
    // A PID namespace of its own, so that no process of the script survives it.
    command_in(&["--pid", "--fork", "--kill-child", "--mount-proc"], script)
}

/// Runs `script` in a new node that sees all processes of the machine: a proof that a thing is not in use
/// needs them. The script ends every process that it starts.
pub fn run_among_all(script: &str) -> Run {
    program::run(&mut command_in(&[], script))
}

fn command_in(namespaces: &[&str], script: &str) -> Command {
    super::machine::require_checkout_elsewhere();
    let mut command = Command::new("unshare");
    program::hermetic(&mut command);
    command.arg("--mount").args(namespaces).args(["sh", "-c"]);
    command.arg(format!("{SETUP}\n{script}"));
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command.env("PROGRAM", env!("CARGO_BIN_EXE_layersweep"));
    command.env("TEST", std::env::current_exe().expect("this program"));
    command.env_remove("LAYERSWEEP_STATE_DIR");
    command
}

/// Runs `script`, which must exit with 0.
pub fn run(script: &str) -> Run {
    program::run(&mut command(script)).expect_no_crash().expect_code(0)
}

/// Returns a path in alice's home directory.
pub fn home(path: &str) -> PathBuf {
    Path::new("/home/alice").join(path)
}
