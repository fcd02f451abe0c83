//! Text of `pin`: the keep-list.

use super::format::safe;
use super::screen::Screen;
use super::table::Table;
use crate::app::pins::PinList;
use crate::report::json::PinsDoc;

pub fn pins(document: &PinsDoc, screen: &Screen) -> String {
    if !document.list.complete {
        return "The keep-list cannot be read.\n".into();
    }
    if document.list.pins.is_empty() {
        return "No pattern is pinned.\n".into();
    }
    let since = format!("SINCE ({})", screen.zone_name(document.header.generated_at));
    let mut table = Table::new(screen, &["PATTERN", &since, "NOTE"]);
    for pin in &document.list.pins {
        table.row(vec![safe(&pin.pattern), screen.minute(pin.added_at), safe(&pin.note)]);
    }
    // A pattern is never shortened, because `pin remove` needs it whole.
    table.fit(&[1], &[(2, 20)]);
    let mut out = table.render();
    if let Some(user) = &document.list.user {
        let footer = format!("These pins are of user {} only; root's gc does not see them.", safe(user));
        out.push_str(&screen.note(&footer));
    }
    out
}

/// Formats a line for each added or removed pin; empty without changes.
pub fn pins_changed(document: &PinsDoc) -> String {
    fn lines(change: &str, patterns: &[String], end: &str) -> String {
        patterns.iter().map(|pattern| format!("{change} {}{end}\n", safe(pattern))).collect()
    }
    let PinList { added, removed, user, .. } = &document.list;
    let scope = user.as_ref().map(|user| format!(" for user {} only; root's gc does not see it", safe(user)));
    lines("pinned", added, &scope.unwrap_or_default()) + &lines("no longer pinned", removed, "")
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use jiff::tz::TimeZone;

    use super::*;
    use crate::history::pins::Pin;
    use crate::report::json;

    #[test]
    fn notes_cannot_control_the_terminal() {
        let pin = Pin {
            pattern: "quay.io/*".into(),
            note: "a\u{1b}[31m\u{202e}".into(),
            added_at: Timestamp::UNIX_EPOCH,
        };
        let screen =
            Screen { width: Some(60), unicode: true, truncates: true, notes: true, zone: TimeZone::UTC };
        let list = PinList {
            database: None,
            complete: true,
            user: None,
            pins: vec![pin],
            added: Vec::new(),
            removed: Vec::new(),
            missing: None,
        };
        let mut document = json::pins(Timestamp::UNIX_EPOCH, list);
        let shown = anstream::adapter::strip_str(&pins(&document, &screen)).to_string();
        assert_eq!(
            shown,
            "PATTERN    SINCE (UTC)       NOTE\nquay.io/*  1970-01-01 00:00  a\\u{1b}[31m\\u{202e}\n"
        );
        document.list.pins.clear();
        assert_eq!(pins(&document, &screen), "No pattern is pinned.\n");
    }
}
