//! What a subcommand returns, and how it prints a report.

use std::error::Error;
use std::io::Write;

use crate::control_socket::Reply;

/// The error is shown to the user.
pub(super) type Outcome = Result<(), Box<dyn Error>>;

pub(super) fn print_reply(answer: Reply, out: &mut dyn Write) -> Outcome {
    match answer {
        Reply::Done { lines: report, problems } => {
            print_lines(&report, out)?;
            print_lines(&problems, out)?;
            if problems.is_empty() {
                return Ok(());
            }
            Err(format!("{} problems were found; restore the latest good backup", problems.len()).into())
        }
        Reply::Failed { message } => Err(message.into()),
    }
}

pub(super) fn print_lines(report: &[String], out: &mut dyn Write) -> Outcome {
    for line in report {
        writeln!(out, "{line}")?;
    }
    Ok(())
}
