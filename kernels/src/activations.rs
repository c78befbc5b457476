//! The left side of a product: rows of floats, and what the kernels make of them.
//!
//! Rows are cut into tiles of as many rows as one kernel call serves. In a tile, block after block of
//! 32 numbers lies for all its rows together, so that a kernel walks one address upwards. A row's
//! numbers depend on that row alone, wherever it lies.

use std::sync::OnceLock;

use crate::Pool;
use crate::buffer::Shards;
use crate::simd::{Kernel, LANES, Path, Simd, run};

/// Numbers that share a scale.
pub(crate) const BLOCK: usize = 32;

/// Fewer blocks than this are made by one thread: they take about two microseconds.
const FEW: usize = 500;

/// Rows of activations `[m, k]`, for several matrices, whose products run on the same pool.
///
/// Integers are made at the first matrix that wants them, once: each block of 32 becomes 8-bit
/// integers with an f32 scale, `max |x| / 127`. A number that is not finite makes all outputs of its
/// row not finite.
#[derive(Debug)]
pub struct Activations<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) tiles: Tiles,
    k: usize,
    pub(crate) pool: &'a Pool,
    quantised: OnceLock<Quantised>,
    floats: OnceLock<Vec<f32>>,
}

/// How `m` rows are cut: evenly into as few tiles as possible.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiles {
    pub m: usize,
    pub count: usize,
    pub path: Path,
    /// Rows of every tile; the first `longer` have one more.
    each: usize,
    longer: usize,
}

impl Tiles {
    pub fn new(m: usize, path: Path) -> Self {
        let count = m.div_ceil(path.rows());
        let (each, longer) = (m.checked_div(count).unwrap_or(0), m.checked_rem(count).unwrap_or(0));
        Self { m, count, path, each, longer }
    }

    /// First row of a tile; behind the last tile, the number of rows.
    #[inline(always)]
    pub fn start(&self, tile: usize) -> usize {
        tile * self.each + tile.min(self.longer)
    }

    /// First row, and number of rows.
    #[inline(always)]
    pub fn rows(&self, tile: usize) -> (usize, usize) {
        (self.start(tile), self.each + usize::from(tile < self.longer))
    }

    /// Rows of the longest tile.
    pub fn most(&self) -> usize {
        self.each + usize::from(self.longer > 0)
    }
}

/// For a tile of r rows that starts at row s: the codes at `s * k`, `[k / 32, r, 32]`; the facts at
/// `s * k / 32 * 4`, `[k / 32, 4, r]`: scale; scale · sum; and as integers minus the sums of the first
/// and the second sixteen.
#[derive(Debug, Default)]
pub(crate) struct Quantised {
    pub codes: Vec<i8>,
    pub facts: Vec<f32>,
}

impl<'a> Activations<'a> {
    /// `x` has `m` rows of `k` numbers.
    ///
    /// # Panics
    /// Where `x` has another length.
    pub fn new(pool: &'a Pool, x: &'a [f32], m: usize, k: usize) -> Self {
        assert_eq!(Some(x.len()), m.checked_mul(k), "activations are [m, k]");
        let tiles = Tiles::new(m, pool.path());
        Self { x, tiles, k, pool, quantised: OnceLock::new(), floats: OnceLock::new() }
    }

    /// Rows.
    pub fn m(&self) -> usize {
        self.tiles.m
    }

    /// Numbers in a row.
    pub fn k(&self) -> usize {
        self.k
    }

    pub(crate) fn quantised(&self) -> &Quantised {
        self.quantised.get_or_init(|| {
            let blocks = self.tiles.m * self.k / BLOCK;
            let Quantised { mut codes, mut facts } = self.pool.take_spare();
            codes.resize(blocks * BLOCK, 0);
            facts.resize(blocks * 4, 0.0);
            let (to, about) = (Shards::new(&mut codes), Shards::new(&mut facts));
            let quantise = |tile: usize| {
                let (start, rows) = self.tiles.rows(tile);
                let x = &self.x[start * self.k..(start + rows) * self.k];
                // SAFETY: a tile's places are its own.
                let (codes, facts) = unsafe {
                    (to.get(start * self.k, x.len()), about.get(start * self.k / BLOCK * 4, x.len() / BLOCK * 4))
                };
                run(self.tiles.path, Quantise { x, rows, codes, facts });
            };
            if blocks < FEW {
                (0..self.tiles.count).for_each(quantise);
            } else {
                self.pool.run(self.tiles.count, quantise);
            }
            Quantised { codes, facts }
        })
    }

    /// A tile of r rows from row s: at `s * k`, `[k, r]`.
    pub(crate) fn floats(&self) -> &[f32] {
        self.floats.get_or_init(|| {
            let mut out = vec![0f32; self.x.len()];
            for tile in 0..self.tiles.count {
                let (start, rows) = self.tiles.rows(tile);
                let range = start * self.k..(start + rows) * self.k;
                let to = &mut out[range.clone()];
                for (row, x) in self.x[range].chunks_exact(self.k.max(1)).enumerate() {
                    for (to, x) in to.chunks_exact_mut(rows).zip(x) {
                        to[row] = *x;
                    }
                }
            }
            out
        })
    }
}

impl Drop for Activations<'_> {
    fn drop(&mut self) {
        if let Some(quantised) = self.quantised.take() {
            self.pool.give_spare(quantised);
        }
    }
}

struct Quantise<'a> {
    x: &'a [f32],
    rows: usize,
    codes: &'a mut [i8],
    facts: &'a mut [f32],
}

impl Kernel for Quantise<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { x, rows, codes, facts } = self;
        let blocks = x.len() / rows / BLOCK;
        for row in 0..rows {
            for first in (0..blocks).step_by(LANES) {
                let count = LANES.min(blocks - first);
                let x = &x[(row * blocks + first) * BLOCK..][..count * BLOCK];
                let codes = &mut codes[first * rows * BLOCK..][..count * rows * BLOCK];
                let facts = &mut facts[first * rows * 4..][..count * rows * 4];
                let (mut scales, mut inverses) = ([0f32; LANES], [0f32; LANES]);
                for (scale, x) in scales.iter_mut().zip(x.chunks_exact(BLOCK)) {
                    // SAFETY: the block holds the 32 numbers that are read; features as `Kernel` says.
                    unsafe {
                        let (low, high) = (S::load(x.as_ptr()), S::load(x.as_ptr().add(LANES)));
                        let bits = S::maximum_int(S::max_int(S::magnitude(low), S::magnitude(high)));
                        *scale = f32::from_bits(bits as u32);
                    }
                }
                // SAFETY: both have sixteen numbers.
                unsafe {
                    let scale = S::div(S::load(scales.as_ptr()), S::splat(127.0));
                    S::store(scales.as_mut_ptr(), scale);
                    // A scale so small that its inverse is infinite stands for zeros.
                    let inverse = S::keep_above(S::div(S::splat(1.0), scale), scale, 1e-37);
                    S::store(inverses.as_mut_ptr(), inverse);
                }
                for block in 0..count {
                    let x = &x[block * BLOCK..][..BLOCK];
                    let to = &mut codes[(block * rows + row) * BLOCK..][..BLOCK];
                    let facts = &mut facts[block * rows * 4..][..rows * 4];
                    // SAFETY: both slices hold the 32 numbers that are touched.
                    let (first, second) = unsafe {
                        let inverse = S::splat(inverses[block]);
                        let low = S::int(S::mul(S::load(x.as_ptr()), inverse));
                        let high = S::int(S::mul(S::load(x.as_ptr().add(LANES)), inverse));
                        S::store_codes(to.as_mut_ptr(), low, high)
                    };
                    facts[row] = scales[block];
                    facts[rows + row] = scales[block] * first.wrapping_add(second) as f32;
                    facts[2 * rows + row] = f32::from_bits(first.wrapping_neg() as u32);
                    facts[3 * rows + row] = f32::from_bits(second.wrapping_neg() as u32);
                }
            }
        }
    }
}
