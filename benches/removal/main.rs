//! The cost of a deletion through CRI besides the deletion itself: one `gc` run over 24 of 168 images on a real CRI-O
//! and a real containerd, compared with single `crictl rmi` calls for as many images.
//! `cargo bench --bench removal` as root. Without `crictl`, the calls are made here: RemoveImage for each image on one
//! connection, without a process for each.

#![allow(clippy::print_stdout, clippy::print_stderr)] // a program for people

mod crio;
#[path = "../../tests/support/mod.rs"]
#[allow(dead_code, unused_imports, clippy::unwrap_used)] // the tests use the rest, and print
mod support;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use crio::CrioNode;
use layersweep::cri::{Client, Endpoint, Options};
use support::containerd_node::{ContainerdNode, full, image};
use support::loopfs::{Fs, MIB};
use support::past;
use support::program::Run;

const IMAGES: usize = 168;
const REMOVED: usize = 24;

/// The limit for a run, scan and plan included, beside `crictl`: this factor of its time.
const OF_CRICTL: f64 = 1.0;
/// The limit for a run without scan and plan, beside bare requests: this factor of their time, and this time more for
/// each image.
const OF_REQUESTS: f64 = 1.2;
const EACH: Duration = Duration::from_millis(10);

fn main() -> ExitCode {
    match compare() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn name(number: usize) -> String {
    format!("image-{number}")
}

fn compare() -> Result<()> {
    let images: Vec<_> = (0..IMAGES).map(|number| image(&[&name(number)], &name(number), 0)).collect();
    match CrioNode::new(&images)? {
        Some(node) => {
            compare_on("CRI-O", &node.socket(), &node.state(), &|words| node.run(words))?;
        }
        None => println!("removal: crio or one of its programs is not in PATH; not measured on CRI-O"),
    }
    match ContainerdNode::new(Fs::Ext4, 1024 * MIB, &images) {
        Some(node) => compare_on("containerd", &node.rig.socket(), &node.state, &|words| node.run(words)),
        None => {
            println!("removal: containerd or mkfs.ext4 is missing; not measured on containerd");
            Ok(())
        }
    }
}

fn compare_on(runtime: &str, socket: &Path, state: &Path, run: &dyn Fn(&[&str]) -> Run) -> Result<()> {
    run(&["scan", "-q"]).expect_code(0);
    (0..REMOVED).for_each(|number| past::set_first_detected(state, &full(&name(number)), 30));
    let gc = ["gc", "--only", "images", "--max-age", "20d", "--high", "99", "--low", "98"];
    // Scan and plan, without the deletions.
    let started = Instant::now();
    run(&[&gc[..], &["--dry-run", "-q"]].concat()).expect_code(0);
    let planned = started.elapsed();
    let started = Instant::now();
    let document = run(&[&gc[..], &["-y", "--format", "json"]].concat()).expect_code(0).json();
    let whole = started.elapsed();
    let deleted = document["deleted"].as_array().map_or(0, Vec::len);
    anyhow::ensure!(deleted == REMOVED, "gc deleted {deleted} of {REMOVED} images");

    let others: Vec<_> = (REMOVED..2 * REMOVED).map(|number| full(&name(number))).collect();
    let client = Client::connect(Endpoint::at(socket)?, Options::default())?;
    let listed = client.images()?;
    let ids: Vec<_> = others
        .iter()
        .filter_map(|name| listed.iter().find(|image| image.tags.contains(name)).map(|image| &image.id))
        .cloned()
        .collect();
    anyhow::ensure!(ids.len() == REMOVED, "the runtime lists {} of {REMOVED} images", ids.len());
    let socket = format!("unix://{}", socket.display());
    let deletion_time = whole.saturating_sub(planned);
    let (peer, took, compared, allowed) = match crictl(&socket, &ids) {
        Some(took) => {
            let took = took?;
            ("crictl rmi one by one", took, whole, took.mul_f64(OF_CRICTL))
        }
        None => {
            let took = one_by_one(&client, &ids)?;
            let more = EACH * u32::try_from(REMOVED).unwrap_or(u32::MAX);
            ("RemoveImage one by one", took, deletion_time, took.mul_f64(OF_REQUESTS) + more)
        }
    };
    println!("\n{REMOVED} of {IMAGES} images on {runtime}, milliseconds");
    for (what, time) in [
        ("gc, scan and plan aside", deletion_time),
        ("gc, the whole run", whole),
        (peer, took),
        ("gc, allowed", allowed),
    ] {
        println!("{what:<40} {:>8.0}", millis(time));
    }
    println!(
        "{:<40} {:>8.2}",
        "ratio, scan and plan aside",
        deletion_time.as_secs_f64() / took.as_secs_f64()
    );
    println!("{:<40} {:>8.2}", "ratio, the whole run", whole.as_secs_f64() / took.as_secs_f64());
    println!("{}", if compared <= allowed { "met" } else { "MISSED" });
    Ok(())
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Removes the images with `crictl`; `None` without `crictl`.
fn crictl(socket: &str, ids: &[String]) -> Option<Result<Duration>> {
    Command::new("crictl").arg("--version").output().ok()?;
    let started = Instant::now();
    Some(
        ids.iter()
            .try_for_each(|id: &String| -> Result<()> {
                let ended =
                    Command::new("crictl").args(["--runtime-endpoint", socket, "rmi", id]).output()?;
                anyhow::ensure!(
                    ended.status.success(),
                    "crictl rmi: {}",
                    String::from_utf8_lossy(&ended.stderr)
                );
                Ok(())
            })
            .map(|()| started.elapsed()),
    )
}

fn one_by_one(client: &Client, ids: &[String]) -> Result<Duration> {
    let started = Instant::now();
    for id in ids {
        client.remove_image(id, "").with_context(|| format!("removing {id}"))?;
    }
    Ok(started.elapsed())
}
