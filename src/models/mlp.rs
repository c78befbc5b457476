//! Feed-forward networks with a gate (GLU: Shazeer 2020, <https://arxiv.org/abs/2002.05202>) or without.

use outpost_kernels::{self as kernels, Pool};

use super::decoder_config::DecoderConfig;
use super::decoder_family::Activation;
use super::error::Result;
use super::linear::Linear;
use super::scratch_buffers::grow;
use super::weights::{Candidate, Loader};

/// `down(activation(gate(x)) * up(x))`, or `down(activation(up(x)))` without a gate.
#[derive(Debug)]
pub(super) struct Mlp {
    pub gate: Option<Linear>,
    pub up: Linear,
    pub down: Linear,
    pub activation: Activation,
}

impl Mlp {
    /// Loads the network of a dense decoder layer. Phi-3 fuses the gate and up projections in one tensor, gate first,
    /// which GGUF calls `ffn_up`.
    pub fn load_dense(loader: &Loader<'_>, config: &DecoderConfig, layer: usize) -> Result<Self> {
        let inner = config.inner;
        let stem = |suffix: &str| format!("blk.{layer}.{suffix}");
        let whole = |suffix: &str| [stem(suffix), stem(suffix)].map(|stem| Candidate::whole(stem, inner));
        let half = |suffix: &str, first: usize| Candidate { stem: stem(suffix), first, total: 2 * inner };
        let (gate, up) = match config.family.fused_gate_up {
            true => ([half("ffn_gate_up", 0), half("ffn_up", 0)], [half("ffn_gate_up", inner), half("ffn_up", inner)]),
            false => (whole("ffn_gate"), whole("ffn_up")),
        };
        Self::load(loader, config, [&gate, &up, &[Candidate::whole(stem("ffn_down"), config.width)]], inner)
    }

    /// Loads the network from the candidates for gate, up and down.
    pub fn load(
        loader: &Loader<'_>,
        config: &DecoderConfig,
        [gate, up, down]: [&[Candidate]; 3],
        inner: usize,
    ) -> Result<Self> {
        Ok(Self {
            gate: Some(loader.linear(gate, inner, config.width, false)?),
            up: loader.linear(up, inner, config.width, false)?,
            down: loader.linear(down, config.width, inner, false)?,
            activation: config.activation,
        })
    }

    /// `x` and `out` are `[m, width]`; `gate` and `up` are scratch buffers.
    pub fn forward(
        &self,
        pool: &Pool,
        x: &[f32],
        m: usize,
        [gate, up]: [&mut Vec<f32>; 2],
        out: &mut [f32],
    ) -> Result<()> {
        let len = m * self.up.rows();
        let (gate, up) = (grow(gate, len), grow(up, len));
        let inner = match &self.gate {
            Some(weight) => {
                Linear::forward_all(pool, x, m, &mut [(weight, &mut *gate), (&self.up, &mut *up)])?;
                kernels::activate(pool, self.activation, gate, Some(up));
                gate
            }
            None => {
                self.up.forward(pool, x, m, up)?;
                kernels::activate(pool, self.activation, up, None);
                up
            }
        };
        self.down.forward(pool, inner, m, out)
    }
}
