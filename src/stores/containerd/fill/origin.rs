//! Origin of an image, from the labels of its blobs.
//!
//! All clients that download an image for containerd (CRI, the transfer service, `ctr`, nerdctl, Docker) label its
//! manifest, configuration and layers with `containerd.io/distribution.source.<registry> = <repository>[,…]` (containerd,
//! `core/remotes/docker/handler.go`, `AppendDistributionSourceLabel`; version 1.3 and later). An import, a build or a
//! commit labels none. Layers are not asked: a build shares those of its base.

use crate::model::{Origin, OriginKind};
use crate::stores::containerd::content::Resolved;
use crate::stores::containerd::gc::Graph;
use crate::stores::containerd::metadata::{BlobRecord, ImageRecord, Namespace};

/// Start of the label; the registry follows.
const SOURCE: &str = "containerd.io/distribution.source.";

/// Namespaces in which BuildKit builds.
const OF_BUILDS: [&str; 2] = ["moby", "buildkit"];

pub(super) fn origin(
    namespace: &Namespace,
    graph: &Graph<'_>,
    names: &[&ImageRecord],
    resolved: &Resolved,
) -> Origin {
    let targets = names.iter().map(|name| name.target.as_str());
    let config = resolved.config.as_ref().map(|config| config.digest.as_str());
    let digests = targets.chain(resolved.manifest.as_deref()).chain(config);
    let blobs: Vec<_> = digests.filter_map(|digest| graph.blob(digest)).collect();
    let sources = blobs.iter().flat_map(|blob| sources(blob));
    let source =
        sources.max_by_key(|(_, repository)| names.iter().any(|name| name.name.contains(repository)));
    if let Some((registry, repository)) = source {
        return Origin {
            kind: OriginKind::Pulled,
            registry: Some(format!("{registry}/{repository}")),
            time: blobs.iter().filter_map(|blob| blob.created).max(),
            evidence: "a label of its content names the registry".into(),
            is_doubtful: false,
        };
    }
    if blobs.is_empty() || resolved.config.is_none() {
        return Origin::unknown("its manifest is not in the content store");
    }
    if OF_BUILDS.contains(&namespace.name.as_str()) {
        Origin::new(OriginKind::Built, "no label of its content names a registry, as after a build")
    } else {
        Origin::new(OriginKind::Loaded, "no label of its content names a registry, as after an import")
    }
}

/// Returns registries and repositories that a blob was downloaded from.
fn sources(blob: &BlobRecord) -> impl Iterator<Item = (&str, &str)> {
    let labels = blob.labels.iter().filter_map(|(label, value)| Some((label.strip_prefix(SOURCE)?, value)));
    labels.flat_map(|(registry, value)| value.split(',').map(move |repository| (registry, repository)))
}
