//! From a GGUF header. Keys: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md> and
//! llama.cpp's `llama-arch.cpp`.

use super::sizes::Sizes;
use super::{ExpertSizes, Hyper, Layer, refuse};
use crate::models::ModelError;
use crate::models::family::{self, Family, Windows};
use crate::models::gguf::{Array, Header, Value};
use crate::models::rope::{Long, RopeSpec, Scaling, Yarn, yarn_magnitude};

/// Keys that would change results and that nothing here computes; a zero, one or `false` is harmless.
const STRANGERS: &[&str] = &[
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attention.key_length_mla",
    "attention.sliding_window_pattern_offset",
    "attention.temperature_length",
    "embedding_scale",
    "expert_group_count",
    "expert_shared_count",
    "expert_shared_feed_forward_length",
    "expert_weights_scale",
    "expert_gating_func",
    "interleave_moe_layer_step",
    "leading_dense_block_count",
    "logit_scale",
    "nextn_predict_layers",
    "residual_scale",
    "rope.dimension_sections",
    "rope.scaling.alpha",
    "rope.scaling.yarn_log_multiplier",
    "use_parallel_residual",
];

impl Hyper {
    /// From a GGUF file's header.
    pub fn of_gguf(header: &Header) -> Result<Self, ModelError> {
        let metadata = &header.metadata;
        let name = metadata
            .text("general.architecture")
            .ok_or_else(|| ModelError::invalid("the metadata has no general.architecture"))?;
        let family = family::find(name).ok_or_else(|| {
            ModelError::invalid(format!("the architecture {name} is not supported: {} are", family::names()))
        })?;
        let sizes = Sizes { metadata, name };
        no_strangers(&sizes)?;
        let width = sizes.required("embedding_length", 1 << 16)?;
        let heads = sizes.required("attention.head_count", 1 << 10)?;
        if !sizes.has("attention.key_length") && !width.is_multiple_of(heads) {
            return refuse(format!("the width {width} does not divide into {heads} heads"));
        }
        let head_width = sizes.optional("attention.key_length", width / heads, 1 << 12)?;
        let value_width = sizes.optional("attention.value_length", head_width, 1 << 12)?;
        if value_width != head_width {
            return refuse(format!("value heads of {value_width} beside heads of {head_width} are not supported"));
        }
        let blocks = sizes.required("block_count", 1 << 10)?;
        let experts = experts(&sizes)?;
        let scaled_by = if family.odd_scale_blocks == Some(blocks) { width / heads } else { head_width };
        Self {
            family,
            blocks,
            width,
            heads,
            kv_heads: sizes.optional("attention.head_count_kv", heads, 1 << 10)?,
            head_width,
            inner: inner(&sizes, experts.as_ref())?,
            vocabulary: vocabulary(header)?,
            context: sizes.required("context_length", 1 << 24)?,
            epsilon: sizes.float("attention.layer_norm_rms_epsilon", 1e-5)?,
            ropes: ropes(&sizes, family, head_width, header)?,
            rope_style: family.rope,
            layers: layers(&sizes, family, blocks, experts.is_some())?,
            activation: family.activation,
            embedding_scale: if family.gemma { (width as f32).sqrt() } else { 1. },
            attention_scale: sizes.cap("attention.scale")?.unwrap_or((scaled_by as f32).sqrt().recip()),
            attention_cap: sizes.cap("attn_logit_softcapping")?,
            output_cap: sizes.cap("final_logit_softcapping")?,
            experts,
            biases: family.biases,
            norm_shift: 0.,
            tied: None,
        }
        .check()
    }
}

fn no_strangers(sizes: &Sizes<'_>) -> Result<(), ModelError> {
    let harmless = |key: &str, value: &Value| match value {
        Value::Bool(flag) => !flag,
        Value::Float(number) => *number == 0. || (*number == 1. && key.ends_with("_scale")),
        // 1 is softmax, which is what is computed.
        Value::Unsigned(number) => *number == 0 || (*number == 1 && key == "expert_gating_func"),
        Value::Signed(number) => *number == 0,
        _ => false,
    };
    for key in STRANGERS {
        let name = sizes.key(key);
        if let Some(value) = sizes.metadata.get(&name)
            && !harmless(key, value)
        {
            return refuse(format!("{name} is {value:?}, which is not supported"));
        }
    }
    match sizes.metadata.flag(&sizes.key("attention.causal")) {
        Some(false) => refuse("attention that is not causal is not supported".to_owned()),
        _ => Ok(()),
    }
}

/// The embedding's rows count the vocabulary: the one number that the weights must agree with.
fn vocabulary(header: &Header) -> Result<usize, ModelError> {
    let table = header.tensor("token_embd.weight");
    match table.map(|table| table.shape.as_slice()) {
        Some(&[rows, _]) if rows <= 1 << 22 => Ok(rows),
        Some(shape) => Err(ModelError::invalid(format!("tensor token_embd.weight has the impossible shape {shape:?}"))),
        None => Err(ModelError::invalid("the file has no tensor token_embd.weight")),
    }
}

fn inner(sizes: &Sizes<'_>, experts: Option<&ExpertSizes>) -> Result<usize, ModelError> {
    match experts {
        Some(experts) => sizes.optional("feed_forward_length", experts.inner, 1 << 20),
        None => sizes.required("feed_forward_length", 1 << 20),
    }
}

/// llama.cpp lets the weights of both its families with experts sum up to one.
fn experts(sizes: &Sizes<'_>) -> Result<Option<ExpertSizes>, ModelError> {
    if sizes.whole("expert_count").unwrap_or(0) == 0 {
        return Ok(None);
    }
    let own = "expert_feed_forward_length";
    Ok(Some(ExpertSizes {
        count: sizes.required("expert_count", 1 << 12)?,
        used: sizes.required("expert_used_count", 1 << 12)?,
        inner: sizes.required(if sizes.has(own) { own } else { "feed_forward_length" }, 1 << 20)?,
        normalised: sizes.metadata.flag(&sizes.key("expert_weights_norm")).unwrap_or(true),
    }))
}

fn ropes(sizes: &Sizes<'_>, family: &Family, head_width: usize, header: &Header) -> Result<Vec<RopeSpec>, ModelError> {
    let rotated = sizes.optional("rope.dimension_count", head_width, 1 << 12)?;
    if rotated != head_width && !family.partial {
        return refuse(format!("rotated parts of heads of {rotated} beside heads of {head_width} are not supported"));
    }
    let global = RopeSpec {
        base: sizes.float("rope.freq_base", 10_000.)?,
        rotated,
        scaling: scaling(sizes, header)?,
        stored_factors: header.tensor("rope_freqs.weight").is_some(),
    };
    let Some(base) = family.local_rope_base else { return Ok(vec![global]) };
    // Layers with a window are never stretched.
    let base = sizes.float("rope.freq_base_swa", base)?;
    let local = RopeSpec { base, scaling: Scaling::None, ..global.clone() };
    Ok(vec![global, local])
}

fn scaling(sizes: &Sizes<'_>, header: &Header) -> Result<Scaling, ModelError> {
    let context = sizes.required("context_length", 1 << 24)?;
    let original = sizes.optional("rope.scaling.original_context_length", context, 1 << 24)?;
    let kind = sizes.metadata.text(&sizes.key("rope.scaling.type"));
    if header.tensor("rope_factors_long.weight").is_some() || kind == Some("longrope") {
        let magnitude = sizes.float("rope.scaling.attn_factor", 1.)?;
        return Ok(Scaling::Long(Long { short: Vec::new(), long: Vec::new(), original, magnitude }));
    }
    let factor = match sizes.has("rope.scaling.factor") {
        true => sizes.cap("rope.scaling.factor")?.unwrap_or(1.),
        false => sizes.cap("rope.scale_linear")?.unwrap_or(1.),
    };
    match kind {
        Some("none") => Ok(Scaling::None),
        None | Some("linear") if factor == 1. => Ok(Scaling::None),
        None | Some("linear") => Ok(Scaling::Linear(factor)),
        Some("yarn") => yarn(sizes, factor, original as f32).map(Scaling::Yarn),
        Some(other) => Err(ModelError::invalid(format!("rotary scaling of the type {other} is not supported"))),
    }
}

fn yarn(sizes: &Sizes<'_>, factor: f32, original: f32) -> Result<Yarn, ModelError> {
    if sizes.float("rope.scaling.yarn_ext_factor", 1.)? != 1. {
        return refuse("a YaRN extrapolation factor other than 1 is not supported".to_owned());
    }
    let own = match sizes.optional_float("rope.scaling.yarn_attn_factor")? {
        Some(magnitude) => magnitude,
        None => yarn_magnitude(factor, 1.),
    };
    Ok(Yarn {
        factor,
        original,
        fast: sizes.float("rope.scaling.yarn_beta_fast", 32.)?,
        slow: sizes.float("rope.scaling.yarn_beta_slow", 1.)?,
        magnitude: own * sizes.float("rope.scaling.attn_factor", 1.)?,
        truncate: true,
    })
}

fn layers(sizes: &Sizes<'_>, family: &Family, blocks: usize, sparse: bool) -> Result<Vec<Layer>, ModelError> {
    let window = window(sizes, family)?;
    let windowed = windowed(sizes, family, blocks)?;
    let layer = |block: usize| {
        let window = window.filter(|_| windowed.get(block).copied().unwrap_or(false));
        let rotates = family.unrotated_every.is_none_or(|every| !(block + 1).is_multiple_of(every));
        let rope = if window.is_some() && family.local_rope_base.is_some() { 1 } else { 0 };
        Layer { rope: rotates.then_some(rope), window, sparse }
    };
    Ok((0..blocks).map(layer).collect())
}

/// Zero stands for none, and so does a window that the context cannot fill.
fn window(sizes: &Sizes<'_>, family: &Family) -> Result<Option<usize>, ModelError> {
    const KEY: &str = "attention.sliding_window";
    if !sizes.has(KEY) {
        // What llama.cpp takes where Gemma 2's files do not say.
        return Ok((family.windows == Windows::ButEvery(2)).then_some(4096));
    }
    if sizes.whole(KEY) == Some(0) {
        return Ok(None);
    }
    let window = sizes.required(KEY, 1 << 31)?;
    if family.windows == Windows::All || matches!(family.windows, Windows::ButEvery(_)) {
        return Ok(Some(window));
    }
    if window >= sizes.required("context_length", 1 << 24)? {
        return Ok(None);
    }
    refuse(format!("a sliding window of {window} is not supported for {}", family.name))
}

/// Which blocks have the window: the file's own list or period, or the family's.
fn windowed(sizes: &Sizes<'_>, family: &Family, blocks: usize) -> Result<Vec<bool>, ModelError> {
    const KEY: &str = "attention.sliding_window_pattern";
    let period = match (sizes.metadata.get(&sizes.key(KEY)), family.windows) {
        (Some(Value::Array(array)), _) => return flags(array, blocks),
        (Some(_), _) => Some(sizes.required(KEY, 1 << 10)?),
        (None, Windows::ButEvery(period)) => Some(period),
        (None, _) => None,
    };
    Ok((0..blocks).map(|block| period.is_none_or(|period| !(block + 1).is_multiple_of(period))).collect())
}

fn flags(array: &Array, blocks: usize) -> Result<Vec<bool>, ModelError> {
    let flags = array.numbers().map(|numbers| {
        numbers
            .map(|number| match number {
                Value::Bool(flag) => Some(flag),
                Value::Unsigned(number) => Some(number != 0),
                Value::Signed(number) => Some(number != 0),
                _ => None,
            })
            .collect::<Option<Vec<bool>>>()
    });
    match flags.flatten() {
        Some(flags) if flags.len() == blocks => Ok(flags),
        _ => refuse(format!("the pattern of sliding windows does not name {blocks} blocks")),
    }
}
