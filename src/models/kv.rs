//! Keys and values of one sequence, kept outside the model so that one model serves many.
//!
//! Room grows as the sequence does, in steps, up to the limit that was reserved for it; a step
//! copies once, a token never does.

use candle_core::{DType, Device, Result, Tensor};

use super::hyper::Hyper;

/// Positions of the first piece of room, and the least that it grows by.
const STEP: usize = 128;

/// `[kv_heads, room, head_width]` each.
#[derive(Debug)]
struct Pair {
    keys: Tensor,
    values: Tensor,
}

/// The cache of one sequence. Positions from 0 to `len` are filled.
#[derive(Debug)]
pub struct KvCache {
    blocks: Vec<Pair>,
    kv_heads: usize,
    head_width: usize,
    length: usize,
    room: usize,
    limit: usize,
}

impl KvCache {
    /// An empty cache for at most `limit` positions.
    pub fn new(hyper: &Hyper, limit: usize) -> Result<Self> {
        let (kv_heads, head_width) = (hyper.kv_heads, hyper.head_width);
        let room = STEP.min(limit).max(1);
        let blocks = (0..hyper.blocks).map(|_| Pair::zeros(kv_heads, room, head_width)).collect::<Result<_>>()?;
        Ok(Self { blocks, kv_heads, head_width, length: 0, room, limit })
    }

    pub fn len(&self) -> usize {
        self.length
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The most positions that the sequence can have.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// A copy that goes on by itself: several answers to one prompt.
    pub fn fork(&self) -> Result<Self> {
        let Self { kv_heads, head_width, length, room, limit, .. } = *self;
        let blocks =
            self.blocks.iter().map(|pair| pair.copy(kv_heads, room, head_width, length)).collect::<Result<_>>()?;
        Ok(Self { blocks, kv_heads, head_width, length, room, limit })
    }

    /// Makes room for `more` positions after the filled ones.
    pub(super) fn reserve(&mut self, more: usize) -> Result<()> {
        let needed = self.length + more;
        if needed > self.limit {
            candle_core::bail!("{needed} positions do not fit the {} reserved for the sequence", self.limit);
        }
        if needed <= self.room {
            return Ok(());
        }
        let room = needed.max(self.room + (self.room / 2).max(STEP)).min(self.limit);
        for pair in &mut self.blocks {
            *pair = pair.copy(self.kv_heads, room, self.head_width, self.length)?;
        }
        self.room = room;
        Ok(())
    }

    /// Writes one block's keys and values (`[kv_heads, t, head_width]`) after the filled positions
    /// and returns views of all up to them. They count as filled only after [`Self::advance`].
    pub(super) fn append(&self, block: usize, keys: &Tensor, values: &Tensor) -> Result<(Tensor, Tensor)> {
        let Some(pair) = self.blocks.get(block) else { candle_core::bail!("the cache has no block {block}") };
        let filled = self.length + keys.dim(1)?;
        pair.keys.slice_set(keys, 1, self.length)?;
        pair.values.slice_set(values, 1, self.length)?;
        Ok((pair.keys.narrow(1, 0, filled)?, pair.values.narrow(1, 0, filled)?))
    }

    /// A whole step succeeded: its positions are filled. A failed one leaves the cache as it was.
    pub(super) fn advance(&mut self, count: usize) {
        self.length += count;
    }
}

impl Pair {
    fn zeros(kv_heads: usize, room: usize, head_width: usize) -> Result<Self> {
        let make = || Tensor::zeros((kv_heads, room, head_width), DType::F32, &Device::Cpu);
        Ok(Self { keys: make()?, values: make()? })
    }

    fn copy(&self, kv_heads: usize, room: usize, head_width: usize, filled: usize) -> Result<Self> {
        let new = Self::zeros(kv_heads, room, head_width)?;
        if filled > 0 {
            new.keys.slice_set(&self.keys.narrow(1, 0, filled)?.contiguous()?, 1, 0)?;
            new.values.slice_set(&self.values.narrow(1, 0, filled)?.contiguous()?, 1, 0)?;
        }
        Ok(new)
    }
}
