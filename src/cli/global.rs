//! What the global flags and the configuration say together.

use std::cell::RefCell;

use super::args::Format;
use super::progress::Line;
use crate::app::request::Request;

/// What every command is given.
#[derive(Debug)]
pub(super) struct Global {
    pub(super) request: Request,
    pub(super) format: Format,
    pub(super) quiet: bool,
    /// Do not ask before deleting.
    pub(super) yes: bool,
    pub(super) no_progress: bool,
    /// `--config` names the only configuration file.
    pub(super) config_named: bool,
    /// Another state directory than the configured one is named.
    pub(super) other_state: bool,
    /// While something is being deleted.
    pub(super) line: RefCell<Option<Line>>,
}
