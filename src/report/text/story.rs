//! Text about images that are gone: their lives and what ended them.

use jiff::Timestamp;

use super::format::{bytes, freed, names, safe, short_id};
use super::screen::Screen;
use super::table::bold;
use crate::app::explain::Presence;
use crate::history::runs::{Command, DeletionOutcome};
use crate::model::deletion::plan::Reason;
use crate::model::text::display::{count, shell_word};
use crate::report::json::{DeletionDoc, EndedBy, LifeDoc, StoryDoc};

/// Maximum number of images that are shown; a tag may have named hundreds.
const MOST: usize = 5;

pub(super) fn absent_images(images: &[StoryDoc], now: Timestamp, screen: &Screen) -> String {
    let mut out = String::new();
    for image in images.iter().take(MOST) {
        if !out.is_empty() {
            out.push('\n');
        }
        out.push_str(&format!("{} {}\n", bold("image"), title(image)));
        out.push_str(&format!("  state   {}\n", state(image, screen)));
        out.push_str(&format!("  id      {}\n  store   {}\n", safe(&image.id), safe(&image.store)));
        for (position, life) in image.lives.iter().enumerate() {
            let label = if position == 0 { "  lived   " } else { "  before  " };
            out.push_str(&life_line(life, label, position > 0, screen));
        }
    }
    if images.len() > MOST {
        out.push_str(&format!("\nand {} older: `layersweep history NAME` lists all\n", images.len() - MOST));
    }
    out + &screen.zone_line(now)
}

/// Formats a line for each other image that had the name of an image earlier.
pub(super) fn namesakes(images: &[StoryDoc], screen: &Screen) -> String {
    let mut out = String::new();
    for image in images.iter().take(MOST) {
        out.push_str(&format!(
            "  before  the name was that of image {}: {}\n",
            short_id(&image.id),
            state(image, screen)
        ));
    }
    if images.len() > MOST {
        out.push_str(&format!("  before  and {} older: `layersweep history NAME`\n", images.len() - MOST));
    }
    out
}

fn state(image: &StoryDoc, screen: &Screen) -> String {
    match (image.presence, image.lives.first()) {
        (Presence::Renamed, _) => format!(
            "still there, now {}: `layersweep explain {}` shows it",
            names(&image.names_now),
            safe(&shell_word(&short_id(&image.id)))
        ),
        (Presence::Recorded, Some(life)) => format!(
            "not known: its store was not read in full now; last found by the scan of {}",
            screen.time(life.last_seen)
        ),
        (_, Some(life)) => format!("not there now: {}", ending(life, screen)),
        (_, None) => {
            let deletion =
                image.deletions.iter().find(|deletion| deletion.outcome != Some(DeletionOutcome::Failed));
            let text = deletion.map(|deletion| dated_deletion(deletion, screen));
            format!("not there now: {}", text.unwrap_or_default())
        }
    }
}

/// Formats the name that the user means, or the last names.
fn title(image: &StoryDoc) -> String {
    image.meant_name.as_deref().map_or_else(|| names(&image.names), safe)
}

/// Formats the name that the user means, or the names of an event, if the image had another name then.
fn title_then(image: &StoryDoc, names_then: &[String]) -> String {
    match &image.meant_name {
        Some(name) if !names_then.is_empty() && !names_then.contains(name) => names(names_then),
        _ => title(image),
    }
}

/// Formats a life of an image: its times, its uses and, with `tells_end`, what ended it.
pub(super) fn life_line(life: &LifeDoc, label: &str, tells_end: bool, screen: &Screen) -> String {
    let until = match (life.ended_by, &life.deletion) {
        (Some(_), Some(deletion)) => deletion.deleted_at,
        (Some(_), None) => Some(life.last_seen),
        (None, _) => None,
    };
    let since = life.first_detected;
    let until = until.map_or_else(String::new, |until| format!(" to {}", screen.time_on(until, since)));
    let used = match life.last_used {
        Some(last) => {
            format!("used {}, last {}", count(life.use_count, "time", "times"), screen.minute(last))
        }
        None => "never used".to_owned(),
    };
    let end = if tells_end && life.ended_by.is_some() {
        format!("; {}", ending(life, screen))
    } else {
        String::new()
    };
    format!("{label}{}{until}, {used}{end}\n", screen.time(since))
}

pub(super) fn ending(life: &LifeDoc, screen: &Screen) -> String {
    match (&life.deletion, life.absent_since) {
        (Some(deletion), _) => dated_deletion(deletion, screen),
        (None, Some(gone)) => format!(
            "removed by another program between the scans of {} and {}",
            screen.time(life.last_seen),
            screen.time_on(gone, life.last_seen)
        ),
        (None, None) => {
            format!("removed by another program after the scan of {}", screen.time(life.last_seen))
        }
    }
}

fn dated_deletion(deletion: &DeletionDoc, screen: &Screen) -> String {
    let time = deletion.deleted_at.map_or_else(String::new, |time| format!(" {}", screen.time(time)));
    deletion_text(deletion, &time)
}

/// Formats a deletion by a run, or an attempt. `time`: its time after a blank, or empty.
fn deletion_text(deletion: &DeletionDoc, time: &str) -> String {
    let done = match deletion.outcome {
        Some(DeletionOutcome::Deleted) => "deleted by",
        Some(DeletionOutcome::Failed) => "not deleted by",
        Some(DeletionOutcome::Unknown) | None => "deletion begun, result unknown, by",
    };
    let why = match deletion.reason {
        Reason::Request => String::new(),
        reason => format!("{reason}, "),
    };
    let result = match (deletion.outcome, deletion.measured_bytes) {
        (Some(DeletionOutcome::Failed), _) => deletion.error.as_deref().map_or_else(|| "failed".into(), safe),
        (_, Some(measured)) => format!("freed {}", freed(measured, deletion.disturbed)),
        (_, None) => format!("{} predicted", bytes(deletion.predicted_bytes)),
    };
    let command = deletion.command.map_or("", Command::as_str);
    let run_id = safe(deletion.run_id.as_deref().unwrap_or_default());
    format!("{done} {command}{time} ({why}{result}), run {run_id}")
}

/// Formats the last finding of an image that is there. It may have lost the name that the user means.
fn last_found(image: &StoryDoc, life: &LifeDoc) -> String {
    match &image.meant_name {
        Some(name) if !life.names.contains(name) => {
            format!("still on disk, now named {} (last scan)", names(&life.names))
        }
        _ => "still on disk (last scan)".to_owned(),
    }
}

/// Formats all that happened to images, the newest first: a line for each event, with date, name and run, and with the
/// store if the images were in several.
pub(super) fn events(images: &[StoryDoc], screen: &Screen) -> String {
    let mut events = Vec::new();
    for image in images {
        for life in &image.lives {
            let mut add = |time, event: String| events.push((time, image, life.names.as_slice(), event));
            let begin = if life.life > 1 { "pulled again" } else { "first detected" };
            add(life.first_detected, begin.to_owned());
            if life.ended_by == Some(EndedBy::Other) {
                add(life.absent_since.unwrap_or(life.last_seen), ending(life, screen));
            }
            if life.ended_by.is_none() {
                add(life.last_seen, last_found(image, life));
            }
            if let Some(last) = life.last_used {
                add(last, format!("last used ({})", count(life.use_count, "time", "times")));
            }
        }
        events.extend(image.deletions.iter().filter_map(|deletion| {
            Some((deletion.deleted_at?, image, deletion.names.as_slice(), deletion_text(deletion, "")))
        }));
    }
    events.sort_by_key(|(time, ..)| std::cmp::Reverse(*time));
    let zone = events.first().map_or_else(String::new, |(time, ..)| screen.zone_line(*time));
    let several = images.iter().any(|image| image.store != images[0].store);
    let mut out = String::new();
    for (time, image, names_then, event) in events {
        let (time, id) = (screen.time(time), short_id(&image.id));
        let store = if several { format!(" in {}", safe(&image.store)) } else { String::new() };
        out.push_str(&format!("{time}  {id}  {}{store}: {event}\n", title_then(image, names_then)));
    }
    out + &zone
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;

    use super::*;

    fn life() -> LifeDoc {
        LifeDoc {
            life: 1,
            first_detected: Timestamp::UNIX_EPOCH,
            last_seen: Timestamp::UNIX_EPOCH,
            absent_since: None,
            last_used: None,
            use_count: 0,
            names: vec!["quay.io/a:2".into()],
            frees_bytes: 0,
            ended_by: None,
            deletion: None,
        }
    }

    fn story(store: &str) -> StoryDoc {
        StoryDoc {
            id: "aa".into(),
            store: store.into(),
            meant_name: None,
            names: life().names,
            presence: Presence::Recorded,
            names_now: Vec::new(),
            lives: vec![life()],
            deletions: Vec::new(),
        }
    }

    #[test]
    fn events_name_one_of_several_stores() {
        let screen = Screen { width: None, unicode: true, truncates: true, notes: true, zone: TimeZone::UTC };
        let [one, other] = ["/s", "/t"].map(story);
        assert!(events(std::slice::from_ref(&one), &screen).contains("  aa  quay.io/a:2: first detected\n"));
        let both = events(&[one, other], &screen);
        for store in ["/s", "/t"] {
            assert!(both.contains(&format!("  aa  quay.io/a:2 in {store}: first detected\n")), "{both}");
        }
    }

    #[test]
    fn lost_name_is_not_said_to_be_there() {
        let image = |meant: Option<&str>| StoryDoc { meant_name: meant.map(str::to_owned), ..story("/s") };
        // The past has the names of its time.
        for (meant, names_then, expected) in [
            ("quay.io/a:3", &["quay.io/a:2".to_owned()][..], "quay.io/a:2"),
            ("quay.io/a:2", &["quay.io/a:1".to_owned(), "quay.io/a:2".to_owned()], "quay.io/a:2"),
            ("quay.io/a:3", &[], "quay.io/a:3"),
        ] {
            assert_eq!(title_then(&image(Some(meant)), names_then), expected);
        }
        let lost = "still on disk, now named quay.io/a:2 (last scan)";
        assert_eq!(last_found(&image(Some("quay.io/a:1")), &life()), lost);
        for meant in [Some("quay.io/a:2"), None] {
            assert_eq!(last_found(&image(meant), &life()), "still on disk (last scan)");
        }
    }
}
