//! The records of a containers/storage graphroot: its layers and images.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::Result;
use base64::Engine as _;
use serde_json::{Value, json};

use crate::random::Random;

/// The number of images. Each has some unshared layers above a layer of an earlier image; the bases have only unshared
/// ones.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub images: usize,
    pub own_layers: usize,
    pub bases: usize,
}

/// A large node.
pub const LARGE: Shape = Shape { images: 60, own_layers: 5, bases: 6 };
/// More than on any node; images have 60 layers on average.
pub const MANY: Shape = Shape { images: 10_000, own_layers: 10, bases: 500 };

const CREATED: &str = "2026-01-02T03:04:05.678901234Z";

/// A layer to make.
#[derive(Debug)]
pub struct Layer {
    pub id: String,
    /// Its name in `overlay/l`.
    pub link: String,
    /// Position of its parent.
    pub parent: Option<usize>,
    pub diff_digest: String,
    /// The lowest unshared layer of its image: bigger than the others.
    pub first_of_image: bool,
}

/// An image to make; its chain is that of its top layer.
#[derive(Debug)]
pub struct Image {
    pub id: String,
    pub digest: String,
    pub top: usize,
}

/// The content of the records.
#[derive(Debug)]
pub struct Plan {
    pub layers: Vec<Layer>,
    pub images: Vec<Image>,
}

impl Plan {
    pub fn new(random: &mut Random, shape: Shape) -> Self {
        let mut plan = Self { layers: Vec::new(), images: Vec::new() };
        for image in 0..shape.images {
            let mut parent = (image >= shape.bases)
                .then(|| usize::try_from(random.below(plan.layers.len() as u64)).unwrap_or_default());
            for number in 0..shape.own_layers {
                plan.layers.push(Layer {
                    id: random.hex64(),
                    link: link_name(random),
                    parent,
                    diff_digest: format!("sha256:{}", random.hex64()),
                    first_of_image: number == 0,
                });
                parent = Some(plan.layers.len() - 1);
            }
            let top = plan.layers.len() - 1;
            let (id, digest) = (random.hex64(), format!("sha256:{}", random.hex64()));
            plan.images.push(Image { id, digest, top });
        }
        plan
    }

    /// Layer positions from `position` down to its base.
    pub fn chain(&self, position: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(position), |&position| self.layers[position].parent)
    }

    /// Makes a layer's directory below `graphroot`, with an empty `diff`.
    pub fn make_directory(&self, graphroot: &Path, layer: &Layer) -> Result<()> {
        let dir = graphroot.join("overlay").join(&layer.id);
        fs::create_dir_all(dir.join("diff"))?;
        fs::create_dir(dir.join("work"))?;
        fs::write(dir.join("link"), &layer.link)?;
        symlink(format!("../{}/diff", layer.id), graphroot.join("overlay/l").join(&layer.link))?;
        if let Some(parent) = layer.parent {
            let lower: Vec<String> =
                self.chain(parent).map(|position| format!("l/{}", self.layers[position].link)).collect();
            fs::write(dir.join("lower"), lower.join(":"))?;
        } else {
            fs::create_dir(dir.join("empty"))?;
        }
        Ok(())
    }

    /// Writes all record files below `graphroot`.
    pub fn write(&self, graphroot: &Path, random: &mut Random) -> Result<()> {
        let layers = graphroot.join("overlay-layers");
        let images = graphroot.join("overlay-images");
        let containers = graphroot.join("overlay-containers");
        for dir in [&layers, &images, &containers] {
            fs::create_dir(dir)?;
        }
        for lock in [
            graphroot.join("storage.lock"),
            layers.join("layers.lock"),
            images.join("images.lock"),
            containers.join("containers.lock"),
        ] {
            fs::write(lock, "")?;
        }
        let records: Vec<Value> = self.layers.iter().map(|layer| self.layer(layer, random)).collect();
        fs::write(layers.join("layers.json"), serde_json::to_vec(&records)?)?;
        for layer in &self.layers {
            fs::write(layers.join(format!("{}.tar-split.gz", layer.id)), EMPTY_GZIP)?;
        }
        let records: Vec<Value> = self
            .images
            .iter()
            .enumerate()
            .map(|(number, image)| self.image(number, image, &images))
            .collect::<Result<_>>()?;
        fs::write(images.join("images.json"), serde_json::to_vec(&records)?)?;
        fs::write(containers.join("containers.json"), "[]")?;
        Ok(())
    }

    fn layer(&self, layer: &Layer, random: &mut Random) -> Value {
        let size = random.between(1_000_000, 90_000_000);
        let mut record = json!({
            "id": layer.id,
            "created": CREATED,
            "compressed-diff-digest": format!("sha256:{}", random.hex64()),
            "compressed-size": size / 3,
            "diff-digest": layer.diff_digest,
            "diff-size": size,
            "compression": 2,
        });
        if let Some(parent) = layer.parent {
            record["parent"] = json!(self.layers[parent].id);
        }
        record
    }

    fn image(&self, number: usize, image: &Image, images: &Path) -> Result<Value> {
        let chain: Vec<usize> = self.chain(image.top).collect();
        let diff_ids: Vec<&String> =
            chain.iter().rev().map(|&layer| &self.layers[layer].diff_digest).collect();
        let config = json!({
            "architecture": "amd64",
            "os": "linux",
            "created": CREATED,
            "config": {"Cmd": ["/bin/sh"]},
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        let config = serde_json::to_vec(&config)?;
        let layers: Vec<Value> = diff_ids
            .iter()
            .map(|digest| {
                json!({"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip",
                "digest": digest, "size": 1})
            })
            .collect();
        let config_digest = format!("sha256:{}", image.id);
        let manifest = serde_json::to_vec(&json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json",
                "digest": config_digest, "size": config.len()},
            "layers": layers,
        }))?;
        let dir = images.join(&image.id);
        fs::create_dir(&dir)?;
        let by_digest = format!("manifest-{}", image.digest);
        let big = [("manifest", &manifest), (&by_digest, &manifest), (&config_digest, &config)];
        let (mut sizes, mut digests) = (json!({}), json!({}));
        for (key, data) in big {
            fs::write(dir.join(big_data_name(key)), data)?;
            sizes[key] = json!(data.len());
            digests[key] = json!(if key == config_digest { &config_digest } else { &image.digest });
        }
        Ok(json!({
            "id": image.id,
            "digest": image.digest,
            "names": [format!("registry.example/bench/image-{number}:1.0")],
            "layer": self.layers[image.top].id,
            "metadata": "{}",
            "big-data-names": big.map(|(key, _)| key),
            "big-data-sizes": sizes,
            "big-data-digests": digests,
            "created": CREATED,
        }))
    }
}

/// Returns the file name that containers/storage gives to a piece of big data.
fn big_data_name(key: &str) -> String {
    if key.bytes().all(|byte| matches!(byte, b'.' | b'0'..=b'9' | b'a'..=b'z')) {
        return key.to_owned();
    }
    format!("={}", base64::engine::general_purpose::STANDARD.encode(key))
}

fn link_name(random: &mut Random) -> String {
    const DIGITS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    (0..26).map(|_| char::from(DIGITS[usize::try_from(random.below(32)).unwrap_or(0)])).collect()
}

/// An empty gzip stream.
const EMPTY_GZIP: [u8; 20] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0];
