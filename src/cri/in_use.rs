//! Resolves which images a container uses, from the runtime's listings. Pure.
//!
//! Four fields of a container may name its image, and runtimes fill them differently:
//!
//! - `image_id` is filled by CRI-O from 1.30 and containerd from 2.3.0.
//! - `image_ref` is the image's id in containerd's listing, but a repo digest in older CRI-O (which made used images
//!   look unused, cri-o#7143) and in containerd's container status.
//! - `image.image` is the reference that the pod requested. Its tag may point to another image by now.
//! - `user_specified_image` is the name in the pod's specification.
//!
//! An id or a digest is certain. An image that only a name leads to also counts as used: a false match keeps an image
//! too long, but a missed one would delete an image that is in use.

use std::collections::{BTreeSet, HashMap};

use super::types::{RuntimeContainer, RuntimeImage};
use crate::model::text::reference::{bare_id, long_names};

/// Index of the images by every id, name and digest that a container can use for them.
#[derive(Debug, Default)]
pub struct ImageNames<'a> {
    by_id: HashMap<&'a str, Vec<usize>>,
    by_name: HashMap<&'a str, Vec<usize>>,
    /// By digest of the manifest, with any name before it.
    by_digest: HashMap<&'a str, Vec<usize>>,
}

/// The images that a container uses, as indices into the listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// The images, in order of the listing.
    pub images: BTreeSet<usize>,
    /// An id, or a name with a digest, led to at least one of the images. If `false`, the image that the container
    /// was created from may be missing here: it is no longer listed, or its tag has moved.
    pub certain: bool,
}

impl<'a> ImageNames<'a> {
    #[must_use]
    pub fn new(images: &'a [RuntimeImage]) -> Self {
        let mut names = Self::default();
        for (image_ix, image) in images.iter().enumerate() {
            names.by_id.entry(bare_id(&image.id)).or_default().push(image_ix);
            for name in image.tags.iter().chain(&image.digests).map(String::as_str) {
                names.by_name.entry(name).or_default().push(image_ix);
                if let Some((_, digest)) = name.split_once('@') {
                    names.by_digest.entry(digest).or_default().push(image_ix);
                }
            }
        }
        names
    }

    /// Returns the images that a reference means: an id, a name with a tag, or a name with a digest.
    #[must_use]
    pub fn find(&self, reference: &str) -> Use {
        if reference.is_empty() {
            return Use::default();
        }
        let by_id = self.by_id.get(bare_id(reference));
        let digest = reference.split_once('@').map(|(_, digest)| digest);
        let by_digest = digest.and_then(|digest| self.by_digest.get(digest));
        let certain = by_id.is_some() || by_digest.is_some();
        // By name, a short one also as a long one: `busybox` means `docker.io/library/busybox:latest`.
        let found = by_id
            .or(by_digest)
            .or_else(|| self.by_name.get(reference))
            .or_else(|| long_names(reference).into_iter().find_map(|name| self.by_name.get(name.as_str())));
        let images: BTreeSet<_> = found.into_iter().flatten().copied().collect();
        Use { certain, images }
    }

    #[must_use]
    pub fn used_by(&self, container: &RuntimeContainer) -> Use {
        let references =
            [&container.image_id, &container.image_ref, &container.image_asked, &container.user_image];
        let mut all = Use::default();
        for found in references.map(|reference| self.find(reference)) {
            all.images.extend(found.images);
            all.certain |= found.certain;
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Image 0: CRI-O's, image 1: containerd's, image 2: Docker's busybox.
    fn images() -> Vec<RuntimeImage> {
        [
            ("aaaa", "quay.io/app:1", "quay.io/app@sha256:d0"),
            ("sha256:bbbb", "reg.local/app:1", "reg.local/app@sha256:d1"),
            ("cccc", "docker.io/library/busybox:latest", "docker.io/library/busybox@sha256:d2"),
        ]
        .map(|(id, tag, digest)| RuntimeImage {
            id: id.into(),
            tags: vec![tag.into()],
            digests: vec![digest.into()],
            ..RuntimeImage::default()
        })
        .into()
    }

    fn container(id: &str, reference: &str, requested: &str) -> RuntimeContainer {
        RuntimeContainer {
            image_id: id.into(),
            image_ref: reference.into(),
            image_asked: requested.into(),
            ..RuntimeContainer::default()
        }
    }

    #[test]
    fn images_are_found_by_every_runtimes_fields() {
        let images = images();
        let names = ImageNames::new(&images);
        for (case, container, expected, certain) in [
            ("CRI-O 1.30", container("aaaa", "aaaa", "quay.io/app:1"), vec![0], true),
            (
                "CRI-O before: repo digest",
                container("", "quay.io/app@sha256:d0", "quay.io/app:1"),
                vec![0],
                true,
            ),
            ("repo digest under a name that is gone", container("", "x/y@sha256:d0", ""), vec![0], true),
            (
                "repo digest of an image that is gone",
                container("", "quay.io/app@sha256:d9", ""),
                vec![],
                false,
            ),
            ("containerd 1.6", container("", "sha256:bbbb", "reg.local/app:1"), vec![1], true),
            ("containerd 2.3", container("sha256:bbbb", "sha256:bbbb", "reg.local/app:1"), vec![1], true),
            ("asked for by id", container("", "", "sha256:aaaa"), vec![0], true),
            ("asked for by name only", container("", "", "reg.local/app:1"), vec![1], false),
            ("short name", container("", "", "busybox"), vec![2], false),
            (
                "user's name",
                RuntimeContainer { user_image: "busybox".into(), ..container("", "", "") },
                vec![2],
                false,
            ),
            ("the tag has moved: both stay", container("sha256:bbbb", "", "quay.io/app:1"), vec![0, 1], true),
            ("its image is gone", container("sha256:dddd", "sha256:dddd", "x:1"), vec![], false),
            ("its image is gone, the tag moved", container("eeee", "eeee", "quay.io/app:1"), vec![0], false),
            ("a prefix is no id", container("aaa", "", ""), vec![], false),
            ("nothing", container("", "", ""), vec![], false),
        ] {
            let expected = Use { images: expected.into_iter().collect(), certain };
            assert_eq!(names.used_by(&container), expected, "{case}");
        }
    }

    #[test]
    fn id_under_two_handlers_uses_both() {
        let mut images = images();
        images.push(RuntimeImage { runtime_handler: "kata".into(), ..images[0].clone() });
        let used = ImageNames::new(&images).used_by(&container("aaaa", "", ""));
        assert_eq!(used.images, BTreeSet::from([0, 3]));
    }
}
