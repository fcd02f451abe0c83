//! `--filter KEY=VALUE` and `--sort KEY` of `layersweep images`.

use std::str::FromStr;

use clap::ValueEnum;
use globset::{GlobBuilder, GlobMatcher};
use jiff::{SignedDuration, Timestamp};

use crate::cli::input::values;
use crate::model::{OriginKind, Owner};
use crate::report::json::ImageDoc;

/// Sort order of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SortKey {
    /// Bytes that only this image reaches
    Exclusive,
    /// Its fair share of the bytes that it reaches
    Fair,
    /// Bytes that are freed if it alone is deleted
    Frees,
    /// All bytes that it reaches
    Size,
    /// Bytes that others reach too
    Shared,
    /// When it was made here, the newest on top
    Age,
    /// First name
    Name,
}

/// Sorts images, those with equal keys by id, so that the order is always the same.
pub fn sort(images: &mut [ImageDoc], key: SortKey) {
    images.sort_by(|a, b| {
        let order = match key {
            SortKey::Exclusive => b.exclusive_bytes.cmp(&a.exclusive_bytes),
            SortKey::Fair => b.fair_bytes.cmp(&a.fair_bytes),
            SortKey::Frees => b.frees_bytes.cmp(&a.frees_bytes),
            SortKey::Size => b.total_bytes.cmp(&a.total_bytes),
            SortKey::Shared => b.shared_bytes.cmp(&a.shared_bytes),
            SortKey::Age => b.created_at.cmp(&a.created_at),
            SortKey::Name => a.names.cmp(&b.names),
        };
        order.then_with(|| a.id.cmp(&b.id))
    });
}

/// Condition on images.
#[derive(Clone, Debug)]
pub enum Filter {
    InUse(bool),
    Pinned(bool),
    Dangling(bool),
    Name(GlobMatcher),
    Store(String),
    Owner(Owner),
    Origin(OriginKind),
    OlderThan(SignedDuration),
    NewerThan(SignedDuration),
    LargerThan(u64),
}

impl Filter {
    /// Returns true if an image meets the condition.
    pub fn passes(&self, image: &ImageDoc, now: Timestamp) -> bool {
        let age = image.created_at.map(|created| now.duration_since(created));
        match self {
            Self::InUse(wanted) => image.in_use == *wanted,
            Self::Pinned(wanted) => image.pinned == *wanted,
            Self::Dangling(wanted) => image.names.is_empty() == *wanted,
            Self::Name(glob) => image.names.iter().any(|name| glob.is_match(name)),
            Self::Store(root) => image.store == *root,
            Self::Owner(owner) => image.used_by.iter().any(|user| user.owner == Some(*owner)),
            Self::Origin(kind) => image.origin.kind == *kind,
            Self::OlderThan(limit) => age.is_some_and(|age| age > *limit),
            Self::NewerThan(limit) => age.is_some_and(|age| age < *limit),
            Self::LargerThan(limit) => image.total_bytes > *limit,
        }
    }
}

const KEYS: &str =
    "in-use, pinned, dangling, name, store, owner, origin, older-than, newer-than, larger-than";

impl FromStr for Filter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, value) = text.split_once('=').ok_or(format!("no `=` in it; the keys are {KEYS}"))?;
        Ok(match key {
            "in-use" => Self::InUse(truth(key, value)?),
            "pinned" => Self::Pinned(truth(key, value)?),
            "dangling" => Self::Dangling(truth(key, value)?),
            // `*` matches `/` too, so that `quay.io/*` means all of that registry.
            "name" | "reference" => Self::Name(
                GlobBuilder::new(value).build().map_err(|error| error.to_string())?.compile_matcher(),
            ),
            "store" => Self::Store(value.trim_end_matches('/').to_owned()),
            "owner" => {
                let owner = Owner::ALL
                    .iter()
                    .find(|owner| owner.as_str() == value)
                    .filter(|owner| **owner != Owner::Docker)
                    .ok_or_else(|| {
                        format!("owner is cri-o, podman, buildah, containerd or unknown, not {value:?}")
                    })?;
                Self::Owner(*owner)
            }
            "origin" => {
                let kind = OriginKind::ALL.iter().find(|kind| kind.as_str() == value).ok_or_else(|| {
                    let kinds: Vec<_> = OriginKind::ALL.iter().map(|kind| kind.as_str()).collect();
                    format!("origin is one of {}, not {value:?}", kinds.join(", "))
                })?;
                Self::Origin(*kind)
            }
            "older-than" => Self::OlderThan(values::duration(value)?),
            "newer-than" => Self::NewerThan(values::duration(value)?),
            "larger-than" => Self::LargerThan(values::size(value)?),
            other => return Err(format!("no such key {other:?}; the keys are {KEYS}")),
        })
    }
}

fn truth(key: &str, value: &str) -> Result<bool, String> {
    match value {
        "true" | "yes" | "1" => Ok(true),
        "false" | "no" | "0" => Ok(false),
        other => Err(format!("{key} takes true or false, not {other:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Origin;
    use crate::model::deletion::plan::TargetKind;

    fn image(name: &str, exclusive: u64) -> ImageDoc {
        ImageDoc {
            id: name.into(),
            names: if name.is_empty() { vec![] } else { vec![name.into()] },
            kind: TargetKind::Image,
            digests: vec![],
            store: "/s".into(),
            origin: Origin::default(),
            manifest_list: false,
            created_at: "2026-11-01T00:00:00Z".parse().ok(),
            first_detected: None,
            first_detected_from: None,
            last_used: None,
            use_count: None,
            lives: None,
            in_use: false,
            used_by: vec![],
            pinned: false,
            pinned_by: vec![],
            layers: vec![],
            total_bytes: 1000,
            shared_bytes: 0,
            exclusive_bytes: exclusive,
            fair_bytes: exclusive,
            frees_bytes: Some(exclusive),
            listed_bytes: None,
            out_of_reach: None,
        }
    }

    #[test]
    fn filters_accept_matching_images() {
        let now = "2026-11-21T00:00:00Z".parse().unwrap();
        let image = image("quay.io/team/app:1", 5);
        for (text, passes) in [
            ("in-use=false", true),
            ("pinned=yes", false),
            ("dangling=false", true),
            ("name=quay.io/*", true),
            ("name=app", false),
            ("store=/s/", true),
            ("owner=cri-o", false),
            ("older-than=2w", true),
            ("older-than=30d", false),
            ("newer-than=30d", true),
            ("larger-than=999", true),
            ("larger-than=1KiB", false),
        ] {
            let filter: Filter = text.parse().unwrap();
            assert_eq!(filter.passes(&image, now), passes, "{text}");
        }
        for text in [
            "in-use",
            "in-use=maybe",
            "colour=red",
            "owner=docker",
            "older-than=soon",
            "name=[",
            "larger-than=-1",
        ] {
            assert!(text.parse::<Filter>().is_err(), "{text}");
        }
    }

    #[test]
    fn equal_images_are_sorted_by_id() {
        let mut images = vec![image("b", 5), image("a", 5), image("c", 9)];
        sort(&mut images, SortKey::Exclusive);
        assert_eq!(images.iter().map(|image| image.id.as_str()).collect::<Vec<_>>(), ["c", "a", "b"]);
    }
}
