//! Replay of a generated fleet: time and memory, and what the policies cost by the skew of re-use.
//!
//! `cargo bench --bench replay -- [NODES] [DAYS] [IMAGES]` writes the traces to a temporary file and runs the program on
//! it. `cargo bench --bench replay -- write NODES [DAYS] [IMAGES] [SIGMA]` prints the traces instead.

#![allow(clippy::print_stdout, clippy::unwrap_used)] // a bench talks to its reader

#[path = "../scan/process.rs"]
#[allow(dead_code)] // the other bench uses the rest
mod process;
#[path = "../../tests/support/traces.rs"]
mod traces;

use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::Command;

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
        let run = process::run(&mut replay(file.path())).unwrap();
        // Once more, since the output of a measured run is not kept.
        println!("{}", String::from_utf8_lossy(&replay(file.path()).output().unwrap().stdout));
        println!("{:.1} s, at most {} MiB\n", run.wall.as_secs_f64(), run.peak >> 20);
    }
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
