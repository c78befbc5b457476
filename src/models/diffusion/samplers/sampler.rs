//! The sampler of one image.

use super::config::{ScheduleKind, SchedulerConfig};
use super::config_fields::Result;
use super::params::SamplingParams;
use super::prediction::{Clipping, NoiseLevel, Prediction};
use super::solver::{StepInput, StepPlan};

/// Denoises one image, from noise or from a noised initial image.
pub struct Sampler {
    prediction: Prediction,
    clipping: Clipping,
    plan: StepPlan,
    begin: usize,
    /// Index of the next call, counted from the full schedule.
    at: usize,
    /// Scratch for the predicted clean sample.
    clean: Vec<f32>,
}

impl Sampler {
    /// # Errors
    /// Too few or too many steps, a strength that leaves none, or a config that cannot make this many.
    pub fn new(config: &SchedulerConfig, params: SamplingParams) -> Result<Self> {
        let (steps, begin) = (params.steps, params.begin_index(config.is_flow())?);
        let plan = match &config.kind {
            ScheduleKind::Alphas(schedule) => schedule.plan(steps, begin)?,
            ScheduleKind::Sigmas(schedule) => schedule.plan(steps)?,
            ScheduleKind::Flow(flow) => flow.plan(params)?,
        };
        let (prediction, clipping) = (config.prediction, config.clipping);
        let sampler = Self { prediction, clipping, plan, begin, at: begin, clean: Vec::new() };
        if sampler.is_sound() { Ok(sampler) } else { Err(format!("the model's settings do not allow {steps} steps")) }
    }

    /// Network calls; at least one.
    #[expect(clippy::len_without_is_empty, reason = "a sampler has at least one step")]
    pub fn len(&self) -> usize {
        self.plan.timesteps.len() - self.begin
    }

    /// The timestep of a step, counted from 0: a training step, possibly fractional; for flows, the noise level in
    /// training steps. Later steps repeat the last one.
    pub fn timestep(&self, step: usize) -> f32 {
        let at = (self.begin + step).min(self.plan.timesteps.len() - 1);
        self.plan.timesteps.get(at).map_or(0., |time| *time as f32)
    }

    /// Scale of the initial noise. Image-to-image runs start with [`Self::add_noise`] instead.
    pub fn init_noise_sigma(&self) -> f32 {
        self.plan.init_noise_sigma as f32
    }

    /// Scale of the network's input at the current step.
    pub fn input_scale(&self) -> f32 {
        self.level(self.at).map_or(1., |level| level.input_scale as f32)
    }

    /// Advances `sample` with the model output for it. `noise` returns the requested number of normal values in the
    /// sample's layout; it is called at most once, and only by stochastic samplers. After the last step, this does
    /// nothing.
    pub fn step(&mut self, model_output: &[f32], sample: &mut [f32], mut noise: impl FnMut(usize) -> Vec<f32>) {
        let Some(level) = self.level(self.at) else { return };
        let mut clean = std::mem::take(&mut self.clean);
        self.predict_clean(level, model_output, sample, &mut clean);
        let input = StepInput { index: self.at, level, prediction: self.prediction, model_output, clean: &clean };
        self.plan.solver.step(&input, sample, &mut noise);
        self.clean = clean;
        self.at += 1;
    }

    /// The clean sample predicted at the current step, for previews. Call it before [`Self::step`].
    pub fn clean(&self, model_output: &[f32], sample: &[f32]) -> Vec<f32> {
        let mut clean = Vec::new();
        if let Some(level) = self.level(self.at) {
            self.predict_clean(level, model_output, sample, &mut clean);
        }
        clean
    }

    /// Noises a clean sample to the level at the start of a step, counted from 0; after the last step it stays clean.
    ///
    /// Step 0 starts an image-to-image run. For inpainting, the kept part is set to step `i + 1` after step `i`, with
    /// the same noise each time.
    pub fn add_noise(&self, clean: &[f32], noise: &[f32], step: usize, out: &mut [f32]) {
        let (signal, share) =
            self.level(self.begin + step).map_or((1., 0.), |level| (level.signal as f32, level.noise as f32));
        for (out, (clean, noise)) in out.iter_mut().zip(clean.iter().zip(noise)) {
            *out = signal * clean + share * noise;
        }
    }

    fn level(&self, index: usize) -> Option<NoiseLevel> {
        self.plan.levels.get(index).copied()
    }

    fn predict_clean(&self, level: NoiseLevel, model_output: &[f32], sample: &[f32], clean: &mut Vec<f32>) {
        clean.clear();
        clean.extend(
            sample
                .iter()
                .zip(model_output)
                .map(|(x, model_output)| level.predict_clean(self.prediction, *model_output, *x)),
        );
        self.clipping.apply(clean);
    }

    /// Whether there is a call, all numbers are finite, and nothing is divided by zero.
    fn is_sound(&self) -> bool {
        let divides = self.prediction == Prediction::Epsilon;
        let sound = |level: &NoiseLevel| {
            let finite = level.signal.is_finite() && level.noise.is_finite();
            finite && level.noise > 0. && level.signal >= 0. && (level.signal > 0. || !divides)
        };
        let rest = self.plan.levels.get(self.begin..).unwrap_or_default();
        !rest.is_empty() && rest.iter().all(sound) && self.plan.timesteps.iter().all(|time| time.is_finite())
    }
}
