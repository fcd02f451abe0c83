//! A registry with one image on the loopback device of the node's network namespace: `registry.example` for the tools
//! of the node.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::archive::{self, ImageSpec};
use crate::support::store::succeed;

const OCI: &str = "application/vnd.oci.image";

/// Serves `image` until this process ends; returns the address.
pub fn serve(image: &ImageSpec, work: &Path) -> String {
    let blobs = work.join("registry");
    fs::create_dir(&blobs).expect("a directory");
    let archive = blobs.join("archive");
    archive::write(&archive, std::slice::from_ref(image)).expect("an archive");
    succeed(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&blobs));
    let manifest = manifest(&blobs);
    succeed(Command::new("busybox").args(["ip", "link", "set", "lo", "up"]));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address").to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            // A client that hangs up has what it needs.
            let _ = stream.and_then(|stream| answer(stream, &manifest, &blobs));
        }
    });
    address
}

/// Returns the manifest of the image in a docker archive, whose files are named by their digests.
fn manifest(blobs: &Path) -> Vec<u8> {
    let read = fs::read(blobs.join("manifest.json")).expect("a manifest");
    let archive: Value = serde_json::from_slice(&read).expect("a manifest");
    fn descriptor(blobs: &Path, kind: &str, file: &Value) -> Value {
        let name = file.as_str().expect("a name");
        let size = fs::metadata(blobs.join(name)).expect("a file").len();
        let hex = name.split('.').next().expect("a digest");
        json!({"mediaType": format!("{OCI}.{kind}"), "digest": format!("sha256:{hex}"), "size": size})
    }
    let layers = archive[0]["Layers"].as_array().expect("layers");
    let layers: Vec<Value> = layers.iter().map(|file| descriptor(blobs, "layer.v1.tar", file)).collect();
    let config = descriptor(blobs, "config.v1+json", &archive[0]["Config"]);
    let kind = format!("{OCI}.manifest.v1+json");
    json!({"schemaVersion": 2, "mediaType": kind, "config": config, "layers": layers})
        .to_string()
        .into_bytes()
}

fn answer(mut stream: TcpStream, manifest: &[u8], blobs: &Path) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let mut words = request.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    // containerd adds `?ns=registry.example` to requests to a mirror.
    let path = path.split('?').next().unwrap_or_default();
    let hex = path.rsplit_once("/blobs/sha256:").map(|(_, hex)| hex);
    let blob: Option<PathBuf> = hex.and_then(|hex| {
        ["tar", "json"]
            .map(|kind| blobs.join(hex).with_extension(kind))
            .into_iter()
            .find(|file| file.exists())
    });
    let (status, kind, body) = match blob {
        Some(file) => ("200 OK", "application/octet-stream".to_owned(), fs::read(file)?),
        None if path.contains("/manifests/") => {
            ("200 OK", format!("{OCI}.manifest.v1+json"), manifest.to_vec())
        }
        None if path == "/v2/" => ("200 OK", "application/json".to_owned(), b"{}".to_vec()),
        None => ("404 Not Found", "text/plain".to_owned(), Vec::new()),
    };
    let digest: String = Sha256::digest(&body).iter().map(|byte| format!("{byte:02x}")).collect();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\
         Docker-Content-Digest: sha256:{digest}\r\nConnection: close\r\n\r\n",
        body.len()
    )?;
    if method != "HEAD" {
        stream.write_all(&body)?;
    }
    Ok(())
}
