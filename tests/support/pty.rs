//! The program on a pseudo-terminal of its own, with the screen as an emulator shows it.

use std::io::{Read as _, Write as _};
use std::num::NonZero;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use super::program;

/// Longest wait for a screen on a busy machine.
const PATIENCE: Duration = Duration::from_secs(45);

pub struct Terminal {
    child: Child,
    controller: OwnedFd,
    /// Stays open, so that its modes can be read after the program has ended.
    user: OwnedFd,
    screen: Arc<Mutex<vt100::Parser>>,
}

fn size(rows: u16, columns: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

impl Terminal {
    /// Starts the program on a terminal of 80 by 24.
    pub fn start(args: &[&str]) -> Self {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&controller).and_then(|()| unlockpt(&controller)).expect("a terminal");
        let name = ptsname(&controller, Vec::new()).expect("a terminal");
        let user = rustix::fs::open(
            &name,
            rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY,
            rustix::fs::Mode::empty(),
        );
        let user = user.expect("a terminal");
        tcsetwinsize(&controller, size(24, 80)).expect("a terminal");
        // It gives the program this terminal as its own.
        let mut command = Command::new("setsid");
        program::hermetic(&mut command);
        command.args(["--ctty", "--wait", env!("CARGO_BIN_EXE_layersweep")]).args(args);
        // The pictures of the documentation are made on a faked clock.
        command
            .envs(std::env::vars().filter(|(name, _)| name == "LD_PRELOAD" || name.starts_with("FAKETIME")));
        command.env("TERM", "xterm").current_dir(std::env::temp_dir());
        let clone = || user.try_clone().expect("a terminal");
        let child = command.stdin(clone()).stdout(clone()).stderr(clone()).spawn().expect("setsid");
        let screen = Arc::new(Mutex::new(vt100::Parser::default()));
        let (mut from, shown) =
            (std::fs::File::from(controller.try_clone().expect("a terminal")), Arc::clone(&screen));
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = from.read(&mut buffer) {
                shown.lock().expect("the screen").process(&buffer[..length]);
            }
        });
        Self { child, controller, user, screen }
    }

    /// Returns the screen as text, a line each.
    pub fn text(&self) -> String {
        self.screen.lock().expect("the screen").screen().contents()
    }

    /// Returns a page with the screen in colour, each character in a box of its own.
    pub fn page(&self) -> String {
        // Black to white, in the shades of a dark terminal.
        const COLOURS: [&str; 8] =
            ["#000000", "#f1635a", "#4fc46b", "#e2c04c", "#5fa3f5", "#d183d8", "#3fbfcf", "#d8dee6"];
        fn colour(cell: vt100::Color, usual: &'static str) -> &'static str {
            match cell {
                vt100::Color::Idx(index) => COLOURS[usize::from(index % 8)],
                vt100::Color::Default | vt100::Color::Rgb(..) => usual,
            }
        }
        let screen = self.screen.lock().expect("the screen");
        let (rows, columns) = screen.screen().size();
        let mut page = String::from(
            "<!DOCTYPE html><html data-drawn=1><meta charset=utf-8><style>html { background: #14181d }
            pre { margin: 20px; font: 20px/24px 'DejaVu Sans Mono' }
            i { display: inline-block; width: 12px; height: 24px; font-style: normal }</style><pre>",
        );
        for row in 0..rows.get() {
            for cell in (0..columns.get()).filter_map(|column| screen.screen().cell(row, column)) {
                let mut colours = [colour(cell.fgcolor(), "#d8dee6"), colour(cell.bgcolor(), "#14181d")];
                if cell.inverse() {
                    colours.reverse();
                }
                let weight = if cell.bold() { "bold" } else { "normal" };
                let [ink, paper] = colours;
                let text = if cell.has_contents() { cell.contents() } else { " " };
                let text = text.replace('&', "&amp;").replace('<', "&lt;");
                page += &format!(
                    "<i style='color: {ink}; background: {paper}; font-weight: {weight}'>{text}</i>"
                );
            }
            page.push('\n');
        }
        page
    }

    /// Waits until the screen is as wanted, and returns it.
    #[track_caller]
    pub fn until(&self, what: &str, is_shown: impl Fn(&str) -> bool) -> String {
        let began = Instant::now();
        loop {
            let text = self.text();
            if is_shown(&text) {
                return text;
            }
            assert!(began.elapsed() < PATIENCE, "{what} is not shown:\n{text}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the screen contains a text.
    #[track_caller]
    pub fn shows(&self, wanted: &str) -> String {
        self.until(wanted, |text| text.contains(wanted))
    }

    pub fn keys(&mut self, keys: &str) {
        let mut to = std::fs::File::from(self.controller.try_clone().expect("a terminal"));
        to.write_all(keys.as_bytes()).expect("typing");
    }

    pub fn resize(&self, rows: u16, columns: u16) {
        self.screen
            .lock()
            .expect("the screen")
            .screen_mut()
            .set_size(NonZero::new(rows).expect("rows"), NonZero::new(columns).expect("columns"));
        tcsetwinsize(&self.controller, size(rows, columns)).expect("a terminal");
    }

    /// Returns the process id of the program.
    pub fn program(&self) -> i32 {
        let id = self.child.id();
        let children =
            std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).expect("the program");
        // Without a child, setsid has replaced itself by the program.
        let first = children.split_whitespace().next().map(str::to_owned).unwrap_or_else(|| id.to_string());
        first.parse().expect("a process id")
    }

    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("the program ends")
    }

    /// Returns true if lines are edited by the kernel and the usual screen is shown, as before the program.
    pub fn is_as_before(&self) -> bool {
        let modes = tcgetattr(self.user.as_fd()).expect("a terminal").local_modes;
        let screen = self.screen.lock().expect("the screen");
        modes.contains(LocalModes::ICANON | LocalModes::ECHO)
            && !screen.screen().alternate_screen()
            && !screen.screen().hide_cursor()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
