//! Man pages and shell completions, generated from the definitions of the commands.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Command, Subcommand, ValueEnum};

use super::output::Outcome;

/// Shells with completions.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl Shell {
    fn generator(self) -> clap_complete::Shell {
        match self {
            Self::Bash => clap_complete::Shell::Bash,
            Self::Zsh => clap_complete::Shell::Zsh,
            Self::Fish => clap_complete::Shell::Fish,
        }
    }
}

/// What packages contain beside the program.
#[derive(Debug, Subcommand)]
pub enum GenerateCommand {
    /// Write a man page for each command to a folder
    Man {
        /// The folder; it is created if it does not exist
        #[arg(long, value_name = "DIR")]
        to: PathBuf,
    },
    /// Write the completions of all shells to a folder
    Completions {
        /// The folder; it is created if it does not exist
        #[arg(long, value_name = "DIR")]
        to: PathBuf,
    },
}

pub fn run(kind: &GenerateCommand, program: Command) -> Outcome {
    let (GenerateCommand::Man { to } | GenerateCommand::Completions { to }) = kind;
    create_folder(to)?;
    match kind {
        GenerateCommand::Man { to } => clap_mangen::generate_to(program, to),
        GenerateCommand::Completions { to } => write_completions(program, to),
    }
    .map_err(|cause| format!("cannot write to {}: {cause}", to.display()).into())
}

/// Prints the completions of one shell.
pub fn completions(shell: Shell, mut program: Command, out: &mut dyn Write) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell.generator(), &mut program, "outpost", &mut script);
    out.write_all(&script)?;
    Ok(out.flush()?)
}

/// Writes one file per shell, with the name under which the shell looks for it.
fn write_completions(mut program: Command, folder: &Path) -> std::io::Result<()> {
    for shell in Shell::value_variants() {
        clap_complete::generate_to(shell.generator(), &mut program, "outpost", folder)?;
    }
    Ok(())
}

fn create_folder(folder: &Path) -> Result<(), String> {
    std::fs::create_dir_all(folder).map_err(|cause| format!("cannot create {}: {cause}", folder.display()))
}
