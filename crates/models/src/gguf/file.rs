//! An open GGUF file and its checked header. `models::weights` reads tensors.
//!
//! llama.cpp's `gguf-split` splits a file into parts: `NAME-00001-of-00003.gguf` and so on. Each part is a GGUF file with a tensor
//! table for its own tensors. The first part has the metadata of the model, and may have no tensors; the others have only
//! `split.no` (from 0), `split.count` and `split.tensors.count`, the number of tensors of all parts. A [`GgufFile`] combines
//! them, so that nothing else has to know whether a model is split.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::value::Metadata;
use super::{GgufError, Header, TensorInfo, parse_header};
use crate::error::ModelError;
use crate::model_files::{Names, SplitPart};

/// Maximum bytes of a header. A vocabulary of 256,000 tokens makes a header of 16 MB.
pub const MAX_HEADER_BYTES: u64 = 64 << 20;
/// Bytes of the first read. If a header is longer, the next read is four times as long.
const FIRST_READ_BYTES: u64 = 4 << 20;

/// Max tensors of all parts of a split file. The largest models have some thousands.
const MAX_SPLIT_TENSORS: usize = 1 << 20;

const SPLIT_NUMBER: &str = "split.no";
const SPLIT_COUNT: &str = "split.count";
const SPLIT_TENSORS: &str = "split.tensors.count";

/// An open file and its header, or all parts of a split file.
#[derive(Debug)]
pub struct GgufFile {
    /// The file, or its parts.
    files: Vec<File>,
    /// The metadata of the first part, and the tensors of all parts.
    pub header: Header,
    /// Of all parts.
    pub length: u64,
}

impl GgufFile {
    /// Opens a file. `path` may be any part of a split file.
    ///
    /// # Errors
    /// The file cannot be used. If one part of a split file is the cause, the text names it.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        if let Some(part) = SplitPart::of_file(path) {
            return Self::open_split(path, part).map_err(ModelError::Checkpoint);
        }
        let OpenFile { file, header, length } = OpenFile::open(path)?;
        if let Some(count) = header.metadata.integer(SPLIT_COUNT).filter(|count| *count > 1) {
            let number = header.metadata.integer(SPLIT_NUMBER).unwrap_or(0).saturating_add(1);
            return Err(ModelError::Checkpoint(format!(
                "the file is part {number} of {count} of a split model: put all parts into one folder, and name this one \
                 NAME-{number:05}-of-{count:05}.gguf"
            )));
        }
        Ok(Self { files: vec![file], header, length })
    }

    /// Reads only the metadata. Of a split file, only the first part is opened.
    pub fn read_metadata(path: &Path) -> Result<Metadata, ModelError> {
        let first = SplitPart::of_file(path).map(|part| path.with_file_name(part.path(1)));
        Ok(OpenFile::open(first.as_deref().unwrap_or(path))?.header.metadata)
    }

    fn open_split(path: &Path, part: SplitPart<'_>) -> Result<Self, String> {
        let paths = paths(path, part)?;
        let (mut files, mut length, mut merged) = (Vec::new(), 0, None);
        for (path, number) in paths.iter().zip(1..) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let opened = OpenFile::open(path).map_err(|error| format!("{name}: {error}{}", remedy(&error)))?;
            check_place(&opened.header.metadata, SplitPart { number, ..part })
                .map_err(|problem| format!("{name}: {problem}"))?;
            files.push(opened.file);
            length += opened.length;
            match &mut merged {
                None => merged = Some(opened.header),
                Some(first) => {
                    append(first, opened.header, number - 1).map_err(|problem| format!("{name}: {problem}"))?
                }
            }
        }
        let header = merged.ok_or("the split file has no parts")?;
        check_tensors(&header, &paths)?;
        Ok(Self { files, header, length })
    }

    /// The open file with a tensor, for reading it.
    pub(crate) fn file(&self, tensor: &TensorInfo) -> Result<&File, ModelError> {
        let file = self.files.get(tensor.file);
        file.ok_or_else(|| ModelError::Checkpoint(format!("the tensor {} is in no part of the file", tensor.name)))
    }
}

/// The paths of all parts, which must exist.
fn paths(path: &Path, part: SplitPart<'_>) -> Result<Vec<PathBuf>, String> {
    if part.count > SplitPart::MAX_COUNT {
        return Err(format!(
            "the model is split into {} files, and at most {} can be read: merge them with `llama-gguf-split --merge`",
            part.count,
            SplitPart::MAX_COUNT
        ));
    }
    let paths: Vec<PathBuf> = (1..=part.count).map(|number| path.with_file_name(part.path(number))).collect();
    let missing: Vec<&PathBuf> = paths.iter().filter(|path| !path.exists()).collect();
    if !missing.is_empty() {
        return Err(format!(
            "the split model lacks {} of its {} parts ({}): put all parts into one folder",
            missing.len(),
            part.count,
            Names(&missing)
        ));
    }
    Ok(paths)
}

/// Checks that the header of a part has the number and the count that its name says.
fn check_place(metadata: &Metadata, part: SplitPart<'_>) -> Result<(), String> {
    let SplitPart { number, count, .. } = part;
    match (metadata.integer(SPLIT_NUMBER), metadata.integer(SPLIT_COUNT)) {
        (Some(own), Some(all)) if (own, all) == (number as u64 - 1, count as u64) => Ok(()),
        (Some(own), Some(all)) => Err(format!(
            "its header says that it is part {} of {all}, not {number} of {count}: it was renamed, or belongs to another \
             split model; replace it with the right part",
            own.saturating_add(1)
        )),
        _ => Err(format!(
            "its header has no {SPLIT_NUMBER} and {SPLIT_COUNT}, so it is not part of a split model; if it is a whole \
             model, remove -{number:05}-of-{count:05} from its name"
        )),
    }
}

/// Adds the tensors of a further part, the file with this index.
fn append(first: &mut Header, other: Header, file: usize) -> Result<(), String> {
    let all = first.metadata.integer(SPLIT_TENSORS);
    if let Some(own) = other.metadata.integer(SPLIT_TENSORS)
        && let Some(all) = all.filter(|all| *all != own)
    {
        return Err(format!(
            "{SPLIT_TENSORS} is {own}, but {all} in the first part: it belongs to another split model; replace it with the \
             right part"
        ));
    }
    if first.tensors.len() + other.tensors.len() > MAX_SPLIT_TENSORS {
        return Err(format!(
            "the parts up to this one have more than {MAX_SPLIT_TENSORS} tensors; such a model cannot be read"
        ));
    }
    first.tensors.extend(other.tensors.into_iter().map(|tensor| TensorInfo { file, ..tensor }));
    Ok(())
}

/// Checks that no tensor is in several parts, and that none is missing.
fn check_tensors(header: &Header, paths: &[PathBuf]) -> Result<(), String> {
    let mut found: HashMap<&str, usize> = HashMap::new();
    for tensor in &header.tensors {
        if let Some(other) = found.insert(&tensor.name, tensor.file) {
            let both: Vec<&PathBuf> = [other, tensor.file].iter().filter_map(|file| paths.get(*file)).collect();
            return Err(format!(
                "the tensor {} is in several parts ({}): one of them belongs to another split model; replace it with the \
                 right part",
                tensor.name,
                Names(&both)
            ));
        }
    }
    match header.metadata.integer(SPLIT_TENSORS).filter(|count| *count != header.tensors.len() as u64) {
        Some(count) => Err(format!(
            "the parts have {} tensors, but {SPLIT_TENSORS} says {count}: some belong to another split model; copy or \
             download all parts again",
            header.tensors.len()
        )),
        None => Ok(()),
    }
}

/// What to do about a part that cannot be read, as the end of a message.
fn remedy(error: &GgufError) -> &'static str {
    match error {
        GgufError::NotGguf(_) | GgufError::Truncated { .. } | GgufError::Damaged(_) => {
            "; copy or download this part again"
        }
        _ => "",
    }
}

/// A single file.
struct OpenFile {
    file: File,
    header: Header,
    length: u64,
}

impl OpenFile {
    fn open(path: &Path) -> Result<Self, GgufError> {
        // Opening a FIFO would block, so the file type is checked first.
        if !std::fs::metadata(path)?.is_file() {
            return Err(GgufError::Unsupported("not a regular file".to_owned()));
        }
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        let header = read_header(&file, length)?;
        Ok(Self { file, header, length })
    }
}

fn read_at(mut file: &File, start: u64, bytes: &mut [u8]) -> std::io::Result<()> {
    file.seek(SeekFrom::Start(start))?;
    file.read_exact(bytes)
}

fn read_header(file: &File, length: u64) -> Result<Header, GgufError> {
    let max = length.min(MAX_HEADER_BYTES);
    let mut size = max.min(FIRST_READ_BYTES);
    loop {
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
        read_at(file, 0, &mut bytes)?;
        match parse_header(&bytes, length) {
            Err(GgufError::Short(_)) if size < max => size = max.min(size * 4),
            Err(GgufError::Short(_)) => {
                return Err(GgufError::Unsupported(format!("the header is longer than {MAX_HEADER_BYTES} bytes")));
            }
            result => return result,
        }
    }
}
