//! Facts of a Docker daemon that both of its stores need: its data root, and its records of containers.
//!
//! The record of a container is `containers/<id>/config.v2.json` in the data root, whether the daemon keeps images in
//! its own store (driver overlay2) or in containerd.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::Deserialize;

use crate::model::ContainerState;
use crate::sys::quiet::{self, Within};
use crate::sys::sysroot::Sysroot;

pub(super) const DAEMON_JSON: &str = "/etc/docker/daemon.json";
/// Data root if the configuration does not name another.
pub(super) const DATA_ROOT: &str = "/var/lib/docker";
/// Sources of a data root.
pub(super) const COMMAND_LINE: &str = "dockerd's command line";
pub(super) const DEFAULT: &str = "Docker's default";
/// Root of the containerd that Docker starts, below the data root.
pub(super) const OWN_CONTAINERD: &str = "containerd/daemon";
/// Maximum size of a JSON file that is read; Docker's have a few KiB.
pub(super) const JSON_BYTES: u64 = 1 << 20;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DockerRecord {
    pub name: Option<String>,
    /// Digests of its image: the manifest, index or configuration that was named, then the platform's manifest.
    pub digests: Vec<String>,
    /// Name of its image when the container was created.
    pub image_name: Option<String>,
    pub created: Option<Timestamp>,
    pub state: ContainerState,
    /// Storage driver or snapshotter that has its files.
    pub driver: String,
    /// Names of its volumes.
    pub volumes: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct ContainerConfig {
    name: String,
    created: String,
    image: String,
    image_manifest: Option<ManifestDescriptor>,
    config: ImageConfig,
    state: RunState,
    driver: String,
    mount_points: Option<BTreeMap<String, MountPoint>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ManifestDescriptor {
    digest: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct ImageConfig {
    image: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct MountPoint {
    /// Empty unless it is a volume.
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct RunState {
    running: bool,
    paused: bool,
    restarting: bool,
    started_at: String,
    finished_at: String,
}

impl RunState {
    fn state(&self) -> ContainerState {
        if self.running || self.paused || self.restarting {
            ContainerState::Running
        } else if happened(&self.finished_at) || happened(&self.started_at) {
            ContainerState::Exited
        } else {
            ContainerState::Created
        }
    }
}

/// Returns true if a time is not Go's zero time, which is in the year 1.
fn happened(time: &str) -> bool {
    time.parse::<Timestamp>().is_ok_and(|time| time.as_second() > 0)
}

fn non_empty(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

impl DockerRecord {
    /// Parses `config.v2.json`.
    ///
    /// # Errors
    /// If it is not JSON of this structure.
    pub fn parse(bytes: &[u8]) -> serde_json::Result<Self> {
        let config: ContainerConfig = serde_json::from_slice(bytes)?;
        let manifest = config.image_manifest.and_then(|manifest| non_empty(manifest.digest));
        let mounts = config.mount_points.unwrap_or_default().into_values();
        Ok(Self {
            name: non_empty(config.name.trim_start_matches('/').to_owned()),
            digests: non_empty(config.image).into_iter().chain(manifest).collect(),
            image_name: non_empty(config.config.image),
            created: config.created.parse().ok().filter(|created: &Timestamp| created.as_second() > 0),
            state: config.state.state(),
            driver: config.driver,
            volumes: mounts.filter_map(|mount| non_empty(mount.name)).collect(),
        })
    }

    /// Reads the record of a container. `within` contains the data root; the caller has checked the id.
    ///
    /// # Errors
    /// If the record cannot be read or parsed.
    pub(super) fn read(within: &Within, data_root: &Path, id: &str) -> io::Result<Self> {
        let bytes = within.read(&record_path(data_root, id), JSON_BYTES)?;
        Ok(Self::parse(&bytes)?)
    }
}

pub(super) fn record_path(data_root: &Path, id: &str) -> PathBuf {
    data_root.join("containers").join(id).join("config.v2.json")
}

/// Returns true for an id of a container, layer or image: only a valid id becomes a path.
pub(super) fn is_id(id: &str) -> bool {
    id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns the data root that the configuration names; `None` if it names none, or cannot be read.
pub(super) fn configured_data_root(sysroot: &Sysroot) -> Option<PathBuf> {
    read_configuration(sysroot).ok().flatten()
}

/// Returns the data root that the configuration names.
///
/// # Errors
/// If the configuration exists and cannot be read, or names a relative path, whose directory is unknown.
pub(super) fn read_configuration(sysroot: &Sysroot) -> io::Result<Option<PathBuf>> {
    let bytes =
        quiet::if_present(sysroot.read_bytes(Path::new(DAEMON_JSON), JSON_BYTES))?.unwrap_or_default();
    // As Docker reads it: with a byte order mark, or without any content.
    let text = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&bytes).trim_ascii();
    if text.is_empty() {
        return Ok(None);
    }
    let json: serde_json::Value = serde_json::from_slice(text)?;
    // Versions before 17.05 call it `graph`.
    let Some(named) = json.get("data-root").or_else(|| json.get("graph")) else { return Ok(None) };
    let named = named.as_str().map(Path::new).filter(|path| path.is_absolute());
    let relative = || io::Error::new(io::ErrorKind::InvalidData, "its data-root is not an absolute path");
    named.map(|path| Some(path.to_path_buf())).ok_or_else(relative)
}

/// Returns the data root on the command line of a daemon. Relative paths are ignored, because the working directory is
/// unknown.
fn data_root_of_command(words: &[String]) -> Option<PathBuf> {
    let [program, words @ ..] = words else { return None };
    if Path::new(program).file_name()? != "dockerd" {
        return None;
    }
    let mut words = words.iter().map(String::as_str);
    let mut found = None;
    while let Some(word) = words.next() {
        let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        if ["--data-root", "--graph", "-g"].contains(&name) {
            found = value.or_else(|| words.next()).map(PathBuf::from);
        }
    }
    found.filter(|path| path.is_absolute())
}

/// Returns the data roots of running daemons (`command_lines`) and of the configuration, then the default one, each with
/// the source of the path. They need not exist.
pub(super) fn data_roots(sysroot: &Sysroot, command_lines: &[Vec<String>]) -> Vec<(PathBuf, String)> {
    let mut found: Vec<(PathBuf, String)> = Vec::new();
    let running = command_lines.iter().filter_map(|words| data_root_of_command(words));
    let running = running.map(|root| (root, COMMAND_LINE.to_owned()));
    let configured = configured_data_root(sysroot).map(|root| (root, format!("data-root in {DAEMON_JSON}")));
    let usual = (PathBuf::from(DATA_ROOT), DEFAULT.to_owned());
    for (root, origin) in running.chain(configured).chain([usual]) {
        if !found.iter().any(|(known, _)| *known == root) {
            found.push((root, origin));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_root_of_daemon_is_parsed() {
        for (line, expected) in [
            ("/usr/bin/dockerd -H fd:// --data-root /data/docker", Some("/data/docker")),
            ("dockerd --data-root=/a --graph /b", Some("/b")),
            ("dockerd -g /c --debug", Some("/c")),
            ("dockerd --data-root a", None),
            ("dockerd --data-root", None),
            ("containerd --data-root /a", None),
            ("", None),
        ] {
            let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(data_root_of_command(&words), expected.map(PathBuf::from), "{line}");
        }
    }

    #[test]
    fn state_of_docker_is_state_of_container() {
        const NEVER: &str = "0001-01-01T00:00:00Z";
        const ONCE: &str = "2026-11-26T10:21:38.673325873Z";
        for (running, restarting, started, finished, expected) in [
            (false, false, NEVER, NEVER, ContainerState::Created),
            (true, false, ONCE, NEVER, ContainerState::Running),
            (false, true, ONCE, ONCE, ContainerState::Running),
            (false, false, ONCE, ONCE, ContainerState::Exited),
            (false, false, ONCE, NEVER, ContainerState::Exited),
            (false, false, "", "", ContainerState::Created),
        ] {
            let json = serde_json::json!({
                "Name": "/web", "Image": "sha256:1", "Config": { "Image": "web:1" }, "Unknown": [1],
                "State": { "Running": running, "Restarting": restarting, "StartedAt": started, "FinishedAt": finished },
            });
            let record = DockerRecord::parse(json.to_string().as_bytes()).expect("a record");
            assert_eq!(record.state, expected, "{json}");
            assert_eq!((record.name.as_deref(), record.digests), (Some("web"), vec!["sha256:1".to_owned()]));
        }
        assert_eq!(
            DockerRecord::parse(b"{}").ok(),
            Some(DockerRecord { state: ContainerState::Created, ..DockerRecord::default() })
        );
        let mounted = br#"{"MountPoints": {"/v": {"Type": "volume", "Name": "data"}, "/b": {"Type": "bind", "Name": ""}}}"#;
        assert_eq!(DockerRecord::parse(mounted).expect("a record").volumes, ["data"]);
        assert!(DockerRecord::parse(b"[1]").is_err() && DockerRecord::parse(b"").is_err());
    }
}
