//! Queries, keys and values of one stream (image or text) of a block.

use crate::backend::{Backend, Norm, Tensor};
use crate::error::Result;
use crate::nn::{Context, Linear};
use crate::weights::{Candidate, Loader};

const EPSILON: f32 = 1e-6;

/// The tensor names of an attention layer.
#[derive(Debug)]
pub(super) struct AttentionNames {
    projections: [&'static str; 3],
    /// All three projections in one tensor.
    fused: &'static str,
    norms: [&'static str; 2],
    pub out: &'static str,
}

pub(super) const IMAGE: AttentionNames = AttentionNames {
    projections: ["to_q", "to_k", "to_v"],
    fused: "to_qkv",
    norms: ["norm_q", "norm_k"],
    out: "to_out.0",
};

pub(super) const TEXT: AttentionNames = AttentionNames {
    projections: ["add_q_proj", "add_k_proj", "add_v_proj"],
    fused: "to_added_qkv",
    norms: ["norm_added_q", "norm_added_k"],
    out: "to_add_out",
};

/// The projections to queries, keys and values.
#[derive(Debug)]
pub(super) struct QkvProjection<B: Backend> {
    projections: [Linear<B>; 3],
    /// Norms of the queries and keys of each head (Henry et al. 2020, <https://arxiv.org/abs/2010.04245>).
    norms: Option<[Norm<B>; 2]>,
}

/// The dimensions of the projections.
#[derive(Clone, Copy, Debug)]
pub(super) struct QkvDims {
    pub width: usize,
    /// Width of a head if queries and keys are normalised.
    pub qk_norm: Option<usize>,
}

impl<B: Backend> QkvProjection<B> {
    pub fn load(loader: &Loader<'_, B>, stem: &str, names: &AttentionNames, dims: QkvDims) -> Result<Self> {
        let fused = (format!("{stem}.{}", names.fused), 3 * dims.width);
        Self::load_fused(loader, stem, names, dims, &fused)
    }

    /// `fused`: a tensor that may hold all projections, and its number of rows.
    pub fn load_fused(
        loader: &Loader<'_, B>,
        stem: &str,
        names: &AttentionNames,
        QkvDims { width, qk_norm }: QkvDims,
        (fused, total): &(String, usize),
    ) -> Result<Self> {
        let projection = |index: usize, name: &str| {
            let first = index * width;
            let own = Candidate::whole(format!("{stem}.{name}"), width);
            loader.linear(&[own, Candidate { stem: fused.clone(), first, total: *total }], width, width, true)
        };
        let [q, k, v] = names.projections;
        let norms = |head| {
            let [q, k] =
                names.norms.map(|name| Norm::load_rms_norm(loader, &format!("{stem}.{name}"), head, EPSILON, 0.));
            Ok::<_, crate::ModelError>([q?, k?])
        };
        Ok(Self {
            projections: [projection(0, q)?, projection(1, k)?, projection(2, v)?],
            norms: qk_norm.map(norms).transpose()?,
        })
    }

    /// Queries, keys and values of `x`, each `[images, positions, 1, width]`.
    pub fn forward(&self, ctx: &Context<'_, B>, x: &Tensor<B>) -> Result<[Tensor<B>; 3]> {
        let [q, k, v] = Linear::forward_all(ctx, self.projections.each_ref(), x)?;
        let Some([norm_q, norm_k]) = &self.norms else { return Ok([q, k, v]) };
        Ok([ctx.norm(norm_q, &q)?, ctx.norm(norm_k, &k)?, v])
    }
}
