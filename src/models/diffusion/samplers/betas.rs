//! Beta schedules and the products of their alphas.

use std::f64::consts::FRAC_PI_2;

use serde_json::Value;

use super::config_fields::{ConfigFields, Result};

/// The last alpha after rescaling to zero terminal SNR: small, but safe to divide by.
const MIN_ALPHA: f32 = 1. / 16_777_216.;

#[derive(Clone, Copy)]
enum BetaSchedule {
    Linear,
    ScaledLinear,
    Cosine,
}

const BETA_SCHEDULES: [(&str, BetaSchedule); 3] = [
    ("linear", BetaSchedule::Linear),
    ("scaled_linear", BetaSchedule::ScaledLinear),
    ("squaredcos_cap_v2", BetaSchedule::Cosine),
];

/// The defaults of a scheduler class.
pub(super) struct Defaults {
    pub start: f64,
    pub end: f64,
    scaled: bool,
}

pub(super) const DDPM_DEFAULTS: Defaults = Defaults { start: 0.0001, end: 0.02, scaled: false };
pub(super) const LCM_DEFAULTS: Defaults = Defaults { start: 0.00085, end: 0.012, scaled: true };

/// `alphas_cumprod`: products of one minus beta, `[train_steps]`.
///
/// Strictly decreasing within `(0, 1)`; the last may be zero. Anything else is an error.
pub(super) fn alphas_cumprod(fields: ConfigFields<'_>, train_steps: usize, defaults: &Defaults) -> Result<Vec<f32>> {
    let betas = match fields.get("trained_betas") {
        Some(Value::Array(betas)) if betas.len() == train_steps => {
            let betas: Option<Vec<f32>> = betas.iter().map(|beta| beta.as_f64().map(|beta| beta as f32)).collect();
            betas.ok_or("`trained_betas` are not all numbers")?
        }
        Some(_) => return Err(format!("`trained_betas` is not a list of {train_steps} numbers")),
        None => beta_schedule(fields, train_steps, defaults)?,
    };
    let mut product = 1f64;
    let alphas_cumprod: Vec<f32> = betas.iter().map(|beta| multiply(&mut product, 1. - beta)).collect();
    let falls = alphas_cumprod.windows(2).all(|pair| pair.first() > pair.last());
    if falls && alphas_cumprod.iter().all(|alpha| *alpha > 0. && *alpha < 1.) {
        Ok(alphas_cumprod)
    } else {
        Err("the betas do not turn an image into noise step by step".into())
    }
}

fn beta_schedule(fields: ConfigFields<'_>, train_steps: usize, defaults: &Defaults) -> Result<Vec<f32>> {
    let start = fields.number("beta_start", defaults.start, 0. ..=1.)?;
    let end = fields.number("beta_end", defaults.end, 0. ..=1.)?;
    let default = if defaults.scaled { BetaSchedule::ScaledLinear } else { BetaSchedule::Linear };
    let line =
        |from: f64, to: f64| move |at: usize| (from + (to - from) * at as f64 / (train_steps.max(2) - 1) as f64) as f32;
    Ok(match fields.choice("beta_schedule", &BETA_SCHEDULES)?.unwrap_or(default) {
        BetaSchedule::Linear => (0..train_steps).map(line(start, end)).collect(),
        BetaSchedule::ScaledLinear => {
            (0..train_steps).map(line(start.sqrt(), end.sqrt())).map(|root| root * root).collect()
        }
        BetaSchedule::Cosine => {
            let alpha_bar = |at: usize| ((at as f64 / train_steps as f64 + 0.008) / 1.008 * FRAC_PI_2).cos().powi(2);
            (0..train_steps).map(|at| (1. - alpha_bar(at + 1) / alpha_bar(at)).min(0.999) as f32).collect()
        }
    })
}

/// The running product. torch keeps it in f64 and the factors in f32.
fn multiply(product: &mut f64, factor: f32) -> f32 {
    *product *= f64::from(factor);
    *product as f32
}

/// Rescales so that the last training step is pure noise (Lin et al. 2023, <https://arxiv.org/abs/2305.08891>).
/// `divisible` keeps the last value above zero, for solvers that divide by it.
pub(super) fn rescale_zero_terminal_snr(alphas_cumprod: &mut [f32], divisible: bool) {
    let (Some(first), Some(last)) =
        (alphas_cumprod.first().map(|alpha| alpha.sqrt()), alphas_cumprod.last().map(|alpha| alpha.sqrt()))
    else {
        return;
    };
    let stretch = first / (first - last);
    let (mut product, mut before) = (1f64, 1f32);
    for one in &mut *alphas_cumprod {
        let moved = ((one.sqrt() - last) * stretch).powi(2);
        // Goes through betas, as the reference does; only rounding differs.
        *one = multiply(&mut product, 1. - (1. - moved / before));
        before = moved;
    }
    if let (true, Some(last)) = (divisible, alphas_cumprod.last_mut()) {
        *last = MIN_ALPHA;
    }
}
