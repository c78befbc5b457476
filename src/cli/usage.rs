//! `outpost usage export`: metered requests as a file, from a running server or from the store.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Subcommand};

use super::{Outcome, store};
use crate::ambient::{Ambient, Timestamp};
use crate::app::Machine;
use crate::control::{self, ExportJob, Format, Request};
use crate::ids::ProjectId;
use crate::service::usage::ExportFilter;

#[derive(Subcommand)]
pub enum UsageCommand {
    /// Write every metered request to a file, the latest of each project first; works while the server runs
    Export(ExportArgs),
}

#[derive(Args)]
pub struct ExportArgs {
    /// The file to write; it must not exist
    #[arg(value_name = "FILE")]
    to: PathBuf,
    /// Only this project's [default: all]
    #[arg(long, value_name = "PROJECT_ID")]
    project: Option<ProjectId>,
    /// From this moment on, such as 2027-01-01T00:00:00Z
    #[arg(long, value_name = "TIME")]
    start: Option<Timestamp>,
    /// Up to, but without, this moment
    #[arg(long, value_name = "TIME")]
    end: Option<Timestamp>,
    /// How rows are written
    #[arg(long, default_value = "csv", value_name = "FORMAT")]
    format: Format,
}

pub fn run(command: UsageCommand, data: &Path, out: &mut dyn Write) -> Outcome {
    let UsageCommand::Export(ExportArgs { to, project, start, end, format }) = command;
    // The server may run in another folder, so it is told the whole path.
    let job = ExportJob { to: std::path::absolute(to)?, format, filter: ExportFilter { project, start, end } };
    if let Some(answer) = control::ask(data, &Request::ExportUsage(job.clone()))? {
        return store::tell(answer, out);
    }
    let ambient: Arc<dyn Ambient> = Arc::new(Machine::new());
    let opened = store::open(data, ambient)?;
    let answer = control::export_usage(&opened, &job);
    opened.shutdown();
    store::tell(answer, out)
}
