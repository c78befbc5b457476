//! Tiled encoding and decoding for images that are too large for memory. Adjacent tiles overlap and are blended, as in
//! diffusers' `enable_vae_tiling()`.

use super::VaeConfig;
use super::raster::Raster;
use crate::error::Result;

/// Side of a tile in image pixels if the config has no sample size.
const DEFAULT_SIDE: usize = 512;
/// diffusers' placeholder for a missing sample size.
const UNSET_SAMPLE_SIZE: usize = 32;
/// Adjacent tiles overlap by one over this of a side.
const OVERLAP_DIVISOR: usize = 4;

/// The size and overlap of tiles, the same along both axes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tiling {
    /// Side of a tile in input pixels.
    side: usize,
    /// Input pixels from the start of a tile to the start of the next one.
    stride: usize,
    /// Output pixels over which two tiles are blended.
    blend_extent: usize,
    /// Output pixels of a tile that are copied to the result, the blended ones included.
    row_limit: usize,
}

impl Tiling {
    /// Side of a tile in latent pixels.
    pub fn latent_side(config: &VaeConfig) -> usize {
        let sample_side =
            config.sample_size.map(|[height, width]| height.min(width)).filter(|side| *side > UNSET_SAMPLE_SIZE);
        (sample_side.unwrap_or(DEFAULT_SIDE) / config.factor() / OVERLAP_DIVISOR).max(1) * OVERLAP_DIVISOR
    }

    /// Tiles of latents.
    pub fn for_decoding(config: &VaeConfig) -> Self {
        Self::new(config, [1, config.factor()])
    }

    /// Tiles of an image.
    pub fn for_encoding(config: &VaeConfig) -> Self {
        Self::new(config, [config.factor(), 1])
    }

    /// Input and output pixels are per latent pixel, along an axis.
    fn new(config: &VaeConfig, [input_pixels, output_pixels]: [usize; 2]) -> Self {
        let side = Self::latent_side(config);
        let blend_extent = side / OVERLAP_DIVISOR;
        Self {
            side: side * input_pixels,
            stride: (side - blend_extent) * input_pixels,
            blend_extent: blend_extent * output_pixels,
            row_limit: (side - blend_extent) * output_pixels,
        }
    }

    /// Whether an input of this height and width has more than one tile.
    pub fn is_split(&self, [height, width]: [usize; 2]) -> bool {
        height.max(width) > self.side
    }

    /// Applies `f` to every tile of `x`, and blends the results.
    pub fn map(&self, x: &Raster, f: impl Fn(Raster) -> Result<Raster>) -> Result<Raster> {
        let [height, width] = x.size;
        let scaled = |side: usize| side * self.row_limit / self.stride;
        let (mut out, mut row_above): (Option<Raster>, Vec<Raster>) = (None, Vec::new());
        for top in (0..height).step_by(self.stride) {
            let mut row: Vec<Raster> = Vec::new();
            for left in (0..width).step_by(self.stride) {
                let mut tile = f(self.crop(x, [top, left]))?;
                if let Some(above) = row_above.get(row.len()) {
                    blend_rows(above, &mut tile, self.blend_extent);
                }
                if let Some(left_tile) = row.last() {
                    blend_columns(left_tile, &mut tile, self.blend_extent);
                }
                let out = out.get_or_insert_with(|| zeros(x.size.map(scaled), tile.channels));
                self.copy_tile(&tile, out, [scaled(top), scaled(left)]);
                row.push(tile);
            }
            row_above = row;
        }
        Ok(out.unwrap_or_else(|| zeros([0, 0], x.channels)))
    }

    /// The tile of `x` at this position; tiles at the bottom and right edges may be smaller.
    fn crop(&self, x: &Raster, [top, left]: [usize; 2]) -> Raster {
        let [height, width] = x.size;
        let size = [self.side.min(height - top), self.side.min(width - left)];
        let mut tile = zeros(size, x.channels);
        let (src_stride, dst_stride) = (width * x.channels, size[1] * x.channels);
        let src_rows = x.values.chunks_exact(src_stride).skip(top);
        for (dst, src) in tile.values.chunks_exact_mut(dst_stride).zip(src_rows) {
            let src = src.iter().skip(left * x.channels);
            dst.iter_mut().zip(src).for_each(|(dst, src)| *dst = *src);
        }
        tile
    }

    /// Copies the first `row_limit` rows and columns of a tile to a position of the result.
    fn copy_tile(&self, tile: &Raster, out: &mut Raster, [top, left]: [usize; 2]) {
        let channels = tile.channels;
        let (src_stride, dst_stride) = (tile.size[1] * channels, out.size[1] * channels);
        let dst_rows = out.values.chunks_exact_mut(dst_stride).skip(top);
        for (dst, src) in dst_rows.zip(tile.values.chunks_exact(src_stride).take(self.row_limit)) {
            let dst = dst.iter_mut().skip(left * channels);
            dst.zip(src.iter().take(self.row_limit * channels)).for_each(|(dst, src)| *dst = *src);
        }
    }
}

fn zeros(size: [usize; 2], channels: usize) -> Raster {
    Raster { values: vec![0.; size[0] * size[1] * channels], size, channels }
}

/// Blends the last rows of the tile above into the first rows of this one.
fn blend_rows(above: &Raster, tile: &mut Raster, blend_extent: usize) {
    let blend_extent = blend_extent.min(above.size[0]).min(tile.size[0]);
    let row_stride = (tile.size[1] * tile.channels).max(1);
    let last_rows = above.values.chunks_exact(row_stride).skip(above.size[0] - blend_extent);
    for (row, (new, old)) in tile.values.chunks_exact_mut(row_stride).zip(last_rows).enumerate() {
        blend(new, old, blend_weights(row, blend_extent));
    }
}

/// Blends the last columns of the tile to the left into the first columns of this one.
fn blend_columns(left: &Raster, tile: &mut Raster, blend_extent: usize) {
    let blend_extent = blend_extent.min(left.size[1]).min(tile.size[1]);
    let channels = tile.channels.max(1);
    let row_strides = [left.size[1], tile.size[1]].map(|width| (width * channels).max(1));
    let rows = tile.values.chunks_exact_mut(row_strides[1]).zip(left.values.chunks_exact(row_strides[0]));
    for (new, old) in rows {
        let old = old.chunks_exact(channels).skip(left.size[1] - blend_extent);
        for (column, (new, old)) in new.chunks_exact_mut(channels).zip(old).enumerate() {
            blend(new, old, blend_weights(column, blend_extent));
        }
    }
}

/// Weights of the old and the new tile at `index` within the blended rows or columns.
fn blend_weights(index: usize, blend_extent: usize) -> [f32; 2] {
    let new = index as f64 / blend_extent as f64;
    [(1. - new) as f32, new as f32]
}

fn blend(new: &mut [f32], old: &[f32], [old_weight, new_weight]: [f32; 2]) {
    new.iter_mut().zip(old).for_each(|(new, old)| *new = old * old_weight + *new * new_weight);
}
