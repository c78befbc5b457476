//! Tiled encoding and decoding for images that are too large for memory. Tiles overlap and blend, as in diffusers'
//! `enable_vae_tiling()`.

use super::VaeConfig;
use crate::models::diffusion::feature_map::FeatureMap;
use crate::models::diffusion::op_context::{OpContext, Result};

/// Tile side in pixels where the config has no sample size: none, or diffusers' placeholder.
const DEFAULT_SIDE: usize = 512;
const UNSET_SAMPLE_SIZE: usize = 32;
/// Fraction of a tile that overlaps the next one: one over this.
const OVERLAP_DIVISOR: usize = 4;

/// The tiling along both axes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tiles {
    /// Input pixels of a tile's side, and between the starts of two tiles.
    side: usize,
    step: usize,
    /// Output pixels that blend, and that are kept.
    blend_extent: usize,
    row_limit: usize,
}

impl Tiles {
    /// Latent pixels along a tile's side.
    pub fn latents(config: &VaeConfig) -> usize {
        let trained =
            config.sample_size.map(|[height, width]| height.min(width)).filter(|side| *side > UNSET_SAMPLE_SIZE);
        (trained.unwrap_or(DEFAULT_SIDE) / config.factor() / OVERLAP_DIVISOR).max(1) * OVERLAP_DIVISOR
    }

    /// For decoding.
    pub fn of_latents(config: &VaeConfig) -> Self {
        Self::new(config, [1, config.factor()])
    }

    /// For encoding.
    pub fn of_pixels(config: &VaeConfig) -> Self {
        Self::new(config, [config.factor(), 1])
    }

    /// `into` and `out`: input and output pixels per latent pixel, along a side.
    fn new(config: &VaeConfig, [into, out]: [usize; 2]) -> Self {
        let side = Self::latents(config);
        let blend_extent = side / OVERLAP_DIVISOR;
        Self {
            side: side * into,
            step: (side - blend_extent) * into,
            blend_extent: blend_extent * out,
            row_limit: (side - blend_extent) * out,
        }
    }

    /// Whether there is more than one tile.
    pub fn is_split(&self, [height, width]: [usize; 2]) -> bool {
        height.max(width) > self.side
    }

    /// Applies `work` to every tile of `x`, one image, and joins the results.
    pub fn map(
        &self,
        ctx: &OpContext<'_>,
        x: &FeatureMap,
        work: impl Fn(FeatureMap) -> Result<FeatureMap>,
    ) -> Result<FeatureMap> {
        let [height, width] = x.size;
        let scaled = |side: usize| side * self.row_limit / self.step;
        let (mut whole, mut above): (Option<FeatureMap>, Vec<FeatureMap>) = (None, Vec::new());
        for top in (0..height).step_by(self.step) {
            let mut row: Vec<FeatureMap> = Vec::new();
            for left in (0..width).step_by(self.step) {
                let mut tile = work(self.cut(ctx, x, [top, left]))?;
                if let Some(above) = above.get(row.len()) {
                    blend_lines(above, &mut tile, self.blend_extent);
                }
                if let Some(before) = row.last() {
                    blend_columns(before, &mut tile, self.blend_extent);
                }
                let whole = whole.get_or_insert_with(|| ctx.alloc(1, x.size.map(scaled), tile.channels));
                self.put(&tile, whole, [scaled(top), scaled(left)]);
                row.push(tile);
            }
            above = row;
        }
        Ok(whole.unwrap_or_else(|| ctx.alloc(1, [0, 0], x.channels)))
    }

    /// A tile of `x`; smaller at the edges.
    fn cut(&self, ctx: &OpContext<'_>, x: &FeatureMap, [top, left]: [usize; 2]) -> FeatureMap {
        let [height, width] = x.size;
        let size = [self.side.min(height - top), self.side.min(width - left)];
        let mut tile = ctx.alloc(1, size, x.channels);
        let (from, to) = (width * x.channels, size[1] * x.channels);
        let lines = x.data().chunks_exact(from).skip(top);
        for (to, from) in tile.data_mut().chunks_exact_mut(to).zip(lines) {
            let line = from.iter().skip(left * x.channels);
            to.iter_mut().zip(line).for_each(|(to, from)| *to = *from);
        }
        tile
    }

    /// Copies the kept part of a tile to its place.
    fn put(&self, tile: &FeatureMap, whole: &mut FeatureMap, [top, left]: [usize; 2]) {
        let channels = tile.channels;
        let (from, to) = (tile.size[1] * channels, whole.size[1] * channels);
        let lines = whole.data_mut().chunks_exact_mut(to).skip(top);
        for (to, from) in lines.zip(tile.data().chunks_exact(from).take(self.row_limit)) {
            let place = to.iter_mut().skip(left * channels);
            place.zip(from.iter().take(self.row_limit * channels)).for_each(|(to, from)| *to = *from);
        }
    }
}

/// Blends the last rows of the tile above into the first rows of this one.
fn blend_lines(above: &FeatureMap, tile: &mut FeatureMap, blend_extent: usize) {
    let blend_extent = blend_extent.min(above.size[0]).min(tile.size[0]);
    let row = (tile.size[1] * tile.channels).max(1);
    let last = above.data().chunks_exact(row).skip(above.size[0] - blend_extent);
    for (at, (new, old)) in tile.data_mut().chunks_exact_mut(row).zip(last).enumerate() {
        blend(new, old, share(at, blend_extent));
    }
}

/// Blends the last columns of the tile before into the first columns of this one.
fn blend_columns(before: &FeatureMap, tile: &mut FeatureMap, blend_extent: usize) {
    let blend_extent = blend_extent.min(before.size[1]).min(tile.size[1]);
    let channels = tile.channels.max(1);
    let rows = [before.size[1], tile.size[1]].map(|width| (width * channels).max(1));
    let lines = tile.data_mut().chunks_exact_mut(rows[1]).zip(before.data().chunks_exact(rows[0]));
    for (new, old) in lines {
        let old = old.chunks_exact(channels).skip(before.size[1] - blend_extent);
        for (at, (new, old)) in new.chunks_exact_mut(channels).zip(old).enumerate() {
            blend(new, old, share(at, blend_extent));
        }
    }
}

/// Weights of the old and the new tile within the blended part.
fn share(at: usize, blend_extent: usize) -> [f32; 2] {
    let new = at as f64 / blend_extent as f64;
    [(1. - new) as f32, new as f32]
}

fn blend(new: &mut [f32], old: &[f32], [before, now]: [f32; 2]) {
    new.iter_mut().zip(old).for_each(|(new, old)| *new = old * before + *new * now);
}
