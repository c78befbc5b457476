//! Bytes that start at a cache line.

/// A zeroed run of bytes, aligned to 64, its length rounded up to a multiple of that.
pub(crate) struct Aligned {
    lines: Vec<Line>,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl Aligned {
    pub fn zeroed(bytes: usize) -> Self {
        Self { lines: vec![Line([0; 64]); bytes.div_ceil(64)] }
    }

    pub fn len(&self) -> usize {
        self.lines.len() * 64
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: a line is 64 bytes without padding, and lines lie side by side.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len()) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; every pattern of bytes is a line.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len()) }
    }
}

/// A slice that several tasks write, each its own places.
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

    /// The places `at .. at + len`.
    ///
    /// # Safety
    /// The slice given to `new` is still borrowed, and no other task touches these places meanwhile.
    #[inline(always)]
    pub unsafe fn get<'a>(&self, at: usize, len: usize) -> &'a mut [T] {
        // SAFETY: inside the slice, as `at` checks, and not shared, as the caller says.
        unsafe { std::slice::from_raw_parts_mut(self.at(at, len), len) }
    }

    /// The address of place `at`, from where on there are `len` places.
    #[inline(always)]
    pub fn at(&self, at: usize, len: usize) -> *mut T {
        assert!(at <= self.len && len <= self.len - at, "a task's places lie outside the output");
        self.start.wrapping_add(at)
    }
}
