//! An open GGUF file and its checked header. `models::weights` reads tensors.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use super::{GgufError, Header, parse_header};
use crate::error::ModelError;

/// Maximum bytes of a header. A vocabulary of 256,000 tokens makes a header of 16 MB.
pub const MAX_HEADER_BYTES: u64 = 64 << 20;
/// Bytes of the first read. If a header is longer, the next read is four times as long.
const FIRST_READ_BYTES: u64 = 4 << 20;

/// An open file and its header.
#[derive(Debug)]
pub struct GgufFile {
    file: File,
    pub header: Header,
    pub length: u64,
}

impl GgufFile {
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        // Opening a FIFO would block, so the file type is checked first.
        if !std::fs::metadata(path).map_err(GgufError::Io)?.is_file() {
            return Err(ModelError::checkpoint("not a regular file"));
        }
        let file = File::open(path).map_err(GgufError::Io)?;
        let length = file.metadata().map_err(GgufError::Io)?.len();
        let header = read_header(&file, length)?;
        Ok(Self { file, header, length })
    }

    /// The open file, for reading tensors.
    pub(crate) fn file(&self) -> &File {
        &self.file
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
