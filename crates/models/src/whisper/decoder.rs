//! The decoder of text: layers with causal self-attention, and attention over a window of audio.

use super::attention::{Attention, EPSILON, ResidualStream, attention_shape, load_mlp};
use super::cache::WhisperCache;
use super::config::WhisperConfig;
use crate::backend::{AttentionShape, Norm, PagedAttention, Tensor};
use crate::error::{ModelError, Result};
use crate::nn::{Context, EmbeddingTable, Linear, Mlp};
use crate::weights::Loader;

/// Tokens of one slot in a step.
#[derive(Clone, Copy, Debug)]
pub struct DecodeInput<'a> {
    pub slot: usize,
    /// Position of the first token. The slot must hold all tokens before it. Those after it are overwritten, so a slot is
    /// rewound by decoding from an earlier position.
    pub position: usize,
    pub tokens: &'a [u32],
    /// The tokens whose logits are returned, as indices of `tokens`.
    pub logits: &'a [usize],
}

/// The decoder's weights.
#[derive(Debug)]
pub(super) struct TextDecoder<B: PagedAttention> {
    /// `[vocabulary, width]`; also the output projection.
    token_embd: Linear<B>,
    positions: EmbeddingTable,
    layers: Vec<DecoderLayer<B>>,
    norm: Norm<B>,
    self_attention: AttentionShape,
    cross_attention: AttentionShape,
}

#[derive(Debug)]
struct DecoderLayer<B: PagedAttention> {
    attn_norm: Norm<B>,
    attn: Attention<B>,
    cross_attn_norm: Norm<B>,
    cross_attn: Attention<B>,
    ffn_norm: Norm<B>,
    mlp: Mlp<B>,
}

/// The inputs that all layers of a step share.
struct Step<B: PagedAttention> {
    tokens: B::Batch,
    audio: B::Batch,
}

impl<B: PagedAttention> TextDecoder<B> {
    pub fn load(loader: &Loader<'_, B>, config: &WhisperConfig) -> Result<Self> {
        let WhisperConfig { width, context, vocabulary, decoder_inner: inner, decoder_heads: heads, .. } = *config;
        let layer = |index: usize| {
            let stem = |suffix: &str| format!("decoder.blk.{index}.{suffix}");
            let norm = |suffix: &str| Norm::load_layer_norm(loader, &stem(suffix), width, EPSILON);
            Ok(DecoderLayer {
                attn_norm: norm("attn_norm")?,
                attn: Attention::load(loader, &stem("attn"), width)?,
                cross_attn_norm: norm("cross_attn_norm")?,
                cross_attn: Attention::load(loader, &stem("cross_attn"), width)?,
                ffn_norm: norm("ffn_norm")?,
                mlp: load_mlp(loader, &stem("ffn"), width, inner)?,
            })
        };
        Ok(Self {
            token_embd: loader.tied_embedding("decoder.token_embd", vocabulary, width)?,
            positions: loader.table("decoder.positions", context, width)?,
            layers: (0..config.decoder_layers).map(layer).collect::<Result<_>>()?,
            norm: Norm::load_layer_norm(loader, "decoder.norm", width, EPSILON)?,
            self_attention: attention_shape(width, heads, true),
            cross_attention: attention_shape(width, heads, false),
        })
    }

    /// Stores the keys and values of the hidden states of windows, `[windows, audio_positions, 1, width]`, in `slots`.
    pub fn write_audio(
        &self,
        ctx: &Context<'_, B>,
        cache: &mut WhisperCache<B>,
        slots: &[usize],
        audio: &Tensor<B>,
    ) -> Result<()> {
        let count = audio.pixels();
        let slice = |(index, slot): (usize, &usize)| cache.audio_slice(*slot, index * count, count);
        let batch = ctx.batch(slots.iter().enumerate().map(slice).collect())?;
        for (index, layer) in self.layers.iter().enumerate() {
            let [k, v] = Linear::forward_all(ctx, [&layer.cross_attn.k, &layer.cross_attn.v], audio)?;
            ctx.write_kv(&mut cache.audio, index, &batch, [&k, &v])?;
            ctx.pause()?;
        }
        Ok(())
    }

    /// Computes a step. Returns the logits of the tokens that inputs select: `[selected tokens, vocabulary]`.
    pub fn decode(
        &self,
        ctx: &Context<'_, B>,
        cache: &mut WhisperCache<B>,
        inputs: &[DecodeInput<'_>],
    ) -> Result<Vec<f32>> {
        let rows = selected_rows(inputs)?;
        if inputs.is_empty() {
            return Ok(Vec::new());
        }
        let step = self.begin(ctx, cache, inputs)?;
        let mut stream = ResidualStream { x: self.embed(ctx, inputs)?, y: None };
        for (index, layer) in self.layers.iter().enumerate() {
            let q = layer.attend_to_text(ctx, (index, &self.self_attention), &mut stream, &step, cache)?;
            let attention = ctx.kv_attention(&cache.audio, index, &step.audio, &self.cross_attention, None, &q)?;
            layer.finish(ctx, &mut stream, &attention)?;
        }
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let ResidualStream { x, y } = stream;
        let y = y.map(|y| ctx.gather_rows(&y, &rows)).transpose()?;
        let mut selected = ResidualStream { x: ctx.gather_rows(&x, &rows)?, y };
        let normed = selected.norm(ctx, &self.norm)?;
        let logits = self.token_embd.forward(ctx, &normed)?;
        let len = logits.len();
        let mut logits = ctx.download(logits)?;
        logits.truncate(len);
        Ok(logits)
    }

    /// The weights with which `heads`, as `(layer, head)`, attend to the window at each token: `[heads, tokens,
    /// audio_positions]`. Overwrites all tokens of the slot.
    pub fn alignment(
        &self,
        ctx: &Context<'_, B>,
        cache: &mut WhisperCache<B>,
        slot: usize,
        tokens: &[u32],
        heads: &[(usize, usize)],
    ) -> Result<Vec<f32>> {
        if let Some((layer, head)) =
            heads.iter().find(|(layer, head)| *layer >= self.layers.len() || *head >= self.cross_attention.heads)
        {
            return Err(ModelError::Compute(format!("layer {layer} has no head {head}, or does not exist")));
        }
        let Some(last) = heads.iter().map(|(layer, _)| *layer).max() else { return Ok(Vec::new()) };
        let inputs = [DecodeInput { slot, position: 0, tokens, logits: &[] }];
        let step = self.begin(ctx, cache, &inputs)?;
        let mut stream = ResidualStream { x: self.embed(ctx, &inputs)?, y: None };
        let mut weights: Vec<Vec<f32>> = vec![Vec::new(); heads.len()];
        for (index, layer) in self.layers.iter().enumerate().take(last + 1) {
            let q = layer.attend_to_text(ctx, (index, &self.self_attention), &mut stream, &step, cache)?;
            let of_layer: Vec<usize> =
                heads.iter().filter(|(layer, _)| *layer == index).map(|(_, head)| *head).collect();
            if !of_layer.is_empty() {
                let found =
                    ctx.kv_attention_weights(&cache.audio, index, &step.audio, &self.cross_attention, &q, &of_layer)?;
                let parts = found.chunks((found.len() / of_layer.len()).max(1));
                let slots = heads.iter().zip(&mut weights).filter(|((layer, _), _)| *layer == index);
                slots.zip(parts).for_each(|((_, slot), part)| *slot = part.to_vec());
            }
            if index < last {
                let attention = ctx.kv_attention(&cache.audio, index, &step.audio, &self.cross_attention, None, &q)?;
                layer.finish(ctx, &mut stream, &attention)?;
            }
        }
        // The tokens are not stored in all layers.
        cache.extend(slot, 0, 1)?;
        Ok(weights.concat())
    }

    /// Prepares a step, and notes its tokens in the cache.
    fn begin(&self, ctx: &Context<'_, B>, cache: &mut WhisperCache<B>, inputs: &[DecodeInput<'_>]) -> Result<Step<B>> {
        let vocabulary = self.token_embd.rows();
        let (mut offset, mut tokens, mut audio) = (0, Vec::new(), Vec::new());
        for (index, input) in inputs.iter().enumerate() {
            if inputs.iter().take(index).any(|other| other.slot == input.slot) {
                return Err(ModelError::Compute(format!("slot {} is in a step twice", input.slot)));
            }
            if let Some(id) = input.tokens.iter().find(|id| **id as usize >= vocabulary) {
                return Err(ModelError::Compute(format!("token {id} is not in the vocabulary of {vocabulary}")));
            }
            let count = input.tokens.len();
            cache.extend(input.slot, input.position, count)?;
            tokens.push(cache.token_slice(input.slot, offset, input.position, count));
            audio.push(cache.audio_slice(input.slot, offset, count));
            offset += count;
        }
        Ok(Step { tokens: ctx.batch(tokens)?, audio: ctx.batch(audio)? })
    }

    /// The sum of token and position embeddings: `[1, tokens, 1, width]`.
    fn embed(&self, ctx: &Context<'_, B>, inputs: &[DecodeInput<'_>]) -> Result<Tensor<B>> {
        let ids: Vec<u32> = inputs.iter().flat_map(|input| input.tokens).copied().collect();
        let mut x = self.token_embd.embedding(ctx, &ids)?;
        let range = |input: &DecodeInput<'_>| input.position..input.position + input.tokens.len();
        let positions = ctx.upload(x.shape(), &mut |out| {
            self.positions.look_up(inputs.iter().flat_map(range).map(|position| position as u32), false, out)
        })?;
        ctx.add(&mut x, &positions)?;
        Ok(x)
    }
}

impl<B: PagedAttention> DecoderLayer<B> {
    /// Computes self-attention, and returns the queries of cross-attention. `layer` is the layer's index, and the shape of
    /// its attention.
    fn attend_to_text(
        &self,
        ctx: &Context<'_, B>,
        (index, shape): (usize, &AttentionShape),
        stream: &mut ResidualStream<B>,
        step: &Step<B>,
        cache: &mut WhisperCache<B>,
    ) -> Result<Tensor<B>> {
        let normed = stream.norm(ctx, &self.attn_norm)?;
        let Attention { q, k, v, output } = &self.attn;
        let [q, k, v] = Linear::forward_all(ctx, [q, k, v], &normed)?;
        ctx.write_kv(&mut cache.tokens, index, &step.tokens, [&k, &v])?;
        let attention = ctx.kv_attention(&cache.tokens, index, &step.tokens, shape, None, &q)?;
        stream.y = Some(output.forward(ctx, &attention)?);
        let normed = stream.norm(ctx, &self.cross_attn_norm)?;
        self.cross_attn.q.forward(ctx, &normed)
    }

    /// Computes the rest of the layer after cross-attention, whose output is `attention`.
    fn finish(&self, ctx: &Context<'_, B>, stream: &mut ResidualStream<B>, attention: &Tensor<B>) -> Result<()> {
        stream.y = Some(self.cross_attn.output.forward(ctx, attention)?);
        let normed = stream.norm(ctx, &self.ffn_norm)?;
        stream.y = Some(self.mlp.forward(ctx, &normed)?);
        Ok(())
    }
}

/// The selected tokens as indices of the batch.
fn selected_rows(inputs: &[DecodeInput<'_>]) -> Result<Vec<usize>> {
    let (mut rows, mut offset) = (Vec::new(), 0);
    for input in inputs {
        if let Some(row) = input.logits.iter().find(|row| **row >= input.tokens.len()) {
            return Err(ModelError::Compute(format!("{} tokens have no token {row}", input.tokens.len())));
        }
        rows.extend(input.logits.iter().map(|row| offset + row));
        offset += input.tokens.len();
    }
    Ok(rows)
}
