//! Entries of tensors.

use super::reader::{Reader, damaged};
use crate::error::Result;
use crate::gguf::{StoredType, find_type, size_in_bytes};

/// Maximum bytes of a name.
const MAX_NAME: usize = 256;
const MAX_DIMENSIONS: usize = 4;

/// A tensor of the file. Its bytes are inside the file.
#[derive(Clone, Debug)]
pub(super) struct TensorInfo {
    pub name: String,
    /// Row-major, outermost dimension first. The file has the opposite order.
    pub shape: Vec<usize>,
    pub stored: StoredType,
    /// Offset from the start of the file.
    pub start: u64,
}

impl TensorInfo {
    pub fn elements(&self) -> u64 {
        self.shape.iter().map(|size| *size as u64).product()
    }

    /// Reads an entry, and skips the tensor's bytes.
    pub fn read(reader: &mut Reader<'_>, index: usize) -> Result<Self> {
        let what = || format!("the description of tensor {index}");
        let rank = reader.count(MAX_DIMENSIONS, &what)?;
        let length = reader.count(MAX_NAME, &what)?;
        let type_number = reader.u32(&what)?;
        let mut sizes = Vec::with_capacity(rank);
        for _ in 0..rank {
            sizes.push(u64::from(reader.u32(&what)?));
        }
        let name = reader.bytes(length, &what)?;
        let Ok(name) = String::from_utf8(name) else {
            return Err(damaged(format!("the name of tensor {index} is not UTF-8")));
        };
        let stored = find_type(type_number, &name)?;
        let Some(bytes) = size_in_bytes(&sizes, stored) else {
            return Err(damaged(format!("tensor {name} has the impossible shape {sizes:?}")));
        };
        let start = reader.position();
        reader.skip(bytes, &|| format!("tensor {name}"))?;
        let shape = sizes.iter().rev().map(|&size| size as usize).collect();
        Ok(Self { name, shape, stored, start })
    }
}
