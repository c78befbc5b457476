//! DDIM: Song et al. 2020, <https://arxiv.org/abs/2010.02502>, without noise on the way.

use super::fields::Result;
use super::guess::Mix;
use super::solver::{Call, Solver, kept_or};

pub(super) struct Ddim {
    /// `[calls]`
    nexts: Vec<Mix>,
}

impl Ddim {
    /// `end` is what is kept beyond the first training step.
    pub fn new(kept: &[f32], times: &[f64], stride: usize, end: f32) -> Result<Self> {
        let next = |time: &f64| kept_or(kept, time - stride as f64, end).map(Mix::preserving);
        Ok(Self { nexts: times.iter().map(next).collect::<Result<_>>()? })
    }
}

impl Solver for Ddim {
    fn step(&mut self, call: &Call<'_>, sample: &mut [f32], _: &mut dyn FnMut(usize) -> Vec<f32>) {
        let Some(next) = self.nexts.get(call.index) else { return };
        let (signal, share) = (next.signal as f32, next.noise as f32);
        for ((x, guess), clean) in sample.iter_mut().zip(call.guess).zip(call.clean) {
            *x = signal * clean + share * call.mix.noise(call.prediction, *guess, *x);
        }
    }
}
