//! The joint attention block of SD 3, and of FLUX's first layers: image patches and text tokens attend to each other,
//! with separate weights.

use outpost_kernels::Activation;

use super::modulation::{Modulation, ModulationVectors, ShiftScale};
use super::qkv::{AttentionNames, IMAGE, QkvDims, QkvProjection, TEXT};
use super::sequence::{concat_tokens, split_tokens};
use crate::models::diffusion::feature_map::FeatureMap;
use crate::models::diffusion::layers::{Linear, Loaded, Mlp, linear, mlp};
use crate::models::diffusion::op_context::{OpContext, Result};
use crate::models::weights::Loader;

/// Indices of modulation vectors: before attention and before the feed-forward network,
pub(super) const ATTENTION: ShiftScale = ShiftScale { shift: 0, scale: 1 };
const MLP: ShiftScale = ShiftScale { shift: 3, scale: 4 };
/// and gates of their outputs.
pub(super) const ATTENTION_GATE: usize = 2;
const MLP_GATE: usize = 5;
/// For the second attention (dual attention).
const DUAL_ATTENTION: ShiftScale = ShiftScale { shift: 6, scale: 7 };
const DUAL_ATTENTION_GATE: usize = 8;
/// For the final norm, which has no gate.
pub(super) const FINAL: ShiftScale = ShiftScale { shift: 1, scale: 0 };

/// The configuration of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct JointBlockConfig {
    pub width: usize,
    pub heads: usize,
    /// Whether queries and keys are normalised.
    pub qk_norm: bool,
    /// Whether image patches have a second attention among themselves.
    pub dual_attention: bool,
    /// Whether this is the last block, after which text is unused.
    pub last: bool,
    /// Whether text tokens come first in the sequence.
    pub text_first: bool,
}

#[derive(Debug)]
pub(super) struct JointBlock {
    sizes: JointBlockConfig,
    image: StreamBlock,
    text: StreamBlock,
    dual_attention: Option<(QkvProjection, Linear)>,
}

#[derive(Debug)]
struct StreamBlock {
    modulation: Modulation,
    qkv: QkvProjection,
    /// Output projection and feed-forward network; `None` for text in the last block.
    rest: Option<(Linear, Mlp)>,
}

impl JointBlockConfig {
    fn widths(&self) -> QkvDims {
        QkvDims { width: self.width, qk_norm: self.qk_norm.then(|| self.width / self.heads) }
    }
}

impl StreamBlock {
    fn load(
        loader: &Loader<'_>,
        stem: &str,
        (names, norm, ff): (&AttentionNames, &str, &str),
        sizes: &JointBlockConfig,
        parts: usize,
    ) -> Loaded<Self> {
        let width = sizes.width;
        let attention = format!("{stem}.attn");
        let rest = || {
            let out = linear(loader, &format!("{attention}.{}", names.out), [width; 2], true)?;
            let [up, down] = ["net.0.proj", "net.2"].map(|part| format!("{stem}.{ff}.{part}"));
            let feed = mlp(loader, [&up, &down], [width, 4 * width], Activation::GeluTanh, true)?;
            Ok::<_, crate::models::ModelError>((out, feed))
        };
        Ok(Self {
            modulation: Modulation::load(loader, &format!("{stem}.{norm}.linear"), width, parts)?,
            qkv: QkvProjection::load(loader, &attention, names, sizes.widths())?,
            rest: (parts > 2).then(rest).transpose()?,
        })
    }

    /// Queries, keys and values of the normalised `x`.
    fn project(&self, ctx: &OpContext<'_>, x: &FeatureMap, vectors: &ModulationVectors) -> Result<[FeatureMap; 3]> {
        let shift_scale = if self.rest.is_some() { ATTENTION } else { FINAL };
        self.qkv.forward(ctx, &vectors.norm(ctx, x, shift_scale)?)
    }

    /// Adds the attention's output.
    fn add_attention(
        &self,
        ctx: &OpContext<'_>,
        x: &mut FeatureMap,
        seen: &FeatureMap,
        vectors: &ModulationVectors,
    ) -> Result<()> {
        let Some((out, _)) = &self.rest else { return Ok(()) };
        vectors.add(ctx, x, &ctx.linear(out, seen)?, ATTENTION_GATE)
    }

    fn feed(&self, ctx: &OpContext<'_>, x: &mut FeatureMap, vectors: &ModulationVectors) -> Result<()> {
        let Some((_, feed)) = &self.rest else { return Ok(()) };
        let y = ctx.feed_forward(feed, &vectors.norm(ctx, x, MLP)?)?;
        vectors.add(ctx, x, &y, MLP_GATE)
    }
}

impl JointBlock {
    pub fn load(loader: &Loader<'_>, stem: &str, sizes: JointBlockConfig) -> Loaded<Self> {
        let JointBlockConfig { width, dual_attention, last, .. } = sizes;
        let second = || {
            let stem = format!("{stem}.attn2");
            let out = linear(loader, &format!("{stem}.{}", IMAGE.out), [width; 2], true)?;
            Ok::<_, crate::models::ModelError>((QkvProjection::load(loader, &stem, &IMAGE, sizes.widths())?, out))
        };
        let text = (&TEXT, "norm1_context", "ff_context");
        Ok(Self {
            image: StreamBlock::load(
                loader,
                stem,
                (&IMAGE, "norm1", "ff"),
                &sizes,
                if dual_attention { 9 } else { 6 },
            )?,
            text: StreamBlock::load(loader, stem, text, &sizes, if last { 2 } else { 6 })?,
            dual_attention: dual_attention.then(second).transpose()?,
            sizes,
        })
    }

    /// `x` and `text`: `[images, positions, 1, width]`; `rope` is applied to queries and keys of all positions.
    pub fn forward(
        &self,
        ctx: &OpContext<'_>,
        x: &mut FeatureMap,
        text: &mut FeatureMap,
        cond: &FeatureMap,
        rope: &dyn Fn(&mut FeatureMap) -> Result<()>,
    ) -> Result<()> {
        let vectors = self.image.modulation.forward(ctx, cond)?;
        let of_text = self.text.modulation.forward(ctx, cond)?;
        let dual_attention = match &self.dual_attention {
            Some((qkv, out)) => Some((self.self_attention(ctx, x, qkv, &vectors)?, out)),
            None => None,
        };
        let [seen, read] = self.joint_attention(
            ctx,
            self.image.project(ctx, x, &vectors)?,
            self.text.project(ctx, text, &of_text)?,
            rope,
        )?;
        self.image.add_attention(ctx, x, &seen, &vectors)?;
        if let Some((seen, out)) = dual_attention {
            vectors.add(ctx, x, &ctx.linear(out, &seen)?, DUAL_ATTENTION_GATE)?;
        }
        self.image.feed(ctx, x, &vectors)?;
        self.text.add_attention(ctx, text, &read, &of_text)?;
        self.text.feed(ctx, text, &of_text)
    }

    /// Attention among image patches.
    fn self_attention(
        &self,
        ctx: &OpContext<'_>,
        x: &FeatureMap,
        qkv: &QkvProjection,
        vectors: &ModulationVectors,
    ) -> Result<FeatureMap> {
        let [q, k, v] = qkv.forward(ctx, &vectors.norm(ctx, x, DUAL_ATTENTION)?)?;
        ctx.attention([&q, &k, &v], self.sizes.heads, false)
    }

    /// Attention among image patches and text tokens.
    fn joint_attention(
        &self,
        ctx: &OpContext<'_>,
        image: [FeatureMap; 3],
        text: [FeatureMap; 3],
        rope: &dyn Fn(&mut FeatureMap) -> Result<()>,
    ) -> Result<[FeatureMap; 2]> {
        let JointBlockConfig { heads, text_first, .. } = self.sizes;
        let [first, second] = if text_first { [text, image] } else { [image, text] };
        let cut = first.first().map_or(0, FeatureMap::pixels);
        let [[q1, k1, v1], [q2, k2, v2]] = [first, second];
        let (mut q, mut k) = (concat_tokens(ctx, &q1, &q2)?, concat_tokens(ctx, &k1, &k2)?);
        let v = concat_tokens(ctx, &v1, &v2)?;
        drop((q1, k1, v1, q2, k2, v2));
        rope(&mut q)?;
        rope(&mut k)?;
        let mixed = ctx.attention([&q, &k, &v], heads, false)?;
        let [first, second] = split_tokens(ctx, &mixed, cut)?;
        Ok(if text_first { [second, first] } else { [first, second] })
    }
}
