//! The sampler that denoises one image.

use super::clipping::Clipping;
use super::config_fields::Result;
use super::prediction::{NoiseLevel, PredictionType};
use super::sampling_params::SamplingParams;
use super::scheduler_config::{Schedule, SchedulerConfig};
use super::solver_trait::{StepInput, StepPlan};

/// Denoises one image, from noise or from a noised initial image.
pub struct Sampler {
    prediction_type: PredictionType,
    clipping: Clipping,
    plan: StepPlan,
    /// The first denoiser call to run; later than 0 for image-to-image.
    begin_index: usize,
    /// The next denoiser call, counted from the start of the full schedule.
    step_index: usize,
    /// Scratch for the predicted clean sample.
    clean: Vec<f32>,
}

impl Sampler {
    /// # Errors
    /// The number of steps is out of range, the strength leaves no steps, or the config does not support this number of
    /// steps.
    pub fn new(config: &SchedulerConfig, params: SamplingParams) -> Result<Self> {
        let (steps, begin_index) = (params.steps, params.begin_index(config.is_flow())?);
        let plan = match &config.schedule {
            Schedule::Alpha(schedule) => schedule.plan(steps, begin_index)?,
            Schedule::Sigma(schedule) => schedule.plan(steps)?,
            Schedule::Flow(schedule) => schedule.plan(params)?,
        };
        let (prediction_type, clipping) = (config.prediction_type, config.clipping);
        let sampler = Self { prediction_type, clipping, plan, begin_index, step_index: begin_index, clean: Vec::new() };
        if sampler.is_valid() { Ok(sampler) } else { Err(format!("the model's settings do not allow {steps} steps")) }
    }

    /// The number of denoiser calls; at least one.
    #[expect(clippy::len_without_is_empty, reason = "a sampler has at least one step")]
    pub fn len(&self) -> usize {
        self.plan.timesteps.len() - self.begin_index
    }

    /// The timestep of `step`, counted from 0: a training step, which may be fractional; for flow matching, sigma times
    /// the number of training steps. Out-of-range steps have the last timestep.
    pub fn timestep(&self, step: usize) -> f32 {
        let index = (self.begin_index + step).min(self.plan.timesteps.len() - 1);
        self.plan.timesteps.get(index).map_or(0., |time| *time as f32)
    }

    /// The scale of the initial noise. Image-to-image starts with [`Self::add_noise`] instead.
    pub fn init_noise_sigma(&self) -> f32 {
        self.plan.init_noise_sigma as f32
    }

    /// The scale of the denoiser input at the current step.
    pub fn input_scale(&self) -> f32 {
        self.noise_level(self.step_index).map_or(1., |level| level.input_scale as f32)
    }

    /// Replaces `sample` by the next sample, given the model output for the current one. `noise` returns the requested
    /// number of normal values in the layout of the sample. It is called at most once, and only by stochastic samplers.
    /// Does nothing after the last step.
    pub fn step(&mut self, model_output: &[f32], sample: &mut [f32], mut noise: impl FnMut(usize) -> Vec<f32>) {
        let Some(level) = self.noise_level(self.step_index) else { return };
        let mut clean = std::mem::take(&mut self.clean);
        self.predict_clean(level, model_output, sample, &mut clean);
        let input = StepInput {
            index: self.step_index,
            level,
            prediction_type: self.prediction_type,
            model_output,
            clean: &clean,
        };
        self.plan.solver.step(&input, sample, &mut noise);
        self.clean = clean;
        self.step_index += 1;
    }

    /// The clean sample that is predicted at the current step, for previews. Must be called before [`Self::step`].
    pub fn clean(&self, model_output: &[f32], sample: &[f32]) -> Vec<f32> {
        let mut clean = Vec::new();
        if let Some(level) = self.noise_level(self.step_index) {
            self.predict_clean(level, model_output, sample, &mut clean);
        }
        clean
    }

    /// Adds noise to a clean sample, up to the noise level at the start of `step`, counted from 0. Adds none after the
    /// last step.
    ///
    /// Image-to-image starts with step 0. Inpainting replaces the unmasked region after each step `i` by the initial
    /// image at the level of step `i + 1`, with the same noise each time.
    pub fn add_noise(&self, clean: &[f32], noise: &[f32], step: usize, out: &mut [f32]) {
        let (signal, noise_scale) = self
            .noise_level(self.begin_index + step)
            .map_or((1., 0.), |level| (level.signal as f32, level.noise as f32));
        for (out, (clean, noise)) in out.iter_mut().zip(clean.iter().zip(noise)) {
            *out = signal * clean + noise_scale * noise;
        }
    }

    fn noise_level(&self, index: usize) -> Option<NoiseLevel> {
        self.plan.levels.get(index).copied()
    }

    fn predict_clean(&self, level: NoiseLevel, model_output: &[f32], sample: &[f32], clean: &mut Vec<f32>) {
        clean.clear();
        clean.extend(
            sample
                .iter()
                .zip(model_output)
                .map(|(x, model_output)| level.predict_clean(self.prediction_type, *model_output, *x)),
        );
        self.clipping.apply(clean);
    }

    /// Whether there is at least one step, all values are finite, and no step divides by zero.
    fn is_valid(&self) -> bool {
        let divides_by_signal = self.prediction_type == PredictionType::Epsilon;
        let is_valid = |level: &NoiseLevel| {
            let finite = level.signal.is_finite() && level.noise.is_finite();
            finite && level.noise > 0. && level.signal >= 0. && (level.signal > 0. || !divides_by_signal)
        };
        let levels = self.plan.levels.get(self.begin_index..).unwrap_or_default();
        !levels.is_empty() && levels.iter().all(is_valid) && self.plan.timesteps.iter().all(|time| time.is_finite())
    }
}
