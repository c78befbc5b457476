//! The one type behind every matrix product of the decoder.

use std::borrow::Cow;
use std::sync::Arc;

use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{Device, Module, Result, Tensor};
use outpost_kernels::{self as kernels, Activations, Kind, Pool, apply_all};

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

    /// Numbers that a row of results has.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// `x`: `[m, in]`; `out`: `[m, out]`.
    pub fn forward(&self, pool: &Pool, x: &[f32], m: usize, out: &mut [f32]) -> Result<()> {
        Self::together(pool, x, m, &mut [(self, out)])
    }

    /// Several products of the same `x`, which is made ready once.
    pub fn together(pool: &Pool, x: &[f32], m: usize, all: &mut [(&Self, &mut [f32])]) -> Result<()> {
        let k = x.len() / m.max(1);
        let mut packed = Vec::with_capacity(all.len());
        for (one, out) in &mut *all {
            match &one.weight {
                Weight::Packed(weight) if weight.k() != k => candle_core::bail!("{weight:?} does not take {k} numbers"),
                Weight::Packed(weight) => packed.push((&**weight, &mut **out)),
                Weight::Candle(weight) => {
                    let y = weight.forward(&Tensor::from_slice(x, (m, k), &Device::Cpu)?)?.flatten_all()?;
                    copy(&y.to_vec1()?, out)?;
                }
            }
        }
        if !packed.is_empty() {
            apply_all(&Activations::new(pool, x, m, k), &mut packed);
        }
        all.iter_mut().for_each(|(one, out)| one.add_bias(out));
        Ok(())
    }

    fn add_bias(&self, y: &mut [f32]) {
        if let Some(bias) = &self.bias {
            y.chunks_exact_mut(self.rows).for_each(|row| row.iter_mut().zip(bias).for_each(|(y, b)| *y += b));
        }
    }

    /// The weight's rows of these numbers, as f32: `out` is `[ids, in]`.
    pub fn embedding(&self, ids: &[u32], out: &mut [f32]) -> Result<()> {
        let weight = match &self.weight {
            Weight::Packed(weight) => weight,
            Weight::Candle(weight) => {
                let rows = weight.embedding(&Tensor::new(ids, &Device::Cpu)?)?.flatten_all()?;
                return copy(&rows.to_vec1()?, out);
            }
        };
        for (id, row) in ids.iter().zip(out.chunks_exact_mut(weight.k())) {
            match *id as usize {
                id if id < weight.n() => weight.row(id, row),
                id => candle_core::bail!("the embedding has no row {id}"),
            }
        }
        Ok(())
    }
}

fn copy(from: &[f32], to: &mut [f32]) -> Result<()> {
    if from.len() != to.len() {
        candle_core::bail!("{} numbers came where {} were expected", from.len(), to.len());
    }
    to.copy_from_slice(from);
    Ok(())
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
        let flat = |one: &Tensor| one.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        for kind in [GgmlDType::F32, GgmlDType::F16, GgmlDType::BF16, GgmlDType::Q8_0, GgmlDType::Q6K, GgmlDType::Q3K] {
            let weight = QTensor::quantize(&wide, kind).unwrap();
            let widened = weight.dequantize(&Device::Cpu).unwrap();
            let expected = flat(&x.matmul(&widened.t().unwrap()).unwrap().broadcast_add(&bias).unwrap());
            let linear = Linear::new(weight, Some(bias.clone())).unwrap();
            let mut found = vec![f32::NAN; 3 * rows];
            linear.forward(&pool, &flat(&x), 3, &mut found).unwrap();
            let far = found.iter().zip(&expected).map(|(one, other)| (one - other).abs()).fold(0., f32::max);
            assert!(far < 2., "{kind:?}: {far} of sums of 256");
            let mut found = vec![f32::NAN; 2 * columns];
            linear.embedding(&[3, 49], &mut found).unwrap();
            let ids = Tensor::new(&[3u32, 49], &Device::Cpu).unwrap();
            assert_eq!(found, flat(&widened.index_select(&ids, 0).unwrap()));
            assert!(linear.embedding(&[50], &mut found).is_err());
        }
    }
}
