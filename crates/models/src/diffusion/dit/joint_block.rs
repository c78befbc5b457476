//! The joint attention block of Stable Diffusion 3, and of the first layers of FLUX: image patches and text tokens
//! attend to each other, with separate weights.

use crate::backend::{Activation, Backend, Tensor};

use super::modulation::{Modulation, ModulationVectors, ShiftScale};
use super::qkv::{AttentionNames, IMAGE, QkvDims, QkvProjection, TEXT};
use crate::diffusion::layers::{linear, mlp};
use crate::error::Result;
use crate::nn::{Context, Linear, Mlp};
use crate::weights::Loader;

// Indices of modulation vectors.

/// Before attention.
pub(super) const ATTENTION: ShiftScale = ShiftScale { shift: 0, scale: 1 };
/// Of the attention output.
pub(super) const ATTENTION_GATE: usize = 2;
/// Before the feed-forward network.
const MLP: ShiftScale = ShiftScale { shift: 3, scale: 4 };
/// Of the output of the feed-forward network.
const MLP_GATE: usize = 5;
/// Before the second attention (dual attention).
const DUAL_ATTENTION: ShiftScale = ShiftScale { shift: 6, scale: 7 };
/// Of the output of the second attention.
const DUAL_ATTENTION_GATE: usize = 8;
/// Of a norm without a gate: the final norm, and the text norm of the last block.
pub(super) const FINAL: ShiftScale = ShiftScale { shift: 1, scale: 0 };

/// The configuration of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct JointBlockConfig {
    pub width: usize,
    pub heads: usize,
    /// Queries and keys are normalised.
    pub qk_norm: bool,
    /// There is a second attention among image patches.
    pub dual_attention: bool,
    /// Set for the last block, whose text output is not used.
    pub last: bool,
    /// Text tokens come first in the sequence.
    pub text_first: bool,
}

#[derive(Debug)]
pub(super) struct JointBlock<B: Backend> {
    config: JointBlockConfig,
    image: Stream<B>,
    text: Stream<B>,
    dual_attention: Option<(QkvProjection<B>, Linear<B>)>,
}

/// The weights for image patches, or for text tokens.
#[derive(Debug)]
struct Stream<B: Backend> {
    modulation: Modulation<B>,
    qkv: QkvProjection<B>,
    /// The output projection and the feed-forward network; `None` for text in the last block.
    out_and_mlp: Option<(Linear<B>, Mlp<B>)>,
}

impl JointBlockConfig {
    fn qkv_dims(&self) -> QkvDims {
        QkvDims { width: self.width, qk_norm: self.qk_norm.then(|| self.width / self.heads) }
    }
}

impl<B: Backend> Stream<B> {
    fn load(
        loader: &Loader<'_, B>,
        stem: &str,
        (names, norm, ff): (&AttentionNames, &str, &str),
        config: &JointBlockConfig,
        modulation_vectors: usize,
    ) -> Result<Self> {
        let width = config.width;
        let attention = format!("{stem}.attn");
        let out_and_mlp = || {
            let out = linear(loader, &format!("{attention}.{}", names.out), [width; 2], true)?;
            let [up, down] = ["net.0.proj", "net.2"].map(|suffix| format!("{stem}.{ff}.{suffix}"));
            let mlp = mlp(loader, [&up, &down], [width, 4 * width], Activation::GeluTanh, true)?;
            Ok::<_, crate::ModelError>((out, mlp))
        };
        Ok(Self {
            modulation: Modulation::load(loader, &format!("{stem}.{norm}.linear"), width, modulation_vectors)?,
            qkv: QkvProjection::load(loader, &attention, names, config.qkv_dims())?,
            out_and_mlp: (modulation_vectors > 2).then(out_and_mlp).transpose()?,
        })
    }

    /// Queries, keys and values of the normalised and modulated `x`.
    fn project_qkv(
        &self,
        ctx: &Context<'_, B>,
        x: &Tensor<B>,
        vectors: &ModulationVectors<B>,
    ) -> Result<[Tensor<B>; 3]> {
        let shift_scale = if self.out_and_mlp.is_some() { ATTENTION } else { FINAL };
        self.qkv.forward(ctx, &vectors.norm(ctx, x, shift_scale)?)
    }

    /// Projects the attention output and adds it to `x`.
    fn add_attention(
        &self,
        ctx: &Context<'_, B>,
        x: &mut Tensor<B>,
        attended: &Tensor<B>,
        vectors: &ModulationVectors<B>,
    ) -> Result<()> {
        let Some((out, _)) = &self.out_and_mlp else { return Ok(()) };
        vectors.add(ctx, x, &out.forward(ctx, attended)?, ATTENTION_GATE)
    }

    /// Adds the output of the feed-forward network to `x`.
    fn add_feed_forward(&self, ctx: &Context<'_, B>, x: &mut Tensor<B>, vectors: &ModulationVectors<B>) -> Result<()> {
        let Some((_, mlp)) = &self.out_and_mlp else { return Ok(()) };
        let y = mlp.forward(ctx, &vectors.norm(ctx, x, MLP)?)?;
        vectors.add(ctx, x, &y, MLP_GATE)
    }
}

impl<B: Backend> JointBlock<B> {
    pub fn load(loader: &Loader<'_, B>, stem: &str, config: JointBlockConfig) -> Result<Self> {
        let JointBlockConfig { width, dual_attention, last, .. } = config;
        let load_dual_attention = || {
            let stem = format!("{stem}.attn2");
            let out = linear(loader, &format!("{stem}.{}", IMAGE.out), [width; 2], true)?;
            Ok::<_, crate::ModelError>((QkvProjection::load(loader, &stem, &IMAGE, config.qkv_dims())?, out))
        };
        let text_names = (&TEXT, "norm1_context", "ff_context");
        Ok(Self {
            image: Stream::load(loader, stem, (&IMAGE, "norm1", "ff"), &config, if dual_attention { 9 } else { 6 })?,
            text: Stream::load(loader, stem, text_names, &config, if last { 2 } else { 6 })?,
            dual_attention: dual_attention.then(load_dual_attention).transpose()?,
            config,
        })
    }

    /// `x` and `text`: `[images, positions, 1, width]`; `cond`: the conditioning vector, `[images, 1, 1, width]`;
    /// `rope` is applied to queries and keys of all positions.
    pub fn forward(
        &self,
        ctx: &Context<'_, B>,
        x: &mut Tensor<B>,
        text: &mut Tensor<B>,
        cond: &Tensor<B>,
        rope: &dyn Fn(&mut Tensor<B>) -> Result<()>,
    ) -> Result<()> {
        let vectors = self.image.modulation.forward(ctx, cond)?;
        let text_vectors = self.text.modulation.forward(ctx, cond)?;
        let dual_attention = match &self.dual_attention {
            Some((qkv, out)) => Some((self.self_attention(ctx, x, qkv, &vectors)?, out)),
            None => None,
        };
        let [image_attended, text_attended] = self.joint_attention(
            ctx,
            self.image.project_qkv(ctx, x, &vectors)?,
            self.text.project_qkv(ctx, text, &text_vectors)?,
            rope,
        )?;
        self.image.add_attention(ctx, x, &image_attended, &vectors)?;
        if let Some((attended, out)) = dual_attention {
            vectors.add(ctx, x, &out.forward(ctx, &attended)?, DUAL_ATTENTION_GATE)?;
        }
        self.image.add_feed_forward(ctx, x, &vectors)?;
        self.text.add_attention(ctx, text, &text_attended, &text_vectors)?;
        self.text.add_feed_forward(ctx, text, &text_vectors)
    }

    /// Attention among image patches.
    fn self_attention(
        &self,
        ctx: &Context<'_, B>,
        x: &Tensor<B>,
        qkv: &QkvProjection<B>,
        vectors: &ModulationVectors<B>,
    ) -> Result<Tensor<B>> {
        let [q, k, v] = qkv.forward(ctx, &vectors.norm(ctx, x, DUAL_ATTENTION)?)?;
        ctx.attention([&q, &k, &v], self.config.heads, false)
    }

    /// Attention among image patches and text tokens.
    fn joint_attention(
        &self,
        ctx: &Context<'_, B>,
        image: [Tensor<B>; 3],
        text: [Tensor<B>; 3],
        rope: &dyn Fn(&mut Tensor<B>) -> Result<()>,
    ) -> Result<[Tensor<B>; 2]> {
        let JointBlockConfig { heads, text_first, .. } = self.config;
        let [first, second] = if text_first { [text, image] } else { [image, text] };
        let first_tokens = first.first().map_or(0, Tensor::pixels);
        let [[q1, k1, v1], [q2, k2, v2]] = [first, second];
        let (mut q, mut k) = (ctx.concat_tokens(&q1, &q2)?, ctx.concat_tokens(&k1, &k2)?);
        let v = ctx.concat_tokens(&v1, &v2)?;
        drop((q1, k1, v1, q2, k2, v2));
        rope(&mut q)?;
        rope(&mut k)?;
        let attended = ctx.attention([&q, &k, &v], heads, false)?;
        let [first, second] = ctx.split_tokens(&attended, first_tokens)?;
        Ok(if text_first { [second, first] } else { [first, second] })
    }
}
