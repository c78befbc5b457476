//! The recurrence of a long short-term memory (Hochreiter and Schmidhuber 1997,
//! <https://doi.org/10.1162/neco.1997.9.8.1735>), in one direction.
//!
//! The products with the inputs of all steps are a matrix product, which is computed before. What remains is, for each
//! step, the product of the hidden state with a matrix that fits into the cache of a core.

use crate::rows::{load_up_to, store_up_to};
use crate::simd::{Kernel, LANES, Simd, run};
use crate::{DType, Error, Isa};

/// Vectors of sums that are accumulated together.
const VECTORS: usize = 4;
/// Gates whose sums are accumulated together.
const BLOCK: usize = VECTORS * LANES;

/// The recurrent weights of one direction. Gates are in PyTorch's order: input, forget, cell, output.
#[derive(Clone, Debug)]
pub struct LstmRecurrence {
    hidden: usize,
    /// `[blocks, hidden, BLOCK]`: the weights of the gates of a block, padded with zeros.
    weights: Vec<f32>,
    /// `[4 · hidden]`, padded with zeros to whole blocks.
    bias: Vec<f32>,
}

/// The state between two steps.
#[derive(Clone, Debug)]
pub struct LstmState {
    hidden: Vec<f32>,
    cell: Vec<f32>,
    gates: Vec<f32>,
}

impl LstmRecurrence {
    /// `weights` are `[4 · hidden, hidden]`, `bias` is `[4 · hidden]`.
    ///
    /// # Errors
    /// If a length does not match, or `hidden` is zero.
    pub fn new(hidden: usize, weights: &[f32], bias: &[f32]) -> Result<Self, Error> {
        let gates = hidden.saturating_mul(4);
        if hidden == 0 || gates.checked_mul(hidden) != Some(weights.len()) {
            return Err(Error::Shape { dtype: DType::F32, n: gates, k: hidden });
        }
        if bias.len() != gates {
            return Err(Error::Bias { expected: gates, found: bias.len() });
        }
        let blocks = gates.div_ceil(BLOCK);
        let mut packed = vec![0.; blocks * hidden * BLOCK];
        for (gate, row) in weights.chunks_exact(hidden).enumerate() {
            let first = gate / BLOCK * hidden * BLOCK + gate % BLOCK;
            for (input, weight) in row.iter().enumerate() {
                packed[first + input * BLOCK] = *weight;
            }
        }
        let mut bias = bias.to_vec();
        bias.resize(blocks * BLOCK, 0.);
        Ok(Self { hidden, weights: packed, bias })
    }

    /// The width of the hidden state.
    pub fn hidden(&self) -> usize {
        self.hidden
    }

    /// The state before the first step: zeros.
    pub fn initial_state(&self) -> LstmState {
        let zeros = vec![0.; self.hidden];
        LstmState { hidden: zeros.clone(), cell: zeros, gates: vec![0.; self.bias.len()] }
    }

    /// Computes one step. `inputs` are the products of the step's input, `[4 · hidden]`; the hidden state, `[hidden]`, is
    /// written to `out`.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn step(&self, isa: Isa, state: &mut LstmState, inputs: &[f32], out: &mut [f32]) {
        assert!(inputs.len() == 4 * self.hidden && out.len() == self.hidden, "a step has {} units", self.hidden);
        assert_eq!(state.hidden.len(), self.hidden, "the state of another recurrence");
        run(isa, StepKernel { recurrence: self, state, inputs });
        out.copy_from_slice(&state.hidden);
    }
}

struct StepKernel<'a> {
    recurrence: &'a LstmRecurrence,
    state: &'a mut LstmState,
    inputs: &'a [f32],
}

impl Kernel for StepKernel<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { recurrence: LstmRecurrence { hidden, weights, bias }, state, inputs } = self;
        let (hidden, state) = (*hidden, state);
        let blocks = weights.chunks_exact(hidden * BLOCK).zip(bias.chunks_exact(BLOCK));
        for ((weights, bias), gates) in blocks.zip(state.gates.chunks_exact_mut(BLOCK)) {
            // SAFETY: the slices have the lengths that are read; features as `Kernel` says.
            unsafe {
                let mut sums = [S::splat(0.); VECTORS];
                for vector in 0..VECTORS {
                    sums[vector] = S::load(bias.as_ptr().add(vector * LANES));
                }
                for (x, weights) in state.hidden.iter().zip(weights.chunks_exact(BLOCK)) {
                    let x = S::splat(*x);
                    for vector in 0..VECTORS {
                        sums[vector] = S::fma(x, S::load(weights.as_ptr().add(vector * LANES)), sums[vector]);
                    }
                }
                for vector in 0..VECTORS {
                    S::store(gates.as_mut_ptr().add(vector * LANES), sums[vector]);
                }
            }
        }
        let LstmState { hidden: output, cell, gates } = state;
        let gates = &gates[..4 * hidden];
        for unit in (0..hidden).step_by(LANES) {
            // SAFETY: `unit` is below `hidden`, so all indices are within the slices; features as `Kernel` says.
            unsafe {
                let mut sums = [S::splat(0.); 4];
                for gate in 0..4 {
                    let index = gate * hidden + unit;
                    sums[gate] = S::add(load_up_to::<S>(gates, index), load_up_to::<S>(inputs, index));
                }
                let update = S::mul(sigmoid::<S>(sums[0]), S::tanh(sums[2]));
                let new_cell = S::fma(sigmoid::<S>(sums[1]), load_up_to::<S>(cell, unit), update);
                store_up_to::<S>(cell, unit, new_cell);
                store_up_to::<S>(output, unit, S::mul(sigmoid::<S>(sums[3]), S::tanh(new_cell)));
            }
        }
    }
}

/// # Safety
/// As [`Simd`] says.
#[inline(always)]
unsafe fn sigmoid<S: Simd>(x: S::F) -> S::F {
    // SAFETY: as the caller says.
    unsafe {
        let one = S::splat(1.);
        S::div(one, S::add(one, S::exp(S::sub(S::splat(0.), x))))
    }
}
