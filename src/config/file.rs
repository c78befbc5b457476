//! Finds and reads the configuration file.
//!
//! No file is read from the working directory, because such a file could redirect the store or open the server to the
//! network for anyone who is lured into running a command there. A mistake in the file stops every command, because a
//! setting that is silently ignored is found much later than an error with a line.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::keys::{KEYS, Key};
use super::values::{argument_text, settings_command};
use crate::spelling::nearest;
use crate::toml_text::{self, Lines};

/// The file that is read if none is named, and it exists.
pub const DEFAULT_FILE: &str = "/etc/outpost/config.toml";
/// The name that stands for no file.
const NO_FILE: &str = "none";
const MAX_BYTES: u64 = 1 << 20;
/// Write permission of the group and of others.
const OTHERS_WRITE: u32 = 0o022;

/// A configuration file. Its values are valid, each by itself.
#[derive(Debug)]
pub struct ConfigFile {
    pub path: PathBuf,
    /// In the order of the file.
    pub settings: Vec<Setting>,
}

/// A value of a configuration file.
#[derive(Debug)]
pub struct Setting {
    pub key: &'static Key,
    /// Counted from 1.
    pub line: usize,
    /// The value as the argument takes it; the items of a list are joined by commas.
    pub text: String,
}

/// Why a configuration file cannot be used; shown to the user.
#[derive(Debug, thiserror::Error)]
pub enum BadFile {
    #[error(
        "the configuration file {path} cannot be read: {cause}. Run the command as the user of the server, such as \
         'sudo -u outpost outpost …', or with --config none"
    )]
    Denied { path: PathBuf, cause: io::Error },
    #[error("the configuration file {path} cannot be read: {cause}. --config names another one, or none")]
    Unreadable { path: PathBuf, cause: String },
    #[error(
        "the configuration file {path} is not used: {cause}, and could change the settings of this server. Run: \
         chown root {path} && chmod go-w {path}; or name it with --config"
    )]
    Unsafe { path: PathBuf, cause: String },
    /// One line for each error.
    #[error("{}", .0.join("\n"))]
    Invalid(Vec<String>),
}

impl ConfigFile {
    /// The value of a key.
    pub fn setting(&self, key: &Key) -> Option<&Setting> {
        self.settings.iter().find(|setting| setting.key == key)
    }
}

/// Reads the `chosen` file. If none is chosen, reads [`DEFAULT_FILE`] if it exists. Returns `None` if there is none, or
/// `chosen` is `none`.
///
/// # Errors
/// If the file cannot be read or has errors; all of them are listed. Also, if the file was not chosen and users other than
/// root and this one may change it.
pub fn load(chosen: Option<&Path>) -> Result<Option<ConfigFile>, BadFile> {
    match chosen {
        Some(path) if path == Path::new(NO_FILE) => Ok(None),
        Some(path) => read(path, false).map(Some),
        None if is_absent(Path::new(DEFAULT_FILE)) => Ok(None),
        None => read(Path::new(DEFAULT_FILE), true).map(Some),
    }
}

fn is_absent(path: &Path) -> bool {
    std::fs::metadata(path).is_err_and(|cause| matches!(cause.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory))
}

fn read(path: &Path, only_trusted: bool) -> Result<ConfigFile, BadFile> {
    let unreadable = |cause: String| BadFile::Unreadable { path: path.to_owned(), cause };
    let failed = |cause: io::Error| match cause.kind() {
        ErrorKind::PermissionDenied => BadFile::Denied { path: path.to_owned(), cause },
        _ => unreadable(cause.to_string()),
    };
    // A FIFO would block.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(unreadable("it is not a regular file".to_owned()));
    }
    let file = File::open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    if only_trusted {
        let user = rustix::process::geteuid().as_raw();
        check_owner(found.uid(), found.mode(), user)
            .map_err(|cause| BadFile::Unsafe { path: path.to_owned(), cause })?;
    }
    let mut text = String::new();
    let bytes = file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    if u64::try_from(bytes).is_ok_and(|bytes| bytes > MAX_BYTES) {
        return Err(unreadable("it is larger than 1 MiB".to_owned()));
    }
    parse(path, &text).map_err(BadFile::Invalid)
}

/// Checks that only root and `user` may change a file with this owner and mode.
fn check_owner(owner: u32, mode: u32, user: u32) -> Result<(), String> {
    if owner != 0 && owner != user {
        return Err(format!("user {owner} owns it"));
    }
    match mode & OTHERS_WRITE {
        0 => Ok(()),
        _ => Err(format!("its mode is {:o}, so other users may write to it", mode & 0o777)),
    }
}

/// Reads the settings of a file, or lists all errors by line.
fn parse(path: &Path, text: &str) -> Result<ConfigFile, Vec<String>> {
    let mut reader = Reader { lines: Lines::new(text), settings: Vec::new(), errors: Vec::new() };
    match toml_text::parse(text) {
        Ok(table) => reader.read(table.get_ref()),
        Err(errors) => reader.errors = errors,
    }
    let Reader { mut settings, mut errors, .. } = reader;
    settings.sort_by_key(|setting| setting.line);
    errors.sort();
    match errors.is_empty() {
        true => Ok(ConfigFile { path: path.to_owned(), settings }),
        false => Err(errors.iter().map(|(line, error)| format!("{}:{line}: {error}", path.display())).collect()),
    }
}

struct Reader {
    lines: Lines,
    settings: Vec<Setting>,
    /// With their lines.
    errors: Vec<(usize, String)>,
}

impl Reader {
    fn read(&mut self, table: &DeTable<'_>) {
        let command = settings_command();
        for (section, value) in table {
            let line = self.lines.line_of(section.span().start);
            let is_section = KEYS.iter().any(|key| key.parts().0 == section.get_ref());
            match value.get_ref() {
                DeValue::Table(keys) => {
                    if keys.is_empty() && !is_section {
                        self.errors.push((line, unknown_section(section.get_ref())));
                    }
                    for (name, value) in keys {
                        self.setting(&command, &format!("{}.{}", section.get_ref(), name.get_ref()), name, value);
                    }
                }
                _ if is_section => {
                    self.errors.push((line, format!("'{0}' is a section; write [{0}] on a line", section.get_ref())));
                }
                _ => self.errors.push((line, unknown_key(section.get_ref()))),
            }
        }
    }

    fn setting<T>(&mut self, command: &clap::Command, name: &str, at: &Spanned<T>, value: &Spanned<DeValue<'_>>) {
        let line = self.lines.line_of(at.span().start);
        let known = Key::find(name).and_then(|key| {
            let argument = command.get_arguments().find(|one| one.get_id() == key.argument);
            argument.map(|argument| (key, argument))
        });
        let Some((key, argument)) = known else { return self.errors.push((line, unknown_key(name))) };
        match argument_text(key, argument, value.get_ref()) {
            Ok(text) => self.settings.push(Setting { key, line, text }),
            Err(wrong) => self.errors.push((line, format!("{name}: {wrong}"))),
        }
    }
}

fn unknown_section(name: &str) -> String {
    let mut sections: Vec<&str> = KEYS.iter().map(|key| key.parts().0).collect();
    sections.dedup();
    match nearest(name, sections.iter().copied()) {
        Some(meant) => format!("unknown section '{name}'; did you mean '{meant}'?"),
        None => format!("unknown section '{name}'; the sections are {}", sections.join(", ")),
    }
}

fn unknown_key(name: &str) -> String {
    let last = name.rsplit('.').next().unwrap_or(name);
    let named = |last: &str| KEYS.iter().find(|key| key.parts().1 == last).map(|key| key.name);
    let spelled = || nearest(name, KEYS.iter().map(|key| key.name));
    let elsewhere = || nearest(last, KEYS.iter().map(|key| key.parts().1)).and_then(named);
    match named(last).or_else(spelled).or_else(elsewhere) {
        Some(meant) => format!("unknown key '{name}'; did you mean '{meant}'?"),
        None => format!("unknown key '{name}'; 'outpost config init' prints all keys"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::{check_owner, parse};

    /// Pieces of which broken and valid files are made.
    const PIECES: &[&str] = &[
        "[server]",
        "[[log]]",
        "listen",
        "server",
        ".",
        "=",
        " = ",
        "\n",
        "'80'",
        "80",
        "0x10",
        "-1",
        "[",
        "]",
        "{",
        "}",
        ",",
        "\"",
        "'''",
        "true",
        "1e400",
        "1979-05-27",
        "ä",
        "\0",
        "#",
        "level",
        "'debug'",
        "allowed_hosts",
        "['a']",
    ];

    proptest! {
        #[test]
        fn errors_of_any_text_have_lines_within_it(pieces in vec(select(PIECES), 0..30)) {
            let text = pieces.concat();
            for error in parse(Path::new("f"), &text).err().unwrap_or_default() {
                let line: usize = error.split(':').nth(1).unwrap().parse().unwrap();
                prop_assert!((1..=text.matches('\n').count() + 1).contains(&line), "{error}");
            }
        }
    }

    #[test]
    fn settings_have_their_lines() {
        let text = "# comment\n[server]\nlisten = 80\n\n[network]\nallowed_hosts = [\n  'a.example',\n]\n[log]\n";
        let file = parse(Path::new("f"), text).unwrap();
        let settings: Vec<_> = file.settings.iter().map(|one| (one.key.name, one.line, &*one.text)).collect();
        assert_eq!(settings, [("server.listen", 3, "80"), ("network.allowed_hosts", 6, "a.example")]);
    }

    #[test]
    fn all_errors_are_listed_with_their_lines() {
        let text = "listn = 1\nlog = 'debug'\n[servr]\n[server]\nlisen = 80\nmemory = '1GiB'\n[compute]\n\
                    memory = '6 apples'\nwhatever_this_is = 1\n";
        let errors = parse(Path::new("/f.toml"), text).unwrap_err();
        let expected = [
            "/f.toml:1: unknown key 'listn'; did you mean 'server.listen'?",
            "/f.toml:2: 'log' is a section; write [log] on a line",
            "/f.toml:3: unknown section 'servr'; did you mean 'server'?",
            "/f.toml:5: unknown key 'server.lisen'; did you mean 'server.listen'?",
            "/f.toml:6: unknown key 'server.memory'; did you mean 'compute.memory'?",
            "/f.toml:8: compute.memory: '6 apples' is not a size; write for example 6GiB, 800MB or a number of bytes",
            "/f.toml:9: unknown key 'compute.whatever_this_is'; 'outpost config init' prints all keys",
        ];
        assert_eq!(errors, expected);
    }

    #[test]
    fn syntax_errors_have_their_lines() {
        let errors = parse(Path::new("f"), "[server]\nlisten = 80\nlisten = 81\n[log\n").unwrap_err();
        assert!(errors.iter().any(|error| error.starts_with("f:3: ")), "{errors:?}");
        assert!(errors.iter().any(|error| error.starts_with("f:4: ")), "{errors:?}");
    }

    #[test]
    fn only_files_that_root_and_this_user_may_change_are_trusted() {
        for (owner, mode) in [(0, 0o644), (0, 0o640), (1000, 0o600), (1000, 0o100_644)] {
            assert_eq!(check_owner(owner, mode, 1000), Ok(()), "{owner} {mode:o}");
        }
        for (owner, mode) in [(1001, 0o644), (0, 0o664), (1000, 0o646), (0, 0o777)] {
            assert!(check_owner(owner, mode, 1000).is_err(), "{owner} {mode:o}");
        }
    }
}
