//! Synthetic but complete documents of `layersweep report`, of any size: for tests of the page with sizes and hostile
//! names that no real store can provide quickly.

use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

/// Root of the made-up store.
pub const ROOT: &str = "/var/lib/containers/storage";

/// Returns the document in a page of `report --html`.
pub fn in_page(page: &str) -> Value {
    let (_, after) =
        page.split_once("<script type=\"application/json\" id=\"report\">\n").expect("its place");
    serde_json::from_str(after.lines().next().expect("its line")).expect("a document")
}

/// Returns a document without images.
pub fn empty() -> Value {
    document(Vec::new(), Vec::new())
}

/// Returns a document of one image with one layer.
pub fn one() -> Value {
    forest(1, 1)
}

/// Returns a document of `images` images on about `layers` layers: twenty bases, on which images and their variants
/// are built. The same arguments give the same document.
pub fn forest(images: usize, layers: usize) -> Value {
    let mut rng = fastrand::Rng::with_seed(7);
    let mut made: Vec<Layer> = Vec::new();
    let mut chains: Vec<Vec<usize>> = Vec::new();
    for image in 0..images {
        let mut chain = match rng.usize(..10) {
            _ if chains.is_empty() => Vec::new(),
            0 if chains.len() < 20 => Vec::new(),
            _ => {
                let other = &chains[rng.usize(..chains.len())];
                other[..rng.usize(1..=other.len().min(40))].to_vec()
            }
        };
        let more = (layers.saturating_sub(made.len()) / (images - image)).max(1);
        let more = rng.usize(1..=more * 2 - 1);
        for _ in 0..more.min(layers.saturating_sub(made.len()).max(1)) {
            let parent = chain.last().copied();
            chain.push(made.len());
            // A distribution like that of real layers: many small, few large.
            let bytes = 4096 * (1 + rng.u64(..256) * 4_u64.pow(rng.u32(..5)));
            made.push(Layer { parent, bytes, images: Vec::new() });
        }
        for layer in &chain {
            made[*layer].images.push(image);
        }
        chains.push(chain);
    }
    let registries = ["quay.io", "registry.example.org:5000", "docker.io", "ghcr.io"];
    let image_docs = chains.iter().enumerate().map(|(image_ix, chain)| {
        let layers = || chain.iter().map(|layer| &made[*layer]);
        let total = layers().map(|layer| layer.bytes).sum();
        let exclusive = layers().filter(|layer| layer.images.len() == 1).map(|layer| layer.bytes).sum();
        let name = format!(
            "{}/team-{}/service-{}:{}.{}",
            registries[image_ix % registries.len()],
            image_ix % 17,
            image_ix % 191,
            image_ix % 9,
            image_ix
        );
        image(
            image_ix,
            &[name.as_str()],
            chain.iter().rev().map(|layer| id("layer", *layer)).collect(),
            [total, exclusive],
        )
    });
    let image_docs = image_docs.collect();
    let layer_docs = made.iter().enumerate().map(|(layer_ix, layer)| {
        let images = layer.images.iter().map(|image| id("image", *image)).collect();
        self::layer(layer_ix, layer.parent.map(|parent| id("layer", parent)), layer.bytes, images)
    });
    document(image_docs, layer_docs.collect())
}

struct Layer {
    parent: Option<usize>,
    bytes: u64,
    images: Vec<usize>,
}

/// Returns an id of 64 digits.
pub fn id(kind: &str, number: usize) -> String {
    let kind = kind.bytes().next().unwrap_or_default();
    format!("{kind:02x}{number:010x}{:052x}", number * 7919 + 13)
}

/// Returns a layer of the made-up store.
pub fn layer(number: usize, parent: Option<String>, bytes: u64, images: Vec<String>) -> Value {
    json!({
        "id": id("layer", number), "store": ROOT, "kind": "layer", "parent": parent,
        "diff_id": format!("sha256:{}", id("diff", number)), "created_at": "2026-11-01T00:00:00Z",
        "read_write": false, "refcount": images.len(), "images": images, "containers": [],
        "bytes": bytes, "apparent_bytes": bytes, "inodes": 1 + number % 500,
        "path": format!("{ROOT}/overlay/{}", id("layer", number)),
    })
}

/// Returns an image of the made-up store; `sizes` are total and exclusive bytes.
pub fn image(number: usize, names: &[&str], layers: Vec<String>, sizes: [u64; 2]) -> Value {
    let [total, exclusive] = sizes;
    json!({
        "id": id("image", number), "names": names, "digests": [format!("sha256:{}", id("manifest", number))],
        "store": ROOT, "manifest_list": false, "created_at": null,
        "first_detected": "2026-11-02T00:00:00Z", "first_detected_from": "records",
        "last_used": number.is_multiple_of(3).then_some("2026-11-20T00:00:00Z"), "use_count": 0, "lives": 1,
        "in_use": number.is_multiple_of(7), "used_by": [], "pinned": number % 31 == 5, "pinned_by": [], "layers": layers,
        "total_bytes": total, "shared_bytes": total - exclusive, "exclusive_bytes": exclusive,
        "fair_bytes": exclusive, "frees_bytes": exclusive, "listed_bytes": total,
    })
}

/// `bytes` of `capacity` in percent, rounded to two decimals.
fn percent(bytes: u64, capacity: u64) -> f64 {
    #[allow(clippy::cast_precision_loss)] // two decimals
    let share = bytes as f64 / capacity as f64;
    (share * 10_000.0).round() / 100.0
}

/// A part of a filesystem.
fn part(kind: &str, label: &str, path: Option<&str>, bytes: u64) -> Value {
    json!({ "kind": kind, "label": label, "path": path, "bytes": bytes, "measured_bytes": bytes, "store": null })
}

/// Returns a document of these images and layers, with two days of readings and a run.
pub fn document(images: Vec<Value>, layers: Vec<Value>) -> Value {
    let held: u64 = layers.iter().filter_map(|layer| layer["bytes"].as_u64()).sum();
    let used = held + 64 * MIB;
    let capacity = used + used / 4 + 16 * MIB;
    let available = capacity - used - 16 * MIB;
    let filesystem = json!({
        "mount": "/", "device": "/dev/vda1", "fstype": "xfs", "capacity_bytes": capacity,
        "used_bytes": used, "available_bytes": available, "used_percent": percent(capacity - available, capacity),
        "inodes": 1_000_000, "inodes_free": 900_000,
    });
    let mut whole = filesystem.clone();
    whole["reserved_bytes"] = json!(16 * MIB);
    whole["parts"] = json!([
        part("images", "images in use", Some(ROOT), held),
        part("logs", "logs of pods", Some("/var/log/pods"), 40 * MIB),
        part("other", "everything else", None, 24 * MIB),
    ]);
    whole["thresholds"] = json!([
        { "name": "gc low", "percent": 70.0, "source": "layersweep", "of": "bytes" },
        { "name": "gc high", "percent": 75.0, "source": "layersweep", "of": "bytes" },
        { "name": "image GC low", "percent": 80.0, "source": "kubelet", "of": "bytes" },
        { "name": "image GC high", "percent": 85.0, "source": "kubelet", "of": "bytes" },
        { "name": "hard eviction (imagefs.available)", "percent": 85.0, "source": "eviction", "of": "bytes" },
        { "name": "hard eviction (imagefs.inodesFree)", "percent": 95.0, "source": "eviction", "of": "inodes" },
    ]);
    let points = (0..48_u64).map(|hour| {
        let mean = used / 2 + used / 100 * hour;
        json!({
            "at": format!("2026-11-{:02}T{:02}:00:00Z", 19 + hour / 24, hour % 24), "span_seconds": 3600,
            "used_bytes": { "min": mean - MIB, "avg": mean, "max": mean + MIB }, "capacity_bytes": capacity,
        })
    });
    let points: Vec<Value> = points.collect();
    let totals = json!({
        "images": images.len(), "images_unused": 0, "layers": layers.len(), "containers": 0, "leaks": 0,
        "bytes": held, "inodes": 1, "reclaimable_bytes": 0,
    });
    let store = json!({
        "kind": "containers-storage", "root": ROOT, "driver": "overlay", "filesystem": "/",
        "images": images.len(), "layers": layers.len(), "containers": 0,
        "bytes": { "images": held, "containers": 0, "build_cache": 0, "leaks": 0, "metadata": 0, "other": 0, "total": held },
        "other": [], "reclaimable_bytes": 0, "read_only": false, "origin": "default", "consistency": "consistent",
    });
    json!({
        "schema_version": 1, "kind": "report", "generated_at": "2026-11-21T12:00:00Z",
        "program_version": "0.0.0", "complete": true, "history_complete": true, "sysroot": null, "host": "node-17.example.org",
        "verdict": {
            "urgency": "critical", "headline": "/ is 86.0% full, past hard eviction (imagefs.available) at 85%",
            "steps": [
                { "command": { "deletes": "layersweep gc" }, "text": "deletes unused images", "bytes": MIB, "needs_decision": false },
                { "command": null, "text": "log of pod a/b: `ls -l /x`", "bytes": MIB, "needs_decision": true },
            ],
            "sentences": ["First.", "Second, of `layersweep gc`.", "Third."], "causes": [],
        },
        "scan": {
            "schema_version": 1, "kind": "scan", "generated_at": "2026-11-21T12:00:00Z", "complete": true, "node": "node-17.example.org",
            "filesystems": [filesystem], "stores": [store], "images": images, "layers": layers,
            "containers": [], "leaks": [], "totals": totals, "warnings": [],
            "scan": { "seconds": 0.5, "inodes": 1000, "cached_layers": 0, "measured_layers": 1 },
        },
        "filesystems": [whole],
        "usage": [{ "mount": "/", "fstype": "ext4", "device": "/dev/vda1", "points": points }],
        "runs": [run()],
        "top": { "layers": [], "images": [], "containers": [], "leaks": [], "logs": [], "pods": [] },
        "measured": { "how": ["By hand."], "skipped": [], "warnings": [] }, "others": [],
    })
}

fn run() -> Value {
    fn deletion(number: usize, error: Option<&str>) -> Value {
        json!({
            "kind": "image", "id": id("gone", number), "names": [format!("quay.io/gone/image:{number}")], "store": ROOT,
            "reason": "space", "predicted_bytes": 10 * MIB, "measured_bytes": error.is_none().then_some(9 * MIB),
            "byproduct_bytes": 0, "differs": false, "usage_after_percent": 70.0,
            "at": "2026-11-20T06:00:00Z", "error": error,
        })
    }
    json!({
        "run_id": "run-1", "command": "gc", "runs": 1, "started_at": "2026-11-20T06:00:00Z",
        "ended_at": "2026-11-20T06:00:05Z", "outcome": "reached", "dry_run": false, "policy": "exact",
        "via": "cri", "trigger": { "space": true, "age": false },
        "filesystems": [{ "mount": "/", "started": ["used"], "usage_before_percent": 84.0, "usage_after_percent": 70.0,
                          "measured_bytes": 18 * MIB }],
        "wanted_bytes": 18 * MIB,
        "predicted_bytes": 20 * MIB, "measured_bytes": 18 * MIB, "byproduct_bytes": 0, "believed_bytes": null,
        "deleted": [deletion(1, None), deletion(2, None), deletion(3, Some("in use"))], "errors": [],
        "events": [], "killed": false, "unsaved": false,
    })
}
