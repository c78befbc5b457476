//! Adaptive layer norm (adaLN-Zero): shifts, scales and gates that are computed from the conditioning vector (Peebles
//! and Xie 2022, <https://arxiv.org/abs/2212.09748>).

use outpost_kernels::{self as kernels, NormKind};

use crate::models::diffusion::feature_map::FeatureMap;
use crate::models::diffusion::layers::{Linear, linear};
use crate::models::diffusion::op_context::{OpContext, Result};
use crate::models::error::ModelError;
use crate::models::weights::Loader;

const EPSILON: f32 = 1e-6;

/// Projects the conditioning vector to modulation vectors.
#[derive(Debug)]
pub(super) struct Modulation {
    weight: Linear,
    width: usize,
}

/// The modulation vectors of each image.
#[derive(Debug)]
pub(super) struct ModulationVectors {
    /// `[images, 1, 1, count · width]`
    vectors: FeatureMap,
    width: usize,
}

/// The indices of a shift and a scale among modulation vectors.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShiftScale {
    pub shift: usize,
    pub scale: usize,
}

impl Modulation {
    /// `count`: the number of modulation vectors.
    pub fn load(loader: &Loader<'_>, stem: &str, width: usize, count: usize) -> Result<Self> {
        Ok(Self { weight: linear(loader, stem, [width, count * width], true)?, width })
    }

    /// `cond`: `[images, 1, 1, width]`, from [`super::time_text_embedding::TimeTextEmbedding`].
    pub fn forward(&self, ctx: &OpContext<'_>, cond: &FeatureMap) -> Result<ModulationVectors> {
        Ok(ModulationVectors { vectors: ctx.linear(&self.weight, cond)?, width: self.width })
    }
}

impl ModulationVectors {
    /// The vector at `index` of each image.
    fn vector(&self, index: usize) -> impl Iterator<Item = &[f32]> {
        self.vectors.per_image().map(move |vectors| vectors.chunks_exact(self.width).nth(index).unwrap_or_default())
    }

    fn check(&self, x: &FeatureMap, indices: &[usize]) -> Result<()> {
        let count = self.vectors.channels / self.width.max(1);
        match x.channels == self.width && x.images == self.vectors.images && indices.iter().all(|index| *index < count)
        {
            true => Ok(()),
            false => Err(ModelError::Compute(format!(
                "{count} modulation vectors of width {} do not fit hidden states of width {}",
                self.width, x.channels
            ))),
        }
    }

    /// `norm(x) · (1 + scale) + shift`; the norm has no weights.
    pub fn norm(&self, ctx: &OpContext<'_>, x: &FeatureMap, shift_scale: ShiftScale) -> Result<FeatureMap> {
        let ShiftScale { shift, scale } = shift_scale;
        self.check(x, &[shift, scale])?;
        let mut out = ctx.alloc(x.images, x.size, x.channels);
        let image = x.pixels() * x.channels;
        let images = x.per_image().zip(out.data_mut().chunks_exact_mut(image));
        for ((x, out), (shift, scale)) in images.zip(self.vector(shift).zip(self.vector(scale))) {
            let weight: Vec<f32> = scale.iter().map(|scale| 1. + scale).collect();
            let (kind, bias) = (NormKind::Layer, Some(shift));
            kernels::Norm { kind, weight: &weight, bias, epsilon: EPSILON }.forward(ctx.pool, x, out);
            ctx.pause()?;
        }
        Ok(out)
    }

    /// `x += gate · y`
    pub fn add(&self, ctx: &OpContext<'_>, x: &mut FeatureMap, y: &FeatureMap, gate: usize) -> Result<()> {
        self.check(x, &[gate])?;
        if x.len() != y.len() {
            return Err(ModelError::Compute(format!("{} elements cannot be added to {}", y.len(), x.len())));
        }
        let image = x.pixels() * x.channels;
        for ((x, y), gate) in x.data_mut().chunks_exact_mut(image.max(1)).zip(y.per_image()).zip(self.vector(gate)) {
            kernels::add_scaled(ctx.pool, x, y, gate);
            ctx.pause()?;
        }
        Ok(())
    }
}
