//! `layersweep rm REF...`

use super::args::{Global, RmArgs};
use super::collecting::Job;
use super::exit::Exit;
use super::failure::Failure;
use crate::config::Config;
use crate::inventory::ImageIx;
use crate::records::runs::Command;
use crate::survey::Survey;
use crate::survey::lookup::{self, Subject};

pub(super) fn run(global: &Global, config: &Config, own: &RmArgs) -> Result<Exit, Failure> {
    let mut job = Job::new(global, config, Command::Rm, own.via);
    job.dry_run = own.dry_run;
    job.named = &own.references;
    job.while_runtime_runs = own.while_runtime_runs;
    job.run()
}

/// The image that a reference means.
pub(super) fn image(survey: &Survey, reference: &str) -> Result<ImageIx, Failure> {
    match lookup::look_up(survey, reference) {
        Ok(Subject::Image(at)) => Ok(at),
        Ok(_) => Err(Failure::NotThere {
            message: format!("{reference:?} is no image; nothing was deleted"),
            hint: "`layersweep images` lists what there is".into(),
        }),
        Err(error) => Err(Failure::of_lookup(&error).with("; nothing was deleted")),
    }
}
