//! The table of families that one decoder serves. A new row is a new family.
//!
//! Sources of the facts: each family's `config.json` and modelling code in transformers for what it
//! computes, llama.cpp's converter and graphs for how GGUF files name and store the same.

use super::rope::RopeStyle;

pub use outpost_kernels::Activation;

/// Which layers see a sliding window only, where a checkpoint gives no list of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlidingWindows {
    /// The family has none.
    Never,
    /// All layers, if there is a window.
    All,
    /// If `use_sliding_window`: the layers from `max_window_layers` on, or all without that key.
    OptIn,
    /// If `use_sliding_window`: the layers that rotate nothing.
    LayersWithoutRope,
    /// All but every so-many-th, which come last of their group.
    AllButEvery(usize),
}

/// What differs between decoders of the Llama kind.
#[derive(Debug, PartialEq)]
pub struct DecoderFamily {
    /// `general.architecture` in GGUF; a Mixtral is a `llama` with experts there.
    pub name: &'static str,
    /// `model_type` in `config.json`.
    pub model_types: &'static [&'static str],
    /// How GGUF files pair the numbers of a head: converters permute some families' weights.
    /// Hugging Face's files pair halves, always.
    pub rope: RopeStyle,
    /// Whether the query, key and value projections must have biases.
    pub biases: bool,
    /// Whether gate and up lie in one tensor.
    pub fused_gate_up: bool,
    /// Whether a head's last numbers may stay unrotated.
    pub partial_rotary: bool,
    /// Whether each head's queries and keys are normed.
    pub qk_norms: bool,
    /// Whether attention and feed-forward are normed once more, before they are added.
    pub post_norms: bool,
    /// Gemma's habits: embeddings times the root of the width, and norm weights that Hugging Face
    /// stores less one.
    pub gemma: bool,
    pub activation: Activation,
    pub windows: SlidingWindows,
    /// Every so-many-th layer rotates nothing (NoPE).
    pub no_rope_every: Option<usize>,
    /// Whether output and embedding are one where `config.json` does not say.
    pub tied_embeddings: bool,
    /// The base of rotations where a checkpoint does not say; that of windowed layers beside it.
    pub rope_base: f32,
    pub local_rope_base: Option<f32>,
    /// A head's numbers where `config.json` does not say and they are not width / heads.
    pub head_width: Option<usize>,
    /// The one size whose queries are scaled by width / heads in GGUF, where no key says so: its blocks.
    pub odd_scale_blocks: Option<usize>,
}

const LLAMA: DecoderFamily = DecoderFamily {
    name: "llama",
    model_types: &["llama"],
    rope: RopeStyle::Interleaved,
    biases: false,
    fused_gate_up: false,
    partial_rotary: false,
    qk_norms: false,
    post_norms: false,
    gemma: false,
    activation: Activation::Silu,
    windows: SlidingWindows::Never,
    no_rope_every: None,
    tied_embeddings: false,
    rope_base: 10_000.,
    local_rope_base: None,
    head_width: None,
    odd_scale_blocks: None,
};

const GEMMA: DecoderFamily = DecoderFamily {
    name: "gemma",
    model_types: &["gemma"],
    rope: RopeStyle::Halves,
    gemma: true,
    activation: Activation::GeluTanh,
    tied_embeddings: true,
    head_width: Some(256),
    ..LLAMA
};

const QWEN3: DecoderFamily = DecoderFamily {
    name: "qwen3",
    model_types: &["qwen3"],
    rope: RopeStyle::Halves,
    qk_norms: true,
    windows: SlidingWindows::OptIn,
    head_width: Some(128),
    ..LLAMA
};

pub const FAMILIES: &[DecoderFamily] = &[
    LLAMA,
    DecoderFamily { model_types: &["mistral"], windows: SlidingWindows::All, ..LLAMA },
    DecoderFamily { model_types: &["mixtral"], windows: SlidingWindows::All, rope_base: 1_000_000., ..LLAMA },
    DecoderFamily {
        name: "smollm3",
        model_types: &["smollm3"],
        windows: SlidingWindows::LayersWithoutRope,
        no_rope_every: Some(4),
        tied_embeddings: true,
        rope_base: 2_000_000.,
        ..LLAMA
    },
    DecoderFamily {
        name: "qwen2",
        model_types: &["qwen2"],
        rope: RopeStyle::Halves,
        biases: true,
        windows: SlidingWindows::OptIn,
        ..LLAMA
    },
    QWEN3,
    DecoderFamily { name: "qwen3moe", model_types: &["qwen3_moe"], head_width: None, ..QWEN3 },
    GEMMA,
    DecoderFamily {
        name: "gemma2",
        model_types: &["gemma2"],
        post_norms: true,
        windows: SlidingWindows::AllButEvery(2),
        odd_scale_blocks: Some(46),
        ..GEMMA
    },
    DecoderFamily {
        name: "gemma3",
        model_types: &["gemma3_text"],
        qk_norms: true,
        post_norms: true,
        windows: SlidingWindows::AllButEvery(6),
        rope_base: 1_000_000.,
        local_rope_base: Some(10_000.),
        odd_scale_blocks: Some(62),
        ..GEMMA
    },
    DecoderFamily {
        name: "phi3",
        model_types: &["phi3"],
        rope: RopeStyle::Halves,
        partial_rotary: true,
        fused_gate_up: true,
        windows: SlidingWindows::All,
        ..LLAMA
    },
];

impl DecoderFamily {
    /// Whether `layer_types` in `config.json` means anything to the family.
    pub fn lists_layers(&self) -> bool {
        !matches!(self.windows, SlidingWindows::Never | SlidingWindows::All) && self.name != "qwen3moe"
    }
}

/// The row of a GGUF architecture.
pub fn find_architecture(architecture: &str) -> Option<&'static DecoderFamily> {
    FAMILIES.iter().find(|family| family.name == architecture)
}

/// The row of a `model_type` in `config.json`.
pub fn find_model_type(model_type: &str) -> Option<&'static DecoderFamily> {
    FAMILIES.iter().find(|family| family.model_types.contains(&model_type))
}

/// For messages: `llama, smollm3, qwen2`.
pub fn architecture_names() -> String {
    let mut names: Vec<_> = FAMILIES.iter().map(|family| family.name).collect();
    names.dedup();
    names.join(", ")
}

/// For messages: `llama, mistral, mixtral`.
pub fn model_type_names() -> String {
    FAMILIES.iter().flat_map(|family| family.model_types).copied().collect::<Vec<_>>().join(", ")
}
