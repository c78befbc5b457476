//! PNDM (Liu et al. 2022, <https://arxiv.org/abs/2202.09778>): a linear multistep method (PLMS) that starts with pseudo
//! Runge-Kutta steps (PRK), or evaluates the first step twice.

use super::betas::{alpha_cumprod_at, alpha_cumprod_or};
use super::config_fields::{ConfigFields, Result};
use super::prediction::NoiseLevel;
use super::solver_trait::{Solver, StepInput, linear_combination};
use super::timesteps::Timesteps;

/// The number of model outputs that a multistep step combines.
const ORDER: usize = 4;
/// Stages of a Runge-Kutta step.
const STAGES: usize = 4;
/// The number of Runge-Kutta steps.
const PRK_STEPS: usize = 3;

#[derive(Clone, Copy, Debug)]
pub(super) struct Config {
    runge_kutta: bool,
    /// The alpha product of the final sample.
    final_alpha_cumprod: f32,
}

impl Config {
    pub fn read(fields: ConfigFields<'_>, alphas_cumprod: &[f32]) -> Result<Self> {
        let set_alpha_to_one = fields.flag("set_alpha_to_one", false)?;
        let final_alpha_cumprod = if set_alpha_to_one { 1. } else { alphas_cumprod.first().copied().unwrap_or(1.) };
        Ok(Self { runge_kutta: !fields.flag("skip_prk_steps", false)?, final_alpha_cumprod })
    }

    /// The timestep of each call: `[steps + 1]`, or `[steps + 9]` with Runge-Kutta steps.
    pub fn timesteps(self, timesteps: Timesteps, steps: usize) -> Result<Vec<f64>> {
        let step_timesteps = timesteps.spaced_integers(steps);
        if self.runge_kutta {
            return prk_timesteps(&step_timesteps, (timesteps.stride(steps) / 2) as f64);
        }
        let second = step_timesteps.get(1).copied();
        let (first, rest) = step_timesteps.split_at(step_timesteps.len().min(1));
        Ok(first.iter().copied().chain(second).chain(rest.iter().copied()).collect())
    }
}

/// The timestep of each call with Runge-Kutta steps. They are evaluated at the start, twice halfway and at the end.
/// `half_stride`: half of the training steps between two steps.
fn prk_timesteps(timesteps: &[f64], half_stride: f64) -> Result<Vec<f64>> {
    if timesteps.len() <= PRK_STEPS {
        return Err(format!("the settings of the scheduler 'pndm' require at least {} steps", PRK_STEPS + 1));
    }
    let pairs = timesteps.iter().zip(timesteps.iter().skip(1)).take(PRK_STEPS);
    let calls = pairs.flat_map(|(start, end)| [*start, end + half_stride, end + half_stride, *end]);
    Ok(calls.chain(timesteps.iter().skip(PRK_STEPS).copied()).collect())
}

pub(super) struct Pndm {
    runge_kutta: bool,
    /// `[calls]`: the noise levels before and after a call.
    transitions: Vec<(NoiseLevel, NoiseLevel)>,
    /// The number of calls so far.
    count: usize,
    /// Earlier model outputs, newest last.
    model_outputs: Vec<Vec<f32>>,
    /// The weighted sum of the model outputs of the current Runge-Kutta step.
    stage_sum: Vec<f32>,
    /// The sample at the start of the current step.
    start_sample: Vec<f32>,
}

impl Pndm {
    /// `timesteps`: of all calls; `begin_index`: the first call to run.
    pub fn new(
        config: Config,
        alphas_cumprod: &[f32],
        timesteps: &[f64],
        stride: usize,
        begin_index: usize,
    ) -> Result<Self> {
        if config.runge_kutta && begin_index > 0 {
            return Err("the settings of the scheduler 'pndm' do not allow an initial image".into());
        }
        let transitions = timesteps.iter().enumerate().map(|(index, timestep)| {
            let (start, end) = config.endpoints(timesteps, index, *timestep, stride as f64, begin_index);
            Ok((
                NoiseLevel::variance_preserving(alpha_cumprod_at(alphas_cumprod, start)?),
                NoiseLevel::variance_preserving(alpha_cumprod_or(alphas_cumprod, end, config.final_alpha_cumprod)?),
            ))
        });
        let transitions = transitions.skip(begin_index).collect::<Result<_>>()?;
        let runge_kutta = config.runge_kutta;
        Ok(Self {
            runge_kutta,
            transitions,
            count: 0,
            model_outputs: Vec::new(),
            stage_sum: Vec::new(),
            start_sample: Vec::new(),
        })
    }

    /// Combines the newest model outputs with the weights of Adams-Bashforth.
    fn adams_bashforth(&self, output: &mut [f32]) {
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

    /// Restores the sample at the start of the current step.
    fn restore_start_sample(&self, sample: &mut [f32]) {
        sample.iter_mut().zip(&self.start_sample).for_each(|(x, start_sample)| *x = *start_sample);
    }

    /// Runs a stage of a Runge-Kutta step.
    fn prk_stage(&mut self, model_output: &mut [f32], sample: &mut [f32]) {
        match self.count % STAGES {
            0 => {
                self.push_output(model_output);
                self.start_sample = sample.to_vec();
                self.stage_sum = model_output.iter().map(|model_output| model_output / 6.).collect();
            }
            1 | 2 => linear_combination(&mut self.stage_sum, 1., &[(1. / 3., model_output)]),
            _ => linear_combination(model_output, 1. / 6., &[(1., &self.stage_sum)]),
        }
        self.restore_start_sample(sample);
    }

    /// Runs a multistep step.
    fn plms_step(&mut self, model_output: &mut [f32], sample: &mut [f32]) {
        match (self.runge_kutta, self.count) {
            (false, 1) => {
                let first = self.model_outputs.first().map_or(&[][..], Vec::as_slice);
                linear_combination(model_output, 0.5, &[(0.5, first)]);
                self.restore_start_sample(sample);
            }
            (runge_kutta, count) => {
                self.push_output(model_output);
                if !runge_kutta && count == 0 {
                    self.start_sample = sample.to_vec();
                }
                self.adams_bashforth(model_output);
            }
        }
    }
}

impl Config {
    /// The timesteps before and after a call.
    fn endpoints(self, timesteps: &[f64], index: usize, timestep: f64, stride: f64, begin_index: usize) -> (f64, f64) {
        if self.runge_kutta && index < STAGES * PRK_STEPS {
            let half_stride = if index.is_multiple_of(2) { (stride / 2.).floor() } else { 0. };
            return (timesteps.get(index / STAGES * STAGES).copied().unwrap_or(timestep), timestep - half_stride);
        }
        // The second call repeats the first step.
        if !self.runge_kutta && index == begin_index + 1 {
            (timestep + stride, timestep)
        } else {
            (timestep, timestep - stride)
        }
    }
}

impl Solver for Pndm {
    fn step(&mut self, input: &StepInput<'_>, sample: &mut [f32], _: &mut dyn FnMut(usize) -> Vec<f32>) {
        let Some((level, next_level)) = self.transitions.get(self.count).copied() else { return };
        let mut model_output = input.model_output.to_vec();
        if self.runge_kutta && self.count < STAGES * PRK_STEPS {
            self.prk_stage(&mut model_output, sample);
        } else {
            self.plms_step(&mut model_output, sample);
        }
        self.count += 1;
        // Equation 11 of the paper.
        let (alpha_cumprod, next_alpha_cumprod) = (level.signal * level.signal, next_level.signal * next_level.signal);
        let denominator = alpha_cumprod * next_level.noise + level.signal * level.noise * next_level.signal;
        let noise_weight = ((next_alpha_cumprod - alpha_cumprod) / denominator) as f32;
        for (x, model_output) in sample.iter_mut().zip(model_output) {
            let noise = level.predict_noise(input.prediction_type, model_output, *x);
            *x = (next_level.signal / level.signal) as f32 * *x - noise_weight * noise;
        }
    }
}
