//! A packed weight matrix and its products.

use std::fmt;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use smallvec::SmallVec;

use crate::buffer::{AlignedBytes, SharedSlice};
use crate::dtype::DType;
use crate::gemm::activations::{BLOCK, RowLayout, Tiles};
use crate::gemm::{GemmTask, multiply, uses_bf16_pairs};
use crate::low_rank::PackedGroups;
use crate::pack::{FLOATS, Layout, pack_group, unpack_row};
use crate::simd::LANES;
use crate::{Activations, Error, Pool};

/// Bytes of activations that one pass keeps in a core's own cache.
const CACHE_BYTES: usize = 384 * 1024;
/// Minimum work of a task in nanoseconds, estimated with [`BYTES_PER_NS`] and [`MACS_PER_NS`].
const MIN_TASK_NS: usize = 2_000;
/// Bytes that are read from memory in a nanosecond.
const BYTES_PER_NS: usize = 12;
/// Multiply-adds in a nanosecond.
const MACS_PER_NS: usize = 200;
/// Groups of float weights larger than this are processed in k blocks.
const K_BLOCK_THRESHOLD_BYTES: usize = 64 * 1024;
/// Bytes of a k block of a group: two of them fit into the L1 cache.
const K_BLOCK_BYTES: usize = 16 * 1024;
/// Bytes of partial sums that stay in the cache between k blocks.
const PARTIAL_SUM_BYTES: usize = 192 * 1024;

/// Bytes of a file that a thread reads and packs at once, unless sixteen rows are larger.
const PACK_BYTES: usize = 256 * 1024;

/// Weights `[n, k]`: `n` outputs for `k` inputs.
pub struct Linear {
    dtype: DType,
    n: usize,
    k: usize,
    /// Whether each row is in two rows of the group: [`Linear::pack_low_rank`].
    paired: bool,
    group_bytes: usize,
    groups: AlignedBytes,
    /// `[n]`, padded with zeros to whole groups.
    bias: Option<Vec<f32>>,
}

impl fmt::Debug for Linear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Linear({:?} [{}, {}])", self.dtype, self.n, self.k)
    }
}

impl Linear {
    /// Packs `n` rows of `k` weights.
    ///
    /// The pool's threads call `read` with the index of a row and a buffer, which it fills with that row and the following
    /// ones in GGUF's format. The matrix is therefore never in memory twice.
    ///
    /// # Errors
    /// If a dimension is zero, `k` is not a whole number of blocks, or `read` fails.
    pub fn pack<E: From<Error> + Send>(
        pool: &Pool,
        dtype: DType,
        n: usize,
        k: usize,
        read: impl Fn(usize, &mut [u8]) -> Result<(), E> + Sync,
    ) -> Result<Self, E> {
        let row_bytes = row_bytes(dtype, n, k)?;
        let group_bytes = Layout::of(dtype).group_bytes(k);
        let mut groups = AlignedBytes::zeroed(Self::packed_bytes(dtype, n, k));
        let chunk_rows = pack_rows(row_bytes);
        let (shared, failure) = (SharedSlice::new(groups.bytes_mut()), Mutex::new(None));
        pool.run(n.div_ceil(chunk_rows), |chunk| {
            let first = chunk * chunk_rows;
            let mut bytes = vec![0; chunk_rows.min(n - first) * row_bytes];
            if let Err(error) = read(first, &mut bytes) {
                failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                return;
            }
            for (group, rows) in (first / LANES..).zip(bytes.chunks(row_bytes * LANES)) {
                // SAFETY: each group belongs to one chunk.
                let group = unsafe { shared.get(group * group_bytes, group_bytes) };
                pack_group(dtype, rows, row_bytes, group);
            }
        });
        match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(Self { dtype, n, k, paired: false, group_bytes, groups, bias: None }),
        }
    }

    /// Packs the first matrix of a [`LowRankUpdate`](crate::LowRankUpdate), `n` rows of `k` weights. It is of no use for other
    /// products. A group of sixteen rows would be at least half empty with eight rows or fewer. Float weights are then packed
    /// as twice as many rows: those with even indices, and those with odd ones.
    ///
    /// # Errors
    /// As [`Linear::pack`].
    pub fn pack_low_rank<E: From<Error> + Send>(
        pool: &Pool,
        dtype: DType,
        n: usize,
        k: usize,
        read: impl Fn(usize, &mut [u8]) -> Result<(), E> + Sync,
    ) -> Result<Self, E> {
        if !is_paired(dtype, n, k) {
            return Self::pack(pool, dtype, n, k, read);
        }
        let row_bytes = row_bytes(dtype, n, k)?;
        let mut rows = vec![0; n * row_bytes];
        read(0, &mut rows)?;
        let (size, half) = (dtype.block_bytes(), row_bytes / 2);
        let mut pairs = vec![0; rows.len()];
        for (row, out) in rows.chunks_exact(row_bytes).zip(pairs.chunks_exact_mut(2 * half)) {
            let (even, odd) = out.split_at_mut(half);
            let elements = even.chunks_exact_mut(size).zip(odd.chunks_exact_mut(size));
            for (pair, (even, odd)) in row.chunks_exact(2 * size).zip(elements) {
                even.copy_from_slice(&pair[..size]);
                odd.copy_from_slice(&pair[size..]);
            }
        }
        let group_bytes = Layout::of(dtype).group_bytes(k / 2);
        let mut groups = AlignedBytes::zeroed(group_bytes);
        pack_group(dtype, &pairs, half, groups.bytes_mut());
        Ok(Self { dtype, n, k, paired: true, group_bytes, groups, bias: None })
    }

    /// Packs a tensor of a GGUF file: `n` rows of `k` weights in the file's format.
    ///
    /// # Errors
    /// If a dimension is zero, `k` is not a whole number of blocks, or `bytes` has another length.
    pub fn from_gguf(dtype: DType, n: usize, k: usize, bytes: &[u8]) -> Result<Self, Error> {
        let row_bytes = row_bytes(dtype, n, k)?;
        if bytes.len() != row_bytes * n {
            return Err(Error::Length { expected: row_bytes * n, found: bytes.len() });
        }
        Self::pack(&Pool::new(1), dtype, n, k, |first, out| {
            out.copy_from_slice(&bytes[first * row_bytes..][..out.len()]);
            Ok(())
        })
    }

    /// Adds `bias` (`[n]`) to each row's outputs.
    ///
    /// # Errors
    /// If it has another length.
    pub fn with_bias(mut self, bias: &[f32]) -> Result<Self, Error> {
        if bias.len() != self.n {
            return Err(Error::Bias { expected: self.n, found: bias.len() });
        }
        let mut padded = bias.to_vec();
        padded.resize(self.n.next_multiple_of(LANES), 0.0);
        self.bias = Some(padded);
        Ok(self)
    }

    /// Bytes that [`Linear::pack`] needs temporarily.
    pub fn packing_bytes(threads: usize, dtype: DType, n: usize, k: usize) -> usize {
        let row_bytes = k / dtype.block() * dtype.block_bytes();
        (threads * pack_rows(row_bytes)).min(n) * row_bytes
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Outputs.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Inputs.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Bytes of `n` packed rows of `k` weights; `k` must be a whole number of blocks.
    pub fn packed_bytes(dtype: DType, n: usize, k: usize) -> usize {
        Layout::of(dtype).group_bytes(k) * n.div_ceil(LANES)
    }

    /// Bytes of `n` rows of `k` weights that [`Linear::pack_low_rank`] has packed.
    pub fn packed_low_rank_bytes(dtype: DType, n: usize, k: usize) -> usize {
        match is_paired(dtype, n, k) {
            true => Layout::of(dtype).group_bytes(k / 2),
            false => Self::packed_bytes(dtype, n, k),
        }
    }

    /// True for matrices that can only be used in a [`LowRankUpdate`](crate::LowRankUpdate).
    pub fn is_paired(&self) -> bool {
        self.paired
    }

    /// Bytes of the packed weights.
    pub fn bytes(&self) -> usize {
        self.groups.len()
    }

    /// The packed weights.
    pub(crate) fn packed(&self) -> PackedGroups<'_> {
        PackedGroups { bytes: self.groups.bytes(), group: self.group_bytes }
    }

    /// The weights of output `index`, dequantised exactly as GGML does.
    ///
    /// # Panics
    /// If there is no such row, or `out` is not `k` long.
    pub fn row(&self, index: usize, out: &mut [f32]) {
        assert!(index < self.n && out.len() == self.k, "row {index} of {self:?} into {} elements", out.len());
        if self.paired {
            let mut half = vec![0.; self.k / 2];
            for parity in 0..2 {
                unpack_row(self.dtype, self.groups.bytes(), 2 * index + parity, &mut half);
                out[parity..].iter_mut().step_by(2).zip(&half).for_each(|(out, weight)| *out = *weight);
            }
            return;
        }
        let group = &self.groups.bytes()[index / LANES * self.group_bytes..][..self.group_bytes];
        unpack_row(self.dtype, group, index % LANES, out);
    }

    /// `out = x · weightsᵀ + bias` for `x` `[m, k]` and `out` `[m, n]`.
    ///
    /// # Panics
    /// If a length does not match.
    pub fn forward(&self, pool: &Pool, x: &[f32], m: usize, out: &mut [f32]) {
        matmul_all(&Activations::new(pool, x, m, self.k), &mut [(self, out)]);
    }
}

/// Whether [`Linear::pack_low_rank`] packs a matrix as twice as many rows.
fn is_paired(dtype: DType, n: usize, k: usize) -> bool {
    !dtype.is_quantised() && n <= LANES / 2 && k.is_multiple_of(2)
}

/// Bytes of a row in the file.
fn row_bytes(dtype: DType, n: usize, k: usize) -> Result<usize, Error> {
    let bytes = (k / dtype.block()).checked_mul(dtype.block_bytes());
    let valid = n > 0 && k > 0 && k.is_multiple_of(dtype.block());
    let total = bytes.and_then(|bytes| bytes.checked_mul(n.checked_next_multiple_of(LANES)?));
    match (bytes, total) {
        // The packed form is at most 50 % larger.
        (Some(bytes), Some(total)) if valid && total <= isize::MAX as usize / 2 => Ok(bytes),
        _ => Err(Error::Shape { dtype, n, k }),
    }
}

/// Rows that a thread packs at once: whole groups.
fn pack_rows(row_bytes: usize) -> usize {
    (PACK_BYTES / (row_bytes * LANES).max(1)).max(1) * LANES
}

/// Multiplies the same activations by several matrices in one parallel section. Each output is `[m, n]`, where `n` is the
/// matrix's.
///
/// # Panics
/// If a length does not match.
pub fn matmul_all(x: &Activations<'_>, products: &mut [(&Linear, &mut [f32])]) {
    let section = Section::new(x, products);
    x.pool.run(section.task_ends.len(), |task| section.run(task));
}

/// The work of a parallel section: all groups of all matrices for a run of tiles, then for the next run, and so on. A task
/// is a range of this sequence. The first tasks are long and the last ones short, so that most weights are read in long
/// runs and all threads finish together.
struct Section<'a> {
    x: &'a Activations<'a>,
    products: SmallVec<[Product<'a>; 4]>,
    /// Groups of all matrices.
    groups: usize,
    /// Tiles of a run.
    run_tiles: usize,
    /// Maximum groups that a run processes together.
    max_groups: usize,
    task_ends: TaskEnds,
}

/// The ends of tasks. They are on the stack, because allocations would slow down decode steps.
type TaskEnds = SmallVec<[usize; 32]>;

/// The product with one matrix of a section.
struct Product<'a> {
    linear: &'a Linear,
    /// Index of the matrix's first group in the section.
    first_group: usize,
    x: *const u8,
    block_stats: *const f32,
    /// Layout of the rows in bytes; for float weights.
    layout: RowLayout,
    out: SharedSlice<f32>,
}

// SAFETY: the pointers refer to activations that are borrowed for 'a and only read.
unsafe impl Sync for Product<'_> {}

impl<'a> Section<'a> {
    fn new(x: &'a Activations<'a>, products: &'a mut [(&Linear, &mut [f32])]) -> Self {
        let mut section_products = SmallVec::with_capacity(products.len());
        let (mut groups, mut cost, mut row_bytes) = (0, 0, 1);
        for (linear, out) in products.iter_mut() {
            assert_eq!(linear.k, x.k(), "activations of another width than {linear:?}");
            assert!(!linear.paired, "{linear:?} is packed for low-rank updates");
            assert_eq!(Some(out.len()), x.m().checked_mul(linear.n), "outputs of {linear:?} are not [m, n]");
            section_products.push(Product::new(linear, groups, x, out));
            groups += linear.n.div_ceil(LANES);
            row_bytes = row_bytes.max(cached_row_bytes(linear, x));
            cost = cost.max(linear.group_bytes / BYTES_PER_NS);
        }
        let max_run_tiles = (CACHE_BYTES / (row_bytes * x.tiles.max_rows().max(1))).max(1);
        let runs = x.tiles.count.div_ceil(max_run_tiles);
        let run_tiles = x.tiles.count.div_ceil(runs.max(1));
        let run_rows = run_tiles * x.tiles.max_rows();
        let has_k_blocks =
            section_products.iter().any(|product: &Product<'_>| k_block_spans(product.linear) < usize::MAX);
        let cached_groups = PARTIAL_SUM_BYTES / (LANES * size_of::<f32>() * run_rows).max(1);
        let max_groups = if has_k_blocks { cached_groups.next_multiple_of(2).max(2) } else { usize::MAX };
        let min_items = MIN_TASK_NS / cost.max(x.k() * LANES * run_rows / MACS_PER_NS).max(1);
        let task_ends = split_tasks(groups * runs, x.pool.threads(), min_items.max(1));
        Self { x, products: section_products, groups, run_tiles, max_groups, task_ends }
    }

    fn run(&self, task: usize) {
        let (mut item, end) = (if task == 0 { 0 } else { self.task_ends[task - 1] }, self.task_ends[task]);
        while item < end {
            let (run, group) = (item / self.groups, item % self.groups);
            let tiles = run * self.run_tiles..self.x.tiles.count.min((run + 1) * self.run_tiles);
            let index = self.products.partition_point(|product| product.first_group <= group) - 1;
            let product = &self.products[index];
            let product_end = self.products.get(index + 1).map_or(self.groups, |next| next.first_group);
            let groups = (product_end - group).min(end - item).min(self.max_groups);
            product.run(group - product.first_group, groups, self.x.tiles, tiles);
            item += groups;
        }
    }
}

/// Spans of a k block: they are processed for all tiles of a run before the next ones.
fn k_block_spans(linear: &Linear) -> usize {
    let has_k_blocks = !linear.dtype.is_quantised() && linear.group_bytes > K_BLOCK_THRESHOLD_BYTES;
    if has_k_blocks { K_BLOCK_BYTES / Layout::of(linear.dtype).low } else { usize::MAX }
}

/// Bytes of a row of activations that each group reads.
fn cached_row_bytes(linear: &Linear, x: &Activations<'_>) -> usize {
    if linear.dtype.is_quantised() {
        return linear.k * 3 / 2;
    }
    let size = if uses_bf16_pairs(linear.dtype, x.tiles.isa) { size_of::<u16>() } else { size_of::<f32>() };
    x.row_elements().min(k_block_spans(linear).saturating_mul(FLOATS)) * size
}

/// Splits `items` into tasks of at least `min_items` items. Each task takes 1 / (2 · threads) of the remaining items.
fn split_tasks(items: usize, threads: usize, min_items: usize) -> TaskEnds {
    let mut ends = TaskEnds::new();
    let mut end = 0;
    while end < items {
        let size = if threads == 1 { items } else { (items - end) / (2 * threads) };
        end = items.min(end + size.max(min_items));
        ends.push(end);
    }
    ends
}

impl<'a> Product<'a> {
    fn new(linear: &'a Linear, first_group: usize, x: &'a Activations<'a>, out: &mut [f32]) -> Self {
        let out = SharedSlice::new(out);
        if linear.dtype.is_quantised() {
            let x = x.quantised();
            let (x, block_stats) = (x.codes.as_ptr().cast(), x.block_stats.as_ptr());
            return Self { linear, first_group, x, block_stats, layout: RowLayout::ONE_SEGMENT, out };
        }
        let block_stats = std::ptr::null();
        if uses_bf16_pairs(linear.dtype, x.tiles.isa) {
            let (pairs, layout) = x.pairs();
            return Self {
                linear,
                first_group,
                x: pairs.as_ptr().cast(),
                block_stats,
                layout: layout.in_bytes(size_of::<u16>()),
                out,
            };
        }
        let layout = x.layout.in_bytes(size_of::<f32>());
        Self { linear, first_group, x: x.x.as_ptr().cast(), block_stats, layout, out }
    }

    /// Multiplies `groups` groups from `group` on by a run of tiles.
    fn run(&self, group: usize, groups: usize, tiles: Tiles, run: Range<usize>) {
        let Linear { dtype, n, k, group_bytes, .. } = *self.linear;
        let weights = &self.linear.groups.bytes()[group * group_bytes..][..groups * group_bytes];
        let step = if dtype.is_quantised() { BLOCK } else { FLOATS };
        let columns = (n - group * LANES).min(groups * LANES);
        // Other tasks have other groups or tiles, so only this task writes these outputs.
        let rows = tiles.start(run.end);
        let out = self.out.at(group * LANES, (rows - 1) * n + columns);
        let bias = self.linear.bias.as_ref().map_or(std::ptr::null(), |bias| bias[group * LANES..].as_ptr());
        let task = GemmTask {
            weights: weights.as_ptr(),
            group_bytes,
            steps: k / step,
            remainder: k % step,
            k_block_spans: if run.len() > 1 { k_block_spans(self.linear) } else { usize::MAX },
            x: self.x,
            block_stats: self.block_stats,
            layout: self.layout,
            tiles,
            first_tile: run.start,
            end_tile: run.end,
            out,
            out_stride: n,
            columns,
            bias,
            accumulate: false,
        };
        multiply(dtype, &task);
    }
}

#[cfg(test)]
mod tests {
    use super::split_tasks;

    #[test]
    fn tasks_cover_all_items_and_shrink() {
        for (items, threads, min_items) in
            [(0, 2, 1), (1, 2, 1), (36, 2, 1), (3072, 2, 4), (3072, 16, 1), (60, 1, 1), (7, 4, 9)]
        {
            let ends = split_tasks(items, threads, min_items);
            assert_eq!(ends.last().copied().unwrap_or(0), items);
            let sizes: Vec<usize> =
                ends.iter().scan(0, |start, end| Some(end - std::mem::replace(start, *end))).collect();
            assert!(sizes.iter().rev().skip(1).is_sorted(), "{sizes:?}; only the last may be shorter");
            assert!(sizes.iter().all(|size| *size > 0), "{sizes:?}");
            assert!(threads == 1 || sizes.first().is_none_or(|size| *size <= (items / (2 * threads)).max(min_items)));
        }
    }
}
