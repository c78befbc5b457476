//! UniPC: Zhao et al. 2023, <https://arxiv.org/abs/2302.04867>: a predictor whose steps are corrected by the next model
//! output.

use serde_json::Value;

use super::config_fields::{ConfigFields, Result};
use super::prediction::NoiseLevel;
use super::solver::{Solver, StepInput, linear_combination};

const MAX_STEPS: usize = 1000;

#[derive(Clone, Debug)]
pub(super) struct Config {
    order: usize,
    /// B(h) = h, rather than exp(h) - 1.
    bh1: bool,
    lower_order_final: bool,
    /// Steps that are not corrected.
    disable_corrector: Vec<u64>,
}

impl Config {
    pub fn read(fields: ConfigFields<'_>) -> Result<Self> {
        fields.reject_field(&["use_flow_sigmas", "use_dynamic_shifting", "solver_p"])?;
        if !fields.flag("predict_x0", true)? {
            return Err("`predict_x0` as false is not supported".into());
        }
        let disable_corrector = match fields.get("disable_corrector") {
            None => Vec::new(),
            Some(Value::Array(steps)) if steps.len() <= MAX_STEPS => steps.iter().filter_map(Value::as_u64).collect(),
            Some(_) => return Err(format!("`disable_corrector` is not a list of at most {MAX_STEPS} steps")),
        };
        let kinds = [("bh2", false), ("bh1", true), ("midpoint", false), ("heun", false), ("logrho", false)];
        Ok(Self {
            order: fields.count("solver_order", 2, 1..=3)?,
            bh1: fields.choice("solver_type", &kinds)?.unwrap_or(false),
            lower_order_final: fields.flag("lower_order_final", true)?,
            disable_corrector,
        })
    }
}

pub(super) struct UniPc {
    config: Config,
    /// `[calls + 1]`
    sigmas: Vec<f64>,
    /// Predicted clean samples, newest last.
    clean_samples: Vec<Vec<f32>>,
    /// The sample at the start of the last step, and that step's order.
    previous: Option<(Vec<f32>, usize)>,
}

impl UniPc {
    pub fn new(config: Config, sigmas: Vec<f64>) -> Self {
        Self { config, sigmas, clean_samples: Vec::new(), previous: None }
    }

    /// The change of the log signal-to-noise ratio over a step (h in the paper).
    fn lambda_step(&self, index: usize) -> f64 {
        match (self.sigmas.get(index), self.sigmas.get(index + 1)) {
            (Some(sigma), Some(next)) => (sigma / next).ln(),
            _ => 0.,
        }
    }

    /// The order of the step at `index`, limited by history and by the distance to the end.
    fn order(&self, index: usize) -> usize {
        let left = self.sigmas.len() - 1 - index;
        let most = if self.config.lower_order_final { self.config.order.min(left) } else { self.config.order };
        // A step to zero noise is infinitely long, so earlier samples carry no information about it. Nor do steps of
        // zero length.
        let most = if self.lambda_step(index).is_finite() { most } else { 1 };
        let moving = (1..most).take_while(|back| *back <= index && self.lambda_step(index - back) > 0.).count();
        most.min(self.clean_samples.len()).min(moving + 1)
    }

    /// Distances of earlier clean samples from the newest, in units of the step at `index`; they are negative.
    fn step_ratios(&self, index: usize, order: usize) -> Vec<f64> {
        let mut sum = 0.;
        let steps = (1..order).map(|back| self.lambda_step(index.saturating_sub(back)));
        steps
            .map(|lambda_step| {
                sum -= lambda_step;
                sum / self.lambda_step(index)
            })
            .collect()
    }

    /// Advances `sample` over the step `index`. `now`: the clean sample predicted at its end, if known.
    fn update(&self, index: usize, order: usize, sample: &mut [f32], now: Option<&[f32]>) {
        let [from, to] = [index, index + 1].map(|index| NoiseLevel::from_sigma(self.sigmas[index]));
        let lambda_step = self.lambda_step(index);
        let lost = -(-lambda_step).exp_m1();
        let mut ratios = self.step_ratios(index, order);
        ratios.extend(now.map(|_| 1.));
        let weights = self.weights(&ratios, lambda_step);
        // Each clean sample contributes its difference from the newest, divided by its distance.
        let coefficients: Vec<f64> = ratios.iter().zip(weights).map(|(ratio, weight)| weight / ratio).collect();
        let newest = self.clean_samples.len() - 1;
        let (older, newest) = (&self.clean_samples[..newest], self.clean_samples[newest].as_slice());
        let mut parts = vec![(to.signal * (lost - coefficients.iter().sum::<f64>()), newest)];
        let others = older.iter().rev().map(Vec::as_slice).take(order - 1).chain(now);
        parts.extend(coefficients.iter().map(|share| to.signal * share).zip(others));
        linear_combination(sample, to.noise / from.noise, &parts);
    }

    /// Weights of the differences, `[ratios]`: equation 9 of the paper, with h = -`lambda_step`.
    fn weights(&self, ratios: &[f64], lambda_step: f64) -> Vec<f64> {
        let scale = if self.config.bh1 { lambda_step } else { -(-lambda_step).exp_m1() };
        match ratios.len() {
            0 => return Vec::new(),
            // First order uses a fixed weight.
            1 => return vec![0.5 * scale],
            _ => {}
        }
        let (mut phi, mut factorial) = ((-lambda_step).exp_m1() / -lambda_step - 1., 1.);
        let rows = (0..ratios.len()).map(|power| {
            let mut row: Vec<f64> = ratios.iter().map(|ratio| ratio.powi(power as i32)).collect();
            row.push(-phi * factorial);
            factorial *= (power + 2) as f64;
            phi = phi / -lambda_step - 1. / factorial;
            row
        });
        solve(rows.collect())
    }
}

/// Solves a linear system by Gaussian elimination; each row holds coefficients and the right-hand side.
fn solve(mut rows: Vec<Vec<f64>>) -> Vec<f64> {
    let count = rows.len();
    for at in 0..count {
        let pivot = (at..count).max_by(|a, b| rows[*a][at].abs().total_cmp(&rows[*b][at].abs()));
        rows.swap(at, pivot.unwrap_or(at));
        let chosen = rows[at].clone();
        for (_, row) in rows.iter_mut().enumerate().filter(|(other, _)| *other != at) {
            let factor = row[at] / chosen[at];
            row.iter_mut().zip(&chosen).for_each(|(x, chosen)| *x -= factor * chosen);
        }
    }
    rows.iter().enumerate().map(|(at, row)| row[count] / row[at]).collect()
}

impl Solver for UniPc {
    fn step(&mut self, input: &StepInput<'_>, sample: &mut [f32], _: &mut dyn FnMut(usize) -> Vec<f32>) {
        let before = input.index.checked_sub(1);
        let corrected = before.filter(|before| !self.config.disable_corrector.contains(&(*before as u64)));
        if let (Some(before), Some((start_sample, order))) = (corrected, self.previous.take())
            && self.lambda_step(before) > 0.
        {
            sample.iter_mut().zip(start_sample).for_each(|(x, start_sample)| *x = start_sample);
            self.update(before, order, sample, Some(input.clean));
        }
        if self.clean_samples.len() == self.config.order {
            self.clean_samples.remove(0);
        }
        self.clean_samples.push(input.clean.to_vec());
        let order = self.order(input.index);
        self.previous = Some((sample.to_vec(), order));
        if self.lambda_step(input.index) > 0. {
            self.update(input.index, order, sample, None);
        }
    }
}
