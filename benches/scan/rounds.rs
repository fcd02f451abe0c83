//! Round after round, each program once a round and in another order each time: what
//! disturbs the machine then disturbs all of them.

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
    /// The last line that it printed, for a look at what it counted.
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
        for at in order(round, programs.len()) {
            results[at].warm.push(process::run(&mut programs[at].command())?);
        }
    }
    for round in 0..settings.cold_rounds {
        for at in order(round, programs.len()) {
            image.forget()?;
            programs[at].load();
            results[at].cold.push(process::run(&mut programs[at].command())?);
        }
    }
    Ok(results)
}

/// Each round begins with another program.
fn order(round: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |at| (at + round) % count)
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
