//! The CPU as a device: its threads, and the buffers of its tensors.

use std::fmt;
use std::sync::{Arc, Mutex};

use half::bf16;

use super::buffers::BufferPool;
use crate::backend::interface::{RequestOptions, Tensor};
use crate::backend::types::Pool;

/// Multiply-adds of each thread between two pauses: a few milliseconds.
const CHUNK_MACS: usize = 200_000_000;
/// Minimum rows of a matrix product. Each product reads all weights once.
pub(super) const MIN_ROWS: usize = 64;
/// Elements of each thread between two pauses of memory-bound work.
pub(super) const CHUNK_ELEMENTS: usize = 4 << 20;

/// The threads of the CPU and the buffers of its tensors. All models share one, because they compute one at a time.
///
/// A handle for a request splits its operations into chunks, with a pause after each. The others compute each operation
/// at once.
#[derive(Clone)]
pub struct Cpu {
    pub(super) pool: Arc<Pool>,
    pub(super) buffers: BufferPool,
    /// Scratch for keys and values in bf16 of [`Backend::attention`].
    ///
    /// [`Backend::attention`]: crate::backend::Backend::attention
    pub(super) kv_bf16: Arc<Mutex<Vec<bf16>>>,
    pub(super) request: Option<RequestOptions>,
}

impl Cpu {
    pub fn new(threads: usize) -> Self {
        Self::with_pool(Pool::new(threads))
    }

    pub fn with_pool(pool: Pool) -> Self {
        Self { pool: Arc::new(pool), buffers: BufferPool::default(), kv_bf16: Arc::default(), request: None }
    }

    /// A tensor of undefined content.
    pub(super) fn alloc(&self, [images, height, width, channels]: [usize; 4]) -> Tensor<Self> {
        let data = self.buffers.take(images * height * width * channels);
        Tensor { images, size: [height, width], channels, data }
    }

    /// A tensor of undefined content with the pixels of `x`.
    pub(super) fn alloc_like(&self, x: &Tensor<Self>, channels: usize) -> Tensor<Self> {
        self.alloc([x.images, x.size[0], x.size[1], channels])
    }

    /// Rows between two pauses; `row_macs`: multiply-adds of a row.
    pub(super) fn chunk_rows(&self, row_macs: usize) -> usize {
        match self.request {
            Some(_) => (CHUNK_MACS * self.pool.threads() / row_macs.max(1)).max(1),
            None => usize::MAX,
        }
    }

    /// Like [`Self::chunk_rows`], but at least the rows of an efficient matrix product.
    pub(super) fn matmul_rows(&self, row_macs: usize) -> usize {
        self.chunk_rows(row_macs).checked_next_multiple_of(MIN_ROWS).unwrap_or(usize::MAX)
    }
}

impl Tensor<Cpu> {
    pub fn data(&self) -> &[f32] {
        &self.data.elements[..self.len()]
    }

    pub fn data_mut(&mut self) -> &mut [f32] {
        let len = self.len();
        &mut self.data.elements[..len]
    }

    /// The elements of each image.
    pub(super) fn per_image(&self) -> impl Iterator<Item = &[f32]> {
        self.data().chunks_exact((self.pixels() * self.channels).max(1))
    }

    /// The elements of each image.
    pub(super) fn per_image_mut(&mut self) -> impl Iterator<Item = &mut [f32]> {
        let image = (self.pixels() * self.channels).max(1);
        self.data_mut().chunks_exact_mut(image)
    }

    /// The first `len` elements, or all if there are fewer.
    pub(super) fn prefix_mut(&mut self, len: usize) -> &mut [f32] {
        let len = len.min(self.len());
        &mut self.data.elements[..len]
    }
}

impl fmt::Debug for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cpu").field("pool", &self.pool).finish_non_exhaustive()
    }
}
