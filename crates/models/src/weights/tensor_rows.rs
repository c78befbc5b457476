//! Rows of a tensor in a file or in memory.

use std::borrow::Cow;
use std::fs::File;

use crate::backend::{DType, dequantise};
use half::{bf16, f16};

use super::fp8_files::Fp8Files;
use super::mxfp4_files::{Mxfp4Files, read_at};
use crate::error::ModelError;
use crate::gguf::StoredType;

/// Rows of a tensor that are not read yet. Each element of a vector is a row.
#[derive(Debug)]
pub struct Rows<'a> {
    pub dtype: DType,
    pub count: usize,
    pub columns: usize,
    bytes: Bytes<'a>,
    /// The type in the file, if rows are rounded to `dtype` when they are read.
    source: Option<StoredType>,
    /// One row of this many in the file is a row.
    step: usize,
}

/// Rows of the file that are read at once if not all of them are needed.
const STEPPED_ROWS: usize = 32;
/// Elements that are converted at once, unless a row has more.
const CONVERTED_ELEMENTS: usize = 1 << 16;

#[derive(Debug)]
enum Bytes<'a> {
    /// A file, and the offset of the first row.
    File(&'a File, u64),
    /// A handle of its own.
    OwnFile(File, u64),
    Memory(Cow<'a, [u8]>),
    /// Codes and scales that are tensors of their own.
    Mxfp4(Mxfp4Files<'a>),
    /// Numbers of eight bits and scales that are tensors of their own. They are read as f32.
    Fp8(Fp8Files<'a>),
}

/// Where the bytes of a checkpoint are.
#[derive(Clone, Copy, Debug)]
pub enum Storage<'a> {
    File(&'a File),
    Memory(&'a [u8]),
}

/// A tensor of a checkpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredTensor<'a> {
    pub name: &'a str,
    pub storage: Storage<'a>,
    /// Offset from the start of the storage.
    pub start: u64,
    pub shape: &'a [usize],
    pub stored: StoredType,
}

impl<'a> StoredTensor<'a> {
    /// `count` rows from `first` on.
    pub fn rows(self, first: usize, count: usize) -> Result<Rows<'a>, ModelError> {
        let Self { name, storage, start, shape, stored } = self;
        let (row_count, columns) = flat(shape);
        check_rows(name, row_count, first, count)?;
        if !columns.is_multiple_of(stored.block()) {
            // The elements of a quantised vector cannot be read one by one.
            return Err(ModelError::Checkpoint(format!("tensor {name} is a quantised vector, which is not supported")));
        }
        let row_bytes = columns / stored.block() * stored.block_bytes();
        let start = start + (first * row_bytes) as u64;
        let bytes = match storage {
            Storage::File(file) => Bytes::File(file, start),
            Storage::Memory(bytes) => {
                let start = usize::try_from(start).unwrap_or(usize::MAX);
                let end = start.saturating_add(count * row_bytes);
                let bytes = bytes.get(start..end);
                Bytes::Memory(
                    bytes.ok_or_else(|| ModelError::Checkpoint(format!("tensor {name} is truncated")))?.into(),
                )
            }
        };
        let dtype = stored.loaded();
        let source = (stored != StoredType::Direct(dtype)).then_some(stored);
        Ok(Rows { dtype, count, columns, bytes, source, step: 1 })
    }
}

impl Rows<'static> {
    /// Rows in memory, in GGUF's format.
    ///
    /// # Errors
    /// If `bytes` has another length.
    pub fn from_bytes(dtype: DType, count: usize, columns: usize, bytes: Vec<u8>) -> Result<Self, ModelError> {
        let rows = Self { dtype, count, columns, bytes: Bytes::Memory(Cow::default()), source: None, step: 1 };
        match bytes.len() == count * rows.row_bytes(dtype) {
            true => Ok(Self { bytes: Bytes::Memory(bytes.into()), ..rows }),
            false => Err(ModelError::Checkpoint(format!("{} bytes are not {count} rows of {columns}", bytes.len()))),
        }
    }
}

impl<'a> Rows<'a> {
    /// Rows whose codes and scales are in tensors of their own.
    pub(super) fn from_mxfp4(count: usize, columns: usize, files: Mxfp4Files<'a>) -> Self {
        Self { dtype: DType::MXFP4, count, columns, bytes: Bytes::Mxfp4(files), source: None, step: 1 }
    }

    /// Rows in FP8 whose scales are in a tensor of their own. They are rounded to `dtype` when they are read.
    pub(super) fn from_fp8(dtype: DType, count: usize, columns: usize, files: Fp8Files<'a>) -> Self {
        Self { dtype, count, columns, bytes: Bytes::Fp8(files), source: Some(DType::F32.into()), step: 1 }
    }
}

impl Rows<'_> {
    /// The first of each `step` rows, as in a tensor whose rows belong to `step` matrices in turn.
    pub fn step_by(self, step: usize) -> Self {
        Self { count: self.count.div_ceil(step.max(1)), step: self.step * step.max(1), ..self }
    }

    /// Whether rows of `dtype` with `columns` columns can be rounded to `rounded`.
    pub(super) fn can_round_to(dtype: DType, rounded: DType, columns: usize) -> bool {
        !dtype.is_quantised() && columns.is_multiple_of(rounded.block()) && can_round(rounded)
    }

    /// Rounds the rows to `dtype` when they are read, if that is possible.
    pub fn rounded(self, dtype: DType) -> Self {
        if self.dtype == dtype || !Self::can_round_to(self.dtype, dtype, self.columns) {
            return self;
        }
        // Rows may be rounded already: the bytes still have the first type.
        Self { dtype, source: Some(self.source.unwrap_or(self.dtype.into())), ..self }
    }

    /// The same rows, which can be read after the checkpoint is closed.
    ///
    /// # Errors
    /// If the file cannot be opened once more.
    pub fn try_clone(&self) -> Result<Rows<'static>, ModelError> {
        let own = |file: &File, start| match file.try_clone() {
            Ok(file) => Ok(Bytes::OwnFile(file, start)),
            Err(error) => Err(ModelError::Checkpoint(format!("the file cannot be opened: {error}"))),
        };
        let bytes = match &self.bytes {
            Bytes::File(file, start) => own(file, *start)?,
            Bytes::OwnFile(file, start) => own(file, *start)?,
            Bytes::Memory(bytes) => Bytes::Memory(Cow::Owned(bytes.clone().into_owned())),
            Bytes::Mxfp4(_) | Bytes::Fp8(_) => {
                return Err(ModelError::checkpoint(
                    "rows whose codes and scales are two tensors cannot stay in the file",
                ));
            }
        };
        let Self { dtype, count, columns, source, step, .. } = *self;
        Ok(Rows { dtype, count, columns, bytes, source, step })
    }

    pub(crate) fn row_bytes(&self, stored: impl Into<StoredType>) -> usize {
        let stored = stored.into();
        self.columns / stored.block() * stored.block_bytes()
    }

    /// Reads whole rows from row `first` on. Several threads may call it at the same time.
    pub fn read(&self, first: usize, out: &mut [u8]) -> Result<(), ModelError> {
        let Some(source) = self.source else { return self.read_as(self.dtype.into(), first, out) };
        let row_bytes = self.row_bytes(self.dtype).max(1);
        let chunk_rows = (CONVERTED_ELEMENTS / self.columns.max(1)).max(1);
        let (mut bytes, mut floats) = (Vec::new(), Vec::new());
        for (index, out) in out.chunks_mut(chunk_rows * row_bytes).enumerate() {
            let count = out.len() / row_bytes;
            bytes.resize(count * self.row_bytes(source), 0);
            floats.resize(count * self.columns, 0.);
            self.read_as(source, first + index * chunk_rows, &mut bytes)?;
            source.dequantise(&bytes, &mut floats);
            round(self.dtype, &floats, out);
        }
        Ok(())
    }

    fn read_as(&self, stored: StoredType, first: usize, out: &mut [u8]) -> Result<(), ModelError> {
        let row_bytes = self.row_bytes(stored).max(1);
        if self.step == 1 {
            return self.read_adjacent(row_bytes, first, out);
        }
        let mut stored = Vec::new();
        for (index, out) in out.chunks_mut(STEPPED_ROWS * row_bytes).enumerate() {
            let count = out.len() / row_bytes;
            stored.resize((count * self.step + 1 - self.step) * row_bytes, 0);
            self.read_adjacent(row_bytes, (first + index * STEPPED_ROWS) * self.step, &mut stored)?;
            for (out, rows) in out.chunks_exact_mut(row_bytes).zip(stored.chunks(self.step * row_bytes)) {
                out.copy_from_slice(&rows[..row_bytes]);
            }
        }
        Ok(())
    }

    /// Reads rows from row `first` of the file on.
    fn read_adjacent(&self, row_bytes: usize, first: usize, out: &mut [u8]) -> Result<(), ModelError> {
        let skip = first * row_bytes;
        match &self.bytes {
            Bytes::File(file, start) => read_at((file, *start), skip as u64, out),
            Bytes::OwnFile(file, start) => read_at((file, *start), skip as u64, out),
            Bytes::Memory(bytes) => match bytes.get(skip..skip + out.len()) {
                Some(bytes) => {
                    out.copy_from_slice(bytes);
                    Ok(())
                }
                None => Err(ModelError::checkpoint("a tensor ends before its last row")),
            },
            Bytes::Mxfp4(files) => files.read(self.columns, first, out),
            Bytes::Fp8(files) => files.read(self.columns, first, out),
        }
    }

    /// Reads all rows, in GGUF's format.
    pub fn bytes(&self) -> Result<Vec<u8>, ModelError> {
        let mut bytes = vec![0; self.count * self.row_bytes(self.dtype)];
        self.read(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads and dequantises all rows as the file has them, without rounding them to [`Self::dtype`].
    pub fn stored_floats(&self) -> Result<Vec<f32>, ModelError> {
        let source = self.source.unwrap_or(self.dtype.into());
        let mut bytes = vec![0; self.count * self.row_bytes(source)];
        self.read_as(source, 0, &mut bytes)?;
        let mut floats = vec![0.; self.count * self.columns];
        source.dequantise(&bytes, &mut floats);
        Ok(floats)
    }

    /// Reads and dequantises all rows.
    pub fn floats(&self) -> Result<Vec<f32>, ModelError> {
        let bytes = self.bytes()?;
        let mut floats = vec![0.; self.count * self.columns];
        dequantise(self.dtype, &bytes, &mut floats);
        Ok(floats)
    }
}

/// Checks that a tensor of `total` rows has `count` rows from `first` on.
pub(super) fn check_rows(name: &str, total: usize, first: usize, count: usize) -> Result<(), ModelError> {
    match first.checked_add(count).is_some_and(|end| end <= total) {
        true => Ok(()),
        false => {
            Err(ModelError::Checkpoint(format!("tensor {name} has {total} rows, not {count} rows from row {first} on")))
        }
    }
}

/// Types that floats can be rounded to.
fn can_round(dtype: DType) -> bool {
    matches!(dtype, DType::BF16 | DType::Q8_0)
}

/// Rounds to one of the types of [`can_round`]: to the nearest bf16, or by blocks to bytes with a scale.
fn round(dtype: DType, floats: &[f32], out: &mut [u8]) {
    if dtype == DType::BF16 {
        for (value, out) in floats.iter().zip(out.chunks_exact_mut(2)) {
            out.copy_from_slice(&bf16::from_f32(*value).to_le_bytes());
        }
        return;
    }
    for (values, block) in floats.chunks_exact(dtype.block()).zip(out.chunks_exact_mut(dtype.block_bytes())) {
        let Some((head, codes)) = block.split_at_mut_checked(2) else { continue };
        let max = values.iter().fold(0f32, |max, value| max.max(value.abs()));
        let scale = f16::from_f32(max / 127.);
        head.copy_from_slice(&scale.to_le_bytes());
        let inverse = if scale > f16::ZERO { scale.to_f32().recip() } else { 0. };
        for (value, code) in values.iter().zip(codes) {
            *code = (value * inverse).round_ties_even().clamp(-127., 127.) as i8 as u8;
        }
    }
}

/// Rows and columns of a shape whose dimensions before the last are flattened. The last two dimensions of a 1 × 1
/// convolution are ignored.
pub(crate) fn flat(shape: &[usize]) -> (usize, usize) {
    match shape {
        [rows, columns, 1, 1] => (*rows, *columns),
        [] => (1, 1),
        [len] => (*len, 1),
        [outer @ .., columns] => (outer.iter().product(), *columns),
    }
}

#[cfg(test)]
mod tests {
    use super::{DType, Rows};

    #[test]
    fn every_second_row_is_read() {
        let values: Vec<f32> = (0..201 * 2).map(|i| i as f32).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let rows = Rows::from_bytes(DType::F32, 201, 2, bytes).unwrap().step_by(2);
        let expected: Vec<f32> = values.chunks(4).flat_map(|rows| rows[..2].to_vec()).collect();
        assert_eq!((rows.count, rows.floats().unwrap()), (101, expected.clone()));
        let mut last = [0; 3 * 8];
        rows.read(98, &mut last).unwrap();
        let last: Vec<f32> = last.as_chunks().0.iter().copied().map(f32::from_le_bytes).collect();
        assert_eq!(last, expected[98 * 2..]);
        let rounded = rows.rounded(DType::BF16).floats().unwrap();
        assert_eq!(rounded[..4], [0., 1., 4., 5.]);
    }

    #[test]
    fn rows_that_are_rounded_twice_are_read_in_their_own_type() {
        let bytes: Vec<u8> = (0..64).flat_map(|i| (i as f32 - 32.).to_le_bytes()).collect();
        let rounded = |dtype| Rows::from_bytes(DType::F32, 2, 32, bytes.clone()).unwrap().rounded(dtype);
        let twice = rounded(DType::BF16).rounded(DType::Q8_0);
        assert_eq!(twice.bytes().unwrap(), rounded(DType::Q8_0).bytes().unwrap());
    }

    #[test]
    fn floats_are_rounded_as_they_are_read() {
        let values: Vec<f32> = (0..4 * 64).map(|i| (i as f32 * 0.7).sin() * 10f32.powi(i / 32 - 2)).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        for (dtype, tolerance) in [(DType::BF16, 1. / 256.), (DType::Q8_0, 0.55 / 127.)] {
            let rows = Rows::from_bytes(DType::F32, 4, 64, bytes.clone()).unwrap().rounded(dtype);
            assert_eq!(rows.dtype, dtype);
            for (block, (found, exact)) in rows.floats().unwrap().chunks(32).zip(values.chunks(32)).enumerate() {
                let largest = exact.iter().fold(0f32, |largest, value| largest.max(value.abs()));
                let max_error = found.iter().zip(exact).map(|(a, b)| (a - b).abs()).fold(0., f32::max);
                assert!(
                    max_error <= largest * tolerance && max_error > 0.,
                    "{dtype:?}, block {block}: an error of {max_error} of {largest}"
                );
            }
        }
        let odd = Rows::from_bytes(DType::F32, 1, 3, bytes[..12].to_vec()).unwrap().rounded(DType::Q8_0);
        assert_eq!(odd.dtype, DType::F32, "rows of three elements have no blocks of 32");
    }
}
