//! Multistep DPM-Solver++ (Lu et al. 2022, <https://arxiv.org/abs/2211.01095>) and its SDE variant.

use serde_json::Value;

use super::config_fields::{ConfigFields, Result};
use super::prediction::NoiseLevel;
use super::solver_trait::{Solver, StepInput, linear_combination};

/// With fewer steps than this, the last steps have lower orders.
const LOWER_ORDER_BELOW: usize = 15;

#[derive(Clone, Copy, Debug)]
pub(super) struct Config {
    order: usize,
    /// Second order uses Heun's rule and not the midpoint rule.
    heun: bool,
    /// Set for the SDE variant, whose steps remove more noise and add new noise.
    stochastic: bool,
    lower_order_final: bool,
    euler_at_final: bool,
    /// Minimum lambda (half of the log signal-to-noise ratio) of a step.
    pub lambda_min: Option<f64>,
}

impl Config {
    pub fn read(fields: ConfigFields<'_>) -> Result<Self> {
        fields.reject_fields(&["use_flow_sigmas"])?;
        if fields.get("variance_type").and_then(Value::as_str).is_some_and(|variance| variance.starts_with("learned")) {
            return Err("a model that predicts the variance is not supported".into());
        }
        let algorithms = [("dpmsolver++", false), ("sde-dpmsolver++", true), ("deis", false)];
        let solver_types = [("midpoint", false), ("heun", true), ("logrho", false), ("bh1", false), ("bh2", false)];
        let stochastic = fields.choice("algorithm_type", &algorithms)?.unwrap_or(false);
        let order = fields.count("solver_order", 2, 1..=3)?;
        if stochastic && order == 3 {
            return Err("`algorithm_type` \"sde-dpmsolver++\" with a `solver_order` of 3 is not supported".into());
        }
        Ok(Self {
            order,
            heun: fields.choice("solver_type", &solver_types)?.unwrap_or(false),
            stochastic,
            lower_order_final: fields.flag("lower_order_final", true)?,
            euler_at_final: fields.flag("euler_at_final", false)?,
            lambda_min: fields.optional("lambda_min_clipped", f64::NEG_INFINITY..=1e6)?,
        })
    }
}

pub(super) struct DpmSolver {
    config: Config,
    final_sigma_zero: bool,
    /// `[calls + 1]`
    sigmas: Vec<f64>,
    /// Predicted clean samples, newest last.
    clean_samples: Vec<Vec<f32>>,
}

impl DpmSolver {
    pub fn new(config: Config, sigmas: Vec<f64>, final_sigma_zero: bool) -> Self {
        Self { config, final_sigma_zero, sigmas, clean_samples: Vec::new() }
    }

    /// The order of the step at `index`, limited by the earlier samples and by the remaining steps.
    fn order(&self, index: usize) -> usize {
        let steps = self.sigmas.len() - 1;
        let lower_order = steps < LOWER_ORDER_BELOW && self.config.lower_order_final;
        let max_order = match steps - index {
            1 if self.config.euler_at_final || lower_order || self.final_sigma_zero => 1,
            2 if lower_order => 2,
            _ => self.config.order,
        };
        // Steps of zero length carry no information for higher orders.
        let nonzero_steps =
            (1..max_order).take_while(|back| *back <= index && self.lambda_step(index - back) > 0.).count();
        max_order.min(self.clean_samples.len()).min(nonzero_steps + 1)
    }

    /// The change of lambda (half of the log signal-to-noise ratio) over a step (h in the paper).
    fn lambda_step(&self, index: usize) -> f64 {
        match (self.sigmas.get(index), self.sigmas.get(index + 1)) {
            (Some(sigma), Some(next)) => (sigma / next).ln(),
            _ => 0.,
        }
    }

    /// The weights of the newest clean sample and of its first and second divided differences.
    fn weights(&self, order: usize, lambda_step: f64) -> [f64; 3] {
        let lambda_step = if self.config.stochastic { 2. * lambda_step } else { lambda_step };
        let one_minus_exp = -(-lambda_step).exp_m1();
        match order {
            1 => [one_minus_exp, 0., 0.],
            2 if !self.config.heun => [one_minus_exp, 0.5 * one_minus_exp, 0.],
            2 => [one_minus_exp, 1. - one_minus_exp / lambda_step, 0.],
            _ => [
                one_minus_exp,
                1. - one_minus_exp / lambda_step,
                0.5 + (one_minus_exp - lambda_step) / (lambda_step * lambda_step),
            ],
        }
    }

    /// The coefficients of the clean samples, newest first.
    fn coefficients(&self, index: usize, order: usize) -> Vec<f64> {
        let lambda_step = self.lambda_step(index);
        let [newest, first, second] = self.weights(order, lambda_step);
        if order == 1 {
            return vec![newest];
        }
        // `r0` and `r1` are the ratios of the previous two steps to this one, as in the paper.
        let inverse_r0 = lambda_step / self.lambda_step(index - 1);
        if order == 2 {
            return vec![newest + first * inverse_r0, -first * inverse_r0];
        }
        let inverse_r1 = lambda_step / self.lambda_step(index - 2);
        let (r0, r1) = (1. / inverse_r0, 1. / inverse_r1);
        let (slope, curvature) = (r0 / (r0 + r1), 1. / (r0 + r1));
        let (d0, d1) = (first * (1. + slope) + second * curvature, -first * slope - second * curvature);
        vec![newest + d0 * inverse_r0, d1 * inverse_r1 - d0 * inverse_r0, -d1 * inverse_r1]
    }
}

impl Solver for DpmSolver {
    fn step(&mut self, input: &StepInput<'_>, sample: &mut [f32], noise: &mut dyn FnMut(usize) -> Vec<f32>) {
        if self.clean_samples.len() == self.config.order {
            self.clean_samples.remove(0);
        }
        self.clean_samples.push(input.clean.to_vec());
        let new_noise = if self.config.stochastic { noise(input.clean.len()) } else { Vec::new() };
        let lambda_step = self.lambda_step(input.index);
        let next_sigma = self.sigmas.get(input.index + 1).copied().filter(|_| lambda_step > 0.);
        let Some(next_sigma) = next_sigma else { return };
        let next = NoiseLevel::from_sigma(next_sigma);
        let decay = if self.config.stochastic { (-lambda_step).exp() } else { 1. };
        let coefficients = self.coefficients(input.index, self.order(input.index));
        let clean_samples = self.clean_samples.iter().rev().map(Vec::as_slice);
        let weights = coefficients.into_iter().map(|coefficient| next.signal * coefficient);
        let mut terms: Vec<_> = weights.zip(clean_samples).collect();
        if self.config.stochastic {
            terms.push((next.noise * (-(-2. * lambda_step).exp_m1()).sqrt(), &new_noise));
        }
        linear_combination(sample, next.noise / input.level.noise * decay, &terms);
    }
}
