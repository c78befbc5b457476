//! Memory aligned to cache lines, and slices that tasks share.

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// Zeroed bytes, aligned to 64, with the length rounded up to a multiple of that. The system zeroes pages when they are
/// first touched, so several threads share that work when they fill them.
pub(crate) struct Aligned {
    bytes: Vec<u8>,
    /// Bytes before the aligned part.
    skip: usize,
    len: usize,
}

impl Aligned {
    pub fn zeroed(bytes: usize) -> Self {
        let len = bytes.next_multiple_of(LINE);
        let bytes = vec![0; len + LINE];
        let skip = bytes.as_ptr().align_offset(LINE).min(LINE);
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

/// A slice that several tasks write, each to its own part.
#[derive(Clone, Copy)]
pub(crate) struct Shards<T> {
    start: *mut T,
    len: usize,
}

// SAFETY: access is by `get` and `at`, whose callers keep their places apart.
unsafe impl<T: Send> Send for Shards<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shards<T> {}

impl<T> Shards<T> {
    pub fn new(slice: &mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len() }
    }

    /// The elements `at .. at + len`.
    ///
    /// # Safety
    /// The slice given to `new` is still borrowed, and no other task touches these places meanwhile.
    #[inline(always)]
    pub unsafe fn get<'a>(&self, at: usize, len: usize) -> &'a mut [T] {
        // SAFETY: inside the slice, as `at` checks, and not shared, as the caller says.
        unsafe { std::slice::from_raw_parts_mut(self.at(at, len), len) }
    }

    /// The address of element `at`, checked for `len` elements.
    #[inline(always)]
    pub fn at(&self, at: usize, len: usize) -> *mut T {
        assert!(at <= self.len && len <= self.len - at, "a task's places lie outside the output");
        self.start.wrapping_add(at)
    }
}
