//! Reads a decoder's configuration from a GGUF header. <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md> and
//! llama.cpp's `llama-arch.cpp` describe the keys.

use super::unknown_family::{UnknownFamily, unknown_stems};
use super::{
    AttentionConfig, DecoderConfig, DeltaNetConfig, DenseConfig, FeedForwardConfig, LatentConfig, LayerConfig,
    Mamba2Config, MixerConfig, MoeConfig, PerLayerConfig, SharedExpertConfig, ShortConvConfig, add_query_rope,
    symmetric_window,
};
use crate::backend::{ExpertGroups, NormKind, RecurrenceShape, RouterWeights, Routing};
use crate::decoder_family::{
    self, DecoderFamily, LayersWithoutRope, LocalRope, MIXTRAL_EXPERTS, Multipliers, NormPlacement, RecurrentMixer,
    SharedExpert, SlidingWindows,
};
use crate::error::{ModelError, reject_config};
use crate::gguf::{ArchitectureMetadata, Array, Header, Value};
use crate::nn::NormSpec;
use crate::nn::rope::{Growth, LongRope, RopeScaling, RopeSpec, Yarn, yarn_magnitude};

/// What [`yarn`] multiplies with the value of files with latent attention.
const LATENT_YARN_FACTOR: f32 = 10.;

/// Keys of unsupported features that would change results. Some values turn the feature off and are accepted.
const UNSUPPORTED_KEYS: &[&str] = &[
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attention.key_length_mla",
    "attention.sliding_window_pattern_offset",
    "embedding_scale",
    "logit_scale",
    "moe_latent_size",
    "residual_scale",
    "rope.dimension_sections",
    "rope.scaling.alpha",
    "use_parallel_residual",
];

impl DecoderConfig {
    /// Reads the configuration from the header of a GGUF file.
    pub fn from_gguf(header: &Header) -> Result<Self, ModelError> {
        let metadata = &header.metadata;
        let name = metadata
            .text("general.architecture")
            .ok_or_else(|| ModelError::checkpoint("the metadata has no general.architecture"))?;
        let family = decoder_family::find_architecture(name).ok_or_else(|| {
            let missing = unknown_stems(header.tensors.iter().map(|tensor| tensor.name.as_str()));
            UnknownFamily { kind: "architecture", name }.error(&decoder_family::architecture_names(), missing)
        })?;
        let keys = ArchitectureMetadata { metadata, architecture: name };
        reject_unsupported(&keys, family)?;
        let width = keys.required("embedding_length", 1 << 16)?;
        let heads = keys.required("attention.head_count", 1 << 10)?;
        if !keys.has("attention.key_length") && !width.is_multiple_of(heads) {
            return reject_config(format!("the width {width} does not divide into {heads} heads"));
        }
        let latent = if family.latent { Some(latent(&keys)?) } else { None };
        let head_width = match &latent {
            Some(latent) => latent.head_width(),
            None => head_width(&keys, "", width / heads)?,
        };
        let local_head_width = head_width_of_windows(&keys, family, head_width)?;
        let blocks = keys.required("block_count", 1 << 10)?;
        let layer_count = usize::try_from(header.draft_layers().start).unwrap_or(blocks);
        if layer_count == 0 {
            return reject_config(format!("all {blocks} layers are draft layers"));
        }
        let kv_heads = match latent {
            Some(_) => vec![1; layer_count],
            None => kv_heads(&keys, heads, layer_count)?,
        };
        let scale_width = if family.width_scaled_layer_count == Some(layer_count) { width / heads } else { head_width };
        let has_qk_norms = header.tensor("blk.0.attn_q_norm.weight").is_some();
        let mut ropes = ropes(&keys, family, [head_width, local_head_width], header)?;
        let attention = AttentionConfig {
            heads,
            kv_heads: heads,
            head_width,
            causal: family.causal,
            window: None,
            rope: Some(0),
            query_rope: add_query_rope(&mut ropes, growth(&keys)?),
            rope_layout: family.rope,
            qk_norms: family.qk_norms.filter(|_| !family.optional_qk_norms || has_qk_norms),
            biases: family.biases,
            scale: match (&latent, keys.nonzero_float("attention.scale")?) {
                (Some(latent), _) => latent.scale() * latent_magnitude(&keys)?.powi(2),
                (None, None) => family.attention_scale.unwrap_or((scale_width as f32).sqrt().recip()),
                (None, Some(scale)) => scale,
            },
            soft_cap: keys.nonzero_float("attn_logit_softcapping")?,
            output_gate: family.output_gate,
            sinks: family.attention_sinks,
            keys_as_values: false,
            value_norms: family.value_norms,
            kv_layer: None,
            latent,
        };
        let has_values =
            |layer: usize| !family.value_norms || header.tensor(&format!("blk.{layer}.attn_v.weight")).is_some();
        const RMS_EPSILON: &str = "attention.layer_norm_rms_epsilon";
        let has_rms_norms = family.optional_rms_norms && keys.nonzero_float(RMS_EPSILON)?.is_some();
        let (norm_kind, epsilon) = match family.norm_kind {
            NormKind::Layer if !has_rms_norms => (NormKind::Layer, "attention.layer_norm_epsilon"),
            _ => (NormKind::Rms, RMS_EPSILON),
        };
        let logit_scale = keys.nonzero_float("logit_scale")?.unwrap_or(1.);
        let mut found = Self {
            width,
            vocabulary: vocabulary(header)?,
            context: keys.required("context_length", 1 << 24)?,
            norm: NormSpec { kind: norm_kind, epsilon: keys.float(epsilon, 1e-5)?, offset: 0. },
            ropes,
            layers: layers(&keys, family, &kv_heads, (attention, local_head_width), has_values)?,
            mtp: None,
            embedding_scale: match keys.nonzero_float("embedding_scale")? {
                None if family.gemma => (width as f32).sqrt(),
                scale => scale.unwrap_or(1.),
            },
            per_layer: match keys.integer("embedding_length_per_layer_input").unwrap_or(0) {
                0 => None,
                _ => {
                    let width = keys.required("embedding_length_per_layer_input", 1 << 12)?;
                    Some(PerLayerConfig { width, activation: family.activation })
                }
            },
            residual_scale: keys.nonzero_float("residual_scale")?.unwrap_or(1.),
            // Files of Granite have the divisor.
            logit_scale: if family.multipliers == Multipliers::Granite { logit_scale.recip() } else { logit_scale },
            logit_soft_cap: keys.nonzero_float("final_logit_softcapping")?,
            tied_embeddings: None,
            adapter_modules: family.adapter_modules,
            adapter_rope_layout: family.hugging_face_rope,
        };
        let shared = keys.integer("attention.shared_kv_layers").unwrap_or(0);
        found.share_kv(usize::try_from(shared).unwrap_or(usize::MAX))?;
        found.check()
    }
}

/// The width of heads, by the keys with this ending.
fn head_width(keys: &ArchitectureMetadata<'_>, ending: &str, default: usize) -> Result<usize, ModelError> {
    let head_width = keys.optional(&format!("attention.key_length{ending}"), default, 1 << 12)?;
    let value_width = keys.optional(&format!("attention.value_length{ending}"), head_width, 1 << 12)?;
    match value_width == head_width {
        true => Ok(head_width),
        false => reject_config(format!(
            "value heads of width {value_width} with key heads of width {head_width} are not supported"
        )),
    }
}

/// The width of heads in layers with a window.
fn head_width_of_windows(
    keys: &ArchitectureMetadata<'_>,
    family: &DecoderFamily,
    other: usize,
) -> Result<usize, ModelError> {
    if family.global_head_width.is_some() { head_width(keys, "_swa", other) } else { Ok(other) }
}

fn reject_unsupported(keys: &ArchitectureMetadata<'_>, family: &DecoderFamily) -> Result<(), ModelError> {
    let is_off = |key: &str, value: &Value| match value {
        Value::Bool(flag) => !flag,
        Value::Float(number) => *number == 0. || (*number == 1. && key.ends_with("_scale")),
        Value::Unsigned(number) => *number == 0,
        Value::Signed(number) => *number == 0,
        _ => false,
    };
    // Sections of the rotary embedding have the same positions in a text.
    let has_delta_nets = matches!(family.recurrent, Some(RecurrentMixer::DeltaNet { .. }));
    let supported_multipliers: &[&str] = match family.multipliers {
        Multipliers::None => &[],
        Multipliers::Granite => &["embedding_scale", "logit_scale", "residual_scale"],
        Multipliers::Logits(_) => &["logit_scale"],
    };
    let is_harmless = |key: &str| {
        (has_delta_nets && key == "rope.dimension_sections")
            || (family.latent && key == "attention.key_length_mla")
            || supported_multipliers.contains(&key)
    };
    for key in UNSUPPORTED_KEYS.iter().filter(|key| !is_harmless(key)) {
        let name = keys.key(key);
        if let Some(value) = keys.metadata.get(&name)
            && !is_off(key, value)
        {
            return reject_config(format!("{name} is {value:?}, which is not supported"));
        }
    }
    match keys.metadata.flag(&keys.key("attention.causal")) {
        Some(causal) if causal != family.causal => {
            reject_config(format!("attention.causal is {causal}, which is not supported for {}", family.name))
        }
        _ => Ok(()),
    }
}

/// The widths of latent attention. Old files have those of a head's query and value where others have what is kept of a position.
fn latent(keys: &ArchitectureMetadata<'_>) -> Result<LatentConfig, ModelError> {
    let width = |key: &str, old: &str| keys.required(if keys.has(key) { key } else { old }, 1 << 12);
    let rotated = keys.required("rope.dimension_count", 1 << 12)?;
    let query = width("attention.key_length_mla", "attention.key_length")?;
    let Some(unrotated) = query.checked_sub(rotated).filter(|unrotated| *unrotated > 0) else {
        return reject_config(format!("queries of width {query} cannot have {rotated} rotated elements and others"));
    };
    let query_rank = match keys.integer("attention.q_lora_rank") {
        None | Some(0) => None,
        Some(_) => Some(keys.required("attention.q_lora_rank", 1 << 16)?),
    };
    let value_width = width("attention.value_length_mla", "attention.value_length")?;
    Ok(LatentConfig {
        query_rank,
        rank: keys.required("attention.kv_lora_rank", 1 << 12)?,
        unrotated,
        rotated,
        value_width,
    })
}

/// The factor of queries and keys; see [`yarn`].
fn latent_magnitude(keys: &ArchitectureMetadata<'_>) -> Result<f32, ModelError> {
    match (keys.nonzero_float("rope.scaling.yarn_log_multiplier")?, keys.nonzero_float("rope.scaling.factor")?) {
        (Some(weight), Some(factor)) => Ok(yarn_magnitude(factor, LATENT_YARN_FACTOR * weight)),
        _ => Ok(1.),
    }
}

/// The vocabulary is the number of rows of the token embedding.
fn vocabulary(header: &Header) -> Result<usize, ModelError> {
    let table = header.tensor("token_embd.weight");
    match table.map(|table| table.shape.as_slice()) {
        Some(&[rows, _]) if rows <= 1 << 22 => Ok(rows),
        Some(shape) => {
            Err(ModelError::checkpoint(format!("tensor token_embd.weight has the impossible shape {shape:?}")))
        }
        None => Err(ModelError::checkpoint("the file has no tensor token_embd.weight")),
    }
}

/// The feed-forward networks of the layers: experts, after `leading_dense_block_count`. llama.cpp scales the weights of experts to
/// a sum of one for all families here.
fn feed_forward(
    keys: &ArchitectureMetadata<'_>,
    family: &DecoderFamily,
    layer_count: usize,
) -> Result<Vec<FeedForwardConfig>, ModelError> {
    let lengths = || numbers_of_layers(keys, "feed_forward_length", 1 << 20, layer_count);
    let (activation, gated) = (family.activation, family.gated);
    let dense = |inner: usize| match inner {
        0 => reject_config(format!("{} has a zero", keys.key("feed_forward_length"))),
        inner => Ok(DenseConfig { inner, activation, gated }),
    };
    if keys.integer("expert_count").unwrap_or(0) == 0 {
        return lengths()?.into_iter().map(|inner| Ok(FeedForwardConfig::Dense(dense(inner)?))).collect();
    }
    let experts = experts(keys, family)?;
    if family.experts_beside_dense {
        return lengths()?.into_iter().map(|inner| Ok(FeedForwardConfig::Both(dense(inner)?, experts))).collect();
    }
    if keys.integer("interleave_moe_layer_step").is_some_and(|step| step > 1) {
        return reject_config(format!(
            "{} is more than 1, which is not supported",
            keys.key("interleave_moe_layer_step")
        ));
    }
    let leading = usize::try_from(keys.integer("leading_dense_block_count").unwrap_or(0)).unwrap_or(usize::MAX);
    let lengths = if leading > 0 { lengths()? } else { vec![0; layer_count] };
    let network = |(layer, inner): (usize, usize)| match layer < leading {
        true => dense(inner).map(FeedForwardConfig::Dense),
        false => Ok(FeedForwardConfig::Sparse(experts)),
    };
    lengths.into_iter().enumerate().map(network).collect()
}

fn experts(keys: &ArchitectureMetadata<'_>, family: &DecoderFamily) -> Result<MoeConfig, ModelError> {
    const OWN_LENGTH: &str = "expert_feed_forward_length";
    const SHARED_LENGTH: &str = "expert_shared_feed_forward_length";
    let rules = family.experts.unwrap_or(MIXTRAL_EXPERTS);
    let weights = match keys.integer("expert_gating_func") {
        None | Some(0) => rules.weights,
        // The softmax of the selected scores is that of all, scaled to a sum of one.
        Some(1 | 3) => RouterWeights::Softmax,
        Some(2) => RouterWeights::Sigmoid,
        Some(other) => return reject_config(format!("expert_gating_func is {other}, which is not supported")),
    };
    let softmax_of_selected = keys.integer("expert_gating_func") == Some(3);
    let groups = keys.optional("expert_group_count", 1, 1 << 12)?;
    let groups = match groups > 1 {
        true => Some(ExpertGroups { count: groups, used: keys.required("expert_group_used_count", 1 << 12)? }),
        false => None,
    };
    let has_shared = ["expert_shared_count", SHARED_LENGTH].iter().any(|key| keys.integer(key).unwrap_or(0) > 0);
    if has_shared && rules.shared.is_none() {
        return reject_config(format!("experts that compute every token are not supported for {}", family.name));
    }
    let shared = |kind: SharedExpert| {
        let inner = match keys.integer("expert_shared_count") {
            Some(count) if !keys.has(SHARED_LENGTH) => {
                count.clamp(1, 1 << 10) as usize * keys.required(OWN_LENGTH, 1 << 20)?
            }
            _ => keys.required(SHARED_LENGTH, 1 << 20)?,
        };
        Ok::<_, ModelError>(SharedExpertConfig { inner, kind })
    };
    Ok(MoeConfig {
        count: keys.required("expert_count", 1 << 12)?,
        inner: keys.required(if keys.has(OWN_LENGTH) { OWN_LENGTH } else { "feed_forward_length" }, 1 << 20)?,
        activation: family.activation,
        gated: family.gated,
        routing: Routing {
            experts_per_token: keys.required("expert_used_count", 1 << 12)?,
            weights,
            normalise_weights: match keys.metadata.flag(&keys.key("expert_weights_norm")) {
                _ if softmax_of_selected => true,
                None if family.latent => rules.normalise_weights,
                flag => flag.unwrap_or(true),
            },
            scale: keys.nonzero_float("expert_weights_scale")?.unwrap_or(1.),
            groups,
        },
        // Files of DeepSeek 2 and 3 have the same architecture.
        selection_bias: rules.selection_bias || (family.latent && weights == RouterWeights::Sigmoid),
        biases: rules.biases,
        // The largest version of ERNIE 4.5 has none.
        shared: rules.shared.filter(|_| has_shared).map(shared).transpose()?,
    })
}

/// The key-value heads of each layer. Layers without attention have none.
fn kv_heads(keys: &ArchitectureMetadata<'_>, heads: usize, layer_count: usize) -> Result<Vec<usize>, ModelError> {
    const KEY: &str = "attention.head_count_kv";
    match keys.has(KEY) {
        true => numbers_of_layers(keys, KEY, 1 << 10, layer_count),
        false => Ok(vec![heads; layer_count]),
    }
}

/// A number of at most `max` for each layer, from a list or from one number for all.
fn numbers_of_layers(
    keys: &ArchitectureMetadata<'_>,
    key: &str,
    max: usize,
    layer_count: usize,
) -> Result<Vec<usize>, ModelError> {
    let Some(Value::Array(array)) = keys.metadata.get(&keys.key(key)) else {
        return Ok(vec![keys.required(key, max)?; layer_count]);
    };
    let number = |number: Value| match number {
        Value::Unsigned(number) => usize::try_from(number).ok(),
        Value::Signed(number) => usize::try_from(number).ok(),
        _ => None,
    };
    let numbers = array.numbers().and_then(|numbers| numbers.map(number).collect::<Option<Vec<usize>>>());
    match numbers.filter(|numbers| numbers.iter().all(|number| *number <= max)) {
        // Draft layers may follow.
        Some(mut numbers) if numbers.len() >= layer_count => {
            numbers.truncate(layer_count);
            Ok(numbers)
        }
        _ => reject_config(format!("{} is not a number for each of {layer_count} layers", keys.key(key))),
    }
}

fn ropes(
    keys: &ArchitectureMetadata<'_>,
    family: &DecoderFamily,
    [head_width, local_head_width]: [usize; 2],
    header: &Header,
) -> Result<Vec<RopeSpec>, ModelError> {
    // Converters write the width of other heads for families without rotary embeddings.
    let rotated = match family.single_sublayers {
        true => head_width,
        false => keys.optional("rope.dimension_count", head_width, 1 << 12)?,
    };
    if rotated != head_width && !(family.partial_rotary || family.latent) {
        return reject_config(format!("rotating {rotated} of {head_width} elements of a head is not supported"));
    }
    let global = RopeSpec {
        base: keys.float("rope.freq_base", 10_000.)?,
        rotated,
        scaling: scaling(keys, family, header)?,
        stored_factors: header.tensor("rope_freqs.weight").is_some(),
        growth: None,
    };
    let base = match family.local_rope {
        LocalRope::Same => return Ok(vec![global]),
        LocalRope::Unscaled => global.base,
        LocalRope::OwnBase(base) => base,
    };
    let base = keys.float("rope.freq_base_swa", base)?;
    // Stored factors are those of layers without a window.
    let local = match family.global_head_width {
        None => RopeSpec { base, scaling: RopeScaling::None, ..global.clone() },
        Some(_) => {
            let rotated = keys.optional("rope.dimension_count_swa", local_head_width, 1 << 12)?;
            RopeSpec { base, rotated, scaling: RopeScaling::None, stored_factors: false, growth: None }
        }
    };
    Ok(vec![global, local])
}

/// How queries grow with their position.
fn growth(keys: &ArchitectureMetadata<'_>) -> Result<Option<Growth>, ModelError> {
    const LENGTH: &str = "attention.temperature_length";
    let Some(beta) = keys.nonzero_float("attention.temperature_scale")? else { return Ok(None) };
    let length = if keys.has(LENGTH) { LENGTH } else { "rope.scaling.original_context_length" };
    Ok(Some(Growth { beta, original: keys.required(length, 1 << 24)? }))
}

fn scaling(
    keys: &ArchitectureMetadata<'_>,
    family: &DecoderFamily,
    header: &Header,
) -> Result<RopeScaling, ModelError> {
    let context = keys.required("context_length", 1 << 24)?;
    let original = keys.optional("rope.scaling.original_context_length", context, 1 << 24)?;
    let kind = keys.metadata.text(&keys.key("rope.scaling.type"));
    if header.tensor("rope_factors_long.weight").is_some() || kind == Some("longrope") {
        let magnitude = keys.float("rope.scaling.attn_factor", 1.)?;
        return Ok(RopeScaling::LongRope(LongRope { short: Vec::new(), long: Vec::new(), original, magnitude }));
    }
    let factor = match keys.has("rope.scaling.factor") {
        true => keys.nonzero_float("rope.scaling.factor")?.unwrap_or(1.),
        false => keys.nonzero_float("rope.scale_linear")?.unwrap_or(1.),
    };
    match kind {
        Some("none") => Ok(RopeScaling::None),
        None | Some("linear") if factor == 1. => Ok(RopeScaling::None),
        None | Some("linear") => Ok(RopeScaling::Linear(factor)),
        Some("yarn") => yarn(keys, family, factor, original as f32).map(RopeScaling::Yarn),
        Some(other) => Err(ModelError::checkpoint(format!("rotary scaling of the type {other} is not supported"))),
    }
}

fn yarn(
    keys: &ArchitectureMetadata<'_>,
    family: &DecoderFamily,
    factor: f32,
    original: f32,
) -> Result<Yarn, ModelError> {
    if keys.float("rope.scaling.yarn_ext_factor", 1.)? != 1. {
        return reject_config("a YaRN extrapolation factor other than 1 is not supported".to_owned());
    }
    let yarn_factor = match keys.optional_float("rope.scaling.yarn_attn_factor")? {
        Some(magnitude) => magnitude,
        None => yarn_magnitude(factor, 1.),
    };
    // `mscale_all_dim` of transformers. Files with latent attention have a tenth of it, and `mscale` is the same.
    let all_dim = match keys.nonzero_float("rope.scaling.yarn_log_multiplier")? {
        Some(_) if family.latent => 1.,
        weight => weight.unwrap_or(0.),
    };
    Ok(Yarn {
        factor,
        original,
        fast: keys.float("rope.scaling.yarn_beta_fast", 32.)?,
        slow: keys.float("rope.scaling.yarn_beta_slow", 1.)?,
        magnitude: yarn_factor / yarn_magnitude(factor, all_dim) * keys.float("rope.scaling.attn_factor", 1.)?,
        truncate: family.yarn_truncates,
    })
}

/// The plan of each layer; `attention` without its window, rotary embedding, key-value heads and, if it has a window, the width of heads.
/// `has_values`: whether a layer has a projection of values.
fn layers(
    keys: &ArchitectureMetadata<'_>,
    family: &DecoderFamily,
    kv_heads: &[usize],
    (attention, local_head_width): (AttentionConfig, usize),
    has_values: impl Fn(usize) -> bool,
) -> Result<Vec<LayerConfig>, ModelError> {
    let layer_count = kv_heads.len();
    if family.single_sublayers {
        return single_layers(keys, family, kv_heads, attention);
    }
    let feed_forward = feed_forward(keys, family, layer_count)?;
    let window = window(keys, family)?;
    let windowed = windowed_layers(keys, family, layer_count)?;
    let recurrent = recurrent_mixer(keys, family)?;
    let has_attention = attention_layers(keys, recurrent.as_ref(), kv_heads)?;
    // Granite 4 has no rotary embedding.
    let is_off = keys.metadata.flag(&keys.key("rope.scaling.finetuned")) == Some(false);
    let rotates = !(is_off && family.recurrent == Some(RecurrentMixer::Mamba2));
    let layer = |((layer, kv_heads), feed_forward): ((usize, &usize), FeedForwardConfig)| {
        let own_window = window.filter(|_| windowed.get(layer).copied().unwrap_or(false));
        let rotates = rotates
            && match family.without_rope {
                LayersWithoutRope::None => true,
                LayersWithoutRope::Every(every) => !(layer + 1).is_multiple_of(every),
                LayersWithoutRope::FullAttention => {
                    let is_leading = matches!(feed_forward, FeedForwardConfig::Dense(_));
                    own_window.is_some() || window.is_none() || (family.leading_layers_rotate && is_leading)
                }
            };
        let rope = if own_window.is_some() && family.local_rope != LocalRope::Same { 1 } else { 0 };
        let rope = rotates.then_some(rope);
        let has_attention = has_attention.get(layer).copied().unwrap_or(true);
        let mixer = match recurrent.filter(|_| !has_attention) {
            Some(mixer) => mixer,
            None => MixerConfig::Attention(AttentionConfig {
                window: own_window,
                rope,
                kv_heads: *kv_heads,
                head_width: if own_window.is_some() { local_head_width } else { attention.head_width },
                keys_as_values: !has_values(layer),
                ..attention
            }),
        };
        LayerConfig {
            mixer: Some(mixer),
            feed_forward: Some(feed_forward),
            norms: family.norms,
            parallel: family.parallel,
        }
    };
    Ok(kv_heads.iter().enumerate().zip(feed_forward).map(layer).collect())
}

/// The plans of layers that have only one sublayer: a feed-forward network if the layer has a length of one, attention if it has
/// key-value heads, and otherwise a recurrent mixer. There is no position embedding.
fn single_layers(
    keys: &ArchitectureMetadata<'_>,
    family: &DecoderFamily,
    kv_heads: &[usize],
    attention: AttentionConfig,
) -> Result<Vec<LayerConfig>, ModelError> {
    let lengths = numbers_of_layers(keys, "feed_forward_length", 1 << 20, kv_heads.len())?;
    let sparse = match keys.integer("expert_count").unwrap_or(0) {
        0 => None,
        _ => Some(FeedForwardConfig::Sparse(experts(keys, family)?)),
    };
    let recurrent = recurrent_mixer(keys, family)?;
    let layer = |(inner, kv_heads): (&usize, &usize)| {
        let (activation, gated) = (family.activation, family.gated);
        let dense = FeedForwardConfig::Dense(DenseConfig { inner: *inner, activation, gated });
        let own = AttentionConfig { rope: None, kv_heads: *kv_heads, ..attention };
        let (mixer, feed_forward) = match (inner, kv_heads) {
            (0, 0) => (recurrent, None),
            (0, _) => (Some(MixerConfig::Attention(own)), None),
            _ => (None, Some(sparse.unwrap_or(dense))),
        };
        LayerConfig { mixer, feed_forward, norms: NormPlacement::Before, parallel: false }
    };
    Ok(lengths.iter().zip(kv_heads).map(layer).collect())
}

/// Which layers have attention: by the file's list, by its period for delta networks, or those with key-value heads.
fn attention_layers(
    keys: &ArchitectureMetadata<'_>,
    recurrent: Option<&MixerConfig>,
    kv_heads: &[usize],
) -> Result<Vec<bool>, ModelError> {
    const KEY: &str = "attention.recurrent_layers";
    if let Some(MixerConfig::DeltaNet(_)) = recurrent {
        if let Some(Value::Array(array)) = keys.metadata.get(&keys.key(KEY)) {
            let Some(recurrent) = flags(array).filter(|flags| flags.len() >= kv_heads.len()) else {
                return reject_config(format!("{} is not a list of {} layers", keys.key(KEY), kv_heads.len()));
            };
            return Ok(recurrent.into_iter().map(|recurrent| !recurrent).collect());
        }
        let interval = keys.optional("full_attention_interval", 4, 1 << 10)?;
        return Ok((1..=kv_heads.len()).map(|layer| layer.is_multiple_of(interval)).collect());
    }
    Ok(kv_heads.iter().map(|heads| *heads > 0).collect())
}

/// The mixer of layers without attention.
fn recurrent_mixer(keys: &ArchitectureMetadata<'_>, family: &DecoderFamily) -> Result<Option<MixerConfig>, ModelError> {
    Ok(match family.recurrent {
        None => None,
        Some(RecurrentMixer::ShortConv) => {
            let kernel = keys.required("shortconv.l_cache", 1 << 8)?;
            Some(MixerConfig::ShortConv(ShortConvConfig { kernel, biases: false }))
        }
        Some(RecurrentMixer::DeltaNet { tiled }) => {
            let shape = recurrence_shape(keys, tiled)?;
            let kernel = keys.required("ssm.conv_kernel", 1 << 8)?;
            Some(MixerConfig::DeltaNet(DeltaNetConfig { shape, kernel, logarithmic_decay: false }))
        }
        Some(RecurrentMixer::Mamba2) => Some(MixerConfig::Mamba2(Mamba2Config {
            shape: recurrence_shape(keys, false)?,
            kernel: keys.required("ssm.conv_kernel", 1 << 8)?,
            conv_bias: false,
            biases: false,
            logarithmic_decay: false,
        })),
    })
}

fn recurrence_shape(keys: &ArchitectureMetadata<'_>, tiled: bool) -> Result<RecurrenceShape, ModelError> {
    let value_heads = keys.required("ssm.time_step_rank", 1 << 10)?;
    let values = keys.required("ssm.inner_size", 1 << 20)?;
    if !values.is_multiple_of(value_heads) {
        return reject_config(format!("{values} values do not divide into {value_heads} heads"));
    }
    Ok(RecurrenceShape {
        key_heads: keys.required("ssm.group_count", 1 << 10)?,
        value_heads,
        key_width: keys.required("ssm.state_size", 1 << 12)?,
        value_width: values / value_heads,
        tiled,
    })
}

/// The sliding window. Zero means none. A window that is not smaller than the context has no effect and is ignored for
/// families without windows.
fn window(keys: &ArchitectureMetadata<'_>, family: &DecoderFamily) -> Result<Option<usize>, ModelError> {
    const KEY: &str = "attention.sliding_window";
    if !keys.has(KEY) {
        // llama.cpp's default for Gemma 2.
        return Ok((family.gemma && family.windows == SlidingWindows::AllExceptEvery(2)).then_some(4096));
    }
    if keys.integer(KEY) == Some(0) {
        return Ok(None);
    }
    let window = keys.required(KEY, 1 << 31)?;
    if family.windows == SlidingWindows::All || matches!(family.windows, SlidingWindows::AllExceptEvery(_)) {
        return Ok(Some(if family.causal { window } else { symmetric_window(window) }));
    }
    if window >= keys.required("context_length", 1 << 24)? {
        return Ok(None);
    }
    reject_config(format!("a sliding window of {window} is not supported for {}", family.name))
}

/// Which layers have the window, by the file's list or period, or by the family's period.
fn windowed_layers(
    keys: &ArchitectureMetadata<'_>,
    family: &DecoderFamily,
    layer_count: usize,
) -> Result<Vec<bool>, ModelError> {
    const KEY: &str = "attention.sliding_window_pattern";
    let period = match (keys.metadata.get(&keys.key(KEY)), family.windows) {
        // Draft layers may follow.
        (Some(Value::Array(array)), _) => match flags(array).filter(|flags| flags.len() >= layer_count) {
            Some(flags) => return Ok(flags),
            None => {
                return reject_config(format!("the pattern of sliding windows does not have {layer_count} layers"));
            }
        },
        (Some(_), _) => Some(keys.required(KEY, 1 << 10)?),
        (None, SlidingWindows::AllExceptEvery(period)) => Some(period),
        (None, _) => None,
    };
    Ok((0..layer_count).map(|layer| period.is_none_or(|period| !(layer + 1).is_multiple_of(period))).collect())
}

/// The flags of an array, which may be numbers.
fn flags(array: &Array) -> Option<Vec<bool>> {
    let flag = |number| match number {
        Value::Bool(flag) => Some(flag),
        Value::Unsigned(number) => Some(number != 0),
        Value::Signed(number) => Some(number != 0),
        _ => None,
    };
    array.numbers()?.map(flag).collect()
}
