//! Keys and values in blocks of [`BLOCK`] positions, outside the model and outside any sequence.
//!
//! Who holds which block is not known here: the engine's scheduler counts references and hands each
//! step the table of blocks of every row. So a block can be part of several sequences' past, and
//! what is full is never written again. (Kwon et al. 2023, <https://arxiv.org/abs/2309.06180>.)

use candle_core::Result;
use half::f16;
use half::slice::HalfFloatSliceExt;

/// Positions in a block.
pub const BLOCK: usize = 16;

/// A block's number in its [`KvArena`].
pub type BlockId = u32;

/// How keys and values are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvType {
    F32,
    /// Half the memory of `F32`; the differences are below those that quantised weights bring.
    #[default]
    F16,
    /// 8 bits a number and one scale for each position of a head: half of `F16` again.
    Q8,
}

/// The sizes of a model's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    pub layers: usize,
    pub kv_heads: usize,
    pub head_width: usize,
    pub kind: KvType,
}

impl KvShape {
    /// Bytes of one block: keys and values of all layers.
    pub fn block_bytes(&self) -> u64 {
        let rows = (2 * self.layers * self.kv_heads * BLOCK) as u64;
        let width = self.head_width as u64;
        rows * match self.kind {
            KvType::F32 => 4 * width,
            KvType::F16 => 2 * width,
            KvType::Q8 => width + 4,
        }
    }

    /// Numbers of one layer in a block, keys or values: `[kv_heads, BLOCK, head_width]`.
    fn layer(&self) -> usize {
        self.kv_heads * BLOCK * self.head_width
    }
}

/// Blocks for `positions`.
pub fn blocks_for(positions: usize) -> usize {
    positions.div_ceil(BLOCK)
}

/// The blocks of one model.
#[derive(Debug)]
pub struct KvArena {
    shape: KvShape,
    blocks: Vec<Option<Block>>,
}

/// One text's blocks in an arena of their own, for those who compute a single text.
#[derive(Debug)]
pub struct KvCache {
    pub(super) arena: KvArena,
    pub(super) blocks: Vec<BlockId>,
    pub(super) length: usize,
    /// Whether the text is computed as a long one: see `Llama::is_long`.
    pub long: bool,
}

impl KvCache {
    pub fn new(shape: KvShape) -> Self {
        Self { arena: KvArena::new(shape), blocks: Vec::new(), length: 0, long: false }
    }

    /// Positions that are filled.
    pub fn len(&self) -> usize {
        self.length
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Makes room for `more` positions after those that are filled.
    pub(super) fn reserve(&mut self, more: usize) {
        for id in self.blocks.len()..blocks_for(self.length + more) {
            self.arena.ensure(id as BlockId);
            self.blocks.push(id as BlockId);
        }
    }
}

/// `[layers, kv_heads, BLOCK, head_width]` each.
#[derive(Debug)]
struct Block {
    keys: Cells,
    values: Cells,
}

#[derive(Debug)]
enum Cells {
    F32(Vec<f32>),
    F16(Vec<f16>),
    /// Numbers, and a scale for each row of `head_width` of them.
    Q8(Vec<i8>, Vec<f32>),
}

impl KvArena {
    pub fn new(shape: KvShape) -> Self {
        Self { shape, blocks: Vec::new() }
    }

    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// Makes sure that the block has memory. What it holds is of no meaning before it is written.
    pub fn ensure(&mut self, id: BlockId) {
        let index = id as usize;
        if index >= self.blocks.len() {
            self.blocks.resize_with(index + 1, || None);
        }
        if let Some(slot @ None) = self.blocks.get_mut(index) {
            *slot = Some(Block { keys: Cells::new(&self.shape), values: Cells::new(&self.shape) });
        }
    }

    /// Gives a block's memory back.
    pub fn release(&mut self, id: BlockId) {
        if let Some(slot) = self.blocks.get_mut(id as usize) {
            *slot = None;
        }
    }

    /// Blocks that have memory.
    pub fn len(&self) -> usize {
        self.blocks.iter().flatten().count()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes the keys and values (`[kv_heads, head_width]`) of one position of a layer.
    pub(super) fn write(&mut self, layer: usize, id: BlockId, slot: usize, keys: &[f32], values: &[f32]) -> Result<()> {
        let KvShape { kv_heads, head_width, .. } = self.shape;
        let start = layer * self.shape.layer();
        let Some(block) = self.blocks.get_mut(id as usize).and_then(Option::as_mut) else { return Err(no_block(id)) };
        for head in 0..kv_heads {
            let row = start / head_width + head * BLOCK + slot;
            let part = head * head_width..(head + 1) * head_width;
            block.keys.put(row, keys.get(part.clone()).unwrap_or_default());
            block.values.put(row, values.get(part).unwrap_or_default());
        }
        Ok(())
    }

    /// Widens the first `count` positions of one head of a layer to f32: keys and values of
    /// `[count, head_width]`.
    pub(super) fn read(
        &self,
        layer: usize,
        id: BlockId,
        head: usize,
        count: usize,
        keys: &mut [f32],
        values: &mut [f32],
    ) -> Result<()> {
        let Some(block) = self.blocks.get(id as usize).and_then(Option::as_ref) else { return Err(no_block(id)) };
        let row = layer * self.shape.kv_heads * BLOCK + head * BLOCK;
        block.keys.widen(row, count, self.shape.head_width, keys);
        block.values.widen(row, count, self.shape.head_width, values);
        Ok(())
    }
}

fn no_block(id: BlockId) -> candle_core::Error {
    candle_core::Error::Msg(format!("the KV block {id} has no memory"))
}

impl Cells {
    fn new(shape: &KvShape) -> Self {
        let count = shape.layers * shape.layer();
        match shape.kind {
            KvType::F32 => Self::F32(vec![0.; count]),
            KvType::F16 => Self::F16(vec![f16::ZERO; count]),
            KvType::Q8 => Self::Q8(vec![0; count], vec![0.; count / shape.head_width]),
        }
    }

    /// Writes row `row` of as many numbers as `from` has.
    fn put(&mut self, row: usize, from: &[f32]) {
        let range = row * from.len()..(row + 1) * from.len();
        match self {
            Self::F32(cells) => {
                if let Some(to) = cells.get_mut(range) {
                    to.copy_from_slice(from);
                }
            }
            Self::F16(cells) => {
                if let Some(to) = cells.get_mut(range) {
                    to.convert_from_f32_slice(from);
                }
            }
            Self::Q8(cells, scales) => {
                let most = from.iter().fold(0f32, |most, number| most.max(number.abs()));
                let scale = most / 127.;
                let inverse = if scale > 0. { scale.recip() } else { 0. };
                if let (Some(to), Some(one)) = (cells.get_mut(range), scales.get_mut(row)) {
                    *one = scale;
                    to.iter_mut().zip(from).for_each(|(to, from)| *to = (from * inverse).round() as i8);
                }
            }
        }
    }

    fn widen(&self, row: usize, count: usize, width: usize, to: &mut [f32]) {
        let range = row * width..(row + count) * width;
        let Some(to) = to.get_mut(..count * width) else { return };
        match self {
            Self::F32(cells) => to.copy_from_slice(cells.get(range).unwrap_or_default()),
            Self::F16(cells) => cells.get(range).unwrap_or_default().convert_to_f32_slice(to),
            Self::Q8(cells, scales) => {
                let rows = cells.get(range).unwrap_or_default().chunks_exact(width);
                let scales = scales.get(row..row + count).unwrap_or_default();
                for ((to, from), scale) in to.chunks_exact_mut(width).zip(rows).zip(scales) {
                    to.iter_mut().zip(from).for_each(|(to, &from)| *to = f32::from(from) * scale);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BLOCK, KvArena, KvShape, KvType};

    #[test]
    fn what_is_written_comes_back_as_exactly_as_its_type_says() {
        for (kind, within) in [(KvType::F32, 0.), (KvType::F16, 1e-3), (KvType::Q8, 1e-2)] {
            let shape = KvShape { layers: 2, kv_heads: 3, head_width: 8, kind };
            let mut arena = KvArena::new(shape);
            arena.ensure(1);
            let number = |layer: usize, slot: usize, at: usize| ((layer * 31 + slot * 7 + at) as f32 * 0.37).sin();
            for (layer, slot) in (0..2).flat_map(|layer| (0..BLOCK).map(move |slot| (layer, slot))) {
                let keys: Vec<f32> = (0..24).map(|at| number(layer, slot, at)).collect();
                let values: Vec<f32> = keys.iter().map(|key| -key).collect();
                arena.write(layer, 1, slot, &keys, &values).unwrap();
            }
            for (layer, head) in (0..2).flat_map(|layer| (0..3).map(move |head| (layer, head))) {
                let (mut keys, mut values) = (vec![0.; BLOCK * 8], vec![0.; BLOCK * 8]);
                arena.read(layer, 1, head, BLOCK, &mut keys, &mut values).unwrap();
                for (at, (key, value)) in keys.iter().zip(&values).enumerate() {
                    let expected = number(layer, at / 8, head * 8 + at % 8);
                    assert!((key - expected).abs() <= within && (value + expected).abs() <= within, "{kind:?}");
                }
            }
        }
    }

    #[test]
    fn a_block_without_memory_is_an_error() {
        let mut arena = KvArena::new(KvShape { layers: 1, kv_heads: 1, head_width: 2, kind: KvType::F16 });
        assert!(arena.write(0, 0, 0, &[1., 2.], &[3., 4.]).is_err());
        arena.ensure(0);
        arena.write(0, 0, 0, &[1., 2.], &[3., 4.]).unwrap();
        assert_eq!(arena.len(), 1);
        arena.release(0);
        assert!(arena.is_empty());
        assert!(arena.read(0, 0, 0, 1, &mut [0.; 2], &mut [0.; 2]).is_err());
    }
}
