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
    job.run()
}

/// The image that a reference means.
pub(super) fn image(survey: &Survey, reference: &str) -> Result<ImageIx, Failure> {
    let hint = "`layersweep images` lists what there is; nothing was deleted";
    match lookup::look_up(survey, reference) {
        Ok(Subject::Image(at)) => Ok(at),
        Ok(_) => Err(Failure::NotThere { message: format!("{reference:?} is no image"), hint: hint.into() }),
        Err(error @ lookup::Error::Unknown(_)) => {
            Err(Failure::NotThere { message: error.to_string(), hint: hint.into() })
        }
        Err(error) => Err(Failure::BadArgument {
            message: error.to_string(),
            hint: "give more of the id, or the whole name; nothing was deleted".into(),
        }),
    }
}
