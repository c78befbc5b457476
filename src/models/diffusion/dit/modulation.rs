//! Adaptive layer norm: shifts, scales and gates computed from the conditioning.

use outpost_kernels::{self as kernels, NormKind};

use crate::models::diffusion::feature_map::FeatureMap;
use crate::models::diffusion::layers::{Linear, Loaded, linear};
use crate::models::diffusion::op_context::{OpContext, Result};
use crate::models::error::ModelError;
use crate::models::weights::Loader;

const EPSILON: f32 = 1e-6;

#[derive(Debug)]
pub(super) struct Modulation {
    weight: Linear,
    width: usize,
}

/// Modulation vectors of each image: `[images, 1, 1, parts · width]`.
#[derive(Debug)]
pub(super) struct ModulationVectors {
    all: FeatureMap,
    width: usize,
}

/// Indices of a shift and a scale.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShiftScale {
    pub shift: usize,
    pub scale: usize,
}

impl Modulation {
    /// Makes `parts` vectors of `width` elements.
    pub fn load(loader: &Loader<'_>, stem: &str, width: usize, parts: usize) -> Loaded<Self> {
        Ok(Self { weight: linear(loader, stem, [width, parts * width], true)?, width })
    }

    /// `cond`: `[images, 1, 1, width]`, from [`super::time_text_embedding::TimeTextEmbedding`].
    pub fn forward(&self, ctx: &OpContext<'_>, cond: &FeatureMap) -> Result<ModulationVectors> {
        Ok(ModulationVectors { all: ctx.linear(&self.weight, cond)?, width: self.width })
    }
}

impl ModulationVectors {
    /// Vector `part` of each image.
    fn part(&self, part: usize) -> impl Iterator<Item = &[f32]> {
        self.all.per_image().map(move |all| all.chunks_exact(self.width).nth(part).unwrap_or_default())
    }

    fn check(&self, x: &FeatureMap, parts: &[usize]) -> Result<()> {
        let there = self.all.channels / self.width.max(1);
        match x.channels == self.width && x.images == self.all.images && parts.iter().all(|part| *part < there) {
            true => Ok(()),
            false => Err(ModelError::Compute(format!(
                "{there} modulation vectors of {} do not fit {}",
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
        for ((x, out), (shift, scale)) in images.zip(self.part(shift).zip(self.part(scale))) {
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
        for ((x, y), gate) in x.data_mut().chunks_exact_mut(image.max(1)).zip(y.per_image()).zip(self.part(gate)) {
            kernels::add_scaled(ctx.pool, x, y, gate);
            ctx.pause()?;
        }
        Ok(())
    }
}
