//! Global flags combined with the configuration.

use std::cell::RefCell;

use crate::cli::input::args::Format;
use crate::cli::screen::progress::ProgressLine;
use crate::services::request::Request;

#[derive(Debug)]
pub(super) struct Global {
    pub(super) request: Request,
    pub(super) format: Format,
    pub(super) quiet: bool,
    /// True to delete without a question.
    pub(super) yes: bool,
    pub(super) no_progress: bool,
    /// True if `--config` names the only configuration file.
    pub(super) config_named: bool,
    /// True if the state directory is not the configured one.
    pub(super) other_state: bool,
    pub(super) line: RefCell<Option<ProgressLine>>,
}
