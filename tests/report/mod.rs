//! Output of the commands: contract, documentation, doctor, metrics and the report.

mod cli_contract;
mod config_command;
mod disk_without_store;
mod docs_commands;
mod doctor_command;
mod explore;
mod fits;
mod fleet;
mod metrics;
mod metrics_listen;
mod metrics_rules;
mod own_commands;
mod pictures;
mod post_mortem;
mod report_deletions;
mod report_html;
mod report_users;
mod terminal_width;
