//! DPM-Solver++, multistep: Lu et al. 2022, <https://arxiv.org/abs/2211.01095>, and its SDE variant.

use serde_json::Value;

use super::config_fields::{ConfigFields, Result};
use super::prediction::NoiseLevel;
use super::solver::{Solver, StepInput, linear_combination};

/// Runs with fewer steps end at lower orders.
const LOWER_ORDER_BELOW: usize = 15;

#[derive(Clone, Copy, Debug)]
pub(super) struct Config {
    order: usize,
    /// Second order by Heun's rule, rather than by the midpoint.
    heun: bool,
    /// The SDE variant: each step removes more noise and adds new noise.
    stochastic: bool,
    lower_order_final: bool,
    euler_at_final: bool,
    /// Log signal-to-noise ratio below which no step is taken.
    pub lambda_min: Option<f64>,
}

impl Config {
    pub fn read(fields: ConfigFields<'_>) -> Result<Self> {
        fields.reject_field(&["use_flow_sigmas"])?;
        if fields.get("variance_type").and_then(Value::as_str).is_some_and(|kind| kind.starts_with("learned")) {
            return Err("a network that predicts a variance is not supported".into());
        }
        let algorithms = [("dpmsolver++", false), ("sde-dpmsolver++", true), ("deis", false)];
        let rules = [("midpoint", false), ("heun", true), ("logrho", false), ("bh1", false), ("bh2", false)];
        let stochastic = fields.choice("algorithm_type", &algorithms)?.unwrap_or(false);
        let order = fields.count("solver_order", 2, 1..=3)?;
        if stochastic && order == 3 {
            return Err("`algorithm_type` \"sde-dpmsolver++\" with a `solver_order` of 3 is not supported".into());
        }
        Ok(Self {
            order,
            heun: fields.choice("solver_type", &rules)?.unwrap_or(false),
            stochastic,
            lower_order_final: fields.flag("lower_order_final", true)?,
            euler_at_final: fields.flag("euler_at_final", false)?,
            lambda_min: fields.optional("lambda_min_clipped", f64::NEG_INFINITY..=1e6)?,
        })
    }
}

pub(super) struct Dpm {
    config: Config,
    final_sigma_zero: bool,
    /// `[calls + 1]`
    sigmas: Vec<f64>,
    /// Predicted clean samples, newest last.
    clean_samples: Vec<Vec<f32>>,
}

impl Dpm {
    pub fn new(config: Config, sigmas: Vec<f64>, final_sigma_zero: bool) -> Self {
        Self { config, final_sigma_zero, sigmas, clean_samples: Vec::new() }
    }

    /// The order of the step at `index`, limited by history and by the distance to the end.
    fn order(&self, index: usize) -> usize {
        let (calls, short) =
            (self.sigmas.len() - 1, self.sigmas.len() - 1 < LOWER_ORDER_BELOW && self.config.lower_order_final);
        let most = match calls - index {
            1 if self.config.euler_at_final || short || self.final_sigma_zero => 1,
            2 if short => 2,
            _ => self.config.order,
        };
        // Steps of zero length carry no information about the trend.
        let moving = (1..most).take_while(|back| *back <= index && self.lambda_step(index - back) > 0.).count();
        most.min(self.clean_samples.len()).min(moving + 1)
    }

    /// The change of the log signal-to-noise ratio over a step (h in the paper).
    fn lambda_step(&self, index: usize) -> f64 {
        match (self.sigmas.get(index), self.sigmas.get(index + 1)) {
            (Some(sigma), Some(next)) => (sigma / next).ln(),
            _ => 0.,
        }
    }

    /// Coefficients of the newest clean sample and of its first and second differences.
    fn weights(&self, order: usize, lambda_step: f64) -> [f64; 3] {
        let lambda_step = if self.config.stochastic { 2. * lambda_step } else { lambda_step };
        let lost = -(-lambda_step).exp_m1();
        match order {
            1 => [lost, 0., 0.],
            2 if !self.config.heun => [lost, 0.5 * lost, 0.],
            2 => [lost, 1. - lost / lambda_step, 0.],
            _ => [lost, 1. - lost / lambda_step, 0.5 + (lost - lambda_step) / (lambda_step * lambda_step)],
        }
    }

    /// Coefficients of the clean samples, newest first.
    fn coefficients(&self, index: usize, order: usize) -> Vec<f64> {
        let lambda_step = self.lambda_step(index);
        let [own, first, second] = self.weights(order, lambda_step);
        if order == 1 {
            return vec![own];
        }
        let near = lambda_step / self.lambda_step(index - 1);
        if order == 2 {
            return vec![own + first * near, -first * near];
        }
        // Divided differences of the newest two samples, and of the two before them.
        let far = lambda_step / self.lambda_step(index - 2);
        let (back, further) = (1. / near, 1. / far);
        let (slope, curve) = (back / (back + further), 1. / (back + further));
        let (of_near, of_far) = (first * (1. + slope) + second * curve, -first * slope - second * curve);
        vec![own + of_near * near, of_far * far - of_near * near, -of_far * far]
    }
}

impl Solver for Dpm {
    fn step(&mut self, input: &StepInput<'_>, sample: &mut [f32], noise: &mut dyn FnMut(usize) -> Vec<f32>) {
        if self.clean_samples.len() == self.config.order {
            self.clean_samples.remove(0);
        }
        self.clean_samples.push(input.clean.to_vec());
        let fresh = if self.config.stochastic { noise(input.clean.len()) } else { Vec::new() };
        let lambda_step = self.lambda_step(input.index);
        let Some(next) = self.sigmas.get(input.index + 1).copied().filter(|_| lambda_step > 0.) else { return };
        let (next, shrink) =
            (NoiseLevel::from_sigma(next), if self.config.stochastic { (-lambda_step).exp() } else { 1. });
        let coefficients = self.coefficients(input.index, self.order(input.index));
        let clean_samples = self.clean_samples.iter().rev().map(Vec::as_slice);
        let mut parts: Vec<_> = coefficients.into_iter().map(|share| next.signal * share).zip(clean_samples).collect();
        if self.config.stochastic {
            parts.push((next.noise * (-(-2. * lambda_step).exp_m1()).sqrt(), &fresh));
        }
        linear_combination(sample, next.noise / input.level.noise * shrink, &parts);
    }
}
