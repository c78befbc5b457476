//! Parses the command line with the values of the configuration file as defaults.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgMatches, Parser};

use crate::config::{self, BadFile, ConfigFile};

/// A parsed command line.
pub(super) struct Parsed<C> {
    pub cli: C,
    pub matches: ArgMatches,
    /// `None` if there is no configuration file, or the subcommand does not use it.
    pub file: Option<ConfigFile>,
}

/// Why a command line cannot be run.
#[derive(Debug, thiserror::Error)]
pub(super) enum ParseError {
    /// Also `--help` and `--version`.
    #[error(transparent)]
    Arguments(#[from] clap::Error),
    #[error(transparent)]
    File(#[from] BadFile),
}

/// Parses `arguments`, finds the configuration file that they or the environment name, and parses them again with its
/// values as defaults. The subcommands in `without_file`, such as `["config", "init"]`, use no file.
pub(super) fn parse<C: Parser>(arguments: &[OsString], without_file: &[&[&str]]) -> Result<Parsed<C>, ParseError> {
    let matches = C::command().try_get_matches_from(arguments)?;
    let file = match without_file.iter().any(|names| is_subcommand(&matches, names)) {
        true => None,
        false => config::load(matches.get_one::<PathBuf>("config").map(PathBuf::as_path))?,
    };
    let matches = match &file {
        Some(file) => config::with_defaults(C::command(), file).try_get_matches_from(arguments)?,
        None => matches,
    };
    Ok(Parsed { cli: C::from_arg_matches(&matches)?, matches, file })
}

/// True if `names` are the names of the subcommand and of its subcommand.
fn is_subcommand(matches: &ArgMatches, names: &[&str]) -> bool {
    match (names, matches.subcommand()) {
        ([], _) => true,
        ([first, rest @ ..], Some((name, matches))) => name == *first && is_subcommand(matches, rest),
        _ => false,
    }
}
