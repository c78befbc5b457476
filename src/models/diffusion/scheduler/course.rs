//! The way of one picture.

use super::fields::Result;
use super::guess::{Bounds, Mix, Prediction};
use super::plan::Plan;
use super::settings::{Settings, Way};
use super::solver::{Call, Solver};

/// A picture's way from noise, or from a picture with noise, to itself.
pub struct Course {
    prediction: Prediction,
    bounds: Bounds,
    made: Made,
    begin: usize,
    /// The next call, of all.
    at: usize,
    /// The clean sample that is guessed; kept for its memory.
    clean: Vec<f32>,
}

/// What a way comes to, of all calls of the network, though a course may begin late.
pub(super) struct Made {
    /// What the network is told: `[calls]`
    pub times: Vec<f64>,
    /// `[calls]`
    pub mixes: Vec<Mix>,
    pub first_scale: f64,
    pub solver: Box<dyn Solver>,
}

impl Course {
    /// # Errors
    /// In words for whoever asked: too few or too many steps, a strength that leaves none, or settings that do not
    /// make a way of so many.
    pub fn new(settings: &Settings, plan: Plan) -> Result<Self> {
        let (steps, begin) = (plan.steps, plan.begin(settings.is_flow())?);
        let made = match &settings.way {
            Way::Kept(kept) => kept.way(steps, begin)?,
            Way::Ladder(ladder) => ladder.way(steps)?,
            Way::Flow(flow) => flow.way(plan)?,
        };
        let (prediction, bounds) = (settings.prediction, settings.bounds);
        let course = Self { prediction, bounds, made, begin, at: begin, clean: Vec::new() };
        if course.is_sound() { Ok(course) } else { Err(format!("the model's settings do not make {steps} steps")) }
    }

    /// Calls of the network; at least one.
    #[expect(clippy::len_without_is_empty, reason = "there is no course without a call")]
    pub fn len(&self) -> usize {
        self.made.times.len() - self.begin
    }

    /// What the network is told at a step, from 0: a training step, or between two of them; of flows, as many of
    /// the training steps as there is noise. After the last step, as at the last.
    pub fn time(&self, step: usize) -> f32 {
        let at = (self.begin + step).min(self.made.times.len() - 1);
        self.made.times.get(at).map_or(0., |time| *time as f32)
    }

    /// What noise is multiplied by for the first sample. A course that begins with a picture begins with
    /// [`Self::noised`] instead.
    pub fn first_scale(&self) -> f32 {
        self.made.first_scale as f32
    }

    /// What the sample is multiplied by for the network at the current step.
    pub fn scale_input(&self) -> f32 {
        self.mix(self.at).map_or(1., |mix| mix.scale as f32)
    }

    /// Makes the next sample of this one and of the network's guess, both of one picture. `noise` makes as many
    /// normal numbers as it is asked for, in the sample's layout; it is asked at most once, and not at all where the
    /// way is not a random one. After the last step, nothing happens.
    pub fn step(&mut self, guess: &[f32], sample: &mut [f32], mut noise: impl FnMut(usize) -> Vec<f32>) {
        let Some(mix) = self.mix(self.at) else { return };
        let mut clean = std::mem::take(&mut self.clean);
        self.guessed(mix, guess, sample, &mut clean);
        let call = Call { index: self.at, mix, prediction: self.prediction, guess, clean: &clean };
        self.made.solver.step(&call, sample, &mut noise);
        self.clean = clean;
        self.at += 1;
    }

    /// The clean sample that a guess at the current step means: a preview. To be asked before [`Self::step`].
    pub fn clean(&self, guess: &[f32], sample: &[f32]) -> Vec<f32> {
        let mut clean = Vec::new();
        if let Some(mix) = self.mix(self.at) {
            self.guessed(mix, guess, sample, &mut clean);
        }
        clean
    }

    /// A clean sample as it is with noise at the begin of a step, from 0; after the last step it is clean.
    ///
    /// Step 0 is what a course begins with that begins with a picture. Where a part of a picture stays, that part
    /// becomes what step `i + 1` has after step `i`, of the same noise each time.
    pub fn noised(&self, clean: &[f32], noise: &[f32], step: usize, out: &mut [f32]) {
        let (signal, share) = self.mix(self.begin + step).map_or((1., 0.), |mix| (mix.signal as f32, mix.noise as f32));
        for (out, (clean, noise)) in out.iter_mut().zip(clean.iter().zip(noise)) {
            *out = signal * clean + share * noise;
        }
    }

    fn mix(&self, index: usize) -> Option<Mix> {
        self.made.mixes.get(index).copied()
    }

    fn guessed(&self, mix: Mix, guess: &[f32], sample: &[f32], clean: &mut Vec<f32>) {
        clean.clear();
        clean.extend(sample.iter().zip(guess).map(|(x, guess)| mix.clean(self.prediction, *guess, *x)));
        self.bounds.apply(clean);
    }

    /// Whether there is a call, every number is one, and no guess is divided by nothing.
    fn is_sound(&self) -> bool {
        let divides = self.prediction == Prediction::Noise;
        let sound = |mix: &Mix| {
            let finite = mix.signal.is_finite() && mix.noise.is_finite();
            finite && mix.noise > 0. && mix.signal >= 0. && (mix.signal > 0. || !divides)
        };
        let rest = self.made.mixes.get(self.begin..).unwrap_or_default();
        !rest.is_empty() && rest.iter().all(sound) && self.made.times.iter().all(|time| time.is_finite())
    }
}
