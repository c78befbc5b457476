//! The tensor table: names, shapes, types and offsets.

use std::collections::HashMap;

use crate::backend::DType;

use super::GgufError;
use super::cursor::Cursor;
use super::stored_type::{ConvertedType, StoredType};

/// An entry of the tensor table. Its bytes are inside its file.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    pub name: String,
    /// Row-major, outermost dimension first. The file has the opposite order.
    pub shape: Vec<usize>,
    pub stored: StoredType,
    /// The index of its file: 0, unless the model is split into several.
    pub file: usize,
    /// Offset from the start of the file.
    pub start: u64,
    pub bytes: u64,
}

/// Type numbers of ggml.h. `None`: the type is not supported.
const TYPES: &[(u32, &str, Option<StoredType>)] = &[
    (0, "F32", direct(DType::F32)),
    (1, "F16", direct(DType::F16)),
    (2, "Q4_0", direct(DType::Q4_0)),
    (3, "Q4_1", direct(DType::Q4_1)),
    (6, "Q5_0", direct(DType::Q5_0)),
    (7, "Q5_1", direct(DType::Q5_1)),
    (8, "Q8_0", direct(DType::Q8_0)),
    (9, "Q8_1", None),
    (10, "Q2_K", direct(DType::Q2K)),
    (11, "Q3_K", direct(DType::Q3K)),
    (12, "Q4_K", direct(DType::Q4K)),
    (13, "Q5_K", direct(DType::Q5K)),
    (14, "Q6_K", direct(DType::Q6K)),
    (15, "Q8_K", None),
    (16, "IQ2_XXS", converted(ConvertedType::IQ2XXS)),
    (17, "IQ2_XS", converted(ConvertedType::IQ2XS)),
    (18, "IQ3_XXS", converted(ConvertedType::IQ3XXS)),
    (19, "IQ1_S", converted(ConvertedType::IQ1S)),
    (20, "IQ4_NL", direct(DType::IQ4NL)),
    (21, "IQ3_S", converted(ConvertedType::IQ3S)),
    (22, "IQ2_S", converted(ConvertedType::IQ2S)),
    (23, "IQ4_XS", direct(DType::IQ4XS)),
    (24, "I8", None),
    (25, "I16", None),
    (26, "I32", None),
    (27, "I64", None),
    (28, "F64", None),
    (29, "IQ1_M", converted(ConvertedType::IQ1M)),
    (30, "BF16", direct(DType::BF16)),
    (34, "TQ1_0", converted(ConvertedType::TQ1_0)),
    (35, "TQ2_0", converted(ConvertedType::TQ2_0)),
    (39, "MXFP4", direct(DType::MXFP4)),
    (40, "NVFP4", converted(ConvertedType::NVFP4)),
    (41, "Q1_0", None),
];

const fn direct(dtype: DType) -> Option<StoredType> {
    Some(StoredType::Direct(dtype))
}

const fn converted(kind: ConvertedType) -> Option<StoredType> {
    Some(StoredType::Converted(kind))
}

/// The supported type of this name.
pub fn type_named(name: &str) -> Option<StoredType> {
    TYPES.iter().find(|row| row.1 == name).and_then(|row| row.2)
}

/// The name of a type, such as `Q4_1`.
fn type_name(stored: StoredType) -> &'static str {
    TYPES.iter().find(|row| row.2 == Some(stored)).map_or("unknown", |row| row.1)
}

/// The name of the type that most elements have. `tensors`: the type and the number of elements of each.
pub fn most_frequent_type(tensors: impl Iterator<Item = (StoredType, u64)>) -> Option<&'static str> {
    let mut elements: HashMap<&'static str, u64> = HashMap::new();
    for (stored, count) in tensors {
        *elements.entry(type_name(stored)).or_default() += count;
    }
    elements.into_iter().max_by_key(|&(name, count)| (count, name)).map(|(name, _)| name)
}

/// The type of this number; `tensor` is for error messages.
pub(crate) fn find_type(number: u32, tensor: &str) -> Result<StoredType, GgufError> {
    match TYPES.iter().find(|row| row.0 == number) {
        Some((_, _, Some(stored))) => Ok(*stored),
        Some((_, name, None)) => {
            Err(GgufError::Unsupported(format!("tensor {tensor} has the type {name}, which is not supported")))
        }
        None => Err(GgufError::damaged(format!("tensor {tensor} has the unknown type {number}"))),
    }
}

impl TensorInfo {
    /// Reads one entry; `start` is still relative to the data section.
    pub(super) fn read(cursor: &mut Cursor<'_>, index: usize) -> Result<Self, GgufError> {
        let name = cursor.text(&|| format!("the name of tensor {index}"))?;
        let what = || format!("the description of tensor {name}");
        let rank = cursor.u32(&what)?;
        if !(1..=4).contains(&rank) {
            return Err(GgufError::damaged(format!("tensor {name} has {rank} dimensions; 1 to 4 are allowed")));
        }
        let mut sizes = Vec::new();
        for _ in 0..rank {
            sizes.push(cursor.u64(&what)?);
        }
        let stored = find_type(cursor.u32(&what)?, &name)?;
        let start = cursor.u64(&what)?;
        let bytes = size_in_bytes(&sizes, stored)
            .ok_or_else(|| GgufError::damaged(format!("tensor {name} has the impossible shape {sizes:?}")))?;
        let shape = sizes.iter().rev().map(|&size| size as usize).collect();
        Ok(Self { name, shape, stored, file: 0, start, bytes })
    }

    pub fn elements(&self) -> u64 {
        self.shape.iter().map(|&size| size as u64).product()
    }
}

/// The size of a tensor, innermost dimension first; `None` if a dimension is zero, the product overflows, or a row is not a
/// whole number of blocks.
pub(crate) fn size_in_bytes(sizes: &[u64], stored: StoredType) -> Option<u64> {
    let block = stored.block() as u64;
    let row = *sizes.first()?;
    let elements = sizes.iter().try_fold(1u64, |product, &size| product.checked_mul(size))?;
    // With this limit, later products of the same dimensions cannot overflow `usize`.
    if elements == 0 || elements > i64::MAX as u64 / 8 || row % block != 0 {
        return None;
    }
    (elements / block).checked_mul(stored.block_bytes() as u64)
}
