//! `layersweep explore`: a full-screen view of what fills the disk.
//!
//! One thread draws and reads keys; scans and measurements run on others, so that a key is answered at once. A deletion
//! leaves the full screen and is `rm` itself, with its plan, proofs, progress and record.

mod draw;
mod rows;
mod state;

use std::fs::File;
use std::io::{IsTerminal, Write as _, stdin, stdout};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anstream::adapter::strip_str;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::{DefaultTerminal, Terminal};
use signal_hook::consts::SIGTSTP;
use signal_hook::{flag, low_level};

use super::deletion;
use super::global::Global;
use crate::app::{explain, waste};
use crate::cli::input::args::ExploreArgs;
use crate::cli::screen::{output, stop, terminal};
use crate::config::Config;
use crate::disk::Progress;
use crate::model::Finding;
use crate::model::text::display::shell_word;
use crate::report::text::{bytes, safe, wrap_lines};
use crate::report::{json, text};
use crate::services::error::{Error, Exit};
use crate::services::gc_request::{GcRequest, ListLine, Selection};
use crate::services::observer::{Audience, Observer, Shown};
use crate::services::request::Request;
use crate::stores::other_usage;
use crate::sys::stop::is_requested;

use draw::Look;
use rows::{Explored, PlaceRow, rows_of_directory};
use state::{ExploreView, Job, TextPage};

/// Time between two looks at what changed beside keys.
const TICK: Duration = Duration::from_millis(100);

const LISTED: usize = 200;

pub(super) fn run(global: &Global, config: &Config, args: &ExploreArgs) -> Result<Exit, Error> {
    if !stdin().is_terminal() || !stdout().is_terminal() {
        return Err(
            Error::usage("explore needs a terminal").hint("`layersweep usage` prints what fills the disk")
        );
    }
    stop::listen()?;
    let mut session = ExploreSession::new(global, config, args)?;
    let done = session.turn();
    session.leave();
    done
}

#[derive(Debug)]
enum JobDone {
    Scanned(Result<Box<Explored>, Error>),
    Directory(PathBuf, Result<Vec<PlaceRow>, String>),
    Text(Result<TextPage, Error>),
}

#[derive(Debug)]
struct ExploreSession<'a> {
    global: &'a Global,
    config: &'a Config,
    view: ExploreView,
    terminal: DefaultTerminal,
    look: Look,
    answers: (Sender<JobDone>, Receiver<JobDone>),
    /// Number of answers that have not come.
    open: usize,
    /// One of them is that of a scan.
    scans: bool,
    observer: Silent,
    suspends: Arc<AtomicBool>,
    turns: usize,
}

/// Keeps the progress of the current measurement, and drops messages: the view shows what they are about.
#[derive(Clone, Debug, Default)]
struct Silent {
    progress: Arc<Mutex<Option<Arc<Progress>>>>,
}

impl Observer for Silent {
    fn note(&self, _: &str) {}

    fn warn(&self, _: Audience, _: &str, _: &str) {}

    fn finding(&self, _: Audience, _: &Finding) {}

    fn measuring(&self, progress: &Arc<Progress>) -> Shown {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(progress));
        Shown::default()
    }
}

impl Silent {
    fn say(&self) -> String {
        let progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.as_ref().map_or_else(String::new, |progress| {
            let inodes = progress.inodes.load(Ordering::Relaxed);
            format!(": {inodes} inodes, {}", bytes(progress.bytes.load(Ordering::Relaxed)))
        })
    }
}

/// Maximum number of measurements at a time.
const MOST_OPEN: usize = 4;

impl<'a> ExploreSession<'a> {
    fn new(global: &'a Global, config: &'a Config, args: &ExploreArgs) -> Result<Self, Error> {
        let suspends = Arc::default();
        flag::register(SIGTSTP, Arc::clone(&suspends)).map_err(Error::output)?;
        let terminal = ratatui::try_init().map_err(Error::output)?;
        let colour = anstream::AutoStream::choice(&stdout()) != anstream::ColorChoice::Never;
        Ok(Self {
            global,
            config,
            view: ExploreView::new(read_only(&global.request, args)),
            terminal,
            look: Look { unicode: terminal::is_unicode(), colour },
            answers: channel(),
            open: 0,
            scans: false,
            observer: Silent::default(),
            suspends,
            turns: 0,
        })
    }

    fn turn(&mut self) -> Result<Exit, Error> {
        self.start(Job::Scan);
        loop {
            self.draw()?;
            if is_requested() {
                return Ok(Exit::Failed);
            }
            if self.suspends.swap(false, Ordering::Relaxed) {
                self.suspend()?;
            }
            while let Ok(answer) = self.answers.1.try_recv() {
                self.open -= 1;
                self.take(answer)?;
            }
            // A signal ends the wait early.
            match event::poll(TICK) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Error::output(error)),
            }
            if let Event::Key(key) = event::read().map_err(Error::output)?
                && key.kind != KeyEventKind::Release
                && let Some(job) = self.view.key(key)
            {
                match job {
                    Job::Quit => return Ok(Exit::Done),
                    Job::Suspend => self.suspend()?,
                    Job::Delete => self.delete()?,
                    Job::Export => self.view.message = self.export(),
                    job => self.start(job),
                }
            }
        }
    }

    fn draw(&mut self) -> Result<(), Error> {
        self.turns += 1;
        let sign = ["-", "\\", "|", "/"][self.turns % 4];
        let waiting = (self.open > 0).then(|| format!("{sign} measuring{}", self.observer.say()));
        let (view, look) = (&mut self.view, self.look);
        let drawn = self.terminal.draw(|frame| draw::draw(frame, view, look, waiting.as_deref()));
        drawn.map(drop).map_err(Error::output)
    }

    fn start(&mut self, job: Job) {
        if self.open >= MOST_OPEN || job == Job::Scan && self.scans {
            self.view.message = "Still measuring: try again when it is done.".into();
            return;
        }
        self.scans |= job == Job::Scan;
        let (request, config) = (self.global.request.clone(), self.config.clone());
        let (observer, answers) = (self.observer.clone(), self.answers.0.clone());
        self.open += 1;
        thread::spawn(move || {
            if let Some(answer) = carry_out(job, &request, &config, &observer) {
                // The view may have ended.
                let _ = answers.send(answer);
            }
        });
    }

    fn take(&mut self, answer: JobDone) -> Result<(), Error> {
        self.scans &= !matches!(answer, JobDone::Scanned(_));
        match answer {
            JobDone::Scanned(Ok(facts)) => self.view.set_facts(*facts),
            // Without facts there is nothing to show.
            JobDone::Scanned(Err(error)) if self.view.facts.is_none() => return Err(error),
            JobDone::Scanned(Err(error)) | JobDone::Text(Err(error)) => {
                self.view.message = safe(&error.to_string())
            }
            JobDone::Directory(directory, rows) => self.view.set_directory(&directory, rows),
            JobDone::Text(Ok(page)) => self.view.page = Some(page),
        }
        Ok(())
    }

    fn leave(&mut self) {
        // The terminal may be gone.
        let _ = disable_raw_mode();
        let _ = execute!(stdout(), LeaveAlternateScreen);
        let _ = self.terminal.show_cursor();
    }

    fn enter(&mut self) -> Result<(), Error> {
        enable_raw_mode().map_err(Error::output)?;
        execute!(stdout(), EnterAlternateScreen, Clear(ClearType::All)).map_err(Error::output)?;
        // A new one draws everything. It could not ask where the cursor is: not every terminal answers.
        self.terminal = Terminal::new(CrosstermBackend::new(stdout())).map_err(Error::output)?;
        Ok(())
    }

    fn suspend(&mut self) -> Result<(), Error> {
        self.leave();
        low_level::emulate_default_handler(SIGTSTP).map_err(Error::output)?;
        self.enter()
    }

    /// Deletes the marked images as `rm` does, on the usual screen, and scans again.
    fn delete(&mut self) -> Result<(), Error> {
        let listed = self.listed();
        self.leave();
        let request = GcRequest {
            request: &self.global.request,
            config: self.config,
            selection: Selection::Rm { references: &[], listed: &listed, all_tags: true },
            dry_run: false,
            while_runtime_runs: false,
        };
        // The answer was typed already.
        let confirmed = self.global.confirmed();
        if let Err(error) = deletion::run(&confirmed, request) {
            super::observer::report(&error);
        }
        output::on_stderr("Enter goes back to the view.\n")?;
        let _ = stdin().read_line(&mut String::new());
        self.enter()?;
        self.start(Job::Scan);
        Ok(())
    }

    fn listed(&self) -> Vec<ListLine> {
        let Some(facts) = &self.view.facts else { return Vec::new() };
        let inventory = &facts.usage.result.scan.inventory;
        let lines = self.view.marked.iter().map(|image| ListLine {
            place: "marked".into(),
            reference: inventory[*image].id.to_string(),
            store: Some(inventory[inventory[*image].store].root.clone()),
        });
        lines.collect()
    }

    /// Writes the marked images to a new file; returns what to tell.
    fn export(&self) -> String {
        let Some(facts) = &self.view.facts else { return String::new() };
        let name = format!("layersweep-marked-{}.txt", facts.usage.result.scan.taken_at.as_second());
        let path = std::env::current_dir().unwrap_or_default().join(name);
        let images = self.view.marked.iter().map(|image| &facts.images[image.get()]);
        let lines: String =
            images.map(|image| format!("# {}\n{}\n", safe(&image.names.join(", ")), image.id)).collect();
        let written = File::create_new(&path).and_then(|mut file| file.write_all(lines.as_bytes()));
        match written {
            Ok(()) => format!("`rm --file` takes {}", safe(&shell_word(&path.to_string_lossy()))),
            Err(error) => format!("{error}: {}", safe(&path.to_string_lossy())),
        }
    }
}

fn read_only(request: &Request, args: &ExploreArgs) -> Option<String> {
    if args.read_only {
        Some("--read-only".into())
    } else if request.sysroot.is_some() {
        Some("the disk is that of another machine".into())
    } else if !rustix::process::geteuid().is_root() {
        Some("only root can".into())
    } else {
        None
    }
}

fn carry_out(job: Job, request: &Request, config: &Config, observer: &Silent) -> Option<JobDone> {
    Some(match job {
        Job::Scan => JobDone::Scanned(Explored::read(request, observer, config).map(Box::new)),
        Job::Directory(directory) => {
            let progress = Arc::default();
            let _shown = observer.measuring(&progress);
            let entries = other_usage::entries(&request.root(), &directory, &progress);
            let rows = entries.map(|entries| rows_of_directory(&directory, &entries));
            let failed = |error: std::io::Error| format!("{}: {error}", safe(&directory.to_string_lossy()));
            let rows = rows.map_err(failed);
            JobDone::Directory(directory, rows)
        }
        Job::Explain(image) => {
            let explained = explain::explain(request, observer, config, &image);
            JobDone::Text(explained.map(|explained| {
                let document = json::explanation(&explained);
                page(format!("explain {image}"), &text::explain(&document, &terminal::screen(), true))
            }))
        }
        Job::Waste(image) => {
            let wasted = waste::waste(request, observer, Some(&image), Some(LISTED));
            JobDone::Text(wasted.map(|wasted| {
                page(
                    format!("waste {image} --files"),
                    &text::waste(&json::waste(&wasted), &terminal::screen()),
                )
            }))
        }
        Job::Export | Job::Delete | Job::Suspend | Job::Quit => return None,
    })
}

fn page(title: String, text: &str) -> TextPage {
    let shown = output::shown(text);
    let text = strip_str(&shown).to_string();
    let text = terminal::width(stdout()).map_or(text.clone(), |width| wrap_lines(&text, width));
    let lines = text.lines().map(str::to_owned).collect();
    TextPage { title, lines, scroll: 0 }
}
