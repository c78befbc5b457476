//! Matrix products.

use outpost_kernels::{self as kernels, Activations, Linear, matmul_all};
use smallvec::SmallVec;

use super::device::{Cpu, MIN_ROWS};
use crate::backend::checks;
use crate::backend::interface::{Backend, FeedForward, LowRankUpdate, Matrix, Tensor};
use crate::backend::types::Pool;
use crate::error::{ModelError, Result};
use crate::weights::Rows;

/// Elements of the hidden layer of a feed-forward network that are computed between two pauses. They fit in the cache.
const HIDDEN_ELEMENTS: usize = 2 << 20;

/// Reads and packs a weight.
pub fn read(pool: &Pool, weight: &Rows<'_>, bias: Option<&[f32]>) -> Result<Linear> {
    let Rows { dtype, count, columns, .. } = *weight;
    let linear = Linear::pack(pool, dtype, count, columns, |first, out: &mut [u8]| weight.read(first, out))?;
    match bias {
        Some(bias) => Ok(linear.with_bias(bias)?),
        None => Ok(linear),
    }
}

/// Reads and packs the first matrix of a low-rank update.
pub fn read_low_rank(pool: &Pool, weight: &Rows<'_>) -> Result<Linear> {
    let Rows { dtype, count, columns, .. } = *weight;
    Linear::pack_low_rank(pool, dtype, count, columns, |first, out: &mut [u8]| weight.read(first, out))
}

/// Dequantises the rows `ids` of a weight.
pub fn embedding(cpu: &Cpu, weight: &Linear, ids: &[u32]) -> Result<Tensor<Cpu>> {
    checks::embedding_rows(weight, ids)?;
    let mut out = cpu.alloc([1, ids.len(), 1, weight.k()]);
    for (id, row) in ids.iter().zip(out.data_mut().chunks_exact_mut(weight.k())) {
        weight.row(*id as usize, row);
    }
    Ok(out)
}

/// Multiplies `x`, `[m, in]`, by several weights; `x` is quantised only once. Outputs are `[m, out]`.
fn matmuls(cpu: &Cpu, x: &[f32], m: usize, products: &mut [(&Linear, &mut [f32])]) -> Result<()> {
    let k = x.len() / m.max(1);
    let mut checked: SmallVec<[_; 4]> = SmallVec::with_capacity(products.len());
    for (weight, out) in products {
        if weight.k() != k || weight.is_paired() {
            return Err(ModelError::Compute(format!("{weight:?} does not take {k} inputs")));
        }
        checked.push((*weight, &mut **out));
    }
    matmul_all(&Activations::new(&cpu.pool, x, m, k), &mut checked);
    Ok(())
}

pub fn linears<const N: usize>(cpu: &Cpu, weights: [&Linear; N], x: &Tensor<Cpu>) -> Result<[Tensor<Cpu>; N]> {
    let mut outs = weights.map(|weight| cpu.alloc_like(x, weight.rows()));
    let outputs: usize = weights.iter().map(|weight| weight.rows()).sum();
    let rows = cpu.matmul_rows(outputs * x.channels).min(x.rows()).max(1);
    for first in (0..x.rows()).step_by(rows) {
        let m = rows.min(x.rows() - first);
        let input = &x.data()[first * x.channels..][..m * x.channels];
        let mut products: SmallVec<[_; 4]> = SmallVec::with_capacity(N);
        for (weight, out) in weights.iter().zip(&mut outs) {
            let width = weight.rows();
            products.push((*weight, &mut out.data_mut()[first * width..][..m * width]));
        }
        matmuls(cpu, input, m, &mut products)?;
        cpu.pause()?;
    }
    Ok(outs)
}

/// Adds updates to the products of `x` with several weights.
pub fn add_low_rank(
    cpu: &Cpu,
    updates: &[LowRankUpdate<'_, Cpu>],
    x: &Tensor<Cpu>,
    outs: &mut [Tensor<Cpu>],
) -> Result<()> {
    checks::low_rank(updates, x, outs)?;
    let mut kernel_updates: SmallVec<[kernels::LowRankUpdate<'_>; 32]> = SmallVec::with_capacity(updates.len());
    for LowRankUpdate { output, rows, down, up, scale } in updates {
        if down.dtype().is_quantised() || up.dtype().is_quantised() {
            return Err(ModelError::Compute(format!("{down:?} or {up:?} is quantised")));
        }
        let rows = rows.clone();
        kernel_updates.push(kernels::LowRankUpdate { output: *output, rows, down, up, scale: *scale });
    }
    let scratch_len = kernel_updates.iter().map(kernels::LowRankUpdate::scratch_len).sum();
    let mut scratch = cpu.alloc([1, 1, 1, scratch_len]);
    let mut outs: SmallVec<[_; 4]> = outs.iter_mut().map(Tensor::data_mut).collect();
    kernels::add_low_rank(&cpu.pool, x.data(), x.channels, &kernel_updates, &mut outs, scratch.data_mut());
    cpu.pause()
}

/// Computes some rows at a time, because the hidden layer is wide.
pub fn feed_forward(cpu: &Cpu, mlp: FeedForward<'_, Cpu>, x: &Tensor<Cpu>) -> Result<Tensor<Cpu>> {
    let FeedForward { gate, up, down, activation } = mlp;
    let (width, inner) = (x.channels.max(1), up.rows().max(1));
    let rows = match cpu.request {
        Some(_) => (HIDDEN_ELEMENTS / inner).clamp(1, cpu.chunk_rows(inner * width)).next_multiple_of(MIN_ROWS),
        None => usize::MAX,
    };
    let rows = rows.min(x.rows()).max(1);
    let mut up_out = cpu.alloc([1, rows, 1, inner]);
    let mut gate_out = gate.is_some().then(|| cpu.alloc([1, rows, 1, inner]));
    let mut out = cpu.alloc_like(x, down.rows());
    for (x, out) in x.data().chunks(rows * width).zip(out.data_mut().chunks_mut(rows * down.rows())) {
        let m = x.len() / width;
        let up_out = up_out.prefix_mut(m * inner);
        let hidden = match (gate, &mut gate_out) {
            (Some(gate), Some(gate_out)) => {
                let gate_out = gate_out.prefix_mut(m * inner);
                matmuls(cpu, x, m, &mut [(gate, &mut *gate_out), (up, &mut *up_out)])?;
                kernels::activate(&cpu.pool, activation, gate_out, Some(up_out));
                gate_out
            }
            _ => {
                matmuls(cpu, x, m, &mut [(up, &mut *up_out)])?;
                kernels::activate(&cpu.pool, activation, up_out, None);
                up_out
            }
        };
        cpu.pause()?;
        matmuls(cpu, hidden, m, &mut [(down, out)])?;
        cpu.pause()?;
    }
    Ok(out)
}
