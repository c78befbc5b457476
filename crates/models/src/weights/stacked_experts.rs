//! The experts of gpt-oss in Hugging Face's files, in which the outputs of gate and up projection alternate. Weights are `[experts,
//! inputs, outputs]` in floats, or `[experts, outputs, inputs]` in MXFP4; biases are `[experts, outputs]`. They are read as those of
//! other families: `[experts, outputs, inputs]`, the gate before the up projection.

use std::fs::File;
use std::ops::Range;

use super::mxfp4::Mxfp4Tensor;
use super::tensor_rows::{Storage, StoredTensor, check_rows};
use super::{Rows, flat};
use crate::backend::DType;
use crate::error::ModelError;
use crate::safetensors::{ModelFolder, TensorInfo};

/// What the names of these tensors contain, and how they go on for gate and up projections.
const EXPERTS: &str = ".mlp.experts.";
const GATE_UP: &str = "gate_up_proj";
/// Outputs whose elements are moved together, so that they stay in the cache.
const OUTPUTS: usize = 32;

/// A weight or bias of all experts of a layer.
pub(super) struct StackedExperts<'a, 'n> {
    name: &'n str,
    stored: Stored<'a>,
    /// The outputs of gate and up projection alternate.
    alternates: bool,
}

enum Stored<'a> {
    /// Floats. The outputs of an expert are columns.
    Columns(&'a TensorInfo, &'a File),
    Mxfp4(Mxfp4Tensor<'a>),
}

impl ModelFolder {
    /// The tensor of this name, if it is one of experts.
    pub(super) fn stacked_experts<'a, 'n>(&'a self, name: &'n str) -> Option<StackedExperts<'a, 'n>> {
        let (_, own) = name.split_once(EXPERTS)?;
        let stored = match self.tensor(name) {
            Some((info, file)) => Stored::Columns(info, file),
            None => Stored::Mxfp4(self.mxfp4_tensor(name)?),
        };
        Some(StackedExperts { name, stored, alternates: own.starts_with(GATE_UP) })
    }
}

impl<'a> StackedExperts<'a, '_> {
    /// The shape in the order in which the tensor is read.
    pub fn shape(&self) -> Vec<usize> {
        match &self.stored {
            Stored::Mxfp4(tensor) => tensor.shape(),
            Stored::Columns(info, _) => match *info.shape.as_slice() {
                [experts, inputs, outputs] => vec![experts, outputs, inputs],
                ref shape => shape.to_vec(),
            },
        }
    }

    /// Bytes of an expert, and of its copy in the other order.
    pub fn copied_bytes(&self) -> usize {
        let Stored::Columns(info, _) = &self.stored else { return 0 };
        let experts = info.shape.first().copied().unwrap_or(1).max(1);
        2 * usize::try_from(info.bytes).unwrap_or(usize::MAX / 2) / experts
    }

    /// Rows of [`Self::shape`].
    ///
    /// # Errors
    /// If there are not as many, or the tensor is none of experts.
    pub fn rows(&self, first: usize, count: usize) -> Result<Rows<'a>, ModelError> {
        let shape = self.shape();
        let (total, columns) = flat(&shape);
        check_rows(self.name, total, first, count)?;
        let end = first + count;
        // A row of a bias has all outputs of an expert.
        let (outputs, range) = match *shape.as_slice() {
            [_, outputs, _] => (outputs, first..end),
            [_, outputs] => (outputs, first * outputs..end * outputs),
            _ => return Err(self.error(&format!("has the impossible shape {shape:?}"))),
        };
        if self.alternates && !outputs.is_multiple_of(2) {
            return Err(self.error(&format!("has an odd number of outputs: {outputs}")));
        }
        match &self.stored {
            Stored::Mxfp4(tensor) if self.alternates => alternating(tensor, range, outputs, columns),
            Stored::Mxfp4(tensor) => tensor.rows(first, count),
            Stored::Columns(info, file) => {
                let dtype =
                    info.float().ok_or_else(|| self.error(&format!("has the unsupported type {}", info.dtype)))?;
                let (storage, shape) = (Storage::File(file), info.shape.as_slice());
                let stored = StoredTensor { name: self.name, storage, start: info.start, shape, stored: dtype.into() };
                let bytes = self.transposed((stored, dtype.block_bytes()), range, outputs)?;
                Rows::from_bytes(dtype, count, columns, bytes)
            }
        }
    }

    fn error(&self, problem: &str) -> ModelError {
        ModelError::Checkpoint(format!("tensor {} {problem}", self.name))
    }

    /// These outputs, of those of all experts, as rows. `size`: bytes of an element.
    fn transposed(
        &self,
        (stored, size): (StoredTensor<'_>, usize),
        range: Range<usize>,
        outputs: usize,
    ) -> Result<Vec<u8>, ModelError> {
        let inputs = if stored.shape.len() > 2 { flat(stored.shape).0 / stored.shape[0].max(1) } else { 1 };
        let mut bytes = Vec::new();
        for (expert, own) in by_part(range, outputs) {
            let elements = stored.rows(expert * inputs, inputs)?.bytes()?;
            let order: Vec<usize> = own.map(|output| self.stored_output(output, outputs)).collect();
            transpose(&elements, [outputs, size], &order, &mut bytes);
        }
        Ok(bytes)
    }

    /// Where an output is stored.
    fn stored_output(&self, output: usize, outputs: usize) -> usize {
        match (self.alternates, output.checked_sub(outputs / 2)) {
            (false, _) => output,
            (true, None) => 2 * output,
            (true, Some(of_up)) => 2 * of_up + 1,
        }
    }
}

/// Rows that are gates before ups, of a tensor in which they alternate.
fn alternating<'a>(
    tensor: &Mxfp4Tensor<'a>,
    range: Range<usize>,
    outputs: usize,
    columns: usize,
) -> Result<Rows<'a>, ModelError> {
    let count = range.len();
    let half = |(index, own): (usize, Range<usize>)| {
        let first = index / 2 * outputs + index % 2 + 2 * own.start;
        Ok::<_, ModelError>(tensor.rows(first, (2 * own.len()).saturating_sub(1))?.step_by(2))
    };
    let mut halves: Vec<Rows<'_>> = by_part(range, outputs / 2).map(half).collect::<Result<_, _>>()?;
    match (halves.len(), halves.pop()) {
        (1, Some(only)) => Ok(only),
        (_, last) => {
            let mut bytes = Vec::new();
            for rows in halves.iter().chain(&last) {
                bytes.extend(rows.bytes()?);
            }
            Rows::from_bytes(DType::MXFP4, count, columns, bytes)
        }
    }
}

/// Splits a range into parts of `size`: the index of each, and its range in it.
fn by_part(range: Range<usize>, size: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
    let size = size.max(1);
    let parts = if range.is_empty() { 0..0 } else { range.start / size..range.end.div_ceil(size) };
    parts.map(move |part| {
        (part, range.start.max(part * size) - part * size..range.end.min((part + 1) * size) - part * size)
    })
}

/// Appends columns of a matrix with rows of `columns` elements, each of `size` bytes.
fn transpose(matrix: &[u8], [columns, size]: [usize; 2], order: &[usize], out: &mut Vec<u8>) {
    let row_bytes = (columns * size).max(1);
    let rows = matrix.len() / row_bytes;
    for columns in order.chunks(OUTPUTS) {
        let start = out.len();
        out.resize(start + columns.len() * rows * size, 0);
        for (row, elements) in matrix.chunks_exact(row_bytes).enumerate() {
            for (out, column) in out[start..].chunks_exact_mut(rows * size).zip(columns) {
                out[row * size..][..size].copy_from_slice(&elements[column * size..][..size]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{by_part, transpose};

    #[test]
    fn columns_become_rows() {
        let matrix: Vec<u8> = (0..2 * 70 * 2u16).map(|x| x as u8).collect();
        let order: Vec<usize> = (0..70).step_by(2).chain([69]).collect();
        let mut out = vec![9];
        transpose(&matrix, [70, 2], &order, &mut out);
        assert_eq!((out[0], out.len()), (9, 1 + 36 * 2 * 2));
        for (row, column) in out[1..].chunks(4).zip(order) {
            let element = |row: usize| [matrix[(row * 70 + column) * 2], matrix[(row * 70 + column) * 2 + 1]];
            assert_eq!(row, [element(0), element(1)].concat());
        }
    }

    #[test]
    fn a_range_is_split_at_parts() {
        assert!(by_part(3..11, 4).eq([(0, 3..4), (1, 0..4), (2, 0..3)]));
        assert!(by_part(4..8, 4).eq([(1, 0..4)]));
        assert!(by_part(4..4, 4).eq([]));
    }
}
