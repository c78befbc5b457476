//! Converts latents to a sequence of patches and back.

use crate::models::diffusion::feature_map::FeatureMap;
use crate::models::diffusion::op_context::{OpContext, Result};
use crate::models::error::ModelError;

/// The order of the elements of a patch.
#[derive(Clone, Copy, Debug)]
pub(super) enum PatchOrder {
    /// `[height, width, channels]`
    ChannelsLast,
    /// `[channels, height, width]`
    ChannelsFirst,
}

/// The layout of square patches.
#[derive(Clone, Copy, Debug)]
pub(super) struct PatchLayout {
    /// Side of a patch in latent pixels.
    pub patch_size: usize,
    /// Latent channels.
    pub channels: usize,
    pub order: PatchOrder,
}

impl PatchLayout {
    /// Elements of a patch.
    pub fn patch_elements(&self) -> usize {
        self.patch_size * self.patch_size * self.channels
    }

    /// Rows and columns of patches; `None` if the latents do not divide into patches.
    pub fn grid(&self, [height, width]: [usize; 2]) -> Option<[usize; 2]> {
        let divides =
            height.is_multiple_of(self.patch_size) && width.is_multiple_of(self.patch_size) && height * width > 0;
        divides.then(|| [height / self.patch_size, width / self.patch_size])
    }

    /// For each element of the packed patches of an image, its index in the latents (channels last).
    fn latent_indices(self, [rows, columns]: [usize; 2]) -> impl Iterator<Item = usize> {
        let Self { patch_size: side, channels, order } = self;
        let patches = (0..rows).flat_map(move |row| (0..columns).map(move |column| (row, column)));
        patches.flat_map(move |(row, column)| {
            (0..side * side * channels).map(move |element| {
                let (pixel, channel) = match order {
                    PatchOrder::ChannelsLast => (element / channels, element % channels),
                    PatchOrder::ChannelsFirst => (element % (side * side), element / (side * side)),
                };
                let (y, x) = (row * side + pixel / side, column * side + pixel % side);
                (y * columns * side + x) * channels + channel
            })
        })
    }

    /// Converts latents, `[images, height, width, channels]`, to patches, `[images, patches, 1, patch_elements]`.
    pub fn pack(self, ctx: &OpContext<'_>, x: &FeatureMap) -> Result<FeatureMap> {
        let Some(grid) = self.grid(x.size).filter(|_| x.channels == self.channels) else {
            return Err(ModelError::Compute(format!(
                "latents of {:?} and {} channels do not divide into patches",
                x.size, x.channels
            )));
        };
        let mut out = ctx.alloc(x.images, [grid[0] * grid[1], 1], self.patch_elements());
        let image = x.pixels() * x.channels;
        for (x, out) in x.per_image().zip(out.data_mut().chunks_exact_mut(image)) {
            let src = self.latent_indices(grid).map(|index| x[index]);
            out.iter_mut().zip(src).for_each(|(dst, src)| *dst = src);
        }
        ctx.pause()?;
        Ok(out)
    }

    /// The inverse of [`Self::pack`].
    pub fn unpack(self, ctx: &OpContext<'_>, x: &FeatureMap, grid: [usize; 2]) -> Result<FeatureMap> {
        if x.channels != self.patch_elements() || x.pixels() != grid[0] * grid[1] {
            return Err(ModelError::Compute(format!(
                "{} rows of {} elements do not fit the grid of patches",
                x.pixels(),
                x.channels
            )));
        }
        let mut out = ctx.alloc(x.images, grid.map(|count| count * self.patch_size), self.channels);
        let image = (x.pixels() * x.channels).max(1);
        for (x, out) in x.per_image().zip(out.data_mut().chunks_exact_mut(image)) {
            for (index, src) in self.latent_indices(grid).zip(x) {
                if let Some(dst) = out.get_mut(index) {
                    *dst = *src;
                }
            }
        }
        ctx.pause()?;
        Ok(out)
    }
}
