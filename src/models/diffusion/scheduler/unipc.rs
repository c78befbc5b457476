//! UniPC: Zhao et al. 2023, <https://arxiv.org/abs/2302.04867>: a step is predicted, and corrected by the next guess.

use serde_json::Value;

use super::fields::{Fields, Result};
use super::guess::Mix;
use super::solver::{Call, Solver, combine};

const MOST_STEPS: usize = 1000;

#[derive(Clone, Debug)]
pub(super) struct Settings {
    order: usize,
    /// B(h) = h, rather than exp(h) - 1.
    plain: bool,
    lower_end: bool,
    /// Steps that are not corrected.
    uncorrected: Vec<u64>,
}

impl Settings {
    pub fn read(fields: Fields<'_>) -> Result<Self> {
        fields.refuse(&["use_flow_sigmas", "use_dynamic_shifting", "solver_p"])?;
        if !fields.flag("predict_x0", true)? {
            return Err("`predict_x0` as false is not supported".into());
        }
        let uncorrected = match fields.get("disable_corrector") {
            None => Vec::new(),
            Some(Value::Array(steps)) if steps.len() <= MOST_STEPS => steps.iter().filter_map(Value::as_u64).collect(),
            Some(_) => return Err(format!("`disable_corrector` is not a list of at most {MOST_STEPS} steps")),
        };
        let kinds = [("bh2", false), ("bh1", true), ("midpoint", false), ("heun", false), ("logrho", false)];
        Ok(Self {
            order: fields.count("solver_order", 2, 1..=3)?,
            plain: fields.word("solver_type", &kinds)?.unwrap_or(false),
            lower_end: fields.flag("lower_order_final", true)?,
            uncorrected,
        })
    }
}

pub(super) struct UniPc {
    settings: Settings,
    /// `[calls + 1]`
    sigmas: Vec<f64>,
    /// Clean samples as they were guessed, the newest last.
    guesses: Vec<Vec<f32>>,
    /// Where the last step began, and its order.
    last: Option<(Vec<f32>, usize)>,
}

impl UniPc {
    pub fn new(settings: Settings, sigmas: Vec<f64>) -> Self {
        Self { settings, sigmas, guesses: Vec::new(), last: None }
    }

    /// The logarithm of signal over noise at the end of a step less that at its begin.
    fn gap(&self, index: usize) -> f64 {
        match (self.sigmas.get(index), self.sigmas.get(index + 1)) {
            (Some(sigma), Some(next)) => (sigma / next).ln(),
            _ => 0.,
        }
    }

    /// Of the step from `index` on, by how many guesses there are and by how near the end is.
    fn order(&self, index: usize) -> usize {
        let left = self.sigmas.len() - 1 - index;
        let most = if self.settings.lower_end { self.settings.order.min(left) } else { self.settings.order };
        // A step to no noise at all is infinitely long: what came before says nothing of it. Nor do steps that stand
        // still.
        let most = if self.gap(index).is_finite() { most } else { 1 };
        let moving = (1..most).take_while(|back| *back <= index && self.gap(index - back) > 0.).count();
        most.min(self.guesses.len()).min(moving + 1)
    }

    /// How far the guesses before the newest lie from it, in steps from `index` on; they are negative.
    fn distances(&self, index: usize, order: usize) -> Vec<f64> {
        let mut sum = 0.;
        let gaps = (1..order).map(|back| self.gap(index.saturating_sub(back)));
        gaps.map(|gap| {
            sum -= gap;
            sum / self.gap(index)
        })
        .collect()
    }

    /// Takes `sample` from the begin of the step `index` to its end. `now` is what is guessed there, where it is known.
    fn go(&self, index: usize, order: usize, sample: &mut [f32], now: Option<&[f32]>) {
        let (Some(from), Some(to)) = (self.sigmas.get(index), self.sigmas.get(index + 1)) else { return };
        let (from, to, gap) = (Mix::of_ratio(*from), Mix::of_ratio(*to), self.gap(index));
        let lost = -(-gap).exp_m1();
        let mut places = self.distances(index, order);
        places.extend(now.map(|_| 1.));
        let weights = self.weights(&places, gap);
        // Each guess counts by its difference from the newest before the step, over its distance.
        let shares: Vec<f64> = places.iter().zip(weights).map(|(place, weight)| weight / place).collect();
        let mut guesses = self.guesses.iter().rev().map(Vec::as_slice);
        let newest = guesses.next().unwrap_or(&[]);
        let mut parts = vec![(to.signal * (lost - shares.iter().sum::<f64>()), newest)];
        let others = guesses.take(order - 1).chain(now);
        parts.extend(shares.iter().map(|share| to.signal * share).zip(others));
        combine(sample, to.noise / from.noise, &parts);
    }

    /// What the differences count, `[places]`: equation 9 of the paper, of h = -`gap`.
    fn weights(&self, places: &[f64], gap: f64) -> Vec<f64> {
        let scale = if self.settings.plain { gap } else { -(-gap).exp_m1() };
        match places.len() {
            0 => return Vec::new(),
            // The least order has a weight of its own, by which it is exact enough.
            1 => return vec![0.5 * scale],
            _ => {}
        }
        let (mut phi, mut factorial) = ((-gap).exp_m1() / -gap - 1., 1.);
        let rows = (0..places.len()).map(|power| {
            let mut row: Vec<f64> = places.iter().map(|place| place.powi(power as i32)).collect();
            row.push(-phi * factorial);
            factorial *= (power + 2) as f64;
            phi = phi / -gap - 1. / factorial;
            row
        });
        solve(rows.collect())
    }
}

/// The unknowns of as many equations, each a row of factors and then the sum, by Gauss's elimination.
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
    fn step(&mut self, call: &Call<'_>, sample: &mut [f32], _: &mut dyn FnMut(usize) -> Vec<f32>) {
        let before = call.index.checked_sub(1);
        let corrected = before.filter(|before| !self.settings.uncorrected.contains(&(*before as u64)));
        if let (Some(before), Some((begun, order))) = (corrected, self.last.take())
            && self.gap(before) > 0.
        {
            sample.iter_mut().zip(begun).for_each(|(x, begun)| *x = begun);
            self.go(before, order, sample, Some(call.clean));
        }
        if self.guesses.len() == self.settings.order {
            self.guesses.remove(0);
        }
        self.guesses.push(call.clean.to_vec());
        let order = self.order(call.index);
        self.last = Some((sample.to_vec(), order));
        if self.gap(call.index) > 0. {
            self.go(call.index, order, sample, None);
        }
    }
}
