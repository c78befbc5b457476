//! The matrices of a LoRA adapter that is trained.

use std::borrow::Cow;
use std::ops::Range;

use super::split_mix::SplitMix;
use crate::backend::Candle;
use crate::decoder::Decoder;
use crate::error::{ModelError, Result};
use crate::peft::{self, Module, NewModule, PeftFiles, find_module};
use crate::weights::LoadedMatrix;

/// The two LoRA matrices of a tensor of the checkpoint.
#[derive(Clone, Debug)]
pub struct LoraModule {
    /// The name of the tensor in GGUF, without the suffix `.weight`.
    pub tensor: String,
    pub inputs: usize,
    pub outputs: usize,
    /// Where [`LoraParameters::values`] has the down-projection: `[rank, inputs]`.
    pub down: Range<usize>,
    /// Where it has the up-projection: `[outputs, rank]`.
    pub up: Range<usize>,
    /// The matrices of the decoder: several if it splits the tensor.
    pub(super) matrices: Vec<LoadedMatrix>,
    /// The heads of the tensor if its rows are in the order of the interleaved RoPE layout.
    interleaved_heads: Option<usize>,
    /// The modules of the decoder's family.
    names: &'static [Module],
}

impl LoraModule {
    /// Its two matrices as peft has them.
    ///
    /// # Errors
    /// If peft has no name for the tensor.
    fn to_peft<'a>(&self, values: &'a [f32], rank: usize) -> Result<NewModule<'a>> {
        let parts = self.tensor.strip_prefix("blk.").and_then(|name| name.split_once('.'));
        let found = parts.and_then(|(layer, projection)| {
            Some((layer.parse().ok()?, find_module(self.names, projection, self.matrices.len())?))
        });
        let Some((layer, module)) = found else {
            return Err(ModelError::Compute(format!("the tensor {} has no name in peft", self.tensor)));
        };
        let up = &values[self.up.clone()];
        let up = match self.interleaved_heads {
            Some(heads) => Cow::Owned(deinterleave(up, heads, rank)),
            None => Cow::Borrowed(up),
        };
        Ok(NewModule { layer, module, down: &values[self.down.clone()], up })
    }
}

/// Rows of heads in which neighbours are the same row of the first and the second half of the head, in the order of the
/// halves.
fn deinterleave(rows: &[f32], heads: usize, row_len: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(rows.len());
    for head in rows.chunks_exact(rows.len() / heads) {
        for half in 0..2 {
            out.extend(head.chunks_exact(row_len).skip(half).step_by(2).flatten());
        }
    }
    out
}

/// All parameters of an adapter.
#[derive(Clone, Debug)]
pub struct LoraParameters {
    pub rank: usize,
    pub alpha: f32,
    pub modules: Vec<LoraModule>,
    pub values: Vec<f32>,
}

impl LoraParameters {
    /// An adapter without effect: random down-projections, and up-projections of zeros. `targets` selects projections by
    /// the end of their GGUF tensor name.
    ///
    /// # Errors
    /// If no projection is selected.
    pub fn new(
        decoder: &Decoder<Candle>,
        rank: usize,
        alpha: f32,
        targets: impl Fn(&str) -> bool,
        seed: u64,
    ) -> Result<Self> {
        let names = decoder.config().adapter_modules;
        let mut modules: Vec<LoraModule> = Vec::new();
        let mut len = 0;
        for matrix in decoder.projections() {
            let projection = matrix.projection();
            let is_adaptable = names.iter().any(|module| module.stems.contains(&projection));
            if !is_adaptable || !targets(projection) || decoder.config().is_reordered(matrix) {
                continue;
            }
            if let Some(module) = modules.iter_mut().find(|module| module.tensor == matrix.stem) {
                module.matrices.push(matrix.clone());
                continue;
            }
            let LoadedMatrix { columns: inputs, total: outputs, .. } = *matrix;
            let (down, up) = (len..len + rank * inputs, len + rank * inputs..len + rank * (inputs + outputs));
            len = up.end;
            let (tensor, matrices) = (matrix.stem.clone(), vec![matrix.clone()]);
            let interleaved_heads = decoder.config().interleaved_heads(matrix);
            modules.push(LoraModule { tensor, inputs, outputs, down, up, matrices, interleaved_heads, names });
        }
        if modules.is_empty() || rank == 0 {
            return Err(ModelError::Compute("an adapter without matrices cannot be trained".to_owned()));
        }
        let mut values = vec![0.; len];
        let mut random = SplitMix::new(seed);
        for LoraModule { inputs, down, .. } in &modules {
            // As in peft: the default of a linear layer in PyTorch.
            let bound = (*inputs as f32).sqrt().recip();
            values[down.clone()].iter_mut().for_each(|value| *value = bound * random.symmetric());
        }
        Ok(Self { rank, alpha, modules, values })
    }

    /// The factor of the adapter's outputs.
    pub fn scale(&self) -> f32 {
        self.alpha / self.rank as f32
    }

    /// The adapter in peft's format, which names the model `base_model` as its base. Equal adapters have equal bytes.
    ///
    /// # Errors
    /// If peft has no name for a tensor.
    pub fn to_peft(&self, base_model: &str) -> Result<PeftFiles> {
        let modules = self.modules.iter().map(|module| module.to_peft(&self.values, self.rank));
        Ok(peft::write(base_model, self.rank, self.alpha, &modules.collect::<Result<Vec<_>>>()?))
    }
}

#[cfg(test)]
mod tests {
    use super::deinterleave;

    #[test]
    fn neighbours_become_halves_of_a_head() {
        assert_eq!(deinterleave(&[0., 2., 1., 3., 4., 6., 5., 7.], 2, 1), [0., 1., 2., 3., 4., 5., 6., 7.]);
        assert_eq!(deinterleave(&[0., 0., 2., 2., 1., 1., 3., 3.], 1, 2), [0., 0., 1., 1., 2., 2., 3., 3.]);
    }
}
