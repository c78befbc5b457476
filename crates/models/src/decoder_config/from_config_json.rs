//! Reads a decoder's configuration from the `config.json` of a Hugging Face folder. `configuration_*.py` in transformers
//! describe the keys.

use serde_json::{Value, json};

use super::rope_from_config_json::{growth, latent_magnitude, ropes};
use super::unknown_family::{UnknownFamily, unknown_modules};
use super::{
    AttentionConfig, DecoderConfig, DeltaNetConfig, DenseConfig, FeedForwardConfig, LatentConfig, LayerConfig,
    Mamba2Config, MixerConfig, MoeConfig, PerLayerConfig, SharedExpertConfig, ShortConvConfig, add_query_rope,
    symmetric_window,
};
use crate::backend::{ExpertGroups, NormKind, RecurrenceShape, RouterWeights, Routing};
use crate::config_json::ConfigJson;
use crate::decoder_family::{
    self, Activation, DecoderFamily, ExpertRules, LayersWithoutRope, MIXTRAL_EXPERTS, Multipliers, NormPlacement,
    QkNorms, RecurrentMixer, SharedExpert, SlidingWindows,
};
use crate::error::{ModelError, Result, reject_config};
use crate::nn::NormSpec;
use crate::nn::rope::RopeLayout;
use crate::quantization_config;
use crate::safetensors::ModelFolder;
use crate::weights::{Role, Weights as _};

/// The period of layers with full attention among the leading ones, which have no experts.
const LEADING_PERIOD: &str = "prefix_dense_sliding_window_pattern";
/// The hidden layer of Granite 4's network that computes every token.
const GRANITE_INNER: &str = "shared_intermediate_size";

/// The family of the `model_type` in a `config.json`.
pub fn find_family(config: &Value) -> Option<&'static DecoderFamily> {
    decoder_family::find_model_type(config.get("model_type")?.as_str()?)
}

/// The family of a folder.
fn family_of(folder: &ModelFolder) -> Result<&'static DecoderFamily> {
    let name = folder.config.get("model_type").and_then(Value::as_str);
    let name = name.ok_or_else(|| ModelError::checkpoint("config.json has no model_type"))?;
    find_family(&folder.config).ok_or_else(|| {
        let missing = unknown_modules(folder.names_without_fp8_scales());
        UnknownFamily { kind: "model type", name }.error(&decoder_family::model_type_names(), missing)
    })
}

impl DecoderConfig {
    /// Reads the configuration from a folder's `config.json` and the headers of its weights.
    pub fn from_folder(folder: &ModelFolder) -> Result<Self> {
        let family = family_of(folder)?;
        let config = ConfigJson { value: &folder.config, path: "" };
        reject_unsupported(&config, family)?;
        let width = config.required("hidden_size", 1 << 16)?;
        let heads = config.required("num_attention_heads", 1 << 10)?;
        let layer_count = match sublayers(&config, family)? {
            Some(sublayers) => sublayers.len(),
            None => config.required("num_hidden_layers", 1 << 10)?,
        };
        let latent = if family.latent { Some(latent(&config)?) } else { None };
        let (kv_heads, head_width) = match &latent {
            Some(latent) => (1, latent.head_width()),
            None => {
                let kv_heads = config.integer("num_key_value_heads", 1 << 10)?.unwrap_or(heads);
                (kv_heads, head_width(&config, family, width, heads)?)
            }
        };
        let sizes = head_sizes(&config, family, [kv_heads, head_width], layer_count)?;
        let mut ropes = ropes(&config, family, latent.map_or(sizes.rotated, |latent| [latent.rotated; 2]))?;
        let layer_ropes = ropes.len();
        // Gemma 2, 3 and 4.
        let has_soft_caps = family.gemma && family.norms.is_after();
        let scale_width = config.float("query_pre_attn_scalar")?.filter(|_| has_soft_caps);
        let soft_cap = |key: &str| if has_soft_caps { config.float(key) } else { Ok(None) };
        let is_granite = family.multipliers == Multipliers::Granite;
        let multiplier = |key: &str| if is_granite { config.float(key) } else { Ok(None) };
        let scale = match multiplier("attention_multiplier")? {
            Some(scale) => scale,
            None if is_granite => 1.,
            None if let Some(latent) = &latent => latent.scale() * latent_magnitude(&config)?.powi(2),
            None => family.attention_scale.unwrap_or(scale_width.unwrap_or(head_width as f32).sqrt().recip()),
        };
        let causal = family.causal && !is_bidirectional(config.value);
        let attention = AttentionConfig {
            heads,
            kv_heads,
            head_width,
            causal,
            window: None,
            rope: Some(0),
            query_rope: add_query_rope(&mut ropes, growth(&config)?),
            rope_layout: match config.flag("rope_interleave")?.filter(|_| family.latent) {
                Some(false) => RopeLayout::Halves,
                _ => family.hugging_face_rope,
            },
            qk_norms: qk_norms(&config, family)?,
            biases: family.biases || (!family.single_sublayers && attention_biases(&config)?),
            scale,
            soft_cap: soft_cap("attn_logit_softcapping")?,
            output_gate: config.flag("attn_output_gate")?.unwrap_or(family.output_gate),
            sinks: family.attention_sinks,
            keys_as_values: false,
            value_norms: family.value_norms,
            kv_layer: None,
            latent,
        };
        let shared = config.count("num_kv_shared_layers", 1 << 10)?;
        let mut found = Self {
            width,
            vocabulary: vocabulary(folder)?,
            context: config.required("max_position_embeddings", 1 << 24)?,
            norm: norm(&config, family)?,
            layers: layers(&config, family, (layer_count, layer_ropes), (attention, &sizes.of_layers))?,
            mtp: None,
            ropes,
            embedding_scale: match multiplier("embedding_multiplier")? {
                None if family.gemma => (width as f32).sqrt(),
                scale => scale.unwrap_or(1.),
            },
            per_layer: per_layer(&config, family)?,
            residual_scale: multiplier("residual_multiplier")?.unwrap_or(1.),
            logit_scale: logit_scale(&config, family)?,
            logit_soft_cap: soft_cap("final_logit_softcapping")?,
            tied_embeddings: Some(tied_embeddings(&config, family)?),
            adapter_modules: family.adapter_modules,
            adapter_rope_layout: family.hugging_face_rope,
        };
        found.share_kv(shared)?;
        widen_sharing_layers(&config, &mut found.layers)?;
        found.check()
    }
}

/// `[kv_heads, head_width]` of each layer, and the widths of heads in layers without and with a window.
struct HeadSizes {
    of_layers: Vec<[usize; 2]>,
    rotated: [usize; 2],
}

/// In families with a [`DecoderFamily::global_head_width`], layers without a window have their own sizes. `per_layer_config` lists what differs
/// from `local` in each layer, or keys for all of these layers do.
fn head_sizes(
    config: &ConfigJson<'_>,
    family: &DecoderFamily,
    local: [usize; 2],
    layer_count: usize,
) -> Result<HeadSizes> {
    let of_layers = vec![local; layer_count];
    let Some(width) = family.global_head_width else { return Ok(HeadSizes { of_layers, rotated: [local[1]; 2] }) };
    let windows = windows(config, family, &vec![true; layer_count])?;
    let of_layers = match config.object("per_layer_config", "per_layer_config.")? {
        Some(listed) => listed_head_sizes(&listed, of_layers)?,
        None => {
            // transformers ignores their number of heads otherwise.
            let has_own = config.flag("attention_k_eq_v")? == Some(true);
            let kv_heads = if has_own { config.integer("num_global_key_value_heads", 1 << 10)? } else { None };
            let global = [kv_heads.unwrap_or(local[0]), config.integer_or("global_head_dim", width, 1 << 12)?];
            windows.iter().map(|window| if window.is_some() { local } else { global }).collect()
        }
    };
    let widths = |windowed: bool| {
        let same = windows.iter().zip(&of_layers).filter(|(window, _)| window.is_some() == windowed);
        let mut widths: Vec<usize> = same.map(|(_, [_, width])| *width).collect();
        widths.dedup();
        match widths.as_slice() {
            [] => Ok(local[1]),
            [width] => Ok(*width),
            widths => reject_config(format!("layers of the same type have heads of different widths: {widths:?}")),
        }
    };
    Ok(HeadSizes { rotated: [widths(false)?, widths(true)?], of_layers })
}

/// `sizes`: those of layers without an entry.
fn listed_head_sizes(listed: &ConfigJson<'_>, mut sizes: Vec<[usize; 2]>) -> Result<Vec<[usize; 2]>> {
    let layer_count = sizes.len();
    for (layer, value) in listed.value.as_object().into_iter().flatten() {
        let path = format!("{}{layer}.", listed.path);
        let own = ConfigJson { value, path: &path };
        let Some([kv_heads, head_width]) = layer.parse::<usize>().ok().and_then(|layer| sizes.get_mut(layer)) else {
            return reject_config(format!("{path} is not one of {layer_count} layers"));
        };
        let is_unknown = |key: &&String| !["head_dim", "num_key_value_heads"].contains(&key.as_str());
        if let Some(key) = value.as_object().and_then(|own| own.keys().find(is_unknown)) {
            return reject_config(format!("{path}{key} is not supported"));
        }
        *kv_heads = own.integer_or("num_key_value_heads", *kv_heads, 1 << 10)?;
        *head_width = own.integer_or("head_dim", *head_width, 1 << 12)?;
    }
    Ok(sizes)
}

fn per_layer(config: &ConfigJson<'_>, family: &DecoderFamily) -> Result<Option<PerLayerConfig>> {
    match config.count("hidden_size_per_layer_input", 1 << 12)? {
        0 => Ok(None),
        width => Ok(Some(PerLayerConfig { width, activation: activation(config, family)? })),
    }
}

/// Gemma 4: the feed-forward networks of layers that read the keys and values of others may be twice as wide.
fn widen_sharing_layers(config: &ConfigJson<'_>, layers: &mut [LayerConfig]) -> Result<()> {
    if config.flag("use_double_wide_mlp")? != Some(true) {
        return Ok(());
    }
    for layer in layers {
        let shares = layer.attention().is_some_and(|attention| attention.kv_layer.is_some());
        if let (true, Some(FeedForwardConfig::Dense(dense) | FeedForwardConfig::Both(dense, _))) =
            (shares, &mut layer.feed_forward)
        {
            dense.inner *= 2;
        }
    }
    Ok(())
}

fn norm(config: &ConfigJson<'_>, family: &DecoderFamily) -> Result<NormSpec> {
    let has_rms_norms = family.optional_rms_norms && config.get("rms_norm_eps").is_some();
    let kind = if has_rms_norms { NormKind::Rms } else { family.norm_kind };
    let epsilon = match family.recurrent {
        Some(RecurrentMixer::ShortConv) => "norm_eps",
        _ if family.single_sublayers => "layer_norm_epsilon",
        _ if kind == NormKind::Layer => "layer_norm_eps",
        _ => "rms_norm_eps",
    };
    Ok(NormSpec {
        kind,
        epsilon: config.required_float(epsilon)?,
        offset: if family.zero_centred_norms { 1. } else { 0. },
    })
}

fn latent(config: &ConfigJson<'_>) -> Result<LatentConfig> {
    Ok(LatentConfig {
        query_rank: config.integer("q_lora_rank", 1 << 16)?,
        rank: config.required("kv_lora_rank", 1 << 12)?,
        unrotated: config.required("qk_nope_head_dim", 1 << 12)?,
        rotated: config.required("qk_rope_head_dim", 1 << 12)?,
        value_width: config.required("v_head_dim", 1 << 12)?,
    })
}

/// `use_qk_norm` says whether a checkpoint has the norms, if they are optional in its family.
fn qk_norms(config: &ConfigJson<'_>, family: &DecoderFamily) -> Result<Option<QkNorms>> {
    let has_norms = !family.optional_qk_norms || config.flag("use_qk_norm")?.unwrap_or(false);
    Ok(family.qk_norms.filter(|_| has_norms))
}

/// The factor of the logits. Granite has a divisor.
fn logit_scale(config: &ConfigJson<'_>, family: &DecoderFamily) -> Result<f32> {
    Ok(match family.multipliers {
        Multipliers::None => 1.,
        Multipliers::Granite => config.float("logits_scaling")?.unwrap_or(1.).recip(),
        Multipliers::Logits(default) => config.float("logit_scale")?.unwrap_or(default),
    })
}

/// Rejects features that would change results and are not supported.
fn reject_unsupported(config: &ConfigJson<'_>, family: &DecoderFamily) -> Result<()> {
    quantization_config::check_decoder(config, family.experts.is_some_and(|rules| rules.transposed))?;
    match config.get("use_bidirectional_attention") {
        // That of pictures, which are not supported.
        Some(Value::String(kind)) if kind != "vision" => {
            reject_config(format!("a use_bidirectional_attention of {kind} is not supported"))
        }
        _ => Ok(()),
    }
}

/// True for the `config.json` of a decoder whose tokens see all others, so that it only encodes texts. `is_causal` is the key for
/// all families, `use_bidirectional_attention` that of Gemma 3.
pub fn is_bidirectional(config: &Value) -> bool {
    let flag = |key: &str| config.get(key).and_then(Value::as_bool);
    flag("use_bidirectional_attention") == Some(true) || flag("is_causal") == Some(false)
}

/// The window of a decoder whose tokens see all others. For Gemma 3, it is that of both sides of a token together.
fn bidirectional_window(family: &DecoderFamily, window: usize) -> Result<usize> {
    match family.name {
        "gemma3" => Ok(symmetric_window(window)),
        name => reject_config(format!("a sliding_window of attention that is not causal is not supported for {name}")),
    }
}

/// Whether queries, keys and values have biases. ERNIE has one key for all projections.
fn attention_biases(config: &ConfigJson<'_>) -> Result<bool> {
    let own = config.flag("attention_bias")?;
    Ok(own.or(config.flag("use_bias")?).unwrap_or(false))
}

fn head_width(config: &ConfigJson<'_>, family: &DecoderFamily, width: usize, heads: usize) -> Result<usize> {
    // Older files of Nemotron-H have another name.
    let own = match config.integer("head_dim", 1 << 12)? {
        None => config.integer("attention_head_dim", 1 << 12)?,
        own => own,
    };
    match own.or(family.head_width) {
        Some(head_width) => Ok(head_width),
        None if width.is_multiple_of(heads) => Ok(width / heads),
        None => reject_config(format!("the width {width} does not divide into {heads} heads")),
    }
}

fn is_lfm2(family: &DecoderFamily) -> bool {
    family.recurrent == Some(RecurrentMixer::ShortConv)
}

/// LFM2's own files have `tie_embedding`.
fn tied_embeddings(config: &ConfigJson<'_>, family: &DecoderFamily) -> Result<bool> {
    let own = if is_lfm2(family) { config.flag("tie_embedding")? } else { None };
    Ok(config.flag("tie_word_embeddings")?.or(own).unwrap_or(family.tied_embeddings))
}

fn vocabulary(folder: &ModelFolder) -> Result<usize> {
    let name = folder.name("token_embd", Role::Weight).unwrap_or_default();
    match folder.tensor(&name).map(|(table, _)| table.shape.as_slice()) {
        Some(&[rows, _]) if rows <= 1 << 22 => Ok(rows),
        Some(shape) => Err(ModelError::checkpoint(format!("tensor {name} has the impossible shape {shape:?}"))),
        None => Err(ModelError::checkpoint(format!("the files have no tensor {name}"))),
    }
}

/// Gemma uses `hidden_activation`, and the tanh approximation of GELU by default.
fn activation(config: &ConfigJson<'_>, family: &DecoderFamily) -> Result<Activation> {
    let key = match family.gemma {
        true => "hidden_activation",
        false if family.single_sublayers => "mlp_hidden_act",
        false => "hidden_act",
    };
    match config.text(key)? {
        None => Ok(family.activation),
        Some("silu") if family.activation == Activation::ClampedSwiglu => clamped_swiglu(config),
        Some("silu" | "swish") => Ok(Activation::Silu),
        Some("relu2") => Ok(Activation::SquaredRelu),
        Some("gelu_pytorch_tanh" | "gelu_new") => Ok(Activation::GeluTanh),
        Some(other) => reject_config(format!("the activation {other} is not supported")),
    }
}

/// The clamped gate of gpt-oss has the numbers of all published models. Older files do not have them.
fn clamped_swiglu(config: &ConfigJson<'_>) -> Result<Activation> {
    for (key, supported) in [("swiglu_limit", 7.), ("swiglu_alpha", 1.702)] {
        if let Some(other) = config.float(key)?.filter(|number| *number != supported) {
            return reject_config(format!("a {key} of {other} is not supported; it must be {supported}"));
        }
    }
    Ok(Activation::ClampedSwiglu)
}

/// The value of the first of `keys` that the file has: an integer from 1 to `max`, or a list with the same integer for each layer.
fn first_integer(config: &ConfigJson<'_>, keys: &[&str], max: usize) -> Result<Option<usize>> {
    let Some(key) = keys.iter().find(|key| config.get(key).is_some()) else { return Ok(None) };
    let Some(Value::Array(of_layers)) = config.get(key) else { return config.integer(key, max) };
    match of_layers.split_first() {
        Some((first, rest)) if rest.iter().all(|other| other == first) => {
            ConfigJson { value: &json!({ (*key): first }), path: config.path }.integer(key, max)
        }
        _ => reject_config(format!("{key} must have the same number for all layers")),
    }
}

/// The same, which the file must have.
fn required_integer(config: &ConfigJson<'_>, keys: &[&str], max: usize) -> Result<usize> {
    match first_integer(config, keys, max)? {
        Some(number) => Ok(number),
        None => reject_config(format!("{} is missing", keys.join(" or "))),
    }
}

/// Mixtral has `num_local_experts` and `intermediate_size`, Nemotron 3 `n_routed_experts`, Gemma 4 `top_k_experts`, ERNIE 4.5
/// `moe_num_experts` and `moe_k`, Hunyuan `moe_topk`. Cohere's `expert_selection_fn` is applied to the scores of the selected experts.
fn experts(
    config: &ConfigJson<'_>,
    family: &DecoderFamily,
    rules: &ExpertRules,
    activation: Activation,
) -> Result<MoeConfig> {
    if config.get("moe_latent_size").is_some() {
        return reject_config("experts with a moe_latent_size are not supported".to_owned());
    }
    let counts = ["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"];
    let count = required_integer(config, &counts, 1 << 12)?;
    let inner = required_integer(config, &["moe_intermediate_size", "intermediate_size"], 1 << 20)?;
    if config.text("topk_method")? == Some("group_limited_greedy") && config.integer("n_group", 1 << 12)? > Some(1) {
        return reject_config("experts of groups that are chosen by their best expert are not supported".to_owned());
    }
    let groups = match config.integer("n_group", 1 << 12)? {
        None | Some(1) => None,
        Some(count) => Some(ExpertGroups { count, used: config.required("topk_group", 1 << 12)? }),
    };
    let used: &[&str] = match family.experts_beside_dense {
        true => &["top_k_experts"],
        false => &["num_experts_per_tok", "moe_k", "moe_topk"],
    };
    let normalise_weights = config.flag("norm_topk_prob")?.unwrap_or(rules.normalise_weights);
    let (weights, normalise_weights) = match config.text("expert_selection_fn")? {
        None => (rules.weights, normalise_weights),
        Some("softmax") => (RouterWeights::Softmax, true),
        Some("sigmoid") => (RouterWeights::Sigmoid, normalise_weights),
        Some(other) => return reject_config(format!("an expert_selection_fn of {other} is not supported")),
    };
    let routing = Routing {
        experts_per_token: required_integer(config, used, 1 << 12)?,
        weights,
        normalise_weights,
        scale: config.float("routed_scaling_factor")?.unwrap_or(1.),
        groups,
    };
    let selection_bias = config.flag("use_expert_bias")?.unwrap_or(rules.selection_bias);
    let shared = match rules.shared {
        Some(kind) => shared_expert(config, family, kind, inner)?,
        None => None,
    };
    let (gated, biases) = (family.gated, rules.biases);
    Ok(MoeConfig { count, inner, activation, gated, routing, selection_bias, biases, shared })
}

/// The experts that compute every token, as one network. `inner`: the length of the hidden layer of another expert.
fn shared_expert(
    config: &ConfigJson<'_>,
    family: &DecoderFamily,
    kind: SharedExpert,
    inner: usize,
) -> Result<Option<SharedExpertConfig>> {
    let kind = match (kind, config.text("shared_expert_combination_strategy")?) {
        (SharedExpert::Averaged, Some("sum")) => SharedExpert::Plain,
        (SharedExpert::Averaged, Some(other)) if other != "average" => {
            return reject_config(format!("a shared_expert_combination_strategy of {other} is not supported"));
        }
        (kind, _) => kind,
    };
    let key = match kind {
        SharedExpert::Gated => "shared_expert_intermediate_size",
        _ if family.single_sublayers => "moe_shared_expert_intermediate_size",
        _ => GRANITE_INNER,
    };
    let counts = ["n_shared_experts", "moe_num_shared_experts", "num_shared_expert", "num_shared_experts"];
    let counts: &[&str] = if family.single_sublayers { &[] } else { &counts };
    // For example, the largest version of ERNIE 4.5.
    if counts.iter().any(|key| config.get(key).and_then(Value::as_u64) == Some(0)) {
        return Ok(None);
    }
    let inner = match first_integer(config, counts, 1 << 10)? {
        // Hunyuan's is as long as a dense network, and in transformers there is one.
        count if family.ntk_alpha => count.unwrap_or(1) * config.required("intermediate_size", 1 << 20)?,
        Some(count) => count * inner,
        None if key == GRANITE_INNER && family.recurrent.is_none() => {
            required_integer(config, counts, 1 << 10)? * inner
        }
        None => config.required(key, 1 << 20)?,
    };
    Ok(Some(SharedExpertConfig { inner, kind }))
}

/// What a layer of a family with [`DecoderFamily::single_sublayers`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sublayer {
    Recurrent,
    Attention,
    Dense,
    Sparse,
}

/// The layers of a family that has only one sublayer in each. Older files have a letter for each layer.
fn sublayers(config: &ConfigJson<'_>, family: &DecoderFamily) -> Result<Option<Vec<Sublayer>>> {
    if !family.single_sublayers {
        return Ok(None);
    }
    let names = match config.list("layers_block_type", |name| name.as_str().map(str::to_owned))? {
        Some(names) => names,
        None => match config.text("hybrid_override_pattern")? {
            Some(letters) => letters.chars().map(String::from).collect(),
            None => return reject_config("layers_block_type is missing".to_owned()),
        },
    };
    let sublayer = |name: &String| match name.as_str() {
        "linear_attention" | "mamba" | "M" => Ok(Sublayer::Recurrent),
        "full_attention" | "attention" | "*" => Ok(Sublayer::Attention),
        "mlp" | "-" => Ok(Sublayer::Dense),
        "moe" | "E" => Ok(Sublayer::Sparse),
        other => reject_config(format!("layers of type {other} are not supported")),
    };
    match names.len() {
        1..=1024 => names.iter().map(sublayer).collect::<Result<_>>().map(Some),
        count => reject_config(format!("the model has {count} layers, it must have 1 to 1024")),
    }
}

/// The plans of layers that have only one sublayer.
fn single_layers(
    config: &ConfigJson<'_>,
    family: &DecoderFamily,
    sublayers: &[Sublayer],
    attention: AttentionConfig,
) -> Result<Vec<LayerConfig>> {
    let activation = activation(config, family)?;
    let mixer =
        |mixer| LayerConfig { mixer: Some(mixer), feed_forward: None, norms: NormPlacement::Before, parallel: false };
    let feed_forward = |network| LayerConfig {
        mixer: None,
        feed_forward: Some(network),
        norms: NormPlacement::Before,
        parallel: false,
    };
    let layer = |sublayer: &Sublayer| {
        Ok(match (sublayer, &family.experts) {
            (Sublayer::Recurrent, _) => mixer(MixerConfig::Mamba2(nemotron_mamba2(config)?)),
            // There is no position embedding.
            (Sublayer::Attention, _) => mixer(MixerConfig::Attention(AttentionConfig { rope: None, ..attention })),
            (Sublayer::Sparse, Some(rules)) => {
                feed_forward(FeedForwardConfig::Sparse(experts(config, family, rules, activation)?))
            }
            (Sublayer::Dense | Sublayer::Sparse, _) => {
                feed_forward(FeedForwardConfig::Dense(dense(config, family, activation)?))
            }
        })
    };
    sublayers.iter().map(layer).collect()
}

/// The feed-forward networks of the layers: those that `mlp_layer_types` lists, or experts, except in the first `num_dense_layers`,
/// `first_k_dense_replace` or `moe_layer_start_index`, in `mlp_only_layers`, after `moe_layer_end_index`, and between multiples of
/// `decoder_sparse_step` or `moe_layer_interval`.
fn feed_forward(config: &ConfigJson<'_>, family: &DecoderFamily, layer_count: usize) -> Result<Vec<FeedForwardConfig>> {
    let activation = activation(config, family)?;
    // Granite 4 has models without experts, too.
    let has_none = config.get("num_local_experts").and_then(Value::as_u64) == Some(0);
    if family.experts_beside_dense && config.flag("enable_moe_block")? == Some(true) {
        let dense = dense(config, family, activation)?;
        let experts = experts(config, family, &MIXTRAL_EXPERTS, activation)?;
        return Ok(vec![FeedForwardConfig::Both(dense, experts); layer_count]);
    }
    let dense = || dense(config, family, activation).map(FeedForwardConfig::Dense);
    let Some(rules) = family.experts.as_ref().filter(|_| !has_none) else {
        return Ok(vec![dense()?; layer_count]);
    };
    let sparse = FeedForwardConfig::Sparse(experts(config, family, rules, activation)?);
    let count = |key: &str| match config.get(key).map(|count| count.as_u64().ok_or(count)) {
        None => Ok(None),
        Some(Ok(count)) => Ok(Some(count)),
        Some(Err(count)) => reject_config(format!("{key} is {count}, it must be a number")),
    };
    let leading = count("num_dense_layers")?.or(count("first_k_dense_replace")?).or(count("moe_layer_start_index")?);
    let leading = leading.unwrap_or(rules.leading_dense_layers as u64);
    let last = match config.get("moe_layer_end_index") {
        Some(index) if index.as_i64() != Some(-1) => count("moe_layer_end_index")?,
        _ => None,
    };
    let types = config.list("mlp_layer_types", Value::as_str)?;
    if let Some(types) = types.as_ref().filter(|types| types.len() != layer_count) {
        return reject_config(format!("mlp_layer_types has {} entries for {layer_count} layers", types.len()));
    }
    let dense_layers = config.list("mlp_only_layers", |item| item.as_u64())?.unwrap_or_default();
    let step = first_integer(config, &["decoder_sparse_step", "moe_layer_interval"], 1 << 10)?.unwrap_or(1) as u64;
    let is_sparse = |layer: &u64| match &types {
        Some(types) => types.get(*layer as usize) == Some(&"sparse"),
        None => {
            let is_between = *layer >= leading && last.is_none_or(|last| *layer <= last);
            is_between && !dense_layers.contains(layer) && (layer + 1).is_multiple_of(step)
        }
    };
    let network = |layer: u64| if is_sparse(&layer) { Ok(sparse) } else { dense() };
    (0..layer_count as u64).map(network).collect()
}

fn dense(config: &ConfigJson<'_>, family: &DecoderFamily, activation: Activation) -> Result<DenseConfig> {
    let inner = match family.recurrent {
        Some(RecurrentMixer::ShortConv) if family.experts.is_none() => lfm2_inner(config)?,
        Some(RecurrentMixer::Mamba2) if !family.single_sublayers => config.required(GRANITE_INNER, 1 << 20)?,
        _ if let Some(inner) = config.integer("prefix_dense_intermediate_size", 1 << 20)? => inner,
        _ => config.required("intermediate_size", 1 << 20)?,
    };
    Ok(DenseConfig { inner, activation, gated: family.gated })
}

/// The plan of each of `layer_count` layers; `attention` without its window, sizes and rotary embedding, which is one of `ropes`.
fn layers(
    config: &ConfigJson<'_>,
    family: &DecoderFamily,
    (layer_count, ropes): (usize, usize),
    (attention, sizes): (AttentionConfig, &[[usize; 2]]),
) -> Result<Vec<LayerConfig>> {
    if let Some(sublayers) = sublayers(config, family)? {
        return single_layers(config, family, &sublayers, attention);
    }
    let feed_forward = feed_forward(config, family, layer_count)?;
    let rotates = rotates(config, family, layer_count)?;
    let windows = windows(config, family, &rotates)?;
    let only_windows_rotate =
        family.without_rope == LayersWithoutRope::FullAttention && config.get("sliding_window").is_some();
    let leading_rotate = family.leading_layers_rotate && config.integer_or(LEADING_PERIOD, 1, 1 << 10)? == 1;
    let recurrent = recurrent_mixers(config, family, layer_count)?;
    let has_values = !(family.value_norms && config.flag("attention_k_eq_v")? == Some(true));
    let plans = rotates.into_iter().zip(windows).zip(recurrent).zip(feed_forward).zip(sizes);
    let mut layers = Vec::with_capacity(layer_count);
    for ((((rotates, window), recurrent), feed_forward), &[kv_heads, head_width]) in plans {
        let leading_rotates = leading_rotate && matches!(feed_forward, FeedForwardConfig::Dense(_));
        let rotates = rotates && (window.is_some() || !only_windows_rotate || leading_rotates);
        let rope = rotates.then_some(if window.is_some() { ropes - 1 } else { 0 });
        let keys_as_values = !has_values && window.is_none();
        let own = AttentionConfig { window, rope, kv_heads, head_width, keys_as_values, ..attention };
        layers.push(LayerConfig {
            mixer: Some(recurrent.unwrap_or(MixerConfig::Attention(own))),
            feed_forward: Some(feed_forward),
            norms: family.norms,
            parallel: family.parallel,
        });
    }
    Ok(layers)
}

/// The width of LFM2's feed-forward network. By default, `config.json` gives that of a network without a gate. One with a
/// gate has two thirds of it, for the same number of parameters.
fn lfm2_inner(config: &ConfigJson<'_>) -> Result<usize> {
    let inner = match config.integer("block_ff_dim", 1 << 20)? {
        Some(inner) => inner,
        None => config.required("intermediate_size", 1 << 20)?,
    };
    if !config.flag("block_auto_adjust_ff_dim")?.unwrap_or(true) {
        return Ok(inner);
    }
    let factor = config.float("block_ffn_dim_multiplier")?.unwrap_or(1.);
    let multiple = config.integer("block_multiple_of", 1 << 16)?.unwrap_or(256);
    let scaled = (2 * inner / 3) as f64 * f64::from(factor);
    if !(1. ..=f64::from(1 << 20)).contains(&scaled) {
        return reject_config(format!("block_ffn_dim_multiplier is {factor}, which makes {scaled} of {inner}"));
    }
    Ok((scaled as usize).next_multiple_of(multiple))
}

/// The mixers of the layers that have no attention: those of another type in `layer_types`. Older files have
/// `full_attn_idxs` (LFM2) or `full_attention_interval` (Qwen 3.5).
fn recurrent_mixers(
    config: &ConfigJson<'_>,
    family: &DecoderFamily,
    layer_count: usize,
) -> Result<Vec<Option<MixerConfig>>> {
    let (own_types, mixer): (&[&str], _) = match family.recurrent {
        None => return Ok(vec![None; layer_count]),
        Some(RecurrentMixer::ShortConv) => (&["conv"], MixerConfig::ShortConv(short_conv(config)?)),
        Some(RecurrentMixer::DeltaNet { .. }) => (&["linear_attention"], MixerConfig::DeltaNet(delta_net(config)?)),
        Some(RecurrentMixer::Mamba2) => (&["mamba", "linear_attention"], MixerConfig::Mamba2(mamba2(config)?)),
    };
    if let Some(types) = config.list("layer_types", Value::as_str)? {
        if types.len() != layer_count {
            return reject_config(format!("layer_types has {} entries for {layer_count} layers", types.len()));
        }
        let mixer = |kind| match kind {
            "full_attention" | "attention" => Ok(None),
            kind if own_types.contains(&kind) => Ok(Some(mixer)),
            other => reject_config(format!("layers of type {other} are not supported")),
        };
        return types.into_iter().map(mixer).collect();
    }
    let interval = config.integer_or("full_attention_interval", 4, 1 << 10)?;
    let indices = config.list("full_attn_idxs", Value::as_u64)?;
    let has_attention = |layer: usize| match (family.recurrent, &indices) {
        (Some(RecurrentMixer::DeltaNet { .. }), _) => (layer + 1).is_multiple_of(interval),
        (_, Some(indices)) => indices.contains(&(layer as u64)),
        _ => true,
    };
    Ok((0..layer_count).map(|layer| (!has_attention(layer)).then_some(mixer)).collect())
}

fn short_conv(config: &ConfigJson<'_>) -> Result<ShortConvConfig> {
    Ok(ShortConvConfig {
        kernel: config.integer_or("conv_L_cache", 3, 1 << 8)?,
        biases: config.flag("conv_bias")?.unwrap_or(false),
    })
}

fn delta_net(config: &ConfigJson<'_>) -> Result<DeltaNetConfig> {
    let shape = RecurrenceShape {
        key_heads: config.integer_or("linear_num_key_heads", 16, 1 << 10)?,
        value_heads: config.integer_or("linear_num_value_heads", 32, 1 << 10)?,
        key_width: config.integer_or("linear_key_head_dim", 128, 1 << 12)?,
        value_width: config.integer_or("linear_value_head_dim", 128, 1 << 12)?,
        tiled: false,
    };
    let kernel = config.integer_or("linear_conv_kernel_dim", 4, 1 << 8)?;
    Ok(DeltaNetConfig { shape, kernel, logarithmic_decay: true })
}

fn mamba2(config: &ConfigJson<'_>) -> Result<Mamba2Config> {
    let value_heads = config.integer_or("mamba_n_heads", 128, 1 << 10)?;
    let values = config.integer_or("mamba_expand", 2, 1 << 4)? * config.required("hidden_size", 1 << 16)?;
    if !values.is_multiple_of(value_heads) {
        return reject_config(format!("mamba_n_heads is {value_heads}, which does not divide {values}"));
    }
    check_step_limits(config)?;
    let shape = RecurrenceShape {
        key_heads: config.integer_or("mamba_n_groups", 1, 1 << 10)?,
        value_heads,
        key_width: config.integer_or("mamba_d_state", 256, 1 << 12)?,
        value_width: values / value_heads,
        tiled: false,
    };
    Ok(Mamba2Config {
        shape,
        kernel: config.integer_or("mamba_d_conv", 4, 1 << 8)?,
        conv_bias: config.flag("mamba_conv_bias")?.unwrap_or(true),
        biases: config.flag("mamba_proj_bias")?.unwrap_or(false),
        logarithmic_decay: true,
    })
}

/// The keys of Nemotron-H, which has newer names for some.
fn nemotron_mamba2(config: &ConfigJson<'_>) -> Result<Mamba2Config> {
    check_step_limits(config)?;
    let either = |[new, old]: [&str; 2], default: usize, max: usize| match config.integer(new, max)? {
        Some(number) => Ok::<_, ModelError>(number),
        None => config.integer_or(old, default, max),
    };
    let shape = RecurrenceShape {
        key_heads: either(["n_groups", "mamba_n_groups"], 8, 1 << 10)?,
        value_heads: config.integer_or("mamba_num_heads", 128, 1 << 10)?,
        key_width: config.integer_or("ssm_state_size", 128, 1 << 12)?,
        value_width: config.integer_or("mamba_head_dim", 64, 1 << 12)?,
        tiled: false,
    };
    let conv_bias = match config.flag("use_conv_bias")? {
        None => config.flag("mamba_conv_bias")?,
        flag => flag,
    };
    Ok(Mamba2Config {
        shape,
        kernel: either(["conv_kernel", "mamba_d_conv"], 4, 1 << 8)?,
        conv_bias: conv_bias.unwrap_or(true),
        biases: config.flag("use_bias")?.unwrap_or(false),
        logarithmic_decay: true,
    })
}

/// Refuses steps of state spaces that are clamped.
fn check_step_limits(config: &ConfigJson<'_>) -> Result<()> {
    // transformers writes an infinite limit as an object.
    let limits = |key: &str| config.list(key, |limit| Some(limit.as_f64()));
    let limits = match limits("time_step_limit")? {
        None => limits("mamba_dt_limit")?,
        limits => limits,
    };
    let limits = limits.unwrap_or_default();
    if limits.iter().flatten().any(|limit| *limit != 0. && limit.is_finite()) {
        return reject_config(format!("a time_step_limit of {limits:?} is not supported"));
    }
    Ok(())
}

/// Which layers have a rotary embedding, apart from what windows decide. In `no_rope_layers`, one means that a layer has it.
fn rotates(config: &ConfigJson<'_>, family: &DecoderFamily, layer_count: usize) -> Result<Vec<bool>> {
    if family.recurrent == Some(RecurrentMixer::Mamba2) {
        return Ok(vec![config.text("position_embedding_type")? == Some("rope"); layer_count]);
    }
    let LayersWithoutRope::Every(every) = family.without_rope else { return Ok(vec![true; layer_count]) };
    let every = config.integer("no_rope_layer_interval", 1 << 10)?.unwrap_or(every);
    match config.list("no_rope_layers", Value::as_u64)? {
        Some(list) if list.len() == layer_count => Ok(list.iter().map(|flag| *flag != 0).collect()),
        Some(list) if !list.is_empty() => {
            reject_config(format!("no_rope_layers has {} entries for {layer_count} layers", list.len()))
        }
        _ => Ok((1..=layer_count).map(|layer| !layer.is_multiple_of(every)).collect()),
    }
}

/// The window of each layer, by the list `layer_types` or by the family's rule.
fn windows(config: &ConfigJson<'_>, family: &DecoderFamily, rotates: &[bool]) -> Result<Vec<Option<usize>>> {
    let layer_count = rotates.len();
    let enabled = config.flag("use_sliding_window")?.unwrap_or(false);
    let opt_in = matches!(family.windows, SlidingWindows::OptIn | SlidingWindows::LayersWithoutRope);
    let has_windows = family.windows != SlidingWindows::Never && (enabled || !opt_in);
    let window = match config.integer("sliding_window", 1 << 31)?.filter(|_| has_windows) {
        Some(window) if is_bidirectional(config.value) => Some(bidirectional_window(family, window)?),
        window => window,
    };
    let first_windowed = config.get("max_window_layers").and_then(Value::as_u64).unwrap_or(0) as usize;
    let types = config.list("layer_types", Value::as_str)?.filter(|_| family.lists_layers());
    let own_period = match (family.windows, &types) {
        (SlidingWindows::AllExceptEvery(_), None) => config.integer("sliding_window_pattern", 1 << 10)?,
        _ => None,
    };
    let leading = match &types {
        None if family.leading_layers_rotate => config.count("first_k_dense_replace", layer_count)?,
        _ => 0,
    };
    if leading > 0 && config.integer_or(LEADING_PERIOD, 1, 1 << 10)? != 1 {
        return reject_config(format!("a {LEADING_PERIOD} other than 1 is supported only with layer_types"));
    }
    let has_window = |layer: usize| match family.windows {
        SlidingWindows::Never => false,
        SlidingWindows::All => true,
        SlidingWindows::OptIn => layer >= first_windowed || family.experts.is_some(),
        SlidingWindows::LayersWithoutRope => !rotates.get(layer).copied().unwrap_or(true),
        SlidingWindows::AllExceptEvery(every) => {
            layer >= leading && !(layer - leading + 1).is_multiple_of(own_period.unwrap_or(every))
        }
    };
    let Some(types) = types else {
        return Ok((0..layer_count).map(|layer| window.filter(|_| has_window(layer))).collect());
    };
    if types.len() != layer_count {
        return reject_config(format!("layer_types has {} entries for {layer_count} layers", types.len()));
    }
    let windows = types.into_iter().map(|kind| match (kind, window) {
        ("full_attention", _) => Ok(None),
        ("sliding_attention", Some(window)) => Ok(Some(window)),
        ("sliding_attention", None) => {
            reject_config("layer_types has sliding_attention, but sliding_window is missing".to_owned())
        }
        (other, _) => reject_config(format!("layers of type {other} are not supported")),
    });
    windows.collect()
}
