//! Sparse mixtures of experts (Shazeer et al. 2017, <https://arxiv.org/abs/1701.06538>; Mixtral:
//! Jiang et al. 2024, <https://arxiv.org/abs/2401.04088>): each row goes through few of many networks.

use outpost_kernels::Pool;

use super::decoder_config::{DecoderConfig, MoeConfig};
use super::error::Result;
use super::linear::Linear;
use super::mlp::Mlp;
use super::weights::{Candidate, Loader};

#[derive(Debug)]
pub(super) struct MixtureOfExperts {
    router: Linear,
    experts: Vec<Mlp>,
    experts_per_token: usize,
    /// Whether the weights of those used sum up to one.
    normalise_weights: bool,
}

impl MixtureOfExperts {
    pub fn load(loader: &Loader<'_>, config: &DecoderConfig, sizes: &MoeConfig, block: usize) -> Result<Self> {
        let router = [Candidate::whole(format!("blk.{block}.ffn_gate_inp"), sizes.count)];
        let router = loader.linear(&router, sizes.count, config.width, false)?;
        let experts = (0..sizes.count).map(|expert| load_expert(loader, config, sizes, block, expert));
        let experts = experts.collect::<std::result::Result<_, _>>()?;
        Ok(Self {
            router,
            experts,
            experts_per_token: sizes.experts_per_token,
            normalise_weights: sizes.normalise_weights,
        })
    }

    /// As [`super::feed_forward::FeedForward::forward`] says. Rows are gathered by expert, so that each
    /// weight is read once.
    pub fn forward(
        &self,
        pool: &Pool,
        x: &[f32],
        m: usize,
        buffers: [&mut Vec<f32>; 2],
        out: &mut [f32],
    ) -> Result<()> {
        let width = x.len() / m.max(1);
        let [gate, up] = buffers;
        let mut scores = vec![0.; m * self.experts.len()];
        self.router.forward(pool, x, m, &mut scores)?;
        let mut rows_of: Vec<Vec<(usize, f32)>> = vec![Vec::new(); self.experts.len()];
        for (row, scores) in scores.chunks_exact_mut(self.experts.len().max(1)).enumerate() {
            softmax(scores);
            for (expert, share) in self.choose(scores) {
                rows_of[expert].push((row, share));
            }
        }
        out.fill(0.);
        let (mut gathered, mut given) = (Vec::new(), Vec::new());
        for (expert, rows) in self.experts.iter().zip(rows_of).filter(|(_, rows)| !rows.is_empty()) {
            gathered.clear();
            for (row, _) in &rows {
                gathered.extend_from_slice(&x[row * width..(row + 1) * width]);
            }
            given.resize(gathered.len(), 0.);
            expert.forward(pool, &gathered, rows.len(), [&mut *gate, &mut *up], &mut given)?;
            for ((row, share), y) in rows.iter().zip(given.chunks_exact(width)) {
                let sum = &mut out[row * width..(row + 1) * width];
                sum.iter_mut().zip(y).for_each(|(sum, y)| *sum += y * share);
            }
        }
        Ok(())
    }

    /// The experts with the largest shares, the first of equal ones first.
    fn choose(&self, shares: &[f32]) -> Vec<(usize, f32)> {
        let mut all: Vec<(usize, f32)> = shares.iter().copied().enumerate().collect();
        all.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        all.truncate(self.experts_per_token);
        let total: f32 = all.iter().map(|(_, share)| share).sum();
        if self.normalise_weights {
            all.iter_mut().for_each(|(_, share)| *share /= total);
        }
        all
    }
}

/// Scores to shares of one, in place.
fn softmax(scores: &mut [f32]) {
    let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    scores.iter_mut().for_each(|score| *score = (*score - most).exp());
    let total: f32 = scores.iter().sum();
    scores.iter_mut().for_each(|score| *score /= total);
}

/// An expert's tensors: its own, or its rows of those that hold all experts'.
fn load_expert(
    loader: &Loader<'_>,
    config: &DecoderConfig,
    sizes: &MoeConfig,
    block: usize,
    expert: usize,
) -> Result<Mlp> {
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
    Mlp::load(loader, config, [&gate, &up, &places("down", config.width)], sizes.inner)
}
