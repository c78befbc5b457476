//! A GGUF file on disk: its checked header, and tensors on demand.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use candle_core::Device;
use candle_core::quantized::{QStorage, QTensor};

use super::{GgufError, Header, TensorInfo, parse};
use crate::models::ModelError;

/// Vocabularies of 256,000 tokens make headers of 16 MB; four times that is no model any more.
const LONGEST_HEADER: u64 = 64 << 20;
/// Most headers fit; longer ones are read again, four times as long.
const FIRST_READ: u64 = 4 << 20;
/// What a block's cast from bytes asks for at most.
const BLOCK_ALIGNMENT: usize = 64;

/// An open file and its header.
#[derive(Debug)]
pub struct GgufFile {
    file: File,
    pub header: Header,
    pub length: u64,
}

impl GgufFile {
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        // The kind first: opening a FIFO would wait for ever.
        if !std::fs::metadata(path)?.is_file() {
            return Err(GgufError::Unsupported("not a regular file".to_owned()));
        }
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        let header = read_header(&file, length)?;
        Ok(Self { file, header, length })
    }

    /// The tensor of this name and shape, copied into memory.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<QTensor, ModelError> {
        self.optional(name, shape)?.ok_or_else(|| ModelError::invalid(format!("the file has no tensor {name}")))
    }

    /// Like [`Self::tensor`] where the file may do without it.
    pub fn optional(&self, name: &str, shape: &[usize]) -> Result<Option<QTensor>, ModelError> {
        let Some(info) = self.header.tensor(name) else { return Ok(None) };
        if info.shape != shape {
            let text = format!("tensor {name} has the shape {:?}, the metadata asks for {shape:?}", info.shape);
            return Err(ModelError::Invalid(text));
        }
        self.read(info).map(Some)
    }

    fn read(&self, info: &TensorInfo) -> Result<QTensor, ModelError> {
        let count =
            usize::try_from(info.bytes).map_err(|_| ModelError::invalid("a tensor exceeds the address space"))?;
        let mut buffer = vec![0; count + BLOCK_ALIGNMENT];
        let skip = buffer.as_ptr().align_offset(BLOCK_ALIGNMENT);
        let bytes = buffer
            .get_mut(skip..skip.saturating_add(count))
            .ok_or_else(|| ModelError::invalid("a tensor's buffer cannot be aligned"))?;
        read_at(&self.file, info.start, bytes).map_err(GgufError::Io)?;
        let storage = QStorage::from_data((&*bytes).into(), &Device::Cpu, info.kind)?;
        Ok(QTensor::new(storage, info.shape.as_slice())?)
    }
}

fn read_at(mut file: &File, start: u64, bytes: &mut [u8]) -> std::io::Result<()> {
    file.seek(SeekFrom::Start(start))?;
    file.read_exact(bytes)
}

fn read_header(file: &File, length: u64) -> Result<Header, GgufError> {
    let most = length.min(LONGEST_HEADER);
    let mut wanted = most.min(FIRST_READ);
    loop {
        let mut bytes = vec![0; usize::try_from(wanted).unwrap_or(0)];
        read_at(file, 0, &mut bytes)?;
        match parse(&bytes, length) {
            Err(GgufError::Short(_)) if wanted < most => wanted = most.min(wanted * 4),
            Err(GgufError::Short(_)) => {
                return Err(GgufError::Unsupported(format!("the header is longer than {LONGEST_HEADER} bytes")));
            }
            done => return done,
        }
    }
}
