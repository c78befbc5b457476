//! A GGUF file on disk and its checked header; tensors are read through `models::weights`.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use super::{GgufError, Header, parse_header};
use crate::models::error::ModelError;

/// Vocabularies of 256,000 tokens make headers of 16 MB; four times that is no model any more.
/// A longer header is refused; bytes.
pub const MAX_HEADER_BYTES: u64 = 64 << 20;
/// Most headers fit; longer ones are read again, four times as long.
const FIRST_READ: u64 = 4 << 20;

/// An open file and its header.
#[derive(Debug)]
pub struct GgufFile {
    file: File,
    pub header: Header,
    pub length: u64,
}

impl GgufFile {
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        // The kind first: opening a FIFO would wait for ever.
        if !std::fs::metadata(path).map_err(GgufError::Io)?.is_file() {
            return Err(ModelError::checkpoint("not a regular file"));
        }
        let file = File::open(path).map_err(GgufError::Io)?;
        let length = file.metadata().map_err(GgufError::Io)?.len();
        let header = read_header(&file, length)?;
        Ok(Self { file, header, length })
    }

    /// The open file, for reading tensors.
    pub(in crate::models) fn file(&self) -> &File {
        &self.file
    }
}

fn read_at(mut file: &File, start: u64, bytes: &mut [u8]) -> std::io::Result<()> {
    file.seek(SeekFrom::Start(start))?;
    file.read_exact(bytes)
}

fn read_header(file: &File, length: u64) -> Result<Header, GgufError> {
    let most = length.min(MAX_HEADER_BYTES);
    let mut wanted = most.min(FIRST_READ);
    loop {
        let mut bytes = vec![0; usize::try_from(wanted).unwrap_or(0)];
        read_at(file, 0, &mut bytes)?;
        match parse_header(&bytes, length) {
            Err(GgufError::Short(_)) if wanted < most => wanted = most.min(wanted * 4),
            Err(GgufError::Short(_)) => {
                return Err(GgufError::Unsupported(format!("the header is longer than {MAX_HEADER_BYTES} bytes")));
            }
            done => return done,
        }
    }
}
