//! What `outpost serve` prints when it is ready: on a terminal, a page for the person who has started it, and elsewhere
//! one line. Only a terminal gets a sign-in link; an API key is never printed.

use std::borrow::Cow;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;

use super::output::counted;
use crate::catalog::{Catalog, pull_command};
use crate::clock_rng::Timestamp;
use crate::config::{DEFAULT_MODELS, DataPaths, LogFormat};

const DEFAULT_DATA: &str = "./data";
/// Where `outpost launch` looks for a server.
const DEFAULT_URL: &str = "http://127.0.0.1:8080";

/// A server that has started.
pub(super) struct Started<'a> {
    pub url: String,
    /// The URL for programs on this machine.
    pub local_url: String,
    pub paths: &'a DataPaths,
    /// Models that can be used.
    pub models: usize,
    /// The devices of the models.
    pub device: &'a str,
    pub took: Duration,
}

/// The rows of the page that only its user may see.
pub(super) struct SignIn<'a> {
    /// A link that signs a browser in.
    pub link: String,
    /// The file with the admin key, if there is one.
    pub admin_key: Option<&'a Path>,
}

impl Started<'_> {
    /// Prints one line, in the format of the log.
    pub fn print_line(&self, format: LogFormat, now: Timestamp, out: &mut dyn Write) -> std::io::Result<()> {
        let Self { url, models, device, .. } = self;
        let message =
            format!("{} after {}, with {} on {device}", self.listening(), self.seconds(), counted(*models, "model"));
        match format {
            LogFormat::Text => writeln!(out, "{message}")?,
            LogFormat::Json => {
                let time = now.to_string();
                let line =
                    json!({ "timestamp": time, "level": "INFO", "message": message, "url": url, "models": models });
                writeln!(out, "{line}")?;
            }
        }
        out.flush()
    }

    /// Prints the page.
    pub fn print_page(&self, sign_in: &SignIn<'_>, out: &mut dyn Write) -> std::io::Result<()> {
        writeln!(out, "{} after {}\n", self.listening(), self.seconds())?;
        writeln!(out, "  Sign in     {}   once, within 10 minutes", sign_in.link)?;
        if let Some(file) = sign_in.admin_key {
            writeln!(out, "  Admin key   {}", file.display())?;
        }
        writeln!(out, "  Models      {} on {}\n", counted(self.models, "model"), self.device)?;
        let commands = self.next_commands();
        let width = commands.iter().map(|(command, _)| command.chars().count()).max().unwrap_or_default();
        for (command, purpose) in commands {
            writeln!(out, "  {command:width$}   {purpose}")?;
        }
        writeln!(out)?;
        out.flush()
    }

    fn listening(&self) -> String {
        format!("outpost {} is listening on {}", env!("CARGO_PKG_VERSION"), self.url)
    }

    fn seconds(&self) -> String {
        format!("{:.1} s", self.took.as_secs_f64())
    }

    /// Commands that a new user can run next, in another terminal, and what they do.
    fn next_commands(&self) -> Vec<(String, &'static str)> {
        let models = option("--models", &self.paths.models, DEFAULT_MODELS);
        let url = if self.local_url == DEFAULT_URL { String::new() } else { format!(" --url {}", self.local_url) };
        let first = match self.models {
            0 => (self.pull_starter(), "install a first model"),
            _ => (format!("outpost models list{models}"), "models that are installed, and that can be pulled"),
        };
        let data = option("--data", &self.paths.data, DEFAULT_DATA);
        vec![
            first,
            (format!("outpost launch claude{data}{models}{url}"), "a coding agent that uses a model of this server"),
            (format!("outpost sign-in{data}"), "another link for the dashboard"),
        ]
    }

    /// The command that pulls the first model of the catalog.
    fn pull_starter(&self) -> String {
        let name = Catalog::builtin().starter().first().map_or("NAME", String::as_str);
        pull_command(name, Some(&*self.paths.models).filter(|models| *models != Path::new(DEFAULT_MODELS)))
    }
}

/// ` --models DIR`, if it is not the default.
fn option(name: &str, folder: &PathBuf, default: &str) -> String {
    if *folder == Path::new(default) {
        return String::new();
    }
    let folder = folder.to_string_lossy();
    format!(" {name} {}", shlex::try_quote(&folder).unwrap_or(Cow::Borrowed(&*folder)))
}
