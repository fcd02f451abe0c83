//! Deletions through CRI and directly: which images are deleted or kept, and what is reported.

mod cri_client;
mod cri_sockets;
mod gc_ages;
mod gc_article;
mod gc_command;
mod gc_containers;
mod gc_containers_command;
mod gc_containers_faults;
mod gc_direct;
mod gc_effort;
mod gc_faults;
mod gc_foreseen;
mod gc_protection;
mod gc_refusals;
mod gc_rm;
mod gc_rules;
mod gc_run;
mod gc_runtime;
mod gc_targets;
mod kubelet_vectors;
mod node_pulls;
mod protection;
mod protection_everywhere;
mod sweep_command;
mod timer_day;
