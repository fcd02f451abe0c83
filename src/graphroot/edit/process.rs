//! Processes that belong to a container, whatever became of its records.

use super::error::Refusal;

/// Refuses if a process names the container in its command line (conmon, the OCI runtime) or
/// lives in a control group of it.
pub(super) fn prove_none(id: &str) -> Result<(), Refusal> {
    let unknown = |error: std::io::Error| Refusal::MountsUnknown(format!("listing /proc: {error}"));
    let own = std::process::id();
    for process in std::fs::read_dir("/proc").map_err(unknown)? {
        let name = process.map_err(unknown)?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if pid == own {
            continue;
        }
        // A process that ends meanwhile belongs to nobody.
        for file in ["cgroup", "cmdline"] {
            let content = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            if content.windows(id.len().max(1)).any(|part| part == id.as_bytes()) {
                let command = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                return Err(Refusal::Process { pid, command: command.trim().to_owned(), id: id.to_owned() });
            }
        }
    }
    Ok(())
}
