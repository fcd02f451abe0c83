//! Writes a docker-archive with many images that share layers, the same bytes every time, so that
//! one `podman load` creates a store of any size and shape.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

/// Content of one layer. Sizes are apparent sizes of files, in bytes.
#[derive(Clone, Debug, Default)]
pub struct LayerSpec {
    /// Name of the layer; layers with the same name are the same layer.
    pub name: String,
    /// Files of 0 to 2 KiB, 40 to a directory.
    pub small_files: u32,
    /// Sizes of files with random content.
    pub files: Vec<u64>,
    /// Sizes of files that repeat one byte: for tests in which the content does not matter and random content
    /// would take too long.
    pub plain: Vec<u64>,
    /// Further names (hard links) of the first small file.
    pub hard_links: u32,
    /// Symbolic links; the target of every tenth is too long for its inode.
    pub symlinks: u32,
    /// Paths below the root that this layer hides; a trailing slash hides the content of a directory (opaque
    /// directory).
    pub whiteouts: Vec<String>,
    /// Programs of this machine that are copied to `/bin`, for images that are run.
    pub programs: Vec<PathBuf>,
    /// Seconds that its top directory is younger: layers that differ in nothing else have other ids.
    pub younger: u64,
    /// Further entries of the tar, as they are.
    pub entries: Vec<TarEntry>,
}

/// Entry of a layer's tar.
#[derive(Clone, Debug)]
pub enum TarEntry {
    Directory(String),
    File(String, Vec<u8>),
    /// Hard link: name, and the name that exists.
    Link(String, String),
    Symlink(String),
}

impl LayerSpec {
    /// Returns a layer that contains only one directory.
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), ..Self::default() }
    }
}

/// Names and layers of one image.
#[derive(Clone, Debug)]
pub struct ImageSpec {
    /// Full references with tags.
    pub names: Vec<String>,
    /// Layers, base first.
    pub layers: Vec<LayerSpec>,
    /// Label in the configuration, so that two images with the same layers have different ids.
    pub label: String,
}

/// Writes all of `images` to one archive for `podman load` and `ctr images import`.
pub fn write(path: &Path, images: &[ImageSpec]) -> std::io::Result<()> {
    write_running(path, images, &["/bin/sh"])
}

/// Writes all of `images` to one archive; their containers run `command`.
pub fn write_running(path: &Path, images: &[ImageSpec], command: &[&str]) -> std::io::Result<()> {
    let mut archive = Builder::new(std::io::BufWriter::new(File::create(path)?));
    let mut diff_ids: HashMap<String, String> = HashMap::new();
    let mut manifest = Vec::new();
    for image in images {
        let mut ids = Vec::new();
        for layer in &image.layers {
            if !diff_ids.contains_key(&layer.name) {
                let bytes = layer_tar(layer)?;
                let id = hex_digest(&bytes);
                append(&mut archive, &format!("{id}.tar"), &bytes)?;
                diff_ids.insert(layer.name.clone(), id);
            }
            ids.push(diff_ids[&layer.name].clone());
        }
        let config = config(image, &ids, command).to_string().into_bytes();
        let name = format!("{}.json", hex_digest(&config));
        append(&mut archive, &name, &config)?;
        let layers: Vec<String> = ids.iter().map(|id| format!("{id}.tar")).collect();
        manifest.push(json!({"Config": name, "RepoTags": image.names, "Layers": layers}));
    }
    let manifest = Value::Array(manifest).to_string();
    append(&mut archive, "manifest.json", manifest.as_bytes())?;
    archive.into_inner()?.flush()
}

/// A tree of 67 images over 4 bases with 100 layers: about 15,000 inodes and 120 MiB. It contains every kind of
/// sharing: bases below all their descendants, images that are the parent of others, images with the same layers
/// and different ids, and an image with two names.
pub fn forest() -> Vec<ImageSpec> {
    let mut images = Vec::new();
    let mut add = |name: &str, layers: &[LayerSpec]| {
        images.push(ImageSpec {
            names: vec![format!("localhost/forest/{name}:1")],
            layers: layers.to_vec(),
            label: name.to_owned(),
        });
    };
    for b in 0..4_u32 {
        let base = LayerSpec {
            small_files: 1500 - b * 200,
            files: vec![2_500_000 + u64::from(b) * 1_234_567, 700_001],
            hard_links: 40,
            symlinks: 120,
            ..LayerSpec::new(&format!("base-{b}"))
        };
        add(&format!("base-{b}"), std::slice::from_ref(&base));
        for r in 0..3_u32 {
            let runtime = LayerSpec {
                small_files: 250 + r * 50,
                files: vec![1_500_000 + u64::from(r) * 300_007],
                hard_links: 3,
                symlinks: 20,
                whiteouts: vec![format!("base-{b}/d0/f1"), format!("base-{b}/d2/")],
                ..LayerSpec::new(&format!("runtime-{b}-{r}"))
            };
            let chain = [base.clone(), runtime];
            add(&format!("runtime-{b}-{r}"), &chain);
            for a in 0..3_u32 {
                let app = format!("app-{b}-{r}-{a}");
                let chain = app_chain(&chain, &app, b, a);
                add(&app, &chain);
                if a == 0 {
                    let patch = LayerSpec {
                        small_files: 30,
                        files: vec![90_000],
                        whiteouts: vec![format!("{app}/d0/f3")],
                        ..LayerSpec::new(&format!("{app}-patch"))
                    };
                    let patched: Vec<_> = chain.iter().cloned().chain([patch]).collect();
                    add(&format!("{app}-v2"), &patched);
                }
            }
        }
    }
    for (n, twin) in [("twin", 5), ("triplet", 5), ("base-twin", 0)] {
        let layers = images[twin].layers.clone();
        images.push(ImageSpec {
            names: vec![format!("localhost/forest/{n}:1")],
            layers,
            label: n.to_owned(),
        });
    }
    images[7].names.push("localhost/forest/second-name:1".into());
    images
}

/// Returns `below` and two more layers, as the build of an application adds them.
fn app_chain(below: &[LayerSpec], app: &str, b: u32, a: u32) -> Vec<LayerSpec> {
    let dependencies = LayerSpec {
        small_files: 40 + 60 * a,
        files: vec![u64::from(b) * 50_000, 300_000],
        symlinks: 5,
        ..LayerSpec::new(&format!("{app}-deps"))
    };
    let code = LayerSpec {
        small_files: 12,
        files: vec![40_000 + u64::from(a) * 333_333, 65_536],
        hard_links: a,
        ..LayerSpec::new(app)
    };
    below.iter().cloned().chain([dependencies, code]).collect()
}

fn config(image: &ImageSpec, diff_ids: &[String], command: &[&str]) -> Value {
    let diff_ids: Vec<String> = diff_ids.iter().map(|id| format!("sha256:{id}")).collect();
    json!({
        "architecture": "amd64",
        "os": "linux",
        "created": "2024-03-01T12:00:00Z",
        "config": {"Cmd": command, "Labels": {"label": image.label}},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
        "history": diff_ids.iter().map(|id| json!({
            "created": "2024-03-01T12:00:00Z",
            "created_by": format!("layer {id}"),
        })).collect::<Vec<_>>(),
    })
}

fn layer_tar(spec: &LayerSpec) -> std::io::Result<Vec<u8>> {
    let mut tar = Builder::new(Vec::new());
    let mut noise = Noise::new(&spec.name);
    let top = &spec.name;
    directory(&mut tar, top, spec.younger)?;
    for n in 0..spec.small_files {
        if n % 40 == 0 {
            directory(&mut tar, &format!("{top}/d{}", n / 40), 0)?;
        }
        // One in sixteen is empty; the others are as small as configuration files and headers.
        let length = if n % 16 == 9 { 0 } else { noise.below(2048) };
        append(&mut tar, &format!("{top}/d{}/f{n}", n / 40), &noise.bytes(length))?;
    }
    for (n, &length) in spec.files.iter().enumerate() {
        append(&mut tar, &format!("{top}/big{n}"), &noise.bytes(length))?;
    }
    for (n, &length) in spec.plain.iter().enumerate() {
        let length = usize::try_from(length).expect("a file that fits in memory");
        append(&mut tar, &format!("{top}/plain{n}"), &vec![0x6c; length])?;
    }
    for n in 0..spec.hard_links {
        let mut header = header(EntryType::Link, 0, 0o644);
        tar.append_link(&mut header, format!("{top}/hard{n}"), format!("{top}/d0/f0"))?;
    }
    for n in 0..spec.symlinks {
        let mut header = header(EntryType::Symlink, 0, 0o777);
        let target = if n % 10 == 3 { format!("d0/{}f0", "./".repeat(40)) } else { "d0/f0".into() };
        tar.append_link(&mut header, format!("{top}/soft{n}"), target)?;
    }
    for program in &spec.programs {
        let bytes = std::fs::read(program)?;
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        let mut header = header(EntryType::Regular, bytes.len() as u64, 0o755);
        tar.append_data(&mut header, format!("bin/{name}"), &bytes[..])?;
    }
    for path in &spec.whiteouts {
        append(&mut tar, &whiteout(path), &[])?;
    }
    for entry in &spec.entries {
        match entry {
            TarEntry::Directory(path) => directory(&mut tar, path, 0)?,
            TarEntry::File(path, content) => append(&mut tar, path, content)?,
            TarEntry::Link(path, target) => {
                tar.append_link(&mut header(EntryType::Link, 0, 0o644), path, target)?;
            }
            TarEntry::Symlink(path) => {
                tar.append_link(&mut header(EntryType::Symlink, 0, 0o777), path, "nowhere")?;
            }
        }
    }
    tar.into_inner()
}

/// Returns the name that marks `path` as deleted in a layer's tar (OCI image layer specification).
fn whiteout(path: &str) -> String {
    if let Some(directory) = path.strip_suffix('/') {
        return format!("{directory}/.wh..wh..opq");
    }
    match path.rsplit_once('/') {
        Some((directory, name)) => format!("{directory}/.wh.{name}"),
        None => format!(".wh.{path}"),
    }
}

/// Seconds since 1970.
const MODIFIED: u64 = 1_700_000_000;

fn header(kind: EntryType, size: u64, mode: u32) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(mode);
    header.set_mtime(MODIFIED);
    header.set_uid(0);
    header.set_gid(0);
    header
}

fn directory(tar: &mut Builder<Vec<u8>>, path: &str, younger: u64) -> std::io::Result<()> {
    let mut header = header(EntryType::Directory, 0, 0o755);
    header.set_mtime(MODIFIED + younger);
    tar.append_data(&mut header, format!("{path}/"), std::io::empty())
}

fn append<W: Write>(tar: &mut Builder<W>, path: &str, bytes: &[u8]) -> std::io::Result<()> {
    let mut header = header(EntryType::Regular, bytes.len() as u64, 0o644);
    tar.append_data(&mut header, path, bytes)
}

fn hex_digest(bytes: &[u8]) -> String {
    use std::fmt::Write;
    Sha256::digest(bytes).iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("writing to a string");
        hex
    })
}

/// Length after which the noise repeats: longer than the window in which gzip looks for repetitions.
const PERIOD: usize = 1 << 16;

/// Repeatable bytes that do not compress (splitmix64).
pub struct Noise(u64);

impl Noise {
    /// The same seed gives the same bytes.
    pub fn new(seed: &str) -> Self {
        // FNV-1a.
        Self(seed.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        }))
    }

    /// Returns the next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    /// Returns `length` bytes.
    pub fn bytes(&mut self, length: u64) -> Vec<u8> {
        let length = usize::try_from(length).expect("a file that fits in memory");
        let mut bytes = Vec::with_capacity(length + 8);
        while bytes.len() < length.min(PERIOD) {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        // Without optimisation, generating megabytes number by number takes seconds.
        while bytes.len() < length {
            bytes.extend_from_within(..PERIOD.min(length - bytes.len()));
        }
        bytes.truncate(length);
        bytes
    }
}
