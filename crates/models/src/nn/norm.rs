//! Loads norms.

use super::norm_spec::NormSpec;
use crate::backend::{Backend, GroupNorm, Norm, NormKind};
use crate::error::{ModelError, Result};
use crate::weights::{Loader, Role};

impl<B: Backend> Norm<B> {
    /// Loads a norm of `width` elements. It has no bias, except a layer norm whose checkpoint has one.
    pub(crate) fn load(loader: &Loader<'_, B>, stem: &str, width: usize, spec: NormSpec) -> Result<Self> {
        let NormSpec { kind, epsilon, offset } = spec;
        match kind {
            NormKind::Rms => Self::load_rms_norm(loader, stem, width, epsilon, offset),
            NormKind::Layer => Self::load_layer_norm(loader, stem, width, epsilon),
        }
    }

    /// Loads a norm without a bias, and multiplies its weights with `factor`.
    pub(crate) fn load_scaled(
        loader: &Loader<'_, B>,
        stem: &str,
        width: usize,
        NormSpec { kind, epsilon, offset }: NormSpec,
        factor: f32,
    ) -> Result<Self> {
        let weights = loader.vector(stem, width)?.into_iter().map(|weight| (weight + offset) * factor).collect();
        Ok(Self { kind, weight: loader.backend().vector(weights)?, bias: None, epsilon })
    }

    /// Loads a layer norm, with a bias if the checkpoint has one.
    pub(crate) fn load_layer_norm(loader: &Loader<'_, B>, stem: &str, width: usize, epsilon: f32) -> Result<Self> {
        let weight = loader.backend().vector(loader.vector(stem, width)?)?;
        let bias = loader.optional_vector(stem, Role::Bias, width)?;
        let bias = bias.map(|bias| loader.backend().vector(bias)).transpose()?;
        Ok(Self { kind: NormKind::Layer, weight, bias, epsilon })
    }

    /// Loads an RMS norm without a bias; `offset` is added to its weights.
    pub(crate) fn load_rms_norm(
        loader: &Loader<'_, B>,
        stem: &str,
        width: usize,
        epsilon: f32,
        offset: f32,
    ) -> Result<Self> {
        let weight = loader.vector(stem, width)?.into_iter().map(|weight| weight + offset).collect();
        Ok(Self { kind: NormKind::Rms, weight: loader.backend().vector(weight)?, bias: None, epsilon })
    }
}

impl<B: Backend> GroupNorm<B> {
    pub(crate) fn load(
        loader: &Loader<'_, B>,
        stem: &str,
        channels: usize,
        groups: usize,
        epsilon: f32,
    ) -> Result<Self> {
        if !channels.is_multiple_of(groups) {
            return Err(ModelError::Checkpoint(format!(
                "{channels} channels of {stem} do not divide into {groups} groups"
            )));
        }
        let weight = loader.backend().vector(loader.vector(stem, channels)?)?;
        let bias = loader.optional_vector(stem, Role::Bias, channels)?.unwrap_or_else(|| vec![0.; channels]);
        Ok(Self { groups, weight, bias: loader.backend().vector(bias)?, epsilon })
    }
}
