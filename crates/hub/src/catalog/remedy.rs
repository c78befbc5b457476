//! Remedies for errors.

use std::fmt::Display;

/// What a user can do about an error. On the command line, these are its options and the machine; a client of a server has
/// the fields of its request, and can ask the operator.
#[derive(Debug)]
pub struct Remedy {
    pub command: String,
    pub request: String,
}

impl Remedy {
    pub fn new(command: impl Into<String>, request: impl Into<String>) -> Self {
        Self { command: command.into(), request: request.into() }
    }

    /// For a full disk.
    pub fn free_space() -> Self {
        Self::new(
            "free some space and run the same command again; a download resumes where it stopped",
            "ask the operator to free some space, then send the same request again; the download resumes where it stopped",
        )
    }
}

/// An error that is shown to users. Its own text says only what is wrong.
pub trait UserError: Display {
    fn remedy(&self) -> Option<Remedy>;

    /// The message for the command line.
    fn for_command(&self) -> String {
        message(self, self.remedy().map(|remedy| remedy.command))
    }

    /// The message for a client of a server.
    fn for_request(&self) -> String {
        message(self, self.remedy().map(|remedy| remedy.request))
    }
}

fn message(error: &(impl Display + ?Sized), remedy: Option<String>) -> String {
    match remedy {
        Some(remedy) => format!("{error}; {remedy}"),
        None => error.to_string(),
    }
}
