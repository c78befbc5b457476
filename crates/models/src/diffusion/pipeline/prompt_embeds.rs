//! Prompt embeddings.

use super::text_encoder::TextEncoder;
use super::{Context, Family, Pipeline, Result};
use crate::backend::{Backend, Convolutions, Recurrent, Tensor};
use crate::diffusion::clip::ClipOutput;
use crate::error::ModelError;

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
    pub(super) fn text<B: Backend>(&self, ctx: &Context<'_, B>, cfg: bool) -> Result<Tensor<B>> {
        let [negative, positive] = &self.text;
        let width = positive.len() / self.tokens.max(1);
        match cfg {
            true => ctx.tensor(&[negative.as_slice(), positive].concat(), [2, self.tokens, 1, width]),
            false => ctx.tensor(positive, [1, self.tokens, 1, width]),
        }
    }

    /// Pooled embeddings of the same prompts: `[images][pooled_width]`.
    pub(super) fn pooled(&self, cfg: bool) -> Option<&[Vec<f32>]> {
        self.pooled.as_ref().map(|pooled| &pooled[usize::from(!cfg)..])
    }
}

/// Prompt embeddings and pooled embeddings (`[texts][pooled_width]`) of all encoders.
type Combined<B> = (Tensor<B>, Option<Vec<Vec<f32>>>);

/// The outputs of the text encoders.
struct EncoderOutputs<B: Backend> {
    clips: Vec<ClipOutput<B>>,
    t5: Option<Tensor<B>>,
}

impl<B: Backend> EncoderOutputs<B> {
    /// Hidden states of the CLIP encoders, concatenated along the width.
    fn clip_embeds(self, ctx: &Context<'_, B>) -> Result<Tensor<B>> {
        let mut embeds: Option<Tensor<B>> = None;
        for ClipOutput { hidden, .. } in self.clips {
            embeds = Some(match embeds {
                None => hidden,
                Some(previous) => ctx.concat_channels(&previous, &hidden)?,
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

impl<B: Convolutions + Recurrent> Pipeline<B> {
    /// Encodes a prompt and a negative prompt. `prompts`: token IDs of the negative prompt and the prompt, for each
    /// text encoder. `no_negative`: the request has no negative prompt.
    pub fn encode_prompts(
        &self,
        ctx: &Context<'_, B>,
        prompts: &[[Vec<u32>; 2]],
        no_negative: bool,
    ) -> Result<PromptEmbeds> {
        let mut outputs = EncoderOutputs { clips: Vec::new(), t5: None };
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
        let text_len = (tokens * embeds.channels).max(1);
        let mut text =
            negative_and_positive(ctx.to_vec(&embeds)?.chunks_exact(text_len).map(<[f32]>::to_vec).collect());
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

    /// Combines the outputs of all encoders as the family requires.
    fn combine(&self, ctx: &Context<'_, B>, mut outputs: EncoderOutputs<B>) -> Result<Combined<B>> {
        match self.family {
            Family::StableDiffusion => Ok((outputs.clip_embeds(ctx)?, None)),
            Family::StableDiffusionXl => {
                let last = outputs.clips.last().map(|clip| clip.pooled.clone());
                Ok((outputs.clip_embeds(ctx)?, last))
            }
            Family::StableDiffusion3 => {
                let (pooled, t5) = (outputs.pooled(), outputs.t5.take());
                let embeds = append_t5(ctx, &outputs.clip_embeds(ctx)?, t5, self.t5_shape)?;
                Ok((embeds, Some(pooled)))
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
fn append_t5<B: Backend>(
    ctx: &Context<'_, B>,
    clip: &Tensor<B>,
    t5: Option<Tensor<B>>,
    [tokens, width]: [usize; 2],
) -> Result<Tensor<B>> {
    if clip.channels > width || t5.as_ref().is_some_and(|t5| (t5.channels, t5.images) != (width, clip.images)) {
        return Err(ModelError::Compute(format!(
            "CLIP embeddings of width {} do not fit T5 embeddings of width {width}",
            clip.channels
        )));
    }
    let clip = match width - clip.channels {
        0 => ctx.copy(clip)?,
        padding => ctx.concat_channels(clip, &ctx.zeros([clip.images, clip.size[0], clip.size[1], padding])?)?,
    };
    let t5 = match t5 {
        Some(t5) => t5,
        None if tokens == 0 => return Ok(clip),
        None => ctx.zeros([clip.images, tokens, 1, width])?,
    };
    ctx.concat_tokens(&clip, &t5)
}

/// Splits a batch of one or two texts. A single text is the positive prompt.
fn negative_and_positive(mut texts: Vec<Vec<f32>>) -> [Vec<f32>; 2] {
    let positive = texts.pop().unwrap_or_default();
    [texts.pop().unwrap_or_default(), positive]
}
