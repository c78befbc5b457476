//! Vectors that are looked up, not multiplied with: as their file has them, for only so a row lies in one piece.

use outpost_kernels::{DType, dequantise};

use super::error::{ModelError, Result};
use super::weights::Rows;

#[derive(Debug)]
pub(super) struct EmbeddingTable {
    dtype: DType,
    width: usize,
    /// Bytes of a row, which are never none.
    row: usize,
    bytes: Vec<u8>,
}

impl EmbeddingTable {
    pub fn new(rows: &Rows<'_>) -> Result<Self> {
        let bytes = rows.bytes()?;
        let row = bytes.len() / rows.count.max(1);
        Ok(Self { dtype: rows.dtype, width: rows.columns, row: row.max(1), bytes })
    }

    /// The rows of these numbers, as f32, added to `out` or in its place; `out` is `[ids, width]`.
    pub fn look_up(&self, ids: impl Iterator<Item = u32>, add: bool, out: &mut [f32]) -> Result<()> {
        let mut numbers = vec![0.; self.width];
        for (id, out) in ids.zip(out.chunks_exact_mut(self.width)) {
            let at = (id as usize).saturating_mul(self.row);
            let Some(row) = self.bytes.get(at..at.saturating_add(self.row)) else {
                return Err(ModelError::Compute(format!("the table has no row {id}")));
            };
            if add {
                dequantise(self.dtype, row, &mut numbers);
                out.iter_mut().zip(&numbers).for_each(|(out, number)| *out += number);
            } else {
                dequantise(self.dtype, row, out);
            }
        }
        Ok(())
    }
}
