//! Encoders: networks that make one vector of each token, seeing the whole text.
//!
//! A pass takes a ragged batch: texts of different lengths share each weight read, and only attention looks
//! at them one by one, so nothing is padded. It goes layer by layer, so that others may compute in between.

pub mod head;
mod layer;
mod names;
mod pooling;
mod sizes;

use std::ops::Range;
use std::sync::Arc;

use candle_core::Result;
use outpost_kernels::{Kind, Shape, attend_bytes};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ModelError;
use super::attention;
use super::kv::{KvArena, Place};
use super::norm::Norm;
use super::rope::{Angles, Rope, RopeStyle};
use super::scratch::{Cpu, Scratch, room};
use super::table::Table;
use super::texts::{Texts, arena_bytes};
use super::weights::{Loader, Weights};
pub use head::Head;
use layer::{Layer, Stream};
pub use names::{Family, Source};
pub use pooling::{Pooling, normalise, shorten};
pub use sizes::{Positions, Sizes, Turning};

/// A loaded encoder; shared by all passes.
#[derive(Debug)]
pub struct Encoder {
    sizes: Sizes,
    token_embd: Table,
    position_embd: Option<Table>,
    token_types: Option<Table>,
    embd_norm: Norm,
    layers: Vec<Layer>,
    output_norm: Option<Norm>,
    ropes: Vec<Rope>,
    cpu: Arc<Cpu>,
}

/// A text, or a pair of them, as tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokenized {
    pub ids: Vec<u32>,
    /// From here on the tokens are the second text's; their number where there is but one.
    pub second: usize,
}

impl Tokenized {
    /// One text.
    pub fn new(ids: Vec<u32>) -> Self {
        Self { second: ids.len(), ids }
    }
}

/// A batch on its way through the layers.
#[derive(Debug)]
pub struct Pass {
    stream: Stream,
    texts: Texts,
    /// Keys and values of one layer.
    arena: KvArena,
    written: Vec<Place>,
    angles: Vec<Angles>,
    layer: usize,
}

type Loaded<T> = std::result::Result<T, ModelError>;

impl Encoder {
    /// Reads the weights, those of projections rounded to `precision`; `cpu` computes with them. `judge`: the
    /// `config.json` of a model that has a head.
    pub fn load(
        source: &dyn Weights,
        sizes: Sizes,
        judge: Option<&Value>,
        precision: Option<Kind>,
        cpu: Arc<Cpu>,
    ) -> Loaded<(Self, Option<Head>)> {
        let loader = Loader::new(source, cpu.pool().threads()).rounding(precision);
        let head = judge.map(|config| Head::load(&loader, config, &sizes)).transpose()?;
        let encoder = Self::of(&loader, sizes, cpu)?;
        loader.finish()?;
        Ok((encoder, head))
    }

    /// The same of whatever `loader` reads, where more may be read beside it.
    pub(in crate::models) fn of(loader: &Loader<'_>, sizes: Sizes, cpu: Arc<Cpu>) -> Loaded<Self> {
        let Sizes { width, vocabulary, types, epsilon, context, .. } = sizes;
        let (skipped, turnings) = match &sizes.positions {
            Positions::Table { skipped } => (Some(*skipped), &[][..]),
            Positions::Rotary { turnings, .. } => (None, turnings.as_slice()),
        };
        let table = |stem: &str, rows: usize| loader.table(stem, rows, width);
        let layers = (0..sizes.layers).map(|index| Layer::load(loader, &sizes, index)).collect::<Loaded<_>>()?;
        let ropes = turnings.iter().map(|turning| Rope::load(loader, &turning.rope)).collect::<Loaded<_>>()?;
        Ok(Self {
            token_embd: table("token_embd", vocabulary)?,
            position_embd: skipped.map(|skipped| table("position_embd", skipped + context)).transpose()?,
            token_types: (types > 0).then(|| table("token_types", types)).transpose()?,
            embd_norm: Norm::layer(loader, "token_embd_norm", width, epsilon)?,
            output_norm: sizes.pre_norms.then(|| Norm::layer(loader, "output_norm", width, epsilon)).transpose()?,
            layers,
            ropes,
            sizes,
            cpu,
        })
    }

    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// What computes it.
    pub fn cpu(&self) -> &Cpu {
        &self.cpu
    }

    /// Begins with these texts, of which none is empty or longer than the model's context.
    pub fn begin(&self, texts: &[&Tokenized]) -> Result<Pass> {
        let Sizes { width, heads, context, .. } = self.sizes;
        let counts = || texts.iter().map(|text| text.ids.len());
        if let Some(count) = counts().find(|count| *count == 0 || *count > context) {
            candle_core::bail!("a text of {count} tokens, 1 to {context} are possible");
        }
        let positions = || counts().flat_map(|count| (0..count).map(|position| (position, false)));
        let angles = self.ropes.iter().map(|rope| Angles::new(rope, positions())).collect();
        let places = Texts::new(counts());
        let arena = places.arena([heads, width / heads]);
        let written = attention::places(&places.spans(&(0..places.tokens())))?;
        let mut pass = Pass { stream: Stream::default(), texts: places, arena, written, angles, layer: 0 };
        self.embed(texts, pass.texts.tokens(), &mut pass.stream)?;
        Ok(pass)
    }

    /// The vectors that tokens begin with.
    fn embed(&self, texts: &[&Tokenized], m: usize, stream: &mut Stream) -> Result<()> {
        let (pool, mut scratch, len) = (self.cpu.pool(), self.cpu.scratch(), m * self.sizes.width);
        let x = room(&mut stream.x, len);
        self.token_embd.look_up(texts.iter().flat_map(|text| &text.ids).copied(), false, x)?;
        if let (Some(table), Positions::Table { skipped }) = (&self.position_embd, &self.sizes.positions) {
            let skipped = *skipped as u32;
            table.look_up(texts.iter().flat_map(|text| skipped..skipped + text.ids.len() as u32), true, x)?;
        }
        if let Some(table) = &self.token_types {
            // A model with one type knows no second text.
            let last = self.sizes.types as u32 - 1;
            let types = |text: &&Tokenized| {
                let second = text.second;
                (0..text.ids.len()).map(move |place| u32::from(place >= second).min(last))
            };
            table.look_up(texts.iter().flat_map(types), true, x)?;
        }
        self.embd_norm.replace(pool, &mut stream.x, len, &mut scratch.normed);
        Ok(())
    }

    /// Computes one layer. `true`: it was the last, and [`Pass::vectors`] has what came of it.
    pub fn advance(&self, pass: &mut Pass) -> Result<bool> {
        let Sizes { width, heads, .. } = self.sizes;
        let Some(layer) = self.layers.get(pass.layer) else { return Ok(true) };
        let (pool, mut scratch, m) = (self.cpu.pool(), self.cpu.scratch(), pass.texts.tokens());
        let (len, head_width, turning) = (m * width, width / heads, self.sizes.turning(pass.layer));
        layer.project(pool, m, &mut pass.stream, &mut scratch)?;
        if let Some(angles) = turning.and_then(|(index, _)| pass.angles.get(index)) {
            angles.rotate(pool, room(&mut scratch.q, len), heads, head_width, RopeStyle::Halves);
            angles.rotate(pool, room(&mut scratch.k, len), heads, head_width, RopeStyle::Halves);
        }
        pass.arena.write(pool, 0, &pass.written, &scratch.k, &scratch.v)?;
        let Scratch { q, mixed, .. } = &mut *scratch;
        let (shape, spans) =
            (shape(&self.sizes, turning.and_then(|(_, turning)| turning.window)), pass.texts.spans(&(0..m)));
        attention::over(pool, &pass.arena, 0, &shape, &spans, room(q, len), room(mixed, len))?;
        layer.finish(pool, m, &mut pass.stream, &mut scratch)?;
        pass.layer += 1;
        if pass.layer < self.layers.len() {
            return Ok(false);
        }
        if let Some(norm) = &self.output_norm {
            let Stream { x, y } = &mut pass.stream;
            norm.add_replace(pool, x, room(y, len), &mut scratch.normed);
        }
        Ok(true)
    }

    /// An upper bound of the bytes that passes take with so many tokens in all, in so many texts, beside the
    /// shared scratch.
    pub fn pass_bytes(sizes: &Sizes, tokens: usize, texts: usize, threads: usize) -> u64 {
        let Sizes { width, inner, heads, .. } = *sizes;
        let turnings = if let Positions::Rotary { turnings, .. } = &sizes.positions { turnings.len() } else { 0 };
        // The stream, and angles in vectors that grew by doubling; the scratch of one layer, and numbers made ready for
        // products.
        let angles = 2 * turnings * width / heads;
        let floats = tokens * (2 * width + 7 * width + 2 * inner + width.max(inner) + angles);
        let attention = attend_bytes(threads, &shape(sizes, None), tokens, tokens.min(sizes.context));
        (floats * size_of::<f32>() + attention) as u64 + arena_bytes([heads, width / heads], tokens, texts)
    }
}

/// What attention is like in a layer with such a window.
fn shape(sizes: &Sizes, window: Option<usize>) -> Shape {
    let Sizes { width, heads, .. } = *sizes;
    let scale = ((width / heads) as f32).sqrt().recip();
    Shape { heads, kv_heads: heads, width: width / heads, scale, causal: false, window, soft_cap: None }
}

impl Pass {
    /// What follows the first so many tokens of each text is padding, which no token sees.
    pub fn hide(&mut self, seen: impl Iterator<Item = usize>) {
        self.texts.hide(seen);
    }

    /// Each text's vectors, `[tokens, width]`, in the order of the batch.
    pub fn vectors(&self, width: usize) -> impl Iterator<Item = &[f32]> {
        let of = move |text: Range<usize>| self.stream.x.get(text.start * width..text.end * width);
        self.texts.ranges().filter_map(of)
    }
}
