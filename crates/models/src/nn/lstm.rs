//! Long short-term memories in both directions.

use std::sync::{Mutex, PoisonError};

use super::context::Context;
use super::linear::Linear;
use crate::backend::{Backend, Isa, LstmRecurrence, LstmState, Tensor};
use crate::error::Result;
use crate::weights::{Candidate, Loader};

/// Steps between two pauses, which take about a millisecond.
const STEPS: usize = 64;

/// A bidirectional LSTM with one layer, as in PyTorch. The device computes the products with the inputs of all steps, the
/// host the recurrence.
#[derive(Debug)]
pub(crate) struct BidirectionalLstm<B: Backend> {
    /// The number of units in each direction.
    hidden: usize,
    /// Forward and backward.
    inputs: [Linear<B>; 2],
    recurrences: [LstmRecurrence; 2],
}

/// A direction in progress.
struct Direction<'a> {
    recurrence: &'a LstmRecurrence,
    is_backward: bool,
    state: LstmState,
    /// Products with the inputs: `[steps, 4 · hidden]`.
    inputs: Vec<f32>,
    /// Hidden states: `[steps, hidden]`.
    out: Vec<f32>,
}

impl<B: Backend> BidirectionalLstm<B> {
    /// Loads the layer `stem` for `inputs` inputs, with `hidden` units in each direction.
    pub fn load(loader: &Loader<'_, B>, stem: &str, inputs: usize, hidden: usize) -> Result<Self> {
        let linear = |direction: &str| {
            let weight = Candidate::whole(format!("{stem}.ih_l0{direction}"), 4 * hidden);
            loader.linear(&[weight], 4 * hidden, inputs, true)
        };
        let recurrence = |direction: &str| -> Result<LstmRecurrence> {
            let weights = loader.values(&format!("{stem}.weight_hh_l0{direction}"), &[4 * hidden, hidden])?;
            let bias = loader.values(&format!("{stem}.bias_hh_l0{direction}"), &[4 * hidden])?;
            Ok(LstmRecurrence::new(hidden, &weights, &bias)?)
        };
        Ok(Self {
            hidden,
            inputs: [linear("")?, linear("_reverse")?],
            recurrences: [recurrence("")?, recurrence("_reverse")?],
        })
    }

    /// The hidden states of both directions: `[1, tokens, 1, 2 · hidden]`.
    pub fn forward(&self, ctx: &Context<'_, B>, x: &Tensor<B>) -> Result<Tensor<B>> {
        let [forward, backward] = Linear::forward_all(ctx, self.inputs.each_ref(), x)?;
        let steps = x.rows();
        let [first, second] = &self.recurrences;
        let directions = [
            Mutex::new(Direction::new(first, false, ctx.download(forward)?, steps)),
            Mutex::new(Direction::new(second, true, ctx.download(backward)?, steps)),
        ];
        for start in (0..steps).step_by(STEPS) {
            let end = steps.min(start + STEPS);
            ctx.pool().run(directions.len(), |index| {
                if let Some(direction) = directions.get(index) {
                    let mut direction = direction.lock().unwrap_or_else(PoisonError::into_inner);
                    (start..end).for_each(|step| direction.advance(ctx.pool().isa(), step, steps));
                }
            });
            ctx.pause()?;
        }
        let [forward, backward] =
            directions.map(|direction| direction.into_inner().unwrap_or_else(PoisonError::into_inner));
        let hidden = self.hidden;
        let out = ctx.upload([1, steps, 1, 2 * hidden], &mut |out| {
            let states = forward.out.chunks_exact(hidden).zip(backward.out.chunks_exact(hidden));
            for (out, (forward, backward)) in out.chunks_exact_mut(2 * hidden).zip(states) {
                let (left, right) = out.split_at_mut(hidden);
                left.copy_from_slice(forward);
                right.copy_from_slice(backward);
            }
            Ok(())
        })?;
        ctx.recycle(forward.inputs);
        ctx.recycle(backward.inputs);
        Ok(out)
    }
}

impl<'a> Direction<'a> {
    fn new(recurrence: &'a LstmRecurrence, is_backward: bool, inputs: Vec<f32>, steps: usize) -> Self {
        let out = vec![0.; steps * recurrence.hidden()];
        Self { recurrence, is_backward, state: recurrence.initial_state(), inputs, out }
    }

    /// Computes the `step`th of `steps` steps.
    fn advance(&mut self, isa: Isa, step: usize, steps: usize) {
        let index = if self.is_backward { steps - 1 - step } else { step };
        let hidden = self.recurrence.hidden();
        let inputs = self.inputs.chunks_exact(4 * hidden).nth(index);
        if let (Some(inputs), Some(out)) = (inputs, self.out.chunks_exact_mut(hidden).nth(index)) {
            self.recurrence.step(isa, &mut self.state, inputs, out);
        }
    }
}
