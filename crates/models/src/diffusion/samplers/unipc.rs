//! UniPC (Zhao et al. 2023, <https://arxiv.org/abs/2302.04867>): a predictor-corrector method. The next model output
//! corrects the predicted step.

use serde_json::Value;

use super::config_fields::{ConfigFields, Result};
use super::prediction::NoiseLevel;
use super::solver_trait::{Solver, StepInput, linear_combination};

/// The maximum length of `disable_corrector`.
const MAX_DISABLED_STEPS: usize = 1000;

#[derive(Clone, Debug)]
pub(super) struct Config {
    order: usize,
    /// Whether B(h) is h (`bh1`), rather than exp(h) - 1 (`bh2`).
    bh1: bool,
    lower_order_final: bool,
    /// The steps that are not corrected.
    disable_corrector: Vec<u64>,
}

impl Config {
    pub fn read(fields: ConfigFields<'_>) -> Result<Self> {
        fields.reject_fields(&["use_flow_sigmas", "use_dynamic_shifting", "solver_p"])?;
        if !fields.flag("predict_x0", true)? {
            return Err("`predict_x0` as false is not supported".into());
        }
        let disable_corrector = match fields.get("disable_corrector") {
            None => Vec::new(),
            Some(Value::Array(steps)) if steps.len() <= MAX_DISABLED_STEPS => {
                steps.iter().filter_map(Value::as_u64).collect()
            }
            Some(_) => return Err(format!("`disable_corrector` is not a list of at most {MAX_DISABLED_STEPS} steps")),
        };
        let solver_types = [("bh2", false), ("bh1", true), ("midpoint", false), ("heun", false), ("logrho", false)];
        Ok(Self {
            order: fields.count("solver_order", 2, 1..=3)?,
            bh1: fields.choice("solver_type", &solver_types)?.unwrap_or(false),
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
    /// The sample at the start of the previous step, and the order of that step.
    previous: Option<(Vec<f32>, usize)>,
}

impl UniPc {
    pub fn new(config: Config, sigmas: Vec<f64>) -> Self {
        Self { config, sigmas, clean_samples: Vec::new(), previous: None }
    }

    /// The change of lambda (half of the log signal-to-noise ratio) over a step (h in the paper).
    fn lambda_step(&self, index: usize) -> f64 {
        match (self.sigmas.get(index), self.sigmas.get(index + 1)) {
            (Some(sigma), Some(next)) => (sigma / next).ln(),
            _ => 0.,
        }
    }

    /// The order of the step at `index`, limited by the earlier samples and by the remaining steps.
    fn order(&self, index: usize) -> usize {
        let remaining = self.sigmas.len() - 1 - index;
        let max_order =
            if self.config.lower_order_final { self.config.order.min(remaining) } else { self.config.order };
        // A step to zero noise is infinitely long in lambda, so it is first order. Steps of zero length carry no
        // information for higher orders.
        let max_order = if self.lambda_step(index).is_finite() { max_order } else { 1 };
        let nonzero_steps =
            (1..max_order).take_while(|back| *back <= index && self.lambda_step(index - back) > 0.).count();
        max_order.min(self.clean_samples.len()).min(nonzero_steps + 1)
    }

    /// Distances in lambda of earlier clean samples from the newest, relative to the step at `index` (r in the paper).
    /// They are negative.
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

    /// Advances `sample` over the step at `index`. `next_clean`: for the corrector, the clean sample that is predicted
    /// at the end of the step.
    fn update(&self, index: usize, order: usize, sample: &mut [f32], next_clean: Option<&[f32]>) {
        let [level, next_level] = [index, index + 1].map(|index| NoiseLevel::from_sigma(self.sigmas[index]));
        let lambda_step = self.lambda_step(index);
        let one_minus_exp = -(-lambda_step).exp_m1();
        let mut ratios = self.step_ratios(index, order);
        ratios.extend(next_clean.map(|_| 1.));
        let weights = self.weights(&ratios, lambda_step);
        // A clean sample contributes its difference from the newest one, divided by its distance.
        let coefficients: Vec<f64> = ratios.iter().zip(weights).map(|(ratio, weight)| weight / ratio).collect();
        let newest = self.clean_samples.len() - 1;
        let (older, newest) = (&self.clean_samples[..newest], self.clean_samples[newest].as_slice());
        let mut terms = vec![(next_level.signal * (one_minus_exp - coefficients.iter().sum::<f64>()), newest)];
        let other_samples = older.iter().rev().map(Vec::as_slice).take(order - 1).chain(next_clean);
        terms.extend(coefficients.iter().map(|coefficient| next_level.signal * coefficient).zip(other_samples));
        linear_combination(sample, next_level.noise / level.noise, &terms);
    }

    /// The weights of the differences, `[ratios]`: equation 9 of the paper, with h = -`lambda_step`.
    fn weights(&self, ratios: &[f64], lambda_step: f64) -> Vec<f64> {
        let b_h = if self.config.bh1 { lambda_step } else { -(-lambda_step).exp_m1() };
        match ratios.len() {
            0 => return Vec::new(),
            // As in the reference, a single weight is fixed.
            1 => return vec![0.5 * b_h],
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

/// Solves a linear system by Gauss-Jordan elimination. Each row holds the coefficients and the right-hand side.
fn solve(mut rows: Vec<Vec<f64>>) -> Vec<f64> {
    let count = rows.len();
    for column in 0..count {
        let pivot = (column..count).max_by(|a, b| rows[*a][column].abs().total_cmp(&rows[*b][column].abs()));
        rows.swap(column, pivot.unwrap_or(column));
        let pivot_row = rows[column].clone();
        for (_, row) in rows.iter_mut().enumerate().filter(|(index, _)| *index != column) {
            let factor = row[column] / pivot_row[column];
            row.iter_mut().zip(&pivot_row).for_each(|(x, pivot)| *x -= factor * pivot);
        }
    }
    rows.iter().enumerate().map(|(index, row)| row[count] / row[index]).collect()
}

impl Solver for UniPc {
    fn step(&mut self, input: &StepInput<'_>, sample: &mut [f32], _: &mut dyn FnMut(usize) -> Vec<f32>) {
        let previous_index = input.index.checked_sub(1);
        let corrected = previous_index.filter(|index| !self.config.disable_corrector.contains(&(*index as u64)));
        if let (Some(previous_index), Some((start_sample, order))) = (corrected, self.previous.take())
            && self.lambda_step(previous_index) > 0.
        {
            sample.iter_mut().zip(start_sample).for_each(|(x, start)| *x = start);
            self.update(previous_index, order, sample, Some(input.clean));
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
