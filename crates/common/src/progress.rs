//! Progress reporting of long transfers.
//!
//! A transfer polls `Progress::is_cancelled` ten times a second where it reports progress anyway, and during waits that
//! a hub asks for. Downloads, pip and npm need no other interface for cancellation.

use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressStyle};

use crate::display::{SanitizedWriter, format_bytes, one_line};

/// Receives the progress of a transfer: `start`, many `advance`, `done`, then perhaps the next `start`.
pub trait Progress {
    /// A step of `total_bytes` bytes begins.
    fn start(&mut self, what: &str, total_bytes: u64);
    /// `bytes` more bytes are done.
    fn advance(&mut self, bytes: u64);
    /// The step has ended, successfully or not.
    fn done(&mut self);
    /// A message for the user.
    fn note(&mut self, text: &str);
    /// True once the transfer must be given up. Transfers poll this several times a second.
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Progress bars if standard error is a terminal, else a line every 10 %.
pub fn for_stderr() -> Box<dyn Progress> {
    match io::stderr().is_terminal() {
        true => Box::new(Bars::default()),
        false => Box::new(Lines::new(io::stderr())),
    }
}

/// Reports nothing.
#[derive(Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn start(&mut self, _: &str, _: u64) {}
    fn advance(&mut self, _: u64) {}
    fn done(&mut self) {}
    fn note(&mut self, _: &str) {}
}

/// Bars on a terminal's standard error.
#[derive(Default)]
pub struct Bars {
    bar: Option<ProgressBar>,
}

impl Progress for Bars {
    fn start(&mut self, what: &str, total_bytes: u64) {
        self.done();
        let template = "{msg:<44} {bar:24} {bytes:>10} of {total_bytes:<10} {bytes_per_sec:>12} {eta:>5}";
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        self.bar = Some(ProgressBar::new(total_bytes).with_style(style).with_message(one_line(what).into_owned()));
    }

    fn advance(&mut self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.inc(bytes);
        }
    }

    fn done(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.abandon(); // keeps the bar as it is: a failed transfer must not look complete
        }
    }

    fn note(&mut self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| say(&mut io::stderr(), text)),
            None => say(&mut io::stderr(), text),
        }
    }
}

/// Plain lines, for logs and pipes.
pub struct Lines<W: Write> {
    out: W,
    what: String,
    total: u64,
    at: u64,
    tenths: u64,
}

impl<W: Write> Lines<W> {
    pub fn new(out: W) -> Self {
        Self { out, what: String::new(), total: 0, at: 0, tenths: 0 }
    }
}

impl<W: Write> Progress for Lines<W> {
    fn start(&mut self, what: &str, total_bytes: u64) {
        (self.what, self.total, self.at, self.tenths) = (what.to_owned(), total_bytes, 0, 0);
        say(&mut self.out, &format!("{what}: {}", format_bytes(total_bytes)));
    }

    fn advance(&mut self, bytes: u64) {
        self.at = self.at.saturating_add(bytes);
        let tenths = (self.at.min(self.total).saturating_mul(10)).checked_div(self.total).unwrap_or(10);
        if tenths > self.tenths {
            self.tenths = tenths;
            say(&mut self.out, &format!("{}: {}0 %", self.what, tenths));
        }
    }

    fn done(&mut self) {}

    fn note(&mut self, text: &str) {
        say(&mut self.out, text);
    }
}

/// Errors are ignored: progress output is optional.
fn say(out: &mut impl Write, text: &str) {
    let _unread = writeln!(SanitizedWriter(out), "{text}");
}
