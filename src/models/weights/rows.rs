//! Rows of a tensor, where they lie.

use std::fs::File;
use std::os::unix::fs::FileExt;

use half::{bf16, f16};
use outpost_kernels::{DType, dequantise};

use crate::models::error::ModelError;

/// Rows that have been found but not read; of a vector, each number is one.
#[derive(Debug)]
pub struct Rows<'a> {
    pub dtype: DType,
    pub count: usize,
    pub columns: usize,
    bytes: Bytes<'a>,
    /// What the file has, where that becomes `dtype` when it is read.
    from: Option<DType>,
}

#[derive(Debug)]
enum Bytes<'a> {
    /// In a file, from this byte on.
    File(&'a File, u64),
    Memory(Vec<u8>),
}

/// Where a whole tensor lies in its file.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoredTensor<'a> {
    pub name: &'a str,
    pub file: &'a File,
    pub start: u64,
    pub shape: &'a [usize],
    pub dtype: DType,
}

impl<'a> StoredTensor<'a> {
    /// `count` rows from `first` on.
    pub fn rows(self, first: usize, count: usize) -> Result<Rows<'a>, ModelError> {
        let Self { name, file, start, shape, dtype } = self;
        let (all, columns) = flat(shape);
        if first.checked_add(count).is_none_or(|end| end > all) {
            return Err(ModelError::Checkpoint(format!(
                "tensor {name} has {all} rows, none from {first} to {count} more"
            )));
        }
        if !columns.is_multiple_of(dtype.block()) {
            // A vector of quantised numbers comes in blocks, of which parts cannot be read.
            return Err(ModelError::Checkpoint(format!("tensor {name} is a quantised vector, which is not supported")));
        }
        let skip = first as u64 * (columns / dtype.block() * dtype.block_bytes()) as u64;
        Ok(Rows { dtype, count, columns, bytes: Bytes::File(file, start + skip), from: None })
    }
}

impl Rows<'static> {
    /// Rows in memory, as a GGUF file has them.
    ///
    /// # Errors
    /// Where `bytes` has another length.
    pub fn from_bytes(dtype: DType, count: usize, columns: usize, bytes: Vec<u8>) -> Result<Self, ModelError> {
        let rows = Self { dtype, count, columns, bytes: Bytes::Memory(Vec::new()), from: None };
        match bytes.len() == count * rows.row_bytes(dtype) {
            true => Ok(Self { bytes: Bytes::Memory(bytes), ..rows }),
            false => Err(ModelError::Checkpoint(format!("{} bytes are not {count} rows of {columns}", bytes.len()))),
        }
    }
}

impl Rows<'_> {
    /// Whether rows of this dtype, of so many columns, can be rounded to another dtype.
    pub(super) fn can_round_to(dtype: DType, rounded: DType, columns: usize) -> bool {
        !dtype.is_quantised() && columns.is_multiple_of(rounded.block()) && can_round(rounded)
    }

    /// The same rows rounded to this type when they are read, if it can hold them.
    pub fn rounded(self, dtype: DType) -> Self {
        if self.dtype == dtype || !Self::can_round_to(self.dtype, dtype, self.columns) {
            return self;
        }
        Self { dtype, from: Some(self.dtype), ..self }
    }

    fn row_bytes(&self, dtype: DType) -> usize {
        self.columns / dtype.block() * dtype.block_bytes()
    }

    /// Reads the bytes of whole rows from the row `first` on. Threads may do so at the same time.
    pub fn read(&self, first: usize, to: &mut [u8]) -> Result<(), ModelError> {
        let Some(from) = self.from else { return self.read_as(self.dtype, first, to) };
        let count = to.len() / self.row_bytes(self.dtype).max(1);
        let mut bytes = vec![0; count * self.row_bytes(from)];
        self.read_as(from, first, &mut bytes)?;
        let mut floats = vec![0.; count * self.columns];
        dequantise(from, &bytes, &mut floats);
        round(self.dtype, &floats, to);
        Ok(())
    }

    fn read_as(&self, dtype: DType, first: usize, to: &mut [u8]) -> Result<(), ModelError> {
        let skip = first * self.row_bytes(dtype);
        match &self.bytes {
            Bytes::File(file, start) => file
                .read_exact_at(to, start + skip as u64)
                .map_err(|error| ModelError::Checkpoint(format!("the file cannot be read: {error}"))),
            Bytes::Memory(bytes) => match bytes.get(skip..skip + to.len()) {
                Some(bytes) => {
                    to.copy_from_slice(bytes);
                    Ok(())
                }
                None => Err(ModelError::checkpoint("a tensor ends before its last row")),
            },
        }
    }

    /// All rows, as a GGUF file has them.
    pub fn bytes(&self) -> Result<Vec<u8>, ModelError> {
        let mut bytes = vec![0; self.count * self.row_bytes(self.dtype)];
        self.read(0, &mut bytes)?;
        Ok(bytes)
    }

    /// All numbers as f32.
    pub fn floats(&self) -> Result<Vec<f32>, ModelError> {
        let bytes = self.bytes()?;
        let mut floats = vec![0.; self.count * self.columns];
        dequantise(self.dtype, &bytes, &mut floats);
        Ok(floats)
    }
}

/// Types that floats can be rounded to.
fn can_round(dtype: DType) -> bool {
    matches!(dtype, DType::BF16 | DType::Q8_0)
}

/// Rounds to one of the types of [`can_round`]: to the nearest bf16, or by blocks to bytes with a scale.
fn round(dtype: DType, floats: &[f32], to: &mut [u8]) {
    if dtype == DType::BF16 {
        for (number, to) in floats.iter().zip(to.chunks_exact_mut(2)) {
            to.copy_from_slice(&bf16::from_f32(*number).to_le_bytes());
        }
        return;
    }
    for (numbers, to) in floats.chunks_exact(dtype.block()).zip(to.chunks_exact_mut(dtype.block_bytes())) {
        let Some((head, codes)) = to.split_at_mut_checked(2) else { continue };
        let largest = numbers.iter().fold(0f32, |largest, number| largest.max(number.abs()));
        let scale = f16::from_f32(largest / 127.);
        head.copy_from_slice(&scale.to_le_bytes());
        let inverse = if scale > f16::ZERO { scale.to_f32().recip() } else { 0. };
        for (number, code) in numbers.iter().zip(codes) {
            *code = (number * inverse).round_ties_even().clamp(-127., 127.) as i8 as u8;
        }
    }
}

/// Rows and columns of a shape whose dimensions before the last count as one. Of a convolution of single pixels, the
/// last two are no dimensions.
pub(in crate::models) fn flat(shape: &[usize]) -> (usize, usize) {
    match shape {
        [rows, columns, 1, 1] => (*rows, *columns),
        [] => (1, 1),
        [numbers] => (*numbers, 1),
        [outer @ .., columns] => (outer.iter().product(), *columns),
    }
}

#[cfg(test)]
mod tests {
    use super::{DType, Rows};

    #[test]
    fn floats_are_rounded_as_they_are_read() {
        let numbers: Vec<f32> = (0..4 * 64).map(|one| (one as f32 * 0.7).sin() * 10f32.powi(one / 32 - 2)).collect();
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        for (dtype, within) in [(DType::BF16, 1. / 256.), (DType::Q8_0, 0.55 / 127.)] {
            let rows = Rows::from_bytes(DType::F32, 4, 64, bytes.clone()).unwrap().rounded(dtype);
            assert_eq!(rows.dtype, dtype);
            for (block, (found, exact)) in rows.floats().unwrap().chunks(32).zip(numbers.chunks(32)).enumerate() {
                let largest = exact.iter().fold(0f32, |largest, number| largest.max(number.abs()));
                let far = found.iter().zip(exact).map(|(one, other)| (one - other).abs()).fold(0., f32::max);
                assert!(far <= largest * within && far > 0., "{dtype:?}, block {block}: {far} of {largest}");
            }
        }
        let odd = Rows::from_bytes(DType::F32, 1, 3, bytes[..12].to_vec()).unwrap().rounded(DType::Q8_0);
        assert_eq!(odd.dtype, DType::F32, "blocks of 32 cannot hold three");
    }
}
