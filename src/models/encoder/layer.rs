//! One encoder layer, post-norm (BERT) or pre-norm (ModernBERT).

use outpost_kernels::Pool;

use super::config::EncoderConfig;
use crate::models::error::Result;
use crate::models::linear::Linear;
use crate::models::mlp::Mlp;
use crate::models::norm::Norm;
use crate::models::scratch::{Scratch, grow};
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
    /// Normalise the sum of residual stream and sublayer.
    After { attention: Norm, feed_forward: Norm },
    /// Normalise a sublayer's input. ModernBERT's first layer has no attention norm.
    Before { attention: Option<Norm>, feed_forward: Norm },
}

/// The residual stream between layers: `[tokens, width]` each.
#[derive(Debug, Default)]
pub(super) struct ResidualStream {
    pub x: Vec<f32>,
    /// With pre-norms, the last sublayer's output, which the next norm adds.
    pub y: Vec<f32>,
}

impl Layer {
    pub fn load(loader: &Loader<'_>, config: &EncoderConfig, index: usize) -> Result<Self> {
        let EncoderConfig { width, inner, biases, epsilon, .. } = *config;
        let stem = |part: &str| format!("blk.{index}.{part}");
        let norm = |part: &str| Norm::load_layer_norm(loader, &stem(part), width, epsilon);
        let norms = match config.pre_norm {
            false => Norms::After { attention: norm("attn_output_norm")?, feed_forward: norm("layer_output_norm")? },
            true => Norms::Before {
                attention: (index > 0).then(|| norm("attn_norm")).transpose()?,
                feed_forward: norm("ffn_norm")?,
            },
        };
        let projection = |part: &str, place: usize| {
            let fused = Candidate { stem: stem("attn_qkv"), first: place * width, total: 3 * width };
            loader.linear(&[Candidate::whole(stem(part), width), fused], width, width, biases)
        };
        // In a fused tensor, the gate comes before up.
        let half = |part: &str, first: usize| {
            let fused = Candidate { stem: stem("ffn_gate_up"), first, total: 2 * inner };
            loader.linear(&[Candidate::whole(stem(part), inner), fused], inner, width, biases)
        };
        let whole =
            |part: &str, rows, columns| loader.linear(&[Candidate::whole(stem(part), rows)], rows, columns, biases);
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

    /// Queries, keys and values of `m` tokens, before rotation.
    pub fn project(&self, pool: &Pool, m: usize, stream: &mut ResidualStream, scratch: &mut Scratch) -> Result<()> {
        let Scratch { normed, q, k, v, .. } = scratch;
        let len = m * self.attn_output.rows();
        let input = match &self.norms {
            Norms::Before { attention: Some(norm), .. } => {
                norm.add_forward(pool, grow(&mut stream.x, len), grow(&mut stream.y, len), grow(normed, len));
                grow(normed, len)
            }
            Norms::Before { attention: None, .. } | Norms::After { .. } => grow(&mut stream.x, len),
        };
        let mut all = [(&self.attn_q, grow(q, len)), (&self.attn_k, grow(k, len)), (&self.attn_v, grow(v, len))];
        Linear::forward_all(pool, input, m, &mut all)
    }

    /// The rest of the layer after attention, whose output is in `mixed`.
    pub fn finish(&self, pool: &Pool, m: usize, stream: &mut ResidualStream, scratch: &mut Scratch) -> Result<()> {
        let Scratch { normed, mixed, y, gate, up, .. } = scratch;
        let len = m * self.attn_output.rows();
        let y = grow(y, len);
        self.attn_output.forward(pool, grow(mixed, len), m, y)?;
        match &self.norms {
            Norms::After { attention, feed_forward } => {
                attention.add_forward_in_place(pool, &mut stream.x, y, normed);
                self.mlp.forward(pool, grow(&mut stream.x, len), m, [gate, up], y)?;
                feed_forward.add_forward_in_place(pool, &mut stream.x, y, normed);
            }
            Norms::Before { feed_forward, .. } => {
                let normed = grow(normed, len);
                feed_forward.add_forward(pool, grow(&mut stream.x, len), y, normed);
                self.mlp.forward(pool, normed, m, [gate, up], grow(&mut stream.y, len))?;
            }
        }
        Ok(())
    }
}
