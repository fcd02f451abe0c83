//! Planning for a big node, and replay of a generated fleet: time and memory, and what the policies cost by the skew of
//! re-use.
//!
//! `cargo bench --bench replay -- [NODES] [DAYS] [IMAGES]` writes the traces to a temporary file and runs the program on
//! it. `cargo bench --bench replay -- write NODES [DAYS] [IMAGES] [SIGMA]` prints the traces instead.

#![allow(clippy::print_stdout, clippy::unwrap_used)] // a bench talks to its reader

#[path = "../scan/process.rs"]
#[allow(dead_code)] // the other bench uses the rest
mod process;
#[path = "../../tests/support/traces.rs"]
mod traces;

use std::collections::HashSet;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use jiff::{SignedDuration, Timestamp};
use layersweep::model::OriginKind;
use layersweep::model::documents::trace::{ArrivalEvent, ArrivedLayer, Trace, TraceEvent, UseEvent};
use layersweep::policy::input::{DeletionOrder, Policy};
use layersweep::policy::replay::{self, Collector};
use layersweep::policy::space::Thresholds;
use traces::{TraceShape, generated, lines};

const SIGMAS: [f64; 3] = [0.5, 1.0, 1.5];

fn main() {
    // Cargo adds its own flag.
    let mut words: Vec<_> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let writes = words.first().is_some_and(|word| word == "write");
    if writes {
        words.remove(0);
    }
    let nodes = words.first().map_or(200, |word| word.parse().expect("a number of nodes"));
    let shape = TraceShape {
        days: words.get(1).map_or(30, |word| word.parse().expect("a number of days")),
        images: words.get(2).map_or(100, |word| word.parse().expect("a number of images")),
        sigma: words.get(3).map_or(1.0, |word| word.parse().expect("a standard deviation")),
        seed: 0,
    };
    if writes {
        write(&mut BufWriter::new(std::io::stdout().lock()), nodes, shape);
        return;
    }
    for sigma in SIGMAS {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        write(&mut BufWriter::new(&mut file), nodes, TraceShape { sigma, ..shape });
        let mib = file.as_file().metadata().unwrap().len() >> 20;
        println!("sigma {sigma}: {nodes} nodes, {} days, {} images, {mib} MiB", shape.days, shape.images);
        let output = tempfile::NamedTempFile::new().unwrap();
        let run = process::run_into(&mut replay(file.path()), output.reopen().unwrap().into()).unwrap();
        println!("{}", std::fs::read_to_string(output.path()).unwrap());
        println!("{:.1} s, at most {} MiB\n", run.wall.as_secs_f64(), run.peak >> 20);
    }
    // Last: a program that is started from a large one is counted as large.
    plan_big_node();
}

/// Plans one run for 10,000 images over 100,000 layers, with each order, in this process.
fn plan_big_node() {
    const IMAGES: usize = 10_000;
    let begin = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(24 * 20_000);
    let trace = big_node(IMAGES, begin);
    println!("one run for {IMAGES} images over 100,000 layers, from 100 % to 60 %:");
    let mut first = None;
    for order in DeletionOrder::ALL {
        let mut policy = Policy { order: *order, ..Policy::default() };
        policy.targets.used = Some(Thresholds { high: 75, low: 60 });
        let period = SignedDuration::from_hours(1);
        // Without a run: what it takes to build the node.
        let start = Instant::now();
        let _ = replay::replay(&trace, Collector::Exact(&policy), period * 3, None);
        let built = start.elapsed();
        let start = Instant::now();
        let replayed = replay::replay(&trace, Collector::Exact(&policy), period, None);
        let seconds = start.elapsed().saturating_sub(built).as_secs_f64();
        let ratio = seconds / *first.get_or_insert(seconds);
        println!(
            "{:<9} {seconds:>6.2} s  {ratio:>5.2}  {:>6} deletions",
            order.as_str(),
            replayed.deletions.len()
        );
    }
}

/// Returns a node whose disk is full of unused images: each has eight layers of its own, and two that it shares.
fn big_node(images: usize, begin: Timestamp) -> Trace {
    let layer = |id: String, bytes: u64| ArrivedLayer { id, bytes, compressed_bytes: Some(bytes / 3) };
    let mut events = Vec::new();
    for image in 0..images {
        let (base, runtime) = (image % 50, image % 1_000);
        let shared = [layer(format!("base-{base}"), 80 << 20), layer(format!("runtime-{runtime}"), 30 << 20)];
        let own = (0..8_u64).map(|part| {
            let bytes = 1 << (12 + (image as u64 * 7 + part * 5) % 13);
            layer(format!("own-{image}-{part}"), bytes)
        });
        let time = begin - SignedDuration::from_hours(24 + i64::try_from(image % 1_000).unwrap());
        events.push(TraceEvent::Arrival(ArrivalEvent {
            time,
            image: format!("{image:064x}"),
            names: vec![format!("registry.example/team/app-{image}:1")],
            origin: OriginKind::Pulled,
            pinned: false,
            layers: shared.into_iter().chain(own).collect(),
        }));
        for number in 0..[0, 1, 1, 3, 9, 20][image % 6] {
            let time = time + SignedDuration::from_mins(number);
            let until = Some(time + SignedDuration::from_secs(30));
            events.push(TraceEvent::Use(UseEvent { time, until, image: format!("{image:064x}") }));
        }
    }
    events.sort_by_key(TraceEvent::time);
    let mut seen = HashSet::new();
    let stored = events.iter().filter_map(|event| match event {
        TraceEvent::Arrival(arrival) => Some(&arrival.layers),
        _ => None,
    });
    let capacity_bytes =
        stored.flatten().filter(|layer| seen.insert(layer.id.clone())).map(|layer| layer.bytes).sum();
    let header = traces::header(begin, begin + SignedDuration::from_mins(90), capacity_bytes);
    Trace::read(lines(&header, &events).as_bytes()).unwrap()
}

fn write(to: &mut dyn Write, nodes: u64, shape: TraceShape) {
    for seed in 0..nodes {
        let (header, events) = generated(TraceShape { seed, ..shape });
        to.write_all(lines(&header, &events).as_bytes()).unwrap();
    }
}

fn replay(traces: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_layersweep"));
    command.arg("replay").arg(traces);
    command
}
