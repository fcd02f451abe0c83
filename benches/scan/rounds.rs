//! Runs each program once a round, each round in another order: a disturbance of the machine then affects all of them.

use anyhow::Result;

use crate::image::Image;
use crate::process::{self, Run};
use crate::programs::{Program, Role};
use crate::settings::Settings;

/// All runs of one program.
#[derive(Debug)]
pub struct Runs {
    pub name: &'static str,
    pub role: Role,
    /// The last line that it printed, to check its count.
    pub says: String,
    pub warm: Vec<Run>,
    pub cold: Vec<Run>,
}

pub fn run(settings: &Settings, image: &Image, programs: &[Program]) -> Result<Vec<Runs>> {
    let mut results = Vec::new();
    for program in programs {
        let text = process::output(&mut program.command())?;
        let (name, role) = (program.name, program.role);
        results.push(Runs { name, role, says: says(&text), warm: vec![], cold: vec![] });
    }
    for round in 0..settings.warm_rounds {
        for position in order(round, programs.len()) {
            results[position].warm.push(process::run(&mut programs[position].command())?);
        }
    }
    for round in 0..settings.cold_rounds {
        for position in order(round, programs.len()) {
            image.forget()?;
            programs[position].load();
            results[position].cold.push(process::run(&mut programs[position].command())?);
        }
    }
    Ok(results)
}

/// Each round begins with another program.
fn order(round: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |number| (number + round) % count)
}

fn says(text: &str) -> String {
    if let Ok(document) = serde_json::from_str::<serde_json::Value>(text)
        && document.is_object()
    {
        return format!("{} bytes", document["stores"][0]["bytes"]["total"]);
    }
    let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    last.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(60).collect()
}
