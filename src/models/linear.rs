//! The one type behind every matrix product of the decoder.

use std::borrow::Cow;
use std::sync::Arc;

use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{Device, Module, Result, Tensor};
use outpost_kernels::{self as kernels, Activations, Kind, Pool, apply_all};

use super::ops::numbers;

/// `y = x Wᵀ + b` with the weight as the checkpoint has it. Clones share the weight.
#[derive(Clone, Debug)]
pub(super) struct Linear {
    weight: Weight,
    rows: usize,
    bias: Option<Vec<f32>>,
}

#[derive(Clone, Debug)]
enum Weight {
    /// Packed for our kernels.
    Packed(Arc<kernels::Linear>),
    /// A type that only candle computes with.
    Candle(QMatMul),
}

/// Our name of a type; `None`: there is no kernel for it.
fn kind(of: GgmlDType) -> Option<Kind> {
    Some(match of {
        GgmlDType::F32 => Kind::F32,
        GgmlDType::F16 => Kind::F16,
        GgmlDType::BF16 => Kind::BF16,
        GgmlDType::Q8_0 => Kind::Q8_0,
        GgmlDType::Q4_0 => Kind::Q4_0,
        GgmlDType::Q4_1 => Kind::Q4_1,
        GgmlDType::Q5_0 => Kind::Q5_0,
        GgmlDType::Q5_1 => Kind::Q5_1,
        GgmlDType::Q4K => Kind::Q4K,
        GgmlDType::Q5K => Kind::Q5K,
        GgmlDType::Q6K => Kind::Q6K,
        _ => return None,
    })
}

/// Bytes that a weight of this type and `[out, in]` takes in memory.
pub(super) fn weight_bytes(of: GgmlDType, rows: usize, columns: usize) -> usize {
    match kind(of) {
        Some(kind) => kernels::Linear::packed_bytes(kind, rows, columns),
        None => columns / of.block_size() * of.type_size() * rows,
    }
}

impl Linear {
    /// `weight`: `[out, in]`; `bias`: `[out]`.
    pub fn new(weight: QTensor, bias: Option<Tensor>) -> Result<Self> {
        let (rows, columns) = weight.shape().dims2()?;
        let weight = match kind(weight.dtype()) {
            Some(kind) => {
                let bytes: Cow<'_, [u8]> = weight.data()?;
                let packed =
                    kernels::Linear::from_gguf(kind, rows, columns, &bytes).map_err(candle_core::Error::wrap)?;
                Weight::Packed(Arc::new(packed))
            }
            None => Weight::Candle(QMatMul::from_qtensor(weight)?),
        };
        let bias = bias.map(|bias| bias.to_vec1()).transpose()?;
        Ok(Self { weight, rows, bias })
    }

    /// `x`: `[rows, in]`; gives `[rows, out]`.
    pub fn forward(&self, pool: &Pool, x: &Tensor) -> Result<Tensor> {
        match Self::together(pool, x, &[self])?.pop() {
            Some(y) => Ok(y),
            None => candle_core::bail!("a product without a result"),
        }
    }

    /// Several products of the same `x`, which is made ready once.
    pub fn together(pool: &Pool, x: &Tensor, all: &[&Self]) -> Result<Vec<Tensor>> {
        let (m, k) = x.dims2()?;
        let packed: Option<Vec<&kernels::Linear>> = all.iter().map(|one| one.packed()).collect();
        let Some(packed) = packed else { return all.iter().map(|one| one.alone(pool, x)).collect() };
        if let Some(other) = packed.iter().find(|one| one.k() != k) {
            candle_core::bail!("{other:?} does not take {k} numbers");
        }
        let mut outs: Vec<Vec<f32>> = packed.iter().map(|one| vec![0.; m * one.n()]).collect();
        numbers(x, |x| {
            let mut products: Vec<_> = packed.iter().zip(&mut outs).map(|(one, out)| (*one, &mut out[..])).collect();
            apply_all(pool, &Activations::new(pool, x, m, k), &mut products);
        })?;
        let done =
            outs.into_iter().zip(all).map(|(out, one)| Tensor::from_vec(one.biased(out), (m, one.rows), &Device::Cpu));
        done.collect()
    }

    fn packed(&self) -> Option<&kernels::Linear> {
        match &self.weight {
            Weight::Packed(weight) => Some(weight),
            Weight::Candle(_) => None,
        }
    }

    fn alone(&self, pool: &Pool, x: &Tensor) -> Result<Tensor> {
        match &self.weight {
            Weight::Packed(_) => self.forward(pool, x),
            Weight::Candle(weight) => {
                let y = self.biased(weight.forward(x)?.flatten_all()?.to_vec1()?);
                Tensor::from_vec(y, (x.dim(0)?, self.rows), &Device::Cpu)
            }
        }
    }

    fn biased(&self, mut y: Vec<f32>) -> Vec<f32> {
        if let Some(bias) = &self.bias {
            y.chunks_exact_mut(self.rows).for_each(|row| row.iter_mut().zip(bias).for_each(|(y, b)| *y += b));
        }
        y
    }

    /// The weight's rows of these numbers, as f32: `[ids, in]`.
    pub fn embedding(&self, ids: &[u32]) -> Result<Tensor> {
        let weight = match &self.weight {
            Weight::Packed(weight) => weight,
            Weight::Candle(weight) => return weight.embedding(&Tensor::new(ids, &Device::Cpu)?),
        };
        let mut out = vec![0.; ids.len() * weight.k()];
        for (id, row) in ids.iter().zip(out.chunks_exact_mut(weight.k())) {
            match *id as usize {
                id if id < weight.n() => weight.row(id, row),
                id => candle_core::bail!("the embedding has no row {id}"),
            }
        }
        Tensor::from_vec(out, (ids.len(), weight.k()), &Device::Cpu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_computes_as_if_it_were_widened() {
        let (rows, columns) = (50, 512);
        let numbers = (0..rows * columns).map(|one| (one as f32 * 0.37).sin()).collect::<Vec<_>>();
        let wide = Tensor::from_vec(numbers, (rows, columns), &Device::Cpu).unwrap();
        let x = wide.narrow(0, 7, 3).unwrap();
        let bias = Tensor::arange(0f32, rows as f32, &Device::Cpu).unwrap();
        let pool = Pool::new(2);
        for kind in [GgmlDType::F32, GgmlDType::F16, GgmlDType::BF16, GgmlDType::Q8_0, GgmlDType::Q6K, GgmlDType::Q3K] {
            let weight = QTensor::quantize(&wide, kind).unwrap();
            let widened = weight.dequantize(&Device::Cpu).unwrap();
            let expected = x.matmul(&widened.t().unwrap()).unwrap().broadcast_add(&bias).unwrap();
            let linear = Linear::new(weight, Some(bias.clone())).unwrap();
            let far = |one: &Tensor, other: &Tensor| {
                (one - other).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap()
            };
            assert!(far(&linear.forward(&pool, &x).unwrap(), &expected) < 2., "{kind:?}: of sums of 256");
            let ids = Tensor::new(&[3u32, 49], &Device::Cpu).unwrap();
            assert_eq!(far(&linear.embedding(&[3, 49]).unwrap(), &widened.index_select(&ids, 0).unwrap()), 0.);
            assert!(linear.embedding(&[50]).is_err());
        }
    }
}
