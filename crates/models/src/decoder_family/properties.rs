//! What the properties of a [`DecoderFamily`](super::DecoderFamily) may be.

use crate::backend::RouterWeights;

/// Which layers have a sliding window, unless the checkpoint lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlidingWindows {
    /// No layer.
    Never,
    /// All layers, if the checkpoint has a window.
    All,
    /// With `use_sliding_window`: the layers from `max_window_layers` on, or all without that key.
    OptIn,
    /// With `use_sliding_window`: the layers without a rotary embedding.
    LayersWithoutRope,
    /// All layers except every n-th, which is the last one of its group.
    AllExceptEvery(usize),
}

/// Where a layer has norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPlacement {
    /// Before the mixer and before the feed-forward network.
    Before,
    /// After both: their outputs are normalized before the residual sum.
    After,
    BeforeAndAfter,
}

impl NormPlacement {
    /// Whether the inputs of the mixer and of the feed-forward network are normalized.
    pub fn is_before(self) -> bool {
        self != Self::After
    }

    /// Whether the outputs of the mixer and of the feed-forward network are normalized.
    pub fn is_after(self) -> bool {
        self != Self::Before
    }
}

/// Factors with which a network computes, from the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Multipliers {
    None,
    /// Those of embeddings, scores and residual sums, and a divisor of the logits.
    Granite,
    /// One of the logits; the default is this one.
    Logits(f32),
}

/// The norms of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorms {
    /// Each head is normalized by itself.
    EachHead,
    /// Each head is normalized by itself, after its rotation.
    EachHeadAfterRope,
    /// Each head is normalized by itself, and has weights of its own.
    EachHeadOwnWeights,
    /// All heads are normalized together.
    AllHeads,
}

/// The layers without a rotary embedding (NoPE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayersWithoutRope {
    None,
    /// Every n-th layer.
    Every(usize),
    /// Those with full attention, if the checkpoint has a window.
    FullAttention,
}

/// The rotary embedding of layers with a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LocalRope {
    /// That of the other layers.
    Same,
    /// Without context scaling.
    Unscaled,
    /// Without context scaling, and with its own base; the default is this one.
    OwnBase(f32),
}

/// Mixers that have a recurrent state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecurrentMixer {
    ShortConv,
    /// `tiled`: GGUF files have the heads of values in another order; see [`RecurrenceShape::tiled`].
    DeltaNet {
        tiled: bool,
    },
    Mamba2,
}

/// What the mixtures of experts of a family have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertRules {
    pub weights: RouterWeights,
    /// The default of `norm_topk_prob`.
    pub normalise_weights: bool,
    /// The default of `use_expert_bias`.
    pub selection_bias: bool,
    /// One more expert computes every token.
    pub shared: Option<SharedExpert>,
    /// The default of `num_dense_layers`.
    pub leading_dense_layers: usize,
    /// The router and the experts must have biases.
    pub biases: bool,
    /// In Hugging Face's files, the inputs of experts are rows, and the outputs of their gate and up projections alternate.
    pub transposed: bool,
}

/// How the output of an expert that computes every token is weighted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedExpert {
    /// By the sigmoid of a gate.
    Gated,
    /// By one.
    Plain,
    /// By one half, as is the sum of the other experts.
    Averaged,
}
