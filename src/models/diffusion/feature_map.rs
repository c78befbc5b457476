//! Activations of a network, in buffers that are reused.

use std::cell::RefCell;
use std::rc::Rc;

/// A batch of images, channels last: `[images, height, width, channels]`. A text's tokens are an image one pixel wide.
#[derive(Debug)]
pub struct FeatureMap {
    /// May be longer than the map.
    data: Vec<f32>,
    pub images: usize,
    /// Height and width.
    pub size: [usize; 2],
    pub channels: usize,
    buffers: BufferPool,
}

/// Free buffers. Fresh pages would cost more than some of the operations.
#[derive(Clone, Debug, Default)]
pub struct BufferPool(Rc<RefCell<Buffers>>);

#[derive(Debug, Default)]
struct Buffers {
    free: Vec<Vec<f32>>,
    /// Elements in all buffers, used or free, and their peak.
    all: usize,
    peak: usize,
}

impl BufferPool {
    /// A map of unspecified content in the smallest free buffer that holds it. If none does, the largest free buffer is
    /// dropped, because it belongs to a smaller image size.
    pub fn alloc(&self, images: usize, size: [usize; 2], channels: usize) -> FeatureMap {
        let len = images * size[0] * size[1] * channels;
        FeatureMap { data: self.take(len), images, size, channels, buffers: self.clone() }
    }

    fn take(&self, len: usize) -> Vec<f32> {
        let mut held = self.0.borrow_mut();
        let free = held.free.iter().enumerate();
        let fits = free.clone().filter(|(_, one)| one.len() >= len).min_by_key(|(_, one)| one.len());
        if let Some(place) = fits.map(|(place, _)| place) {
            return held.free.swap_remove(place);
        }
        let largest = free.max_by_key(|(_, one)| one.len()).map(|(place, _)| place);
        if let Some(place) = largest {
            held.all -= held.free.swap_remove(place).len();
        }
        held.all += len;
        held.peak = held.peak.max(held.all);
        vec![0.; len]
    }

    /// Peak number of elements held at once.
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

    /// Pixels of an image.
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

    /// The first `len` elements, or all of them.
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
    fn buffers_are_reused_and_do_not_pile_up() {
        let buffers = BufferPool::default();
        let held = || buffers.0.borrow().free.iter().map(Vec::len).collect::<Vec<_>>();
        drop((buffers.alloc(1, [2, 2], 3), buffers.alloc(1, [4, 4], 3)));
        assert_eq!(held(), [12, 48]);
        let map = buffers.alloc(2, [1, 2], 3);
        assert_eq!((map.data().len(), held()), (12, vec![48]), "the smallest that fits");
        drop(buffers.alloc(1, [5, 5], 3));
        assert_eq!(held(), [75], "what is too small gives way");
        drop(map);
        assert_eq!(buffers.peak(), 12 + 75);
    }
}
