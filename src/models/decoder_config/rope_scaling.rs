//! Rotary embeddings as `config.json` describes them: `rope_parameters` since transformers 5, before
//! that `rope_theta` and `rope_scaling`.

use serde_json::Value;

use crate::models::config_json::ConfigJson;
use crate::models::decoder_family::DecoderFamily;
use crate::models::error::{Result, reject_config};
use crate::models::rope::{LongRope, RopeScaling, RopeSpec, Yarn, long_rope_magnitude, yarn_magnitude};

/// One way for all layers, or that of full attention and that of windows.
pub(super) fn ropes(config: &ConfigJson<'_>, family: &DecoderFamily, head_width: usize) -> Result<Vec<RopeSpec>> {
    let whole = match config.object("rope_parameters", "rope_parameters.")? {
        Some(new) => Some(new),
        None => config.object("rope_scaling", "rope_scaling.")?,
    };
    let nested = whole.filter(|whole| whole.get("full_attention").is_some());
    let global = match nested {
        Some(nested) => nested.object("full_attention", "rope_parameters.full_attention.")?,
        None => whole,
    };
    let local = match nested {
        Some(nested) => nested.object("sliding_attention", "rope_parameters.sliding_attention.")?,
        None => None,
    };
    let theta = config.float("rope_theta")?.unwrap_or(family.rope_base);
    let first = rope(config, global, family, theta, head_width)?;
    let second = match (local, family.local_rope_base) {
        (Some(local), base) => rope(config, Some(local), family, base.unwrap_or(family.rope_base), head_width)?,
        (None, Some(base)) => {
            let base = config.float("rope_local_base_freq")?.unwrap_or(base);
            RopeSpec { base, scaling: RopeScaling::None, ..first.clone() }
        }
        (None, None) => return Ok(vec![first]),
    };
    Ok(vec![first, second])
}

fn rope(
    config: &ConfigJson<'_>,
    own: Option<ConfigJson<'_>>,
    family: &DecoderFamily,
    theta: f32,
    head_width: usize,
) -> Result<RopeSpec> {
    let of = |key: &str| match own {
        Some(own) => own.float(key),
        None => Ok(None),
    };
    let base = of("rope_theta")?.unwrap_or(theta);
    let part = match of("partial_rotary_factor")? {
        Some(part) => part,
        None => config.float("partial_rotary_factor")?.unwrap_or(1.),
    };
    if part != 1. && !family.partial_rotary {
        return reject_config(format!("heads rotated in part ({part}) are not supported for {}", family.name));
    }
    let scaling = match own {
        Some(own) => scaling(config, &own, family)?,
        None => RopeScaling::None,
    };
    Ok(RopeSpec { base, rotated: (head_width as f32 * part) as usize, scaling, stored_factors: false })
}

fn scaling(config: &ConfigJson<'_>, own: &ConfigJson<'_>, family: &DecoderFamily) -> Result<RopeScaling> {
    let kind = match own.text("rope_type")? {
        Some(kind) => kind,
        None => own.text("type")?.unwrap_or("default"),
    };
    match kind {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear(own.required_float("factor")?)),
        "llama3" => Ok(RopeScaling::Llama3 {
            factor: own.required_float("factor")?,
            low: own.required_float("low_freq_factor")?,
            high: own.required_float("high_freq_factor")?,
            original: original(config, own)? as f32,
        }),
        // Phi-3's first files say yarn and mean their own.
        "yarn" if family.name != "phi3" => yarn(config, own).map(RopeScaling::Yarn),
        "longrope" | "su" | "yarn" => long(config, own).map(RopeScaling::LongRope),
        other => reject_config(format!("rotary scaling of the type {other} is not supported")),
    }
}

/// The trained context: the scaling's own word, the model's, or the whole context.
fn original(config: &ConfigJson<'_>, own: &ConfigJson<'_>) -> Result<usize> {
    const KEY: &str = "original_max_position_embeddings";
    match own.integer(KEY, 1 << 24)? {
        Some(original) => Ok(original),
        None => match config.integer(KEY, 1 << 24)? {
            Some(original) => Ok(original),
            None => config.required("max_position_embeddings", 1 << 24),
        },
    }
}

fn yarn(config: &ConfigJson<'_>, own: &ConfigJson<'_>) -> Result<Yarn> {
    let factor = own.required_float("factor")?;
    let magnitude = match (own.float("attention_factor")?, weight(own, "mscale")?, weight(own, "mscale_all_dim")?) {
        (Some(own), _, _) => own,
        (None, Some(one), Some(all)) => yarn_magnitude(factor, one) / yarn_magnitude(factor, all),
        (None, _, _) => yarn_magnitude(factor, 1.),
    };
    Ok(Yarn {
        factor,
        original: original(config, own)? as f32,
        fast: own.float("beta_fast")?.unwrap_or(32.),
        slow: own.float("beta_slow")?.unwrap_or(1.),
        magnitude,
        truncate: own.flag("truncate")?.unwrap_or(true),
    })
}

/// A zero stands for none.
fn weight(own: &ConfigJson<'_>, key: &str) -> Result<Option<f32>> {
    if own.get(key).and_then(Value::as_f64) == Some(0.) { Ok(None) } else { own.float(key) }
}

fn long(config: &ConfigJson<'_>, own: &ConfigJson<'_>) -> Result<LongRope> {
    let factors = |key: &str| match own.list(key, |item| item.as_f64().map(|one| one as f32))? {
        Some(factors) if !factors.is_empty() => Ok(factors),
        _ => reject_config(format!("rotary scaling of the type longrope has no {key}")),
    };
    let original = original(config, own)?;
    let context = config.required("max_position_embeddings", 1 << 24)?;
    let factor = own.float("factor")?.unwrap_or(context as f32 / original as f32);
    let magnitude = match own.float("attention_factor")? {
        Some(own) => own,
        None => long_rope_magnitude(factor, original as f32),
    };
    Ok(LongRope { short: factors("short_factor")?, long: factors("long_factor")?, original, magnitude })
}
