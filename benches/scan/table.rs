//! The results as text, and as JSON for comparison with other runs.

use anyhow::Result;
use serde_json::json;

use crate::process::Run;
use crate::programs::{FLOOR, Role};
use crate::rounds::Runs;
use crate::settings::Settings;

const MIB: f64 = 1024.0 * 1024.0;

/// Returns median and minimum of the wall times, in milliseconds.
fn wall(runs: &[Run]) -> (f64, f64) {
    let mut times: Vec<f64> = runs.iter().map(|run| run.wall.as_secs_f64() * 1000.0).collect();
    times.sort_unstable_by(f64::total_cmp);
    (times.get(times.len() / 2).copied().unwrap_or(f64::NAN), times.first().copied().unwrap_or(f64::NAN))
}

fn cpu(runs: &[Run]) -> f64 {
    let mut times: Vec<f64> = runs.iter().map(|run| run.cpu.as_secs_f64() * 1000.0).collect();
    times.sort_unstable_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

#[allow(clippy::cast_precision_loss)] // shown with one decimal
fn peak(result: &Runs) -> f64 {
    let peaks = result.warm.iter().chain(&result.cold).map(|run| run.peak);
    peaks.max().unwrap_or(0) as f64 / MIB
}

pub fn print(results: &[Runs], missing: &[&str]) {
    let floor = results.iter().find(|result| result.name == FLOOR);
    let (floor_warm, floor_cold) =
        floor.map_or((f64::NAN, f64::NAN), |floor| (wall(&floor.warm).0, wall(&floor.cold).0));
    println!("\nMilliseconds: median (minimum); x = median against {FLOOR}\n");
    println!(
        "{:<12} {:>17} {:>6} {:>8} {:>17} {:>6} {:>9}  says",
        "program", "warm", "x", "cpu", "cold", "x", "peak MiB"
    );
    for result in results {
        let (warm, cold) = (wall(&result.warm), wall(&result.cold));
        println!(
            "{:<12} {:>8.0} ({:>6.0}) {:>6.2} {:>8.0} {:>8.0} ({:>6.0}) {:>6.2} {:>9.1}  {}",
            result.name,
            warm.0,
            warm.1,
            warm.0 / floor_warm,
            cpu(&result.warm),
            cold.0,
            cold.1,
            cold.0 / floor_cold,
            peak(result),
            result.says,
        );
    }
    targets(results, floor_warm, missing);
}

fn targets(results: &[Runs], floor_warm: f64, missing: &[&str]) {
    let Some(layersweep) = results.iter().find(|result| result.role == Role::Ours) else {
        return;
    };
    let fastest = |time: fn(&Runs) -> f64| {
        let peers = results.iter().filter(|result| result.role == Role::Peer);
        peers.map(|peer| (time(peer), peer.name)).min_by(|a, b| a.0.total_cmp(&b.0))
    };
    let warm = fastest(|result| wall(&result.warm).0).unwrap_or((f64::NAN, "none"));
    let cold = fastest(|result| wall(&result.cold).0).unwrap_or((f64::NAN, "none"));
    let (ours_warm, ours_cold) = (wall(&layersweep.warm).0, wall(&layersweep.cold).0);
    let again = results.iter().find(|result| result.role == Role::Again);
    let (again_warm, again_cold) =
        again.map_or((f64::NAN, f64::NAN), |again| (wall(&again.warm).0, wall(&again.cold).0));
    let rows = [
        (format!("warm, against {FLOOR}"), ours_warm / floor_warm, 1.1),
        (format!("warm, against the fastest peer ({})", warm.1), ours_warm / warm.0, 0.7),
        (format!("cold, against the fastest peer ({})", cold.1), ours_cold / cold.0, 0.75),
        ("again, warm, against the full scan".to_owned(), again_warm / ours_warm, 0.25),
        (format!("again, warm, against the fastest peer ({})", warm.1), again_warm / warm.0, 0.15),
        ("again, cold, against the full scan".to_owned(), again_cold / ours_cold, 0.25),
        (format!("again, cold, against the fastest peer ({})", cold.1), again_cold / cold.0, 0.15),
        ("peak memory in MiB".to_owned(), peak(layersweep), 64.0),
    ];
    println!("\n{:<46} {:>9} {:>9}", "target", "at most", "measured");
    for (what, measured, at_most) in rows {
        // A missing measurement is no success.
        let verdict = if measured <= at_most { "met" } else { "MISSED" };
        println!("{what:<46} {at_most:>9.2} {measured:>9.2}  {verdict}");
    }
    if !missing.is_empty() {
        println!("not compared with: {}", missing.join(", "));
    }
}

/// Writes `results.json` next to the image.
pub fn save(settings: &Settings, results: &[Runs]) -> Result<()> {
    fn runs(runs: &[Run]) -> Vec<serde_json::Value> {
        runs.iter()
            .map(|run| {
                json!({"wall_seconds": run.wall.as_secs_f64(), "cpu_seconds": run.cpu.as_secs_f64(),
                "peak_bytes": run.peak})
            })
            .collect()
    }
    let programs: Vec<_> = results
        .iter()
        .map(|result| json!({"name": result.name, "warm": runs(&result.warm), "cold": runs(&result.cold)}))
        .collect();
    let document = json!({"fs": settings.fs, "inodes": settings.inodes, "seed": settings.seed,
        "programs": programs});
    let path = settings.dir.join(format!("results-{}.json", settings.fs));
    std::fs::write(path, serde_json::to_vec_pretty(&document)?)?;
    Ok(())
}
