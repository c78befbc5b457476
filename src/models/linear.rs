//! The one type behind every matrix product of the decoder.

use std::sync::Arc;

use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{Device, Module, Result, Tensor};

/// `y = x Wᵀ + b` with the weight as the checkpoint has it. Clones share the weight.
#[derive(Clone, Debug)]
pub(super) struct Linear {
    weight: Weight,
    bias: Option<Tensor>,
}

#[derive(Clone, Debug)]
enum Weight {
    Float(Tensor),
    /// 16-bit floats stay so in memory and are widened strip by strip as they are used.
    Half(Arc<QTensor>),
    Quantised(QMatMul),
}

/// From this many rows on it is faster to widen a quantised weight to f32, once for all rows, and
/// multiply in f32 than to take candle's quantised dot products, which are scalar for most types.
const WIDEN_FROM: usize = 8;
/// Numbers of a strip: its f32 copy stays in a core's second-level cache.
const STRIP: usize = 1 << 17;

impl Linear {
    /// `weight`: `[out, in]`; `bias`: `[out]`.
    pub fn new(weight: QTensor, bias: Option<Tensor>) -> Result<Self> {
        let weight = match weight.dtype() {
            GgmlDType::F32 => Weight::Float(weight.dequantize(&Device::Cpu)?),
            GgmlDType::F16 | GgmlDType::BF16 => Weight::Half(Arc::new(weight)),
            _ => Weight::Quantised(QMatMul::from_qtensor(weight)?),
        };
        Ok(Self { weight, bias })
    }

    /// `x`: `[rows, in]`; gives `[rows, out]`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = match &self.weight {
            Weight::Float(weight) => x.matmul(&weight.t()?)?,
            Weight::Half(weight) => in_strips(x, weight)?,
            Weight::Quantised(QMatMul::QTensor(weight)) if x.dim(0)? >= WIDEN_FROM => {
                x.matmul(&weight.dequantize(&Device::Cpu)?.t()?)?
            }
            Weight::Quantised(weight) => weight.forward(x)?,
        };
        match &self.bias {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }

    /// The weight's rows of these numbers, as f32: `[ids, in]`.
    pub fn embedding(&self, ids: &Tensor) -> Result<Tensor> {
        match &self.weight {
            Weight::Float(weight) => weight.index_select(ids, 0),
            Weight::Half(weight) => weight.embedding(ids),
            Weight::Quantised(weight) => weight.embedding(ids),
        }
    }
}

fn in_strips(x: &Tensor, weight: &QTensor) -> Result<Tensor> {
    let (rows, columns) = weight.shape().dims2()?;
    let step = (STRIP / columns).max(1);
    let mut parts = Vec::with_capacity(rows.div_ceil(step));
    for first in (0..rows).step_by(step) {
        let ids = Tensor::arange(first as u32, rows.min(first + step) as u32, &Device::Cpu)?;
        parts.push(x.matmul(&weight.embedding(&ids)?.t()?)?);
    }
    Tensor::cat(&parts, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_bit_weights_compute_as_if_they_were_widened() {
        let (rows, columns) = (STRIP / 512 * 2 + 3, 512);
        let numbers = (0..rows * columns).map(|one| (one as f32 * 0.37).sin()).collect::<Vec<_>>();
        let wide = Tensor::from_vec(numbers, (rows, columns), &Device::Cpu).unwrap();
        let x = wide.narrow(0, 7, 3).unwrap().contiguous().unwrap();
        for kind in [GgmlDType::F16, GgmlDType::BF16] {
            let half = QTensor::quantize(&wide, kind).unwrap();
            let expected = x.matmul(&half.dequantize(&Device::Cpu).unwrap().t().unwrap()).unwrap();
            let given = Linear::new(half, None).unwrap().forward(&x).unwrap();
            let far = (given - expected).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
            assert!(far < 1e-3, "{far}");
        }
    }

    #[test]
    fn quantised_weights_compute_like_their_widened_selves() {
        use GgmlDType::{Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
        let numbers = (0..32 * 512).map(|one| (one as f32 * 0.37).sin()).collect::<Vec<_>>();
        let wide = Tensor::from_vec(numbers, (32, 512), &Device::Cpu).unwrap();
        for kind in [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K] {
            // Few rows are rounded to 8 bits themselves; the sums are of some 250.
            for (rows, within) in [(WIDEN_FROM, 1e-3), (1, 3.)] {
                let x = wide.narrow(0, 7, rows).unwrap();
                let weight = QTensor::quantize(&wide, kind).unwrap();
                let expected = x.matmul(&weight.dequantize(&Device::Cpu).unwrap().t().unwrap()).unwrap();
                let given = Linear::new(weight, None).unwrap().forward(&x).unwrap();
                let far = (given - expected).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
                assert!(far < within, "{kind:?}, {rows} rows: {far}");
            }
        }
    }
}
