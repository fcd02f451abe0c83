//! The speed of a scan of a generated graphroot, compared with a floor and with other programs.
//! `cargo bench --bench scan` as root; see [`settings::Settings`] for the environment variables.
//!
//! The program starts itself again for the parts that need a separate process:
//! `generate DIR INODES SEED`, `many DIR SEED`, `floor THREADS DIR`, `measure DIR`. `shared` runs the last part alone.

#![allow(clippy::print_stdout, clippy::print_stderr)] // a program for people

mod floor;
mod generate;
mod image;
mod many;
mod measure;
mod process;
mod programs;
mod random;
mod records;
mod rounds;
mod settings;
mod shared;
mod table;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[&str]) -> Result<()> {
    match *arguments {
        [] => compare(),
        ["generate", dir, inodes, seed] => {
            generate::graphroot(Path::new(dir), inodes.parse()?, seed.parse()?)
        }
        ["floor", threads, dir] => floor::walk(Path::new(dir), threads.parse()?),
        ["shared"] => shared::compare(&settings::Settings::from_environment()?),
        ["many", dir, seed] => many::generate(Path::new(dir), seed.parse()?),
        ["measure", dir] => {
            measure::graphroot(Path::new(dir));
            Ok(())
        }
        _ => bail!("unknown arguments: {arguments:?}"),
    }
}

fn compare() -> Result<()> {
    let settings = settings::Settings::from_environment()?;
    if !nix::unistd::geteuid().is_root() {
        bail!("the benchmark mounts a filesystem: run it as root");
    }
    let image = image::Image::mount(&settings).context("preparing the graphroot")?;
    // The state of the first run is used by the others.
    let state_dir = settings.state_dir()?;
    let (programs, missing) = programs::all(&state_dir, image.graphroot());
    println!("{} with {} inodes, seed {}\n", settings.fs, settings.inodes, settings.seed);
    for program in &programs {
        println!("{:<12} {}", program.name, program.line());
    }
    for name in &missing {
        println!("{name:<12} MISSING: benches/peers.sh installs it");
    }
    let results = rounds::run(&settings, &image, &programs)?;
    table::print(&results, &missing);
    table::save(&settings, &results)?;
    many::compare(&settings)?;
    shared::compare(&settings)
}
