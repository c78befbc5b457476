//! Computes log probabilities of whole texts with a trained adapter, and their gradients.
//!
//! Gradients are computed layer by layer. The graph of operations therefore never covers more than one layer: either the
//! graphs of all layers are kept until the backward pass, or only the inputs of the layers, and the graphs are computed
//! again (activation checkpointing; Chen et al. 2016, <https://arxiv.org/abs/1604.06174>).
//!
//! Each layer starts from a copy of its input that is not connected to the layers before it, so other work can run
//! between layers. So do the keys and values that later layers read; their gradients are added to those of the layer that computes them.
//! candle computes the gradient of both factors of a product, also of frozen weights; an operation with
//! a gradient of its own (`backend::candle::gradient`) leaves that out. Attention reads the keys and values of a text
//! directly, because the KV cache keeps no gradients.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType as ArrayType, Result as ArrayResult, Tensor as Array, Var};
use serde::{Deserialize, Serialize};

use super::Decoder;
use super::layer::{DecoderLayer, LayerInputs, Mixer, ResidualStream};
use super::per_layer::PerLayerInputs;
use crate::backend::{Angles, Backend, Candle, TargetLogit, Tensor, cross_entropy, with_gradient};
use crate::causal_lm::CausalLm;
use crate::decoder_config::DecoderConfig;
use crate::error::{ModelError, Result};
use crate::nn::{Adapter, Context, LoraDeltas};

/// Logits that are computed at once: enough rows for an efficient product with the output projection, and few enough to be
/// freed in a few milliseconds.
const HEAD_LOGITS: usize = 10 << 20;
/// Logits that are scored between two pauses.
const PAUSE_LOGITS: usize = 1 << 20;

/// A text, and which of its tokens are targets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrainingText {
    pub tokens: Vec<u32>,
    /// Positions of the tokens that the model learns to predict, in ascending order. The first token has no prediction.
    pub targets: Vec<usize>,
}

impl TrainingText {
    /// Appends tokens that are targets.
    pub fn push_targets(&mut self, tokens: Vec<u32>) {
        let start = self.tokens.len();
        self.tokens.extend(tokens);
        self.targets.extend(start.max(1)..self.tokens.len());
    }
}

/// The quality of a target's prediction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TargetScore {
    pub log_probability: f32,
    /// Whether it was the most likely token.
    pub is_greedy: bool,
}

/// A forward pass, which a backward pass may follow.
#[derive(Debug)]
pub struct TrainingPass {
    texts: Vec<Range<usize>>,
    /// The row before each target, and the target.
    targets: Vec<(usize, u32)>,
    angles: Vec<Angles<Candle>>,
    per_layer: Option<PerLayerInputs<Candle>>,
    layers: Vec<LayerPass>,
    /// The residual stream after the last layer: `[tokens, width]`.
    output: Array,
}

/// The residual stream before a layer, and what it has computed.
#[derive(Debug)]
struct LayerPass {
    input: Var,
    /// `None`: it is computed again.
    graph: Option<LayerGraph>,
    /// Keys and values, if other layers read them: `[tokens, kv_width]`.
    kv: Option<[Var; 2]>,
}

/// The results of a layer, with the graph of its operations.
#[derive(Debug)]
struct LayerGraph {
    /// The residual stream after the layer.
    output: Array,
    /// Keys and values, if other layers read them.
    kv: Option<[Array; 2]>,
}

impl TrainingPass {
    /// The number of targets.
    pub fn targets(&self) -> usize {
        self.targets.len()
    }
}

impl Decoder<Candle> {
    /// Computes the texts with `adapter`. `keep_graphs`: whether the backward pass gets the graphs of all layers, rather
    /// than computing them again.
    ///
    /// # Errors
    /// If a text is empty, or a target has no token before it.
    pub fn training_forward(
        &self,
        backend: &Candle,
        adapter: &Arc<Adapter<Candle>>,
        texts: &[TrainingText],
        keep_graphs: bool,
    ) -> Result<TrainingPass> {
        let (mut ranges, mut targets, mut first) = (Vec::with_capacity(texts.len()), Vec::new(), 0);
        for TrainingText { tokens, targets: positions } in texts {
            self.check_tokens(tokens)?;
            for position in positions {
                let target = tokens.get(*position).filter(|_| *position > 0);
                let target =
                    target.ok_or_else(|| ModelError::Compute(format!("no prediction has position {position}")))?;
                targets.push((first + position - 1, *target));
            }
            ranges.push(first..first + tokens.len());
            first += tokens.len();
        }
        let ctx = &training_context(backend, adapter, first);
        let counts = || texts.iter().map(|text| text.tokens.len());
        let angles = self.angles(first, || counts().map(|count| (0..count, self.is_long(count))))?;
        let tokens: Vec<u32> = texts.iter().flat_map(|text| &text.tokens).copied().collect();
        let embedded = self.embed(ctx, &tokens)?;
        let per_layer = self.per_layer_inputs(ctx, &tokens, &embedded)?;
        let mut pass =
            TrainingPass { texts: ranges, targets, angles, per_layer, layers: Vec::new(), output: embedded.data };
        for (index, layer) in self.layers.iter().enumerate() {
            let input = Var::from_tensor(&pass.output)?;
            let graph = self.layer_graph(ctx, (index, layer), &pass, &input)?;
            pass.output = graph.output.detach();
            let kv = graph.kv.as_ref().map(|[k, v]| Ok::<_, ModelError>([Var::from_tensor(k)?, Var::from_tensor(v)?]));
            pass.layers.push(LayerPass { input, kv: kv.transpose()?, graph: keep_graphs.then_some(graph) });
        }
        Ok(pass)
    }

    /// Scores the targets of a pass, in order. With `weights`, also returns the gradient of the weighted sum of their log
    /// probabilities with respect to the output of the last layer.
    pub fn score_targets(
        &self,
        backend: &Candle,
        pass: &TrainingPass,
        weights: Option<&[f32]>,
    ) -> Result<(Vec<TargetScore>, Option<Array>)> {
        let ctx = &Context::new(backend);
        if weights.is_some_and(|weights| weights.len() != pass.targets.len()) {
            return Err(ModelError::Compute("each target needs a weight".to_owned()));
        }
        let mut scores = Vec::with_capacity(pass.targets.len());
        let mut gradient = weights.map(|_| pass.output.zeros_like()).transpose()?;
        let vocabulary = self.config.vocabulary;
        let chunk = (HEAD_LOGITS / vocabulary).max(1);
        for (index, targets) in pass.targets.chunks(chunk).enumerate() {
            let rows = backend.row_indices(targets.iter().map(|(row, _)| *row))?;
            let selected = Var::from_tensor(&pass.output.index_select(&rows, 0)?)?;
            let x = stream(&selected)?;
            let y = ctx.zeros(x.shape())?;
            let normed = self.head_inputs(ctx, &mut ResidualStream { x, y })?;
            let own_weights = weights.map(|weights| &weights[index * chunk..][..targets.len()]);
            let targets: Vec<_> = (targets.iter().enumerate())
                .map(|(row, (_, target))| (*target, own_weights.map_or(0., |weights| weights[row])))
                .collect();
            let (found, of_normed) = self.score_rows(backend, &normed.data, &targets, weights.is_some())?;
            scores.extend(found);
            if let Some((gradient, of_normed)) = gradient.as_mut().zip(of_normed) {
                let gradients = backward(&normed.data, of_normed)?;
                let of_rows = gradients.get(&selected).ok_or_else(missing_gradient)?;
                *gradient = gradient.index_add(&rows, of_rows, 0)?;
            }
            backend.pause()?;
        }
        Ok((scores, gradient))
    }

    /// Scores targets, each with a weight, by the normalised rows before them. `with_gradient`: also returns the gradient
    /// of the rows.
    fn score_rows(
        &self,
        backend: &Candle,
        normed: &Array,
        targets: &[(u32, f32)],
        with_gradient: bool,
    ) -> Result<(Vec<TargetScore>, Option<Array>)> {
        let DecoderConfig { vocabulary, logit_soft_cap, .. } = self.config;
        let mut logits = backend.host_product(self.output.weight(), normed)?;
        let mut scores = vec![TargetLogit::default(); targets.len()];
        let chunk = (PAUSE_LOGITS / vocabulary).max(1);
        let rows = logits.chunks_mut(chunk * vocabulary).zip(targets.chunks(chunk)).zip(scores.chunks_mut(chunk));
        for ((logits, targets), scores) in rows {
            cross_entropy(backend.pool(), logits, logit_soft_cap, targets, scores);
            backend.pause()?;
        }
        let scores = scores.into_iter();
        let scores =
            scores.map(|TargetLogit { log_probability, is_max: is_greedy }| TargetScore { log_probability, is_greedy });
        let gradient = with_gradient.then(|| backend.input_gradient(self.output.weight(), logits)).transpose()?;
        Ok((scores.collect(), gradient))
    }

    /// Computes the gradients of the adapter's matrices from that of the last layer's output. `collect` gets those of one
    /// layer at a time.
    pub fn training_backward(
        &self,
        backend: &Candle,
        adapter: &Arc<Adapter<Candle>>,
        mut pass: TrainingPass,
        mut gradient: Array,
        collect: &mut dyn FnMut(&candle_core::backprop::GradStore) -> Result<()>,
    ) -> Result<()> {
        let tokens = pass.texts.last().map_or(0, |text| text.end);
        let ctx = &training_context(backend, adapter, tokens);
        // Those of keys and values that later layers have read.
        let mut of_kv: BTreeMap<usize, [Array; 2]> = BTreeMap::new();
        for (index, layer) in self.layers.iter().enumerate().rev() {
            let Some(LayerPass { input, graph, .. }) = pass.layers.pop() else { break };
            let graph = match graph {
                Some(graph) => graph,
                None => self.layer_graph(ctx, (index, layer), &pass, &input)?,
            };
            let mut roots = vec![(graph.output, gradient)];
            if let Some((kv, of_kv)) = graph.kv.zip(of_kv.remove(&index)) {
                roots.extend(kv.into_iter().zip(of_kv));
            }
            let gradients = backward_from(roots)?;
            collect(&gradients)?;
            if let Some((source, kv)) = self.kv_source(index, &pass) {
                let own = |var: &Var| gradients.get(var).cloned().ok_or_else(missing_gradient);
                let [mut k, mut v] = [own(&kv[0])?, own(&kv[1])?];
                if let Some([other_k, other_v]) = of_kv.remove(&source) {
                    (k, v) = ((k + other_k)?, (v + other_v)?);
                }
                of_kv.insert(source, [k, v]);
            }
            gradient = gradients.get(&input).ok_or_else(missing_gradient)?.clone();
            backend.pause()?;
        }
        Ok(())
    }

    /// The layer whose keys and values a layer reads, and these.
    fn kv_source<'a>(&self, layer: usize, pass: &'a TrainingPass) -> Option<(usize, &'a [Var; 2])> {
        let source = self.config.layers.get(layer)?.attention()?.kv_layer?;
        Some((source, pass.layers.get(source)?.kv.as_ref()?))
    }

    /// The results of a layer, with the graph of its operations.
    fn layer_graph(
        &self,
        ctx: &Context<'_, Candle>,
        (index, layer): (usize, &DecoderLayer<Candle>),
        pass: &TrainingPass,
        input: &Array,
    ) -> Result<LayerGraph> {
        let x = stream(input)?;
        let y = ctx.zeros(x.shape())?;
        let per_layer = pass.per_layer.as_ref().map(|inputs| inputs.of_layer(ctx, index)).transpose()?;
        let inputs = LayerInputs { per_layer, ..LayerInputs::new(&pass.angles) };
        let shared = self.kv_source(index, pass).map(|(_, [k, v])| Ok::<_, ModelError>([stream(k)?, stream(v)?]));
        let (shared, mut kv) = (shared.transpose()?, None);
        let output = layer.forward_with(ctx, ResidualStream { x, y }, inputs, |mixer, normed| match mixer {
            Mixer::Attention(attention) => {
                let (mixed, own) = attention.forward_texts(ctx, &normed, &pass.texts, &pass.angles, shared)?;
                kv = self.config.is_kv_source(index).then_some(own);
                Ok(mixed)
            }
            Mixer::LatentAttention(attention) => attention.forward_texts(ctx, &normed, &pass.texts, &pass.angles),
            Mixer::ShortConv(conv) => conv.forward_texts(ctx, &normed, &pass.texts),
            Mixer::DeltaNet(net) => net.forward_texts(ctx, &normed, &pass.texts),
            Mixer::Mamba2(mamba) => mamba.forward_texts(ctx, &normed, &pass.texts),
        })?;
        let ResidualStream { mut x, y } = output.ok_or_else(missing_gradient)?;
        ctx.add(&mut x, &y)?;
        let rows = |x: Tensor<Candle>| x.data.reshape((x.rows(), x.channels));
        let kv = kv.map(|[k, v]| Ok::<_, ModelError>([rows(k)?, rows(v)?])).transpose()?;
        Ok(LayerGraph { output: x.data, kv })
    }
}

fn training_context<'a>(backend: &'a Candle, adapter: &Arc<Adapter<Candle>>, tokens: usize) -> Context<'a, Candle> {
    let mut deltas = LoraDeltas::default();
    deltas.push_rows(adapter, 0..tokens);
    Context::new(backend).with_lora(deltas)
}

fn missing_gradient() -> ModelError {
    ModelError::Compute("a gradient is missing".to_owned())
}

/// Rows as a tensor of the backend: `[1, rows, 1, channels]`.
fn stream(rows: &Array) -> Result<Tensor<Candle>> {
    let (count, channels) = rows.dims2()?;
    Ok(Tensor { images: 1, size: [count, 1], channels, data: rows.clone() })
}

/// Computes all gradients from that of `output`.
fn backward(output: &Array, gradient: Array) -> ArrayResult<candle_core::backprop::GradStore> {
    root(output, gradient)?.backward()
}

/// Computes all gradients from those of several results.
fn backward_from(roots: Vec<(Array, Array)>) -> Result<candle_core::backprop::GradStore> {
    let mut sum: Option<Array> = None;
    for (output, gradient) in roots {
        let root = root(&output, gradient)?;
        sum = Some(match sum {
            Some(sum) => (sum + root)?,
            None => root,
        });
    }
    Ok(sum.ok_or_else(missing_gradient)?.backward()?)
}

/// A number whose gradient gives `output` this one.
fn root(output: &Array, gradient: Array) -> ArrayResult<Array> {
    let start = Array::zeros((), ArrayType::F32, output.device())?;
    with_gradient(output, &start, move |_| Ok(gradient.clone()))
}
