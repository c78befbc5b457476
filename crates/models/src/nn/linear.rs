//! Linear layers.

use std::sync::Arc;

use super::context::Context;
use crate::backend::{Backend, Matrix, Tensor};
use crate::error::Result;
use crate::weights::Rows;

/// `y = x Wᵀ + b`, with the weight in the checkpoint's type. Clones share the weight.
#[derive(Debug)]
pub(crate) struct Linear<B: Backend>(Arc<B::Linear>);

impl<B: Backend> Clone for Linear<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B: Backend> Linear<B> {
    /// Reads `weight`, `[out, in]`; `bias` is `[out]`. With `embedding`, [`Self::embedding`] can return its rows.
    pub fn read(backend: &B, weight: &Rows<'_>, bias: Option<&[f32]>, embedding: bool) -> Result<Self> {
        Ok(Self(Arc::new(backend.read_linear(weight, bias, embedding)?)))
    }

    /// Identifies the weight among all weights in memory.
    pub fn id(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// The weight on the device.
    pub fn weight(&self) -> &B::Linear {
        &self.0
    }

    /// The number of outputs: rows of the weight.
    pub fn rows(&self) -> usize {
        self.0.rows()
    }

    /// Applies the layer to vectors on the host, all of the same length. The results are on the host, too.
    pub fn forward_vectors(&self, backend: &B, vectors: &[Vec<f32>]) -> Result<Vec<Vec<f32>>> {
        let Some(inputs) = vectors.first().map(Vec::len) else { return Ok(Vec::new()) };
        let ctx = &Context::new(backend);
        let x = ctx.tensor(&vectors.concat(), [1, vectors.len(), 1, inputs])?;
        let out = ctx.to_vec(&self.forward(ctx, &x)?)?;
        Ok(out.chunks_exact(self.rows()).map(<[f32]>::to_vec).collect())
    }

    pub fn forward(&self, ctx: &Context<'_, B>, x: &Tensor<B>) -> Result<Tensor<B>> {
        let [out] = Self::forward_all(ctx, [self], x)?;
        Ok(out)
    }

    /// Several layers with the same input.
    pub fn forward_all<const N: usize>(
        ctx: &Context<'_, B>,
        layers: [&Self; N],
        x: &Tensor<B>,
    ) -> Result<[Tensor<B>; N]> {
        let (weights, ids) = (layers.map(Self::weight), layers.map(Self::id));
        let updates = ctx.lora().updates(ids)?;
        let mut outs = match updates.is_empty() {
            true => ctx.linears(weights, x)?,
            false => ctx.adapted_linears(weights, &updates, x)?,
        };
        ctx.lora().add_to(ctx, ids, x, &mut outs)?;
        Ok(outs)
    }

    /// The rows `ids` of the weight: `[1, ids, 1, in]`.
    pub fn embedding(&self, ctx: &Context<'_, B>, ids: &[u32]) -> Result<Tensor<B>> {
        ctx.embedding(&self.0, ids)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::quantized::{GgmlDType, QTensor};
    use candle_core::{Device, Tensor};

    use crate::backend::{Cpu, DType};

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
        let cpu = Cpu::new(2);
        let ctx = Context::new(&cpu);
        let to_vec = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        for (ggml_dtype, dtype) in DTYPES {
            let weight = QTensor::quantize(&weights, ggml_dtype).unwrap();
            let dequantised = weight.dequantize(&Device::Cpu).unwrap();
            let expected = to_vec(&x.matmul(&dequantised.t().unwrap()).unwrap().broadcast_add(&bias).unwrap());
            let weight = Rows::from_bytes(dtype, rows, columns, weight.data().unwrap().into_owned()).unwrap();
            assert_eq!(weight.floats().unwrap(), to_vec(&dequantised), "{dtype:?}");
            let linear = Linear::read(&cpu, &weight, Some(&to_vec(&bias)), true).unwrap();
            let found = linear.forward(&ctx, &cpu.tensor(&to_vec(&x), [1, 3, 1, columns]).unwrap()).unwrap();
            let max_error = found.data().iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0., f32::max);
            assert!(max_error < 2., "{dtype:?}: an error of {max_error}");
            let found = linear.embedding(&ctx, &[3, 49]).unwrap();
            let ids = Tensor::new(&[3u32, 49], &Device::Cpu).unwrap();
            assert_eq!(found.data(), to_vec(&dequantised.index_select(&ids, 0).unwrap()));
            assert!(linear.embedding(&ctx, &[50]).is_err());
        }
    }
}
