//! The configuration of a decoder, from a GGUF header or a `config.json`: a plan of its layers, and what they share.
//!
//! Each layer has its own plan, and the code of a layer reads nothing else. A checkpoint may therefore mix layers: with a
//! sliding window and without, dense and with experts. Whatever a family does in every n-th layer is worked out here.

mod from_config_json;
mod from_gguf;
mod rope_from_config_json;
mod unknown_family;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::backend::{AttentionShape, NormKind, RecurrenceShape, Routing};
use super::decoder_family::{Activation, DecoderFamily, NormPlacement, QkNorms, SharedExpert};
use super::kv::{KvShape, KvType};
use super::nn::NormSpec;
use super::nn::rope::{Growth, RopeLayout, RopeScaling, RopeSpec};
use super::peft::{LLAMA_MODULES, Module};
use super::state_layout::StateGroup;
use crate::error::{ModelError, reject_config};
use crate::weights::LoadedMatrix;
pub(super) use from_config_json::find_family;
pub use from_config_json::is_bidirectional;

/// Sizes and constants of a decoder.
#[derive(Clone, Debug)]
pub struct DecoderConfig {
    pub width: usize,
    pub vocabulary: usize,
    pub context: usize,
    pub norm: NormSpec,
    /// The rotary embeddings that [`AttentionConfig::rope`] and [`AttentionConfig::query_rope`] refer to. A step computes their
    /// angles once for all layers.
    pub ropes: Vec<RopeSpec>,
    pub layers: Vec<LayerConfig>,
    /// The layer for multi-token prediction, which only drafts. It comes after the others. `None`: it is not loaded.
    pub mtp: Option<LayerConfig>,
    /// Factor of the token embeddings.
    pub embedding_scale: f32,
    /// A second embedding of each token, of which each layer adds a part.
    pub per_layer: Option<PerLayerConfig>,
    /// Factor of the outputs of mixers and feed-forward networks, before they are added to the residual stream.
    pub residual_scale: f32,
    /// Factor of the logits.
    pub logit_scale: f32,
    /// Soft cap of the logits: `cap * tanh(x / cap)`.
    pub logit_soft_cap: Option<f32>,
    /// Whether the output projection is the token embedding; `None`: it is if the checkpoint has no output tensor.
    pub tied_embeddings: Option<bool>,
    /// The modules that adapters may target.
    pub adapter_modules: &'static [Module],
    /// The order in which adapters have the rows of queries and keys.
    pub adapter_rope_layout: RopeLayout,
}

/// Per-layer embeddings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerLayerConfig {
    /// Elements of a token's embedding for one layer.
    pub width: usize,
    /// The function of the gates.
    pub activation: Activation,
}

/// The plan of a layer: a mixer, which lets tokens see each other, and a feed-forward network for each token, or one of them.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerConfig {
    pub mixer: Option<MixerConfig>,
    pub feed_forward: Option<FeedForwardConfig>,
    pub norms: NormPlacement,
    /// The feed-forward network has the input of the mixer, and no norm of its own.
    pub parallel: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MixerConfig {
    Attention(AttentionConfig),
    ShortConv(ShortConvConfig),
    DeltaNet(DeltaNetConfig),
    Mamba2(Mamba2Config),
}

/// A gated convolution over the last few tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortConvConfig {
    /// Tokens that an output depends on.
    pub kernel: usize,
    /// The convolution and its projections must have biases.
    pub biases: bool,
}

/// Attention with grouped queries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionConfig {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_width: usize,
    /// Tokens see only themselves and those before them.
    pub causal: bool,
    /// Sliding window: a token sees positions whose distance is less than this; `None`: all.
    pub window: Option<usize>,
    /// Index into [`DecoderConfig::ropes`]; `None`: no position embedding.
    pub rope: Option<usize>,
    /// The rotary embedding of queries, if it is not that of keys.
    pub query_rope: Option<usize>,
    /// The order in which the checkpoint has the rows of queries and keys.
    pub rope_layout: RopeLayout,
    pub qk_norms: Option<QkNorms>,
    /// The query, key and value projections must have biases.
    pub biases: bool,
    /// Factor of the scores.
    pub scale: f32,
    /// Soft cap of the scores: `cap * tanh(x / cap)`.
    pub soft_cap: Option<f32>,
    /// The output of each head is multiplied by the sigmoid of a gate. `attn_q` also has the rows of the gate.
    pub output_gate: bool,
    /// Each head has a score that joins the sum of the softmax, and has no value.
    pub sinks: bool,
    /// There is no projection of values: the products of `attn_k` are the values, before they are normalized and rotated as keys.
    pub keys_as_values: bool,
    /// Each head of values is normalized, without weights.
    pub value_norms: bool,
    /// The earlier layer whose keys and values this one reads, with the same window and sizes. It has none of its own.
    pub kv_layer: Option<usize>,
    /// All heads share one latent vector. `kv_heads` is one, and `head_width` is that of what is kept of a position.
    pub latent: Option<LatentConfig>,
}

/// The widths of latent attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentConfig {
    /// Elements of the latent vector of queries. `None`: they are projected from the residual stream.
    pub query_rank: Option<usize>,
    /// Elements of the latent vector of keys and values.
    pub rank: usize,
    /// Elements of a head's query that are not rotated. They come first.
    pub unrotated: usize,
    /// Elements of a head's query that are rotated.
    pub rotated: usize,
    /// Elements of a head's value.
    pub value_width: usize,
}

impl LatentConfig {
    /// Elements that are kept of a position: the latent vector and the rotated key.
    pub fn head_width(&self) -> usize {
        self.rank + self.rotated
    }

    /// The usual factor of scores.
    fn scale(&self) -> f32 {
        ((self.unrotated + self.rotated) as f32).sqrt().recip()
    }
}

/// A gated delta network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaNetConfig {
    pub shape: RecurrenceShape,
    /// Tokens that an output of the convolution depends on.
    pub kernel: usize,
    /// The checkpoint has the logarithm of the negative decay, and not the decay.
    pub logarithmic_decay: bool,
}

/// A state space of Mamba-2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mamba2Config {
    pub shape: RecurrenceShape,
    /// Tokens that an output of the convolution depends on.
    pub kernel: usize,
    /// The convolution must have a bias.
    pub conv_bias: bool,
    /// The projections must have biases.
    pub biases: bool,
    /// The checkpoint has the logarithm of the negative decay, and not the decay.
    pub logarithmic_decay: bool,
}

impl Mamba2Config {
    /// Elements of the projections of the input: the gate, the input of the convolution, and the steps.
    pub fn input_sizes(&self) -> [usize; 3] {
        [self.shape.values_len(), self.shape.inputs_len(), self.shape.value_heads]
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FeedForwardConfig {
    Dense(DenseConfig),
    /// A mixture of experts.
    Sparse(MoeConfig),
    /// Gemma 4: a dense network, and a mixture of experts beside it. Both have norms of their own inputs and outputs, and the router has a norm,
    /// too.
    Both(DenseConfig, MoeConfig),
}

impl FeedForwardConfig {
    /// The network that computes every token, if it is not a part of the mixture of experts.
    pub fn dense(&self) -> Option<&DenseConfig> {
        match self {
            Self::Dense(dense) | Self::Both(dense, _) => Some(dense),
            Self::Sparse(_) => None,
        }
    }

    /// The mixture of experts.
    pub fn experts(&self) -> Option<&MoeConfig> {
        match self {
            Self::Sparse(experts) | Self::Both(_, experts) => Some(experts),
            Self::Dense(_) => None,
        }
    }
}

/// A feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DenseConfig {
    pub inner: usize,
    pub activation: Activation,
    pub gated: bool,
}

/// A mixture of experts, each of which is a feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MoeConfig {
    pub count: usize,
    pub inner: usize,
    pub activation: Activation,
    /// Each expert has a gate.
    pub gated: bool,
    pub routing: Routing,
    /// Each expert has a bias, which is added to its weight only when experts are selected.
    pub selection_bias: bool,
    /// The router and the experts must have biases.
    pub biases: bool,
    /// An expert that computes every token.
    pub shared: Option<SharedExpertConfig>,
}

/// An expert that computes every token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedExpertConfig {
    pub inner: usize,
    pub kind: SharedExpert,
}

/// The sizes of a decoder without experts.
#[derive(Clone, Copy, Debug)]
pub struct DecoderSizes {
    pub layers: usize,
    pub width: usize,
    pub inner: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_width: usize,
    pub vocabulary: usize,
}

impl DecoderSizes {
    fn attention(&self) -> AttentionConfig {
        let Self { heads, kv_heads, head_width, .. } = *self;
        AttentionConfig {
            heads,
            kv_heads,
            head_width,
            causal: true,
            window: None,
            rope: Some(0),
            query_rope: None,
            rope_layout: RopeLayout::Halves,
            qk_norms: None,
            biases: false,
            scale: (head_width as f32).sqrt().recip(),
            soft_cap: None,
            output_gate: false,
            sinks: false,
            keys_as_values: false,
            value_norms: false,
            kv_layer: None,
            latent: None,
        }
    }
}

#[cfg(test)]
impl DecoderConfig {
    /// A small configuration.
    pub fn for_tests() -> Self {
        let sizes =
            DecoderSizes { layers: 2, width: 64, inner: 128, heads: 4, kv_heads: 2, head_width: 16, vocabulary: 1_000 };
        Self::dense(&sizes, 512)
    }
}

impl DecoderConfig {
    /// A decoder of the family of Llama.
    pub fn dense(sizes: &DecoderSizes, context: usize) -> Self {
        let DecoderSizes { layers, width, inner, head_width, vocabulary, .. } = *sizes;
        let layer = LayerConfig {
            mixer: Some(MixerConfig::Attention(sizes.attention())),
            feed_forward: Some(FeedForwardConfig::Dense(DenseConfig {
                inner,
                activation: Activation::Silu,
                gated: true,
            })),
            norms: NormPlacement::Before,
            parallel: false,
        };
        let rope = RopeSpec {
            base: 10_000.,
            rotated: head_width,
            scaling: RopeScaling::None,
            stored_factors: false,
            growth: None,
        };
        Self {
            width,
            vocabulary,
            context,
            norm: NormSpec { kind: NormKind::Rms, epsilon: 1e-5, offset: 0. },
            ropes: vec![rope],
            layers: vec![layer; layers],
            mtp: None,
            embedding_scale: 1.,
            per_layer: None,
            residual_scale: 1.,
            logit_scale: 1.,
            logit_soft_cap: None,
            tied_embeddings: None,
            adapter_modules: LLAMA_MODULES,
            adapter_rope_layout: RopeLayout::Halves,
        }
    }

    /// The attention of the layers that have it, in order.
    pub fn attention(&self) -> impl Iterator<Item = &AttentionConfig> {
        self.layers.iter().filter_map(LayerConfig::attention)
    }

    /// The recurrences of the layers that have them, in order.
    pub fn recurrences(&self) -> impl Iterator<Item = &RecurrenceShape> {
        self.layers.iter().filter_map(|layer| match layer.mixer.as_ref()? {
            MixerConfig::DeltaNet(DeltaNetConfig { shape, .. }) | MixerConfig::Mamba2(Mamba2Config { shape, .. }) => {
                Some(shape)
            }
            MixerConfig::Attention(_) | MixerConfig::ShortConv(_) => None,
        })
    }

    /// Whether tokens see only themselves and those before them. Other networks only encode texts.
    pub fn is_causal(&self) -> bool {
        self.attention().all(|attention| attention.causal)
    }

    /// Whether there are recurrent layers.
    pub fn is_recurrent(&self) -> bool {
        self.recurrent_layers().next().is_some()
    }

    /// The recurrent layers, each with the lengths of the parts of its state.
    pub(super) fn recurrent_layers(&self) -> impl Iterator<Item = (usize, Vec<usize>)> {
        let parts = |layer: &LayerConfig| match layer.mixer.as_ref()? {
            MixerConfig::Attention(_) => None,
            MixerConfig::ShortConv(conv) => Some(vec![(conv.kernel - 1) * self.width]),
            MixerConfig::DeltaNet(DeltaNetConfig { shape, kernel, .. })
            | MixerConfig::Mamba2(Mamba2Config { shape, kernel, .. }) => {
                Some(vec![(kernel - 1) * shape.inputs_len(), shape.state_len()])
            }
        };
        let layers = self.layers.iter().enumerate();
        layers.filter_map(move |(index, layer)| Some((index, parts(layer)?)))
    }

    /// The lengths of the parts of a recurrent state.
    pub(super) fn recurrent_parts(&self) -> Vec<usize> {
        self.recurrent_layers().flat_map(|(_, parts)| parts).collect()
    }

    /// Whether the checkpoint has the rows or columns of a projection in an order that adapters do not have: GGUF's converter
    /// reorders the heads of values of delta networks.
    pub(super) fn is_reordered(&self, matrix: &LoadedMatrix) -> bool {
        let mixer = matrix.layer().and_then(|layer| self.layers.get(layer)).and_then(|layer| layer.mixer.as_ref());
        let is_of_mixer = !matrix.projection().starts_with("ffn_");
        let is_other_order = |shape: &RecurrenceShape| shape.tiled && shape.key_heads != shape.value_heads;
        matches!(mixer, Some(MixerConfig::DeltaNet(net)) if is_of_mixer && is_other_order(&net.shape))
    }

    /// The groups of layers with attention: the window and the layers of each. Layers that read the keys and values of others are in
    /// none. Layers with the same window are a group, the largest window first. The first group has no window; the layer for
    /// multi-token prediction is its last one. If all layers have windows, that group has no layers: its blocks take no memory, and
    /// stand for the positions in the prefix cache. If `by_window` is not set, all layers are one group.
    pub(super) fn layer_groups(&self, by_window: bool) -> Vec<(Option<usize>, Vec<usize>)> {
        let layers = self.layers.iter().enumerate();
        let layers = layers.filter_map(|(index, layer)| Some((index, layer.attention()?)));
        let layers = layers.filter(|(_, attention)| attention.kv_layer.is_none());
        let drafting = self.mtp.iter().map(|_| self.layers.len());
        if !by_window {
            return vec![(None, layers.map(|(index, _)| index).chain(drafting).collect())];
        }
        let mut windowed: BTreeMap<Reverse<usize>, Vec<usize>> = BTreeMap::new();
        let mut unlimited = Vec::new();
        for (layer, attention) in layers {
            match attention.window.filter(|window| *window < self.context) {
                Some(window) => windowed.entry(Reverse(window)).or_default().push(layer),
                None => unlimited.push(layer),
            }
        }
        unlimited.extend(drafting);
        let windowed = windowed.into_iter().map(|(Reverse(window), layers)| (Some(window), layers));
        std::iter::once((None, unlimited)).chain(windowed).collect()
    }

    /// What the layers keep of a sequence; see [`Self::layer_groups`].
    pub fn state_groups(&self, kv_type: KvType, by_window: bool) -> Vec<StateGroup> {
        let groups = self.layer_groups(by_window).into_iter();
        let group = |(window, layers): (_, Vec<_>)| {
            let shapes = self.kv_shapes(&layers, kv_type).into_iter();
            StateGroup::attention(shapes.map(|(shape, _)| shape.block_bytes()).sum(), window)
        };
        let parts = self.recurrent_parts();
        let bytes = parts.iter().sum::<usize>() * size_of::<f32>();
        groups.map(group).chain((!parts.is_empty()).then(|| StateGroup::recurrent(bytes as u64))).collect()
    }

    /// The plan of the layer for multi-token prediction, if the checkpoint has one. It is like those with attention; its feed-forward
    /// network may have experts. `has`: whether there is a weight of this stem.
    pub(super) fn mtp_layer(&self, family: &DecoderFamily, has: impl Fn(&str) -> bool) -> Option<LayerConfig> {
        let index = self.layers.len();
        if !family.mtp || !has(&format!("blk.{index}.nextn.eh_proj")) {
            return None;
        }
        let is_sparse = has(&format!("blk.{index}.ffn_gate_inp"));
        let mut networks = self.layers.iter().filter_map(|layer| layer.feed_forward);
        let feed_forward = networks.find(|network| matches!(network, FeedForwardConfig::Sparse(_)) == is_sparse)?;
        let attention = AttentionConfig { window: None, ..*self.attention().next()? };
        let mixer = Some(MixerConfig::Attention(attention));
        Some(LayerConfig { mixer, feed_forward: Some(feed_forward), norms: family.norms, parallel: family.parallel })
    }

    /// The weights that a draft token of the layer for multi-token prediction reads, relative to those that a token of the network
    /// reads, as if all layers had the size of this one. `None`: there is no such layer.
    pub(super) fn mtp_cost(&self) -> Option<f64> {
        let layer = self.mtp.as_ref()?.weights_per_token(self.width);
        let (input, output) = (2 * self.width * self.width, self.width * self.vocabulary);
        Some((input + layer + output) as f64 / (self.layers.len() * layer + output) as f64)
    }

    /// The sizes of the keys and values of a group's layers, and these layers. Layers of the same sizes have an arena. A group without layers
    /// has one, too: it stands for positions.
    pub(super) fn kv_shapes(&self, layers: &[usize], kv_type: KvType) -> Vec<(KvShape, Vec<usize>)> {
        let sizes_of = |layer: usize| {
            let plan = self.layers.get(layer).or(self.mtp.as_ref());
            plan.and_then(LayerConfig::attention).map_or([0; 2], AttentionConfig::kv_sizes)
        };
        let mut by_sizes: Vec<([usize; 2], Vec<usize>)> = Vec::new();
        for layer in layers {
            let sizes = sizes_of(*layer);
            match by_sizes.iter_mut().find(|(known, _)| *known == sizes) {
                Some((_, same)) => same.push(*layer),
                None => by_sizes.push((sizes, vec![*layer])),
            }
        }
        if by_sizes.is_empty() {
            by_sizes.push((self.attention().next().map_or([0; 2], AttentionConfig::kv_sizes), Vec::new()));
        }
        let shape = |([kv_heads, head_width], layers): ([usize; 2], Vec<usize>)| {
            (KvShape { layers: layers.len(), kv_heads, head_width, kv_type }, layers)
        };
        by_sizes.into_iter().map(shape).collect()
    }

    /// Whether other layers read the keys and values of a layer.
    pub(super) fn is_kv_source(&self, layer: usize) -> bool {
        self.attention().any(|attention| attention.kv_layer == Some(layer))
    }

    /// `[kv_heads, head_width]`, if these are the same in all layers with attention, and each has its own keys and values.
    pub(super) fn uniform_kv_sizes(&self) -> Option<[usize; 2]> {
        let first = self.attention().next()?.kv_sizes();
        let is_like_first = |attention: &AttentionConfig| attention.kv_sizes() == first && attention.kv_layer.is_none();
        self.attention().all(is_like_first).then_some(first)
    }

    /// The last layer that changes what is kept of a sequence. Later ones only compute tokens whose results are needed.
    pub(super) fn last_stateful_layer(&self) -> usize {
        let keeps = |layer: &LayerConfig| match &layer.mixer {
            Some(MixerConfig::Attention(attention)) => attention.kv_layer.is_none(),
            Some(MixerConfig::ShortConv(_) | MixerConfig::DeltaNet(_) | MixerConfig::Mamba2(_)) => true,
            None => false,
        };
        self.layers.iter().rposition(keeps).unwrap_or(0)
    }

    /// Makes the last `count` layers read the keys and values of earlier ones: each those of the last earlier one with the same window and
    /// sizes.
    fn share_kv(&mut self, count: usize) -> Result<(), ModelError> {
        let first = self.layers.len().saturating_sub(count);
        let (own, sharing) = self.layers.split_at_mut(first);
        for (index, layer) in sharing.iter_mut().enumerate() {
            let Some(MixerConfig::Attention(attention)) = &mut layer.mixer else { continue };
            let (window, sizes) = (attention.window, attention.kv_sizes());
            let is_same = |plan: &LayerConfig| {
                plan.attention().is_some_and(|other| (other.window, other.kv_sizes()) == (window, sizes))
            };
            attention.kv_layer = own.iter().rposition(is_same);
            if attention.kv_layer.is_none() {
                return reject_config(format!(
                    "layer {} shares keys and values, but none of the {first} layers with their own has its window and sizes",
                    first + index
                ));
            }
        }
        Ok(())
    }

    /// The heads of a projection whose rows the checkpoint has in the order of the interleaved RoPE layout, but adapters do not:
    /// converters to GGUF reorder the queries and keys of some families.
    pub(super) fn interleaved_heads(&self, matrix: &LoadedMatrix) -> Option<usize> {
        let attention = self.layers.get(matrix.layer()?)?.attention()?;
        let is_reordered =
            [attention.rope_layout, self.adapter_rope_layout] == [RopeLayout::Interleaved, RopeLayout::Halves];
        match matrix.projection() {
            "attn_q" if is_reordered => Some(attention.heads),
            "attn_k" if is_reordered => Some(attention.kv_heads),
            _ => None,
        }
    }

    /// Checks the values against each other.
    fn check(self) -> Result<Self, ModelError> {
        self.layers.iter().try_for_each(|layer| layer.check(&self.ropes))?;
        if self.attention().next().is_none() {
            return reject_config("a decoder without attention is not supported".to_owned());
        }
        Ok(self)
    }
}

impl LayerConfig {
    /// The attention, if it is the mixer.
    pub fn attention(&self) -> Option<&AttentionConfig> {
        match self.mixer.as_ref()? {
            MixerConfig::Attention(attention) => Some(attention),
            MixerConfig::ShortConv(_) | MixerConfig::DeltaNet(_) | MixerConfig::Mamba2(_) => None,
        }
    }

    /// Weights of attention and of the feed-forward network that a token reads.
    fn weights_per_token(&self, width: usize) -> usize {
        let attention = self.attention().map_or(0, |attention| {
            let queries = attention.query_width() * if attention.output_gate { 3 } else { 2 };
            width * (queries + 2 * attention.kv_width())
        });
        let network = |inner: usize, gated: bool| width * inner * if gated { 3 } else { 2 };
        let feed_forward = match &self.feed_forward {
            None => 0,
            Some(plan) => {
                let experts = plan.experts().map_or(0, |experts| {
                    let shared = experts.shared.map_or(0, |shared| shared.inner);
                    network(experts.inner * experts.routing.experts_per_token + shared, experts.gated)
                });
                experts + plan.dense().map_or(0, |dense| network(dense.inner, dense.gated))
            }
        };
        attention + feed_forward
    }

    fn check(&self, ropes: &[RopeSpec]) -> Result<(), ModelError> {
        if let Some(mixer) = &self.mixer {
            mixer.check(ropes)?;
        }
        match self.feed_forward.as_ref().and_then(FeedForwardConfig::experts) {
            Some(experts) => experts.check(),
            None => Ok(()),
        }
    }
}

impl MixerConfig {
    fn check(&self, ropes: &[RopeSpec]) -> Result<(), ModelError> {
        let (shape, kernel) = match self {
            Self::Attention(attention) => return attention.check(ropes),
            Self::ShortConv(conv) => (None, conv.kernel),
            Self::DeltaNet(net) => (Some(net.shape), net.kernel),
            Self::Mamba2(mamba) => (Some(mamba.shape), mamba.kernel),
        };
        if kernel < 2 {
            return reject_config(format!("a kernel of {kernel} is not supported; it must be at least 2"));
        }
        match shape {
            Some(RecurrenceShape { key_heads, value_heads, .. }) if !value_heads.is_multiple_of(key_heads) => {
                reject_config(format!("{value_heads} heads of values cannot share {key_heads} heads of keys"))
            }
            _ => Ok(()),
        }
    }
}

impl MoeConfig {
    fn check(&self) -> Result<(), ModelError> {
        let (count, Routing { experts_per_token: used, groups, .. }) = (self.count, self.routing);
        if used > count {
            return reject_config(format!("a token cannot use {used} of {count} experts"));
        }
        let Some(groups) = groups else { return Ok(()) };
        // Groups are compared by two of their experts.
        if groups.used > groups.count || !count.is_multiple_of(groups.count) || count / groups.count < 2 {
            return reject_config(format!(
                "{} of {} groups of {count} experts are impossible",
                groups.used, groups.count
            ));
        }
        let available = count / groups.count * groups.used;
        if used > available {
            return reject_config(format!("a token cannot use {used} of the {available} experts of its groups"));
        }
        Ok(())
    }
}

impl AttentionConfig {
    fn check(&self, ropes: &[RopeSpec]) -> Result<(), ModelError> {
        let Self { heads, kv_heads, head_width, .. } = *self;
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return reject_config(format!("{heads} heads cannot share {kv_heads} key-value heads"));
        }
        if head_width == 0 || !head_width.is_multiple_of(2) {
            return reject_config(format!("heads of width {head_width} cannot be rotated"));
        }
        let own = [self.rope, self.rope.and(self.query_rope)].into_iter().flatten();
        own.filter_map(|index| ropes.get(index)).try_for_each(|rope| check_rope(rope, head_width))
    }

    /// The parameters of the kernels.
    pub(super) fn shape(&self) -> AttentionShape {
        let Self { heads, kv_heads, head_width: width, scale, causal, window, soft_cap, .. } = *self;
        AttentionShape { heads, kv_heads, width, scale, causal, window, soft_cap }
    }

    /// Elements of the queries of a token.
    pub fn query_width(&self) -> usize {
        self.heads * self.head_width
    }

    /// Elements of the keys, or of the values, of a token.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_width
    }

    /// `[kv_heads, head_width]`
    pub(super) fn kv_sizes(&self) -> [usize; 2] {
        [self.kv_heads, self.head_width]
    }
}

/// Adds the rotary embedding of queries that grow with their position to that of all layers. The result is its index.
fn add_query_rope(ropes: &mut Vec<RopeSpec>, growth: Option<Growth>) -> Option<usize> {
    let keys = ropes.first()?.clone();
    ropes.push(RopeSpec { growth: Some(growth?), ..keys });
    Some(ropes.len() - 1)
}

/// The window of attention that is not causal, from that of both sides of a token together: half of it on each.
fn symmetric_window(window: usize) -> usize {
    window / 2 + 1
}

fn check_rope(rope: &RopeSpec, head_width: usize) -> Result<(), ModelError> {
    let RopeSpec { rotated, scaling, growth, .. } = rope;
    if growth.is_some() && *rotated != head_width {
        return reject_config(format!(
            "queries grow with their position, but only {rotated} of {head_width} elements rotate"
        ));
    }
    if *rotated == 0 || !rotated.is_multiple_of(2) || *rotated > head_width {
        return reject_config(format!("{rotated} of {head_width} elements of a head cannot be rotated"));
    }
    if let RopeScaling::Proportional { pairs, .. } = scaling
        && *pairs > rotated / 2
    {
        return reject_config(format!("{pairs} of {} pairs of a head cannot be rotated", rotated / 2));
    }
    let RopeScaling::LongRope(long) = scaling else { return Ok(()) };
    for factors in [&long.short, &long.long] {
        // Divisors that are stored as tensors are checked when they are read.
        if !factors.is_empty() && factors.len() != rotated / 2 {
            return reject_config(format!("{} factors for {} rotated pairs", factors.len(), rotated / 2));
        }
        if factors.iter().any(|factor| !factor.is_normal()) {
            return reject_config("rotary factors are zero or not finite".to_owned());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{DecoderConfig, MixerConfig};
    use crate::kv::KvType;
    use crate::state_layout::StateGroup;

    #[test]
    fn layers_with_the_same_window_are_a_group() {
        let groups = |windows: &[Option<usize>]| {
            let mut config = DecoderConfig::for_tests();
            let layer = config.layers[0].clone();
            let layers = windows.iter().map(|window| {
                let attention = *layer.attention().unwrap();
                let mixer = MixerConfig::Attention(super::AttentionConfig { window: *window, ..attention });
                super::LayerConfig { mixer: Some(mixer), ..layer.clone() }
            });
            config.layers = layers.collect();
            let bytes = config.kv_shapes(&[0], KvType::F16)[0].0.block_bytes();
            let groups = config.layer_groups(true);
            let expected =
                groups.iter().map(|(window, layers)| StateGroup::attention(layers.len() as u64 * bytes, *window));
            assert_eq!(config.state_groups(KvType::F16, true), expected.collect::<Vec<_>>());
            groups
        };
        assert_eq!(groups(&[None; 2]), [(None, vec![0, 1])]);
        let mixed = [Some(32), Some(32), None, Some(64), Some(32), Some(512)];
        let expected = [(None, vec![2, 5]), (Some(64), vec![3]), (Some(32), vec![0, 1, 4])];
        assert_eq!(groups(&mixed), expected, "a window of the whole context is none");
        assert_eq!(groups(&[Some(32); 2]), [(None, vec![]), (Some(32), vec![0, 1])]);
        assert_eq!(groups(&[Some(32), Some(64)]), [(None, vec![]), (Some(64), vec![1]), (Some(32), vec![0])]);
        assert_eq!(groups(&[Some(512); 2]), [(None, vec![0, 1])]);
    }

    #[test]
    fn layers_share_keys_and_values_with_the_last_one_of_their_kind() {
        let config = |windows: &[Option<usize>], shared: usize| {
            let mut config = DecoderConfig::for_tests();
            let layer = config.layers[0].clone();
            let layers = windows.iter().map(|window| {
                let attention = super::AttentionConfig { window: *window, ..*layer.attention().unwrap() };
                super::LayerConfig { mixer: Some(MixerConfig::Attention(attention)), ..layer.clone() }
            });
            config.layers = layers.collect();
            config.share_kv(shared).map(|()| config)
        };
        let local = Some(32);
        let shared = config(&[local, None, local, local, None], 2).unwrap();
        let sources: Vec<_> = shared.attention().map(|attention| attention.kv_layer).collect();
        assert_eq!(sources, [None, None, None, Some(2), Some(1)]);
        assert_eq!(shared.layer_groups(true), [(None, vec![1]), (local, vec![0, 2])]);
        assert_eq!(shared.layer_groups(false), [(None, vec![0, 1, 2])]);
        assert_eq!((shared.last_stateful_layer(), shared.uniform_kv_sizes()), (2, None));
        for (windows, count) in [(&[local, None][..], 1), (&[None, None], 2), (&[None, None], usize::MAX)] {
            let error = config(windows, count).unwrap_err().to_string();
            assert!(error.contains("shares keys and values"), "{error}");
        }
        assert_eq!(config(&[local, None], 0).unwrap().uniform_kv_sizes(), Some([2, 16]));
    }

    #[test]
    fn queries_that_grow_rotate_whole_heads() {
        let mut config = DecoderConfig::for_tests();
        let growth = super::Growth { beta: 0.1, original: 64 };
        let query_rope = super::add_query_rope(&mut config.ropes, Some(growth));
        let attention = super::AttentionConfig { query_rope, ..*config.layers[0].attention().unwrap() };
        config.layers[1].mixer = Some(MixerConfig::Attention(attention));
        assert!(config.clone().check().is_ok());
        config.ropes[1].rotated = 8;
        let error = config.check().unwrap_err().to_string();
        assert!(error.contains("queries grow with their position, but only 8 of 16 elements rotate"), "{error}");
    }

    #[test]
    fn the_layer_for_multi_token_prediction_is_the_last_one_of_the_first_group() {
        let mut config = DecoderConfig::for_tests();
        let windowed = super::AttentionConfig { window: Some(32), ..*config.layers[0].attention().unwrap() };
        config.layers[0].mixer = Some(MixerConfig::Attention(windowed));
        let [plain, whole] = [true, false].map(|by_window| config.state_groups(KvType::F16, by_window));
        config.mtp = Some(config.layers[1].clone());
        assert_eq!(config.layer_groups(true), [(None, vec![1, 2]), (Some(32), vec![0])]);
        assert_eq!(config.layer_groups(false), [(None, vec![0, 1, 2])]);
        let groups = config.state_groups(KvType::F16, true);
        assert_eq!((groups[0].block_bytes, groups[1]), (2 * plain[0].block_bytes, plain[1]));
        assert_eq!(2 * config.state_groups(KvType::F16, false)[0].block_bytes, 3 * whole[0].block_bytes);
        let cost = config.mtp_cost().unwrap();
        assert!((0.5..1.).contains(&cost), "{cost}: a layer, its input and the output projection, of two layers");
    }
}
