//! What nothing uses, what becomes of it, and what was done about it.

use std::collections::{BTreeMap, BTreeSet};

use super::format::{DIFFERS, age_of, bytes, measured, resumed, safe, short_id, signed_bytes, wrapped};
use super::screen::Screen;
use super::table::{Table, heading};
use crate::model::display::count;
use crate::model::{LeakClass, OutcomeKind};
use crate::report::json::{SweepDoc, SweepLeakDoc, SweptDoc};

/// So many findings are read one by one.
const FEW: usize = 10;

/// A report, a plan, or what a run did.
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

/// The plan before it is carried out.
fn plan(document: &SweepDoc, screen: &Screen) -> String {
    if document.leaks.is_empty() && !document.classes.is_empty() {
        let classes: Vec<_> = document.classes.iter().map(|class| class.as_str()).collect();
        return format!("Nothing of class {} was found.\n", classes.join(", "));
    }
    if document.leaks.is_empty() {
        let said = match document.complete {
            true => "No leaks: every byte in these stores has an owner.\n",
            false => "No leaks where everything could be read; see the warnings for the rest.\n",
        };
        return said.into();
    }
    let mut out = String::new();
    let going: Vec<_> = document.leaks.iter().filter(|one| one.action == "delete").collect();
    let mends = document.leaks.iter().filter(|one| one.action == "repair");
    let (mending, mendable): (Vec<_>, Vec<_>) =
        mends.partition(|one| document.repair.contains(&one.leak.class));
    let staying = document.leaks.iter().filter(|one| one.action == "none");
    let (tasks, staying): (Vec<_>, Vec<_>) = staying.partition(|one| one.for_a_person);
    let flags: BTreeSet<_> = mendable.iter().map(|one| format!("--repair {}", one.leak.class)).collect();
    let mends = format!("What {} would repair", flags.into_iter().collect::<Vec<_>>().join(" "));
    let deletes = if document.delete { "To delete" } else { "What --delete would delete" };
    for (title, leaks, goes) in [
        (deletes, &going, true),
        ("To repair", &mending, true),
        (mends.as_str(), &mendable, true),
        ("What stays for now", &staying, false),
    ] {
        if !leaks.is_empty() {
            out.push_str(&heading(title));
            out.push_str(&table(leaks, screen, goes));
        }
    }
    if !tasks.is_empty() {
        out.push_str(&heading("For you to decide"));
        tasks.iter().for_each(|one| out.push_str(&task(one, screen)));
    }
    out.push_str(&by_class(document, screen));
    let stay = staying.len() + tasks.len();
    out.push_str(&format!(
        "\n{}: {} can be deleted, freeing about {}; {} can be repaired; {} stay{}\n",
        count(document.leaks.len(), "finding", "findings"),
        going.len(),
        bytes(document.predicted_bytes),
        mending.len() + mendable.len(),
        stay,
        if stay == 1 { "s" } else { "" },
    ));
    let acts = document.delete || !document.repair.is_empty();
    if !acts && !going.is_empty() {
        out.push_str(
            "The same command with `--delete` deletes them; each is proven safe again just before.\n",
        );
    }
    out
}

/// The sum of each class, where the lines are too many to be added up by a reader.
fn by_class(document: &SweepDoc, screen: &Screen) -> String {
    if document.leaks.len() <= FEW {
        return String::new();
    }
    let mut classes: BTreeMap<LeakClass, Vec<&SweepLeakDoc>> = BTreeMap::new();
    for one in &document.leaks {
        classes.entry(one.leak.class).or_default().push(one);
    }
    let mut table = Table::new(screen, &["CLASS", ">FINDINGS", ">SIZE", ">TO DELETE"]);
    for (class, leaks) in classes {
        let size = leaks.iter().map(|one| one.leak.bytes).fold(0, u64::saturating_add);
        let going = leaks.iter().filter(|one| one.action == "delete").count();
        table.row(vec![class.to_string(), leaks.len().to_string(), bytes(size), going.to_string()]);
    }
    format!("{}{}", heading("By class"), table.render())
}

/// One line a finding; on a narrow screen, where the last column would be cut, with its words below.
fn table(leaks: &[&SweepLeakDoc], screen: &Screen, going: bool) -> String {
    let what = if going { "PROOF" } else { "WHY" };
    let words = |one: &SweepLeakDoc| match (going, one.remedy.as_str()) {
        (false, "") | (true, _) => safe(&one.leak.evidence),
        (false, remedy) => safe(remedy),
    };
    let headings = ["FINDING", "OBJECT", ">SIZE", ">AGE", "VERDICT", what];
    let table = |columns: usize| {
        let mut table = Table::new(screen, &headings[..columns]);
        for one in leaks {
            let leak = &one.leak;
            let mut cells = vec![
                leak.class.to_string(),
                short_id(&leak.id),
                bytes(leak.bytes),
                age_of(leak.age_seconds),
                leak.verdict.into(),
                words(one),
            ];
            cells.truncate(columns);
            table.row(cells);
        }
        table.add_stores(leaks.iter().map(|one| one.leak.store.as_str()));
        table
    };
    let whole = table(headings.len());
    if whole.fits() {
        return whole.render();
    }
    let mut narrow = table(headings.len() - 1);
    narrow.fit(&[4], &[(1, 12)]);
    let rendered = narrow.render();
    let mut lines = rendered.lines();
    let mut out = lines.next().map_or_else(String::new, |headings| format!("{headings}\n"));
    let width = screen.width.unwrap_or(usize::MAX);
    for (line, one) in lines.zip(leaks) {
        let words = wrapped(&words(one), width, "         ");
        out.push_str(&format!("{line}\n  {:<5}  {}", what.to_lowercase(), words.trim_start()));
    }
    out
}

/// A finding that somebody has to look at: nothing of what they need for that is cut.
fn task(one: &SweepLeakDoc, screen: &Screen) -> String {
    let leak = &one.leak;
    let (size, age) = (bytes(leak.bytes), age_of(leak.age_seconds));
    let mut out = format!("{}  {size}  {age} old  {}\n", leak.class, leak.verdict);
    let width = screen.width.unwrap_or(usize::MAX);
    let words = [("object", safe(&leak.id)), ("path", safe(&leak.path)), ("why", safe(&leak.evidence))];
    let words = words.into_iter().chain([("to do", safe(&one.remedy))]);
    for (label, text) in words.filter(|(_, text)| !text.is_empty()) {
        out.push_str(&format!("  {label:<7}  {}", wrapped(&text, width, "           ").trim_start()));
    }
    if let Some(command) = &one.command {
        out.push_str(&format!("  command  {}\n", safe(command)));
    }
    out
}

/// What a run did.
fn done(document: &SweepDoc, screen: &Screen) -> String {
    let mut out = String::new();
    let deleted = || document.deleted.iter().map(|one| &one.deleted);
    if !document.deleted.is_empty() {
        let mut table =
            Table::new(screen, &["DELETED", "OBJECT", ">PREDICTED", ">MEASURED", ">USED", "WHERE"]);
        for one in &document.deleted {
            table.row(row(one));
        }
        table.fit(&[4], &[(5, 16), (1, 12)]);
        out.push_str(&table.render());
    }
    for one in &document.repaired {
        out.push_str(&format!("repaired: {} {}\n", one.class, safe(&one.id)));
    }
    for one in &document.kept {
        let detail = safe(one.detail.as_deref().unwrap_or_default());
        out.push_str(&format!("kept: {} {}: {detail}\n", one.class, safe(&one.id)));
    }
    for error in &document.errors {
        let id = error.id.as_deref().map(|id| format!("{} ", safe(id))).unwrap_or_default();
        let came = error.measured_bytes.map(|came| format!("; {} freed", signed_bytes(came)));
        let (message, came) = (safe(&error.message), came.unwrap_or_default());
        out.push_str(&format!("failed: {id}({}): {message}{came}\n", error.phase));
    }
    if document.outcome == OutcomeKind::NotNeeded {
        out.push_str("There was nothing to delete.\n");
    }
    if !document.deleted.is_empty() {
        let predicted = deleted().fold(0_u64, |sum, one| sum.saturating_add(one.predicted_bytes));
        out.push_str(&format!(
            "\n{} deleted: predicted {}, measured {}\n",
            count(document.deleted.len(), "finding", "findings"),
            bytes(predicted),
            measured(document.measured_bytes, deleted().any(|one| one.others_wrote)),
        ));
    }
    if deleted().any(|one| one.differs) {
        out.push_str(DIFFERS);
    }
    let going = document.leaks.iter().filter(|one| one.action == "delete").count();
    let stay = document.leaks.len().saturating_sub(going);
    if stay > 0 {
        out.push_str(&format!(
            "{}: `layersweep sweep` shows why\n",
            count(stay, "other finding stays", "other findings stay")
        ));
    }
    out
}

fn row(SweptDoc { class, path, deleted }: &SweptDoc) -> Vec<String> {
    let measured = measured(deleted.measured_bytes, deleted.others_wrote);
    vec![
        class.to_string(),
        short_id(&deleted.id),
        bytes(deleted.predicted_bytes),
        if deleted.differs { format!("! {measured}") } else { measured },
        deleted.usage_after_percent.map_or_else(|| "-".into(), |percent| format!("{percent:.2}%")),
        safe(path),
    ]
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use jiff::tz::TimeZone;

    use super::*;
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
                verdict: "report",
                evidence: "a lease without expiry: it holds its content until its owner deletes it".into(),
            },
            action: "none",
            predicted_bytes: 0,
            remedy: remedy.into(),
            for_a_person: command.is_some(),
            command: command.map(Into::into),
        }
    }

    fn screen(width: Option<usize>) -> Screen {
        Screen { width, unicode: true, truncates: true, zone: TimeZone::UTC }
    }

    #[test]
    fn the_proof_is_whole_on_80_columns() {
        let to_delete = |class, id: &str, evidence: &str| {
            let mut one = finding(class, id, "", None);
            (one.action, one.leak.verdict, one.leak.evidence) = ("delete", "reclaim", evidence.into());
            one
        };
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
    fn what_a_person_has_to_do_is_whole_on_80_columns() {
        let mut document = sweep_refused("r", &LeakRequest::default(), false, "", Timestamp::UNIX_EPOCH);
        (document.outcome, document.errors) = (OutcomeKind::Reported, Vec::new());
        let command = "ctr -n k8s.io leases rm stuck-noexpiry";
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
  command  ctr -n k8s.io leases rm stuck-noexpiry

2 findings: 0 can be deleted, freeing about 0 B; 0 can be repaired; 2 stay
";
        assert_eq!(shown, expected);
    }
}
