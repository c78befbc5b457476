//! What networks of a painter compute with, operation by operation.
//!
//! Others want the processor, too: between pieces of work of some milliseconds [`Easel::pause`] is called, where the
//! painter may have to wait, and where it learns that nobody wants the picture any more.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use half::bf16;
use outpost_kernels::{
    self as kernels, Activation, Before, Blocks, Both, Cells, Factors, Fill, Images, Moments, POSITIONS, Pair, Pool,
    Sequence, Shape,
};

use super::adapters::Sides;
use super::layers::{Conv, GroupNorm};
use super::map::{Map, Spare};
use crate::models::feed_forward::Mlp;
use crate::models::linear::Linear;
use crate::models::norm::Norm;

/// Why a network did not come to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Halt {
    /// It was told to stop.
    Stopped,
    /// A defect, for the log.
    Failed(String),
}

impl From<candle_core::Error> for Halt {
    fn from(error: candle_core::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<String> for Halt {
    fn from(reason: String) -> Self {
        Self::Failed(reason)
    }
}

impl fmt::Display for Halt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped => f.write_str("it was told to stop"),
            Self::Failed(reason) => f.write_str(reason),
        }
    }
}

pub type Result<T> = std::result::Result<T, Halt>;

/// Multiplications of a piece of work, for each thread: some milliseconds.
const PIECE: usize = 200_000_000;
/// Rows of a product at least: weights are read once for them.
const FEWEST: usize = 64;
/// Numbers of a feed-forward network's inside at once: they stay near.
const INNER: usize = 2 << 20;
/// Numbers of a piece of work that is bound by memory, for each thread.
const NUMBERS: usize = 4 << 20;

pub struct Easel<'a> {
    pub pool: &'a Pool,
    pub spare: Spare,
    /// Whether attention rounds to bf16, as products with bf16 weights do.
    rounds: bool,
    /// Keys and values in blocks; kept for their memory.
    floats: RefCell<Vec<f32>>,
    pairs: RefCell<Vec<bf16>>,
    /// What adapters add to products.
    sides: Sides,
    pause: &'a dyn Fn() -> Result<()>,
}

impl<'a> Easel<'a> {
    pub fn new(pool: &'a Pool, pause: &'a dyn Fn() -> Result<()>) -> Self {
        Self {
            pool,
            spare: Spare::default(),
            rounds: false,
            floats: RefCell::default(),
            pairs: RefCell::default(),
            sides: Sides::default(),
            pause,
        }
    }

    /// The same where attention rounds to bf16, or does not.
    pub fn rounding(self, rounds: bool) -> Self {
        Self { rounds, ..self }
    }

    /// The same with adapters.
    pub fn adapted(self, sides: Sides) -> Self {
        Self { sides, ..self }
    }

    /// Bytes that were held at once at most, but for what kernels take for themselves.
    pub fn most_bytes(&self) -> usize {
        let kept = size_of::<f32>() * self.floats.borrow().len() + size_of::<bf16>() * self.pairs.borrow().len();
        size_of::<f32>() * self.spare.most() + kept
    }

    /// Lets others compute.
    pub fn pause(&self) -> Result<()> {
        (self.pause)()
    }

    pub fn map(&self, images: usize, size: [usize; 2], channels: usize) -> Map {
        self.spare.map(images, size, channels)
    }

    /// A map of these numbers, of which there must be as many as it has.
    pub fn of(&self, numbers: &[f32], images: usize, size: [usize; 2], channels: usize) -> Result<Map> {
        let mut map = self.map(images, size, channels);
        if map.len() != numbers.len() {
            return Err(Halt::Failed(format!("{} numbers for a map of {}", numbers.len(), map.len())));
        }
        map.numbers_mut().copy_from_slice(numbers);
        Ok(map)
    }

    /// How many of these rows are a piece of work, each of so many multiplications.
    fn piece(&self, cost: usize) -> usize {
        (PIECE * self.pool.threads() / cost.max(1)).max(1)
    }

    pub(in crate::models) fn conv(&self, conv: &Conv, x: &Map) -> Result<Map> {
        let mut out = self.convolve(conv, x, None)?;
        for (side, factor) in self.sides.of(conv_id(conv)) {
            side.add_windows(self, x, *factor, &mut out)?;
        }
        Ok(out)
    }

    /// `conv(silu(norm(x + shift)))`; `shift`: `[images, 1, 1, channels]`.
    pub(in crate::models) fn norm_conv(
        &self,
        norm: &GroupNorm,
        x: &Map,
        shift: Option<&Map>,
        conv: &Conv,
    ) -> Result<Map> {
        // Adapters want to see what is normed; else it is nowhere written.
        if !self.sides.of(conv_id(conv)).is_empty() {
            let x = self.group_norm(norm, x, shift, true)?;
            return self.conv(conv, &x);
        }
        let activation = Some(Activation::Silu);
        let factors = self.factors(&norm.kernel(activation), x, shift)?;
        self.convolve(conv, x, Some(Before { factors: &factors, activation }))
    }

    /// A convolution alone, to which no adapter adds.
    pub(super) fn convolve(&self, conv: &Conv, x: &Map, before: Option<Before<'_>>) -> Result<Map> {
        let window = *conv.window();
        let Some(size) = window.output(x.size).filter(|_| x.channels == window.inputs) else {
            return Err(Halt::Failed(format!("{window:?} does not take {} channels of {:?}", x.channels, x.size)));
        };
        let mut out = self.map(x.images, size, window.outputs);
        let row = size[1] * window.outputs;
        let lines = self.piece(row * window.inputs * window.kernel[0] * window.kernel[1]);
        let images = Images { x: x.numbers(), size: x.size, before };
        if lines >= x.images * size[0] {
            conv.forward(self.pool, images, out.numbers_mut());
            self.pause()?;
            return Ok(out);
        }
        let outs = out.numbers_mut().chunks_exact_mut((size[0] * row).max(1));
        for (one, out) in images.chunks(x.channels, 1).zip(outs) {
            for (first, out) in (0..size[0]).step_by(lines).zip(out.chunks_mut(lines * row)) {
                conv.forward_lines(self.pool, one, first..size[0].min(first + lines), out);
                self.pause()?;
            }
        }
        Ok(out)
    }

    pub(in crate::models) fn linear(&self, weight: &Linear, x: &Map) -> Result<Map> {
        let [out] = self.linears([weight], x)?;
        Ok(out)
    }

    /// Products of the same `m` rows of numbers, and what adapters add.
    fn products(&self, x: &[f32], m: usize, all: &mut [(&Linear, &mut [f32])]) -> Result<()> {
        Linear::together(self.pool, x, m, all)?;
        for (weight, out) in all.iter_mut().filter(|_| !self.sides.is_empty()) {
            for (side, factor) in self.sides.of(weight.id()) {
                side.add(self, x, m, *factor, out)?;
            }
        }
        Ok(())
    }

    /// Several products of the same numbers.
    pub(in crate::models) fn linears<const N: usize>(&self, weights: [&Linear; N], x: &Map) -> Result<[Map; N]> {
        let mut outs = weights.map(|weight| self.map(x.images, x.size, weight.rows()));
        let all: usize = weights.iter().map(|weight| weight.rows()).sum();
        let rows = self.piece(all * x.channels).next_multiple_of(FEWEST);
        for (index, part) in x.numbers().chunks(rows * x.channels).enumerate() {
            let m = part.len() / x.channels.max(1);
            let mut together = Vec::with_capacity(N);
            for (weight, out) in weights.iter().zip(&mut outs) {
                let width = weight.rows();
                let out = out.numbers_mut().chunks_mut(rows * width).nth(index).unwrap_or_default();
                together.push((*weight, out));
            }
            self.products(part, m, &mut together)?;
            self.pause()?;
        }
        Ok(outs)
    }

    /// What a feed-forward network makes of `x`, some rows after others: what is inside is wide.
    pub(in crate::models) fn feed(&self, mlp: &Mlp, x: &Map) -> Result<Map> {
        let Mlp { gate, up, down, activation } = mlp;
        let (width, inner) = (x.channels.max(1), up.rows().max(1));
        let rows = (INNER / inner).clamp(1, self.piece(inner * width)).next_multiple_of(FEWEST);
        let most = rows.min(x.rows());
        let mut left = self.map(1, [most, 1], inner);
        let mut right = gate.is_some().then(|| self.map(1, [most, 1], inner));
        let mut out = self.map(x.images, x.size, down.rows());
        for (x, out) in x.numbers().chunks(rows * width).zip(out.numbers_mut().chunks_mut(rows * down.rows())) {
            let m = x.len() / width;
            let left = left.part_mut(m * inner);
            let made = match (gate, &mut right) {
                (Some(gate), Some(right)) => {
                    let right = right.part_mut(m * inner);
                    self.products(x, m, &mut [(up, &mut *left), (gate, &mut *right)])?;
                    kernels::activate(self.pool, *activation, right, Some(left));
                    right
                }
                _ => {
                    self.products(x, m, &mut [(up, &mut *left)])?;
                    kernels::activate(self.pool, *activation, left, None);
                    left
                }
            };
            self.pause()?;
            self.products(made, m, &mut [(down, out)])?;
            self.pause()?;
        }
        Ok(out)
    }

    /// `norm(x + shift)`, through SiLU where that is wanted; `shift`: `[images, 1, 1, channels]`.
    pub(in crate::models) fn group_norm(
        &self,
        norm: &GroupNorm,
        x: &Map,
        shift: Option<&Map>,
        silu: bool,
    ) -> Result<Map> {
        let kernel = norm.kernel(silu.then_some(Activation::Silu));
        let factors = self.factors(&kernel, x, shift)?;
        let mut out = self.map(x.images, x.size, x.channels);
        let (image, part) = ((x.pixels() * x.channels).max(1), self.pixels_together(x.channels));
        for ((x_one, out), factors) in x.each().zip(out.numbers_mut().chunks_exact_mut(image)).zip(&factors) {
            for (x, out) in x_one.chunks(part).zip(out.chunks_mut(part)) {
                kernel.apply(self.pool, factors, x, out);
                self.pause()?;
            }
        }
        Ok(out)
    }

    /// What a norm does to each image of `x + shift`.
    fn factors(&self, kernel: &kernels::GroupNorm<'_>, x: &Map, shift: Option<&Map>) -> Result<Vec<Factors>> {
        let part = self.pixels_together(x.channels);
        let mut shifts = shift.map(Map::each);
        let mut factors = Vec::with_capacity(x.images);
        for x_one in x.each() {
            let mut moments = Moments::new(x.channels);
            for x in x_one.chunks(part) {
                moments.add(self.pool, x);
                self.pause()?;
            }
            factors.push(kernel.factors(&moments, shifts.as_mut().and_then(Iterator::next)));
        }
        Ok(factors)
    }

    /// Numbers of whole pixels that are a piece of work which memory bounds.
    fn pixels_together(&self, channels: usize) -> usize {
        let together = Moments::pixels_together(channels) * channels;
        (NUMBERS * self.pool.threads()).next_multiple_of(together.max(1))
    }

    pub(in crate::models) fn layer_norm(&self, norm: &Norm, x: &Map) -> Result<Map> {
        let mut out = self.map(x.images, x.size, x.channels);
        norm.forward(self.pool, x.numbers(), out.numbers_mut());
        self.pause()?;
        Ok(out)
    }

    /// `x += y; norm(x)`
    pub(in crate::models) fn add_norm(&self, norm: &Norm, x: &mut Map, y: &Map) -> Result<Map> {
        let mut out = self.map(x.images, x.size, x.channels);
        norm.add_forward(self.pool, x.numbers_mut(), y.numbers(), out.numbers_mut());
        self.pause()?;
        Ok(out)
    }

    pub(in crate::models) fn add(&self, x: &mut Map, y: &Map) -> Result<()> {
        if x.len() != y.len() {
            return Err(Halt::Failed(format!("{} numbers cannot be added to {}", y.len(), x.len())));
        }
        kernels::add(self.pool, x.numbers_mut(), y.numbers());
        self.pause()
    }

    /// `x = activation(x)`
    pub(in crate::models) fn activate(&self, activation: Activation, x: &mut Map) -> Result<()> {
        kernels::activate(self.pool, activation, x.numbers_mut(), None);
        self.pause()
    }

    /// The channels of both.
    pub(in crate::models) fn concat(&self, x: &Map, y: &Map) -> Result<Map> {
        if (x.images, x.size) != (y.images, y.size) {
            return Err(Halt::Failed(format!("{:?} does not lie beside {:?}", x.size, y.size)));
        }
        let mut out = self.map(x.images, x.size, x.channels + y.channels);
        let widths = [x.channels, y.channels];
        kernels::side_by_side(self.pool, [x.numbers(), y.numbers()], widths, out.numbers_mut());
        self.pause()?;
        Ok(out)
    }

    /// To another size, by the nearest pixel.
    pub(in crate::models) fn resize(&self, x: &Map, size: [usize; 2]) -> Result<Map> {
        let mut out = self.map(x.images, size, x.channels);
        kernels::resize_nearest(self.pool, x.numbers(), x.size, size, x.channels, out.numbers_mut());
        self.pause()?;
        Ok(out)
    }

    /// What the pixels of `q` see of those of `k` and `v`, image by image; channels are `heads` side by side.
    pub(in crate::models) fn attention(&self, [q, k, v]: [&Map; 3], heads: usize, causal: bool) -> Result<Map> {
        let width = q.channels / heads.max(1);
        let fits = width * heads == q.channels && k.channels == q.channels && v.channels == q.channels;
        if !fits || k.len() != v.len() || q.images != k.images || width == 0 {
            return Err(Halt::Failed(format!("{heads} heads of {} and {} channels", q.channels, k.channels)));
        }
        let shape = Shape {
            heads,
            kv_heads: heads,
            width,
            scale: (width as f32).sqrt().recip(),
            causal,
            window: None,
            soft_cap: None,
        };
        let mut out = self.map(q.images, q.size, q.channels);
        let row = q.channels;
        // A causal mask wants all rows at once; such texts are short.
        let rows = if causal { q.pixels() } else { self.piece(2 * k.pixels() * row).next_multiple_of(FEWEST) };
        let images = q.each().zip(k.each().zip(v.each())).zip(out.numbers_mut().chunks_exact_mut(q.pixels() * row));
        for ((queries, (k, v)), out) in images {
            let seen = Seen { shape, positions: k.len() / row, rows, queries };
            match self.rounds && self.pool.path().multiplies_bf16() && width.is_multiple_of(2) {
                true => self.attend(seen, [k, v], &mut self.pairs.borrow_mut(), out)?,
                false => self.attend(seen, [k, v], &mut self.floats.borrow_mut(), out)?,
            }
        }
        Ok(out)
    }

    /// Attention of one image, over keys and values `[positions, heads, width]` that are written into blocks first.
    fn attend<T: Kept>(
        &self,
        Seen { shape, positions, rows, queries }: Seen<'_>,
        [k, v]: [&[f32]; 2],
        kept: &mut Vec<T>,
        out: &mut [f32],
    ) -> Result<()> {
        let row = shape.heads * shape.width;
        let (block, half) = (POSITIONS * row, positions.next_multiple_of(POSITIONS) * row);
        kept.resize(kept.len().max(2 * half), T::default());
        let (keys, rest) = kept.split_at_mut(half);
        let (values, _) = rest.split_at_mut(half);
        let mut fills = Vec::with_capacity(half / block);
        for (index, (keys, values)) in keys.chunks_exact_mut(block).zip(values.chunks_exact_mut(block)).enumerate() {
            let first = index * POSITIONS;
            let count = POSITIONS.min(positions - first);
            fills.push(Fill { cells: T::cells(Both { keys, values }), row: first, slot: 0, count });
        }
        kernels::keep(self.pool, [shape.heads, shape.width], k, v, &mut fills);
        drop(fills);
        let [keys, values] = [&*keys, &*values].map(|half| half.chunks_exact(block).collect::<Vec<_>>());
        for (queries, out) in queries.chunks(rows * row).zip(out.chunks_mut(rows * row)) {
            let blocks = T::blocks(Pair { keys: &keys, values: &values });
            let sequence = Sequence { queries, rows: queries.len() / row, start: 0, positions, blocks };
            kernels::attend(self.pool, &[sequence], &shape, out);
            self.pause()?;
        }
        Ok(())
    }
}

/// What adapters know a convolution by.
fn conv_id(conv: &Conv) -> usize {
    Arc::as_ptr(conv).addr()
}

/// What keys and values are kept as.
trait Kept: Copy + Default {
    fn cells(both: Both<&mut [Self]>) -> Cells<'_>;
    fn blocks<'a>(pair: Pair<'a, &'a [Self]>) -> Blocks<'a>;
}

impl Kept for f32 {
    fn cells(both: Both<&mut [f32]>) -> Cells<'_> {
        Cells::F32(both)
    }

    fn blocks<'a>(pair: Pair<'a, &'a [f32]>) -> Blocks<'a> {
        Blocks::F32(pair)
    }
}

impl Kept for bf16 {
    fn cells(both: Both<&mut [bf16]>) -> Cells<'_> {
        Cells::Bf16(both)
    }

    fn blocks<'a>(pair: Pair<'a, &'a [bf16]>) -> Blocks<'a> {
        Blocks::Bf16(pair)
    }
}

/// One image's part of attention.
struct Seen<'a> {
    shape: Shape,
    positions: usize,
    /// Rows of a piece of work.
    rows: usize,
    queries: &'a [f32],
}

impl fmt::Debug for Easel<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Easel").field("pool", &self.pool).finish_non_exhaustive()
    }
}
