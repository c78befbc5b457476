//! Multi-token prediction: a layer that predicts the token after the next one, from the hidden state of a token and the embedding of the
//! next (DeepSeek-AI 2024, <https://arxiv.org/abs/2412.19437>, section 2.2). It drafts for the network that it was trained with. vLLM's
//! `qwen3_next_mtp.py` and llama.cpp's `qwen35.cpp` are the references.
//!
//! At a position, the layer has the token of that position and the hidden state at the position before it. So keys and values depend on
//! no later token, and sequences with the same beginning share their blocks, as in other layers. Each step of the network writes those of
//! its tokens. For that, only the input of the layer is computed, and its keys and values. Zeros take the place of a hidden state that
//! is not known, as at the first position.

use super::attention::KvLayer;
use super::layer::{DecoderLayer, LayerInputs, LayerState, ResidualStream};
use super::rows::logit_tokens;
use crate::backend::{Angles, Norm, PagedAttention, Recurrent, Tensor};
use crate::causal_lm::{BatchRow, LogitsAt};
use crate::decoder_config::{DecoderConfig, LayerConfig};
use crate::error::{ModelError, Result};
use crate::nn::{Context, Linear};
use crate::weights::{Candidate, Loader};

/// The layer, and what it has besides those of the network.
#[derive(Debug)]
pub(super) struct MtpHead<B: Recurrent> {
    /// `None`: the embeddings of the network.
    embed_tokens: Option<Linear<B>>,
    enorm: Norm<B>,
    hnorm: Norm<B>,
    /// Projects an embedding and a hidden state, side by side, to the input of the layer.
    eh_proj: Linear<B>,
    layer: DecoderLayer<B>,
    /// `None`: the norm of the network.
    shared_head_norm: Option<Norm<B>>,
    /// `None`: the output projection of the network.
    shared_head_head: Option<Linear<B>>,
    /// The index of the layer in the first group of attention.
    kv_layer: usize,
}

impl<B: Recurrent> MtpHead<B> {
    pub fn load(loader: &Loader<'_, B>, config: &DecoderConfig, plan: &LayerConfig) -> Result<Self> {
        let DecoderConfig { width, vocabulary, norm: spec, .. } = *config;
        let index = config.layers.len();
        let stem = |suffix: &str| format!("blk.{index}.nextn.{suffix}");
        let norm = |suffix: &str| Norm::load(loader, &stem(suffix), width, spec);
        let optional = |suffix: &str| loader.has(&stem(suffix)).then(|| stem(suffix));
        let embedding = |stem: String| loader.embedding(&stem, vocabulary, width);
        let first_group = config.layer_groups(B::RELEASES_KV_BLOCKS).into_iter().next();
        let kv_layer = first_group.map_or(0, |(_, layers)| layers.len().saturating_sub(1));
        let head_norm = optional("shared_head_norm").map(|_| norm("shared_head_norm"));
        Ok(Self {
            embed_tokens: optional("embed_tokens").map(embedding).transpose()?,
            enorm: norm("enorm")?,
            hnorm: norm("hnorm")?,
            eh_proj: loader.linear(&[Candidate::whole(stem("eh_proj"), width)], width, 2 * width, false)?,
            layer: DecoderLayer::load(loader, config, index, plan)?,
            shared_head_norm: head_norm.transpose()?,
            shared_head_head: loader.optional_matrix(&stem("shared_head_head"), vocabulary, width)?,
            kv_layer,
        })
    }

    /// Its own embeddings of tokens, if it has them.
    pub fn embed(&self, ctx: &Context<'_, B>, tokens: &[u32]) -> Result<Option<Tensor<B>>> {
        self.embed_tokens.as_ref().map(|table| table.embedding(ctx, tokens)).transpose()
    }

    /// The input of the layer. `hidden`: the hidden states before tokens with these embeddings.
    fn input(&self, ctx: &Context<'_, B>, embeddings: &Tensor<B>, hidden: &Tensor<B>) -> Result<Tensor<B>> {
        let (embeddings, hidden) = (ctx.norm(&self.enorm, embeddings)?, ctx.norm(&self.hnorm, hidden)?);
        self.eh_proj.forward(ctx, &ctx.concat_channels(&embeddings, &hidden)?)
    }

    /// Writes the keys and values of tokens.
    pub fn write_kv(
        &self,
        ctx: &Context<'_, B>,
        [embeddings, hidden]: [&Tensor<B>; 2],
        angles: &[Angles<B>],
        (arena, batch): (&mut B::KvArena, &B::Batch),
    ) -> Result<()> {
        let x = self.input(ctx, embeddings, hidden)?;
        self.layer.write_kv(ctx, &x, angles, KvLayer { arena, batch, layer: self.kv_layer })
    }

    /// The hidden states of the layer after its norm. `output_norm`: the norm of the network, unless the layer has its own.
    pub fn forward(
        &self,
        ctx: &Context<'_, B>,
        [embeddings, hidden]: [&Tensor<B>; 2],
        angles: &[Angles<B>],
        (arena, batch): (&mut B::KvArena, &B::Batch),
        output_norm: &Norm<B>,
    ) -> Result<Tensor<B>> {
        let x = self.input(ctx, embeddings, hidden)?;
        let stream = ResidualStream { y: ctx.zeros(x.shape())?, x };
        let kv = LayerState::Attention(KvLayer { arena, batch, layer: self.kv_layer });
        let Some(mut stream) = self.layer.forward(ctx, stream, LayerInputs::new(angles), Some(kv))? else {
            return Err(ModelError::Compute("a draft has no tokens".to_owned()));
        };
        ctx.add_norm(self.shared_head_norm.as_ref().unwrap_or(output_norm), &mut stream.x, &stream.y)
    }

    /// The output projection: that of the network, unless the layer has its own.
    pub fn output<'a>(&'a self, network: &'a Linear<B>) -> &'a Linear<B> {
        self.shared_head_head.as_ref().unwrap_or(network)
    }
}

/// The hidden states before the first tokens of rows: `[1, rows, 1, width]`.
pub(super) fn known_hidden<B: PagedAttention>(
    ctx: &Context<'_, B>,
    rows: &[BatchRow<'_>],
    width: usize,
) -> Result<Tensor<B>> {
    if rows.iter().filter_map(|row| row.hidden).any(|hidden| hidden.len() != width) {
        return Err(ModelError::Compute(format!("a hidden state does not have {width} elements")));
    }
    ctx.upload([1, rows.len(), 1, width], &mut |out| {
        for (out, row) in out.chunks_exact_mut(width).zip(rows) {
            match row.hidden {
                Some(hidden) => out.copy_from_slice(hidden),
                None => out.fill(0.),
            }
        }
        Ok(())
    })
}

/// The hidden states before all tokens of rows, whose own are `hidden`: `[1, tokens, 1, width]`.
pub(super) fn hidden_before<B: PagedAttention>(
    ctx: &Context<'_, B>,
    rows: &[BatchRow<'_>],
    hidden: &Tensor<B>,
) -> Result<Tensor<B>> {
    let (tokens, width) = (hidden.rows(), hidden.channels);
    let mut both = ctx.zeros([1, tokens + rows.len(), 1, width])?;
    ctx.write_rows(&mut both, 0, hidden)?;
    ctx.write_rows(&mut both, tokens, &known_hidden(ctx, rows, width)?)?;
    let mut order: Vec<usize> = (0..tokens).map(|token| token.saturating_sub(1)).collect();
    let mut offset = 0;
    for (index, row) in rows.iter().enumerate() {
        if let Some(first) = order.get_mut(offset) {
            *first = tokens + index;
        }
        offset += row.tokens.len();
    }
    ctx.gather_rows(&both, &order)
}

/// The hidden states of each row that [`Logits::take_hidden`](crate::causal_lm::Logits::take_hidden) returns, of those of all tokens.
pub(super) fn kept_states<B: PagedAttention>(
    ctx: &Context<'_, B>,
    rows: &[BatchRow<'_>],
    hidden: &Tensor<B>,
) -> Result<Vec<Vec<f32>>> {
    let kept = rows.iter().map(|row| match row.logits {
        LogitsAt::None => BatchRow { logits: LogitsAt::Last, ..*row },
        LogitsAt::Last | LogitsAt::All => *row,
    });
    let (tokens, counts) = logit_tokens(&kept.collect::<Vec<_>>());
    Ok(by_row(&ctx.to_vec(&ctx.gather_rows(hidden, &tokens)?)?, &counts, hidden.channels))
}

/// Rows of `width` elements, of which each row of a batch has `counts`.
fn by_row(values: &[f32], counts: &[usize], width: usize) -> Vec<Vec<f32>> {
    let mut rest = values;
    let row = |count: &usize| {
        let (row, others) = rest.split_at((count * width).min(rest.len()));
        rest = others;
        row.to_vec()
    };
    counts.iter().map(row).collect()
}
