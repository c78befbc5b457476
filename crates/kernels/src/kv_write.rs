//! Writes keys and values into KV blocks, in the layout that [`crate::attend`] reads.

use half::{bf16, f16};

use crate::Pool;
use crate::attention::BLOCK_POSITIONS;
use crate::buffer::SharedSlice;
use crate::rows::{load_up_to, store_up_to};
use crate::simd::{Kernel, LANES, Simd, run};

/// Fewer elements than this are written by one thread, in a few microseconds.
const MIN_PARALLEL_ELEMENTS: usize = 16 * 1024;

/// One layer of a KV block: keys, `[kv_heads, width, 16]`, and values, `[kv_heads, 16, width]`.
#[derive(Debug)]
pub enum KvBlockMut<'a> {
    F32(KvPair<&'a mut [f32]>),
    F16(KvPair<&'a mut [f16]>),
    /// 8-bit codes with a scale for each position and head: `[kv_heads, 16]`.
    Q8(KvPair<(&'a mut [i8], &'a mut [f32])>),
    /// Stored in pairs, as in [`crate::KvBlocks::Bf16`].
    Bf16(KvPair<&'a mut [bf16]>),
}

/// The keys and the values of a block.
#[derive(Debug)]
pub struct KvPair<T> {
    pub keys: T,
    pub values: T,
}

/// A write of consecutive rows to one block.
#[derive(Debug)]
pub struct KvWrite<'a> {
    pub block: KvBlockMut<'a>,
    /// The first row.
    pub row: usize,
    /// Slot of the first row in the block.
    pub slot: usize,
    /// Number of rows.
    pub count: usize,
}

/// Writes rows of `keys` and `values`, `[rows, kv_heads, width]`, to blocks. 8-bit rows are scaled so that the largest
/// magnitude becomes 127.
///
/// # Panics
/// If lengths do not match.
pub fn kv_write(pool: &Pool, [kv_heads, width]: [usize; 2], keys: &[f32], values: &[f32], writes: &mut [KvWrite<'_>]) {
    let row_len = kv_heads * width;
    for KvWrite { block, row, slot, count } in &*writes {
        assert!(block.has_size(kv_heads, width), "a block does not have {kv_heads} heads of width {width}");
        let end = (row + count) * row_len;
        assert!(
            slot + count <= BLOCK_POSITIONS && end <= keys.len() && end <= values.len(),
            "a write exceeds the block or the rows"
        );
    }
    let rows: usize = writes.iter().map(|write| write.count).sum();
    let (tasks, shared) = (writes.len(), SharedSlice::new(writes));
    let work = |task: usize| {
        // SAFETY: no other task accesses this write.
        let write = unsafe { &mut shared.get(task, 1)[0] };
        let rows = write.row * row_len..(write.row + write.count) * row_len;
        run(pool.isa(), WriteKernel { kv_heads, width, keys: &keys[rows.clone()], values: &values[rows], write });
    };
    if rows * row_len < MIN_PARALLEL_ELEMENTS { (0..tasks).for_each(work) } else { pool.run(tasks, work) }
}

impl KvBlockMut<'_> {
    fn has_size(&self, kv_heads: usize, width: usize) -> bool {
        let (size, scale_count) = (kv_heads * width * BLOCK_POSITIONS, kv_heads * BLOCK_POSITIONS);
        match self {
            Self::F32(KvPair { keys, values }) => keys.len() == size && values.len() == size,
            Self::F16(KvPair { keys, values }) => keys.len() == size && values.len() == size,
            Self::Bf16(KvPair { keys, values }) => {
                width.is_multiple_of(2) && keys.len() == size && values.len() == size
            }
            Self::Q8(KvPair { keys, values }) => {
                let has_size =
                    |(codes, scales): &(&mut [i8], &mut [f32])| codes.len() == size && scales.len() == scale_count;
                has_size(keys) && has_size(values)
            }
        }
    }
}

struct WriteKernel<'a, 'b> {
    kv_heads: usize,
    width: usize,
    /// `[count, kv_heads, width]`
    keys: &'a [f32],
    values: &'a [f32],
    write: &'a mut KvWrite<'b>,
}

impl Kernel for WriteKernel<'_, '_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { kv_heads, width, keys, values, write: KvWrite { block, slot, count, .. } } = self;
        // Heads are the outer loop, because one head of a block fits into the L1 cache.
        for (head, row) in (0..kv_heads).flat_map(|head| (0..*count).map(move |row| (head, row))) {
            let row_range = (row * kv_heads + head) * width..(row * kv_heads + head + 1) * width;
            let (k, v) = (&keys[row_range.clone()], &values[row_range]);
            let (head_start, slot) = (head * width * BLOCK_POSITIONS, *slot + row);
            // The ranges of the head's keys and of this position's values, and the index of the position's scale.
            let keys = head_start..head_start + width * BLOCK_POSITIONS;
            let values = head_start + slot * width..head_start + (slot + 1) * width;
            let scale = head * BLOCK_POSITIONS + slot;
            // SAFETY: features as `Kernel` says.
            unsafe {
                match &mut *block {
                    KvBlockMut::F32(block) => {
                        scatter::<S, f32>(k, &mut block.keys[keys], slot);
                        let out = &mut block.values[values];
                        for index in (0..width).step_by(LANES) {
                            store_up_to::<S>(out, index, load_up_to::<S>(v, index));
                        }
                    }
                    KvBlockMut::F16(block) => {
                        scatter::<S, f16>(k, &mut block.keys[keys], slot);
                        for (out, v) in block.values[values].chunks_mut(LANES).zip(v.chunks(LANES)) {
                            out.copy_from_slice(&f16::convert::<S>(v)[..v.len()]);
                        }
                    }
                    KvBlockMut::Bf16(block) => {
                        for (out, x) in block.keys[keys].chunks_exact_mut(2 * BLOCK_POSITIONS).zip(k.chunks_exact(2)) {
                            out[2 * slot..2 * slot + 2].copy_from_slice(&[bf16::from_f32(x[0]), bf16::from_f32(x[1])]);
                        }
                        let pairs = head_start + slot / 2 * 2 * width..head_start + (slot / 2 + 1) * 2 * width;
                        for (out, x) in block.values[pairs].chunks_exact_mut(2).zip(v) {
                            out[slot % 2] = bf16::from_f32(*x);
                        }
                    }
                    KvBlockMut::Q8(block) => {
                        let (key_codes, key_scales) = &mut block.keys;
                        // The slot of the values serves as a buffer for the key; it has the same length.
                        let codes = &mut block.values.0[values];
                        key_scales[scale] = quantise_row(k, codes);
                        key_codes[keys]
                            .iter_mut()
                            .skip(slot)
                            .step_by(BLOCK_POSITIONS)
                            .zip(&*codes)
                            .for_each(|(out, code)| *out = *code);
                        block.values.1[scale] = quantise_row(v, codes);
                    }
                }
            }
        }
    }
}

/// Writes a row to one position of transposed keys.
///
/// # Safety
/// As [`Simd`] says.
#[inline(always)]
unsafe fn scatter<S: Simd, T: KvElement>(row: &[f32], keys: &mut [T], slot: usize) {
    for (keys, row) in keys.chunks_mut(LANES * BLOCK_POSITIONS).zip(row.chunks(LANES)) {
        // SAFETY: features as the caller says.
        let elements = unsafe { T::convert::<S>(row) };
        keys.chunks_exact_mut(BLOCK_POSITIONS).zip(elements).for_each(|(positions, element)| positions[slot] = element);
    }
}

/// An element of the KV cache.
trait KvElement: Copy {
    /// Converts up to sixteen values.
    ///
    /// # Safety
    /// As [`Simd`] says.
    unsafe fn convert<S: Simd>(x: &[f32]) -> [Self; LANES];
}

impl KvElement for f32 {
    #[inline(always)]
    unsafe fn convert<S: Simd>(x: &[f32]) -> [Self; LANES] {
        let mut out = [0.0; LANES];
        out[..x.len()].copy_from_slice(x);
        out
    }
}

impl KvElement for f16 {
    #[inline(always)]
    unsafe fn convert<S: Simd>(x: &[f32]) -> [Self; LANES] {
        let mut out = [f16::ZERO; LANES];
        // SAFETY: an f16 has the layout of its bits, and the array has sixteen.
        unsafe { S::store_f16(out.as_mut_ptr().cast(), load_up_to::<S>(x, 0)) };
        out
    }
}

/// Quantises a row to bytes as [`crate::KvBlocks::Q8`] stores them, and returns the scale, `max |x| / 127`.
///
/// # Panics
/// If lengths differ.
pub fn quantise_q8(x: &[f32], out: &mut [i8]) -> f32 {
    assert_eq!(x.len(), out.len(), "x and out have different lengths");
    quantise_row(x, out)
}

/// The implementation of [`quantise_q8`], which kernels inline.
#[inline(always)]
fn quantise_row(x: &[f32], out: &mut [i8]) -> f32 {
    let scale = x.iter().fold(0f32, |max, x| max.max(x.abs())) / 127.0;
    let inverse = if scale > 1e-37 { 1.0 / scale } else { 0.0 };
    for (out, x) in out.iter_mut().zip(x) {
        *out = (x * inverse).round_ties_even() as i8;
    }
    scale
}
