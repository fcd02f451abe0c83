//! All metric families, which `docs/metrics.md` lists too.

use super::exposition::{Family, Type};

const STORE: &[&str] = &["store", "driver"];
const PLACE: &[&str] = &["mountpoint", "kind", "namespace", "name"];

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
        "When the last recorded scan of the store began. All figures of the store are from that scan."
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
        "Allocated bytes of the store by what uses them, each byte once."
    );
    STORAGE_FAIR = gauge(
        "layersweep_storage_fair_bytes", &["store", "driver", "owner"],
        "Allocated bytes of the store by owner of the containers, layers divided equally among the images and \
        containers that use them; none: of unused images."
    );
    STORAGE_NAMESPACE = gauge(
        "layersweep_storage_namespace_bytes", &["store", "driver", "namespace"],
        "Allocated bytes of images and containers by namespace of the pods, layers divided equally; only if requested."
    );
    STORAGE_RECLAIMABLE = gauge(
        "layersweep_storage_reclaimable_bytes", STORE,
        "Bytes freed if all unused images and reclaimable leaks of the store were deleted together."
    );
    STORAGE_INODES = gauge("layersweep_storage_inodes", STORE, "Inodes of the store.");
    IMAGES = gauge(
        "layersweep_images", &["store", "driver", "state"],
        "Images by state: in_use by a container, pinned, read_only, or unused."
    );
    ARTIFACTS = gauge(
        "layersweep_artifacts", &["store", "state"],
        "OCI artifacts of CRI-O and Podman by state, with the states of images."
    );
    IMAGE_EXCLUSIVE = gauge(
        "layersweep_image_exclusive_bytes", &["store", "driver", "id", "name"],
        "Bytes that only this image uses; only for the largest images, and only if requested."
    );
    LAYERS = gauge("layersweep_layers", STORE, "Layers, snapshots and blobs.");
    CONTAINERS = gauge("layersweep_containers", &["store", "driver", "state"], "Containers by their state.");
    LEAKS = gauge(
        "layersweep_leaks", &["store", "driver", "class", "verdict"],
        "Leaks and inconsistencies by class and verdict."
    );
    LEAK_BYTES = gauge(
        "layersweep_leak_bytes", &["store", "driver", "class", "verdict"],
        "Allocated bytes of these leaks themselves."
    );
    FILESYSTEM_SIZE = gauge(
        "layersweep_filesystem_size_bytes", &["mountpoint"],
        "Size of a filesystem that holds a store, read when the metrics were written."
    );
    FILESYSTEM_AVAIL = gauge(
        "layersweep_filesystem_avail_bytes", &["mountpoint"],
        "Available bytes of the filesystem, read when the metrics were written; gc decides by them."
    );
    FILESYSTEM_FILES = gauge(
        "layersweep_filesystem_files", &["mountpoint"],
        "Inodes of the filesystem; absent if it has no fixed number of them."
    );
    FILESYSTEM_FILES_FREE = gauge(
        "layersweep_filesystem_files_free", &["mountpoint"], "Free inodes of the filesystem."
    );
    FILESYSTEM_FULL = gauge(
        "layersweep_filesystem_full_seconds", &["mountpoint", "bound"],
        "Seconds until no byte is available at the recorded rate: expected, and the 95 % interval earliest to latest."
    );
    OUTSIDE = gauge(
        "layersweep_outside_bytes", &["mountpoint", "kind"],
        "Used bytes of the filesystem outside the stores at the last recorded scan, which gc does not delete."
    );
    PLACE_BYTES = gauge(
        "layersweep_place_bytes", PLACE,
        "Allocated bytes of the largest containers, volumes, logs and paths outside the stores at the last recorded scan."
    );
    PLACE_INODES = gauge("layersweep_place_inodes", PLACE, "Inodes of the same places, and of those with the most inodes.");
    HIGH_MARK = gauge(
        "layersweep_gc_high_mark_ratio", &["resource"],
        "Configured high threshold: usage of bytes or inodes at which gc starts to delete images."
    );
    LOW_MARK = gauge(
        "layersweep_gc_low_mark_ratio", &["resource"],
        "Configured low threshold: usage at which gc stops deleting images."
    );
    MIN_FREE = gauge(
        "layersweep_gc_min_free_bytes", &[],
        "Available bytes below which gc deletes images, if configured."
    );
    WANTED_BYTES = gauge(
        "layersweep_gc_wanted_bytes", &["mountpoint"],
        "Bytes to free until the low threshold is reached; 0 while the filesystem is below the high threshold."
    );
    WANTED_INODES = gauge(
        "layersweep_gc_wanted_inodes", &["mountpoint"],
        "Inodes to free until the low threshold is reached; 0 while the filesystem is below the high threshold."
    );
    RESERVE_FILE = gauge(
        "layersweep_reserve_file_bytes", &["path"],
        "Bytes of the reserve file, which makes room for the first deletion on a full disk; 0 if it does not exist."
    );
    SCANS = counter("layersweep_scans_total", &["outcome"], "Recorded scans, including those of gc.");
    RUNS = counter(
        "layersweep_gc_runs_total", &["command", "outcome"],
        "Runs of the commands that delete, by outcome; killed runs are counted when the next one begins."
    );
    DELETIONS = counter("layersweep_gc_deletions_total", &["command", "kind"], "Deleted objects.");
    FAILURES = counter(
        "layersweep_gc_failures_total", &["command", "kind"],
        "Failed deletion attempts."
    );
    FREED = counter(
        "layersweep_gc_freed_bytes_total", &["command", "kind"],
        "Bytes freed, measured after each deletion; as predicted where other programs were writing."
    );
    PREDICTED = counter(
        "layersweep_gc_predicted_bytes_total", &["command", "kind"],
        "Bytes that these deletions were predicted to free."
    );
    LAST_RUN = gauge(
        "layersweep_gc_last_run_timestamp_seconds", &["command"],
        "When the last run ended, or began if it has not ended."
    );
    LAST_OUTCOME = gauge(
        "layersweep_gc_last_run_outcome", &["command", "outcome"],
        "1 for the outcome of the last run, 0 for the others; unfinished: still running or killed."
    );
    USAGE_BEFORE = gauge(
        "layersweep_gc_last_run_usage_before_ratio", &["command", "mountpoint"],
        "Usage of each filesystem with a store before the last run."
    );
    USAGE_AFTER = gauge(
        "layersweep_gc_last_run_usage_after_ratio", &["command", "mountpoint"],
        "Usage of each filesystem with a store after the last run."
    );
    LAST_DURATION = gauge(
        "layersweep_gc_last_run_duration_seconds", &["command"],
        "How long the last run took; absent if it has not ended."
    );
    LAST_WANTED = gauge(
        "layersweep_gc_last_run_target_bytes", &["command"],
        "Bytes that the last run had to free; absent if it had no such target."
    );
    LAST_FREED = gauge(
        "layersweep_gc_last_run_freed_bytes", &["command"],
        "Bytes that the last run freed, measured; negative if other programs wrote more."
    );
    ATTEMPTS = counter(
        "layersweep_image_gc_attempts_total", &["operation", "trigger", "result"],
        "Runs of gc, with the labels of the kubelet's metrics of image garbage collection (KEP-6053)."
    );
    LAST_ATTEMPT = gauge(
        "layersweep_image_gc_last_attempt", &["operation", "trigger", "result", "reason"],
        "Always 1: result and reason of the last gc, with the labels of KEP-6053; absent if it has not ended."
    );
    DATABASE_OK = gauge(
        "layersweep_database_ok", &[],
        "1 if the records can be read and are intact; 0: figures and counters may be missing."
    );
    DATABASE_SIZE = gauge("layersweep_database_size_bytes", &[], "Size of the database and its log.");
    DATABASE_SET_ASIDE = gauge(
        "layersweep_database_set_aside", &[],
        "Quarantined damaged databases in the state directory."
    );
    WAITING = gauge(
        "layersweep_records_waiting", &[],
        "Files with records that earlier runs could not save; the next run that can write saves them."
    );
}
