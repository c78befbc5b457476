//! Converts latents to a sequence of patches and back.

use crate::backend::{Backend, Tensor};
use crate::error::ModelError;
use crate::error::Result;
use crate::nn::Context;

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
    pub fn pack<B: Backend>(self, ctx: &Context<'_, B>, x: &Tensor<B>) -> Result<Tensor<B>> {
        let Some(grid) = self.grid(x.size).filter(|_| x.channels == self.channels) else {
            return Err(ModelError::Compute(format!(
                "latents of {:?} and {} channels do not divide into patches",
                x.size, x.channels
            )));
        };
        let order: Vec<u32> = self.latent_indices(grid).map(|index| index as u32).collect();
        ctx.permute(x, &order, [grid[0] * grid[1], 1], self.patch_elements())
    }

    /// The inverse of [`Self::pack`].
    pub fn unpack<B: Backend>(self, ctx: &Context<'_, B>, x: &Tensor<B>, grid: [usize; 2]) -> Result<Tensor<B>> {
        if x.channels != self.patch_elements() || x.pixels() != grid[0] * grid[1] {
            return Err(ModelError::Compute(format!(
                "{} rows of {} elements do not fit the grid of patches",
                x.pixels(),
                x.channels
            )));
        }
        let mut order = vec![0; x.pixels() * x.channels];
        for (element, index) in self.latent_indices(grid).enumerate() {
            order[index] = element as u32;
        }
        ctx.permute(x, &order, grid.map(|count| count * self.patch_size), self.channels)
    }
}
