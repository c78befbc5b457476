//! Embedding tables in the memory of the host, or in the file. They keep the layout of the file, in which rows are contiguous.

use super::types::{DType, dequantise};
use crate::error::{ModelError, Result};
use crate::weights::Rows;

#[derive(Debug)]
pub(crate) struct EmbeddingTable {
    dtype: DType,
    width: usize,
    /// Bytes of a row, at least one.
    row_bytes: usize,
    rows: Rows<'static>,
}

impl EmbeddingTable {
    /// A table in memory.
    pub fn new(rows: &Rows<'_>) -> Result<Self> {
        Ok(Self::of(Rows::from_bytes(rows.dtype, rows.count, rows.columns, rows.bytes()?)?))
    }

    /// A table that stays in the file, from which rows are read when they are looked up.
    pub fn in_file(rows: &Rows<'_>) -> Result<Self> {
        Ok(Self::of(rows.try_clone()?))
    }

    fn of(rows: Rows<'static>) -> Self {
        let row_bytes = rows.row_bytes(rows.dtype).max(1);
        Self { dtype: rows.dtype, width: rows.columns, row_bytes, rows }
    }

    /// Dequantises the rows `ids` into `out`, `[ids, width]`, or adds them to it.
    pub fn look_up(&self, ids: impl Iterator<Item = u32>, add: bool, out: &mut [f32]) -> Result<()> {
        let (mut row, mut vector) = (vec![0; self.row_bytes], vec![0.; self.width]);
        for (id, out) in ids.zip(out.chunks_exact_mut(self.width)) {
            if id as usize >= self.rows.count {
                return Err(ModelError::Compute(format!("the embedding table has no row {id}")));
            }
            self.rows.read(id as usize, &mut row)?;
            if add {
                dequantise(self.dtype, &row, &mut vector);
                out.iter_mut().zip(&vector).for_each(|(out, x)| *out += x);
            } else {
                dequantise(self.dtype, &row, out);
            }
        }
        Ok(())
    }
}
