//! A scan of a graphroot with what the scan before it left in a database: read it, survey,
//! write what changed.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use jiff::Timestamp;
use layersweep::graphroot::config::Environment;
use layersweep::graphroot::snapshot::Patience;
use layersweep::inventory::refs::breakdown;
use layersweep::records::{Access, Records, sizes};
use layersweep::survey::{self, Request, Weigh};
use layersweep::sys::sysroot::Sysroot;
use layersweep::usage::Progress;

/// Scans once and prints the sum and how many layers were measured.
pub fn graphroot(state_dir: &Path, graphroot: &Path) -> Result<()> {
    std::fs::create_dir_all(state_dir)?;
    let now = Timestamp::now();
    let mut records = Records::open(state_dir, Access::Write)?;
    let seed = now.as_nanosecond().unsigned_abs() as u64;
    let started = Instant::now();
    let remembered = records.read(|connection| sizes::load(connection, seed))?;
    let loaded = started.elapsed();
    let sysroot = Sysroot::live();
    let request = Request {
        environment: Environment::of_process(&sysroot),
        sysroot,
        graphroots: vec![graphroot.to_path_buf()],
        containerd_roots: Vec::new(),
        runroot: None,
        threads: std::env::var("BENCH_THREADS").ok().and_then(|text| text.parse().ok()).unwrap_or(0),
        patience: Patience::default(),
        weigh: Weigh::Everything,
        now,
        remembered: Some(Arc::new(remembered)),
        full: false,
    };
    let survey = survey::run(&request, &Progress::default())?;
    let started = Instant::now();
    if let Some(to_keep) = &survey.to_keep {
        records.write(|transaction| sizes::store(transaction, to_keep, now))?;
    }
    let total = breakdown(&survey.inventory, &survey.refs, 0.into()).total().bytes;
    let (cached, measured) = (survey.effort.cached_layers, survey.effort.measured_layers);
    println!(
        "{total} bytes, {measured} of {} layers measured, loaded in {} ms, stored in {} ms",
        cached + measured,
        loaded.as_millis(),
        started.elapsed().as_millis()
    );
    Ok(())
}
