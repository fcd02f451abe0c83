//! A store of 10,000 images over 100,000 layers: the time and memory of a rescan and of a dry run of `gc` over the
//! whole store.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::process::{self, Run};
use crate::random::Random;
use crate::records::{MANY, Plan};
use crate::settings::Settings;

const ROUNDS: usize = 3;

/// The limits for a rescan, and for the additional time of a dry run.
const RESCAN: Duration = Duration::from_secs(2);
const PLAN: Duration = Duration::from_secs(1);
const PEAK: u64 = 200 << 20;

/// Blocks of 1 KiB: nearly all files are tiny.
const MKFS: [&str; 10] =
    ["-q", "-F", "-b", "1024", "-N", "1500000", "-O", "large_dir,^has_journal", "-E", "lazy_itable_init=1"];

/// Fills the empty directory `graphroot` with the records and directories of the store.
pub fn generate(graphroot: &Path, seed: u64) -> Result<()> {
    let mut random = Random::new(seed);
    let plan = Plan::new(&mut random, MANY);
    fs::create_dir_all(graphroot.join("overlay/l"))?;
    plan.write(graphroot, &mut random)?;
    for layer in &plan.layers {
        plan.make_directory(graphroot, layer)?;
        fs::write(graphroot.join("overlay").join(&layer.id).join("diff/file"), "")?;
    }
    Ok(())
}

/// Makes the store if it does not exist, and prints the cost of its scans.
pub fn compare(settings: &Settings) -> Result<()> {
    let dir = settings.dir.canonicalize()?;
    let (file, mount) = (dir.join("many.img"), dir.join("many.mnt"));
    fs::create_dir_all(&mount)?;
    let _ = process::must(Command::new("umount").arg(&mount));
    if !file.exists() {
        let partial = file.with_extension("partial");
        fs::File::create(&partial)?.set_len(4 << 30)?;
        process::must(Command::new("mkfs.ext4").args(MKFS).arg(&partial))?;
        process::must(Command::new("mount").args(["-o", "loop"]).args([&partial, &mount]))?;
        let made = process::must(
            Command::new(std::env::current_exe()?)
                .arg("many")
                .arg(mount.join("storage"))
                .arg(settings.seed.to_string()),
        );
        process::must(Command::new("umount").arg(&mount))?;
        made?;
        fs::rename(&partial, &file)?;
    }
    process::must(Command::new("mount").args(["-o", "loop"]).args([&file, &mount]))?;
    let measured = measure(settings, &mount.join("storage"));
    process::must(Command::new("umount").arg(&mount))?;
    measured
}

fn measure(settings: &Settings, graphroot: &Path) -> Result<()> {
    let state = settings.dir.canonicalize()?.join("state-many");
    if state.exists() {
        #[allow(clippy::disallowed_methods)] // the benchmark's scratch directory
        fs::remove_dir_all(&state)?;
    }
    let run = |words: &[&str]| -> Result<Run> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_layersweep"));
        command.args(words).arg("--graphroot").arg(graphroot).arg("--state-dir").arg(&state);
        process::run(&mut command).context("the store of 10,000 images")
    };
    let scan = ["scan", "--format", "json"];
    let first = run(&scan)?;
    // Files that were written in the last minute are measured again.
    std::thread::sleep(Duration::from_secs(61));
    run(&scan)?;
    let gc = [
        "gc",
        "--dry-run",
        "--via",
        "direct",
        "--format",
        "json",
        "--only",
        "images",
        "--max-age",
        "1s",
        "--min-age",
        "0s",
    ];
    let rescan = best(&|| run(&scan))?;
    let plan = best(&|| run(&gc))?;
    println!("\n10,000 images over 100,000 layers: seconds (cpu), peak MiB; the best of {ROUNDS}");
    for (what, run) in [("first scan", first), ("rescan", rescan), ("gc --dry-run", plan)] {
        let (wall, cpu) = (run.wall.as_secs_f64(), run.cpu.as_secs_f64());
        println!("{what:<20} {wall:>7.2} ({cpu:>5.2}) {:>7}", run.peak >> 20);
    }
    let more = plan.wall.saturating_sub(rescan.wall);
    let peak = rescan.peak.max(plan.peak);
    for (what, is_met) in [
        ("rescan in 2 s", rescan.wall <= RESCAN),
        ("dry run 1 s more", more <= PLAN),
        ("200 MiB", peak <= PEAK),
    ] {
        println!("{what:<20} {}", if is_met { "met" } else { "MISSED" });
    }
    Ok(())
}

pub fn best(run: &dyn Fn() -> Result<Run>) -> Result<Run> {
    let runs = (0..ROUNDS).map(|_| run()).collect::<Result<Vec<_>>>()?;
    runs.into_iter().min_by_key(|run| run.wall).context("no round")
}
