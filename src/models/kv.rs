//! Keys and values in blocks of [`BLOCK`] positions, outside the model and outside any sequence.
//!
//! Who holds which block is not known here: the engine's scheduler counts references and hands each
//! step the table of blocks of every row. So a block can be part of several sequences' past, and
//! what is full is never written again. (Kwon et al. 2023, <https://arxiv.org/abs/2309.06180>.)

use candle_core::Result;
use half::f16;
use half::slice::HalfFloatSliceExt;

use super::attention::View;

/// Positions in a block.
pub const BLOCK: usize = outpost_kernels::POSITIONS;

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

    /// Numbers of one layer in a block, keys or values.
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

#[derive(Debug)]
struct Block {
    /// `[layers, kv_heads, head_width, BLOCK]`: attention takes a number of all positions together.
    keys: Cells,
    /// `[layers, kv_heads, BLOCK, head_width]`
    values: Cells,
}

#[derive(Debug)]
enum Cells {
    F32(Vec<f32>),
    F16(Vec<f16>),
    /// Numbers, and a scale for each position of a head: `[layers, kv_heads, BLOCK]`.
    Q8(Vec<i8>, Vec<f32>),
}

/// Where the numbers of one position and head are in [`Cells`].
#[derive(Clone, Copy, Debug)]
struct Place {
    first: usize,
    /// From one number to the next.
    step: usize,
    scale: usize,
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
        let Some(block) = self.blocks.get_mut(id as usize).and_then(Option::as_mut) else { return Err(no_block(id)) };
        let heads = keys.chunks_exact(head_width).zip(values.chunks_exact(head_width));
        for (head, (keys, values)) in heads.enumerate().take(kv_heads) {
            let start = (layer * kv_heads + head) * BLOCK;
            let scale = start + slot;
            block.keys.put(Place { first: start * head_width + slot, step: BLOCK, scale }, keys);
            block.values.put(Place { first: scale * head_width, step: 1, scale }, values);
        }
        Ok(())
    }

    /// The keys and the values of one layer in these blocks, which must be `needed` at least.
    pub(super) fn view(&self, layer: usize, ids: &[BlockId], needed: usize) -> Result<View<'_>> {
        if ids.len() < needed {
            candle_core::bail!("a row has {} KV blocks, {needed} are needed", ids.len());
        }
        let find = |id: &BlockId| self.blocks.get(*id as usize).and_then(Option::as_ref).ok_or_else(|| no_block(*id));
        let blocks: Vec<&Block> = ids.iter().map(find).collect::<Result<_>>()?;
        let (size, scales) = (self.shape.layer(), self.shape.kv_heads * BLOCK);
        let (range, scales) = (layer * size..(layer + 1) * size, layer * scales..(layer + 1) * scales);
        Ok(match self.shape.kind {
            KvType::F32 => View::F32(both(&blocks, |cells| match cells {
                Cells::F32(all) => all.get(range.clone()),
                _ => None,
            })),
            KvType::F16 => View::F16(both(&blocks, |cells| match cells {
                Cells::F16(all) => all.get(range.clone()),
                _ => None,
            })),
            KvType::Q8 => View::Q8(both(&blocks, |cells| match cells {
                Cells::Q8(all, factors) => all.get(range.clone()).zip(factors.get(scales.clone())),
                _ => None,
            })),
        })
    }
}

/// What `part` finds in the keys and in the values of all blocks.
fn both<'a, T>(blocks: &[&'a Block], part: impl Fn(&'a Cells) -> Option<T>) -> [Vec<T>; 2] {
    let mut found = [Vec::with_capacity(blocks.len()), Vec::with_capacity(blocks.len())];
    let [keys, values] = &mut found;
    keys.extend(blocks.iter().filter_map(|block| part(&block.keys)));
    values.extend(blocks.iter().filter_map(|block| part(&block.values)));
    found
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

    /// Writes the numbers of one position and head.
    fn put(&mut self, place: Place, from: &[f32]) {
        let Place { first, step, scale } = place;
        match self {
            Self::F32(cells) => scatter(cells, first, step, from),
            Self::F16(cells) if step == 1 => {
                if let Some(to) = cells.get_mut(first..first + from.len()) {
                    to.convert_from_f32_slice(from);
                }
            }
            Self::F16(cells) => {
                let mut piece = [f16::ZERO; 16];
                for (at, from) in (first..).step_by(piece.len() * step).zip(from.chunks(piece.len())) {
                    let Some(piece) = piece.get_mut(..from.len()) else { return };
                    piece.convert_from_f32_slice(from);
                    scatter(cells, at, step, piece);
                }
            }
            Self::Q8(cells, scales) => {
                let mut codes = vec![0; from.len()];
                if let Some(scale) = scales.get_mut(scale) {
                    *scale = outpost_kernels::to_q8(from, &mut codes);
                    scatter(cells, first, step, &codes);
                }
            }
        }
    }
}

/// Writes `from` to `first`, `first + step` and so on.
fn scatter<T: Copy>(to: &mut [T], first: usize, step: usize, from: &[T]) {
    let places = to.get_mut(first..).unwrap_or_default().iter_mut().step_by(step);
    places.zip(from).for_each(|(to, from)| *to = *from);
}

#[cfg(test)]
mod tests {
    use super::{BLOCK, KvArena, KvShape, KvType};
    use crate::models::attention::View;

    /// Numbers `0..8` of a head at a position, of the keys or the values of the first block.
    fn widen(view: &View<'_>, values: bool, head: usize, slot: usize) -> Vec<f32> {
        let index = |at: usize| head * BLOCK * 8 + if values { slot * 8 + at } else { at * BLOCK + slot };
        let part = usize::from(values);
        let number = |at: usize| match view {
            View::F32(all) => all[part][0][index(at)],
            View::F16(all) => all[part][0][index(at)].to_f32(),
            View::Q8(all) => f32::from(all[part][0].0[index(at)]) * all[part][0].1[head * BLOCK + slot],
        };
        (0..8).map(number).collect()
    }

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
                let view = arena.view(layer, &[1], 1).unwrap();
                for slot in 0..BLOCK {
                    let pairs = widen(&view, false, head, slot).into_iter().zip(widen(&view, true, head, slot));
                    for (at, (key, value)) in pairs.enumerate() {
                        let expected = number(layer, slot, head * 8 + at);
                        assert!((key - expected).abs() <= within && (value + expected).abs() <= within, "{kind:?}");
                    }
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
        assert!(arena.view(0, &[0], 1).is_err());
    }
}
