//! A block in which patches and words see each other, each with weights of their own: SD 3's, and FLUX's first ones.

use outpost_kernels::Activation;

use super::modulation::{Modulation, Moves, Vectors};
use super::positions::{join, split};
use super::stream::{Names, PICTURE, Stream, TEXT, Widths};
use crate::models::diffusion::easel::{Easel, Result};
use crate::models::diffusion::layers::{Linear, Loaded, Mlp, linear, mlp};
use crate::models::diffusion::map::Map;
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
    fn project(&self, easel: &Easel<'_>, x: &Map, vectors: &Vectors) -> Result<[Map; 3]> {
        let moves = if self.rest.is_some() { BEFORE } else { ONLY };
        self.stream.forward(easel, &vectors.norm(easel, x, moves)?)
    }

    /// Adds what is made of what was seen.
    fn mix(&self, easel: &Easel<'_>, x: &mut Map, seen: &Map, vectors: &Vectors) -> Result<()> {
        let Some((out, _)) = &self.rest else { return Ok(()) };
        vectors.add(easel, x, &easel.linear(out, seen)?, GATE)
    }

    fn feed(&self, easel: &Easel<'_>, x: &mut Map, vectors: &Vectors) -> Result<()> {
        let Some((_, feed)) = &self.rest else { return Ok(()) };
        let y = easel.feed(feed, &vectors.norm(easel, x, FORWARD)?)?;
        vectors.add(easel, x, &y, FORWARD_GATE)
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
        easel: &Easel<'_>,
        x: &mut Map,
        text: &mut Map,
        told: &Map,
        turn: &dyn Fn(&mut Map) -> Result<()>,
    ) -> Result<()> {
        let vectors = self.picture.modulation.forward(easel, told)?;
        let of_text = self.text.modulation.forward(easel, told)?;
        let again = match &self.again {
            Some((stream, out)) => Some((self.look(easel, x, stream, &vectors)?, out)),
            None => None,
        };
        let [seen, read] = self.see(
            easel,
            self.picture.project(easel, x, &vectors)?,
            self.text.project(easel, text, &of_text)?,
            turn,
        )?;
        self.picture.mix(easel, x, &seen, &vectors)?;
        if let Some((seen, out)) = again {
            vectors.add(easel, x, &easel.linear(out, &seen)?, AGAIN_GATE)?;
        }
        self.picture.feed(easel, x, &vectors)?;
        self.text.mix(easel, text, &read, &of_text)?;
        self.text.feed(easel, text, &of_text)
    }

    /// What patches see of each other.
    fn look(&self, easel: &Easel<'_>, x: &Map, stream: &Stream, vectors: &Vectors) -> Result<Map> {
        let [q, k, v] = stream.forward(easel, &vectors.norm(easel, x, AGAIN)?)?;
        easel.attention([&q, &k, &v], self.sizes.heads, false)
    }

    /// What patches and words see of all of them.
    fn see(
        &self,
        easel: &Easel<'_>,
        picture: [Map; 3],
        text: [Map; 3],
        turn: &dyn Fn(&mut Map) -> Result<()>,
    ) -> Result<[Map; 2]> {
        let BlockSizes { heads, text_first, .. } = self.sizes;
        let [first, second] = if text_first { [text, picture] } else { [picture, text] };
        let cut = first.first().map_or(0, Map::pixels);
        let [[q1, k1, v1], [q2, k2, v2]] = [first, second];
        let (mut q, mut k) = (join(easel, &q1, &q2)?, join(easel, &k1, &k2)?);
        let v = join(easel, &v1, &v2)?;
        drop((q1, k1, v1, q2, k2, v2));
        turn(&mut q)?;
        turn(&mut k)?;
        let mixed = easel.attention([&q, &k, &v], heads, false)?;
        let [first, second] = split(easel, &mixed, cut)?;
        Ok(if text_first { [second, first] } else { [first, second] })
    }
}
