//! Rows of a tensor, where they lie.

use std::fs::File;
use std::os::unix::fs::FileExt;

use outpost_kernels::{Kind, dequantise};

use super::flat;
use crate::models::ModelError;

/// Rows that have been found but not read; of a vector, each number is one.
#[derive(Debug)]
pub struct Rows<'a> {
    pub kind: Kind,
    pub count: usize,
    pub columns: usize,
    bytes: Bytes<'a>,
}

#[derive(Debug)]
enum Bytes<'a> {
    /// In a file, from this byte on.
    File(&'a File, u64),
    Memory(Vec<u8>),
}

/// Where a whole tensor lies in its file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tensor<'a> {
    pub name: &'a str,
    pub file: &'a File,
    pub start: u64,
    pub shape: &'a [usize],
    pub kind: Kind,
}

impl<'a> Tensor<'a> {
    /// `count` rows from `first` on.
    pub fn rows(self, first: usize, count: usize) -> Result<Rows<'a>, ModelError> {
        let Self { name, file, start, shape, kind } = self;
        let (all, columns) = flat(shape);
        if first.checked_add(count).is_none_or(|end| end > all) {
            return Err(ModelError::Invalid(format!(
                "tensor {name} has {all} rows, none from {first} to {count} more"
            )));
        }
        if !columns.is_multiple_of(kind.block()) {
            // A vector of quantised numbers comes in blocks, of which parts cannot be read.
            return Err(ModelError::Invalid(format!("tensor {name} is a quantised vector, which is not supported")));
        }
        let skip = first as u64 * (columns / kind.block() * kind.block_bytes()) as u64;
        Ok(Rows { kind, count, columns, bytes: Bytes::File(file, start + skip) })
    }
}

impl Rows<'static> {
    /// Rows in memory, as a GGUF file has them.
    ///
    /// # Errors
    /// Where `bytes` has another length.
    pub fn of_bytes(kind: Kind, count: usize, columns: usize, bytes: Vec<u8>) -> Result<Self, ModelError> {
        let rows = Self { kind, count, columns, bytes: Bytes::Memory(Vec::new()) };
        match bytes.len() == count * rows.row_bytes() {
            true => Ok(Self { bytes: Bytes::Memory(bytes), ..rows }),
            false => Err(ModelError::Invalid(format!("{} bytes are not {count} rows of {columns}", bytes.len()))),
        }
    }
}

impl Rows<'_> {
    fn row_bytes(&self) -> usize {
        self.columns / self.kind.block() * self.kind.block_bytes()
    }

    /// Reads the bytes of whole rows from the row `first` on. Threads may do so at the same time.
    pub fn read(&self, first: usize, to: &mut [u8]) -> Result<(), ModelError> {
        let skip = first * self.row_bytes();
        match &self.bytes {
            Bytes::File(file, start) => file
                .read_exact_at(to, start + skip as u64)
                .map_err(|error| ModelError::Invalid(format!("the file cannot be read: {error}"))),
            Bytes::Memory(bytes) => match bytes.get(skip..skip + to.len()) {
                Some(bytes) => {
                    to.copy_from_slice(bytes);
                    Ok(())
                }
                None => Err(ModelError::invalid("a tensor ends before its last row")),
            },
        }
    }

    /// All numbers as f32.
    pub fn floats(&self) -> Result<Vec<f32>, ModelError> {
        let mut bytes = vec![0; self.count * self.row_bytes()];
        self.read(0, &mut bytes)?;
        let mut floats = vec![0.; self.count * self.columns];
        dequantise(self.kind, &bytes, &mut floats);
        Ok(floats)
    }
}
