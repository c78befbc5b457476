//! PNDM: Liu et al. 2022, <https://arxiv.org/abs/2202.09778>: a linear multistep method that starts with Runge-Kutta
//! steps or with one step taken twice.

use super::config_fields::{ConfigFields, Result};
use super::prediction::NoiseLevel;
use super::solver::{Solver, StepInput, alpha_at, alpha_or, linear_combination};
use super::timesteps::Timesteps;

/// Model outputs that a step combines.
const ORDER: usize = 4;
/// Stages of a Runge-Kutta step, and the number of such steps.
const STAGES: usize = 4;
const PRK_STEPS: usize = 3;

#[derive(Clone, Copy, Debug)]
pub(super) struct Config {
    runge_kutta: bool,
    /// The alpha before the first training step.
    end: f32,
}

impl Config {
    pub fn read(fields: ConfigFields<'_>, alphas_cumprod: &[f32]) -> Result<Self> {
        let clean = fields.flag("set_alpha_to_one", false)?;
        let end = if clean { 1. } else { alphas_cumprod.first().copied().unwrap_or(1.) };
        Ok(Self { runge_kutta: !fields.flag("skip_prk_steps", false)?, end })
    }

    /// Timesteps of each call: `[steps + 1]`, or `[steps + 9]` with Runge-Kutta steps.
    pub fn timesteps(self, timesteps: Timesteps, steps: usize) -> Result<Vec<f64>> {
        let whole = timesteps.whole(steps);
        if self.runge_kutta {
            return prk_timesteps(&whole, (timesteps.stride(steps) / 2) as f64);
        }
        let second = whole.get(1).copied();
        let (first, rest) = whole.split_at(whole.len().min(1));
        Ok(first.iter().copied().chain(second).chain(rest.iter().copied()).collect())
    }
}

/// Evaluates each of the first three steps at its start, twice halfway to the next, and at the next.
fn prk_timesteps(whole: &[f64], half: f64) -> Result<Vec<f64>> {
    if whole.len() <= PRK_STEPS {
        return Err(format!("the settings of the scheduler 'pndm' require at least {} steps", PRK_STEPS + 1));
    }
    let pairs = whole.iter().zip(whole.iter().skip(1)).take(PRK_STEPS);
    let calls = pairs.flat_map(|(now, next)| [*now, next + half, next + half, *next]);
    Ok(calls.chain(whole.iter().skip(PRK_STEPS).copied()).collect())
}

pub(super) struct Pndm {
    runge_kutta: bool,
    /// `[calls]`: the noise levels before and after a call.
    transitions: Vec<(NoiseLevel, NoiseLevel)>,
    /// Calls so far.
    count: usize,
    /// Newest last.
    model_outputs: Vec<Vec<f32>>,
    /// Weighted sum of the current step's stages.
    sum: Vec<f32>,
    /// The sample at the start of the current step.
    start_sample: Vec<f32>,
}

impl Pndm {
    /// For the calls from `begin` on.
    pub fn new(config: Config, alphas_cumprod: &[f32], timesteps: &[f64], stride: usize, begin: usize) -> Result<Self> {
        if config.runge_kutta && begin > 0 {
            return Err("the settings of the scheduler 'pndm' do not allow an initial image".into());
        }
        let transitions = timesteps.iter().enumerate().map(|(index, time)| {
            let (from, to) = config.endpoints(timesteps, index, *time, stride as f64, begin);
            Ok((
                NoiseLevel::variance_preserving(alpha_at(alphas_cumprod, from)?),
                NoiseLevel::variance_preserving(alpha_or(alphas_cumprod, to, config.end)?),
            ))
        });
        let transitions = transitions.skip(begin).collect::<Result<_>>()?;
        let runge_kutta = config.runge_kutta;
        Ok(Self {
            runge_kutta,
            transitions,
            count: 0,
            model_outputs: Vec::new(),
            sum: Vec::new(),
            start_sample: Vec::new(),
        })
    }

    /// Combines the newest model outputs (Adams-Bashforth).
    fn extrapolate(&self, output: &mut [f32]) {
        let weights: &[f64] = match self.model_outputs.len() {
            0 | 1 => &[1.],
            2 => &[3. / 2., -1. / 2.],
            3 => &[23. / 12., -16. / 12., 5. / 12.],
            _ => &[55. / 24., -59. / 24., 37. / 24., -9. / 24.],
        };
        let newest = self.model_outputs.iter().rev().map(Vec::as_slice);
        linear_combination(output, 0., &weights.iter().copied().zip(newest).collect::<Vec<_>>());
    }

    fn push_output(&mut self, model_output: &[f32]) {
        if self.model_outputs.len() == ORDER {
            self.model_outputs.remove(0);
        }
        self.model_outputs.push(model_output.to_vec());
    }

    /// Restores the sample at the start of the step.
    fn restore(&self, sample: &mut [f32]) {
        sample.iter_mut().zip(&self.start_sample).for_each(|(x, start_sample)| *x = *start_sample);
    }

    fn stage(&mut self, model_output: &mut [f32], sample: &mut [f32]) {
        match self.count % STAGES {
            0 => {
                self.push_output(model_output);
                self.start_sample = sample.to_vec();
                self.sum = model_output.iter().map(|model_output| model_output / 6.).collect();
            }
            1 | 2 => linear_combination(&mut self.sum, 1., &[(1. / 3., model_output)]),
            _ => linear_combination(model_output, 1. / 6., &[(1., &self.sum)]),
        }
        self.restore(sample);
    }

    fn multistep(&mut self, model_output: &mut [f32], sample: &mut [f32]) {
        match (self.runge_kutta, self.count) {
            (false, 1) => {
                let first = self.model_outputs.first().map_or(&[][..], Vec::as_slice);
                linear_combination(model_output, 0.5, &[(0.5, first)]);
                self.restore(sample);
            }
            (runge_kutta, count) => {
                self.push_output(model_output);
                if !runge_kutta && count == 0 {
                    self.start_sample = sample.to_vec();
                }
                self.extrapolate(model_output);
            }
        }
    }
}

impl Config {
    /// The training steps before and after a call.
    fn endpoints(self, timesteps: &[f64], index: usize, time: f64, stride: f64, begin: usize) -> (f64, f64) {
        if self.runge_kutta && index < STAGES * PRK_STEPS {
            let half = if index.is_multiple_of(2) { (stride / 2.).floor() } else { 0. };
            return (timesteps.get(index / STAGES * STAGES).copied().unwrap_or(time), time - half);
        }
        // The second call repeats the first step.
        if !self.runge_kutta && index == begin + 1 { (time + stride, time) } else { (time, time - stride) }
    }
}

impl Solver for Pndm {
    fn step(&mut self, input: &StepInput<'_>, sample: &mut [f32], _: &mut dyn FnMut(usize) -> Vec<f32>) {
        let Some((from, to)) = self.transitions.get(self.count).copied() else { return };
        let mut model_output = input.model_output.to_vec();
        if self.runge_kutta && self.count < STAGES * PRK_STEPS {
            self.stage(&mut model_output, sample);
        } else {
            self.multistep(&mut model_output, sample);
        }
        self.count += 1;
        // Equation 11 of the paper.
        let (alpha, alpha_next) = (from.signal * from.signal, to.signal * to.signal);
        let below = alpha * to.noise + from.signal * from.noise * to.signal;
        let share = ((alpha_next - alpha) / below) as f32;
        for (x, model_output) in sample.iter_mut().zip(model_output) {
            let noise = from.predict_noise(input.prediction, model_output, *x);
            *x = (to.signal / from.signal) as f32 * *x - share * noise;
        }
    }
}
