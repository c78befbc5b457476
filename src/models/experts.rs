//! Sparse mixtures of experts (Shazeer et al. 2017, <https://arxiv.org/abs/1701.06538>; Mixtral:
//! Jiang et al. 2024, <https://arxiv.org/abs/2401.04088>): each row goes through few of many networks.

use candle_core::{Device, Result, Tensor};
use candle_nn::ops::softmax_last_dim;
use outpost_kernels::Pool;

use super::ModelError;
use super::feed_forward::Gated;
use super::hyper::{ExpertSizes, Hyper};
use super::linear::Linear;
use super::weights::{Candidate, Loader};

#[derive(Debug)]
pub(super) struct Experts {
    router: Linear,
    experts: Vec<Gated>,
    used: usize,
    /// Whether the weights of those used sum up to one.
    normalised: bool,
}

impl Experts {
    pub fn load(
        loader: &Loader<'_>,
        hyper: &Hyper,
        sizes: &ExpertSizes,
        block: usize,
    ) -> std::result::Result<Self, ModelError> {
        let router = [Candidate::whole(format!("blk.{block}.ffn_gate_inp"), sizes.count)];
        let router = loader.linear(&router, sizes.count, hyper.width, false)?;
        let experts = (0..sizes.count).map(|expert| gated(loader, hyper, sizes, block, expert));
        let experts = experts.collect::<std::result::Result<_, _>>()?;
        Ok(Self { router, experts, used: sizes.used, normalised: sizes.normalised })
    }

    /// `x`: `[rows, width]`. Rows are gathered by expert, so that each weight is read once.
    pub fn forward(&self, pool: &Pool, x: &Tensor) -> Result<Tensor> {
        let mut rows_of: Vec<(Vec<u32>, Vec<f32>)> = vec![Default::default(); self.experts.len()];
        for (row, shares) in (0..).zip(softmax_last_dim(&self.router.forward(pool, x)?)?.to_vec2::<f32>()?) {
            for (expert, share) in self.choose(&shares) {
                if let Some((rows, weights)) = rows_of.get_mut(expert) {
                    rows.push(row);
                    weights.push(share);
                }
            }
        }
        let mut sum = x.zeros_like()?;
        for (expert, (rows, weights)) in self.experts.iter().zip(rows_of).filter(|(_, (rows, _))| !rows.is_empty()) {
            let weights = Tensor::from_vec(weights, (rows.len(), 1), &Device::Cpu)?;
            let rows = Tensor::new(rows, &Device::Cpu)?;
            let y = expert.forward(pool, &x.index_select(&rows, 0)?)?.broadcast_mul(&weights)?;
            sum = sum.index_add(&rows, &y, 0)?;
        }
        Ok(sum)
    }

    /// The experts with the largest shares, the first of equal ones first.
    fn choose(&self, shares: &[f32]) -> Vec<(usize, f32)> {
        let mut all: Vec<(usize, f32)> = shares.iter().copied().enumerate().collect();
        all.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        all.truncate(self.used);
        let total: f32 = all.iter().map(|(_, share)| share).sum();
        if self.normalised {
            all.iter_mut().for_each(|(_, share)| *share /= total);
        }
        all
    }
}

/// An expert's tensors: its own, or its rows of those that hold all experts'.
fn gated(
    loader: &Loader<'_>,
    hyper: &Hyper,
    sizes: &ExpertSizes,
    block: usize,
    expert: usize,
) -> std::result::Result<Gated, ModelError> {
    let places = |part: &str, rows: usize| {
        let all =
            Candidate { stem: format!("blk.{block}.ffn_{part}_exps"), first: expert * rows, total: sizes.count * rows };
        [all, Candidate::whole(format!("blk.{block}.ffn_{part}.{expert}"), rows)]
    };
    let fused = |offset: usize| Candidate {
        stem: format!("blk.{block}.ffn_gate_up_exps"),
        first: (2 * expert + offset) * sizes.inner,
        total: 2 * sizes.count * sizes.inner,
    };
    let with = |[all, own]: [Candidate; 2], offset: usize| [all, own, fused(offset)];
    let (gate, up) = (with(places("gate", sizes.inner), 0), with(places("up", sizes.inner), 1));
    Gated::load(loader, hyper, [&gate, &up, &places("down", hyper.width)], sizes.inner)
}
