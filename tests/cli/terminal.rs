//! A server whose standard output is a terminal.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command};

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::process::command;

/// How the page ends.
const LAST_LINE: &str = "another link for the dashboard\n\n";

/// A serving process, killed when dropped.
pub struct TerminalServer {
    child: Child,
    /// What it has shown when it was ready. Lines end with `\n`.
    pub page: String,
    /// The other side of the terminal. Once it is closed, the server cannot write.
    terminal: File,
}

/// The two sides of a new terminal.
fn terminal() -> (File, OwnedFd) {
    let outside = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&outside).unwrap();
    unlockpt(&outside).unwrap();
    let name = ptsname(&outside, Vec::new()).unwrap();
    let inside = open(name.as_c_str(), OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    (File::from(outside), inside)
}

/// Reads until the text contains `end`, or the program has exited.
fn read_until(terminal: &mut File, end: &str) -> String {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace("\r\n", "\n");
    while !text(&bytes).contains(end)
        && let Ok(length @ 1..) = terminal.read(&mut chunk)
    {
        bytes.extend_from_slice(&chunk[..length]);
    }
    text(&bytes)
}

impl TerminalServer {
    pub fn start(folder: &Path, extra_arguments: &[&str]) -> Self {
        let (mut terminal, inside) = terminal();
        let mut start = command(folder, &[&["serve", "--listen", "127.0.0.1:0"], extra_arguments].concat());
        start.stdout(inside.try_clone().unwrap()).stderr(inside);
        let child = start.spawn().unwrap();
        // It has the inner side, so that the end of the child ends the text.
        drop(start);
        let page = read_until(&mut terminal, LAST_LINE);
        Self { child, page, terminal }
    }

    /// Stops the server, and returns what it has shown since its start.
    pub fn stop(&mut self) -> String {
        let stopped = Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
        assert!(stopped.success());
        let rest = read_until(&mut self.terminal, "\0");
        assert!(self.child.wait().unwrap().success(), "{rest}");
        rest
    }
}

impl Drop for TerminalServer {
    fn drop(&mut self) {
        let _already_exited = self.child.kill();
        let _reaped = self.child.wait();
    }
}
