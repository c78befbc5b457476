//! KV blocks in the memory of the host.

use half::f16;
use outpost_kernels::{self as kernels, KvBlockMut, KvBlocks, KvPair, KvSlices, KvWrite};

use crate::backend::types::Pool;
use crate::block_arena::{BlockArena, Blocks, SavedNumber, filled, missing_block};
use crate::error::{ModelError, Result};
use crate::kv::{BLOCK, BlockId, BlockWrite, KvArena, KvShape, KvType};

/// The KV blocks of one model.
#[derive(Debug)]
pub struct CpuKvArena {
    shape: KvShape,
    blocks: Blocks<Block>,
}

#[derive(Debug)]
struct Block {
    /// `[layers, kv_heads, head_width, BLOCK]`: transposed, because attention processes positions in parallel.
    keys: KvBuffer,
    /// `[layers, kv_heads, BLOCK, head_width]`
    values: KvBuffer,
}

#[derive(Debug)]
enum KvBuffer {
    F32(Vec<f32>),
    F16(Vec<f16>),
    /// Codes, and a scale for each position of a head: `[layers, kv_heads, BLOCK]`.
    Q8(Vec<i8>, Vec<f32>),
}

impl BlockArena for CpuKvArena {
    fn block_bytes(&self) -> u64 {
        self.shape.block_bytes()
    }

    fn ensure(&mut self, id: BlockId) -> Result<()> {
        let shape = &self.shape;
        self.blocks.ensure(id, || Ok(Block { keys: KvBuffer::new(shape), values: KvBuffer::new(shape) }))
    }

    fn release(&mut self, id: BlockId) {
        drop(self.blocks.take(id));
    }

    /// The keys, then the values; of 8-bit types, the codes and then the scales.
    fn save(&self, id: BlockId, bytes: &mut Vec<u8>) -> Result<()> {
        let block = self.blocks.get(id).ok_or_else(|| missing_block(id))?;
        [&block.keys, &block.values].into_iter().for_each(|buffer| buffer.append_to(bytes));
        Ok(())
    }

    fn load(&mut self, id: BlockId, bytes: &[u8]) -> Result<()> {
        let block = self.blocks.get_mut(id).ok_or_else(|| missing_block(id))?;
        filled(id, block.keys.fill_from(bytes).and_then(|bytes| block.values.fill_from(bytes)))
    }

    fn len(&self) -> usize {
        self.blocks.len()
    }
}

impl KvArena for CpuKvArena {
    fn shape(&self) -> KvShape {
        self.shape
    }
}

impl CpuKvArena {
    pub fn new(shape: KvShape) -> Self {
        Self { shape, blocks: Blocks::default() }
    }

    /// Writes keys and values of a layer, `[rows, kv_heads, head_width]`. Each write must have a different block.
    ///
    /// # Errors
    /// If a block has no memory; nothing is written then.
    pub(super) fn write(
        &mut self,
        pool: &Pool,
        layer: usize,
        writes: &[BlockWrite],
        keys: &[f32],
        values: &[f32],
    ) -> Result<()> {
        // Blocks are moved out of the arena, so that several can be borrowed mutably.
        let mut taken = Vec::with_capacity(writes.len());
        taken.extend(writes.iter().map(|write| self.blocks.take(write.block)));
        let missing = writes.iter().zip(&taken).find(|(_, block)| block.is_none()).map(|(write, _)| write.block);
        if missing.is_none() {
            let shape = self.shape;
            let mut kernel_writes = Vec::with_capacity(writes.len());
            for (write, block) in writes.iter().zip(taken.iter_mut().flatten()) {
                let BlockWrite { row, slot, count, .. } = *write;
                kernel_writes.extend(block.layer_mut(layer, &shape).map(|block| KvWrite { block, row, slot, count }));
            }
            kernels::kv_write(pool, [shape.kv_heads, shape.head_width], keys, values, &mut kernel_writes);
        }
        for (write, block) in writes.iter().zip(taken) {
            if let Some(block) = block {
                self.blocks.put(write.block, block);
            }
        }
        missing.map_or(Ok(()), |id| Err(missing_block(id)))
    }

    /// The keys and values of a layer in these blocks.
    ///
    /// # Errors
    /// If there are fewer than `min_blocks` blocks, or one has no memory.
    pub(super) fn view(&self, layer: usize, ids: &[BlockId], min_blocks: usize) -> Result<KvView<'_>> {
        if ids.len() < min_blocks {
            return Err(ModelError::Compute(format!("a row has {} KV blocks, but needs {min_blocks}", ids.len())));
        }
        let find = |id: &BlockId| self.blocks.get(*id);
        if let Some(missing) = ids.iter().find(|id| find(id).is_none()) {
            return Err(missing_block(*missing));
        }
        let blocks = ids.iter().filter_map(find);
        let (size, scales) = (self.shape.layer_len(), self.shape.kv_heads * BLOCK);
        let (range, scales) = (layer * size..(layer + 1) * size, layer * scales..(layer + 1) * scales);
        Ok(match self.shape.kv_type {
            KvType::F32 => KvView::F32(collect_pairs(blocks, |buffer| match buffer {
                KvBuffer::F32(values) => values.get(range.clone()),
                _ => None,
            })),
            KvType::F16 => KvView::F16(collect_pairs(blocks, |buffer| match buffer {
                KvBuffer::F16(values) => values.get(range.clone()),
                _ => None,
            })),
            KvType::Q8 => KvView::Q8(collect_pairs(blocks, |buffer| match buffer {
                KvBuffer::Q8(codes, factors) => codes.get(range.clone()).zip(factors.get(scales.clone())),
                _ => None,
            })),
        })
    }
}

/// The slices of a sequence's blocks in one layer: `[keys, values]`.
#[derive(Debug)]
pub(super) enum KvView<'a> {
    F32([Vec<&'a [f32]>; 2]),
    F16([Vec<&'a [f16]>; 2]),
    Q8([Vec<(&'a [i8], &'a [f32])>; 2]),
}

impl KvView<'_> {
    pub fn as_blocks(&self) -> KvBlocks<'_> {
        fn pair<T>([keys, values]: &[Vec<T>; 2]) -> KvSlices<'_, T> {
            KvSlices { keys, values }
        }
        match self {
            Self::F32(slices) => KvBlocks::F32(pair(slices)),
            Self::F16(slices) => KvBlocks::F16(pair(slices)),
            Self::Q8(slices) => KvBlocks::Q8(pair(slices)),
        }
    }
}

/// Applies `select` to the keys and to the values of all blocks.
fn collect_pairs<'a, T>(
    blocks: impl Iterator<Item = &'a Block>,
    select: impl Fn(&'a KvBuffer) -> Option<T>,
) -> [Vec<T>; 2] {
    let capacity = blocks.size_hint().1.unwrap_or(0);
    let [mut keys, mut values] = [(); 2].map(|()| Vec::with_capacity(capacity));
    for block in blocks {
        keys.extend(select(&block.keys));
        values.extend(select(&block.values));
    }
    [keys, values]
}

impl KvBuffer {
    fn new(shape: &KvShape) -> Self {
        let count = shape.layers * shape.layer_len();
        match shape.kv_type {
            KvType::F32 => Self::F32(vec![0.; count]),
            KvType::F16 => Self::F16(vec![f16::ZERO; count]),
            KvType::Q8 => Self::Q8(vec![0; count], vec![0.; count / shape.head_width]),
        }
    }

    fn append_to(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::F32(values) => f32::append(values, bytes),
            Self::F16(values) => f16::append(values, bytes),
            Self::Q8(codes, scales) => {
                i8::append(codes, bytes);
                f32::append(scales, bytes);
            }
        }
    }

    /// Returns the bytes that are left; `None`: there are too few.
    fn fill_from<'a>(&mut self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        match self {
            Self::F32(values) => f32::fill(values, bytes),
            Self::F16(values) => f16::fill(values, bytes),
            Self::Q8(codes, scales) => f32::fill(scales, i8::fill(codes, bytes)?),
        }
    }
}

impl Block {
    /// One layer of the block.
    fn layer_mut(&mut self, layer: usize, shape: &KvShape) -> Option<KvBlockMut<'_>> {
        let (size, scales) = (shape.layer_len(), shape.kv_heads * BLOCK);
        let (range, scales) = (layer * size..(layer + 1) * size, layer * scales..(layer + 1) * scales);
        Some(match (&mut self.keys, &mut self.values) {
            (KvBuffer::F32(keys), KvBuffer::F32(values)) => {
                KvBlockMut::F32(KvPair { keys: keys.get_mut(range.clone())?, values: values.get_mut(range)? })
            }
            (KvBuffer::F16(keys), KvBuffer::F16(values)) => {
                KvBlockMut::F16(KvPair { keys: keys.get_mut(range.clone())?, values: values.get_mut(range)? })
            }
            (KvBuffer::Q8(keys, key_scales), KvBuffer::Q8(values, value_scales)) => KvBlockMut::Q8(KvPair {
                keys: (keys.get_mut(range.clone())?, key_scales.get_mut(scales.clone())?),
                values: (values.get_mut(range)?, value_scales.get_mut(scales)?),
            }),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Elements `0..8` of a head at a position of the first block, from the keys or the values.
    fn to_floats(view: &KvView<'_>, values: bool, head: usize, slot: usize) -> Vec<f32> {
        let index = |i: usize| head * BLOCK * 8 + if values { slot * 8 + i } else { i * BLOCK + slot };
        let side = usize::from(values);
        let element = |i: usize| match view {
            KvView::F32(slices) => slices[side][0][index(i)],
            KvView::F16(slices) => slices[side][0][index(i)].to_f32(),
            KvView::Q8(slices) => f32::from(slices[side][0].0[index(i)]) * slices[side][0].1[head * BLOCK + slot],
        };
        (0..8).map(element).collect()
    }

    #[test]
    fn written_keys_and_values_are_read_with_the_precision_of_their_type() {
        for (kv_type, tolerance) in [(KvType::F32, 0.), (KvType::F16, 1e-3), (KvType::Q8, 1e-2)] {
            let shape = KvShape { layers: 2, kv_heads: 3, head_width: 8, kv_type };
            let mut arena = CpuKvArena::new(shape);
            arena.ensure(1).unwrap();
            let element = |layer: usize, slot: usize, i: usize| ((layer * 31 + slot * 7 + i) as f32 * 0.37).sin();
            let pool = Pool::new(2);
            for (layer, slot) in (0..2).flat_map(|layer| [0, 5, 6, 15].map(move |slot| (layer, slot))) {
                // Up to the next slot in the list.
                let count = [(0, 5), (5, 1), (6, 9), (15, 1)].into_iter().find(|(start, _)| *start == slot).unwrap().1;
                let row = |slot: usize| (0..24).map(move |i| element(layer, slot, i));
                // Three rows of other writes come first.
                let keys: Vec<f32> = (0..3).chain(slot..slot + count).flat_map(row).collect();
                let values: Vec<f32> = keys.iter().map(|key| -key).collect();
                arena.write(&pool, layer, &[BlockWrite { block: 1, row: 3, slot, count }], &keys, &values).unwrap();
            }
            for (layer, head) in (0..2).flat_map(|layer| (0..3).map(move |head| (layer, head))) {
                let view = arena.view(layer, &[1], 1).unwrap();
                for slot in 0..BLOCK {
                    let pairs = to_floats(&view, false, head, slot).into_iter().zip(to_floats(&view, true, head, slot));
                    for (i, (key, value)) in pairs.enumerate() {
                        let expected = element(layer, slot, head * 8 + i);
                        assert!(
                            (key - expected).abs() <= tolerance && (value + expected).abs() <= tolerance,
                            "{kv_type:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_block_without_memory_is_an_error() {
        let mut arena = CpuKvArena::new(KvShape { layers: 1, kv_heads: 1, head_width: 2, kv_type: KvType::F16 });
        let pool = Pool::new(1);
        let write = |block| BlockWrite { block, row: 0, slot: 0, count: 1 };
        assert!(arena.write(&pool, 0, &[write(0)], &[1., 2.], &[3., 4.]).is_err());
        arena.ensure(0).unwrap();
        arena.write(&pool, 0, &[write(0)], &[1., 2.], &[3., 4.]).unwrap();
        assert!(arena.write(&pool, 0, &[write(0), write(1)], &[1., 2.], &[3., 4.]).is_err());
        assert_eq!(arena.len(), 1, "the failed write frees no block");
        arena.release(0);
        assert!(arena.is_empty());
        assert!(arena.view(0, &[0], 1).is_err());
    }
}
