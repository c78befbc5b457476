//! One encoder layer, post-norm (BERT) or pre-norm (ModernBERT).

use outpost_kernels::Pool;

use super::config::EncoderConfig;
use crate::models::error::Result;
use crate::models::linear::Linear;
use crate::models::mlp::Mlp;
use crate::models::norm::Norm;
use crate::models::scratch_buffers::{ScratchBuffers, grow};
use crate::models::weights::{Candidate, Loader};

#[derive(Debug)]
pub(super) struct Layer {
    norms: Norms,
    attn_q: Linear,
    attn_k: Linear,
    attn_v: Linear,
    attn_output: Linear,
    mlp: Mlp,
}

#[derive(Debug)]
enum Norms {
    /// Normalize the sum of residual stream and sublayer output.
    Post { attention: Norm, feed_forward: Norm },
    /// Normalize a sublayer's input. ModernBERT's first layer has no attention norm.
    Pre { attention: Option<Norm>, feed_forward: Norm },
}

/// The residual stream between layers: `[tokens, width]` each.
#[derive(Debug, Default)]
pub(super) struct ResidualStream {
    pub x: Vec<f32>,
    /// With pre-norm, the last sublayer's output, which the next norm adds.
    pub y: Vec<f32>,
}

impl Layer {
    pub fn load(loader: &Loader<'_>, config: &EncoderConfig, index: usize) -> Result<Self> {
        let EncoderConfig { width, inner, biases, epsilon, .. } = *config;
        let stem = |suffix: &str| format!("blk.{index}.{suffix}");
        let norm = |suffix: &str| Norm::load_layer_norm(loader, &stem(suffix), width, epsilon);
        let norms = match config.pre_norm {
            false => Norms::Post { attention: norm("attn_output_norm")?, feed_forward: norm("layer_output_norm")? },
            true => Norms::Pre {
                attention: (index > 0).then(|| norm("attn_norm")).transpose()?,
                feed_forward: norm("ffn_norm")?,
            },
        };
        let projection = |suffix: &str, index: usize| {
            let fused = Candidate { stem: stem("attn_qkv"), first: index * width, total: 3 * width };
            loader.linear(&[Candidate::whole(stem(suffix), width), fused], width, width, biases)
        };
        // In a fused tensor, the gate comes before up.
        let half = |suffix: &str, first: usize| {
            let fused = Candidate { stem: stem("ffn_gate_up"), first, total: 2 * inner };
            loader.linear(&[Candidate::whole(stem(suffix), inner), fused], inner, width, biases)
        };
        let whole =
            |suffix: &str, rows, columns| loader.linear(&[Candidate::whole(stem(suffix), rows)], rows, columns, biases);
        Ok(Self {
            norms,
            attn_q: projection("attn_q", 0)?,
            attn_k: projection("attn_k", 1)?,
            attn_v: projection("attn_v", 2)?,
            attn_output: whole("attn_output", width, width)?,
            mlp: Mlp {
                gate: config.gated.then(|| half("ffn_gate", 0)).transpose()?,
                up: half("ffn_up", inner)?,
                down: whole("ffn_down", width, inner)?,
                activation: config.activation,
            },
        })
    }

    /// Computes queries, keys and values of `m` tokens, before RoPE.
    pub fn project(
        &self,
        pool: &Pool,
        m: usize,
        stream: &mut ResidualStream,
        scratch: &mut ScratchBuffers,
    ) -> Result<()> {
        let ScratchBuffers { normed, q, k, v, .. } = scratch;
        let len = m * self.attn_output.rows();
        let input = match &self.norms {
            Norms::Pre { attention: Some(norm), .. } => {
                norm.add_forward(pool, grow(&mut stream.x, len), grow(&mut stream.y, len), grow(normed, len));
                grow(normed, len)
            }
            Norms::Pre { attention: None, .. } | Norms::Post { .. } => grow(&mut stream.x, len),
        };
        let mut products = [(&self.attn_q, grow(q, len)), (&self.attn_k, grow(k, len)), (&self.attn_v, grow(v, len))];
        Linear::forward_all(pool, input, m, &mut products)
    }

    /// Computes the rest of the layer after attention, whose output is in `attention`.
    pub fn finish(
        &self,
        pool: &Pool,
        m: usize,
        stream: &mut ResidualStream,
        scratch: &mut ScratchBuffers,
    ) -> Result<()> {
        let ScratchBuffers { normed, attention: output, y, gate, up, .. } = scratch;
        let len = m * self.attn_output.rows();
        let y = grow(y, len);
        self.attn_output.forward(pool, grow(output, len), m, y)?;
        match &self.norms {
            Norms::Post { attention, feed_forward } => {
                attention.add_forward_in_place(pool, &mut stream.x, y, normed);
                self.mlp.forward(pool, grow(&mut stream.x, len), m, [gate, up], y)?;
                feed_forward.add_forward_in_place(pool, &mut stream.x, y, normed);
            }
            Norms::Pre { feed_forward, .. } => {
                let normed = grow(normed, len);
                feed_forward.add_forward(pool, grow(&mut stream.x, len), y, normed);
                self.mlp.forward(pool, normed, m, [gate, up], grow(&mut stream.y, len))?;
            }
        }
        Ok(())
    }
}
