//! Work of the view, each piece on a thread of its own: scans, measurements, explanations, deletions.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anstream::adapter::strip_str;
use unicode_width::UnicodeWidthChar as _;

use super::super::{deletion, diff};
use super::rows::{Explored, PlaceRow, Reference, rows_of_directory};
use super::state::{DeletionProgress, Job, TextPage};
use crate::app::waste::HiddenInLayer;
use crate::app::{explain, waste};
use crate::cli::screen::{output, terminal};
use crate::config::Config;
use crate::disk::{Progress, filesystem};
use crate::model::text::display::{count, shell_word};
use crate::model::{Finding, NodeIx};
use crate::report::text::{bytes, safe, wrap_lines};
use crate::report::{json, text};
use crate::services::error::Error;
use crate::services::gc_request::{GcRequest, ListLine, Selection};
use crate::services::observer::{Audience, Deleting, Observer, Shown};
use crate::services::request::Request;
use crate::stores::Scan;
use crate::stores::other_usage;
use crate::sys::quiet::{FileKind, InodeFacts};

/// Maximum number of files that `w` lists.
const LISTED: usize = 200;

/// Maximum time for the layers above a layer, before marks are shown as incomplete.
const MARKING: Duration = Duration::from_secs(20);

/// Maximum number of messages of a deletion that are kept.
const MOST_MESSAGES: usize = 100;

/// Result of a [`Job`].
#[derive(Debug)]
pub(super) enum JobDone {
    Scanned(Result<Box<Explored>, Error>),
    Directory(PathBuf, Result<Vec<PlaceRow>, String>),
    /// The view has left the directory.
    Cancelled,
    /// Facts of a file that was taken for a directory.
    File(PathBuf, TextPage),
    Hidden(Arc<Scan>, NodeIx, Result<HiddenInLayer, String>),
    Text(Result<TextPage, Error>),
    Deleted(TextPage),
}

/// Facts with which each thread works.
#[derive(Clone, Debug)]
pub(super) struct JobRunner {
    pub(super) request: Request,
    pub(super) config: Config,
    /// Saved scan that is shown instead of the node.
    pub(super) file: Option<String>,
    pub(super) observer: ViewObserver,
    /// The result is not needed any more.
    pub(super) is_cancelled: Arc<AtomicBool>,
}

/// Keeps the progress of the current measurement and of a deletion. Other messages are dropped: the view shows what they
/// are about.
#[derive(Clone, Debug, Default)]
pub(super) struct ViewObserver {
    progress: Arc<Mutex<Option<Arc<Progress>>>>,
    pub(super) deletion: Option<Arc<Mutex<DeletionProgress>>>,
}

impl ViewObserver {
    pub(super) fn say(&self) -> String {
        let progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.as_ref().map_or_else(String::new, |progress| {
            let inodes = progress.inodes.load(Ordering::Relaxed);
            format!(": {inodes} inodes, {}", bytes(progress.bytes.load(Ordering::Relaxed)))
        })
    }

    fn change(&self, change: impl FnOnce(&mut DeletionProgress)) {
        if let Some(deletion) = &self.deletion {
            change(&mut deletion.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    fn add(&self, kind: &str, message: &str, hint: &str) {
        self.change(|deletion| {
            if deletion.messages.len() < MOST_MESSAGES {
                deletion.messages.push(format!("{kind}: {}", safe(message)));
                deletion.messages.extend((!hint.is_empty()).then(|| format!("hint: {}", safe(hint))));
            }
        });
    }
}

impl Observer for ViewObserver {
    fn note(&self, message: &str) {
        self.add("note", message, "");
    }

    fn warn(&self, _: Audience, message: &str, hint: &str) {
        self.add("warning", message, hint);
    }

    fn finding(&self, _: Audience, finding: &Finding) {
        self.add("warning", &format!("{}: {}", finding.path.display(), finding.message), "");
    }

    fn deleting(&self, deleting: &Deleting<'_>) {
        let Deleting { number, planned, target, freed_bytes } = deleting;
        self.change(|deletion| {
            (deletion.number, deletion.planned, deletion.freed_bytes) = (*number, *planned, *freed_bytes);
            deletion.begun.push(safe(target.title()));
            for (mount, percent) in &mut deletion.disks {
                *percent = filesystem::facts(Path::new(mount)).ok().and_then(|facts| facts.used_percent());
            }
        });
    }

    fn measuring(&self, progress: &Arc<Progress>) -> Shown {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(progress));
        Shown::default()
    }
}

impl JobRunner {
    /// Does a job. A panic is its failure, so that the view does not wait for ever.
    pub(super) fn carry_out(&self, job: Job, listed: &[ListLine]) -> Option<JobDone> {
        let failed = job.clone();
        // A panic leaves no half-changed state behind: the job owns what it works on.
        catch_unwind(AssertUnwindSafe(|| self.done(job, listed)))
            .unwrap_or_else(|panic| failure(failed, &panic_message(&*panic)))
    }

    fn done(&self, job: Job, listed: &[ListLine]) -> Option<JobDone> {
        let Self { request, config, observer, .. } = self;
        Some(match job {
            Job::Scan => JobDone::Scanned(self.scan().map(Box::new)),
            Job::Directory(directory) => {
                let progress = Arc::default();
                let _shown = observer.measuring(&progress);
                match other_usage::entries(&request.root(), &directory, &progress, &self.is_cancelled) {
                    // The directory may have been entered again since: a later measurement answers for it.
                    _ if self.is_cancelled.load(Ordering::Relaxed) => JobDone::Cancelled,
                    Ok(entries) => {
                        let rows = rows_of_directory(&directory, &entries);
                        JobDone::Directory(directory, Ok(rows))
                    }
                    Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
                        match self.file(&directory) {
                            Ok(page) => JobDone::File(directory, page),
                            Err(why) => JobDone::Directory(directory, Err(why)),
                        }
                    }
                    Err(error) => {
                        let why = format!("{}: {error}", safe(&directory.to_string_lossy()));
                        JobDone::Directory(directory, Err(why))
                    }
                }
            }
            Job::File(path) => JobDone::Text(self.file(&path).map_err(Error::failed)),
            Job::Hidden(scan, node_ix) => {
                let hidden = waste::hidden_in_layer(&scan, node_ix, Instant::now() + MARKING)
                    .map_err(|error| format!("what upper layers hide is unknown: {error}"));
                JobDone::Hidden(scan, node_ix, hidden)
            }
            Job::Explain(Reference { text: reference, store }) => {
                let explained = explain::explain(request, observer, config, &reference, store.as_deref());
                JobDone::Text(explained.map(|explained| {
                    let document = json::explanation(&explained);
                    page(
                        format!("explain {}", safe(&reference)),
                        &text::explain(&document, &terminal::screen(), true),
                    )
                }))
            }
            Job::Waste(Reference { text: image, store }) => {
                let image_in_store = Some((image.as_str(), store.as_deref()));
                let wasted = waste::waste(request, observer, image_in_store, Some(LISTED));
                JobDone::Text(wasted.map(|wasted| {
                    let text = text::waste(&json::waste(&wasted), &terminal::screen());
                    page(format!("waste {image} --files"), &text)
                }))
            }
            Job::Delete => JobDone::Deleted(self.delete(listed)),
            Job::Export | Job::Stop | Job::Suspend | Job::Quit => return None,
        })
    }

    fn scan(&self) -> Result<Explored, Error> {
        match &self.file {
            Some(file) => {
                Explored::saved(&diff::read_document(file)?).map_err(|why| diff::refused(file, &why))
            }
            None => Explored::read(&self.request, &self.observer, &self.config),
        }
    }

    /// Deletes as `rm` does, by its plan, proofs and record, and returns what it prints.
    fn delete(&self, listed: &[ListLine]) -> TextPage {
        let request = GcRequest {
            request: &self.request,
            config: &self.config,
            selection: Selection::Rm { references: &[], listed, all_tags: true },
            dry_run: false,
            while_runtime_runs: false,
        };
        let result = deletion::run_confirmed(request, &self.observer);
        let mut messages = Vec::new();
        self.observer.change(|deletion| messages = std::mem::take(&mut deletion.messages));
        let shown = match result {
            Ok(result) => {
                let text = text::gc(&json::gc(&result), &terminal::screen());
                return page("deleted".into(), &format!("{}{text}", lines(&messages)));
            }
            Err(error) => std::iter::once(&error).chain(&error.others).fold(String::new(), |text, error| {
                let hint = error.hint.as_ref().map_or_else(String::new, |hint| format!("hint: {hint}\n"));
                format!("{text}error: {}\n{hint}", error.line())
            }),
        };
        page("not deleted".into(), &format!("{}{}", lines(&messages), safe_lines(&shown)))
    }

    fn file(&self, path: &Path) -> Result<TextPage, String> {
        let shown = safe(&path.to_string_lossy());
        let root = self.request.root();
        let file = other_usage::file(&root, path).map_err(|error| format!("{shown}: {error}"))?;
        let InodeFacts { kind, is_whiteout, length, links, owner, modified, .. } = file.facts;
        let kind = match kind {
            FileKind::File => "file",
            FileKind::Directory => "directory",
            FileKind::Symlink => "symlink",
            FileKind::Special if is_whiteout => "whiteout: it hides a name of lower layers",
            FileKind::Special => "device, pipe or socket",
        };
        let modified = modified.map_or_else(|| "unknown".into(), |time| time.to_string());
        let links = usize::try_from(links).unwrap_or(usize::MAX);
        let facts = [
            shown.clone(),
            String::new(),
            format!("Kind      {kind}"),
            format!("Size      {} allocated, {} long", bytes(file.bytes), bytes(length)),
            format!("Owner     {}, mode {:04o}", safe(&root.user_name(owner)), file.mode & 0o7777),
            format!("Links     {}", count(links, "name", "names")),
            format!("Modified  {modified}"),
            String::new(),
            format!(
                "`layersweep explain {}` tells whose bytes these are.",
                safe(&shell_word(&path.to_string_lossy()))
            ),
        ];
        Ok(page(shown, &lines(&facts)))
    }
}

fn lines(lines: &[String]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn safe_lines(text: &str) -> String {
    text.lines().map(|line| format!("{}\n", safe(line))).collect()
}

fn page(title: String, text: &str) -> TextPage {
    let shown = output::shown(text);
    let text = strip_str(&shown).to_string();
    let lines = match terminal::width(std::io::stdout()) {
        Some(width) => {
            let text = wrap_lines(&text, width);
            text.lines().flat_map(|line| in_pieces(line, width)).collect()
        }
        None => text.lines().map(str::to_owned).collect(),
    };
    TextPage { title, lines, scroll: 0 }
}

/// Divides a line that has no place to break it, for example a path or a command.
fn in_pieces(line: &str, width: usize) -> Vec<String> {
    let mut pieces = vec![String::new()];
    let mut column = 0;
    for sign in line.chars() {
        let sign_width = sign.width().unwrap_or(0);
        if column + sign_width > width {
            pieces.push(String::new());
            column = 0;
        }
        column += sign_width;
        pieces.last_mut().into_iter().for_each(|piece| piece.push(sign));
    }
    pieces
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    safe(&format!(
        "layersweep has a bug here: {}",
        text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
    ))
}

/// Returns the answer of a job that did not end.
fn failure(job: Job, why: &str) -> Option<JobDone> {
    Some(match job {
        Job::Scan => JobDone::Scanned(Err(Error::failed(why))),
        Job::Directory(path) => JobDone::Directory(path, Err(why.to_owned())),
        Job::Hidden(scan, node_ix) => JobDone::Hidden(scan, node_ix, Err(why.to_owned())),
        Job::File(_) | Job::Explain(_) | Job::Waste(_) => JobDone::Text(Err(Error::failed(why))),
        Job::Delete => {
            let text = format!("error: {why}\nWhat was begun is finished by the next run.\n");
            JobDone::Deleted(page("deletion ended early".into(), &text))
        }
        Job::Export | Job::Stop | Job::Suspend | Job::Quit => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_divided() {
        assert_eq!(in_pieces("/a/b/c", 4), ["/a/b", "/c"]);
        assert_eq!(in_pieces("", 4), [""]);
    }

    #[test]
    fn panic_of_work_becomes_its_failure() {
        let panic = catch_unwind(|| assert!(std::hint::black_box(false), "no \u{1b} store")).unwrap_err();
        let message = panic_message(&*panic);
        assert!(message.starts_with("layersweep has a bug here: no \\u{1b} store"), "{message}");
        let Some(JobDone::Directory(path, Err(why))) = failure(Job::Directory("/a".into()), &message) else {
            panic!("an answer for the directory");
        };
        assert_eq!((path, why), (PathBuf::from("/a"), message));
    }
}
