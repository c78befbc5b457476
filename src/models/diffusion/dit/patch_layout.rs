//! Conversion between latents and rows of patches.

use crate::models::diffusion::feature_map::FeatureMap;
use crate::models::diffusion::op_context::{OpContext, Result};
use crate::models::error::ModelError;

/// The order of a patch's elements.
#[derive(Clone, Copy, Debug)]
pub(super) enum PatchOrder {
    /// `[height, width, channels]`
    ChannelsLast,
    /// `[channels, height, width]`
    ChannelsFirst,
}

/// Square patches.
#[derive(Clone, Copy, Debug)]
pub(super) struct PatchLayout {
    pub side: usize,
    pub channels: usize,
    pub order: PatchOrder,
}

impl PatchLayout {
    pub fn row(&self) -> usize {
        self.side * self.side * self.channels
    }

    /// Patches along each side of an image; `None` where they do not fill it.
    pub fn grid(&self, [height, width]: [usize; 2]) -> Option<[usize; 2]> {
        let whole = height.is_multiple_of(self.side) && width.is_multiple_of(self.side) && height * width > 0;
        whole.then(|| [height / self.side, width / self.side])
    }

    /// For each element of an image's patches, its index in the image (channels last).
    fn positions(self, [rows, columns]: [usize; 2]) -> impl Iterator<Item = usize> {
        let Self { side, channels, order } = self;
        let patches = (0..rows).flat_map(move |row| (0..columns).map(move |column| (row, column)));
        patches.flat_map(move |(row, column)| {
            (0..side * side * channels).map(move |at| {
                let (pixel, channel) = match order {
                    PatchOrder::ChannelsLast => (at / channels, at % channels),
                    PatchOrder::ChannelsFirst => (at % (side * side), at / (side * side)),
                };
                let (line, place) = (row * side + pixel / side, column * side + pixel % side);
                (line * columns * side + place) * channels + channel
            })
        })
    }

    /// `[images, height, width, channels]` as `[images, patches, 1, row]`.
    pub fn pack(self, ctx: &OpContext<'_>, x: &FeatureMap) -> Result<FeatureMap> {
        let Some(grid) = self.grid(x.size).filter(|_| x.channels == self.channels) else {
            return Err(ModelError::Compute(format!("{:?} of {} channels are not patches", x.size, x.channels)));
        };
        let mut out = ctx.alloc(x.images, [grid[0] * grid[1], 1], self.row());
        let image = x.pixels() * x.channels;
        for (x, out) in x.per_image().zip(out.data_mut().chunks_exact_mut(image)) {
            let from = self.positions(grid).map(|place| x[place]);
            out.iter_mut().zip(from).for_each(|(to, from)| *to = from);
        }
        ctx.pause()?;
        Ok(out)
    }

    /// The inverse of [`Self::pack`].
    pub fn unpack(self, ctx: &OpContext<'_>, x: &FeatureMap, grid: [usize; 2]) -> Result<FeatureMap> {
        if x.channels != self.row() || x.pixels() != grid[0] * grid[1] {
            return Err(ModelError::Compute(format!("{} rows of {} are not patches", x.pixels(), x.channels)));
        }
        let mut out = ctx.alloc(x.images, grid.map(|count| count * self.side), self.channels);
        let image = (x.pixels() * x.channels).max(1);
        for (x, out) in x.per_image().zip(out.data_mut().chunks_exact_mut(image)) {
            for (place, number) in self.positions(grid).zip(x) {
                if let Some(to) = out.get_mut(place) {
                    *to = *number;
                }
            }
        }
        ctx.pause()?;
        Ok(out)
    }
}
