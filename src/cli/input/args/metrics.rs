//! Arguments of `metrics`.

use std::path::PathBuf;

use crate::cli::input::address::Address;

const METRICS_HELP: &str = "\
Shows what the last recorded scans found, what was deleted since records began, and how full the \
    filesystems are now. Reads no store: let a timer run `layersweep scan`, which also leaves the metrics \
    where node_exporter reads \
them (metrics.textfile in the configuration). --listen answers /metrics and /healthz until SIGTERM, without \
encryption and to anyone who can connect: stay on 127.0.0.1 or a unix socket, or put a proxy in front.";

#[derive(Debug, clap::Args)]
#[command(after_help = METRICS_HELP)]
pub(crate) struct MetricsArgs {
    /// Write the metrics to this file, atomically; to layersweep.prom if it is a directory
    #[arg(long, value_name = "PATH", conflicts_with = "listen")]
    pub(crate) textfile: Option<PathBuf>,

    /// Serve the metrics over HTTP, computed on each request: unix:PATH, IP:PORT, or PORT of 127.0.0.1
    #[arg(long, value_name = "ADDRESS", value_parser = Address::parse)]
    pub(crate) listen: Option<Address>,

    /// Include the N images with the most exclusive bytes; at most 100, since each is a series of its own
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, value_parser = clap::value_parser!(u16).range(..=100))]
    pub(crate) top: u16,
}
