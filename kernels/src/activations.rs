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

/// Rows of activations `[m, k]`, for several matrices.
///
/// Integers are made at the first matrix that wants them, once: each block of 32 becomes 8-bit
/// integers with an f32 scale, `max |x| / 127`. A number that is not finite makes all outputs of its
/// row not finite.
#[derive(Debug)]
pub struct Activations<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) tiles: Tiles,
    k: usize,
    quantised: OnceLock<Quantised>,
    floats: OnceLock<Vec<f32>>,
}

/// How `m` rows are cut: evenly into as few tiles as possible.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiles {
    pub m: usize,
    pub count: usize,
    pub path: Path,
}

impl Tiles {
    pub fn new(m: usize, path: Path) -> Self {
        Self { m, count: m.div_ceil(path.rows()), path }
    }

    /// First row of a tile.
    pub fn start(&self, tile: usize) -> usize {
        (tile * self.m).checked_div(self.count).unwrap_or(0)
    }

    /// First row, and number of rows.
    pub fn rows(&self, tile: usize) -> (usize, usize) {
        let start = self.start(tile);
        (start, self.start(tile + 1) - start)
    }
}

/// For a tile of r rows that starts at row s: the codes at `s * k`, `[k / 32, r, 32]`; the facts at
/// `s * k / 32 * 4`, `[k / 32, 4, r]`: scale; scale · sum; and as integers minus the sums of the first
/// and the second sixteen.
#[derive(Debug)]
pub(crate) struct Quantised {
    pub codes: Vec<i8>,
    pub facts: Vec<f32>,
}

impl<'a> Activations<'a> {
    /// `x` has `m` rows of `k` numbers.
    ///
    /// # Panics
    /// Where `x` has another length.
    pub fn new(pool: &Pool, x: &'a [f32], m: usize, k: usize) -> Self {
        assert_eq!(Some(x.len()), m.checked_mul(k), "activations are [m, k]");
        let tiles = Tiles::new(m, pool.path());
        Self { x, tiles, k, quantised: OnceLock::new(), floats: OnceLock::new() }
    }

    /// Rows.
    pub fn m(&self) -> usize {
        self.tiles.m
    }

    /// Numbers in a row.
    pub fn k(&self) -> usize {
        self.k
    }

    pub(crate) fn quantised(&self, pool: &Pool) -> &Quantised {
        self.quantised.get_or_init(|| {
            let blocks = self.tiles.m * self.k / BLOCK;
            let (mut codes, mut facts) = (vec![0i8; blocks * BLOCK], vec![0f32; blocks * 4]);
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
            // A row takes well under a microsecond.
            if self.tiles.count < 3 {
                (0..self.tiles.count).for_each(quantise);
            } else {
                pool.run(self.tiles.count, quantise);
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
        let k = self.x.len() / self.rows;
        for row in 0..self.rows {
            for block in 0..k / BLOCK {
                let x = &self.x[row * k + block * BLOCK..][..BLOCK];
                let to = &mut self.codes[(block * self.rows + row) * BLOCK..][..BLOCK];
                let facts = &mut self.facts[block * 4 * self.rows..][..4 * self.rows];
                // SAFETY: both slices hold the 32 numbers that are touched; features as `Kernel` says.
                unsafe {
                    let (low, high) = (S::load(x.as_ptr()), S::load(x.as_ptr().add(LANES)));
                    let bits = S::maximum_int(S::max_int(S::magnitude(low), S::magnitude(high)));
                    let scale = f32::from_bits(bits as u32) / 127.0;
                    // A scale so small that its inverse is infinite stands for zeros.
                    let inverse = if scale > 1e-37 { 1.0 / scale } else { 0.0 };
                    let low = S::int(S::mul(low, S::splat(inverse)));
                    let high = S::int(S::mul(high, S::splat(inverse)));
                    S::store_i8(to.as_mut_ptr(), low);
                    S::store_i8(to.as_mut_ptr().add(LANES), high);
                    let (first, second) = (S::sum_int(low), S::sum_int(high));
                    facts[row] = scale;
                    facts[self.rows + row] = scale * first.wrapping_add(second) as f32;
                    facts[2 * self.rows + row] = f32::from_bits(first.wrapping_neg() as u32);
                    facts[3 * self.rows + row] = f32::from_bits(second.wrapping_neg() as u32);
                }
            }
        }
    }
}
