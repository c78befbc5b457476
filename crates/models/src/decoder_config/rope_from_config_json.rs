//! Reads rotary embeddings from a `config.json`: from `rope_parameters` since transformers 5, or from `rope_theta` and
//! `rope_scaling`.

use serde_json::Value;

use crate::config_json::ConfigJson;
use crate::decoder_family::{DecoderFamily, LocalRope};
use crate::error::{Result, reject_config};
use crate::nn::rope::{Growth, LongRope, RopeScaling, RopeSpec, Yarn, long_rope_magnitude, yarn_magnitude};

/// The rotary embedding of all layers, or that of full attention and that of layers with a window, whose heads have these widths.
pub(super) fn ropes(
    config: &ConfigJson<'_>,
    family: &DecoderFamily,
    [head_width, local_head_width]: [usize; 2],
) -> Result<Vec<RopeSpec>> {
    let parameters = parameters(config)?;
    let nested = parameters.filter(|parameters| parameters.get("full_attention").is_some());
    let global = match nested {
        Some(nested) => nested.object("full_attention", "rope_parameters.full_attention.")?,
        None => parameters,
    };
    let local = match nested {
        Some(nested) => nested.object("sliding_attention", "rope_parameters.sliding_attention.")?,
        None => None,
    };
    let theta = config.float("rope_theta")?.unwrap_or(family.rope_base);
    let global_rope = rope(config, global, family, theta, head_width)?;
    let unscaled = |base: f32| RopeSpec { base, scaling: RopeScaling::None, ..global_rope.clone() };
    let rope = |local, base: f32| rope(config, Some(local), family, base, local_head_width);
    let local_rope = match (local, family.local_rope) {
        (Some(local), LocalRope::OwnBase(base)) => rope(local, base)?,
        (Some(local), LocalRope::Same | LocalRope::Unscaled) => rope(local, theta)?,
        // Its defaults are not those of other families.
        (None, _) if family.global_head_width.is_some() => {
            return reject_config("rope_parameters is missing, or has no sliding_attention".to_owned());
        }
        (None, LocalRope::OwnBase(base)) => unscaled(config.float("rope_local_base_freq")?.unwrap_or(base)),
        (None, LocalRope::Unscaled) => unscaled(global_rope.base),
        (None, LocalRope::Same) => return Ok(vec![global_rope]),
    };
    Ok(vec![global_rope, local_rope])
}

fn parameters<'a>(config: &ConfigJson<'a>) -> Result<Option<ConfigJson<'a>>> {
    match config.object("rope_parameters", "rope_parameters.")? {
        Some(parameters) => Ok(Some(parameters)),
        None => config.object("rope_scaling", "rope_scaling."),
    }
}

/// How queries grow with their position.
pub(super) fn growth(config: &ConfigJson<'_>) -> Result<Option<Growth>> {
    let Some(parameters) = parameters(config)? else { return Ok(None) };
    let Some(beta) = nonzero(&parameters, "llama_4_scaling_beta")? else { return Ok(None) };
    Ok(Some(Growth { beta, original: original(config, &parameters)? }))
}

/// The factor of queries and keys in latent attention. Here YaRN scales all elements of a head, and not only those that are rotated.
pub(super) fn latent_magnitude(config: &ConfigJson<'_>) -> Result<f32> {
    let Some(parameters) = parameters(config)? else { return Ok(1.) };
    match (kind(&parameters)?, nonzero(&parameters, "mscale_all_dim")?) {
        ("default", _) | (_, None) => Ok(1.),
        (_, Some(weight)) => Ok(yarn_magnitude(parameters.required_float("factor")?, weight)),
    }
}

fn rope(
    config: &ConfigJson<'_>,
    parameters: Option<ConfigJson<'_>>,
    family: &DecoderFamily,
    theta: f32,
    head_width: usize,
) -> Result<RopeSpec> {
    let parameter = |key: &str| match parameters {
        Some(parameters) => parameters.float(key),
        None => Ok(None),
    };
    let mut base = parameter("rope_theta")?.unwrap_or(theta);
    let alpha = if family.ntk_alpha { parameter("alpha")? } else { None };
    let fraction = match parameter("partial_rotary_factor")? {
        Some(fraction) => fraction,
        None => config.float("partial_rotary_factor")?.unwrap_or(family.rotary_fraction),
    };
    let kind = parameters.as_ref().map(kind).transpose()?;
    if kind == Some("proportional") {
        let pairs = (fraction * head_width as f32) as usize / 2;
        let scaling = RopeScaling::Proportional { pairs, factor: parameter("factor")?.unwrap_or(1.) };
        return Ok(RopeSpec { base, rotated: head_width, scaling, stored_factors: false, growth: None });
    }
    if fraction != 1. && !family.partial_rotary {
        return reject_config(format!("a partial_rotary_factor of {fraction} is not supported for {}", family.name));
    }
    let scaling = match parameters.zip(kind) {
        Some((parameters, kind)) => match (kind, alpha) {
            ("dynamic", Some(alpha)) => {
                base = ntk_base(base, alpha, head_width)?;
                RopeScaling::None
            }
            (kind, _) => scaling(config, &parameters, family, kind)?,
        },
        None => RopeScaling::None,
    };
    Ok(RopeSpec {
        base,
        rotated: (head_width as f32 * fraction) as usize,
        scaling,
        stored_factors: false,
        growth: None,
    })
}

/// The base that NTK-aware scaling makes of another one for heads of this width.
fn ntk_base(base: f32, alpha: f32, head_width: usize) -> Result<f32> {
    let width = head_width as f64;
    match (f64::from(base) * f64::from(alpha).powf(width / (width - 2.))) as f32 {
        raised if raised.is_finite() => Ok(raised),
        _ => reject_config(format!("an alpha of {alpha} is too large for heads of width {head_width}")),
    }
}

/// The type of context scaling.
fn kind<'a>(parameters: &ConfigJson<'a>) -> Result<&'a str> {
    match parameters.text("rope_type")? {
        Some(kind) => Ok(kind),
        None => Ok(parameters.text("type")?.unwrap_or("default")),
    }
}

fn scaling(
    config: &ConfigJson<'_>,
    parameters: &ConfigJson<'_>,
    family: &DecoderFamily,
    kind: &str,
) -> Result<RopeScaling> {
    match kind {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear(parameters.required_float("factor")?)),
        "llama3" => Ok(RopeScaling::Llama3 {
            factor: parameters.required_float("factor")?,
            low: parameters.required_float("low_freq_factor")?,
            high: parameters.required_float("high_freq_factor")?,
            original: original(config, parameters)? as f32,
        }),
        // Early Phi-3 files call LongRoPE yarn.
        "yarn" if family.name != "phi3" => yarn(config, parameters, family).map(RopeScaling::Yarn),
        "longrope" | "su" | "yarn" => long_rope(config, parameters).map(RopeScaling::LongRope),
        other => reject_config(format!("rotary scaling of the type {other} is not supported")),
    }
}

/// The trained context, from the scaling parameters, from the model, or as the whole context.
fn original(config: &ConfigJson<'_>, parameters: &ConfigJson<'_>) -> Result<usize> {
    const KEY: &str = "original_max_position_embeddings";
    match parameters.integer(KEY, 1 << 24)? {
        Some(original) => Ok(original),
        None => match config.integer(KEY, 1 << 24)? {
            Some(original) => Ok(original),
            None => config.required("max_position_embeddings", 1 << 24),
        },
    }
}

fn yarn(config: &ConfigJson<'_>, parameters: &ConfigJson<'_>, family: &DecoderFamily) -> Result<Yarn> {
    let factor = parameters.required_float("factor")?;
    let magnitude = match (
        parameters.float("attention_factor")?,
        nonzero(parameters, "mscale")?,
        nonzero(parameters, "mscale_all_dim")?,
    ) {
        (Some(factor), _, _) => factor,
        (None, Some(mscale), Some(all_dim)) => yarn_magnitude(factor, mscale) / yarn_magnitude(factor, all_dim),
        (None, _, _) => yarn_magnitude(factor, 1.),
    };
    Ok(Yarn {
        factor,
        original: original(config, parameters)? as f32,
        fast: parameters.float("beta_fast")?.unwrap_or(32.),
        slow: parameters.float("beta_slow")?.unwrap_or(1.),
        magnitude,
        truncate: parameters.flag("truncate")?.unwrap_or(family.yarn_truncates),
    })
}

/// A positive number; zero means that it is absent.
fn nonzero(parameters: &ConfigJson<'_>, key: &str) -> Result<Option<f32>> {
    if parameters.get(key).and_then(Value::as_f64) == Some(0.) { Ok(None) } else { parameters.float(key) }
}

fn long_rope(config: &ConfigJson<'_>, parameters: &ConfigJson<'_>) -> Result<LongRope> {
    let factors = |key: &str| match parameters.list(key, |item| item.as_f64().map(|factor| factor as f32))? {
        Some(factors) if !factors.is_empty() => Ok(factors),
        _ => reject_config(format!("rotary scaling of the type longrope has no {key}")),
    };
    let original = original(config, parameters)?;
    let context = config.required("max_position_embeddings", 1 << 24)?;
    let factor = parameters.float("factor")?.unwrap_or(context as f32 / original as f32);
    let magnitude = match parameters.float("attention_factor")? {
        Some(magnitude) => magnitude,
        None => long_rope_magnitude(factor, original as f32),
    };
    Ok(LongRope { short: factors("short_factor")?, long: factors("long_factor")?, original, magnitude })
}
