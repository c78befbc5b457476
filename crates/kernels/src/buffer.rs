//! Memory aligned to cache lines, and mutable slices that tasks share.

/// Bytes of a cache line.
pub(crate) const CACHE_LINE: usize = 64;

/// Zeroed bytes, aligned to a cache line, with the length rounded up to whole cache lines. The system zeroes a page when
/// it is first written, so threads that fill the buffer share that work.
pub(crate) struct AlignedBytes {
    bytes: Vec<u8>,
    /// Bytes before the aligned part.
    skip: usize,
    len: usize,
}

impl AlignedBytes {
    pub fn zeroed(bytes: usize) -> Self {
        let len = bytes.next_multiple_of(CACHE_LINE);
        let bytes = vec![0; len + CACHE_LINE];
        let skip = bytes.as_ptr().align_offset(CACHE_LINE).min(CACHE_LINE);
        Self { bytes, skip, len }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.skip..self.skip + self.len]
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.skip..self.skip + self.len]
    }
}

/// A mutable slice of which each task writes a range of its own.
#[derive(Clone, Copy)]
pub(crate) struct SharedSlice<T> {
    start: *mut T,
    len: usize,
}

// SAFETY: callers of `get` and `at` access disjoint ranges.
unsafe impl<T: Send> Send for SharedSlice<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedSlice<T> {}

impl<T> SharedSlice<T> {
    pub fn new(slice: &mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len() }
    }

    /// The elements `start .. start + len`.
    ///
    /// # Safety
    /// The slice passed to `new` is still borrowed, and no other task accesses these elements meanwhile.
    #[inline(always)]
    pub unsafe fn get<'a>(&self, start: usize, len: usize) -> &'a mut [T] {
        // SAFETY: `at` checks the range, and the caller guarantees that no other task accesses it.
        unsafe { std::slice::from_raw_parts_mut(self.at(start, len), len) }
    }

    /// The address of element `index`, from which `len` elements must exist.
    ///
    /// # Panics
    /// If they do not exist.
    #[inline(always)]
    pub fn at(&self, index: usize, len: usize) -> *mut T {
        assert!(index <= self.len && len <= self.len - index, "a task's range exceeds the slice");
        self.start.wrapping_add(index)
    }
}
