//! Data on the filesystems of the stores that is not in any store: in full for `report` and `usage`, in one
//! sentence for `gc` and `doctor`.

use std::fmt;
use std::path::{Path, PathBuf};

use super::diagnosis::{Cause, Disk, Part};
use super::observer::Observer;
use super::request::Request;
use super::{database, diagnosis};
use crate::config::Config;
use crate::disk::Progress;
use crate::model::display::bytes;
use crate::model::refs;
use crate::model::{Filesystem, FilesystemIx, Finding};
use crate::node::kubelet::Kubelet;
use crate::node::places::KubeletPlaces;
use crate::policy::thresholds::Counted;
use crate::stores::Scan;
use crate::stores::other_usage::{self, OtherUsers};

/// Measures the data outside the stores and shows the progress. `most_inodes`: see
/// [`other_usage::OtherUsageRequest`].
pub(super) fn measure(
    request: &Request,
    observer: &dyn Observer,
    config: &Config,
    scan: &Scan,
    most_inodes: Option<u64>,
) -> OtherUsers {
    let progress = std::sync::Arc::<Progress>::default();
    let shown = observer.measuring(&progress);
    let other_users = measure_quietly(request, config, scan, most_inodes, &progress);
    drop(shown);
    other_users
}

/// Measures the data outside the stores.
pub(super) fn measure_quietly(
    request: &Request,
    config: &Config,
    scan: &Scan,
    most_inodes: Option<u64>,
    progress: &Progress,
) -> OtherUsers {
    other_usage::measure(scan, &known(request, config, scan, most_inodes), progress)
}

/// Measures the data outside the stores as [`measure`], and names the largest files.
pub(super) fn measure_with_files(
    request: &Request,
    observer: &dyn Observer,
    config: &Config,
    scan: &Scan,
    most_inodes: Option<u64>,
) -> OtherUsers {
    let mut other_users = measure(request, observer, config, scan, most_inodes);
    other_usage::add_files(scan, &known(request, config, scan, most_inodes), &mut other_users);
    other_users
}

/// Maximum number of inodes outside the stores for which every directory is measured, which takes a few seconds. On
/// filesystems with more, only the usual places of logs, dumps and volumes are measured.
pub(super) const MOST_INODES: u64 = 300_000;

/// Returns the request for a measurement.
pub(super) fn known(
    request: &Request,
    config: &Config,
    scan: &Scan,
    most_inodes: Option<u64>,
) -> other_usage::OtherUsageRequest {
    other_usage::OtherUsageRequest {
        state_dir: scan.sysroot.display(&database::state_directory(request).dir),
        places: KubeletPlaces::find(&config.kubelet, &Kubelet::read_now(&scan.sysroot)),
        threads: request.threads.map_or(0, usize::from),
        most_inodes,
    }
}

/// Used bytes of one filesystem after a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Outside {
    pub mount: PathBuf,
    pub used_bytes: u64,
    /// Part of `used_bytes` that is not in any store.
    pub bytes: u64,
    /// Known parts of `bytes`, the largest first.
    pub parts: Vec<Part>,
    /// Causes of the usage, ranked as in [`diagnosis::rank`], without those that the run itself deletes.
    pub causes: Vec<Cause>,
    /// Resource that is short.
    pub scarce: Counted,
    /// Low threshold for it, if it is passed.
    pub low: Option<f64>,
}

impl Outside {
    /// Returns the rest of a filesystem after a run: `disk` describes the filesystem as it is then.
    pub(super) fn of(scan: &Scan, other_users: &OtherUsers, disk: &Disk, causes: Vec<Cause>) -> Self {
        let inventory = &scan.inventory;
        let ix = disk.ix;
        let in_stores = refs::size_on_disk(inventory, ix).into_iter().fold(0, u64::saturating_add);
        let scarce = disk.scarce();
        Self {
            mount: disk.filesystem.mount.clone(),
            used_bytes: disk.filesystem.used_bytes,
            bytes: inventory[ix].used_bytes.saturating_sub(in_stores),
            parts: parts(scan, other_users, ix),
            causes,
            scarce,
            low: disk.low(scarce).filter(|low| disk.percent_of(scarce).is_some_and(|used| *low < used)),
        }
    }
}

/// Returns the known parts of a filesystem that are not in any store, the largest first.
pub(super) fn parts(scan: &Scan, other_users: &OtherUsers, ix: FilesystemIx) -> Vec<Part> {
    let mut parts = diagnosis::outside(scan, other_users, ix);
    parts.retain(|part| part.bytes > 0 || part.inodes > 1);
    parts.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.path.cmp(&b.path)));
    parts
}

/// Minimum size of a part that is named: deleting a smaller one does not help.
const LEAST_NAMED: u64 = 1 << 20;

/// Returns the largest parts in words; an empty string if no part is large enough.
pub(super) fn largest(parts: &[Part]) -> String {
    /// Maximum number of parts in one sentence.
    const NAMED: usize = 3;
    let named =
        parts.iter().filter(|part| part.bytes >= LEAST_NAMED).take(NAMED).map(|part| match &part.path {
            Some(path) if !part.label.starts_with('/') => {
                format!("{} {} ({})", part.label, bytes(part.bytes), path)
            }
            _ => format!("{} {}", part.label, bytes(part.bytes)),
        });
    named.collect::<Vec<_>>().join(", ")
}

/// Returns a finding if the sysroot is a plain directory: it shares its filesystem with other data then.
pub(super) fn part_of_a_filesystem(request: &Request, scan: &Scan) -> Option<Finding> {
    let sysroot = request.sysroot.as_deref().filter(|_| scan.sysroot.is_foreign())?;
    let top = scan.sysroot.resolve(Path::new("/")).ok()?;
    let filesystem = other_usage::filesystem_of(scan, &top)?;
    let mount = &scan.inventory[filesystem].mount;
    if *mount == top {
        return None;
    }
    let message = format!(
        "nothing is mounted there: filesystem figures are those of {}, which has other users",
        mount.display()
    );
    Some(Finding::new(sysroot, message))
}

/// Returns a finding if the measured parts exceed the usage that the filesystem reports.
pub(super) fn excess(filesystem: &Filesystem, excess_bytes: u64) -> Option<Finding> {
    if excess_bytes == 0 {
        return None;
    }
    let message = format!(
        "the measured data is {} larger than the usage the filesystem reports (compression, sharing, or \
         concurrent writes); each part is scaled down in proportion",
        bytes(excess_bytes)
    );
    Some(Finding::new(&filesystem.mount, message))
}

/// Formats it as a sentence for people.
impl fmt::Display for Outside {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (outside, used) = (bytes(self.bytes), bytes(self.used_bytes));
        write!(
            to,
            "After this run {used} stay used on {}; {outside} of it is outside the stores",
            self.mount.display()
        )?;
        match largest(&self.parts).as_str() {
            "" => to.write_str("."),
            largest => write!(to, ": {largest}."),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::diagnosis::PartKind;

    fn part(kind: PartKind, label: &str, path: &str, bytes: u64) -> Part {
        let path = Some(path.into());
        Part { kind, label: label.into(), path, bytes, measured_bytes: bytes, inodes: 0, store: None }
    }

    #[test]
    fn largest_parts_are_named_with_their_path() {
        let mut outside = Outside {
            mount: "/var".into(),
            used_bytes: 3 << 30,
            bytes: 2 << 30,
            parts: vec![
                part(PartKind::CoreDumps, "core dumps", "/var/lib/systemd/coredump", 1 << 30),
                part(PartKind::Directory, "/opt", "/opt", 512 << 20),
            ],
            causes: Vec::new(),
            scarce: Counted::Bytes,
            low: None,
        };
        assert_eq!(
            outside.to_string(),
            "After this run 3.0 GiB stay used on /var; 2.0 GiB of it is outside the stores: core dumps 1.0 GiB \
             (/var/lib/systemd/coredump), /opt 512.0 MiB."
        );
        outside.parts.clear();
        assert!(outside.to_string().ends_with("2.0 GiB of it is outside the stores."));
    }
}
