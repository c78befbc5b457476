//! Linear layers.

use std::sync::Arc;

use outpost_kernels::{self as kernels, Activations, Pool, matmul_all};
use smallvec::SmallVec;

use super::error::{ModelError, Result};
use super::weights::Rows;

/// `y = x Wᵀ + b`, with the weight in the checkpoint's type. Clones share the weight.
#[derive(Clone, Debug)]
pub(super) struct Linear(Arc<kernels::Linear>);

impl Linear {
    /// Reads `weight`, `[out, in]`, with the threads of `pool`; `bias` is `[out]`.
    pub fn new(pool: &Pool, weight: &Rows<'_>, bias: Option<Vec<f32>>) -> Result<Self> {
        let Rows { dtype, count, columns, .. } = *weight;
        let read = |first: usize, out: &mut [u8]| weight.read(first, out);
        let weight = kernels::Linear::pack(pool, dtype, count, columns, read)?;
        let weight = if let Some(bias) = bias { weight.with_bias(&bias)? } else { weight };
        Ok(Self(Arc::new(weight)))
    }

    /// Identifies the weight among all weights in memory.
    pub fn id(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// The number of outputs: rows of the weight.
    pub fn rows(&self) -> usize {
        self.0.n()
    }

    /// `x` is `[m, in]`, and `out` is `[m, out]`.
    pub fn forward(&self, pool: &Pool, x: &[f32], m: usize, out: &mut [f32]) -> Result<()> {
        Self::forward_all(pool, x, m, &mut [(self, out)])
    }

    /// Multiplies `x` by several weights; `x` is quantised only once.
    pub fn forward_all(pool: &Pool, x: &[f32], m: usize, layers: &mut [(&Self, &mut [f32])]) -> Result<()> {
        let k = x.len() / m.max(1);
        let mut products: SmallVec<[_; 4]> = SmallVec::with_capacity(layers.len());
        for (Self(weight), out) in layers {
            if weight.k() != k {
                return Err(ModelError::Compute(format!("{weight:?} does not take {k} inputs")));
            }
            products.push((weight.as_ref(), &mut **out));
        }
        matmul_all(&Activations::new(pool, x, m, k), &mut products);
        Ok(())
    }

    /// Dequantises the rows `ids` of the weight; `out` is `[ids, in]`.
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

    const DTYPES: [(GgmlDType, DType); 13] = [
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
    fn every_type_computes_like_its_dequantised_weights() {
        let (rows, columns) = (50, 512);
        let values = (0..rows * columns).map(|i| (i as f32 * 0.37).sin()).collect::<Vec<_>>();
        let weights = Tensor::from_vec(values, (rows, columns), &Device::Cpu).unwrap();
        let x = weights.narrow(0, 7, 3).unwrap();
        let bias = Tensor::arange(0f32, rows as f32, &Device::Cpu).unwrap();
        let pool = Pool::new(2);
        let to_vec = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        for (ggml_dtype, dtype) in DTYPES {
            let weight = QTensor::quantize(&weights, ggml_dtype).unwrap();
            let dequantised = weight.dequantize(&Device::Cpu).unwrap();
            let expected = to_vec(&x.matmul(&dequantised.t().unwrap()).unwrap().broadcast_add(&bias).unwrap());
            let weight = Rows::from_bytes(dtype, rows, columns, weight.data().unwrap().into_owned()).unwrap();
            assert_eq!(weight.floats().unwrap(), to_vec(&dequantised), "{dtype:?}");
            let linear = Linear::new(&pool, &weight, Some(to_vec(&bias))).unwrap();
            let mut found = vec![f32::NAN; 3 * rows];
            linear.forward(&pool, &to_vec(&x), 3, &mut found).unwrap();
            let max_error = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0., f32::max);
            assert!(max_error < 2., "{dtype:?}: an error of {max_error}");
            let mut found = vec![f32::NAN; 2 * columns];
            linear.embedding(&[3, 49], &mut found).unwrap();
            let ids = Tensor::new(&[3u32, 49], &Device::Cpu).unwrap();
            assert_eq!(found, to_vec(&dequantised.index_select(&ids, 0).unwrap()));
            assert!(linear.embedding(&[50], &mut found).is_err());
        }
    }
}
