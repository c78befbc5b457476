//! A weight matrix, packed, and its products.

use std::fmt;

use crate::activations::BLOCK;
use crate::buffer::{Aligned, Shards};
use crate::gemm::{Block, Product};
use crate::kind::Kind;
use crate::pack::{Layout, pack_group, unpack_row};
use crate::simd::{LANES, run};
use crate::{Activations, Error, Pool};

/// Bytes of activations that one pass keeps in a core's own cache.
const CACHED: usize = 384 * 1024;
/// Work of a task, in billionths of a second by a rough guess.
const TASK: usize = 4_000;

/// Weights `[n, k]`: `n` outputs for `k` inputs.
pub struct Linear {
    kind: Kind,
    n: usize,
    k: usize,
    group_bytes: usize,
    groups: Aligned,
}

impl fmt::Debug for Linear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Linear({:?} [{}, {}])", self.kind, self.n, self.k)
    }
}

impl Linear {
    /// Packs a tensor of a GGUF file: `n` rows of `k` weights, `bytes` as they lie in the file.
    ///
    /// # Errors
    /// Where a dimension is zero, `k` is no whole number of blocks, or `bytes` has another length.
    pub fn from_gguf(kind: Kind, n: usize, k: usize, bytes: &[u8]) -> Result<Self, Error> {
        if n == 0 || k == 0 || !k.is_multiple_of(kind.block()) {
            return Err(Error::Shape { kind, n, k });
        }
        let row_bytes = (k / kind.block()).checked_mul(kind.block_bytes()).ok_or(Error::Shape { kind, n, k })?;
        let expected = row_bytes.checked_mul(n).ok_or(Error::Shape { kind, n, k })?;
        if bytes.len() != expected {
            return Err(Error::Length { expected, found: bytes.len() });
        }
        let group_bytes = (k / kind.block()) * Layout::of(kind).span_bytes();
        let mut groups = Aligned::zeroed(Self::packed_bytes(kind, n, k));
        for (rows, group) in bytes.chunks(row_bytes * LANES).zip(groups.bytes_mut().chunks_exact_mut(group_bytes)) {
            pack_group(kind, rows, row_bytes, group);
        }
        Ok(Self { kind, n, k, group_bytes, groups })
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Outputs.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Inputs.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Bytes that `n` rows of `k` weights take when they are packed; `k` is a whole number of blocks.
    pub fn packed_bytes(kind: Kind, n: usize, k: usize) -> usize {
        (k / kind.block()) * Layout::of(kind).span_bytes() * n.div_ceil(LANES)
    }

    /// Memory that the weights take.
    pub fn bytes(&self) -> usize {
        self.groups.len()
    }

    /// The weights of output `index`, exactly as GGML dequantises them.
    ///
    /// # Panics
    /// Where there is no such row or `out` is not `k` long.
    pub fn row(&self, index: usize, out: &mut [f32]) {
        assert!(index < self.n && out.len() == self.k, "row {index} of {self:?} into {} numbers", out.len());
        let group = &self.groups.bytes()[index / LANES * self.group_bytes..][..self.group_bytes];
        unpack_row(self.kind, group, index % LANES, out);
    }

    /// `out = x · weightsᵀ` for `x` `[m, k]` and `out` `[m, n]`.
    ///
    /// # Panics
    /// Where a length is another.
    pub fn forward(&self, pool: &Pool, x: &[f32], m: usize, out: &mut [f32]) {
        self.apply(pool, &Activations::new(pool, x, m, self.k), out);
    }

    /// The same for activations that several matrices share.
    ///
    /// # Panics
    /// Where a length is another.
    pub fn apply(&self, pool: &Pool, x: &Activations<'_>, out: &mut [f32]) {
        apply_all(pool, x, &mut [(self, out)]);
    }
}

/// Several matrices over the same activations in one parallel section: each output is `[m, n]` of its
/// matrix.
///
/// # Panics
/// Where a length is another.
pub fn apply_all(pool: &Pool, x: &Activations<'_>, products: &mut [(&Linear, &mut [f32])]) {
    let mut parts = Vec::with_capacity(products.len());
    let mut tasks = 0;
    for (linear, out) in products.iter_mut() {
        assert_eq!(linear.k, x.k(), "{linear:?} takes other activations");
        assert_eq!(Some(out.len()), x.m().checked_mul(linear.n), "the outputs of {linear:?} are [m, n]");
        let part = Part::new(pool, linear, x, out);
        tasks += part.tasks();
        parts.push(part);
    }
    pool.run(tasks, |mut task| {
        for part in &parts {
            if task < part.tasks() {
                return part.run(task);
            }
            task -= part.tasks();
        }
    });
}

/// One matrix's share of a section: a task is a run of groups for a run of tiles.
struct Part<'a> {
    linear: &'a Linear,
    x: &'a Activations<'a>,
    codes: *const u8,
    facts: *const f32,
    out: Shards<f32>,
    group_tasks: usize,
    groups_each: usize,
    tile_tasks: usize,
    tiles_each: usize,
}

// SAFETY: the pointers are to activations borrowed for 'a and only read.
unsafe impl Sync for Part<'_> {}

impl<'a> Part<'a> {
    fn new(pool: &Pool, linear: &'a Linear, x: &'a Activations<'a>, out: &mut [f32]) -> Self {
        let tiles = x.tiles;
        let (codes, facts, row_bytes) = if linear.kind.is_quantised() {
            let x = x.quantised(pool);
            (x.codes.as_ptr().cast(), x.facts.as_ptr(), linear.k * 3 / 2)
        } else {
            (x.floats().as_ptr().cast(), std::ptr::null(), linear.k * 4)
        };
        let rows_each = tiles.m.div_ceil(tiles.count.max(1));
        let tiles_each = (CACHED / (row_bytes * rows_each.max(1))).clamp(1, tiles.count.max(1));
        let tile_tasks = tiles.count.div_ceil(tiles_each);
        let tiles_each = tiles.count.div_ceil(tile_tasks.max(1));
        let groups = linear.n.div_ceil(LANES);
        // 12 bytes from memory, or 200 multiplications, in a billionth of a second.
        let cost = (linear.group_bytes / 12).max(linear.k * LANES * tiles_each * rows_each / 200);
        let groups_each = (TASK / cost.max(1)).clamp(1, groups.div_ceil(pool.threads() * 2).max(1));
        let group_tasks = groups.div_ceil(groups_each);
        Self { linear, x, codes, facts, out: Shards::new(out), group_tasks, groups_each, tile_tasks, tiles_each }
    }

    fn tasks(&self) -> usize {
        self.group_tasks * self.tile_tasks
    }

    fn run(&self, task: usize) {
        let Linear { kind, n, k, group_bytes, .. } = *self.linear;
        let (tile_task, group_task) = (task / self.group_tasks, task % self.group_tasks);
        let tiles = self.x.tiles;
        let (steps, item) = if kind.is_quantised() { (k / BLOCK, 1) } else { (k, 4) };
        for group in (group_task * self.groups_each..n.div_ceil(LANES)).take(self.groups_each) {
            let weights = &self.linear.groups.bytes()[group * group_bytes..][..group_bytes];
            let columns = (n - group * LANES).min(LANES);
            for tile in (tile_task * self.tiles_each..tiles.count).take(self.tiles_each) {
                let (start, rows) = tiles.rows(tile);
                // Other tasks have other groups or tiles: what this one writes is its own.
                let out = self.out.at(start * n + group * LANES, (rows - 1) * n + columns);
                // SAFETY: the tile's numbers begin there (see `Quantised`).
                let (x, facts) = unsafe {
                    let facts = if self.facts.is_null() { self.facts } else { self.facts.add(start * steps * 4) };
                    (self.codes.add(start * k * item), facts)
                };
                let fetch = tile == tile_task * self.tiles_each;
                let block = Block { group: weights.as_ptr(), steps, x, facts, rows, out, stride: n, columns, fetch };
                run(tiles.path, Product { kind, block });
            }
        }
    }
}
