//! DPM-Solver++, multistep: Lu et al. 2022, <https://arxiv.org/abs/2211.01095>, and its random kind.

use serde_json::Value;

use super::fields::{Fields, Result};
use super::guess::Mix;
use super::solver::{Call, Solver, combine};

/// Courses that are shorter than this end at lower orders.
const SHORT: usize = 15;

#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    order: usize,
    /// The second order by Heun's rule, rather than by the midpoint.
    heun: bool,
    /// Each step takes more noise away, and brings new noise in.
    random: bool,
    lower_end: bool,
    euler_end: bool,
    /// Signal over noise, in its logarithm, below which no step is taken.
    pub least: Option<f64>,
}

impl Settings {
    pub fn read(fields: Fields<'_>) -> Result<Self> {
        fields.refuse(&["use_flow_sigmas"])?;
        if fields.get("variance_type").and_then(Value::as_str).is_some_and(|kind| kind.starts_with("learned")) {
            return Err("a network that guesses a variance is not supported".into());
        }
        let algorithms = [("dpmsolver++", false), ("sde-dpmsolver++", true), ("deis", false)];
        let rules = [("midpoint", false), ("heun", true), ("logrho", false), ("bh1", false), ("bh2", false)];
        let random = fields.word("algorithm_type", &algorithms)?.unwrap_or(false);
        let order = fields.count("solver_order", 2, 1..=3)?;
        if random && order == 3 {
            return Err("`algorithm_type` \"sde-dpmsolver++\" with a `solver_order` of 3 is not supported".into());
        }
        Ok(Self {
            order,
            heun: fields.word("solver_type", &rules)?.unwrap_or(false),
            random,
            lower_end: fields.flag("lower_order_final", true)?,
            euler_end: fields.flag("euler_at_final", false)?,
            least: fields.optional("lambda_min_clipped", f64::NEG_INFINITY..=1e6)?,
        })
    }
}

pub(super) struct Dpm {
    settings: Settings,
    ends_clean: bool,
    /// `[calls + 1]`
    sigmas: Vec<f64>,
    /// Clean samples as they were guessed, the newest last.
    guesses: Vec<Vec<f32>>,
}

impl Dpm {
    pub fn new(settings: Settings, sigmas: Vec<f64>, ends_clean: bool) -> Self {
        Self { settings, ends_clean, sigmas, guesses: Vec::new() }
    }

    /// Of the step from `index` on, by how many guesses there are and by how near the end is.
    fn order(&self, index: usize) -> usize {
        let (calls, short) = (self.sigmas.len() - 1, self.sigmas.len() - 1 < SHORT && self.settings.lower_end);
        let most = match calls - index {
            1 if self.settings.euler_end || short || self.ends_clean => 1,
            2 if short => 2,
            _ => self.settings.order,
        };
        // Steps that stand still say nothing of where the guesses go.
        let moving = (1..most).take_while(|back| *back <= index && self.gap(index - back) > 0.).count();
        most.min(self.guesses.len()).min(moving + 1)
    }

    /// The logarithm of signal over noise at the end of a step less that at its begin.
    fn gap(&self, index: usize) -> f64 {
        match (self.sigmas.get(index), self.sigmas.get(index + 1)) {
            (Some(sigma), Some(next)) => (sigma / next).ln(),
            _ => 0.,
        }
    }

    /// What a step of a gap takes of the newest guess, and of its first and second differences.
    fn weights(&self, order: usize, gap: f64) -> [f64; 3] {
        let gap = if self.settings.random { 2. * gap } else { gap };
        let lost = -(-gap).exp_m1();
        match order {
            1 => [lost, 0., 0.],
            2 if !self.settings.heun => [lost, 0.5 * lost, 0.],
            2 => [lost, 1. - lost / gap, 0.],
            _ => [lost, 1. - lost / gap, 0.5 + (lost - gap) / (gap * gap)],
        }
    }

    /// The same of the guesses, the newest first.
    fn shares(&self, index: usize, order: usize) -> Vec<f64> {
        let gap = self.gap(index);
        let [own, first, second] = self.weights(order, gap);
        if order == 1 {
            return vec![own];
        }
        let near = gap / self.gap(index - 1);
        if order == 2 {
            return vec![own + first * near, -first * near];
        }
        // Differences of the newest two guesses and of the two before them, each over its gap.
        let far = gap / self.gap(index - 2);
        let (back, further) = (1. / near, 1. / far);
        let (slope, curve) = (back / (back + further), 1. / (back + further));
        let (of_near, of_far) = (first * (1. + slope) + second * curve, -first * slope - second * curve);
        vec![own + of_near * near, of_far * far - of_near * near, -of_far * far]
    }
}

impl Solver for Dpm {
    fn step(&mut self, call: &Call<'_>, sample: &mut [f32], noise: &mut dyn FnMut(usize) -> Vec<f32>) {
        if self.guesses.len() == self.settings.order {
            self.guesses.remove(0);
        }
        self.guesses.push(call.clean.to_vec());
        let fresh = if self.settings.random { noise(call.clean.len()) } else { Vec::new() };
        let gap = self.gap(call.index);
        let Some(next) = self.sigmas.get(call.index + 1).copied().filter(|_| gap > 0.) else { return };
        let (next, shrink) = (Mix::of_ratio(next), if self.settings.random { (-gap).exp() } else { 1. });
        let shares = self.shares(call.index, self.order(call.index));
        let guesses = self.guesses.iter().rev().map(Vec::as_slice);
        let mut parts: Vec<_> = shares.into_iter().map(|share| next.signal * share).zip(guesses).collect();
        if self.settings.random {
            parts.push((next.noise * (-(-2. * gap).exp_m1()).sqrt(), &fresh));
        }
        combine(sample, next.noise / call.mix.noise * shrink, &parts);
    }
}
