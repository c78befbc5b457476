//! Makes the values of a configuration file the defaults of arguments.

use clap::Command;

use super::file::{ConfigFile, Setting};
use super::values::settings_command;

/// `command`, in which the arguments of it and of its subcommands have the file's values as defaults.
pub fn with_defaults(command: Command, file: &ConfigFile) -> Command {
    let known = settings_command();
    let command = file.settings.iter().filter(|setting| !setting.text.is_empty()).fold(command, |command, setting| {
        match takes(&command, &known, setting) {
            true => command.mut_arg(setting.key.argument, |argument| argument.default_value(setting.text.clone())),
            false => command,
        }
    });
    let names: Vec<String> = command.get_subcommands().map(|one| one.get_name().to_owned()).collect();
    names
        .into_iter()
        .fold(command, |command, name| command.mut_subcommand(name, |subcommand| with_defaults(subcommand, file)))
}

/// True if a command has the argument of a setting, and not another one of the same name.
fn takes(command: &Command, known: &Command, setting: &Setting) -> bool {
    let variable = |command: &Command| {
        let argument = command.get_arguments().find(|one| one.get_id() == setting.key.argument);
        argument.and_then(|one| one.get_env().map(ToOwned::to_owned))
    };
    variable(command).is_some_and(|name| Some(name) == variable(known))
}
