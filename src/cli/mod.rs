//! The command line: one file per subcommand.

mod arguments;
mod audio_decoder;
mod banner;
mod bench;
mod config;
mod doctor;
mod export;
mod generate;
mod health;
mod hub_pull;
mod launch;
mod maintenance;
mod model_name;
pub mod models;
mod output;
mod reload;
mod remove_model;
mod sandbox;
mod serve;
mod sign_in;
mod stop_signals;
mod stopwatch;
mod tune;

use std::cell::Cell;
use std::ffi::OsString;
use std::io::{Write, stderr, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory, Parser, Subcommand};

use crate::config::{ConfigFile, DataPaths, ServeArgs, effective};
use crate::display::SanitizedWriter;
use arguments::{ParseError, Parsed};
use audio_decoder::AudioDecoderArgs;
use bench::BenchArgs;
use config::ConfigCommand;
use doctor::DoctorArgs;
use export::{AuditCommand, UsageCommand};
use generate::{GenerateCommand, Shell};
use health::HealthArgs;
use launch::LaunchArgs;
use models::ModelsCommand;
use output::{Outcome, PipeWriter};
use reload::{ConfigReload, ServeSettings};
use tune::TuneArgs;

/// The exit code if the reader of the output has closed the pipe: that of a program that SIGPIPE has ended.
const WITHOUT_READER: u8 = 128 + 13;

#[derive(Parser)]
#[command(name = "outpost", version, about = "Your own AI platform in one binary", propagate_version = true)]
struct Cli {
    /// Configuration file, or none [default: /etc/outpost/config.toml if it exists]
    #[arg(long, global = true, env = "OUTPOST_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    paths: DataPaths,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve the API; the first start creates an admin key and pulls the starter models
    Serve(Box<ServeArgs>),
    /// Check, show or create the configuration file
    #[command(subcommand)]
    Config(ConfigCommand),
    /// List, pull, export, import and remove models
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
    /// Measure the speed of a model on this machine
    Bench(BenchArgs),
    /// Look at this machine and this installation: what is wrong, and which models fit
    Doctor(DoctorArgs),
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
    /// Print the completions of a shell
    Completions { shell: Shell },
    /// Write man pages or completions for a package
    #[command(subcommand, hide = true)]
    Generate(GenerateCommand),
    /// Interpret one model's files for a running server or training, which starts this itself
    #[command(hide = true)]
    Sandbox,
    /// Read one audio file for a running server, which starts this itself
    #[command(hide = true)]
    AudioDecoder(AudioDecoderArgs),
    /// Exit with 0 if the running server accepts requests, for containers and scripts
    Health(HealthArgs),
    /// Print a link that signs a browser in to the dashboard of the running server, once
    SignIn,
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

/// Subcommands that do not read the configuration file before they run.
const WITHOUT_FILE: [&[&str]; 4] = [&["sandbox"], &["audio-decoder"], &["config", "check"], &["config", "init"]];

/// Parses `arguments` and runs the command. Exit codes: 0 done, 1 failed, 2 wrong arguments, 141 the reader of the output
/// has closed the pipe.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let has_no_reader = Cell::new(false);
    let outcome = match arguments::parse::<Cli>(&arguments, &WITHOUT_FILE) {
        Ok(parsed) => dispatch(parsed, arguments, &has_no_reader),
        Err(ParseError::Arguments(help)) => {
            // --help and --version come this way too; clap knows the exit code and the stream.
            let printed = help.print().is_ok();
            return ExitCode::from(u8::try_from(help.exit_code()).unwrap_or(2) | u8::from(!printed));
        }
        Err(ParseError::File(error)) => Err(error.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) if has_no_reader.get() => ExitCode::from(WITHOUT_READER),
        Err(cause) => {
            // If stderr is closed, the error cannot be reported.
            let _gone = writeln!(SanitizedWriter(stderr()), "outpost: {cause}");
            ExitCode::FAILURE
        }
    }
}

/// `has_no_reader`: set if the reader of the output has closed the pipe.
fn dispatch(
    Parsed { cli, matches, file }: Parsed<Cli>,
    arguments: Vec<OsString>,
    has_no_reader: &Cell<bool>,
) -> Outcome {
    let Cli { config: chosen, paths, command } = cli;
    match command {
        Command::Sandbox => return Ok(sandbox::run()?),
        Command::AudioDecoder(args) => return Ok(audio_decoder::run(&args)?),
        _ => {}
    }
    let out = &mut SanitizedWriter(PipeWriter { writer: stdout().lock(), has_no_reader });
    match command {
        Command::Sandbox | Command::AudioDecoder(_) => Ok(()),
        Command::Serve(args) => {
            let settings = serve_settings(paths, *args, &matches, file.as_ref());
            // A server that ends says why.
            let out = &mut SanitizedWriter(stdout().lock());
            serve::run(settings, ConfigReload::new(move || reread(&arguments)), out)
        }
        Command::Config(command) => config::run(command, chosen.as_deref(), paths, &matches, file.as_ref(), out),
        Command::Models(command) => models::run(command, &paths, file.as_ref(), out),
        Command::Tune(args) => tune::run(&paths, *args, out),
        Command::Launch(args) => launch::run(&paths, args, out),
        Command::Usage(command) => export::usage(command, &paths, out),
        Command::Backup { to, verbose } => maintenance::backup(&paths, &to, verbose, out),
        Command::Restore { from, verbose } => maintenance::restore(&paths.data, &from, verbose, out),
        Command::Bench(args) => bench::run(&paths, &args, out),
        Command::Doctor(args) => doctor::run(&paths, &args, out),
        Command::Check { verbose } => maintenance::check(&paths, verbose, out),
        Command::Audit(command) => export::audit(command, &paths, out),
        Command::Store(StoreCommand::Copy { from, to, verbose }) => {
            maintenance::copy_store(&paths, &from, &to, verbose, out)
        }
        Command::Health(args) => health::run(&paths.data, args, out),
        Command::SignIn => sign_in::run(&paths, out),
        Command::Completions { shell } => generate::completions(shell, Cli::command(), out),
        Command::Generate(kind) => generate::run(&kind, Cli::command()),
        Command::AdminKey => maintenance::admin_key(&paths, out),
    }
}

fn serve_settings(paths: DataPaths, args: ServeArgs, matches: &ArgMatches, file: Option<&ConfigFile>) -> ServeSettings {
    let values = matches.subcommand().map(|(_, matches)| effective(matches, file)).unwrap_or_default();
    ServeSettings { paths, args, values }
}

/// The settings of `serve` with the configuration file as it is now.
fn reread(arguments: &[OsString]) -> Result<ServeSettings, String> {
    let Parsed { cli, matches, file } =
        arguments::parse::<Cli>(arguments, &WITHOUT_FILE).map_err(|error| error.to_string())?;
    match cli.command {
        Command::Serve(args) => Ok(serve_settings(cli.paths, *args, &matches, file.as_ref())),
        _ => Err("the command is not serve".to_owned()),
    }
}
