//! Text of `sweep`: the leaks and their verdicts, or the result of a run.

use std::collections::{BTreeMap, BTreeSet};

use super::format::{DIFFERS, age_of, bytes, measured, resumed, safe, short_id, signed_bytes, wrapped};
use super::screen::Screen;
use super::table::{Table, heading};
use crate::model::deletion::plan::Action;
use crate::model::text::display::count;
use crate::model::{LeakClass, OutcomeKind};
use crate::report::json::{DeletionDoc, SweepDoc, SweepLeakDoc};

/// Maximum number of leaks without a summary by class.
const FEW: usize = 10;

pub fn sweep(document: &SweepDoc, screen: &Screen) -> String {
    let acts = document.delete || !document.repair.is_empty();
    let planned = document.dry_run || document.outcome == OutcomeKind::Reported || !acts;
    let mut out = resumed(document.resumed);
    if planned {
        out.push_str(&plan(document, screen));
    } else {
        out.push_str(&done(document, screen));
    }
    out
}

/// Formats the leaks by verdict, before a run or without one.
fn plan(document: &SweepDoc, screen: &Screen) -> String {
    if document.leaks.is_empty() && !document.classes.is_empty() {
        let classes: Vec<_> = document.classes.iter().map(|class| class.as_str()).collect();
        return format!("Nothing of class {} was found.\n", classes.join(", "));
    }
    if document.leaks.is_empty() {
        return if document.complete {
            "No leaks: every byte in these stores has an owner.\n".into()
        } else {
            "No leaks where everything could be read; see the warnings for the rest.\n".into()
        };
    }
    let mut out = String::new();
    let deletions: Vec<_> =
        document.leaks.iter().filter(|leak| leak.action == Some(Action::Delete)).collect();
    let repairs = document.leaks.iter().filter(|leak| leak.action == Some(Action::Repair));
    let (requested, possible): (Vec<_>, Vec<_>) =
        repairs.partition(|leak| document.repair.contains(&leak.leak.class));
    let kept = document.leaks.iter().filter(|leak| leak.action.is_none());
    let (tasks, kept): (Vec<_>, Vec<_>) = kept.partition(|leak| leak.needs_operator);
    let flags: BTreeSet<_> = possible.iter().map(|leak| format!("--repair {}", leak.leak.class)).collect();
    let would_repair = format!("What {} would repair", flags.into_iter().collect::<Vec<_>>().join(" "));
    let deletes = if document.delete { "To delete" } else { "What --delete would delete" };
    for (title, leaks, shows_proof) in [
        (deletes, &deletions, true),
        ("To repair", &requested, true),
        (would_repair.as_str(), &possible, true),
        ("What stays for now", &kept, false),
    ] {
        if !leaks.is_empty() {
            out.push_str(&heading(title));
            out.push_str(&table(leaks, screen, shows_proof));
        }
    }
    if !tasks.is_empty() {
        out.push_str(&heading("For you to decide"));
        tasks.iter().for_each(|leak| out.push_str(&task(leak, screen)));
    }
    out.push_str(&by_class(document, screen));
    let kept = kept.len() + tasks.len();
    out.push_str(&format!(
        "\n{}: {} can be deleted, freeing about {}; {} can be repaired; {} stay{}\n",
        count(document.leaks.len(), "finding", "findings"),
        deletions.len(),
        bytes(document.predicted_bytes),
        requested.len() + possible.len(),
        kept,
        if kept == 1 { "s" } else { "" },
    ));
    let acts = document.delete || !document.repair.is_empty();
    if !acts && !deletions.is_empty() {
        let note = "The same command with `--delete` deletes them; each is proven safe again just before.";
        out.push_str(&screen.note(note));
    }
    out
}

/// Formats the sum of each class, if there are too many leaks to add them up at a glance.
fn by_class(document: &SweepDoc, screen: &Screen) -> String {
    if document.leaks.len() <= FEW {
        return String::new();
    }
    let mut classes: BTreeMap<LeakClass, Vec<&SweepLeakDoc>> = BTreeMap::new();
    for leak in &document.leaks {
        classes.entry(leak.leak.class).or_default().push(leak);
    }
    let mut table = Table::new(screen, &["CLASS", ">FINDINGS", ">SIZE", ">TO DELETE"]);
    for (class, leaks) in classes {
        let size = leaks.iter().map(|leak| leak.leak.bytes).fold(0, u64::saturating_add);
        let deletions = leaks.iter().filter(|leak| leak.action == Some(Action::Delete)).count();
        table.row(vec![class.to_string(), leaks.len().to_string(), bytes(size), deletions.to_string()]);
    }
    format!("{}{}", heading("By class"), table.render())
}

/// Formats a line for each leak. On a narrow screen, which would cut the last column, its text is on the lines
/// below.
fn table(leaks: &[&SweepLeakDoc], screen: &Screen, shows_proof: bool) -> String {
    let heading = if shows_proof { "PROOF" } else { "WHY" };
    let columns = ["FINDING", "OBJECT", ">SIZE", ">AGE", "VERDICT", heading];
    let whole = columns_of(leaks, screen, shows_proof, &columns);
    if whole.fits() {
        return whole.render();
    }
    let mut narrow = columns_of(leaks, screen, shows_proof, &columns[..columns.len() - 1]);
    narrow.fit(&[4], &[(1, 12)]);
    let rendered = narrow.render();
    let mut lines = rendered.lines();
    let mut out = lines.next().map_or_else(String::new, |headings| format!("{headings}\n"));
    let width = screen.width.unwrap_or(usize::MAX);
    for (line, leak) in lines.zip(leaks) {
        let text = wrapped(&reason(leak, shows_proof), width, "         ");
        out.push_str(&format!("{line}\n  {:<5}  {}", heading.to_lowercase(), text.trim_start()));
    }
    out
}

fn columns_of(leaks: &[&SweepLeakDoc], screen: &Screen, shows_proof: bool, columns: &[&str]) -> Table {
    let mut table = Table::new(screen, columns);
    for leak in leaks {
        let facts = &leak.leak;
        let mut cells = vec![
            facts.class.to_string(),
            short_id(&facts.id),
            bytes(facts.bytes),
            age_of(facts.age_seconds),
            facts.verdict.to_string(),
            reason(leak, shows_proof),
        ];
        cells.truncate(columns.len());
        table.row(cells);
    }
    table.add_stores(leaks.iter().map(|leak| leak.leak.store.as_str()));
    table
}

/// Returns the remedy of a leak that is kept, or else the proof.
fn reason(leak: &SweepLeakDoc, shows_proof: bool) -> String {
    match (shows_proof, leak.remedy.as_str()) {
        (false, "") | (true, _) => safe(&leak.leak.evidence),
        (false, remedy) => safe(remedy),
    }
}

/// Formats a leak that an operator must decide about, without shortening anything.
fn task(leak: &SweepLeakDoc, screen: &Screen) -> String {
    let facts = &leak.leak;
    let (size, age) = (bytes(facts.bytes), age_of(facts.age_seconds));
    let mut out = format!("{}  {size}  {age} old  {}\n", facts.class, facts.verdict);
    let width = screen.width.unwrap_or(usize::MAX);
    let words = [("object", safe(&facts.id)), ("path", safe(&facts.path)), ("why", safe(&facts.evidence))]
        .into_iter()
        .chain([("to do", safe(&leak.remedy))]);
    for (label, text) in words.filter(|(_, text)| !text.is_empty()) {
        out.push_str(&format!("  {label:<7}  {}", wrapped(&text, width, "           ").trim_start()));
    }
    if let Some(command) = &leak.command {
        out.push_str(&format!("  command  {}\n", safe(command)));
    }
    out
}

fn done(document: &SweepDoc, screen: &Screen) -> String {
    let mut out = String::new();
    let deleted = &document.deleted;
    if !deleted.is_empty() {
        let mut table =
            Table::new(screen, &["DELETED", "OBJECT", ">PREDICTED", ">MEASURED", ">USED", "WHERE"]);
        for deletion in deleted {
            table.row(row(deletion));
        }
        table.fit(&[4], &[(5, 16), (1, 12)]);
        out.push_str(&table.render());
    }
    for leak in &document.repaired {
        out.push_str(&format!("repaired: {} {}\n", leak.class, safe(&leak.id)));
    }
    for leak in &document.kept {
        let detail = safe(leak.detail.as_deref().unwrap_or_default());
        out.push_str(&format!("kept: {} {}: {detail}\n", leak.class, safe(&leak.id)));
    }
    for error in &document.errors {
        let id = error.id.as_deref().map(|id| format!("{} ", safe(id))).unwrap_or_default();
        let freed = error.measured_bytes.map(|freed| format!("; {} freed", signed_bytes(freed)));
        let (message, freed) = (safe(&error.message), freed.unwrap_or_default());
        out.push_str(&format!("failed: {id}({}): {message}{freed}\n", error.phase));
    }
    if document.outcome == OutcomeKind::NotNeeded {
        out.push_str("There was nothing to delete.\n");
    }
    if !deleted.is_empty() {
        let predicted =
            deleted.iter().fold(0_u64, |sum, deletion| sum.saturating_add(deletion.predicted_bytes));
        out.push_str(&format!(
            "\n{} deleted: predicted {}, measured {}\n",
            count(deleted.len(), "finding", "findings"),
            bytes(predicted),
            measured(document.measured_bytes, deleted.iter().any(|deletion| deletion.disturbed)),
        ));
    }
    if deleted.iter().any(|deletion| deletion.differs) {
        out.push_str(DIFFERS);
    }
    let deletions = document.leaks.iter().filter(|leak| leak.action == Some(Action::Delete)).count();
    let others = document.leaks.len().saturating_sub(deletions);
    if others > 0 {
        out.push_str(&format!(
            "{}: `layersweep sweep` shows why, and what to do\n",
            count(others, "other finding stays", "other findings stay")
        ));
    }
    out
}

fn row(deleted: &DeletionDoc) -> Vec<String> {
    let measured = measured(deleted.measured_bytes, deleted.disturbed);
    vec![
        deleted.class.map_or_else(String::new, |class| class.to_string()),
        short_id(&deleted.id),
        bytes(deleted.predicted_bytes),
        if deleted.differs { format!("! {measured}") } else { measured },
        deleted.usage_after_percent.map_or_else(|| "-".into(), |percent| format!("{percent:.2}%")),
        deleted.path.as_deref().map_or_else(String::new, safe),
    ]
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use jiff::tz::TimeZone;

    use super::*;
    use crate::model::Verdict;
    use crate::policy::leaks::LeakRequest;
    use crate::report::json::{LeakDoc, sweep_refused};

    fn finding(class: LeakClass, id: &str, remedy: &str, command: Option<&str>) -> SweepLeakDoc {
        SweepLeakDoc {
            leak: LeakDoc {
                class,
                store: "/var/lib/containerd".into(),
                path: "/var/lib/containerd/io.containerd.metadata.v1.bolt/meta.db".into(),
                id: id.into(),
                bytes: 3 << 20,
                age_seconds: Some(3 * 86400),
                verdict: Verdict::Report,
                evidence: "a lease without expiry: it holds its content until its owner deletes it".into(),
            },
            action: None,
            predicted_bytes: 0,
            remedy: remedy.into(),
            needs_operator: command.is_some(),
            command: command.map(Into::into),
        }
    }

    fn screen(width: Option<usize>) -> Screen {
        Screen { width, unicode: true, truncates: true, notes: true, zone: TimeZone::UTC }
    }

    #[test]
    fn proof_is_whole_on_80_columns() {
        fn to_delete(class: LeakClass, id: &str, evidence: &str) -> SweepLeakDoc {
            let mut leak = finding(class, id, "", None);
            (leak.action, leak.leak.verdict, leak.leak.evidence) =
                (Some(Action::Delete), Verdict::Reclaim, evidence.into());
            leak
        }
        let proof = "no layer record names this directory, and it has no link file: its creation was \
                     interrupted";
        let leaks = [
            to_delete(LeakClass::OrphanDir, &"0a".repeat(32), proof),
            to_delete(LeakClass::OrphanDir, &"0b".repeat(32), "no record"),
        ];
        let leaks: Vec<_> = leaks.iter().collect();
        let shown = |width| anstream::adapter::strip_str(&table(&leaks, &screen(width), true)).to_string();
        let narrow = "\
FINDING     OBJECT           SIZE  AGE  VERDICT
orphan-dir  0a0a0a0a0a0a  3.0 MiB   3d  reclaim
  proof  no layer record names this directory, and it has no link file: its
         creation was interrupted
orphan-dir  0b0b0b0b0b0b  3.0 MiB   3d  reclaim
  proof  no record
";
        assert_eq!(shown(Some(80)), narrow);
        let wide = format!(
            "FINDING     OBJECT           SIZE  AGE  VERDICT  PROOF\n\
             orphan-dir  0a0a0a0a0a0a  3.0 MiB   3d  reclaim  {proof}\n\
             orphan-dir  0b0b0b0b0b0b  3.0 MiB   3d  reclaim  no record\n"
        );
        assert_eq!(shown(Some(200)), wide);
        assert_eq!(shown(None), wide);
    }

    #[test]
    fn operator_task_is_whole_on_80_columns() {
        let mut document = sweep_refused("r", &LeakRequest::default(), false, "", Timestamp::UNIX_EPOCH);
        (document.outcome, document.errors) = (OutcomeKind::Reported, Vec::new());
        let command = "layersweep rm 0123456789ab";
        document.leaks = vec![
            finding(
                LeakClass::Lease,
                "stuck-noexpiry",
                "remove it with the program that made it, if that does not need it any more",
                Some(command),
            ),
            finding(LeakClass::OrphanDir, &"0a".repeat(32), "too young (24s, minimum 1d)", None),
        ];
        let screen = screen(Some(80));
        let shown = anstream::adapter::strip_str(&sweep(&document, &screen)).to_string();
        let expected = "\
What stays for now
FINDING     OBJECT           SIZE  AGE  VERDICT  WHY
orphan-dir  0a0a0a0a0a0a  3.0 MiB   3d  report   too young (24s, minimum 1d)
For you to decide
lease  3.0 MiB  3d old  report
  object   stuck-noexpiry
  path     /var/lib/containerd/io.containerd.metadata.v1.bolt/meta.db
  why      a lease without expiry: it holds its content until its owner deletes
           it
  to do    remove it with the program that made it, if that does not need it any
           more
  command  layersweep rm 0123456789ab

2 findings: 0 can be deleted, freeing about 0 B; 0 can be repaired; 2 stay
";
        assert_eq!(shown, expected);
    }
}
