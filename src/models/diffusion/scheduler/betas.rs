//! How much of a picture each training step leaves.

use std::f64::consts::FRAC_PI_2;

use serde_json::Value;

use super::fields::{Fields, Result};

/// What is left of a picture where a network was trained to begin from nothing: enough to divide by.
const NEARLY_NOTHING: f32 = 1. / 16_777_216.;

#[derive(Clone, Copy)]
enum Shape {
    Linear,
    ScaledLinear,
    Cosine,
}

const SHAPES: [(&str, Shape); 3] =
    [("linear", Shape::Linear), ("scaled_linear", Shape::ScaledLinear), ("squaredcos_cap_v2", Shape::Cosine)];

/// Where a class differs from the others.
pub(super) struct Defaults {
    pub start: f64,
    pub end: f64,
    scaled: bool,
}

pub(super) const PLAIN: Defaults = Defaults { start: 0.0001, end: 0.02, scaled: false };
pub(super) const CONSISTENCY: Defaults = Defaults { start: 0.00085, end: 0.012, scaled: true };

/// Products of one minus the betas: the squared share of the picture after each of `trained` steps, `[trained]`.
///
/// Falls strictly, within `(0, 1)`; the last may be zero. An error where the betas give anything else.
pub(super) fn read(fields: Fields<'_>, trained: usize, defaults: &Defaults) -> Result<Vec<f32>> {
    let betas = match fields.get("trained_betas") {
        Some(Value::Array(betas)) if betas.len() == trained => {
            let betas: Option<Vec<f32>> = betas.iter().map(|beta| beta.as_f64().map(|beta| beta as f32)).collect();
            betas.ok_or("`trained_betas` are not all numbers")?
        }
        Some(_) => return Err(format!("`trained_betas` is not a list of {trained} numbers")),
        None => scheduled(fields, trained, defaults)?,
    };
    let mut product = 1f64;
    let kept: Vec<f32> = betas.iter().map(|beta| multiply(&mut product, 1. - beta)).collect();
    let falls = kept.windows(2).all(|pair| pair.first() > pair.last());
    if falls && kept.iter().all(|kept| *kept > 0. && *kept < 1.) {
        Ok(kept)
    } else {
        Err("the betas do not turn a picture into noise step by step".into())
    }
}

fn scheduled(fields: Fields<'_>, trained: usize, defaults: &Defaults) -> Result<Vec<f32>> {
    let start = fields.number("beta_start", defaults.start, 0. ..=1.)?;
    let end = fields.number("beta_end", defaults.end, 0. ..=1.)?;
    let shape = if defaults.scaled { Shape::ScaledLinear } else { Shape::Linear };
    let line =
        |from: f64, to: f64| move |at: usize| (from + (to - from) * at as f64 / (trained.max(2) - 1) as f64) as f32;
    Ok(match fields.word("beta_schedule", &SHAPES)?.unwrap_or(shape) {
        Shape::Linear => (0..trained).map(line(start, end)).collect(),
        Shape::ScaledLinear => (0..trained).map(line(start.sqrt(), end.sqrt())).map(|root| root * root).collect(),
        Shape::Cosine => {
            let kept = |at: usize| ((at as f64 / trained as f64 + 0.008) / 1.008 * FRAC_PI_2).cos().powi(2);
            (0..trained).map(|at| (1. - kept(at + 1) / kept(at)).min(0.999) as f32).collect()
        }
    })
}

/// The running product, which torch has in f64 while its factors are f32.
fn multiply(product: &mut f64, factor: f32) -> f32 {
    *product *= f64::from(factor);
    *product as f32
}

/// Moves the products so that the last training step is noise and nothing else (Lin et al. 2023,
/// <https://arxiv.org/abs/2305.08891>). `divisible` leaves a trace of the picture, for solvers that divide by it.
pub(super) fn end_at_noise(kept: &mut [f32], divisible: bool) {
    let (Some(first), Some(last)) = (kept.first().map(|kept| kept.sqrt()), kept.last().map(|kept| kept.sqrt())) else {
        return;
    };
    let stretch = first / (first - last);
    let (mut product, mut before) = (1f64, 1f32);
    for one in &mut *kept {
        let moved = ((one.sqrt() - last) * stretch).powi(2);
        // By way of betas, as the reference has it: the same products but for their rounding.
        *one = multiply(&mut product, 1. - (1. - moved / before));
        before = moved;
    }
    if let (true, Some(last)) = (divisible, kept.last_mut()) {
        *last = NEARLY_NOTHING;
    }
}
