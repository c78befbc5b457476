//! Beta schedules and the cumulative products of alphas (one minus beta).

use std::f64::consts::FRAC_PI_2;

use serde_json::Value;

use super::config_fields::{ConfigFields, Result};

/// The last alpha product after rescaling to zero terminal SNR, for solvers that divide by it.
const MIN_ALPHA_CUMPROD: f32 = 1. / 16_777_216.;

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

/// The default beta schedule of a scheduler class.
pub(super) struct BetaDefaults {
    start: f64,
    end: f64,
    schedule: BetaSchedule,
}

pub(super) const DDPM_DEFAULTS: BetaDefaults =
    BetaDefaults { start: 0.0001, end: 0.02, schedule: BetaSchedule::Linear };
pub(super) const LCM_DEFAULTS: BetaDefaults =
    BetaDefaults { start: 0.00085, end: 0.012, schedule: BetaSchedule::ScaledLinear };

/// The cumulative products of alphas, `[train_steps]`.
///
/// # Errors
/// A field is invalid, or the products do not decrease strictly within `(0, 1)`.
pub(super) fn alphas_cumprod(
    fields: ConfigFields<'_>,
    train_steps: usize,
    defaults: &BetaDefaults,
) -> Result<Vec<f32>> {
    let betas = match fields.get("trained_betas") {
        Some(Value::Array(betas)) if betas.len() == train_steps => {
            let betas: Option<Vec<f32>> = betas.iter().map(|beta| beta.as_f64().map(|beta| beta as f32)).collect();
            betas.ok_or("`trained_betas` are not all numbers")?
        }
        Some(_) => return Err(format!("`trained_betas` is not a list of {train_steps} numbers")),
        None => beta_schedule(fields, train_steps, defaults)?,
    };
    let mut product = 1f64;
    let alphas_cumprod: Vec<f32> = betas.iter().map(|beta| cumulative_product(&mut product, 1. - beta)).collect();
    let decreases = alphas_cumprod.windows(2).all(|pair| pair.first() > pair.last());
    if decreases && alphas_cumprod.iter().all(|alpha| *alpha > 0. && *alpha < 1.) {
        Ok(alphas_cumprod)
    } else {
        Err("the betas do not give decreasing alpha products between 0 and 1".into())
    }
}

fn beta_schedule(fields: ConfigFields<'_>, train_steps: usize, defaults: &BetaDefaults) -> Result<Vec<f32>> {
    let start = fields.number("beta_start", defaults.start, 0. ..=1.)?;
    let end = fields.number("beta_end", defaults.end, 0. ..=1.)?;
    let linspace = |first: f64, last: f64| {
        move |index: usize| (first + (last - first) * index as f64 / (train_steps.max(2) - 1) as f64) as f32
    };
    Ok(match fields.choice("beta_schedule", &BETA_SCHEDULES)?.unwrap_or(defaults.schedule) {
        BetaSchedule::Linear => (0..train_steps).map(linspace(start, end)).collect(),
        BetaSchedule::ScaledLinear => {
            (0..train_steps).map(linspace(start.sqrt(), end.sqrt())).map(|root| root * root).collect()
        }
        BetaSchedule::Cosine => {
            let alpha_bar =
                |step: usize| ((step as f64 / train_steps as f64 + 0.008) / 1.008 * FRAC_PI_2).cos().powi(2);
            (0..train_steps).map(|step| (1. - alpha_bar(step + 1) / alpha_bar(step)).min(0.999) as f32).collect()
        }
    })
}

/// Multiplies the running product by `factor`. Like torch's `cumprod`, accumulates f32 factors in f64.
fn cumulative_product(product: &mut f64, factor: f32) -> f32 {
    *product *= f64::from(factor);
    *product as f32
}

/// Rescales so that the last training step is pure noise (Lin et al. 2023, <https://arxiv.org/abs/2305.08891>).
/// `nonzero`: the last product stays above zero, for solvers that divide by it.
pub(super) fn rescale_zero_terminal_snr(alphas_cumprod: &mut [f32], nonzero: bool) {
    let (Some(first), Some(last)) =
        (alphas_cumprod.first().map(|alpha| alpha.sqrt()), alphas_cumprod.last().map(|alpha| alpha.sqrt()))
    else {
        return;
    };
    let scale = first / (first - last);
    let (mut product, mut previous) = (1f64, 1f32);
    for alpha_cumprod in &mut *alphas_cumprod {
        let rescaled = ((alpha_cumprod.sqrt() - last) * scale).powi(2);
        // Converts to betas and back, to round as the reference does.
        *alpha_cumprod = cumulative_product(&mut product, 1. - (1. - rescaled / previous));
        previous = rescaled;
    }
    if let (true, Some(last)) = (nonzero, alphas_cumprod.last_mut()) {
        *last = MIN_ALPHA_CUMPROD;
    }
}

/// The alpha product at an integer timestep.
pub(super) fn alpha_cumprod_at(alphas_cumprod: &[f32], timestep: f64) -> Result<f32> {
    let alpha_cumprod = if timestep >= 0. { alphas_cumprod.get(timestep as usize) } else { None };
    alpha_cumprod
        .copied()
        .ok_or_else(|| format!("the timestep {timestep} is outside the {} training steps", alphas_cumprod.len()))
}

/// The alpha product at an integer timestep; `final_alpha_cumprod` for negative timesteps.
pub(super) fn alpha_cumprod_or(alphas_cumprod: &[f32], timestep: f64, final_alpha_cumprod: f32) -> Result<f32> {
    if timestep < 0. { Ok(final_alpha_cumprod) } else { alpha_cumprod_at(alphas_cumprod, timestep) }
}
