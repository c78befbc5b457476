//! A packed weight matrix and its products.

use std::fmt;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use smallvec::SmallVec;

use crate::buffer::{AlignedBytes, SharedSlice};
use crate::dtype::DType;
use crate::gemm::activations::{BLOCK, PartRows, RowPart, uses_bf16_pairs};
use crate::gemm::{GemmTask, multiply};
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
    let products = products.iter_mut().map(|(linear, out)| (std::slice::from_ref(&*linear), &mut **out));
    let section = Section::new(x, products);
    x.pool.run(section.task_ends.len(), |task| section.run(task));
}

/// Multiplies activations in parts by matrices of their own in one parallel section. A product has one matrix for each part, all of
/// the same size, and one output for all rows, `[m, n]`.
///
/// # Panics
/// If a length does not match.
pub fn matmul_parts(x: &Activations<'_>, products: &mut [(&[&Linear], &mut [f32])]) {
    let section = Section::new(x, products.iter_mut().map(|(linears, out)| (*linears, &mut **out)));
    x.pool.run(section.task_ends.len(), |task| section.run(task));
}

/// The work of a parallel section: all groups of all matrices of a part for a run of its tiles, then for the next run, and so on. A
/// task is a range of this sequence. The first tasks are long and the last ones short, so that most weights are read in long
/// runs and all threads finish together.
struct Section<'a> {
    x: &'a Activations<'a>,
    products: SmallVec<[Product<'a>; 4]>,
    /// Groups of all matrices of a part.
    groups: usize,
    runs: SmallVec<[Run; 4]>,
    task_ends: TaskEnds,
}

/// The ends of tasks. They are on the stack, because allocations would slow down decode steps.
type TaskEnds = SmallVec<[usize; 32]>;

/// Tiles of a part that are multiplied while they are in the cache.
struct Run {
    part: usize,
    tiles: Range<usize>,
    /// Maximum groups that are processed together.
    max_groups: usize,
    /// The estimated time of a group, in nanoseconds.
    group_ns: usize,
}

/// The products with one matrix of each part.
struct Product<'a> {
    linears: &'a [&'a Linear],
    /// Index of a matrix's first group among those of its part.
    first_group: usize,
    out: SharedSlice<f32>,
}

impl<'a> Section<'a> {
    fn new(x: &'a Activations<'a>, products: impl ExactSizeIterator<Item = (&'a [&'a Linear], &'a mut [f32])>) -> Self {
        let mut section = Self {
            x,
            products: SmallVec::with_capacity(products.len()),
            groups: 0,
            runs: SmallVec::new(),
            task_ends: TaskEnds::new(),
        };
        for (linears, out) in products {
            assert_eq!(linears.len(), x.parts.len(), "each part has a matrix");
            let Some(first) = linears.first() else { continue };
            for linear in linears {
                assert_eq!(linear.k, x.k(), "activations of another width than {linear:?}");
                assert_eq!(linear.n, first.n, "the matrices of a product have one size");
                assert!(!linear.paired, "{linear:?} is packed for low-rank updates");
            }
            assert_eq!(Some(out.len()), x.m().checked_mul(first.n), "outputs of {first:?} are not [m, n]");
            section.products.push(Product { linears, first_group: section.groups, out: SharedSlice::new(out) });
            section.groups += first.n.div_ceil(LANES);
        }
        for part in 0..x.parts.len() {
            section.add_runs(part);
        }
        let costs = section.runs.iter().map(|run| run.group_ns);
        section.task_ends = split_tasks(section.groups, costs, x.pool.threads());
        section
    }

    /// Adds the runs of a part, and prepares its rows.
    fn add_runs(&mut self, part: usize) {
        let Self { x, products, runs, .. } = self;
        let tiles = x.parts[part].tiles;
        let (mut cost, mut row_bytes, mut has_k_blocks) = (0, 1, false);
        for linear in products.iter().map(|product| product.linears[part]) {
            x.part_rows(linear.dtype, part);
            row_bytes = row_bytes.max(cached_row_bytes(linear, x));
            cost = cost.max(linear.group_bytes / BYTES_PER_NS);
            has_k_blocks |= k_block_spans(linear) < usize::MAX;
        }
        let max_run_tiles = (CACHE_BYTES / (row_bytes * tiles.max_rows().max(1))).max(1);
        let run_count = tiles.count.div_ceil(max_run_tiles);
        let run_tiles = tiles.count.div_ceil(run_count.max(1));
        let run_rows = run_tiles * tiles.max_rows();
        let cached_groups = PARTIAL_SUM_BYTES / (LANES * size_of::<f32>() * run_rows).max(1);
        let max_groups = if has_k_blocks { cached_groups.next_multiple_of(2).max(2) } else { usize::MAX };
        let group_ns = cost.max(x.k() * LANES * run_rows / MACS_PER_NS).max(1);
        let run = |run: usize| {
            let tiles = run * run_tiles..tiles.count.min((run + 1) * run_tiles);
            Run { part, tiles, max_groups, group_ns }
        };
        runs.extend((0..run_count).map(run));
    }

    fn run(&self, task: usize) {
        let (mut item, end) = (if task == 0 { 0 } else { self.task_ends[task - 1] }, self.task_ends[task]);
        while item < end {
            let (run, group) = (&self.runs[item / self.groups], item % self.groups);
            let index = self.products.partition_point(|product| product.first_group <= group) - 1;
            let product = &self.products[index];
            let product_end = self.products.get(index + 1).map_or(self.groups, |next| next.first_group);
            let groups = (product_end - group).min(end - item).min(run.max_groups);
            product.run(self.x, run, group - product.first_group, groups);
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
    let size = if uses_bf16_pairs(linear.dtype, x.pool.isa()) { size_of::<u16>() } else { size_of::<f32>() };
    x.row_elements().min(k_block_spans(linear).saturating_mul(FLOATS)) * size
}

/// Splits runs of `groups` groups each into tasks. `costs`: the time of a group of each run, in nanoseconds. Each task takes
/// 1 / (2 · threads) of the remaining time, and at least [`MIN_TASK_NS`].
fn split_tasks(groups: usize, costs: impl Iterator<Item = usize> + Clone, threads: usize) -> TaskEnds {
    let mut ends = TaskEnds::new();
    let mut remaining = costs.clone().map(|cost| cost * groups).sum::<usize>();
    let size = |remaining: usize| if threads == 1 { remaining } else { (remaining / (2 * threads)).max(MIN_TASK_NS) };
    let (mut end, mut left) = (0, size(remaining));
    for cost in costs {
        let mut rest = groups;
        while rest > 0 {
            let taken = (left / cost.max(1)).clamp(1, rest);
            (end, rest, remaining) = (end + taken, rest - taken, remaining - taken * cost);
            left = left.saturating_sub(taken * cost);
            // No group of this run fits in what is left of the task.
            if left < cost {
                ends.push(end);
                left = size(remaining);
            }
        }
    }
    if ends.last().is_none_or(|last| *last < end) && end > 0 {
        ends.push(end);
    }
    ends
}

impl Product<'_> {
    /// Multiplies `groups` groups from `group` on by a run of tiles.
    fn run(&self, x: &Activations<'_>, run: &Run, group: usize, groups: usize) {
        let linear = self.linears[run.part];
        let Linear { dtype, n, k, group_bytes, .. } = *linear;
        let weights = &linear.groups.bytes()[group * group_bytes..][..groups * group_bytes];
        let step = if dtype.is_quantised() { BLOCK } else { FLOATS };
        let columns = (n - group * LANES).min(groups * LANES);
        let RowPart { first_row, tiles, .. } = x.parts[run.part];
        let PartRows { x, block_stats, layout } = x.part_rows(dtype, run.part);
        // Other tasks have other groups or tiles, so only this task writes these outputs.
        let rows = tiles.start(run.tiles.end);
        let out = self.out.at(first_row * n + group * LANES, (rows - 1) * n + columns);
        let bias = linear.bias.as_ref().map_or(std::ptr::null(), |bias| bias[group * LANES..].as_ptr());
        let task = GemmTask {
            weights: weights.as_ptr(),
            group_bytes,
            steps: k / step,
            remainder: k % step,
            k_block_spans: if run.tiles.len() > 1 { k_block_spans(linear) } else { usize::MAX },
            x,
            block_stats,
            layout,
            tiles,
            first_tile: run.tiles.start,
            end_tile: run.tiles.end,
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
    use super::{MIN_TASK_NS, split_tasks};

    #[test]
    fn tasks_cover_all_items_and_shrink() {
        for (groups, costs, threads) in [
            (0, &[2_000][..], 2),
            (1, &[2_000], 2),
            (36, &[1_000], 2),
            (3072, &[500], 2),
            (3072, &[2_000], 16),
            (60, &[100], 1),
            (7, &[100], 4),
            (64, &[3_000, 0, 500, 12_000, 1, 500], 2),
            (5, &[300; 40], 3),
        ] {
            let ends = split_tasks(groups, costs.iter().copied(), threads);
            assert_eq!(ends.last().copied().unwrap_or(0), groups * costs.len());
            let starts = std::iter::once(0).chain(ends.iter().copied());
            let cost = |range: std::ops::Range<usize>| range.map(|item| costs[item / groups]).sum::<usize>();
            let sizes: Vec<usize> = starts.zip(&ends).map(|(start, end)| cost(start..*end)).collect();
            let (total, max) = (sizes.iter().sum::<usize>(), costs.iter().copied().max().unwrap());
            assert!(ends.is_sorted_by(|a, b| a < b), "{ends:?}; no task is empty");
            assert!(threads == 1 || sizes.iter().all(|size| *size <= (total / (2 * threads)).max(MIN_TASK_NS) + max));
            let all_but_last = sizes.iter().rev().skip(1);
            assert!(
                all_but_last.clone().all(|size| size + max >= MIN_TASK_NS),
                "{sizes:?}; only the last may be shorter"
            );
            if costs.len() == 1 {
                assert!(all_but_last.is_sorted(), "{sizes:?}");
            }
        }
    }
}
