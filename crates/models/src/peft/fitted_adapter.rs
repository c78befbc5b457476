//! Fits an adapter to the weights of a network.

use std::ops::Range;
use std::sync::Arc;

use super::{AdaptedModule, PeftAdapter};
use crate::backend::{Backend, DType};
use crate::error::{ModelError, Result};
use crate::nn::{Adapter, DownProjection, LoraDelta};
use crate::safetensors::TensorInfo;
use crate::weights::{Footprint, LoadedMatrix, Rows};

/// An adapter that fits a network. Its matrices are not read yet.
#[derive(Debug)]
pub(crate) struct FittedAdapter<'a> {
    file: &'a PeftAdapter,
    modules: Vec<FittedModule<'a>>,
}

/// A module of an adapter, and the matrices of the network that it applies to: several if the network splits a tensor.
#[derive(Debug)]
struct FittedModule<'a> {
    module: &'a AdaptedModule,
    matrices: Vec<FittedMatrix<'a>>,
}

#[derive(Debug)]
struct FittedMatrix<'a> {
    matrix: &'a LoadedMatrix,
    /// Its rows in the module.
    rows: Range<usize>,
    /// The number of heads if the halves of their rows are interleaved in the network, but not in the adapter.
    interleaved_heads: Option<usize>,
}

fn invalid<T>(message: String) -> Result<T> {
    Err(ModelError::Checkpoint(message))
}

impl<'a> FittedAdapter<'a> {
    /// Matches an adapter with the projections of a network. `interleaved_heads` returns the number of heads of a
    /// projection if the halves of their rows are interleaved.
    ///
    /// # Errors
    /// If the network does not have one of its modules, or a shape differs.
    pub fn new(
        file: &'a PeftAdapter,
        projections: &'a [LoadedMatrix],
        interleaved_heads: impl Fn(&LoadedMatrix) -> Option<usize>,
    ) -> Result<Self> {
        let modules = file.modules().iter().map(|module| FittedModule::new(module, projections, &interleaved_heads));
        Ok(Self { file, modules: modules.collect::<Result<_>>()? })
    }

    /// The matrices of the network that it applies to.
    pub fn matrices(&self) -> impl Iterator<Item = &LoadedMatrix> {
        self.modules.iter().flat_map(|module| &module.matrices).map(|fitted| fitted.matrix)
    }

    /// The memory that it takes.
    pub fn footprint<B: Backend>(&self, backend: &B) -> Footprint {
        let mut footprint = Footprint::default();
        for FittedModule { module: AdaptedModule { down, up, rank, .. }, matrices } in &self.modules {
            for (index, FittedMatrix { matrix, .. }) in matrices.iter().enumerate() {
                let dtype = |tensor: &TensorInfo| stored_type(tensor, matrix);
                // The matrices share the down-projection.
                let shared = if index == 0 { backend.low_rank_bytes(dtype(down), *rank, matrix.columns) } else { 0 };
                footprint.weights += (shared + backend.linear_bytes(dtype(up), matrix.rows.len(), *rank)) as u64;
            }
            // The bytes of the file, rows in another order, and floats to check.
            let loading = down.elements.max(up.elements) * (3 * size_of::<f32>()) as u64;
            footprint.loading = footprint.loading.max(loading);
        }
        footprint
    }

    /// Reads the matrices.
    ///
    /// # Errors
    /// If the file cannot be read, or a weight is not finite.
    pub fn read<B: Backend>(&self, backend: &B) -> Result<Adapter<B>> {
        let mut deltas = Vec::new();
        for FittedModule { module, matrices } in &self.modules {
            let AdaptedModule { down, up, rank, scale, .. } = module;
            let Some(FittedMatrix { matrix: first, .. }) = matrices.first() else { continue };
            let rows = stored_rows(self.file.rows(down)?.bytes()?, down, first, *rank, first.columns)?;
            let down = Arc::new(DownProjection::Linear(backend.read_low_rank(&rows)?));
            let bytes = self.file.rows(up)?.bytes()?;
            let row_bytes = bytes.len() / up.shape[0].max(1);
            for FittedMatrix { matrix, rows, interleaved_heads } in matrices {
                let bytes = &bytes[rows.start * row_bytes..rows.end * row_bytes];
                let bytes = match interleaved_heads {
                    Some(heads) => interleave(bytes, *heads, row_bytes),
                    None => bytes.to_vec(),
                };
                let rows = stored_rows(bytes, up, matrix, matrix.rows.len(), *rank)?;
                let up = backend.read_linear(&rows, None, false)?;
                deltas.push((matrix.id, LoraDelta { down: Arc::clone(&down), up, scale: *scale }));
            }
        }
        Ok(Adapter::new(backend, deltas))
    }
}

impl<'a> FittedModule<'a> {
    fn new(
        module: &'a AdaptedModule,
        projections: &'a [LoadedMatrix],
        interleaved_heads: &dyn Fn(&LoadedMatrix) -> Option<usize>,
    ) -> Result<Self> {
        let AdaptedModule { layer, module: target, down, up, .. } = module;
        let with_one_stem = |stem: &str| -> Vec<&'a LoadedMatrix> {
            let stem = format!("blk.{layer}.{stem}");
            let mut found: Vec<_> = projections.iter().filter(|matrix| matrix.stem == stem).collect();
            found.sort_by_key(|matrix| matrix.rows.start);
            found
        };
        let with_stem = |stems: &str| stems.split('+').flat_map(with_one_stem).collect::<Vec<_>>();
        let whole = || target.stems.iter().map(|stem| with_stem(stem)).find(|found| found.len() == target.projections);
        let parts = |stem: &str| Some(with_stem(stem)).filter(|parts| parts.len() > 1);
        let part = || target.part_of.and_then(|(stem, index)| parts(stem)?.get(index).copied());
        let matrices = whole().unwrap_or_else(|| part().into_iter().collect());
        let Some(first) = matrices.first() else {
            return invalid(format!("its tensor {} is for a module that the base model does not have", down.name));
        };
        let outputs = matrices.iter().map(|matrix| matrix.rows.len()).sum();
        let expected = [(down, 1, first.columns), (up, 0, outputs)];
        let wrong = expected.into_iter().find(|(tensor, axis, size)| tensor.shape[*axis] != *size);
        match wrong {
            Some((TensorInfo { name, shape, .. }, ..)) => invalid(format!(
                "its tensor {name} has the shape {shape:?}, which does not fit the base model's [{outputs}, {}]",
                first.columns
            )),
            None => {
                let mut end = 0;
                let fitted = |matrix: &'a LoadedMatrix| {
                    let rows = end..end + matrix.rows.len();
                    end = rows.end;
                    FittedMatrix { matrix, rows, interleaved_heads: interleaved_heads(matrix) }
                };
                Ok(Self { module, matrices: matrices.into_iter().map(fitted).collect() })
            }
        }
    }
}

/// The type in which a tensor is kept: floats are rounded to bf16, unless the base model has floats too. Merging the
/// adapter into the base would round it more.
fn stored_type(tensor: &TensorInfo, matrix: &LoadedMatrix) -> DType {
    match tensor.float() {
        Some(DType::F32) if matrix.dtype != DType::F32 => DType::BF16,
        Some(dtype) => dtype,
        None => DType::F32,
    }
}

/// Rows of a tensor in the type in which they are kept. Their values must be finite.
fn stored_rows(
    bytes: Vec<u8>,
    tensor: &TensorInfo,
    matrix: &LoadedMatrix,
    count: usize,
    columns: usize,
) -> Result<Rows<'static>> {
    let rows = Rows::from_bytes(tensor.float().unwrap_or(DType::F32), count, columns, bytes)?;
    let rows = rows.rounded(stored_type(tensor, matrix));
    match rows.floats()?.iter().all(|value| value.is_finite()) {
        true => Ok(rows),
        false => invalid(format!("its tensor {} has values that are not finite", tensor.name)),
    }
}

/// Rows of heads whose halves become neighbours: row `i` of the first half, row `i` of the second half, and so on.
fn interleave(bytes: &[u8], heads: usize, row_bytes: usize) -> Vec<u8> {
    let half_bytes = bytes.len() / (2 * heads).max(1);
    let mut out = Vec::with_capacity(bytes.len());
    for head in bytes.chunks_exact((2 * half_bytes).max(1)) {
        let (first, second) = head.split_at(half_bytes);
        for (first, second) in first.chunks_exact(row_bytes.max(1)).zip(second.chunks_exact(row_bytes.max(1))) {
            out.extend_from_slice(first);
            out.extend_from_slice(second);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::interleave;

    #[test]
    fn halves_of_a_head_become_neighbours() {
        assert_eq!(interleave(&[0, 1, 2, 3, 4, 5, 6, 7], 2, 1), [0, 2, 1, 3, 4, 6, 5, 7]);
        assert_eq!(interleave(&[0, 0, 1, 1, 2, 2, 3, 3], 1, 2), [0, 0, 2, 2, 1, 1, 3, 3]);
    }
}
