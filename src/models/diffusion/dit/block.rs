//! A block in which patches and words see each other, each with weights of their own: SD 3's, and FLUX's first ones.

use outpost_kernels::Activation;

use super::modulation::{Modulation, Moves, Vectors};
use super::positions::{join, split};
use super::stream::{Names, PICTURE, Stream, TEXT, Widths};
use crate::models::diffusion::feature_map::FeatureMap;
use crate::models::diffusion::layers::{Linear, Loaded, Mlp, linear, mlp};
use crate::models::diffusion::op_context::{OpContext, Result};
use crate::models::weights::Loader;

/// The vectors of a modulation before attention, and before the feed-forward network,
pub(super) const BEFORE: Moves = Moves { shift: 0, scale: 1 };
const FORWARD: Moves = Moves { shift: 3, scale: 4 };
/// and what is made of the outcomes.
pub(super) const GATE: usize = 2;
const FORWARD_GATE: usize = 5;
/// Those of a second attention.
const AGAIN: Moves = Moves { shift: 6, scale: 7 };
const AGAIN_GATE: usize = 8;
/// Those of a modulation with nothing after it.
pub(super) const ONLY: Moves = Moves { shift: 1, scale: 0 };

/// A block's sizes.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockSizes {
    pub width: usize,
    pub heads: usize,
    /// Whether queries and keys are normed.
    pub normed: bool,
    /// Whether patches see each other once more, without the words.
    pub again: bool,
    /// Whether words are read for the last time.
    pub last: bool,
    /// Which come first in a sequence.
    pub text_first: bool,
}

#[derive(Debug)]
pub(super) struct Block {
    sizes: BlockSizes,
    picture: Side,
    text: Side,
    again: Option<(Stream, Linear)>,
}

#[derive(Debug)]
struct Side {
    modulation: Modulation,
    stream: Stream,
    /// What becomes of what it sees; `None` where it ends here.
    rest: Option<(Linear, Mlp)>,
}

impl BlockSizes {
    fn widths(&self) -> Widths {
        Widths { width: self.width, normed: self.normed.then(|| self.width / self.heads) }
    }
}

impl Side {
    fn load(
        loader: &Loader<'_>,
        stem: &str,
        (names, norm, ff): (&Names, &str, &str),
        sizes: &BlockSizes,
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
            stream: Stream::load(loader, &attention, names, sizes.widths())?,
            rest: (parts > 2).then(rest).transpose()?,
        })
    }

    /// `x` as attention takes it.
    fn project(&self, ctx: &OpContext<'_>, x: &FeatureMap, vectors: &Vectors) -> Result<[FeatureMap; 3]> {
        let moves = if self.rest.is_some() { BEFORE } else { ONLY };
        self.stream.forward(ctx, &vectors.norm(ctx, x, moves)?)
    }

    /// Adds what is made of what was seen.
    fn mix(&self, ctx: &OpContext<'_>, x: &mut FeatureMap, seen: &FeatureMap, vectors: &Vectors) -> Result<()> {
        let Some((out, _)) = &self.rest else { return Ok(()) };
        vectors.add(ctx, x, &ctx.linear(out, seen)?, GATE)
    }

    fn feed(&self, ctx: &OpContext<'_>, x: &mut FeatureMap, vectors: &Vectors) -> Result<()> {
        let Some((_, feed)) = &self.rest else { return Ok(()) };
        let y = ctx.feed_forward(feed, &vectors.norm(ctx, x, FORWARD)?)?;
        vectors.add(ctx, x, &y, FORWARD_GATE)
    }
}

impl Block {
    pub fn load(loader: &Loader<'_>, stem: &str, sizes: BlockSizes) -> Loaded<Self> {
        let BlockSizes { width, again, last, .. } = sizes;
        let second = || {
            let stem = format!("{stem}.attn2");
            let out = linear(loader, &format!("{stem}.{}", PICTURE.out), [width; 2], true)?;
            Ok::<_, crate::models::ModelError>((Stream::load(loader, &stem, &PICTURE, sizes.widths())?, out))
        };
        let text = (&TEXT, "norm1_context", "ff_context");
        Ok(Self {
            picture: Side::load(loader, stem, (&PICTURE, "norm1", "ff"), &sizes, if again { 9 } else { 6 })?,
            text: Side::load(loader, stem, text, &sizes, if last { 2 } else { 6 })?,
            again: again.then(second).transpose()?,
            sizes,
        })
    }

    /// `x` and `text`: `[images, positions, 1, width]`; `turn` is done to queries and keys of all positions.
    pub fn forward(
        &self,
        ctx: &OpContext<'_>,
        x: &mut FeatureMap,
        text: &mut FeatureMap,
        told: &FeatureMap,
        turn: &dyn Fn(&mut FeatureMap) -> Result<()>,
    ) -> Result<()> {
        let vectors = self.picture.modulation.forward(ctx, told)?;
        let of_text = self.text.modulation.forward(ctx, told)?;
        let again = match &self.again {
            Some((stream, out)) => Some((self.look(ctx, x, stream, &vectors)?, out)),
            None => None,
        };
        let [seen, read] =
            self.see(ctx, self.picture.project(ctx, x, &vectors)?, self.text.project(ctx, text, &of_text)?, turn)?;
        self.picture.mix(ctx, x, &seen, &vectors)?;
        if let Some((seen, out)) = again {
            vectors.add(ctx, x, &ctx.linear(out, &seen)?, AGAIN_GATE)?;
        }
        self.picture.feed(ctx, x, &vectors)?;
        self.text.mix(ctx, text, &read, &of_text)?;
        self.text.feed(ctx, text, &of_text)
    }

    /// What patches see of each other.
    fn look(&self, ctx: &OpContext<'_>, x: &FeatureMap, stream: &Stream, vectors: &Vectors) -> Result<FeatureMap> {
        let [q, k, v] = stream.forward(ctx, &vectors.norm(ctx, x, AGAIN)?)?;
        ctx.attention([&q, &k, &v], self.sizes.heads, false)
    }

    /// What patches and words see of all of them.
    fn see(
        &self,
        ctx: &OpContext<'_>,
        picture: [FeatureMap; 3],
        text: [FeatureMap; 3],
        turn: &dyn Fn(&mut FeatureMap) -> Result<()>,
    ) -> Result<[FeatureMap; 2]> {
        let BlockSizes { heads, text_first, .. } = self.sizes;
        let [first, second] = if text_first { [text, picture] } else { [picture, text] };
        let cut = first.first().map_or(0, FeatureMap::pixels);
        let [[q1, k1, v1], [q2, k2, v2]] = [first, second];
        let (mut q, mut k) = (join(ctx, &q1, &q2)?, join(ctx, &k1, &k2)?);
        let v = join(ctx, &v1, &v2)?;
        drop((q1, k1, v1, q2, k2, v2));
        turn(&mut q)?;
        turn(&mut k)?;
        let mixed = ctx.attention([&q, &k, &v], heads, false)?;
        let [first, second] = split(ctx, &mixed, cut)?;
        Ok(if text_first { [second, first] } else { [first, second] })
    }
}
