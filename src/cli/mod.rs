//! The command line: one file per subcommand.

mod audio_decoder;
mod export;
mod hub_pull;
mod launch;
mod maintenance;
pub mod models;
mod output;
mod sandbox;
mod serve;
mod tune;

use std::ffi::OsString;
use std::io::{Write, stderr, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::{DataPaths, ServeArgs};
use crate::display::SanitizedWriter;
use audio_decoder::AudioDecoderArgs;
use export::{AuditCommand, UsageCommand};
use launch::LaunchArgs;
use models::ModelsCommand;
use output::Outcome;
use tune::TuneArgs;

#[derive(Parser)]
#[command(name = "outpost", version, about = "Your own AI platform in one binary", propagate_version = true)]
struct Cli {
    #[command(flatten)]
    paths: DataPaths,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve the API; the first start creates an admin key and pulls the starter models
    Serve(Box<ServeArgs>),
    /// List, pull, export and import models
    #[command(subcommand)]
    Models(ModelsCommand),
    /// Train a LoRA adapter of a chat model; no server is needed
    Tune(Box<TuneArgs>),
    /// Start a coding agent that uses a model of a running server
    Launch(LaunchArgs),
    /// Export usage records
    #[command(subcommand)]
    Usage(UsageCommand),
    /// Back up the whole store to one file; works while the server runs
    Backup {
        /// The file to write; it must not exist
        #[arg(value_name = "FILE")]
        to: PathBuf,
        /// Print the number of records of each table, too
        #[arg(long)]
        verbose: bool,
    },
    /// Restore a backup into an empty data folder
    Restore {
        #[arg(value_name = "FILE")]
        from: PathBuf,
        /// Print the number of records of each table, too
        #[arg(long)]
        verbose: bool,
    },
    /// Verify the integrity of the store
    Check {
        /// Print the number of records of each table, too
        #[arg(long)]
        verbose: bool,
    },
    /// Export the audit log
    #[command(subcommand)]
    Audit(AuditCommand),
    /// Move the store between a data folder and a PostgreSQL database
    #[command(subcommand)]
    Store(StoreCommand),
    /// Interpret one model's files for a running server or training, which starts this itself
    #[command(hide = true)]
    Sandbox,
    /// Read one audio file for a running server, which starts this itself
    #[command(hide = true)]
    AudioDecoder(AudioDecoderArgs),
    /// Create another admin key, for when the first one is lost; the server must be stopped
    AdminKey,
}

#[derive(Subcommand)]
enum StoreCommand {
    /// Copy all records to an empty place, and compare every record; no server may use the store
    Copy {
        /// A data folder, or the URL of a database whose pepper is in the folder of --data
        #[arg(long, value_name = "DIR|URL")]
        from: String,
        /// An empty data folder, or the URL of an empty database
        #[arg(long, value_name = "DIR|URL")]
        to: String,
        /// Print the number of records of each table, too
        #[arg(long)]
        verbose: bool,
    },
}

/// Parses `arguments` and runs the command. Exit codes: 0 done, 1 failed, 2 wrong arguments.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(help) => {
            // --help and --version come this way too; clap knows the exit code and the stream.
            let printed = help.print().is_ok();
            return ExitCode::from(u8::try_from(help.exit_code()).unwrap_or(2) | u8::from(!printed));
        }
    };
    match dispatch(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => {
            // If stderr is closed, the error cannot be reported.
            let _gone = writeln!(SanitizedWriter(stderr()), "outpost: {cause}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(Cli { paths, command }: Cli) -> Outcome {
    match command {
        Command::Sandbox => return Ok(sandbox::run()?),
        Command::AudioDecoder(args) => return Ok(audio_decoder::run(&args)?),
        _ => {}
    }
    let out = &mut SanitizedWriter(stdout().lock());
    match command {
        Command::Sandbox | Command::AudioDecoder(_) => Ok(()),
        Command::Serve(args) => serve::run(paths, &args, out),
        Command::Models(command) => models::run(command, &paths, out),
        Command::Tune(args) => tune::run(&paths, *args, out),
        Command::Launch(args) => launch::run(&paths, args, out),
        Command::Usage(command) => export::usage(command, &paths, out),
        Command::Backup { to, verbose } => maintenance::backup(&paths, &to, verbose, out),
        Command::Restore { from, verbose } => maintenance::restore(&paths.data, &from, verbose, out),
        Command::Check { verbose } => maintenance::check(&paths, verbose, out),
        Command::Audit(command) => export::audit(command, &paths, out),
        Command::Store(StoreCommand::Copy { from, to, verbose }) => {
            maintenance::copy_store(&paths, &from, &to, verbose, out)
        }
        Command::AdminKey => maintenance::admin_key(&paths, out),
    }
}
