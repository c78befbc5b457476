//! Feature maps: the activations of a model, in reusable buffers.

use std::cell::RefCell;
use std::rc::Rc;

/// A batch of images, channels last: `[images, height, width, channels]`. A sequence of tokens is an image that is one
/// pixel wide: `[images, tokens, 1, channels]`.
#[derive(Debug)]
pub struct FeatureMap {
    /// May be longer than the feature map.
    data: Vec<f32>,
    pub images: usize,
    /// Height and width.
    pub size: [usize; 2],
    pub channels: usize,
    buffers: BufferPool,
}

/// Buffers for feature maps. Reusing them is faster than allocating memory, which must be zeroed.
#[derive(Clone, Debug, Default)]
pub struct BufferPool(Rc<RefCell<Buffers>>);

#[derive(Debug, Default)]
struct Buffers {
    free: Vec<Vec<f32>>,
    /// Elements in all buffers, used or free.
    total: usize,
    /// The maximum of `total`.
    peak: usize,
}

impl BufferPool {
    /// A feature map of unspecified content in the smallest free buffer that is large enough. If there is none,
    /// allocates a buffer and frees the largest free one, which is from an operation on a smaller image.
    pub fn alloc(&self, images: usize, size: [usize; 2], channels: usize) -> FeatureMap {
        let len = images * size[0] * size[1] * channels;
        FeatureMap { data: self.take(len), images, size, channels, buffers: self.clone() }
    }

    fn take(&self, len: usize) -> Vec<f32> {
        let mut buffers = self.0.borrow_mut();
        let free = buffers.free.iter().enumerate();
        let fitting = free.clone().filter(|(_, buffer)| buffer.len() >= len).min_by_key(|(_, buffer)| buffer.len());
        if let Some(index) = fitting.map(|(index, _)| index) {
            return buffers.free.swap_remove(index);
        }
        let largest = free.max_by_key(|(_, buffer)| buffer.len()).map(|(index, _)| index);
        if let Some(index) = largest {
            buffers.total -= buffers.free.swap_remove(index).len();
        }
        buffers.total += len;
        buffers.peak = buffers.peak.max(buffers.total);
        vec![0.; len]
    }

    /// The peak number of elements in all buffers.
    pub fn peak(&self) -> usize {
        self.0.borrow().peak
    }
}

impl Drop for FeatureMap {
    fn drop(&mut self) {
        self.buffers.0.borrow_mut().free.push(std::mem::take(&mut self.data));
    }
}

impl FeatureMap {
    /// Elements of all images.
    pub fn len(&self) -> usize {
        self.rows() * self.channels
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Pixels of all images.
    pub fn rows(&self) -> usize {
        self.images * self.pixels()
    }

    /// Pixels of one image.
    pub fn pixels(&self) -> usize {
        self.size[0] * self.size[1]
    }

    pub fn data(&self) -> &[f32] {
        &self.data[..self.len()]
    }

    pub fn data_mut(&mut self) -> &mut [f32] {
        let len = self.len();
        &mut self.data[..len]
    }

    /// The first `len` elements, or all if there are fewer.
    pub fn prefix_mut(&mut self, len: usize) -> &mut [f32] {
        let len = len.min(self.len());
        &mut self.data[..len]
    }

    /// The elements of each image.
    pub fn per_image(&self) -> impl Iterator<Item = &[f32]> {
        self.data().chunks_exact((self.pixels() * self.channels).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::BufferPool;

    #[test]
    fn buffers_are_reused_and_freed() {
        let buffers = BufferPool::default();
        let free = || buffers.0.borrow().free.iter().map(Vec::len).collect::<Vec<_>>();
        drop((buffers.alloc(1, [2, 2], 3), buffers.alloc(1, [4, 4], 3)));
        assert_eq!(free(), [12, 48]);
        let map = buffers.alloc(2, [1, 2], 3);
        assert_eq!((map.data().len(), free()), (12, vec![48]), "the smallest buffer that fits is used");
        drop(buffers.alloc(1, [5, 5], 3));
        assert_eq!(free(), [75], "a buffer that is too small is freed");
        drop(map);
        assert_eq!(buffers.peak(), 12 + 75);
    }
}
