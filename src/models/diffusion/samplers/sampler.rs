//! The way of one picture.

use super::config::{ScheduleKind, SchedulerConfig};
use super::config_fields::Result;
use super::params::SamplingParams;
use super::prediction::{Clipping, NoiseLevel, Prediction};
use super::solver::{Solver, StepInput};

/// A picture's way from noise, or from a picture with noise, to itself.
pub struct Sampler {
    prediction: Prediction,
    clipping: Clipping,
    plan: StepPlan,
    begin: usize,
    /// The next call, of all.
    at: usize,
    /// The clean sample that is guessed; kept for its memory.
    clean: Vec<f32>,
}

/// What a way comes to, of all calls of the network, though a course may begin late.
pub(super) struct StepPlan {
    /// What the network is told: `[calls]`
    pub timesteps: Vec<f64>,
    /// `[calls]`
    pub levels: Vec<NoiseLevel>,
    pub init_noise_sigma: f64,
    pub solver: Box<dyn Solver>,
}

impl Sampler {
    /// # Errors
    /// In words for whoever asked: too few or too many steps, a strength that leaves none, or settings that do not
    /// make a way of so many.
    pub fn new(config: &SchedulerConfig, params: SamplingParams) -> Result<Self> {
        let (steps, begin) = (params.steps, params.begin_index(config.is_flow())?);
        let plan = match &config.kind {
            ScheduleKind::Alphas(schedule) => schedule.plan(steps, begin)?,
            ScheduleKind::Sigmas(schedule) => schedule.plan(steps)?,
            ScheduleKind::Flow(flow) => flow.plan(params)?,
        };
        let (prediction, clipping) = (config.prediction, config.clipping);
        let sampler = Self { prediction, clipping, plan, begin, at: begin, clean: Vec::new() };
        if sampler.is_sound() { Ok(sampler) } else { Err(format!("the model's settings do not make {steps} steps")) }
    }

    /// Calls of the network; at least one.
    #[expect(clippy::len_without_is_empty, reason = "a sampler has at least one step")]
    pub fn len(&self) -> usize {
        self.plan.timesteps.len() - self.begin
    }

    /// What the network is told at a step, from 0: a training step, or between two of them; of flows, as many of
    /// the training steps as there is noise. After the last step, as at the last.
    pub fn timestep(&self, step: usize) -> f32 {
        let at = (self.begin + step).min(self.plan.timesteps.len() - 1);
        self.plan.timesteps.get(at).map_or(0., |time| *time as f32)
    }

    /// What noise is multiplied by for the first sample. A course that begins with a picture begins with
    /// [`Self::add_noise`] instead.
    pub fn init_noise_sigma(&self) -> f32 {
        self.plan.init_noise_sigma as f32
    }

    /// What the sample is multiplied by for the network at the current step.
    pub fn input_scale(&self) -> f32 {
        self.level(self.at).map_or(1., |level| level.input_scale as f32)
    }

    /// Makes the next sample of this one and of the network's guess, both of one picture. `noise` makes as many
    /// normal numbers as it is asked for, in the sample's layout; it is asked at most once, and not at all where the
    /// way is not a random one. After the last step, nothing happens.
    pub fn step(&mut self, model_output: &[f32], sample: &mut [f32], mut noise: impl FnMut(usize) -> Vec<f32>) {
        let Some(level) = self.level(self.at) else { return };
        let mut clean = std::mem::take(&mut self.clean);
        self.predict_clean(level, model_output, sample, &mut clean);
        let input = StepInput { index: self.at, level, prediction: self.prediction, model_output, clean: &clean };
        self.plan.solver.step(&input, sample, &mut noise);
        self.clean = clean;
        self.at += 1;
    }

    /// The clean sample that a guess at the current step means: a preview. To be asked before [`Self::step`].
    pub fn clean(&self, model_output: &[f32], sample: &[f32]) -> Vec<f32> {
        let mut clean = Vec::new();
        if let Some(level) = self.level(self.at) {
            self.predict_clean(level, model_output, sample, &mut clean);
        }
        clean
    }

    /// A clean sample as it is with noise at the begin of a step, from 0; after the last step it is clean.
    ///
    /// Step 0 is what a course begins with that begins with a picture. Where a part of a picture stays, that part
    /// becomes what step `i + 1` has after step `i`, of the same noise each time.
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

    /// Whether there is a call, every number is one, and no guess is divided by nothing.
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
