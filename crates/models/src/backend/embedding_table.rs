//! Embedding tables in the memory of the host. They keep the layout of the file, in which rows are contiguous.

use super::types::{DType, dequantise};
use crate::error::{ModelError, Result};
use crate::weights::Rows;

#[derive(Debug)]
pub(crate) struct EmbeddingTable {
    dtype: DType,
    width: usize,
    /// Bytes of a row, at least one.
    row_bytes: usize,
    bytes: Vec<u8>,
}

impl EmbeddingTable {
    pub fn new(rows: &Rows<'_>) -> Result<Self> {
        let bytes = rows.bytes()?;
        let row_bytes = bytes.len() / rows.count.max(1);
        Ok(Self { dtype: rows.dtype, width: rows.columns, row_bytes: row_bytes.max(1), bytes })
    }

    /// Dequantises the rows `ids` into `out`, `[ids, width]`, or adds them to it.
    pub fn look_up(&self, ids: impl Iterator<Item = u32>, add: bool, out: &mut [f32]) -> Result<()> {
        let mut vector = vec![0.; self.width];
        for (id, out) in ids.zip(out.chunks_exact_mut(self.width)) {
            let start = (id as usize).saturating_mul(self.row_bytes);
            let Some(row) = self.bytes.get(start..start.saturating_add(self.row_bytes)) else {
                return Err(ModelError::Compute(format!("the embedding table has no row {id}")));
            };
            if add {
                dequantise(self.dtype, row, &mut vector);
                out.iter_mut().zip(&vector).for_each(|(out, x)| *out += x);
            } else {
                dequantise(self.dtype, row, out);
            }
        }
        Ok(())
    }
}
