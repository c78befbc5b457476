//! Keys and values in blocks of [`BLOCK`] positions, outside the model and outside any sequence.
//!
//! Who holds which block is not known here: the engine's scheduler counts references and hands each
//! step the table of blocks of every row. So a block can be part of several sequences' past, and
//! what is full is never written again. (Kwon et al. 2023, <https://arxiv.org/abs/2309.06180>.)

use half::f16;
use outpost_kernels::{self as kernels, KvBlocks, KvPair, KvSlices, KvWrite, Pool};

use super::error::{ModelError, Result};

/// Positions in a block.
pub const BLOCK: usize = outpost_kernels::BLOCK_POSITIONS;

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
    pub kv_type: KvType,
}

impl KvShape {
    /// Bytes of one block: keys and values of all layers.
    pub fn block_bytes(&self) -> u64 {
        let rows = (2 * self.layers * self.kv_heads * BLOCK) as u64;
        let width = self.head_width as u64;
        rows * match self.kv_type {
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
    /// Whether the text is computed as a long one: see `CausalLm::is_long`.
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

/// Some rows of a step that are written to one block.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockWrite {
    pub block: BlockId,
    /// The first row, its place in the block, and how many follow each other.
    pub row: usize,
    pub slot: usize,
    pub count: usize,
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

    /// Writes the keys and values (`[rows, kv_heads, head_width]`) of a layer to these places, of which each names
    /// another block; nothing, where one has no memory.
    pub(super) fn write(
        &mut self,
        pool: &Pool,
        layer: usize,
        places: &[BlockWrite],
        keys: &[f32],
        values: &[f32],
    ) -> Result<()> {
        // Blocks are taken out, for only so can several be written at once.
        let mut taken = Vec::with_capacity(places.len());
        taken.extend(places.iter().map(|place| self.blocks.get_mut(place.block as usize).and_then(Option::take)));
        let missing = places.iter().zip(&taken).find(|(_, block)| block.is_none()).map(|(place, _)| place.block);
        if missing.is_none() {
            let shape = self.shape;
            let mut fills = Vec::with_capacity(places.len());
            for (place, block) in places.iter().zip(taken.iter_mut().flatten()) {
                let BlockWrite { row, slot, count, .. } = *place;
                fills.extend(block.cells(layer, &shape).map(|cells| KvWrite { block, row, slot, count }));
            }
            kernels::kv_write(pool, [shape.kv_heads, shape.head_width], keys, values, &mut fills);
        }
        for (place, block) in places.iter().zip(taken) {
            if let (Some(slot), Some(_)) = (self.blocks.get_mut(place.block as usize), &block) {
                *slot = block;
            }
        }
        missing.map_or(Ok(()), |id| Err(missing_block(id)))
    }

    /// The keys and the values of one layer in these blocks, which must be `needed` at least.
    pub(super) fn view(&self, layer: usize, ids: &[BlockId], needed: usize) -> Result<KvView<'_>> {
        if ids.len() < needed {
            return Err(ModelError::Compute(format!("a row has {} KV blocks, {needed} are needed", ids.len())));
        }
        let find = |id: &BlockId| self.blocks.get(*id as usize).and_then(Option::as_ref);
        if let Some(missing) = ids.iter().find(|id| find(id).is_none()) {
            return Err(missing_block(*missing));
        }
        let blocks = ids.iter().filter_map(find);
        let (size, scales) = (self.shape.layer(), self.shape.kv_heads * BLOCK);
        let (range, scales) = (layer * size..(layer + 1) * size, layer * scales..(layer + 1) * scales);
        Ok(match self.shape.kv_type {
            KvType::F32 => KvView::F32(collect_pairs(blocks, |cells| match cells {
                Cells::F32(all) => all.get(range.clone()),
                _ => None,
            })),
            KvType::F16 => KvView::F16(collect_pairs(blocks, |cells| match cells {
                Cells::F16(all) => all.get(range.clone()),
                _ => None,
            })),
            KvType::Q8 => KvView::Q8(collect_pairs(blocks, |cells| match cells {
                Cells::Q8(all, factors) => all.get(range.clone()).zip(factors.get(scales.clone())),
                _ => None,
            })),
        })
    }
}

/// The slices of a sequence's blocks in one layer: of keys, and of values.
#[derive(Debug)]
pub(super) enum KvView<'a> {
    F32([Vec<&'a [f32]>; 2]),
    F16([Vec<&'a [half::f16]>; 2]),
    Q8([Vec<(&'a [i8], &'a [f32])>; 2]),
}

impl KvView<'_> {
    pub fn as_blocks(&self) -> KvBlocks<'_> {
        fn pair<T>([keys, values]: &[Vec<T>; 2]) -> KvSlices<'_, T> {
            KvSlices { keys, values }
        }
        match self {
            Self::F32(both) => KvBlocks::F32(pair(both)),
            Self::F16(both) => KvBlocks::F16(pair(both)),
            Self::Q8(both) => KvBlocks::Q8(pair(both)),
        }
    }
}

/// What `part` finds in the keys and in the values of all blocks.
fn collect_pairs<'a, T>(blocks: impl Iterator<Item = &'a Block>, part: impl Fn(&'a Cells) -> Option<T>) -> [Vec<T>; 2] {
    let most = blocks.size_hint().1.unwrap_or(0);
    let [mut keys, mut values] = [(); 2].map(|()| Vec::with_capacity(most));
    for block in blocks {
        keys.extend(part(&block.keys));
        values.extend(part(&block.values));
    }
    [keys, values]
}

fn missing_block(id: BlockId) -> ModelError {
    ModelError::Compute(format!("the KV block {id} has no memory"))
}

impl Cells {
    fn new(shape: &KvShape) -> Self {
        let count = shape.layers * shape.layer();
        match shape.kv_type {
            KvType::F32 => Self::F32(vec![0.; count]),
            KvType::F16 => Self::F16(vec![f16::ZERO; count]),
            KvType::Q8 => Self::Q8(vec![0; count], vec![0.; count / shape.head_width]),
        }
    }
}

impl Block {
    /// A layer's cells.
    fn cells(&mut self, layer: usize, shape: &KvShape) -> Option<kernels::KvBlockMut<'_>> {
        let (size, scales) = (shape.layer(), shape.kv_heads * BLOCK);
        let (range, scales) = (layer * size..(layer + 1) * size, layer * scales..(layer + 1) * scales);
        Some(match (&mut self.keys, &mut self.values) {
            (Cells::F32(keys), Cells::F32(values)) => {
                kernels::KvBlockMut::F32(KvPair { keys: keys.get_mut(range.clone())?, values: values.get_mut(range)? })
            }
            (Cells::F16(keys), Cells::F16(values)) => {
                kernels::KvBlockMut::F16(KvPair { keys: keys.get_mut(range.clone())?, values: values.get_mut(range)? })
            }
            (Cells::Q8(keys, key_scales), Cells::Q8(values, value_scales)) => kernels::KvBlockMut::Q8(KvPair {
                keys: (keys.get_mut(range.clone())?, key_scales.get_mut(scales.clone())?),
                values: (values.get_mut(range)?, value_scales.get_mut(scales)?),
            }),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{BLOCK, BlockWrite, KvArena, KvShape, KvType, KvView};
    use outpost_kernels::Pool;

    /// Numbers `0..8` of a head at a position, of the keys or the values of the first block.
    fn widen(view: &KvView<'_>, values: bool, head: usize, slot: usize) -> Vec<f32> {
        let index = |at: usize| head * BLOCK * 8 + if values { slot * 8 + at } else { at * BLOCK + slot };
        let part = usize::from(values);
        let number = |at: usize| match view {
            KvView::F32(all) => all[part][0][index(at)],
            KvView::F16(all) => all[part][0][index(at)].to_f32(),
            KvView::Q8(all) => f32::from(all[part][0].0[index(at)]) * all[part][0].1[head * BLOCK + slot],
        };
        (0..8).map(number).collect()
    }

    #[test]
    fn what_is_written_comes_back_as_exactly_as_its_type_says() {
        for (kv_type, within) in [(KvType::F32, 0.), (KvType::F16, 1e-3), (KvType::Q8, 1e-2)] {
            let shape = KvShape { layers: 2, kv_heads: 3, head_width: 8, kv_type };
            let mut arena = KvArena::new(shape);
            arena.ensure(1);
            let number = |layer: usize, slot: usize, at: usize| ((layer * 31 + slot * 7 + at) as f32 * 0.37).sin();
            let pool = Pool::new(2);
            for (layer, slot) in (0..2).flat_map(|layer| [0, 5, 6, 15].map(move |slot| (layer, slot))) {
                // Up to the next of these.
                let count = [(0, 5), (5, 1), (6, 9), (15, 1)].into_iter().find(|(from, _)| *from == slot).unwrap().1;
                let row = |slot: usize| (0..24).map(move |at| number(layer, slot, at));
                // Rows of others before them.
                let keys: Vec<f32> = (0..3).chain(slot..slot + count).flat_map(row).collect();
                let values: Vec<f32> = keys.iter().map(|key| -key).collect();
                arena.write(&pool, layer, &[BlockWrite { block: 1, row: 3, slot, count }], &keys, &values).unwrap();
            }
            for (layer, head) in (0..2).flat_map(|layer| (0..3).map(move |head| (layer, head))) {
                let view = arena.view(layer, &[1], 1).unwrap();
                for slot in 0..BLOCK {
                    let pairs = widen(&view, false, head, slot).into_iter().zip(widen(&view, true, head, slot));
                    for (at, (key, value)) in pairs.enumerate() {
                        let expected = number(layer, slot, head * 8 + at);
                        assert!((key - expected).abs() <= within && (value + expected).abs() <= within, "{kv_type:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_block_without_memory_is_an_error() {
        let mut arena = KvArena::new(KvShape { layers: 1, kv_heads: 1, head_width: 2, kv_type: KvType::F16 });
        let pool = Pool::new(1);
        let place = |block| BlockWrite { block, row: 0, slot: 0, count: 1 };
        assert!(arena.write(&pool, 0, &[place(0)], &[1., 2.], &[3., 4.]).is_err());
        arena.ensure(0);
        arena.write(&pool, 0, &[place(0)], &[1., 2.], &[3., 4.]).unwrap();
        assert!(arena.write(&pool, 0, &[place(0), place(1)], &[1., 2.], &[3., 4.]).is_err());
        assert_eq!(arena.len(), 1, "what was there is there still");
        arena.release(0);
        assert!(arena.is_empty());
        assert!(arena.view(0, &[0], 1).is_err());
    }
}
