//! Embedding tables in the memory of the host, or in the file. They keep the layout of the file, in which rows are contiguous.

use super::types::dequantise;
use crate::error::{ModelError, Result};
use crate::weights::Rows;

#[derive(Debug)]
pub(crate) struct EmbeddingTable {
    rows: Rows<'static>,
}

impl EmbeddingTable {
    /// A table in memory.
    pub fn new(rows: &Rows<'_>) -> Result<Self> {
        Ok(Self { rows: Rows::from_bytes(rows.dtype, rows.count, rows.columns, rows.bytes()?)? })
    }

    /// A table that stays in the file, from which rows are read when they are looked up.
    pub fn in_file(rows: &Rows<'_>) -> Result<Self> {
        Ok(Self { rows: rows.try_clone()? })
    }

    /// Dequantises the rows `ids` into `out`, `[ids, width]`, or adds them to it.
    pub fn look_up(&self, ids: impl Iterator<Item = u32>, add: bool, out: &mut [f32]) -> Result<()> {
        let Rows { dtype, count, columns, .. } = self.rows;
        let (mut row, mut vector) = (vec![0; self.rows.row_bytes(dtype)], vec![0.; columns]);
        for (id, out) in ids.zip(out.chunks_exact_mut(columns)) {
            if id as usize >= count {
                return Err(ModelError::Compute(format!("the embedding table has no row {id}")));
            }
            self.rows.read(id as usize, &mut row)?;
            if add {
                dequantise(dtype, &row, &mut vector);
                out.iter_mut().zip(&vector).for_each(|(out, x)| *out += x);
            } else {
                dequantise(dtype, &row, out);
            }
        }
        Ok(())
    }
}
