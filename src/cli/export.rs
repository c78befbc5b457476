//! `outpost audit export` and `outpost usage export`, through the server if it is running.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, Subcommand};

use super::maintenance;
use super::output::{Outcome, failure};
use crate::app::SystemClockRng;
use crate::clock_rng::Timestamp;
use crate::config::DataPaths;
use crate::control_socket::{self, Reply, Request};
use crate::display::format_bytes;
use crate::ids::ProjectId;
use crate::service::export::{ExportRequest, Format, Table};

#[derive(Subcommand)]
pub enum AuditCommand {
    /// Write the audit log to a file, the newest event first; works while the server runs
    Export(ExportArgs),
}

#[derive(Subcommand)]
pub enum UsageCommand {
    /// Write every metered request to a file, the newest of each project first; works while the server runs
    Export(ExportArgs),
}

#[derive(Args)]
pub struct ExportArgs {
    /// Only this project's rows
    #[arg(long, value_name = "ID")]
    project: Option<ProjectId>,
    /// Only rows at or after this RFC 3339 time, such as 2027-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    start: Option<Timestamp>,
    /// Only rows before this time
    #[arg(long, value_name = "TIME")]
    end: Option<Timestamp>,
    /// csv or jsonl
    #[arg(long, default_value = "csv")]
    format: Format,
    /// The file to write; it must not exist
    #[arg(value_name = "FILE")]
    to: PathBuf,
}

pub fn audit(AuditCommand::Export(args): AuditCommand, paths: &DataPaths, out: &mut dyn Write) -> Outcome {
    export(Table::Audit, args, paths, out)
}

pub fn usage(UsageCommand::Export(args): UsageCommand, paths: &DataPaths, out: &mut dyn Write) -> Outcome {
    export(Table::Usage, args, paths, out)
}

fn export(table: Table, args: ExportArgs, paths: &DataPaths, out: &mut dyn Write) -> Outcome {
    let ExportArgs { project, start, end, format, to } = args;
    let order = ExportRequest { table, project, start, end, format };
    // The server may have another working directory, so the path must be absolute.
    let to = std::path::absolute(to)?;
    let bytes = match control_socket::send(&paths.data, &Request::Export { to: to.clone(), order: order.clone() })? {
        Some(Reply::Exported { bytes }) => bytes,
        Some(other) => return Err(failure(other)),
        None => {
            let opened = maintenance::open(paths, Arc::new(SystemClockRng::new()))?;
            let bytes = actix_web::rt::System::new().block_on(order.run(&opened, &to));
            opened.shutdown();
            bytes?
        }
    };
    let what = match table {
        Table::Audit => "The audit log is",
        Table::Usage => "The metered requests are",
    };
    writeln!(out, "{what} in {} ({}).", to.display(), format_bytes(bytes))?;
    Ok(())
}
