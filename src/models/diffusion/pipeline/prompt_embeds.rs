//! Prompt embeddings.

use super::text_encoder::TextEncoder;
use super::{Family, FeatureMap, OpContext, Pipeline, Result};
use crate::models::diffusion::clip::ClipOutput;
use crate::models::error::ModelError;

/// Embeddings of a prompt and a negative prompt.
#[derive(Debug)]
pub struct PromptEmbeds {
    /// Negative prompt (empty if unused) and prompt, each `[tokens, width]`.
    text: [Vec<f32>; 2],
    tokens: usize,
    /// Pooled embeddings of the same prompts, each `[pooled_width]`, for denoisers that take them.
    pooled: Option<[Vec<f32>; 2]>,
}

impl PromptEmbeds {
    /// `[images, tokens, 1, width]`: both prompts for classifier-free guidance, otherwise the positive one.
    pub(super) fn text(&self, ctx: &OpContext<'_>, cfg: bool) -> Result<FeatureMap> {
        let [negative, positive] = &self.text;
        let width = positive.len() / self.tokens.max(1);
        match cfg {
            true => ctx.feature_map(&[negative.as_slice(), positive].concat(), 2, [self.tokens, 1], width),
            false => ctx.feature_map(positive, 1, [self.tokens, 1], width),
        }
    }

    /// Pooled embeddings of the same prompts: `[images][pooled_width]`.
    pub(super) fn pooled(&self, cfg: bool) -> Option<&[Vec<f32>]> {
        self.pooled.as_ref().map(|pooled| &pooled[usize::from(!cfg)..])
    }
}

/// The outputs of the text encoders.
#[derive(Default)]
struct EncoderOutputs {
    clips: Vec<ClipOutput>,
    t5: Option<FeatureMap>,
}

impl EncoderOutputs {
    /// Hidden states of the CLIP encoders, concatenated along the width.
    fn clip_embeds(&self, ctx: &OpContext<'_>) -> Result<FeatureMap> {
        let mut embeds = None;
        for ClipOutput { hidden, .. } in &self.clips {
            embeds = Some(match embeds {
                None => ctx.feature_map(hidden.data(), hidden.images, hidden.size, hidden.channels)?,
                Some(previous) => ctx.concat(&previous, hidden)?,
            });
        }
        embeds.ok_or_else(|| ModelError::Compute("there is no text encoder".to_owned()))
    }

    /// Pooled embeddings of the CLIP encoders, concatenated: `[texts][pooled_width]`.
    fn pooled(&self) -> Vec<Vec<f32>> {
        let texts = self.clips.first().map_or(0, |clip| clip.pooled.len());
        let pooled = |text: usize| self.clips.iter().filter_map(move |clip| clip.pooled.get(text)).flatten().copied();
        (0..texts).map(|text| pooled(text).collect()).collect()
    }
}

impl Pipeline {
    /// Encodes a prompt and a negative prompt. `prompts`: token IDs of the negative prompt and the prompt, for each
    /// text encoder. `no_negative`: the request has no negative prompt.
    pub fn encode_prompts(
        &self,
        ctx: &OpContext<'_>,
        prompts: &[[Vec<u32>; 2]],
        no_negative: bool,
    ) -> Result<PromptEmbeds> {
        let mut outputs = EncoderOutputs::default();
        for (encoder, texts) in self.text_encoders.iter().zip(prompts) {
            let texts = &texts[usize::from(self.ignores_negative_prompt())..];
            match encoder {
                TextEncoder::Clip(clip) => outputs.clips.push(clip.forward(ctx, texts, self.clip_skip())?),
                TextEncoder::Bert(bert) => {
                    outputs.clips.push(ClipOutput { hidden: bert.forward(ctx, texts)?, pooled: Vec::new() });
                }
                TextEncoder::T5(t5) => outputs.t5 = Some(t5.forward(ctx, texts)?),
            }
        }
        let (embeds, pooled) = self.combine(ctx, outputs)?;
        let tokens = embeds.pixels();
        let mut text = negative_and_positive(embeds.per_image().map(<[f32]>::to_vec).collect());
        let mut pooled = pooled.map(negative_and_positive);
        if self.family == Family::StableDiffusionXl && no_negative && self.zero_empty_negative {
            text[0].fill(0.);
            pooled.iter_mut().for_each(|[negative, _]| negative.fill(0.));
        }
        Ok(PromptEmbeds { text, tokens, pooled })
    }

    /// The number of final CLIP layers that the embeddings skip.
    fn clip_skip(&self) -> Option<usize> {
        matches!(self.family, Family::StableDiffusionXl | Family::StableDiffusion3).then_some(1)
    }

    /// Combines the outputs of all encoders as the family requires: prompt embeddings and pooled embeddings.
    fn combine(&self, ctx: &OpContext<'_>, outputs: EncoderOutputs) -> Result<(FeatureMap, Option<Vec<Vec<f32>>>)> {
        match self.family {
            Family::StableDiffusion => Ok((outputs.clip_embeds(ctx)?, None)),
            Family::StableDiffusionXl => {
                let last = outputs.clips.last().map(|clip| clip.pooled.clone());
                Ok((outputs.clip_embeds(ctx)?, last))
            }
            Family::StableDiffusion3 => {
                let embeds = append_t5(ctx, &outputs.clip_embeds(ctx)?, outputs.t5.as_ref(), self.t5_shape)?;
                Ok((embeds, Some(outputs.pooled())))
            }
            Family::Flux => {
                let pooled = Some(outputs.pooled());
                let embeds = outputs.t5.ok_or_else(|| ModelError::Compute("there is no text encoder".to_owned()))?;
                Ok((embeds, pooled))
            }
        }
    }
}

/// Appends T5 embeddings, or `tokens` zero rows, to CLIP embeddings that are zero-padded to `width`.
fn append_t5(
    ctx: &OpContext<'_>,
    clip: &FeatureMap,
    t5: Option<&FeatureMap>,
    [tokens, width]: [usize; 2],
) -> Result<FeatureMap> {
    if clip.channels > width || t5.is_some_and(|t5| (t5.channels, t5.images) != (width, clip.images)) {
        return Err(ModelError::Compute(format!(
            "CLIP embeddings of width {} do not fit T5 embeddings of width {width}",
            clip.channels
        )));
    }
    let mut out = ctx.alloc(clip.images, [clip.pixels() + t5.map_or(tokens, FeatureMap::pixels), 1], width);
    out.data_mut().fill(0.);
    let (text_len, clip_len) = (out.pixels() * width, clip.pixels() * width);
    for (index, (clip_rows, out)) in clip.per_image().zip(out.data_mut().chunks_exact_mut(text_len)).enumerate() {
        let (clip_out, t5_out) = out.split_at_mut(clip_len);
        for (dst, src) in clip_out.chunks_exact_mut(width).zip(clip_rows.chunks_exact(clip.channels)) {
            dst.iter_mut().zip(src).for_each(|(dst, src)| *dst = *src);
        }
        if let Some(t5) = t5.and_then(|t5| t5.per_image().nth(index)) {
            t5_out.copy_from_slice(t5);
        }
    }
    Ok(out)
}

/// Splits a batch of one or two texts. A single text is the positive prompt.
fn negative_and_positive(mut texts: Vec<Vec<f32>>) -> [Vec<f32>; 2] {
    let positive = texts.pop().unwrap_or_default();
    [texts.pop().unwrap_or_default(), positive]
}
