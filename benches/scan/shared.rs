//! Stores on XFS with 100,000 files in 200 layers, once with files of their own and once deduplicated: the time and
//! memory of scans, beside `du`. `BENCH_SHARED_FILES` makes it larger, in 500 files a layer; above a million, only the
//! deduplicated one, because the other would fill the machine's disk.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::many::best;
use crate::process::{self, Run};
use crate::random::Random;
use crate::records::{Plan, Shape};
use crate::settings::Settings;

const FILES_OF_A_LAYER: u64 = 500;
/// Limit of a rescan of the deduplicated store, as times that of the other one, and as part of `du`.
const TIMES_PLAIN: f64 = 1.5;
const PART_OF_DU: f64 = 0.05;
const MOST_FILES_OF_THEIR_OWN: u64 = 1_000_000;

/// Fills the empty directory `graphroot`. Each file is one of `files` / 5 contents; `shares`: equal files share their
/// extents.
pub fn generate(graphroot: &Path, files: u64, shares: bool) -> Result<()> {
    let mut random = Random::new(7);
    let layers = usize::try_from(files / FILES_OF_A_LAYER)?;
    let plan = Plan::new(&mut random, Shape { images: layers / 5, own_layers: 5, bases: layers / 20 });
    fs::create_dir_all(graphroot.join("overlay/l"))?;
    plan.write(graphroot, &mut random)?;
    let pool = graphroot.with_extension("pool");
    fs::create_dir(&pool)?;
    for content in 0..files / 5 {
        let length = usize::try_from(random.between(1, 16_000))?;
        fs::write(pool.join(content.to_string()), vec![1; length])?;
    }
    for layer in &plan.layers {
        plan.make_directory(graphroot, layer)?;
        let diff = graphroot.join("overlay").join(&layer.id).join("diff");
        for file in 0..FILES_OF_A_LAYER {
            let directory = diff.join((file / 40).to_string());
            fs::create_dir_all(&directory)?;
            let from = pool.join(random.below(files / 5).to_string());
            let to = directory.join(file.to_string());
            if shares {
                rustix::fs::ioctl_ficlone(File::create(&to)?, File::open(&from)?)?;
            } else {
                fs::copy(&from, &to)?;
            }
        }
    }
    #[allow(clippy::disallowed_methods)] // the benchmark's scratch directory
    fs::remove_dir_all(&pool)?;
    Ok(())
}

/// Makes both stores in new images and prints the cost of their scans.
pub fn compare(settings: &Settings) -> Result<()> {
    let files: u64 = std::env::var("BENCH_SHARED_FILES").map_or(Ok(100_000), |files| files.parse())?;
    let plain = if files <= MOST_FILES_OF_THEIR_OWN { Some(measured(settings, files, false)?) } else { None };
    let shared = measured(settings, files, true)?;
    println!("\n{files} files on XFS: seconds, peak MiB; the best of several");
    for (store, costs) in
        plain.iter().map(|costs| ("files of their own", costs)).chain([("deduplicated", &shared)])
    {
        for (what, run) in ["first scan", "rescan", "scan --full", "du"].iter().zip(costs) {
            println!("{store:<20} {what:<12} {:>7.2} {:>7}", run.wall.as_secs_f64(), run.peak >> 20);
        }
    }
    let (rescan, du) = (shared[1].wall.as_secs_f64(), shared[3].wall.as_secs_f64());
    let times =
        plain.map(|plain| ("rescan / that of the other", rescan / plain[1].wall.as_secs_f64(), TIMES_PLAIN));
    for (what, ratio, limit) in times.into_iter().chain([("rescan / du", rescan / du, PART_OF_DU)]) {
        println!("{what:<33} {ratio:>7.3} {}", if ratio <= limit { "met" } else { "MISSED" });
    }
    Ok(())
}

/// Returns the costs of a first scan, a rescan, a scan with `--full` and `du`.
fn measured(settings: &Settings, files: u64, shares: bool) -> Result<[Run; 4]> {
    fs::create_dir_all(&settings.dir)?;
    let dir = settings.dir.canonicalize()?;
    let name = if shares { "shared" } else { "plain" };
    let (file, mount) = (dir.join(format!("{name}.img")), dir.join(format!("{name}.mnt")));
    let state = dir.join(format!("state-{name}"));
    fs::create_dir_all(&mount)?;
    let _ = process::must(Command::new("umount").arg(&mount));
    if state.exists() {
        #[allow(clippy::disallowed_methods)] // the benchmark's scratch directory
        fs::remove_dir_all(&state)?;
    }
    File::create(&file)?.set_len((4 << 30).max(files * 32_000))?;
    process::must(Command::new("mkfs.xfs").args(["-q", "-f"]).arg(&file))?;
    process::must(Command::new("mount").args(["-o", "loop"]).args([&file, &mount]))?;
    let costs = in_mounted(&mount.join("storage"), &state, files, shares);
    process::must(Command::new("umount").arg(&mount))?;
    fs::remove_file(&file)?;
    costs
}

fn in_mounted(graphroot: &Path, state: &Path, files: u64, shares: bool) -> Result<[Run; 4]> {
    generate(graphroot, files, shares)?;
    let scan = |full: bool| -> Result<Run> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_layersweep"));
        command.args(["scan", "--format", "json"]).args(full.then_some("--full"));
        command.arg("--graphroot").arg(graphroot).arg("--state-dir").arg(state);
        process::run(&mut command).context("the shared store")
    };
    process::must(Command::new("sync").arg("-f").arg(graphroot))?;
    let first = scan(false)?;
    // Files that were written in the last minute are measured again.
    std::thread::sleep(Duration::from_secs(61));
    scan(false)?;
    let du = || process::run(Command::new("du").arg("-s").arg(graphroot)).context("du");
    Ok([first, best(&|| scan(false))?, best(&|| scan(true))?, best(&du)?])
}
