//! Reusable buffers for tensors.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The elements of a tensor. The buffer returns to its pool when it is dropped.
#[derive(Debug)]
pub struct Buffer {
    /// May be longer than the tensor.
    pub(super) elements: Vec<f32>,
    pool: BufferPool,
}

/// Buffers that are kept for reuse, because new pages cost more than some of the work on them.
#[derive(Clone, Debug, Default)]
pub(super) struct BufferPool(Arc<Mutex<Buffers>>);

#[derive(Debug, Default)]
struct Buffers {
    free: Vec<Vec<f32>>,
    /// Elements in all buffers, used or free.
    total: usize,
    /// The maximum of `total`.
    peak: usize,
}

impl BufferPool {
    fn lock(&self) -> MutexGuard<'_, Buffers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer of at least `len` elements of undefined content: the smallest free one that is large enough. If there is
    /// none, allocates a buffer and frees the largest free one, which is from an operation on a smaller tensor.
    pub fn take(&self, len: usize) -> Buffer {
        let mut buffers = self.lock();
        let free = buffers.free.iter().enumerate();
        let fitting = free.clone().filter(|(_, buffer)| buffer.len() >= len).min_by_key(|(_, buffer)| buffer.len());
        if let Some(index) = fitting.map(|(index, _)| index) {
            return Buffer { elements: buffers.free.swap_remove(index), pool: self.clone() };
        }
        let largest = free.max_by_key(|(_, buffer)| buffer.len()).map(|(index, _)| index);
        let freed = largest.map(|index| buffers.free.swap_remove(index));
        buffers.total = buffers.total - freed.as_ref().map_or(0, Vec::len) + len;
        buffers.peak = buffers.peak.max(buffers.total);
        drop(buffers);
        drop(freed);
        Buffer { elements: vec![0.; len], pool: self.clone() }
    }

    /// Adds a buffer that [`Buffer::into_vec`] has taken out.
    pub fn recycle(&self, elements: Vec<f32>) {
        let mut buffers = self.lock();
        buffers.total += elements.len();
        buffers.peak = buffers.peak.max(buffers.total);
        buffers.free.push(elements);
    }

    /// The peak number of elements in all buffers.
    pub fn peak(&self) -> usize {
        self.lock().peak
    }
}

impl Buffer {
    /// The elements, which leave the pool.
    pub fn into_vec(mut self) -> Vec<f32> {
        let elements = std::mem::take(&mut self.elements);
        self.pool.lock().total -= elements.len();
        elements
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let elements = std::mem::take(&mut self.elements);
        if !elements.is_empty() {
            self.pool.lock().free.push(elements);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::BufferPool;

    #[test]
    fn buffers_are_reused_and_freed() {
        let pool = BufferPool::default();
        let free = || pool.lock().free.iter().map(Vec::len).collect::<Vec<_>>();
        drop((pool.take(12), pool.take(48)));
        assert_eq!(free(), [12, 48]);
        let buffer = pool.take(10);
        assert_eq!((buffer.elements.len(), free()), (12, vec![48]), "the smallest buffer that fits is used");
        drop(pool.take(75));
        assert_eq!(free(), [75], "a buffer that is too small is freed");
        drop(buffer);
        assert_eq!(pool.peak(), 12 + 75);
        let elements = pool.take(75).into_vec();
        assert_eq!((free(), pool.lock().total), (vec![12], 12), "it has left the pool");
        pool.recycle(elements);
        assert_eq!((free(), pool.peak()), (vec![12, 75], 12 + 75));
    }
}
