//! Every metric there is. `docs/metrics.md` lists them, too.

use super::exposition::{Family, Type};

const STORE: &[&str] = &["store", "driver"];

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Family {
    Family { name, kind: Type::Gauge, help, labels }
}

const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Family {
    Family { name, kind: Type::Counter, help, labels }
}

macro_rules! families {
    ($($constant:ident = $family:expr;)+) => {
        $(pub(super) const $constant: &Family = &$family;)+

        /// All families, in the order in which they are printed.
        pub const FAMILIES: &[&Family] = &[$($constant),+];
    };
}

families! {
    BUILD_INFO = gauge("layersweep_build_info", &["version"], "Version of the program that wrote this; always 1.");
    STORE_INFO = gauge(
        "layersweep_store_info", &["store", "driver", "kind", "mountpoint"],
        "Kind of each store, and where its filesystem is mounted; always 1."
    );
    SCAN_TIMESTAMP = gauge(
        "layersweep_scan_timestamp_seconds", STORE,
        "When the last recorded scan of the store began. All figures of the store are from then."
    );
    SCAN_DURATION = gauge(
        "layersweep_scan_duration_seconds", STORE,
        "How long that scan took, for all stores together."
    );
    SCAN_COMPLETE = gauge(
        "layersweep_scan_complete", STORE,
        "1 if everything in the store could be read; 0: its figures are lower bounds."
    );
    STORAGE_BYTES = gauge(
        "layersweep_storage_bytes", &["store", "driver", "kind"],
        "Allocated bytes of the store by who holds them, each byte once."
    );
    STORAGE_RECLAIMABLE = gauge(
        "layersweep_storage_reclaimable_bytes", STORE,
        "What would come back if all unused images and reclaimable leaks of the store went together."
    );
    STORAGE_INODES = gauge("layersweep_storage_inodes", STORE, "Inodes of the store.");
    IMAGES = gauge(
        "layersweep_images", &["store", "driver", "state"],
        "Images by why they stay: in_use by a container, pinned, read_only, or unused."
    );
    ARTIFACTS = gauge(
        "layersweep_artifacts", &["store", "state"],
        "OCI artifacts of CRI-O and Podman by why they stay, with the states of images."
    );
    IMAGE_EXCLUSIVE = gauge(
        "layersweep_image_exclusive_bytes", &["store", "driver", "id", "name"],
        "Bytes that only this image reaches; the biggest images alone, and only where they are asked for."
    );
    LAYERS = gauge("layersweep_layers", STORE, "Layers, snapshots and blobs.");
    CONTAINERS = gauge("layersweep_containers", &["store", "driver", "state"], "Containers by their state.");
    LEAKS = gauge(
        "layersweep_leaks", &["store", "driver", "class", "verdict"],
        "What nothing uses or does not fit together, by class and what is to be done about it."
    );
    LEAK_BYTES = gauge(
        "layersweep_leak_bytes", &["store", "driver", "class", "verdict"],
        "Allocated bytes of these leaks themselves."
    );
    FILESYSTEM_SIZE = gauge(
        "layersweep_filesystem_size_bytes", &["mountpoint"],
        "Size of a filesystem that holds a store, asked when this text was made."
    );
    FILESYSTEM_AVAIL = gauge(
        "layersweep_filesystem_avail_bytes", &["mountpoint"],
        "Bytes of it that an unprivileged user can still write, asked when this text was made; what gc goes by."
    );
    FILESYSTEM_FILES = gauge(
        "layersweep_filesystem_files", &["mountpoint"],
        "Inodes of it; not there where it has no fixed number of them."
    );
    FILESYSTEM_FILES_FREE = gauge("layersweep_filesystem_files_free", &["mountpoint"], "Free inodes of it.");
    HIGH_MARK = gauge(
        "layersweep_gc_high_mark_ratio", &["resource"],
        "Used share from which on gc deletes images, as configured, of bytes or inodes."
    );
    LOW_MARK = gauge(
        "layersweep_gc_low_mark_ratio", &["resource"],
        "Used share until which gc deletes images, as configured."
    );
    MIN_FREE = gauge(
        "layersweep_gc_min_free_bytes", &[],
        "Available bytes below which gc deletes images, where that is configured."
    );
    SCANS = counter("layersweep_scans_total", &["outcome"], "Scans that were recorded, those of gc among them.");
    RUNS = counter(
        "layersweep_gc_runs_total", &["command", "outcome"],
        "Runs of the commands that delete, by how they ended; those that were killed once the next begins."
    );
    DELETIONS = counter("layersweep_gc_deletions_total", &["command", "kind"], "What was deleted.");
    FAILURES = counter(
        "layersweep_gc_failures_total", &["command", "kind"],
        "Tries to delete something that would not go."
    );
    FREED = counter(
        "layersweep_gc_freed_bytes_total", &["command", "kind"],
        "Bytes that the filesystem gave back, measured after each deletion; less than 0 counts as 0."
    );
    PREDICTED = counter(
        "layersweep_gc_predicted_bytes_total", &["command", "kind"],
        "Bytes that these deletions were expected to give back."
    );
    LAST_RUN = gauge(
        "layersweep_gc_last_run_timestamp_seconds", &["command"],
        "When the last run ended, or began if it has no end."
    );
    LAST_OUTCOME = gauge(
        "layersweep_gc_last_run_outcome", &["command", "outcome"],
        "1 for how the last run ended, 0 for the others; unfinished: it is under way or was killed."
    );
    USAGE_BEFORE = gauge(
        "layersweep_gc_last_run_usage_before_ratio", &["command", "mountpoint"],
        "Used share of the filesystem before the last run."
    );
    USAGE_AFTER = gauge(
        "layersweep_gc_last_run_usage_after_ratio", &["command", "mountpoint"],
        "Used share of the filesystem after the last run."
    );
    DATABASE_OK = gauge(
        "layersweep_database_ok", &[],
        "1 if our records can be read and are sound; 0: figures and counters may be missing."
    );
    DATABASE_SIZE = gauge("layersweep_database_size_bytes", &[], "Length of our database and its log.");
    DATABASE_SET_ASIDE = gauge(
        "layersweep_database_set_aside", &[],
        "Damaged databases that lie in our state directory under another name."
    );
    WAITING = gauge(
        "layersweep_records_waiting", &[],
        "Files with what earlier runs could not save; the next run that can write saves them."
    );
}
