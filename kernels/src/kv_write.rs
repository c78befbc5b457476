//! Writes keys and values into KV blocks, in the layout that [`crate::attend`] reads.

use half::{bf16, f16};

use crate::Pool;
use crate::attention::BLOCK_POSITIONS;
use crate::buffer::Shards;
use crate::ops::{load_up_to, quantise_row, store_up_to};
use crate::simd::{Kernel, LANES, Simd, run};

/// Fewer elements than this are written by one thread: a few microseconds.
const SINGLE_THREAD_BELOW: usize = 16 * 1024;

/// One layer's part of a KV block: keys, `[kv_heads, width, 16]`, and values, `[kv_heads, 16, width]`.
#[derive(Debug)]
pub enum KvBlockMut<'a> {
    F32(KvPair<&'a mut [f32]>),
    F16(KvPair<&'a mut [f16]>),
    /// 8-bit codes with a scale for each position and head: `[kv_heads, 16]`.
    Q8(KvPair<(&'a mut [i8], &'a mut [f32])>),
    /// In pairs, as in [`crate::KvBlocks::Bf16`].
    Bf16(KvPair<&'a mut [bf16]>),
}

#[derive(Debug)]
pub struct KvPair<T> {
    pub keys: T,
    pub values: T,
}

/// Consecutive rows that go into one block.
#[derive(Debug)]
pub struct KvWrite<'a> {
    pub cells: KvBlockMut<'a>,
    /// The first row,
    pub row: usize,
    /// its slot in the block,
    pub slot: usize,
    /// and the number of rows.
    pub count: usize,
}

/// Writes rows of `keys` and `values`, `[rows, kv_heads, width]`, as `fills` say. 8-bit rows are scaled so that the
/// largest magnitude becomes 127.
///
/// # Panics
/// If lengths do not match.
pub fn kv_write(pool: &Pool, [kv_heads, width]: [usize; 2], keys: &[f32], values: &[f32], fills: &mut [KvWrite<'_>]) {
    let row = kv_heads * width;
    for KvWrite { cells, row: first, slot, count } in &*fills {
        assert!(cells.has_size(kv_heads, width), "a block of {kv_heads} heads of {width}");
        let last = (first + count) * row;
        assert!(
            slot + count <= BLOCK_POSITIONS && last <= keys.len() && last <= values.len(),
            "rows and places for them"
        );
    }
    let rows: usize = fills.iter().map(|fill| fill.count).sum();
    let (tasks, all) = (fills.len(), Shards::new(fills));
    let work = |task: usize| {
        // SAFETY: each fill is one task's.
        let fill = unsafe { &mut all.get(task, 1)[0] };
        let rows = fill.row * row..(fill.row + fill.count) * row;
        run(pool.isa(), WriteKernel { kv_heads, width, keys: &keys[rows.clone()], values: &values[rows], fill });
    };
    if rows * row < SINGLE_THREAD_BELOW { (0..tasks).for_each(work) } else { pool.run(tasks, work) }
}

impl KvBlockMut<'_> {
    fn has_size(&self, kv_heads: usize, width: usize) -> bool {
        let (size, factors) = (kv_heads * width * BLOCK_POSITIONS, kv_heads * BLOCK_POSITIONS);
        match self {
            Self::F32(KvPair { keys, values }) => keys.len() == size && values.len() == size,
            Self::F16(KvPair { keys, values }) => keys.len() == size && values.len() == size,
            Self::Bf16(KvPair { keys, values }) => {
                width.is_multiple_of(2) && keys.len() == size && values.len() == size
            }
            Self::Q8(KvPair { keys, values }) => {
                let whole = |(cells, scales): &(&mut [i8], &mut [f32])| cells.len() == size && scales.len() == factors;
                whole(keys) && whole(values)
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
    fill: &'a mut KvWrite<'b>,
}

impl Kernel for WriteKernel<'_, '_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { kv_heads, width, keys, values, fill: KvWrite { cells, slot, count, .. } } = self;
        // Head by head, because a head's part of a block fits into the L1 cache.
        for (head, row) in (0..kv_heads).flat_map(|head| (0..*count).map(move |row| (head, row))) {
            let numbers = (row * kv_heads + head) * width..(row * kv_heads + head + 1) * width;
            let (k, v) = (&keys[numbers.clone()], &values[numbers]);
            // The head's keys, this position's values, and the index of its scale.
            let (transposed, slot) = (head * width * BLOCK_POSITIONS, *slot + row);
            let (keys, values) = (
                transposed..transposed + width * BLOCK_POSITIONS,
                transposed + slot * width..transposed + (slot + 1) * width,
            );
            let factor = head * BLOCK_POSITIONS + slot;
            // SAFETY: features as `Kernel` says.
            unsafe {
                match &mut *cells {
                    KvBlockMut::F32(cells) => {
                        scatter::<S, f32>(k, &mut cells.keys[keys], slot);
                        let to = &mut cells.values[values];
                        for at in (0..width).step_by(LANES) {
                            store_up_to::<S>(to, at, load_up_to::<S>(v, at));
                        }
                    }
                    KvBlockMut::F16(cells) => {
                        scatter::<S, f16>(k, &mut cells.keys[keys], slot);
                        for (to, v) in cells.values[values].chunks_mut(LANES).zip(v.chunks(LANES)) {
                            to.copy_from_slice(&f16::some::<S>(v)[..v.len()]);
                        }
                    }
                    KvBlockMut::Bf16(cells) => {
                        for (to, x) in cells.keys[keys].chunks_exact_mut(2 * BLOCK_POSITIONS).zip(k.chunks_exact(2)) {
                            to[2 * slot..2 * slot + 2].copy_from_slice(&[bf16::from_f32(x[0]), bf16::from_f32(x[1])]);
                        }
                        let pairs = transposed + slot / 2 * 2 * width..transposed + (slot / 2 + 1) * 2 * width;
                        for (to, x) in cells.values[pairs].chunks_exact_mut(2).zip(v) {
                            to[slot % 2] = bf16::from_f32(*x);
                        }
                    }
                    KvBlockMut::Q8(cells) => {
                        let (bytes, factors) = &mut cells.keys;
                        // The values' slot serves as a buffer; it has the same length.
                        let codes = &mut cells.values.0[values];
                        factors[factor] = quantise_row(k, codes);
                        bytes[keys]
                            .iter_mut()
                            .skip(slot)
                            .step_by(BLOCK_POSITIONS)
                            .zip(&*codes)
                            .for_each(|(to, code)| *to = *code);
                        cells.values.1[factor] = quantise_row(v, codes);
                    }
                }
            }
        }
    }
}

/// Scatters a row across positions.
///
/// # Safety
/// As [`Simd`] says.
#[inline(always)]
unsafe fn scatter<S: Simd, T: Cell>(row: &[f32], to: &mut [T], slot: usize) {
    for (to, row) in to.chunks_mut(LANES * BLOCK_POSITIONS).zip(row.chunks(LANES)) {
        // SAFETY: features as the caller says.
        let numbers = unsafe { T::some::<S>(row) };
        to.chunks_exact_mut(BLOCK_POSITIONS).zip(numbers).for_each(|(to, number)| to[slot] = number);
    }
}

/// An element of the KV cache.
trait Cell: Copy {
    /// Converts up to sixteen values.
    ///
    /// # Safety
    /// As [`Simd`] says.
    unsafe fn some<S: Simd>(x: &[f32]) -> [Self; LANES];
}

impl Cell for f32 {
    #[inline(always)]
    unsafe fn some<S: Simd>(x: &[f32]) -> [Self; LANES] {
        let mut out = [0.0; LANES];
        out[..x.len()].copy_from_slice(x);
        out
    }
}

impl Cell for f16 {
    #[inline(always)]
    unsafe fn some<S: Simd>(x: &[f32]) -> [Self; LANES] {
        let mut out = [f16::ZERO; LANES];
        // SAFETY: an f16 is its bits, and there are sixteen.
        unsafe { S::store_f16(out.as_mut_ptr().cast(), load_up_to::<S>(x, 0)) };
        out
    }
}
