//! The headless shell of Chromium, which takes a fifth of the browser's processor time. It is driven through its debugging
//! pipe: messages of the DevTools protocol, each ended by a NUL. It uses no socket and no port, exits with its pipe, and
//! keeps its files in its own directory.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;

const CHROMIUM: &str = "chromium-headless-shell";

/// Timeout for every wait, also on a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(120);

/// Returns whether Chromium is installed; skips, or fails under CI.
pub fn require() -> bool {
    super::require_program(CHROMIUM)
}

/// A running browser.
#[derive(Debug)]
pub struct Browser {
    child: Child,
    to: Option<ChildStdin>,
    from: Receiver<Value>,
    last_id: u64,
    events: Vec<Value>,
    _dir: TempDir,
}

impl Browser {
    /// Starts the browser; tries three times.
    pub fn start() -> Self {
        let mut failures = Vec::new();
        for _ in 0..3 {
            match Self::try_start() {
                Ok(browser) => return browser,
                Err(failure) => failures.push(failure),
            }
        }
        panic!("chromium does not start: {failures:?}");
    }

    fn try_start() -> Result<Self, String> {
        let dir = tempfile::Builder::new().prefix("layersweep-browser-").tempdir().expect("a directory");
        let mut command = Command::new("sh");
        super::program::hermetic(&mut command);
        command
            // The pipe's ends must be descriptors 3 and 4.
            .args(["-c", "exec 3<&0 4>&1 </dev/null >/dev/null 2>&1; exec \"$@\"", "sh", CHROMIUM])
            .args(["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--no-first-run", "--disable-breakpad", "--disable-extensions", "--disable-sync"])
            .args(["--disable-background-networking", "--disable-component-update", "--mute-audio"])
            .args(["--force-color-profile=srgb", "--hide-scrollbars", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", dir.path().join("profile").display()))
            .env("HOME", dir.path())
            .env("XDG_CONFIG_HOME", dir.path())
            .env("XDG_CACHE_HOME", dir.path())
            .env("TMPDIR", dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0);
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let to = child.stdin.take();
        let mut reader = BufReader::new(child.stdout.take().expect("a pipe"));
        let (send, from) = channel();
        std::thread::spawn(move || {
            loop {
                let mut message = Vec::new();
                match reader.read_until(0, &mut message) {
                    Ok(1..) if message.pop() == Some(0) => {
                        let message = serde_json::from_slice(&message).expect("JSON from the browser");
                        if send.send(message).is_err() {
                            return;
                        }
                    }
                    _ => return,
                }
            }
        });
        let mut browser = Self { child, to, from, last_id: 0, events: Vec::new(), _dir: dir };
        browser.try_call(None, "Browser.getVersion", json!({}))?;
        Ok(browser)
    }

    fn try_call(&mut self, session: Option<&str>, method: &str, params: Value) -> Result<Value, String> {
        self.last_id += 1;
        let mut message = json!({ "id": self.last_id, "method": method, "params": params });
        if let Some(session) = session {
            message["sessionId"] = session.into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        let to = self.to.as_mut().expect("a pipe");
        to.write_all(&bytes).and_then(|()| to.flush()).map_err(|error| format!("{method}: {error}"))?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.from.recv_timeout(left) {
                Ok(answer) if answer["id"] == self.last_id => {
                    return match answer.get("error") {
                        Some(error) => Err(format!("{method}: {error}")),
                        None => Ok(answer["result"].clone()),
                    };
                }
                Ok(event) => self.events.push(event),
                Err(RecvTimeoutError::Timeout) => return Err(format!("{method}: no answer")),
                Err(RecvTimeoutError::Disconnected) => return Err(format!("{method}: it is gone")),
            }
        }
    }

    fn call(&mut self, session: Option<&str>, method: &str, params: Value) -> Value {
        self.try_call(session, method, params).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Opens a window on the file, without waiting for the page.
    pub fn visit(&mut self, file: &Path, window: Window) -> Page<'_> {
        let context = self.call(None, "Target.createBrowserContext", json!({}));
        let target = self.call(
            None,
            "Target.createTarget",
            json!({ "url": "about:blank", "browserContextId": context["browserContextId"] }),
        );
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = self.call(None, "Target.attachToTarget", attach)["sessionId"].clone();
        let session = session.as_str().expect("a session").to_owned();
        let url = format!("file://{}", file.display());
        let mut page = Page { browser: self, session, url: url.clone() };
        for domain in ["Page", "Runtime", "Log", "Network"] {
            page.call(&format!("{domain}.enable"), json!({}));
        }
        page.resize(window);
        if !window.script {
            page.call("Emulation.setScriptExecutionDisabled", json!({ "value": true }));
        }
        page.call("Page.navigate", json!({ "url": url }));
        page
    }

    /// Opens a window on the page in the file and waits until it is drawn.
    pub fn open(&mut self, file: &Path, window: Window) -> Page<'_> {
        let mut page = self.visit(file, window);
        page.until("document.documentElement?.dataset.drawn");
        page
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser ends with its pipe; its helpers are in its process group.
        self.to = None;
        let group = Pid::from_raw(i32::try_from(self.child.id()).expect("a process id"));
        let _ = killpg(group, Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

/// Settings of a window.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// True if the reader prefers a dark theme.
    pub dark: bool,
    /// True if scripts may run.
    pub script: bool,
}

impl Default for Window {
    fn default() -> Self {
        Self { width: 1280, height: 900, dark: false, script: true }
    }
}

/// A page in a window.
#[derive(Debug)]
pub struct Page<'a> {
    browser: &'a mut Browser,
    session: String,
    url: String,
}

impl Page<'_> {
    /// Calls a method of the protocol.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        let session = self.session.clone();
        self.browser.call(Some(&session), method, params)
    }

    /// Changes the size and the theme of the window.
    pub fn resize(&mut self, window: Window) {
        let Window { width, height, dark, .. } = window;
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", metrics);
        let theme = if dark { "dark" } else { "light" };
        let features = json!([{ "name": "prefers-color-scheme", "value": theme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    /// Returns the value of an expression in the page.
    pub fn eval(&mut self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true, "userGesture": true });
        let answer = self.call("Runtime.evaluate", params);
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer:#}");
        answer["result"]["value"].clone()
    }

    /// Returns the value of an expression as a whole number.
    pub fn number(&mut self, expression: &str) -> u64 {
        let value = self.eval(expression);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // checked
        let whole = value.as_u64().or_else(|| value.as_f64().filter(|n| n.fract() == 0.0).map(|n| n as u64));
        whole.unwrap_or_else(|| panic!("{expression} is {value}"))
    }

    /// Returns the value of an expression as a text.
    pub fn text(&mut self, expression: &str) -> String {
        let value = self.eval(expression);
        value.as_str().unwrap_or_else(|| panic!("{expression} is {value}")).to_owned()
    }

    /// Waits until an expression is true.
    pub fn until(&mut self, expression: &str) {
        let start = Instant::now();
        while !self.eval(&format!("!!({expression})")).as_bool().unwrap_or(false) {
            assert!(start.elapsed() < PATIENCE, "never true: {expression}; {:?}", self.complaints());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Scrolls the first element that matches a selector into view and returns its middle, or a corner if the
    /// element may contain others.
    fn middle(&mut self, selector: &str) -> (Value, Value) {
        let place = self.eval(&format!(
            "(() => {{ const e = document.querySelector({selector:?}); \
             e.scrollIntoView({{ block: 'center', behavior: 'instant' }}); \
             const b = (e.querySelector('rect') || e).getBoundingClientRect(); \
             const inside = e.querySelector('rect') ? 12 : Infinity; \
             return {{ x: b.x + Math.min(b.width, inside) / 2, y: b.y + Math.min(b.height, inside) / 2 }}; }})()"
        ));
        (place["x"].clone(), place["y"].clone())
    }

    fn mouse(&mut self, kind: &str, position: &(Value, Value), clicks: u32) {
        let button = if clicks == 0 { "none" } else { "left" };
        let params =
            json!({ "type": kind, "x": position.0, "y": position.1, "button": button, "clickCount": clicks });
        self.call("Input.dispatchMouseEvent", params);
    }

    /// Moves the pointer to an element.
    pub fn hover(&mut self, selector: &str) {
        let position = self.middle(selector);
        self.mouse("mouseMoved", &position, 0);
    }

    /// Clicks on an element.
    pub fn click(&mut self, selector: &str) {
        let position = self.middle(selector);
        self.mouse("mouseMoved", &position, 0);
        self.mouse("mousePressed", &position, 1);
        self.mouse("mouseReleased", &position, 1);
    }

    /// Presses a key, by its name in the DOM.
    pub fn key(&mut self, key: &str) {
        let code = match key {
            "Enter" => 13,
            "Tab" => 9,
            "Escape" => 27,
            "Backspace" => 8,
            "ArrowLeft" => 37,
            "ArrowUp" => 38,
            "ArrowRight" => 39,
            "ArrowDown" => 40,
            "Home" => 36,
            _ => panic!("which key is {key}?"),
        };
        let text = if key == "Enter" { "\r" } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let mut params = json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code });
            if kind == "keyDown" && !text.is_empty() {
                params["text"] = text.into();
            }
            self.call("Input.dispatchKeyEvent", params);
        }
    }

    /// Types a text into the element that has the focus.
    pub fn write(&mut self, text: &str) {
        self.call("Input.insertText", json!({ "text": text }));
    }

    /// Gives an element the focus.
    pub fn focus(&mut self, selector: &str) {
        self.eval(&format!("document.querySelector({selector:?}).focus()"));
    }

    /// Returns a PNG of the visible part of the page.
    pub fn picture(&mut self) -> Vec<u8> {
        let answer =
            self.call("Page.captureScreenshot", json!({ "format": "png", "optimizeForSpeed": false }));
        STANDARD.decode(answer["data"].as_str().expect("a picture")).expect("base64")
    }

    /// Returns the page as a PDF.
    pub fn pdf(&mut self) -> Vec<u8> {
        let answer = self.call("Page.printToPDF", json!({ "preferCSSPageSize": true }));
        STANDARD.decode(answer["data"].as_str().expect("a document")).expect("base64")
    }

    /// Role and name of the nodes of the accessibility tree that are not ignored.
    pub fn accessible(&mut self) -> Vec<(String, String)> {
        fn text(value: &Value) -> String {
            value["value"].as_str().unwrap_or_default().to_owned()
        }
        let answer = self.call("Accessibility.getFullAXTree", json!({}));
        let nodes = answer["nodes"].as_array().expect("nodes").iter();
        nodes
            .filter(|node| node["ignored"] != true)
            .map(|node| (text(&node["role"]), text(&node["name"])))
            .collect()
    }

    /// Returns errors, violations of the policy, and requests for anything but the page itself.
    pub fn complaints(&mut self) -> Vec<String> {
        // Events that happened before this answer have arrived when it returns.
        self.call("Runtime.evaluate", json!({ "expression": "0" }));
        let of_page = self.browser.events.iter().filter(|event| event["sessionId"] == self.session.as_str());
        let complaints = of_page.filter(|event| match event["method"].as_str().unwrap_or_default() {
            "Runtime.exceptionThrown"
            | "Log.entryAdded"
            | "Network.loadingFailed"
            | "Runtime.consoleAPICalled"
            | "Network.webSocketCreated"
            | "Network.webTransportCreated" => true,
            "Network.requestWillBeSent" => event["params"]["request"]["url"] != self.url.as_str(),
            _ => false,
        });
        complaints.map(ToString::to_string).collect()
    }

    /// Fails if the page has a complaint.
    pub fn expect_quiet(&mut self) {
        let complaints = self.complaints();
        assert!(complaints.is_empty(), "{complaints:#?}");
    }
}
