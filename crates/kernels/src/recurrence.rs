//! Recurrent layers whose state is a matrix for each head, which maps keys to values: the gated delta rule (Yang et al. 2024,
//! <https://arxiv.org/abs/2412.06464>), and state spaces with one decay for each head (Mamba-2: Dao and Gu 2024,
//! <https://arxiv.org/abs/2405.21060>), whose B, x and C are called keys, values and queries here.

use crate::Pool;
use crate::buffer::SharedSlice;
use crate::rows::{by_rows, load_up_to, store_up_to};
use crate::simd::{Kernel, LANES, Simd, run};

/// Independent sums, which hide the latency of additions.
const SUMS: usize = 4;

/// The sizes of a layer. Each value head uses the queries and keys of one key head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecurrenceShape {
    pub key_heads: usize,
    pub value_heads: usize,
    pub key_width: usize,
    pub value_width: usize,
    /// Value head `i` has the key head `i mod key_heads`. Otherwise, neighbours share a key head.
    pub tiled: bool,
}

impl RecurrenceShape {
    /// Added by the delta rule to the squared length of queries and keys, which may be zero.
    pub const EPSILON: f32 = 1e-6;

    /// Elements of a token's queries, or of its keys.
    pub fn keys_len(&self) -> usize {
        self.key_heads * self.key_width
    }

    /// Elements of a token's values, or of its output.
    pub fn values_len(&self) -> usize {
        self.value_heads * self.value_width
    }

    /// Elements of a token's queries, keys and values.
    pub fn inputs_len(&self) -> usize {
        2 * self.keys_len() + self.values_len()
    }

    /// Elements of a sequence's state.
    pub fn state_len(&self) -> usize {
        self.values_len() * self.key_width
    }

    /// The key head of a value head.
    pub fn key_head(&self, value_head: usize) -> usize {
        if self.tiled { value_head % self.key_heads } else { value_head * self.key_heads / self.value_heads }
    }
}

/// How a token changes the state `S` of a head, after `S *= factor`.
#[derive(Clone, Copy, Debug)]
pub enum Recurrence<'a> {
    /// `S += k ⊗ weight · (v − Sᵀk)`. The output is `Sᵀq`. The inputs of a token are its queries, keys and values, after
    /// [`normalise_queries_and_keys`].
    DeltaRule,
    /// `S += k ⊗ weight · v`. The output is `Sᵀq + skip · v`, with one `skip` for each head of values. The inputs of a token are
    /// its values, keys and queries.
    StateSpace { skip: &'a [f32] },
}

/// The tokens of a sequence.
#[derive(Debug)]
pub struct RecurrenceInputs<'a> {
    /// Queries, keys and values, in the order that [`Recurrence`] says: `[tokens, inputs_len]`.
    pub qkv: &'a [f32],
    /// `[tokens, 2, value_heads]`: the factor of the state, and the weight of the update.
    pub gates: &'a [f32],
}

/// Scales the queries of each head to the length `1 / √key_width`, and the keys to the length 1. `qkv`: `[tokens, inputs_len]`.
///
/// # Panics
/// If lengths do not match.
pub fn normalise_queries_and_keys(pool: &Pool, shape: &RecurrenceShape, qkv: &mut [f32]) {
    let (row_len, width) = (shape.inputs_len(), shape.key_width);
    assert!(row_len > 0 && width > 0 && qkv.len().is_multiple_of(row_len), "qkv is not [tokens, {row_len}]");
    let tokens = qkv.len() / row_len;
    let shared = SharedSlice::new(qkv);
    by_rows(pool, tokens, 2 * shape.keys_len(), |first, rows| {
        // SAFETY: no other task accesses these rows.
        let rows = unsafe { shared.get(first * row_len, rows * row_len) };
        for row in rows.chunks_exact_mut(row_len) {
            for (head, x) in row[..2 * shape.keys_len()].chunks_exact_mut(width).enumerate() {
                let length = if head < shape.key_heads { (width as f32).sqrt().recip() } else { 1. };
                let squares: f32 = x.iter().map(|x| x * x).sum();
                let scale = length / (squares + RecurrenceShape::EPSILON).sqrt();
                x.iter_mut().for_each(|x| *x *= scale);
            }
        }
    });
}

fn softplus(x: f32) -> f32 {
    if x > 20. { x } else { x.exp().ln_1p() }
}

/// The gates of a [`Recurrence::StateSpace`] from a layer's projection `steps`, `[tokens, value_heads]`: the factor
/// `exp(decay · step)`, and the weight `step`, where `step` is `softplus(steps + bias)`. `decay` is negative.
///
/// # Panics
/// If lengths do not match.
pub fn state_space_gates(pool: &Pool, [decay, bias]: [&[f32]; 2], steps: &[f32], gates: &mut [f32]) {
    let heads = decay.len();
    assert!(heads > 0 && bias.len() == heads && steps.len().is_multiple_of(heads), "no [tokens, {heads}]");
    assert_eq!(gates.len(), 2 * steps.len(), "gates are [tokens, 2, value_heads]");
    let shared = SharedSlice::new(gates);
    // Exponentials cost about as much as sixteen additions.
    by_rows(pool, steps.len() / heads, 16 * heads, |first, rows| {
        let range = first * heads..(first + rows) * heads;
        // SAFETY: no other task accesses these rows.
        let gates = unsafe { shared.get(2 * range.start, 2 * range.len()) };
        for (gates, steps) in gates.chunks_exact_mut(2 * heads).zip(steps[range].chunks_exact(heads)) {
            let (factors, weights) = gates.split_at_mut(heads);
            for head in 0..heads {
                let step = softplus(steps[head] + bias[head]);
                (factors[head], weights[head]) = ((decay[head] * step).exp(), step);
            }
        }
    });
}

/// The gates of a [`Recurrence::DeltaRule`] from a layer's projections `a` and `b`, `[tokens, value_heads]`: the factor
/// `exp(decay · softplus(a + bias))`, and the weight `sigmoid(b)`. `decay` is negative.
///
/// # Panics
/// If lengths do not match.
pub fn delta_rule_gates(pool: &Pool, [decay, bias]: [&[f32]; 2], [a, b]: [&[f32]; 2], gates: &mut [f32]) {
    let heads = decay.len();
    assert!(heads > 0 && bias.len() == heads && a.len().is_multiple_of(heads), "no [tokens, {heads}]");
    assert_eq!([b.len(), gates.len()], [a.len(), 2 * a.len()], "gates are [tokens, 2, value_heads]");
    let shared = SharedSlice::new(gates);
    // Exponentials cost about as much as sixteen additions.
    by_rows(pool, a.len() / heads, 16 * heads, |first, rows| {
        let range = first * heads..(first + rows) * heads;
        // SAFETY: no other task accesses these rows.
        let gates = unsafe { shared.get(2 * range.start, 2 * range.len()) };
        let inputs = a[range.clone()].chunks_exact(heads).zip(b[range].chunks_exact(heads));
        for (gates, (a, b)) in gates.chunks_exact_mut(2 * heads).zip(inputs) {
            let (factors, weights) = gates.split_at_mut(heads);
            for (head, factor) in factors.iter_mut().enumerate() {
                *factor = (decay[head] * softplus(a[head] + bias[head])).exp();
            }
            weights.iter_mut().zip(b).for_each(|(weight, b)| *weight = 1. / (1. + (-b).exp()));
        }
    });
}

/// Computes a sequence from the state `before` (`None`: zeros), and writes the state `after` it. `out`: `[tokens, values_len]`.
///
/// The columns of the state of a head do not depend on each other, so a task computes sixteen of them for all tokens, in the first-level cache. A state has these columns
/// as blocks of their own: `[value_heads, value_width / 16, key_width, 16]`, with fewer columns in the last block of a head.
///
/// # Panics
/// If lengths do not match.
pub fn recurrence(
    pool: &Pool,
    rule: Recurrence<'_>,
    shape: &RecurrenceShape,
    before: Option<&[f32]>,
    inputs: &RecurrenceInputs<'_>,
    after: &mut [f32],
    out: &mut [f32],
) {
    let RecurrenceShape { value_heads, key_width, value_width, .. } = *shape;
    assert!(shape.inputs_len() > 0, "a size is zero");
    let tokens = inputs.qkv.len() / shape.inputs_len();
    let lengths = [inputs.qkv.len(), inputs.gates.len(), after.len(), out.len()];
    let expected =
        [tokens * shape.inputs_len(), 2 * tokens * value_heads, shape.state_len(), tokens * shape.values_len()];
    assert_eq!(lengths, expected, "inputs, states and output fit the shape");
    assert!(before.is_none_or(|before| before.len() == after.len()), "the two states have different lengths");
    if let Recurrence::StateSpace { skip } = rule {
        assert_eq!(skip.len(), value_heads, "there is a skip for each head");
    }
    let blocks = value_width.div_ceil(LANES);
    let (shared_after, shared_out) = (SharedSlice::new(after), SharedSlice::new(out));
    pool.run(value_heads * blocks, |task| {
        let (head, column) = (task / blocks, task % blocks * LANES);
        let columns = LANES.min(value_width - column);
        let (first, len) = ((head * value_width + column) * key_width, columns * key_width);
        // SAFETY: no other task accesses this block.
        let state = unsafe { shared_after.get(first, len) };
        match before {
            Some(before) => state.copy_from_slice(&before[first..first + len]),
            None => state.fill(0.),
        }
        let columns = Columns { shape, inputs, head, column, columns, state, out: &shared_out };
        match rule {
            Recurrence::DeltaRule => run(pool.isa(), DeltaRuleKernel(columns)),
            Recurrence::StateSpace { skip } => run(pool.isa(), StateSpaceKernel { columns, skip: skip[head] }),
        }
    });
}

/// Up to sixteen columns of a head.
struct Columns<'a> {
    shape: &'a RecurrenceShape,
    inputs: &'a RecurrenceInputs<'a>,
    head: usize,
    column: usize,
    columns: usize,
    /// `[key_width, columns]`
    state: &'a mut [f32],
    out: &'a SharedSlice<f32>,
}

impl Columns<'_> {
    /// The index of the first value of these columns in a row of values.
    fn value(&self) -> usize {
        self.head * self.shape.value_width + self.column
    }
}

struct DeltaRuleKernel<'a>(Columns<'a>);

impl Kernel for DeltaRuleKernel<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let value = self.0.value();
        let Columns { shape, inputs, head, columns, state, out, .. } = self.0;
        let RecurrenceShape { value_heads, key_width, .. } = *shape;
        let key_head = shape.key_head(head);
        let tokens = inputs.qkv.chunks_exact(shape.inputs_len()).zip(inputs.gates.chunks_exact(2 * value_heads));
        for (token, (qkv, gates)) in tokens.enumerate() {
            let (queries, rest) = qkv.split_at(shape.keys_len());
            let (keys, values) = rest.split_at(shape.keys_len());
            let [q, k] = [queries, keys].map(|heads| &heads[key_head * key_width..][..key_width]);
            let v = &values[value..value + columns];
            // SAFETY: rows of the state and values have `columns` elements; no other task writes these outputs; features as
            // `Kernel` says.
            unsafe {
                let (factor, weight) = (S::splat(gates[head]), S::splat(gates[value_heads + head]));
                let mut sums = [S::splat(0.); SUMS];
                for (state, k) in state.chunks(SUMS * columns).zip(k.chunks(SUMS)) {
                    for (sum, (state, k)) in sums.iter_mut().zip(state.chunks_exact(columns).zip(k)) {
                        *sum = S::fma(load_up_to::<S>(state, 0), S::splat(*k), *sum);
                    }
                }
                let found = S::mul(factor, S::add(S::add(sums[0], sums[1]), S::add(sums[2], sums[3])));
                let update = S::mul(weight, S::sub(load_up_to::<S>(v, 0), found));
                let result = add_and_read::<S>(state, columns, [factor, update], [k, q]);
                store_up_to::<S>(out.get(token * shape.values_len() + value, columns), 0, result);
            }
        }
    }
}

struct StateSpaceKernel<'a> {
    columns: Columns<'a>,
    skip: f32,
}

impl Kernel for StateSpaceKernel<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { columns, skip } = self;
        let value = columns.value();
        let Columns { shape, inputs, head, columns, state, out, .. } = columns;
        let RecurrenceShape { value_heads, key_width, .. } = *shape;
        let key_head = shape.key_head(head);
        let tokens = inputs.qkv.chunks_exact(shape.inputs_len()).zip(inputs.gates.chunks_exact(2 * value_heads));
        for (token, (qkv, gates)) in tokens.enumerate() {
            let (values, rest) = qkv.split_at(shape.values_len());
            let (keys, queries) = rest.split_at(shape.keys_len());
            let [q, k] = [queries, keys].map(|heads| &heads[key_head * key_width..][..key_width]);
            let v = &values[value..value + columns];
            // SAFETY: as above.
            unsafe {
                let (factor, weight) = (S::splat(gates[head]), S::splat(gates[value_heads + head]));
                let v = load_up_to::<S>(v, 0);
                let read = add_and_read::<S>(state, columns, [factor, S::mul(weight, v)], [k, q]);
                let result = S::fma(v, S::splat(skip), read);
                store_up_to::<S>(out.get(token * shape.values_len() + value, columns), 0, result);
            }
        }
    }
}

/// `S = factor · S + k ⊗ update; Sᵀq` for columns of a state, `[key_width, columns]`.
///
/// # Safety
/// As [`Simd`] says; there are up to sixteen columns.
#[inline(always)]
unsafe fn add_and_read<S: Simd>(
    state: &mut [f32],
    columns: usize,
    [factor, update]: [S::F; 2],
    [k, q]: [&[f32]; 2],
) -> S::F {
    // SAFETY: rows of the state have `columns` elements.
    unsafe {
        let mut sums = [S::splat(0.); SUMS];
        for (state, (k, q)) in state.chunks_mut(SUMS * columns).zip(k.chunks(SUMS).zip(q.chunks(SUMS))) {
            let rows = state.chunks_exact_mut(columns).zip(k.iter().zip(q));
            for (sum, (state, (k, q))) in sums.iter_mut().zip(rows) {
                let new = S::fma(S::splat(*k), update, S::mul(factor, load_up_to::<S>(state, 0)));
                store_up_to::<S>(state, 0, new);
                *sum = S::fma(new, S::splat(*q), *sum);
            }
        }
        S::add(S::add(sums[0], sums[1]), S::add(sums[2], sums[3]))
    }
}

#[cfg(test)]
mod tests {
    use super::{
        Recurrence, RecurrenceInputs, RecurrenceShape, delta_rule_gates, normalise_queries_and_keys, recurrence,
        state_space_gates,
    };
    use crate::{Isa, Pool};

    fn values(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 37 + seed * 101) as f32 * 0.71).sin()).collect()
    }

    /// The definition, head by head: `[tokens, values_len]`.
    fn expected(rule: Recurrence<'_>, shape: &RecurrenceShape, qkv: &[f32], gates: &[f32]) -> Vec<f32> {
        let RecurrenceShape { value_heads, key_width, value_width, .. } = *shape;
        let tokens = qkv.len() / shape.inputs_len();
        let mut out = vec![0.; tokens * shape.values_len()];
        // Where queries, keys and values begin.
        let (keys_len, values_len) = (shape.keys_len(), shape.values_len());
        let first = match rule {
            Recurrence::DeltaRule => [0, keys_len, 2 * keys_len],
            Recurrence::StateSpace { .. } => [values_len + keys_len, values_len, 0],
        };
        for head in 0..value_heads {
            let mut state = vec![vec![0f64; value_width]; key_width];
            for token in 0..tokens {
                let row = &qkv[token * shape.inputs_len()..][..shape.inputs_len()];
                let key = shape.key_head(head) * key_width;
                let [q, k, v] = [first[0] + key, first[1] + key, first[2] + head * value_width].map(|at| &row[at..]);
                let [factor, weight] = [0, 1].map(|gate| f64::from(gates[(2 * token + gate) * value_heads + head]));
                for column in 0..value_width {
                    let value = f64::from(v[column]);
                    (0..key_width).for_each(|i| state[i][column] *= factor);
                    let found: f64 = (0..key_width).map(|i| state[i][column] * f64::from(k[i])).sum();
                    let (found, skipped) = match rule {
                        Recurrence::DeltaRule => (found, 0.),
                        Recurrence::StateSpace { skip } => (0., f64::from(skip[head]) * value),
                    };
                    let update = weight * (value - found);
                    (0..key_width).for_each(|i| state[i][column] += f64::from(k[i]) * update);
                    let read: f64 = (0..key_width).map(|i| state[i][column] * f64::from(q[i])).sum();
                    out[token * values_len + head * value_width + column] = (read + skipped) as f32;
                }
            }
        }
        out
    }

    /// Checks texts that are computed at once and in pieces.
    fn check(rule: Recurrence<'_>, shape: &RecurrenceShape, qkv: &[f32], gates: &[f32]) {
        let expected = expected(rule, shape, qkv, gates);
        for isa in Isa::available() {
            let mut whole = None;
            for piece in [90, 40, 1] {
                let pool = Pool::with_isa(2, isa);
                let (mut state, mut found) = (None, Vec::new());
                let pieces = qkv.chunks(piece * shape.inputs_len()).zip(gates.chunks(2 * piece * shape.value_heads));
                for (qkv, gates) in pieces {
                    let mut out = vec![f32::NAN; qkv.len() / shape.inputs_len() * shape.values_len()];
                    let mut after = vec![f32::NAN; shape.state_len()];
                    let inputs = RecurrenceInputs { qkv, gates };
                    recurrence(&pool, rule, shape, state.as_deref(), &inputs, &mut after, &mut out);
                    (state, found) = (Some(after), [found, out].concat());
                }
                let far = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0., f32::max);
                assert!(far < 1e-5 && found.len() == expected.len(), "{rule:?} {shape:?} {isa:?} {piece}: {far}");
                assert_eq!(whole.get_or_insert_with(|| found.clone()), &found, "{isa:?} {piece}: other bits");
            }
        }
    }

    #[test]
    fn texts_in_pieces_match_the_definition() {
        for (key_heads, value_heads, key_width, value_width, tiled) in
            [(2, 4, 8, 12, false), (2, 6, 16, 40, true), (3, 3, 5, 16, false)]
        {
            let shape = RecurrenceShape { key_heads, value_heads, key_width, value_width, tiled };
            let tokens = 90;
            let pool = Pool::with_isa(2, Isa::Portable);
            let mut qkv = values(tokens * shape.inputs_len(), 1);
            let mut gates = vec![0.; 2 * tokens * value_heads];
            let (decay, bias) = (vec![-0.3; value_heads], values(value_heads, 2));
            let (a, b) = (values(tokens * value_heads, 3), values(tokens * value_heads, 4));
            state_space_gates(&pool, [&decay, &bias], &a, &mut gates);
            qkv.iter_mut().for_each(|x| *x *= 0.3);
            check(Recurrence::StateSpace { skip: &values(value_heads, 5) }, &shape, &qkv, &gates);
            normalise_queries_and_keys(&pool, &shape, &mut qkv);
            delta_rule_gates(&pool, [&decay, &bias], [&a, &b], &mut gates);
            check(Recurrence::DeltaRule, &shape, &qkv, &gates);
        }
    }

    #[test]
    fn gates_are_factors_and_weights() {
        let mut gates = [0.; 4];
        delta_rule_gates(&Pool::new(1), [&[-1., -2.], &[0., 30.]], [&[0., 0.], &[0., 2.]], &mut gates);
        let expected = [0.5, (-60f32).exp(), 0.5, 0.880_797];
        assert!(gates.iter().zip(expected).all(|(gate, expected)| (gate - expected).abs() < 1e-6), "{gates:?}");
        state_space_gates(&Pool::new(1), [&[-1., -2.], &[0., 30.]], &[0., 0.], &mut gates);
        let expected = [0.5, (-60f32).exp(), 2f32.ln(), 30.];
        assert!(gates.iter().zip(expected).all(|(gate, expected)| (gate - expected).abs() < 1e-6), "{gates:?}");
    }
}
