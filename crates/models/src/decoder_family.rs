//! The table of model families that the decoder supports. A new family is a new entry.
//!
//! The entries follow each family's `config.json` and modeling code in transformers. For GGUF files, they follow the
//! converter and graphs of llama.cpp.

mod properties;
mod tensor_names;

use super::nn::rope::RopeLayout;
use super::peft::{
    GEMMA4_MODULES, GRANITE_HYBRID_MODULES, HUNYUAN_MOE_MODULES, LATENT_MODULES, LFM2_MODULES, LLAMA_MODULES, Module,
    NEMOTRON_MODULES, QWEN3_NEXT_MODULES, QWEN35_MODULES, SHARED_EXPERT_MODULES,
};

pub use crate::backend::Activation;
use crate::backend::{NormKind, RouterWeights};
pub use properties::{
    ExpertRules, LayersWithoutRope, LocalRope, Multipliers, NormPlacement, QkNorms, RecurrentMixer, SharedExpert,
    SlidingWindows,
};
use tensor_names::{
    GEMMA4_BARE_NAMES, GEMMA4_NAMES, GLM4_NAMES, GRANITE_HYBRID_NAMES, HUNYUAN_NAMES, LATENT_NAMES, LFM2_NAMES,
    NEMOTRON_NAMES, QWEN3_NEXT_NAMES, QWEN35_NAMES, SHARED_EXPERT_NAMES,
};

/// The rules of Mixtral.
pub const MIXTRAL_EXPERTS: ExpertRules = ExpertRules {
    weights: RouterWeights::Softmax,
    normalise_weights: true,
    selection_bias: false,
    shared: None,
    leading_dense_layers: 0,
    biases: false,
    transposed: false,
};

/// The rules of DeepSeek V3, which other families share.
const DEEPSEEK3_EXPERTS: ExpertRules = ExpertRules {
    weights: RouterWeights::Sigmoid,
    selection_bias: true,
    shared: Some(SharedExpert::Plain),
    ..MIXTRAL_EXPERTS
};

/// The properties in which decoder families differ.
#[derive(Debug, PartialEq)]
pub struct DecoderFamily {
    /// `general.architecture` in GGUF. Mixtral is `llama` with experts.
    pub name: &'static str,
    /// `model_type` in `config.json`.
    pub model_types: &'static [&'static str],
    /// The RoPE layout of GGUF files; converters permute the weights of some families.
    pub rope: RopeLayout,
    /// The RoPE layout of Hugging Face's files and of adapters.
    pub hugging_face_rope: RopeLayout,
    /// The query, key and value projections must have biases.
    pub biases: bool,
    /// RoPE may apply to only the first elements of a head.
    pub partial_rotary: bool,
    /// The default of `partial_rotary_factor`.
    pub rotary_fraction: f32,
    pub qk_norms: Option<QkNorms>,
    /// Not all checkpoints have the norms of queries and keys.
    pub optional_qk_norms: bool,
    pub norms: NormPlacement,
    /// The kind of all norms.
    pub norm_kind: NormKind,
    /// Checkpoints that have the epsilon of RMS norms have these norms instead.
    pub optional_rms_norms: bool,
    /// Attention and feed-forward network have the same input, and both add to the residual stream.
    pub parallel: bool,
    /// Tokens attend only to themselves and those before them, unless a `config.json` says otherwise. Other networks only encode
    /// texts.
    pub causal: bool,
    /// Gemma's conventions: embeddings are scaled by the square root of the width, and some keys of `config.json` are its own.
    pub gemma: bool,
    pub multipliers: Multipliers,
    pub activation: Activation,
    pub windows: SlidingWindows,
    pub without_rope: LayersWithoutRope,
    /// The leading layers, which have no experts, have a rotary embedding and full attention.
    pub leading_layers_rotate: bool,
    /// The default of `tie_word_embeddings`.
    pub tied_embeddings: bool,
    /// The default of `rope_theta`.
    pub rope_base: f32,
    pub local_rope: LocalRope,
    /// Context scaling of the type `dynamic` is static: it raises the base with `alpha` (NTK-aware scaling).
    pub ntk_alpha: bool,
    /// The default of `truncate`: the bounds between the frequencies that YaRN scales and those that it does not are whole numbers. GGUF
    /// files do not say it.
    pub yarn_truncates: bool,
    /// The default width of a head, if it is not width / heads.
    pub head_width: Option<usize>,
    /// The default width of a head in layers without a window, if they have their own widths and key-value heads.
    pub global_head_width: Option<usize>,
    /// The factor of scores, if it does not depend on the width of a head.
    pub attention_scale: Option<f32>,
    /// Each head of values is normalized, without weights. In layers without a projection of values, the products of `attn_k` are the values,
    /// too.
    pub value_norms: bool,
    /// Layers with experts have a dense network, too; see [`FeedForwardConfig::Both`](crate::decoder_config::FeedForwardConfig::Both).
    pub experts_beside_dense: bool,
    /// The layer count of the one model size whose GGUF files scale queries by width / heads instead of the head width.
    pub width_scaled_layer_count: Option<usize>,
    /// The mixer of layers without attention.
    pub recurrent: Option<RecurrentMixer>,
    /// Attention is latent; see [`LatentConfig`](super::decoder_config::LatentConfig).
    pub latent: bool,
    /// The output of attention has a gate.
    pub output_gate: bool,
    /// Each head has a score that joins the sum of the softmax.
    pub attention_sinks: bool,
    /// Hugging Face stores the weights of most norms minus one.
    pub zero_centred_norms: bool,
    /// A layer has either a mixer or a feed-forward network.
    pub single_sublayers: bool,
    /// Feed-forward networks have gates.
    pub gated: bool,
    /// Tensors whose names in Hugging Face's files are not Llama's. The stems are those of GGUF.
    pub tensor_names: &'static [(&'static str, &'static str)],
    /// Tensors of layers whose names in Hugging Face's files end neither in `.weight` nor in `.bias`.
    pub bare_names: &'static [(&'static str, &'static str)],
    /// Checkpoints may have a layer for multi-token prediction, as Qwen3-Next has it.
    pub mtp: bool,
    /// The modules that adapters may target.
    pub adapter_modules: &'static [Module],
    /// The rules of mixtures of experts, if the family has them.
    pub experts: Option<ExpertRules>,
}

pub(super) const LLAMA: DecoderFamily = DecoderFamily {
    name: "llama",
    model_types: &["llama"],
    rope: RopeLayout::Interleaved,
    hugging_face_rope: RopeLayout::Halves,
    biases: false,
    partial_rotary: false,
    rotary_fraction: 1.,
    qk_norms: None,
    optional_qk_norms: false,
    norms: NormPlacement::Before,
    norm_kind: NormKind::Rms,
    optional_rms_norms: false,
    parallel: false,
    causal: true,
    gemma: false,
    multipliers: Multipliers::None,
    activation: Activation::Silu,
    windows: SlidingWindows::Never,
    without_rope: LayersWithoutRope::None,
    leading_layers_rotate: false,
    tied_embeddings: false,
    rope_base: 10_000.,
    local_rope: LocalRope::Same,
    ntk_alpha: false,
    yarn_truncates: true,
    head_width: None,
    global_head_width: None,
    attention_scale: None,
    value_norms: false,
    experts_beside_dense: false,
    width_scaled_layer_count: None,
    recurrent: None,
    latent: false,
    output_gate: false,
    attention_sinks: false,
    zero_centred_norms: false,
    single_sublayers: false,
    gated: true,
    mtp: false,
    tensor_names: &[],
    bare_names: &[],
    adapter_modules: LLAMA_MODULES,
    experts: None,
};

/// GGUF files of DeepSeek 2 and 3 and of GLM-4.7-Flash have the same architecture.
const DEEPSEEK2: DecoderFamily = DecoderFamily {
    name: "deepseek2",
    model_types: &["deepseek_v2"],
    hugging_face_rope: RopeLayout::Interleaved,
    latent: true,
    tensor_names: LATENT_NAMES,
    bare_names: &[("exp_probs_b", "mlp.gate.e_score_correction_bias")],
    adapter_modules: LATENT_MODULES,
    experts: Some(ExpertRules { normalise_weights: false, shared: Some(SharedExpert::Plain), ..MIXTRAL_EXPERTS }),
    ..LLAMA
};

const LFM2: DecoderFamily = DecoderFamily {
    name: "lfm2",
    model_types: &["lfm2"],
    rope: RopeLayout::Halves,
    qk_norms: Some(QkNorms::EachHead),
    tied_embeddings: true,
    rope_base: 1_000_000.,
    recurrent: Some(RecurrentMixer::ShortConv),
    tensor_names: LFM2_NAMES,
    bare_names: &[("exp_probs_b", "feed_forward.expert_bias")],
    adapter_modules: LFM2_MODULES,
    ..LLAMA
};

const QWEN35: DecoderFamily = DecoderFamily {
    name: "qwen35",
    model_types: &["qwen3_5_text"],
    rope: RopeLayout::Halves,
    partial_rotary: true,
    rotary_fraction: 0.25,
    qk_norms: Some(QkNorms::EachHead),
    head_width: Some(256),
    rope_base: 10_000_000.,
    recurrent: Some(RecurrentMixer::DeltaNet { tiled: true }),
    output_gate: true,
    zero_centred_norms: true,
    mtp: true,
    tensor_names: QWEN35_NAMES,
    bare_names: &[("ssm_a", "linear_attn.A_log"), ("ssm_dt", "linear_attn.dt_bias")],
    adapter_modules: QWEN35_MODULES,
    ..LLAMA
};

const NEMOTRON_H: DecoderFamily = DecoderFamily {
    name: "nemotron_h",
    model_types: &["nemotron_h"],
    activation: Activation::SquaredRelu,
    head_width: Some(128),
    recurrent: Some(RecurrentMixer::Mamba2),
    single_sublayers: true,
    gated: false,
    tensor_names: NEMOTRON_NAMES,
    bare_names: &[
        ("ssm_a", "mixer.A_log"),
        ("ssm_dt", "mixer.dt_bias"),
        ("ssm_d", "mixer.D"),
        ("exp_probs_b", "mixer.gate.e_score_correction_bias"),
    ],
    adapter_modules: NEMOTRON_MODULES,
    experts: Some(DEEPSEEK3_EXPERTS),
    ..LLAMA
};

const GEMMA: DecoderFamily = DecoderFamily {
    name: "gemma",
    model_types: &["gemma"],
    rope: RopeLayout::Halves,
    gemma: true,
    zero_centred_norms: true,
    activation: Activation::GeluTanh,
    tied_embeddings: true,
    head_width: Some(256),
    ..LLAMA
};

const QWEN3: DecoderFamily = DecoderFamily {
    name: "qwen3",
    model_types: &["qwen3"],
    rope: RopeLayout::Halves,
    qk_norms: Some(QkNorms::EachHead),
    windows: SlidingWindows::OptIn,
    head_width: Some(128),
    ..LLAMA
};

/// GGUF files of OLMo 2 and 3 have the same architecture. Those of OLMo 3 have windows.
const OLMO3: DecoderFamily = DecoderFamily {
    name: "olmo2",
    model_types: &["olmo3"],
    rope: RopeLayout::Halves,
    qk_norms: Some(QkNorms::AllHeads),
    norms: NormPlacement::After,
    windows: SlidingWindows::AllExceptEvery(4),
    rope_base: 500_000.,
    local_rope: LocalRope::Unscaled,
    ..LLAMA
};

const ERNIE45: DecoderFamily = DecoderFamily {
    name: "ernie4_5",
    model_types: &["ernie4_5"],
    hugging_face_rope: RopeLayout::Interleaved,
    tied_embeddings: true,
    rope_base: 500_000.,
    head_width: Some(128),
    ..LLAMA
};

const HUNYUAN: DecoderFamily = DecoderFamily {
    name: "hunyuan-dense",
    model_types: &["hunyuan_v1_dense"],
    rope: RopeLayout::Halves,
    qk_norms: Some(QkNorms::EachHeadAfterRope),
    ntk_alpha: true,
    tensor_names: HUNYUAN_NAMES,
    ..LLAMA
};

const GPT_OSS: DecoderFamily = DecoderFamily {
    name: "gpt-oss",
    model_types: &["gpt_oss"],
    rope: RopeLayout::Halves,
    biases: true,
    activation: Activation::ClampedSwiglu,
    windows: SlidingWindows::AllExceptEvery(2),
    rope_base: 150_000.,
    yarn_truncates: false,
    head_width: Some(64),
    attention_sinks: true,
    tensor_names: &[("ffn_gate_inp", "mlp.router")],
    bare_names: &[("attn_sinks", "self_attn.sinks")],
    experts: Some(ExpertRules { biases: true, transposed: true, ..MIXTRAL_EXPERTS }),
    ..LLAMA
};

/// Command R.
const COHERE: DecoderFamily = DecoderFamily {
    name: "command-r",
    model_types: &["cohere"],
    hugging_face_rope: RopeLayout::Interleaved,
    qk_norms: Some(QkNorms::EachHeadOwnWeights),
    optional_qk_norms: true,
    norm_kind: NormKind::Layer,
    parallel: true,
    multipliers: Multipliers::Logits(0.0625),
    tied_embeddings: true,
    rope_base: 500_000.,
    ..LLAMA
};

const COHERE2: DecoderFamily = DecoderFamily {
    name: "cohere2",
    model_types: &["cohere2"],
    qk_norms: None,
    windows: SlidingWindows::AllExceptEvery(4),
    without_rope: LayersWithoutRope::FullAttention,
    rope_base: 10_000.,
    ..COHERE
};

const GEMMA3: DecoderFamily = DecoderFamily {
    name: "gemma3",
    model_types: &["gemma3_text"],
    qk_norms: Some(QkNorms::EachHead),
    norms: NormPlacement::BeforeAndAfter,
    windows: SlidingWindows::AllExceptEvery(6),
    rope_base: 1_000_000.,
    local_rope: LocalRope::OwnBase(10_000.),
    width_scaled_layer_count: Some(62),
    ..GEMMA
};

pub const FAMILIES: &[DecoderFamily] = &[
    LLAMA,
    DecoderFamily { model_types: &["mistral"], windows: SlidingWindows::All, ..LLAMA },
    DecoderFamily {
        model_types: &["mixtral"],
        windows: SlidingWindows::All,
        rope_base: 1_000_000.,
        experts: Some(MIXTRAL_EXPERTS),
        ..LLAMA
    },
    DecoderFamily {
        name: "mistral3",
        model_types: &["ministral3"],
        rope_base: 1_000_000.,
        windows: SlidingWindows::All,
        ..LLAMA
    },
    DecoderFamily {
        name: "smollm3",
        model_types: &["smollm3"],
        windows: SlidingWindows::LayersWithoutRope,
        without_rope: LayersWithoutRope::Every(4),
        tied_embeddings: true,
        rope_base: 2_000_000.,
        ..LLAMA
    },
    DecoderFamily {
        name: "qwen2",
        model_types: &["qwen2"],
        rope: RopeLayout::Halves,
        biases: true,
        windows: SlidingWindows::OptIn,
        ..LLAMA
    },
    QWEN3,
    DecoderFamily {
        name: "qwen3moe",
        model_types: &["qwen3_moe"],
        head_width: None,
        experts: Some(ExpertRules { normalise_weights: false, ..MIXTRAL_EXPERTS }),
        ..QWEN3
    },
    GEMMA,
    DecoderFamily {
        name: "gemma2",
        model_types: &["gemma2"],
        norms: NormPlacement::BeforeAndAfter,
        windows: SlidingWindows::AllExceptEvery(2),
        width_scaled_layer_count: Some(46),
        ..GEMMA
    },
    GEMMA3,
    // EmbeddingGemma. Its `config.json` is one of Gemma 3.
    DecoderFamily {
        name: "gemma-embedding",
        model_types: &[],
        causal: false,
        width_scaled_layer_count: None,
        ..GEMMA3
    },
    DecoderFamily {
        name: "gemma4",
        model_types: &["gemma4_text", "gemma4_unified_text"],
        zero_centred_norms: false,
        qk_norms: Some(QkNorms::EachHead),
        value_norms: true,
        attention_scale: Some(1.),
        global_head_width: Some(512),
        norms: NormPlacement::BeforeAndAfter,
        windows: SlidingWindows::AllExceptEvery(6),
        rope_base: 1_000_000.,
        local_rope: LocalRope::OwnBase(10_000.),
        experts_beside_dense: true,
        tensor_names: GEMMA4_NAMES,
        bare_names: GEMMA4_BARE_NAMES,
        adapter_modules: GEMMA4_MODULES,
        ..GEMMA
    },
    DecoderFamily {
        name: "phi3",
        model_types: &["phi3"],
        rope: RopeLayout::Halves,
        partial_rotary: true,
        windows: SlidingWindows::All,
        ..LLAMA
    },
    LFM2,
    DecoderFamily {
        name: "lfm2moe",
        model_types: &["lfm2_moe"],
        experts: Some(ExpertRules {
            weights: RouterWeights::Sigmoid,
            selection_bias: true,
            leading_dense_layers: 2,
            ..MIXTRAL_EXPERTS
        }),
        ..LFM2
    },
    QWEN35,
    DecoderFamily {
        name: "qwen35moe",
        model_types: &["qwen3_5_moe_text"],
        experts: Some(ExpertRules { shared: Some(SharedExpert::Gated), ..MIXTRAL_EXPERTS }),
        ..QWEN35
    },
    DecoderFamily {
        name: "qwen3next",
        model_types: &["qwen3_next"],
        rope_base: 10_000.,
        recurrent: Some(RecurrentMixer::DeltaNet { tiled: false }),
        tensor_names: QWEN3_NEXT_NAMES,
        adapter_modules: QWEN3_NEXT_MODULES,
        experts: Some(ExpertRules { shared: Some(SharedExpert::Gated), ..MIXTRAL_EXPERTS }),
        ..QWEN35
    },
    DecoderFamily { name: "granite", model_types: &["granite"], multipliers: Multipliers::Granite, ..LLAMA },
    DecoderFamily {
        name: "granitehybrid",
        model_types: &["granitemoehybrid"],
        multipliers: Multipliers::Granite,
        recurrent: Some(RecurrentMixer::Mamba2),
        tensor_names: GRANITE_HYBRID_NAMES,
        bare_names: &[("ssm_a", "mamba.A_log"), ("ssm_dt", "mamba.dt_bias"), ("ssm_d", "mamba.D")],
        adapter_modules: GRANITE_HYBRID_MODULES,
        experts: Some(ExpertRules { shared: Some(SharedExpert::Plain), ..MIXTRAL_EXPERTS }),
        ..LLAMA
    },
    OLMO3,
    DecoderFamily {
        model_types: &["olmo2"],
        windows: SlidingWindows::Never,
        rope_base: 10_000.,
        local_rope: LocalRope::Same,
        ..OLMO3
    },
    DecoderFamily {
        name: "glm4moe",
        model_types: &["glm4_moe"],
        rope: RopeLayout::Halves,
        partial_rotary: true,
        rotary_fraction: 0.5,
        qk_norms: Some(QkNorms::EachHead),
        optional_qk_norms: true,
        tensor_names: SHARED_EXPERT_NAMES,
        bare_names: &[("exp_probs_b", "mlp.gate.e_score_correction_bias")],
        adapter_modules: SHARED_EXPERT_MODULES,
        experts: Some(DEEPSEEK3_EXPERTS),
        ..LLAMA
    },
    DecoderFamily {
        name: "seed_oss",
        model_types: &["seed_oss"],
        rope: RopeLayout::Halves,
        head_width: Some(128),
        ..LLAMA
    },
    ERNIE45,
    DecoderFamily {
        name: "ernie4_5-moe",
        model_types: &["ernie4_5_moe"],
        head_width: None,
        tensor_names: SHARED_EXPERT_NAMES,
        bare_names: &[("exp_probs_b", "mlp.moe_statics.e_score_correction_bias")],
        adapter_modules: SHARED_EXPERT_MODULES,
        experts: Some(ExpertRules {
            selection_bias: true,
            shared: Some(SharedExpert::Plain),
            leading_dense_layers: 1,
            ..MIXTRAL_EXPERTS
        }),
        ..ERNIE45
    },
    HUNYUAN,
    DecoderFamily {
        name: "hunyuan-moe",
        model_types: &["hunyuan_v1_moe"],
        adapter_modules: HUNYUAN_MOE_MODULES,
        experts: Some(ExpertRules { shared: Some(SharedExpert::Plain), ..MIXTRAL_EXPERTS }),
        ..HUNYUAN
    },
    DecoderFamily {
        name: "exaone4",
        model_types: &["exaone4"],
        rope: RopeLayout::Halves,
        qk_norms: Some(QkNorms::EachHead),
        norms: NormPlacement::After,
        windows: SlidingWindows::AllExceptEvery(4),
        without_rope: LayersWithoutRope::FullAttention,
        ..LLAMA
    },
    DecoderFamily {
        name: "glm4",
        model_types: &["glm4"],
        hugging_face_rope: RopeLayout::Interleaved,
        partial_rotary: true,
        rotary_fraction: 0.5,
        norms: NormPlacement::BeforeAndAfter,
        head_width: Some(128),
        tensor_names: GLM4_NAMES,
        ..LLAMA
    },
    COHERE,
    COHERE2,
    DecoderFamily {
        name: "cohere2moe",
        model_types: &["cohere2_moe"],
        optional_rms_norms: true,
        leading_layers_rotate: true,
        head_width: Some(128),
        tensor_names: SHARED_EXPERT_NAMES,
        adapter_modules: SHARED_EXPERT_MODULES,
        experts: Some(ExpertRules { shared: Some(SharedExpert::Averaged), ..MIXTRAL_EXPERTS }),
        ..COHERE2
    },
    GPT_OSS,
    DEEPSEEK2,
    DecoderFamily { model_types: &["deepseek_v3", "glm4_moe_lite"], experts: Some(DEEPSEEK3_EXPERTS), ..DEEPSEEK2 },
    NEMOTRON_H,
    DecoderFamily { name: "nemotron_h_moe", model_types: &[], ..NEMOTRON_H },
];

impl DecoderFamily {
    /// True if the family uses `layer_types` of `config.json`.
    pub fn lists_layers(&self) -> bool {
        match self.windows {
            SlidingWindows::Never | SlidingWindows::All => false,
            SlidingWindows::OptIn | SlidingWindows::LayersWithoutRope => self.experts.is_none(),
            SlidingWindows::AllExceptEvery(_) => true,
        }
    }
}

/// Finds the family of a GGUF architecture.
pub fn find_architecture(architecture: &str) -> Option<&'static DecoderFamily> {
    FAMILIES.iter().find(|family| family.name == architecture)
}

/// Finds the family of a `model_type` in `config.json`.
pub fn find_model_type(model_type: &str) -> Option<&'static DecoderFamily> {
    FAMILIES.iter().find(|family| family.model_types.contains(&model_type))
}

/// All architectures, for error messages.
pub fn architecture_names() -> Vec<&'static str> {
    let mut names: Vec<_> = FAMILIES.iter().map(|family| family.name).collect();
    names.dedup();
    names
}

/// All model types, for error messages.
pub fn model_type_names() -> Vec<&'static str> {
    FAMILIES.iter().flat_map(|family| family.model_types).copied().collect()
}
