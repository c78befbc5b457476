//! KV blocks in the memory of the device.
//!
//! Each layer has one tensor of keys and one of values, `[slots, kv_heads · head_width]`, in which block `b` has the slots
//! from `b · BLOCK` on. They grow when a layer is written, so that a failed allocation changes nothing. Released blocks
//! keep their memory for other sequences.

use candle_core::{DType as ArrayType, Device, Tensor as Array, WithDType};
use half::f16;

use super::kv_writes::DeviceWrites;
use crate::block_arena::{BlockArena, SavedNumber, filled, missing_block};
use crate::error::{ModelError, Result};
use crate::kv::{BLOCK, BlockId, KvArena, KvShape, KvType};

/// Blocks by which large arenas grow. Smaller ones double.
const MAX_GROWTH: usize = 1024;

/// The KV blocks of one model.
#[derive(Debug)]
pub struct CandleKvArena {
    shape: KvShape,
    device: Device,
    /// Set for each block that has memory.
    blocks: Vec<bool>,
    /// Keys and values of each layer that was written.
    layers: Vec<Option<[Array; 2]>>,
}

impl BlockArena for CandleKvArena {
    fn block_bytes(&self) -> u64 {
        self.shape.block_bytes()
    }

    /// The memory is allocated when a layer is written.
    fn ensure(&mut self, id: BlockId) -> Result<()> {
        let index = id as usize;
        if index >= self.blocks.len() {
            self.blocks.resize(index + 1, false);
        }
        if let Some(block) = self.blocks.get_mut(index) {
            *block = true;
        }
        Ok(())
    }

    fn release(&mut self, id: BlockId) {
        if let Some(block) = self.blocks.get_mut(id as usize) {
            *block = false;
        }
    }

    /// The keys and then the values of each layer.
    fn save(&self, id: BlockId, bytes: &mut Vec<u8>) -> Result<()> {
        self.check([id].into_iter())?;
        for layer in 0..self.layers.len() {
            for storage in self.layer(layer, id as usize + 1)? {
                // A copy on the device: a view would be copied to the host with all of its storage.
                let block = storage.narrow(0, id as usize * BLOCK, BLOCK)?.force_contiguous()?.flatten_all()?;
                match block.dtype() {
                    ArrayType::F32 => f32::append(&block.to_vec1()?, bytes),
                    _ => f16::append(&block.to_vec1()?, bytes),
                }
            }
        }
        Ok(())
    }

    fn load(&mut self, id: BlockId, bytes: &[u8]) -> Result<()> {
        self.check([id].into_iter())?;
        let (row_len, mut rest) = (self.row_len(), Some(bytes));
        for layer in 0..self.layers.len() {
            for storage in self.grown_layer(layer)? {
                let rows = match storage.dtype() {
                    ArrayType::F32 => saved_rows::<f32>(&mut rest, row_len, storage.device())?,
                    _ => saved_rows::<f16>(&mut rest, row_len, storage.device())?,
                };
                storage.slice_set(&rows, 0, id as usize * BLOCK)?;
            }
        }
        filled(id, rest)
    }

    fn len(&self) -> usize {
        self.blocks.iter().filter(|block| **block).count()
    }
}

impl KvArena for CandleKvArena {
    fn shape(&self) -> KvShape {
        self.shape
    }
}

/// candle has no 8-bit floats that every device supports, so `Q8` is stored as f16, in twice the memory.
fn element_type(kv_type: KvType) -> ArrayType {
    match kv_type {
        KvType::F32 => ArrayType::F32,
        KvType::F16 | KvType::Q8 => ArrayType::F16,
    }
}

/// The rows of a block, `[BLOCK, row_len]`, from the beginning of the saved bytes, which become `None` if there are too few.
fn saved_rows<T: SavedNumber + WithDType>(bytes: &mut Option<&[u8]>, row_len: usize, device: &Device) -> Result<Array> {
    let mut numbers = vec![T::zero(); BLOCK * row_len];
    *bytes = bytes.and_then(|bytes| T::fill(&mut numbers, bytes));
    Ok(Array::from_vec(numbers, (BLOCK, row_len), device)?)
}

impl CandleKvArena {
    pub fn new(device: &Device, shape: KvShape) -> Self {
        Self { shape, device: device.clone(), blocks: Vec::new(), layers: vec![None; shape.layers] }
    }

    /// Elements of a position.
    pub fn row_len(&self) -> usize {
        self.shape.kv_heads * self.shape.head_width
    }

    /// Checks that blocks have memory.
    pub fn check(&self, mut blocks: impl Iterator<Item = BlockId>) -> Result<()> {
        match blocks.find(|id| self.blocks.get(*id as usize) != Some(&true)) {
            Some(id) => Err(missing_block(id)),
            None => Ok(()),
        }
    }

    /// The keys and values of a layer, `[slots, kv_heads · head_width]`, with at least the slots of all blocks.
    fn grown_layer(&mut self, layer: usize) -> Result<&[Array; 2]> {
        let (row_len, dtype, needed) = (self.row_len(), element_type(self.shape.kv_type), self.blocks.len());
        let layer_count = self.layers.len();
        let Some(slot) = self.layers.get_mut(layer) else {
            return Err(ModelError::Compute(format!("the KV cache has {layer_count} layers, no layer {layer}")));
        };
        let capacity = slot.as_ref().map_or(0, |[keys, _]| keys.dims().first().map_or(0, |slots| slots / BLOCK));
        if capacity < needed || slot.is_none() {
            let blocks = needed.max(capacity + capacity.min(MAX_GROWTH));
            let grow = |old: Option<&Array>| {
                let new = Array::zeros((blocks * BLOCK, row_len), dtype, &self.device)?;
                old.map_or(Ok(()), |old| new.slice_set(old, 0, 0))?;
                Ok::<_, ModelError>(new)
            };
            let old = slot.as_ref();
            *slot = Some([grow(old.map(|[keys, _]| keys))?, grow(old.map(|[_, values]| values))?]);
        }
        slot.as_ref().ok_or_else(|| ModelError::Compute("a KV layer has no memory".to_owned()))
    }

    /// Writes keys and values, `[tokens, kv_heads · head_width]`, to a layer.
    pub fn write(&mut self, layer: usize, writes: &DeviceWrites, keys: &Array, values: &Array) -> Result<()> {
        let storage = self.grown_layer(layer)?;
        for (storage, rows) in storage.iter().zip([keys, values]) {
            writes.apply(storage, &rows.detach().to_dtype(storage.dtype())?)?;
        }
        Ok(())
    }

    /// The keys and values of a layer that was written: `[slots, kv_heads · head_width]`.
    ///
    /// # Errors
    /// If the layer does not have `blocks` blocks.
    pub fn layer(&self, layer: usize, blocks: usize) -> Result<&[Array; 2]> {
        let stored = self.layers.get(layer).and_then(Option::as_ref);
        let large_enough = |[keys, _]: &&[Array; 2]| keys.dims().first().is_some_and(|slots| *slots >= blocks * BLOCK);
        stored
            .filter(large_enough)
            .ok_or_else(|| ModelError::Compute(format!("layer {layer} of the KV cache was not written")))
    }
}
