//! Data on the filesystems of the stores that is not in any store: in full for `report` and `usage`, in one
//! sentence for `gc` and `doctor`.

use std::fmt;
use std::path::{Path, PathBuf};

use super::diagnosis::Part;
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

/// Data of one filesystem that is not in any store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outside {
    pub mount: PathBuf,
    pub used_bytes: u64,
    /// Part of `used_bytes` that is not in any store.
    pub bytes: u64,
    /// Known parts of `bytes`, the largest first.
    pub parts: Vec<Part>,
    /// Large directories in the stores that do not belong to an image or container.
    pub large: Vec<Part>,
    /// Bytes that `sweep --delete` would free on the filesystem.
    pub leaks_bytes: u64,
}

impl Outside {
    /// Returns the data outside the stores for a scan that has measured them. `freed`: bytes that were deleted
    /// since.
    pub(super) fn of(scan: &Scan, other_users: &OtherUsers, ix: FilesystemIx, freed: u64) -> Self {
        let inventory = &scan.inventory;
        let filesystem = &inventory[ix];
        let in_stores = refs::size_on_disk(inventory, ix).into_iter().fold(0, u64::saturating_add);
        Self {
            mount: filesystem.mount.clone(),
            used_bytes: filesystem.used_bytes.saturating_sub(freed),
            bytes: filesystem.used_bytes.saturating_sub(in_stores),
            parts: parts(scan, other_users, ix),
            large: diagnosis::large(scan, other_users, ix),
            leaks_bytes: 0,
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
        let Self { mount, used_bytes, bytes: outside, parts, large, leaks_bytes } = self;
        let (outside, used) = (bytes(*outside), bytes(*used_bytes));
        write!(to, "{outside} of the {used} used on {} is not in any store", mount.display())?;
        match largest(parts).as_str() {
            "" => to.write_str("; no deletion of images frees it.")?,
            largest => write!(to, " (of it {largest}); no deletion of images frees it.")?,
        }
        if !large.is_empty() {
            write!(to, " Nor does it free these files in the stores: {}.", self::largest(large))?;
        }
        match *leaks_bytes {
            0 => Ok(()),
            leaks => write!(to, " `layersweep sweep --delete` frees {} of leaks there.", bytes(leaks)),
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
            large: Vec::new(),
            leaks_bytes: 0,
        };
        assert_eq!(
            outside.to_string(),
            "2.0 GiB of the 3.0 GiB used on /var is not in any store (of it core dumps 1.0 GiB \
             (/var/lib/systemd/coredump), /opt 512.0 MiB); no deletion of images frees it."
        );
        outside.parts.clear();
        assert_eq!(
            outside.to_string(),
            "2.0 GiB of the 3.0 GiB used on /var is not in any store; no deletion of images frees it."
        );
        outside.leaks_bytes = 9 << 20;
        assert!(outside.to_string().ends_with(" `layersweep sweep --delete` frees 9.0 MiB of leaks there."));
    }
}
