//! Check of the manifests of static pods.

use std::io::ErrorKind;

use super::check::{AS_ROOT, Check};
use super::node::Node;
use crate::model::text::display::count;

pub(super) fn manifests(node: &Node<'_>) -> Vec<Check> {
    let (Some(place), Some(read)) = (node.config.static_pods.as_deref(), node.static_pods()) else {
        return vec![Check::note("", "protect.static_pods is off: images of static pods are not protected")];
    };
    match read {
        Ok(found) => {
            let findings = found.findings.iter();
            let mut checks: Vec<_> = findings
                .map(|finding| Check::warning(&finding.path, finding.message.clone(), "fix the manifest"))
                .collect();
            let message = format!(
                "{} named by static pods and protected",
                count(found.images.len(), "image is", "images are")
            );
            checks.push(Check::ok(place, message));
            checks
        }
        Err(unreadable) => {
            let message = format!(
                "it cannot be read ({}): images of static pods are unknown, and gc refuses to delete any image",
                unreadable.source
            );
            let remedy = match unreadable.source.kind() {
                ErrorKind::PermissionDenied => AS_ROOT,
                _ => "fix it, or set protect.static_pods = \"off\" if static pods protect nothing",
            };
            vec![Check { is_unread: true, ..Check::warning(&unreadable.path, message, remedy) }]
        }
    }
}
