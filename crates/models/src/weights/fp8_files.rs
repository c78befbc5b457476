//! Reads weights in FP8 as floats.

use std::fs::File;
use std::ops::Range;

use super::mxfp4_files::read_at;
use crate::backend::{DType, dequantise};
use crate::error::ModelError;
use crate::safetensors::{Fp8Format, TensorInfo};

/// Rows that are read at once.
const CHUNK_ROWS: usize = 32;
const FLOAT_BYTES: usize = size_of::<f32>();

/// The numbers of rows, and their scales.
#[derive(Debug)]
pub(super) struct Fp8Files<'a> {
    pub name: &'a str,
    /// A file, and the offset of the tensor.
    pub numbers: (&'a File, u64),
    pub format: Fp8Format,
    pub scales: Fp8Scales<'a>,
    /// The first row, of the rows of all matrices.
    pub first: usize,
}

/// The scales of a tensor.
#[derive(Debug)]
pub(super) struct Fp8Scales<'a> {
    pub file: (&'a File, u64),
    pub kind: ScaleType,
    pub grid: ScaleGrid,
}

/// The type of scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScaleType {
    Float(DType),
    /// F8_E8M0: powers of two.
    Exponent,
}

/// Maps weights to scales. Each scale applies to a block of `block` rows and columns of a matrix; the last blocks may be smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScaleGrid {
    /// Rows of a matrix.
    rows: usize,
    block: [usize; 2],
    /// The number of blocks of a matrix: down and across.
    blocks: [usize; 2],
}

impl ScaleGrid {
    /// The grid of a tensor of matrices, which has `total` rows of `columns`, and of scales with these shapes. `sizes`: those that blocks may
    /// have, `[rows, columns]`. If none of them fits, blocks have the same size. `None`: the shapes do not fit.
    pub fn new(
        shape: &[usize],
        (total, columns): (usize, usize),
        scales: &[usize],
        mut sizes: impl Iterator<Item = [usize; 2]>,
    ) -> Option<Self> {
        if scales.iter().all(|size| *size == 1) {
            return Some(Self { rows: total.max(1), block: [total.max(1), columns.max(1)], blocks: [1; 2] });
        }
        let [matrices @ .., rows, columns] = shape else { return None };
        let size = [*rows, *columns];
        let blocks = match *scales.strip_prefix(matrices)? {
            [] => [1, 1],
            [rows] => [rows, 1],
            [rows, columns] => [rows, columns],
            _ => return None,
        };
        let fits = |block: &[usize; 2]| [0, 1].iter().all(|&i| size[i].div_ceil(block[i]) == blocks[i]);
        let is_even = || [0, 1].iter().all(|&i| blocks[i] > 0 && size[i] > 0 && size[i].is_multiple_of(blocks[i]));
        let block = sizes.find(fits).or_else(|| is_even().then(|| [size[0] / blocks[0], size[1] / blocks[1]]))?;
        Some(Self { rows: size[0].max(1), block, blocks })
    }

    /// The row of scales of a row, of the rows of all matrices.
    fn scale_row(&self, row: usize) -> usize {
        row / self.rows * self.blocks[0] + row % self.rows / self.block[0]
    }
}

impl ScaleType {
    pub fn of(info: &TensorInfo) -> Option<Self> {
        match info.dtype.as_str() {
            "F8_E8M0" => Some(Self::Exponent),
            _ => info.float().map(Self::Float),
        }
    }

    fn bytes(self) -> usize {
        match self {
            Self::Float(dtype) => dtype.block_bytes(),
            Self::Exponent => 1,
        }
    }

    fn decode(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            Self::Float(dtype) => dequantise(dtype, bytes, out),
            Self::Exponent => out.iter_mut().zip(bytes).for_each(|(out, code)| *out = power_of_two(*code)),
        }
    }
}

/// The value of a code in F8_E8M0.
fn power_of_two(code: u8) -> f32 {
    if code == u8::MAX { f32::NAN } else { 2f32.powi(i32::from(code) - 127) }
}

impl Fp8Scales<'_> {
    /// Reads rows of scales.
    fn read(&self, rows: Range<usize>, out: &mut Vec<f32>) -> Result<(), ModelError> {
        let columns = self.grid.blocks[1];
        let mut bytes = vec![0; rows.len() * columns * self.kind.bytes()];
        read_at(self.file, (rows.start * columns * self.kind.bytes()) as u64, &mut bytes)?;
        out.resize(rows.len() * columns, 0.);
        self.kind.decode(&bytes, out);
        Ok(())
    }
}

impl Fp8Files<'_> {
    /// Reads rows of `columns` weights from row `first` on, as 32-bit floats.
    ///
    /// # Errors
    /// If the file cannot be read, or a weight is not finite: blocks of integers could not hold it.
    pub fn read(&self, columns: usize, first: usize, out: &mut [u8]) -> Result<(), ModelError> {
        let (table, grid) = (self.format.numbers(), &self.scales.grid);
        let (row_bytes, across) = ((columns * FLOAT_BYTES).max(1), grid.blocks[1]);
        let (mut codes, mut scales) = (Vec::new(), Vec::new());
        for (index, out) in out.chunks_mut(CHUNK_ROWS * row_bytes).enumerate() {
            let (row, count) = (self.first + first + index * CHUNK_ROWS, out.len() / row_bytes);
            codes.resize(count * columns, 0);
            read_at(self.numbers, (row * columns) as u64, &mut codes)?;
            let top = grid.scale_row(row);
            self.scales.read(top..grid.scale_row(row + count - 1) + 1, &mut scales)?;
            for (row, (codes, out)) in (row..).zip(codes.chunks_exact(columns).zip(out.chunks_exact_mut(row_bytes))) {
                let scales = &scales[(grid.scale_row(row) - top) * across..][..across];
                if !write_row(&table, codes, scales, grid.block[1], out) {
                    let problem = format!("tensor {} has values that are not finite", self.name);
                    return Err(ModelError::Checkpoint(problem));
                }
            }
        }
        Ok(())
    }
}

/// Writes the weights of a row, in blocks of `width` with a scale each. False: one is not finite.
fn write_row(table: &[f32; 256], codes: &[u8], scales: &[f32], width: usize, out: &mut [u8]) -> bool {
    let mut is_finite = true;
    let blocks = codes.chunks(width).zip(out.chunks_mut(width * FLOAT_BYTES));
    for ((codes, out), scale) in blocks.zip(scales) {
        for (code, out) in codes.iter().zip(out.as_chunks_mut().0) {
            let weight = table[usize::from(*code)] * scale;
            is_finite &= weight.is_finite();
            *out = weight.to_le_bytes();
        }
    }
    is_finite
}
