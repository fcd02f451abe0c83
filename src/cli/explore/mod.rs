//! `layersweep explore`: a full-screen view of what fills the disk.
//!
//! One thread draws and reads keys; scans, measurements and deletions run on others (`work`), so that a key is answered
//! at once. A deletion is that of `rm`, with its plan, proofs and record.

mod draw;
mod rows;
mod state;
mod work;

use std::collections::HashSet;
use std::fs::File;
use std::io::{IsTerminal, Write as _, stdin, stdout};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use signal_hook::consts::{SIGINT, SIGTSTP};
use signal_hook::{flag, low_level};

use super::global::Global;
use crate::cli::input::args::ExploreArgs;
use crate::cli::screen::outfile::{is_below, is_on_disk_of};
use crate::cli::screen::{full_screen, output, stop, terminal};
use crate::config::Config;
use crate::model::text::display::shell_word;
use crate::report::text::safe;
use crate::services::error::{Error, Exit};
use crate::services::gc_request::ListLine;
use crate::services::request::Request;
use crate::sys::stop::is_requested;

use draw::Look;
use state::{DeletionProgress, ExploreView, Job, TextPage};
use work::{JobDone, JobRunner, ViewObserver};

/// Time between two looks at what changed beside keys.
const TICK: Duration = Duration::from_millis(100);

pub(super) fn run(global: &Global, config: &Config, args: &ExploreArgs) -> Result<Exit, Error> {
    if !stdin().is_terminal() || !stdout().is_terminal() {
        return Err(
            Error::usage("explore needs a terminal").hint("`layersweep usage` prints what fills the disk")
        );
    }
    stop::listen()?;
    let mut session = ExploreSession::new(global, config, args)?;
    let done = session.turn();
    full_screen::leave();
    let (exit, last_words) = done?;
    // The result of a deletion that a signal has ended.
    if let Some(page) = last_words {
        output::script(&page.lines.iter().map(|line| format!("{line}\n")).collect::<String>())?;
    }
    Ok(exit)
}

#[derive(Debug)]
struct ExploreSession {
    runner: JobRunner,
    view: ExploreView,
    terminal: DefaultTerminal,
    look: Look,
    answers: (Sender<JobDone>, Receiver<JobDone>),
    /// Number of answers that have not come.
    open: usize,
    /// One of them is that of a scan.
    scans: bool,
    /// That scan began before a deletion ended: another one follows.
    scans_again: bool,
    /// Directories that are measured, each with the flag that ends this. Entered again, they wait for it.
    measured: Vec<(PathBuf, Arc<AtomicBool>)>,
    /// Suspend as soon as no deletion holds locks.
    suspends: Arc<AtomicBool>,
    turns: usize,
}

/// Maximum number of measurements at a time.
const MOST_OPEN: usize = 4;

impl ExploreSession {
    fn new(global: &Global, config: &Config, args: &ExploreArgs) -> Result<Self, Error> {
        let suspends = Arc::default();
        flag::register(SIGTSTP, Arc::clone(&suspends)).map_err(Error::output)?;
        let runner = JobRunner {
            request: global.request.clone(),
            config: config.clone(),
            file: args.file.clone(),
            observer: ViewObserver::default(),
            is_cancelled: Arc::default(),
        };
        let colour = anstream::AutoStream::choice(&stdout()) != anstream::ColorChoice::Never;
        Ok(Self {
            runner,
            view: ExploreView::new(read_only(&global.request, args)),
            terminal: full_screen::enter()?,
            look: Look { unicode: terminal::is_unicode(), colour },
            answers: channel(),
            open: 0,
            scans: false,
            scans_again: false,
            measured: Vec::new(),
            suspends,
            turns: 0,
        })
    }

    fn turn(&mut self) -> Result<(Exit, Option<TextPage>), Error> {
        self.start(Job::Scan);
        loop {
            self.draw()?;
            if is_requested() {
                return Ok((Exit::Failed, self.end_of_deletion()));
            }
            if self.view.deleting.is_none() && self.suspends.swap(false, Ordering::Relaxed) {
                self.suspend()?;
            }
            self.end_left_measurements();
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
                    Job::Quit => return Ok((Exit::Done, None)),
                    Job::Suspend => self.suspends.store(true, Ordering::Relaxed),
                    // As for `rm`: the deletion ends, and with it the view.
                    Job::Stop => low_level::raise(SIGINT).map_err(Error::output)?,
                    Job::Export => self.view.message = self.export(),
                    job => self.start(job),
                }
            }
        }
    }

    /// Waits for a deletion that a signal ends, on the usual screen: the process may be ended before it has.
    fn end_of_deletion(&mut self) -> Option<TextPage> {
        self.view.deleting.as_ref()?;
        full_screen::leave();
        self.answers.1.iter().find_map(|answer| match answer {
            JobDone::Deleted(page) => Some(page),
            _ => None,
        })
    }

    fn draw(&mut self) -> Result<(), Error> {
        self.turns += 1;
        let sign = ["-", "\\", "|", "/"][self.turns % 4];
        let waiting = (self.open > 0).then(|| match self.view.deleting {
            Some(_) => format!("{sign} {}", draw::during_deletion(self.suspends.load(Ordering::Relaxed))),
            None => format!("{sign} measuring{}", self.runner.observer.say()),
        });
        let (view, look) = (&mut self.view, self.look);
        let drawn = self.terminal.draw(|frame| draw::draw(frame, view, look, waiting.as_deref()));
        drawn.map(drop).map_err(Error::output)
    }

    fn start(&mut self, job: Job) {
        let (is_deletion, is_scan) = (matches!(job, Job::Delete), matches!(job, Job::Scan));
        let is_bounded = is_deletion || matches!(job, Job::Hidden(..));
        if self.open >= MOST_OPEN && !is_bounded || is_scan && self.scans {
            self.view.message = "Still measuring: try again when it is done.".into();
            return;
        }
        let mut runner = self.runner.clone();
        if let Job::Directory(path) = &job {
            if let Some(job) = self.view.unmarked_layer() {
                self.start(job);
            }
            if self.measured.iter().any(|(measured, _)| measured == path) {
                return;
            }
            runner.is_cancelled = Arc::default();
            self.measured.push((path.clone(), Arc::clone(&runner.is_cancelled)));
        }
        self.scans |= is_scan;
        let listed = if is_deletion { self.listed() } else { Vec::new() };
        if is_deletion {
            let progress = Arc::new(Mutex::new(DeletionProgress::new(&self.view)));
            runner.observer.deletion = Some(Arc::clone(&progress));
            self.view.deleting = Some(progress);
        }
        self.open += 1;
        let answers = self.answers.0.clone();
        thread::spawn(move || {
            if let Some(answer) = runner.carry_out(job, &listed) {
                // The view may have ended.
                let _ = answers.send(answer);
            }
        });
    }

    fn take(&mut self, answer: JobDone) -> Result<(), Error> {
        self.scans &= !matches!(answer, JobDone::Scanned(_));
        if let JobDone::Directory(path, _) | JobDone::File(path, _) = &answer {
            self.measured.retain(|(measured, _)| measured != path);
        }
        match answer {
            JobDone::Scanned(Ok(facts)) => {
                if let Some(job) = self.view.set_facts(*facts) {
                    self.start(job);
                }
                if std::mem::take(&mut self.scans_again) {
                    self.start(Job::Scan);
                }
            }
            // Without facts there is nothing to show.
            JobDone::Scanned(Err(error)) if self.view.facts.is_none() => return Err(error),
            JobDone::Scanned(Err(error)) | JobDone::Text(Err(error)) => {
                self.view.message = safe(&error.to_string())
            }
            JobDone::Cancelled => {}
            JobDone::Directory(directory, rows) => self.view.set_directory(&directory, rows),
            JobDone::File(path, page) => {
                self.view.set_directory(&path, Err(String::new()));
                self.view.page = Some(page);
            }
            JobDone::Hidden(scan, node_ix, hidden) => self.view.set_hidden(&scan, node_ix, hidden),
            JobDone::Text(Ok(page)) => self.view.page = Some(page),
            JobDone::Deleted(page) => {
                (self.view.deleting, self.view.in_marked) = (None, false);
                self.view.page = Some(page);
                if self.scans {
                    self.scans_again = true;
                } else {
                    self.start(Job::Scan);
                }
            }
        }
        Ok(())
    }

    /// Ends the measurements of directories that the view has left.
    fn end_left_measurements(&mut self) {
        let levels = &self.view.levels;
        self.measured.retain(|(path, is_cancelled)| {
            let is_shown = levels.iter().any(|level| level.place.is_directory(path));
            is_cancelled.store(!is_shown, Ordering::Relaxed);
            is_shown
        });
    }

    fn suspend(&mut self) -> Result<(), Error> {
        full_screen::leave();
        low_level::emulate_default_handler(SIGTSTP).map_err(Error::output)?;
        self.terminal = full_screen::enter()?;
        Ok(())
    }

    /// Returns the marked images that the question counts: those that can be deleted.
    fn listed(&self) -> Vec<ListLine> {
        let Some(facts) = &self.view.facts else { return Vec::new() };
        let inventory = &facts.scan.inventory;
        let stays: HashSet<_> = self.view.stays.iter().map(|(image, _)| *image).collect();
        let lines = self.view.marked.iter().filter(|image| !stays.contains(*image)).map(|image| ListLine {
            place: "marked".into(),
            reference: inventory[*image].id.to_string(),
            store: Some(inventory[inventory[*image].store].root.clone()),
        });
        lines.collect()
    }

    /// Writes the marked images to a new file; returns what to tell.
    fn export(&self) -> String {
        let Some(facts) = &self.view.facts else { return String::new() };
        let name = format!("layersweep-marked-{}.txt", facts.scan.taken_at.as_second());
        let directory = std::env::current_dir().unwrap_or_default();
        let foreign = self.runner.request.sysroot.iter().filter_map(|root| root.canonicalize().ok());
        if foreign
            .filter(|root| root != Path::new("/"))
            .any(|root| is_below(&directory, &root) || is_on_disk_of(&directory, &root))
        {
            return "The working directory is on the disk that is only read: start in another one.".into();
        }
        let path = directory.join(name);
        let images = self.view.marked.iter().map(|image| &facts.images[image.get()]);
        let lines: String =
            images.map(|image| format!("# {}\n{}\n", safe(&image.names.join(", ")), image.id)).collect();
        let written = File::create_new(&path).and_then(|mut file| file.write_all(lines.as_bytes()));
        match written {
            Ok(()) => {
                let path = safe(&shell_word(&path.to_string_lossy()));
                format!("`layersweep rm --file {path}` deletes them")
            }
            Err(error) => format!("{error}: {}", safe(&path.to_string_lossy())),
        }
    }
}

fn read_only(request: &Request, args: &ExploreArgs) -> Option<String> {
    if args.file.is_some() {
        Some("a saved scan is only shown".into())
    } else if args.read_only {
        Some("--read-only".into())
    } else if request.sysroot.is_some() {
        Some("the disk is that of another machine".into())
    } else if !rustix::process::geteuid().is_root() {
        Some("only root can".into())
    } else {
        None
    }
}
