//! Which entries of a folder are a model's files.
//!
//! Every part of the server that looks for files of models asks here: with a [`FolderListing`], or with the path of a file in
//! a repository or an archive. The ending of a name is not enough. Operating systems, network shares and version control leave
//! files of their own beside models, and some have the same ending. On a disk of another system, macOS writes an AppleDouble
//! file `._model.safetensors` beside each `model.safetensors`. What is left out is reported, so that no file disappears without a
//! word.
//!
//! Names decide, not contents, because a listing must not open files. Where a name is not certain (an importance
//! matrix), the file is ignored only if another one can be the model. Of safetensors, the single file takes precedence
//! over the index, as in transformers; the same holds for components of image models.

use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// Files and folders that systems write beside those of their users, apart from names that begin with a dot: network
/// storage, trash cans, archives of macOS, and the folder views of Windows.
const SYSTEM_NAMES: [&str; 9] = [
    "@eaDir",
    "@Recycle",
    "#recycle",
    "$RECYCLE.BIN",
    "System Volume Information",
    "lost+found",
    "__MACOSX",
    "Thumbs.db",
    "desktop.ini",
];
/// The end of the name under which Linux shows what Windows notes about a downloaded file.
const WINDOWS_NOTE: &str = ":Zone.Identifier";
/// Max names in an error message.
const MAX_NAMES: usize = 5;

/// True for files and folders of operating systems and programs, which are not a model's.
pub fn is_hidden(name: &str) -> bool {
    let is_system = SYSTEM_NAMES.iter().any(|system| system.eq_ignore_ascii_case(name));
    name.starts_with('.') || name.ends_with(WINDOWS_NOTE) || is_system
}

/// Whether a relative path, with `/` as separator, has a hidden component.
pub fn is_hidden_path(path: &str) -> bool {
    path.split('/').any(is_hidden)
}

/// True for names that end with `.gguf`, in any case.
pub fn is_gguf(path: &Path) -> bool {
    has_extension(path, "gguf")
}

/// True for names that end with `.safetensors`, in any case.
pub fn is_safetensors(path: &Path) -> bool {
    has_extension(path, "safetensors")
}

/// Whether the name is that of a model of whisper.cpp: `ggml-NAME.bin`.
pub fn is_ggml(path: &Path) -> bool {
    let stem = path.file_stem().and_then(|stem| stem.to_str());
    has_extension(path, "bin") && stem.and_then(|stem| stem.strip_prefix("ggml-")).is_some_and(|name| !name.is_empty())
}

/// True for names of weight files.
pub fn is_weights(path: &Path) -> bool {
    is_gguf(path) || is_safetensors(path) || is_ggml(path)
}

/// Whether a name has this extension, in any case: file systems without cases may show names in upper case.
pub fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|own| own.eq_ignore_ascii_case(extension))
}

/// The kind of a GGUF file that accompanies a model, such as a vision projector; `None` for a model.
pub fn companion(path: &Path) -> Option<&'static str> {
    match () {
        () if is_projector(path) => Some("a vision projector"),
        () if is_gguf(path) && lower_stem(path).ends_with("imatrix") => Some("an importance matrix"),
        () => None,
    }
}

/// True for the vision projector of a model, which is not a model itself.
pub fn is_projector(path: &Path) -> bool {
    is_gguf(path) && lower_stem(path).contains("mmproj")
}

fn lower_stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().to_ascii_lowercase()
}

/// A part of a split GGUF file, by its name, such as `model-00001-of-00003.gguf`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitPart<'p> {
    /// The path before the number.
    pub stem: &'p str,
    /// From 1 to `count`.
    pub number: usize,
    /// At least 2.
    pub count: usize,
    /// The ending of the name, without its dot.
    pub extension: &'p str,
}

impl<'p> SplitPart<'p> {
    /// Max parts of a file. Each is open while the model is loaded.
    pub const MAX_COUNT: usize = 256;

    /// `None` for a whole file.
    pub fn of(path: &'p str) -> Option<Self> {
        let (name, extension) = path.rsplit_once('.').filter(|_| is_gguf(Path::new(path)))?;
        let (rest, count) = name.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let is_number = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
        let read = |text: &str| text.parse::<usize>().ok().filter(|_| is_number(text));
        let (number, count) = (read(number)?, read(count)?);
        let is_part = count > 1 && (1..=count).contains(&number) && !stem.is_empty() && !stem.ends_with('/');
        is_part.then_some(Self { stem, number, count, extension })
    }

    /// Like [`Self::of`], for the name of a file without its folder.
    pub fn of_file(path: &'p Path) -> Option<Self> {
        Self::of(path.file_name()?.to_str()?)
    }

    /// The path of the part `number` of the same file.
    pub fn path(&self, number: usize) -> String {
        let Self { stem, count, extension, .. } = self;
        format!("{stem}-{number:05}-of-{count:05}.{extension}")
    }

    /// The numbers of the parts, of which at most [`Self::MAX_COUNT`] are looked for.
    fn numbers(&self) -> RangeInclusive<usize> {
        1..=self.count.min(Self::MAX_COUNT)
    }
}

/// The files of the GGUF model whose main file is `path`: the existing parts of a split file, in order, or else the file itself.
pub fn gguf_files(path: &Path) -> Vec<PathBuf> {
    let Some(part) = SplitPart::of_file(path) else { return vec![path.to_owned()] };
    let parts = part.numbers().map(|number| path.with_file_name(part.path(number)));
    parts.filter(|part| part.is_file()).collect()
}

/// The name of the model whose main file is `path`, directly in the models folder: that of the file without its ending, and of
/// a split file without its number. `None` for the further parts of a split file, and for every part beside a whole file of that name.
pub fn file_model_name(path: &Path) -> Option<&str> {
    let Some(part) = SplitPart::of_file(path) else { return path.file_stem()?.to_str() };
    let is_there = |name: String| path.with_file_name(name).is_file();
    let mut earlier = part.numbers().take_while(|number| *number < part.number);
    let is_further = earlier.any(|number| is_there(part.path(number)));
    let has_whole = is_there(format!("{}.{}", part.stem, part.extension));
    (!is_further && !has_whole).then_some(part.stem)
}

/// A file that looks like a model's, but is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IgnoredFile {
    pub path: PathBuf,
    pub why: String,
}

/// The entries of a folder that may be a model's, each list sorted by path. Links count as what they lead to.
#[derive(Debug, Default)]
pub struct FolderListing {
    pub folders: Vec<PathBuf>,
    /// Regular files.
    pub files: Vec<PathBuf>,
    /// Entries that have the name of weights, but are hidden, not regular files, or empty beside other weights.
    pub ignored: Vec<IgnoredFile>,
}

impl FolderListing {
    /// Lists a folder. The listing of a folder that cannot be read is empty.
    pub fn read(folder: &Path) -> Self {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.sort();
        let (mut listing, mut empty) = (Self::default(), Vec::new());
        for path in paths {
            match fs::metadata(&path) {
                _ if is_hidden(&path.file_name().unwrap_or_default().to_string_lossy()) => {
                    listing.ignore(path, "hidden file");
                }
                Ok(metadata) if metadata.is_dir() => listing.folders.push(path),
                Ok(metadata) if metadata.is_file() && metadata.len() == 0 && is_weights(&path) => empty.push(path),
                Ok(metadata) if metadata.is_file() => listing.files.push(path),
                Ok(_) => listing.ignore(path, "not a regular file"),
                Err(_) => listing.ignore(path, "the file cannot be read"),
            }
        }
        if listing.files.iter().any(|path| is_weights(path) && companion(path).is_none()) {
            empty.into_iter().for_each(|path| listing.ignore(path, "the file is empty"));
        } else {
            // Alone, or beside a vision projector, such a file is shown as a damaged model.
            listing.files.append(&mut empty);
            listing.files.sort();
        }
        listing
    }

    fn ignore(&mut self, path: PathBuf, why: &str) {
        if is_weights(&path) {
            self.ignored.push(IgnoredFile { path, why: why.to_owned() });
        }
    }

    /// The file of this name.
    pub fn file(&self, name: &str) -> Option<&PathBuf> {
        self.files.iter().find(|path| path.file_name().is_some_and(|own| own == name))
    }

    pub fn safetensors(&self) -> Vec<&PathBuf> {
        self.files.iter().filter(|path| is_safetensors(path)).collect()
    }

    /// The main file of the GGUF model: a whole file, or the first existing part of a split one; `None` if there is none. Vision
    /// projectors do not count. Beside a whole file, neither do parts, and beside another file, neither do importance matrices.
    ///
    /// # Errors
    /// If there are several. The text names them.
    pub fn gguf(&self) -> Result<Option<&PathBuf>, String> {
        let models = self.files.iter().filter(|path| is_gguf(path) && !is_projector(path));
        let (parts, mut whole): (Vec<&PathBuf>, Vec<&PathBuf>) = models.partition(|path| is_split_part(path));
        if !parts.is_empty() || whole.iter().any(|path| companion(path).is_none()) {
            whole.retain(|path| companion(path).is_none());
        }
        match (whole.as_slice(), parts.as_slice()) {
            ([only], _) => Ok(Some(only)),
            ([], []) => Ok(None),
            ([], parts) => match first_parts(parts).as_slice() {
                [only] => Ok(Some(only)),
                several => Err(format!(
                    "the folder has the parts of {} split models; a model's folder must have those of exactly one: {}",
                    several.len(),
                    Names(several)
                )),
            },
            _ => Err(format!(
                "the folder has {} .gguf files; a model's folder must have exactly one: {}",
                whole.len(),
                Names(&whole)
            )),
        }
    }

    /// A vision projector.
    pub fn projector(&self) -> Option<&PathBuf> {
        self.files.iter().find(|path| is_projector(path))
    }

    /// The entries that look like weights but are not among the `used` files of the folder.
    pub fn unused(self, used: &[PathBuf]) -> Vec<IgnoredFile> {
        let main = used.first().and_then(|path| path.file_name()).unwrap_or_default().to_string_lossy().into_owned();
        let why = |path: &Path| match companion(path) {
            Some(what) => what.to_owned(),
            None if is_split_part(path) => format!("part of a split file; {main} is used"),
            None => format!("{main} is used"),
        };
        let files = self.files.into_iter().filter(|path| is_weights(path) && !used.contains(path));
        let others = files.map(|path| IgnoredFile { why: why(&path), path });
        let folders = self.folders.into_iter().filter(|path| is_weights(path));
        let folders = folders.map(|path| IgnoredFile { path, why: "a folder".to_owned() });
        let mut all: Vec<IgnoredFile> = self.ignored.into_iter().chain(folders).chain(others).collect();
        all.sort_by(|one, other| one.path.cmp(&other.path));
        all
    }
}

fn is_split_part(path: &Path) -> bool {
    SplitPart::of_file(path).is_some()
}

/// The first of the parts of each split file. `parts` is sorted.
fn first_parts<'p>(parts: &[&'p PathBuf]) -> Vec<&'p PathBuf> {
    let mut found = HashSet::new();
    let split = |path: &'p PathBuf| SplitPart::of_file(path).map(|part| (part.stem, part.count));
    parts.iter().copied().filter(|&path| found.insert(split(path))).collect()
}

/// The names of files, shortened if there are many.
pub struct Names<'p>(pub &'p [&'p PathBuf]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.iter().take(MAX_NAMES).map(|path| path.file_name().unwrap_or_default().to_string_lossy());
        f.write_str(&names.collect::<Vec<_>>().join(", "))?;
        if self.0.len() > MAX_NAMES { f.write_str(", and others") } else { Ok(()) }
    }
}
