//! The one type behind every matrix product of the decoder.

use std::sync::Arc;

use outpost_kernels::{self as kernels, Activations, Pool, matmul_all};
use smallvec::SmallVec;

use super::error::{ModelError, Result};
use super::weights::Rows;

/// `y = x Wᵀ + b` with the weight as the checkpoint has it. Clones share the weight.
#[derive(Clone, Debug)]
pub(super) struct Linear(Arc<kernels::Linear>);

impl Linear {
    /// Reads `weight`, `[out, in]`, with the threads of `pool`; `bias`: `[out]`.
    pub fn new(pool: &Pool, weight: &Rows<'_>, bias: Option<Vec<f32>>) -> Result<Self> {
        let Rows { dtype, count, columns, .. } = *weight;
        let read = |first: usize, to: &mut [u8]| weight.read(first, to);
        let weight = kernels::Linear::pack(pool, dtype, count, columns, read)?;
        let weight = if let Some(bias) = bias { weight.with_bias(&bias)? } else { weight };
        Ok(Self(Arc::new(weight)))
    }

    /// Tells this weight from all others in memory.
    pub fn id(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Numbers that a row of results has.
    pub fn rows(&self) -> usize {
        self.0.n()
    }

    /// `x`: `[m, in]`; `out`: `[m, out]`.
    pub fn forward(&self, pool: &Pool, x: &[f32], m: usize, out: &mut [f32]) -> Result<()> {
        Self::forward_all(pool, x, m, &mut [(self, out)])
    }

    /// Several products of the same `x`, which is made ready once.
    pub fn forward_all(pool: &Pool, x: &[f32], m: usize, all: &mut [(&Self, &mut [f32])]) -> Result<()> {
        let k = x.len() / m.max(1);
        let mut products: SmallVec<[_; 4]> = SmallVec::with_capacity(all.len());
        for (Self(weight), out) in all {
            if weight.k() != k {
                return Err(ModelError::Compute(format!("{weight:?} does not take {k} numbers")));
            }
            products.push((weight.as_ref(), &mut **out));
        }
        matmul_all(&Activations::new(pool, x, m, k), &mut products);
        Ok(())
    }

    /// The weight's rows of these numbers, as f32: `out` is `[ids, in]`.
    pub fn embedding(&self, ids: &[u32], out: &mut [f32]) -> Result<()> {
        let weight = &self.0;
        for (id, row) in ids.iter().zip(out.chunks_exact_mut(weight.k())) {
            match *id as usize {
                id if id < weight.n() => weight.row(id, row),
                id => return Err(ModelError::Compute(format!("the embedding has no row {id}"))),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use candle_core::quantized::{GgmlDType, QTensor};
    use candle_core::{Device, Tensor};
    use outpost_kernels::DType;

    use super::*;

    const KINDS: [(GgmlDType, DType); 13] = [
        (GgmlDType::F32, DType::F32),
        (GgmlDType::F16, DType::F16),
        (GgmlDType::BF16, DType::BF16),
        (GgmlDType::Q8_0, DType::Q8_0),
        (GgmlDType::Q4_0, DType::Q4_0),
        (GgmlDType::Q4_1, DType::Q4_1),
        (GgmlDType::Q5_0, DType::Q5_0),
        (GgmlDType::Q5_1, DType::Q5_1),
        (GgmlDType::Q2K, DType::Q2K),
        (GgmlDType::Q3K, DType::Q3K),
        (GgmlDType::Q4K, DType::Q4K),
        (GgmlDType::Q5K, DType::Q5K),
        (GgmlDType::Q6K, DType::Q6K),
    ];

    #[test]
    fn every_type_computes_as_if_it_were_widened() {
        let (rows, columns) = (50, 512);
        let numbers = (0..rows * columns).map(|one| (one as f32 * 0.37).sin()).collect::<Vec<_>>();
        let wide = Tensor::from_vec(numbers, (rows, columns), &Device::Cpu).unwrap();
        let x = wide.narrow(0, 7, 3).unwrap();
        let bias = Tensor::arange(0f32, rows as f32, &Device::Cpu).unwrap();
        let pool = Pool::new(2);
        let flat = |one: &Tensor| one.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        for (theirs, dtype) in KINDS {
            let weight = QTensor::quantize(&wide, theirs).unwrap();
            let widened = weight.dequantize(&Device::Cpu).unwrap();
            let expected = flat(&x.matmul(&widened.t().unwrap()).unwrap().broadcast_add(&bias).unwrap());
            let weight = Rows::from_bytes(dtype, rows, columns, weight.data().unwrap().into_owned()).unwrap();
            assert_eq!(weight.floats().unwrap(), flat(&widened), "{dtype:?}");
            let linear = Linear::new(&pool, &weight, Some(flat(&bias))).unwrap();
            let mut found = vec![f32::NAN; 3 * rows];
            linear.forward(&pool, &flat(&x), 3, &mut found).unwrap();
            let far = found.iter().zip(&expected).map(|(one, other)| (one - other).abs()).fold(0., f32::max);
            assert!(far < 2., "{dtype:?}: {far} of sums of 256");
            let mut found = vec![f32::NAN; 2 * columns];
            linear.embedding(&[3, 49], &mut found).unwrap();
            let ids = Tensor::new(&[3u32, 49], &Device::Cpu).unwrap();
            assert_eq!(found, flat(&widened.index_select(&ids, 0).unwrap()));
            assert!(linear.embedding(&[50], &mut found).is_err());
        }
    }
}
