//! Checks of layersweep's configuration and permissions.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::check::{AS_ROOT, Check, Status};
use super::node::Node;
use crate::app::pins;
use crate::app::report::thresholds;
use crate::config::ConfigProblem;
use crate::model::text::display::{count, shell_word};
use crate::node::expected_images;
use crate::services::policy_context;
use crate::sys::processes::describe_unknown;

pub(super) fn files(node: &Node<'_>) -> Vec<Check> {
    let mut checks: Vec<_> = node.problems.iter().map(problem).collect();
    if checks.is_empty() {
        let files: Vec<_> = node.config.files.iter().map(|file| file.display().to_string()).collect();
        checks.push(if files.is_empty() {
            Check::ok("", "no file: the built-in defaults apply")
        } else {
            Check::ok("", format!("read from {}", files.join(", ")))
        });
    }
    let shadowed = node.config.shadowed_rules();
    checks.extend(shadowed.iter().map(|rule| Check { status: Status::Warning, ..problem(rule) }));
    let files = node.config.files.iter().chain(&node.config.references_file);
    checks.extend(files.filter_map(|file| permissions_of(node, file)));
    checks
}

pub(super) fn references(node: &Node<'_>) -> Vec<Check> {
    let Some(file) = node.config.references_file.as_deref() else { return Vec::new() };
    let set = match expected_images::read(&node.stores.sysroot, file) {
        Ok(set) => set,
        Err(unreadable) => {
            let remedy = match unreadable.source.kind() {
                ErrorKind::PermissionDenied => AS_ROOT,
                _ => policy_context::REMEDY_OF_REFERENCES,
            };
            let check = Check::warning(file, unreadable.to_string(), remedy);
            return vec![Check { is_unread: true, ..check }];
        }
    };
    let references = count(set.count(), "reference", "references");
    let Some(scan) = node.scan() else {
        return vec![Check::ok(file, format!("{references} read; gc keeps the images that they name"))];
    };
    let unmatched = set.unmatched(&scan.inventory.images);
    let named = count(set.count() - unmatched.len(), "names", "name");
    let text = format!("{references}, {named} an image here");
    let mistaken = unmatched.iter().find(|unmatched| unmatched.other_tag.is_some());
    let Some(first) = mistaken.or(unmatched.first()) else {
        return vec![Check::ok(file, format!("{text}; gc keeps these images"))];
    };
    let more = match unmatched.len() - 1 {
        0 => String::new(),
        number => format!("; {} no image", count(number, "more line names", "more lines name")),
    };
    let text = format!("{text}; {first}{more}");
    vec![match mistaken {
        Some(_) => Check::warning(file, text, "correct the line: `layersweep images` shows full names"),
        None => Check::note(file, text),
    }]
}

fn problem(problem: &ConfigProblem) -> Check {
    let separator = if problem.field.is_empty() { "" } else { ": " };
    let remedy = match problem.remedy.as_str() {
        "" => {
            "correct it: until then `gc`, `rm` and `sweep --delete` refuse to run, and the other commands use the defaults"
        }
        remedy => remedy,
    };
    let message = format!("{}{separator}{}", problem.field, problem.message);
    Check::error(problem.origin.to_string(), message, remedy)
}

/// Checks `protect.names` against the images of the last scan.
pub(super) fn patterns(node: &Node<'_>) -> Vec<Check> {
    let Some(database) = node.database.as_ref().ok().filter(|database| database.found) else {
        return Vec::new();
    };
    match pins::unmatched(node.config, database) {
        Ok((patterns, all)) => {
            let checks = patterns.into_iter().map(|(key, pattern)| {
                let message = format!(
                    "{pattern:?} matches none of the {all} images of the last scan: it has no effect now"
                );
                let remedy = "correct the pattern: `layersweep images` shows full names";
                Check::warning(key, message, remedy)
            });
            checks.collect()
        }
        // The check of the database reports it.
        Err(_) => Vec::new(),
    }
}

/// Checks that the free space that is configured for `gc` exists on each filesystem with images.
pub(super) fn free_space(node: &Node<'_>) -> Vec<Check> {
    let Some(scan) = node.scan() else { return Vec::new() };
    let findings = thresholds::impossible(node.config, scan).into_iter();
    let remedy = "lower images.min_free and images.free_until, or use images.high_percent instead";
    findings.map(|finding| Check::warning(node.shown(&finding.path), finding.message, remedy)).collect()
}

/// Returns a warning if other users than root may write to the file: they would decide what root deletes.
fn permissions_of(node: &Node<'_>, file: &PathBuf) -> Option<Check> {
    let facts = node.stores.sysroot.resolve(file).and_then(std::fs::metadata).ok()?;
    let (owner, mode) = (facts.uid(), facts.mode() & 0o7777);
    let why = if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        format!("it belongs to user {owner}, who thereby decides what is deleted")
    } else if mode & 0o022 != 0 {
        format!("others may write to it (mode {mode:o}), and thereby decide what is deleted")
    } else {
        return None;
    };
    let word = shell_word(&file.to_string_lossy());
    Some(Check::warning(file, why, format!("chown root:root {word} && chmod 0644 {word}")))
}

pub(super) fn permissions(node: &Node<'_>) -> Vec<Check> {
    let Some(processes) = &node.processes else { return Vec::new() };
    let mut checks = vec![match std::fs::read_to_string("/proc/self/status") {
        Ok(status) if reads_everything(&status) => Check::ok("", "this user may read the files of all users"),
        Ok(_) => {
            let message = "files of other users cannot be read: root's stores and most of the node's settings are \
                not accessible";
            Check::warning("", message, AS_ROOT)
        }
        Err(error) => Check::unread("/proc/self/status", &error),
    }];
    match processes {
        Ok(processes) if processes.sees_all() => {}
        Ok(processes) => {
            if let Some(why) = describe_unknown(processes.silent()) {
                let remedy = "`ps -o pid,stat,wchan,cmd` shows what a process waits for";
                checks.push(Check { is_unread: true, ..Check::warning("/proc", why, remedy) });
                return checks;
            }
            let message = "not all processes are visible (another namespace, or hidepid): what one of them may hold \
                open is not counted as a leak";
            checks.push(Check::note("/proc", message));
        }
        Err(error) => checks.push(Check::unread("/proc", error)),
    }
    checks
}

/// Returns true if `status` (`proc_pid_status(5)`) has `CAP_DAC_OVERRIDE` or `CAP_DAC_READ_SEARCH`
/// (`capabilities(7)`) in its effective set: the process can read files without read permission.
fn reads_everything(status: &str) -> bool {
    const OVERRIDE_OR_SEARCH: u64 = 1 << 1 | 1 << 2;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok())
        .is_some_and(|set| set & OVERRIDE_OR_SEARCH != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_allow_reading_everything() {
        for (status, expected) in [
            ("Name:\tx\nCapInh:\t0000000000000004\nCapEff:\t0000000000000000\n", false),
            ("CapEff:\t0000000000000004\n", true),
            ("CapEff:\t000001ffffffffff\n", true),
            ("CapEff:\t0000000000000008\n", false),
            ("", false),
        ] {
            assert_eq!(reads_everything(status), expected, "{status}");
        }
    }
}
