//! Reads weights in MXFP4 whose codes and scales are apart, as GGUF's blocks.
//!
//! A byte of the codes holds two adjacent weights, the first one in the low bits. In GGUF's blocks, which kernels read, it holds weights
//! that are 16 apart.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::backend::DType;
use crate::error::ModelError;

/// Bytes of a group's codes.
pub(super) const CODES: usize = 16;
/// Rows that are read at once.
const CHUNK_ROWS: usize = 32;

/// The files and the offsets of the first row of codes and scales.
#[derive(Debug)]
pub(super) struct Mxfp4Files<'a> {
    pub codes: (&'a File, u64),
    pub scales: (&'a File, u64),
}

impl Mxfp4Files<'_> {
    /// Reads rows of `columns` weights from row `first` on, as GGUF's blocks.
    pub fn read(&self, columns: usize, first: usize, out: &mut [u8]) -> Result<(), ModelError> {
        let groups = columns / DType::MXFP4.block();
        let block_bytes = DType::MXFP4.block_bytes();
        let (mut codes, mut scales) = (Vec::new(), Vec::new());
        for (index, out) in out.chunks_mut((CHUNK_ROWS * groups * block_bytes).max(1)).enumerate() {
            let blocks = out.len() / block_bytes;
            codes.resize(blocks * CODES, 0);
            scales.resize(blocks, 0);
            let row = (first + index * CHUNK_ROWS) as u64;
            read_at(self.codes, row * (groups * CODES) as u64, &mut codes)?;
            read_at(self.scales, row * groups as u64, &mut scales)?;
            for ((block, codes), scale) in out.chunks_exact_mut(block_bytes).zip(codes.as_chunks().0).zip(&scales) {
                write_block(*scale, codes, block);
            }
        }
        Ok(())
    }
}

/// Reads bytes after the first `skip` from the start of a tensor.
pub(super) fn read_at((file, start): (&File, u64), skip: u64, out: &mut [u8]) -> Result<(), ModelError> {
    file.read_exact_at(out, start + skip)
        .map_err(|error| ModelError::Checkpoint(format!("the file cannot be read: {error}")))
}

/// Writes a block of GGUF: the scale, and in byte `i` the weights `i` and `i + 16`.
fn write_block(scale: u8, codes: &[u8; CODES], block: &mut [u8]) {
    let weight = |index: usize| codes[index / 2] >> (4 * (index % 2)) & 15;
    if let Some((head, block)) = block.split_first_mut() {
        *head = scale;
        block.iter_mut().enumerate().for_each(|(i, byte)| *byte = weight(i) | weight(i + CODES) << 4);
    }
}
