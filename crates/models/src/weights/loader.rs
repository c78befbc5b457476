//! Loads layers from a checkpoint, and reports tensors that no layer has read.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ops::Range;

use super::loaded_matrix::LoadedMatrix;
use super::{Role, Rows, Weights, flat};
use crate::backend::{Backend, CausalConv, Conv1dShape, ConvShape, Convolutions, DType, TimeConvolutions};
use crate::error::{ModelError, Result};
use crate::nn::{Conv, Conv1d, ConvTranspose1d, ConvTranspose1dShape, EmbeddingTable, Linear};

/// A tensor that may hold a matrix: the rows from `first` on of `total` rows of a stem.
#[derive(Debug)]
pub struct Candidate {
    pub stem: String,
    pub first: usize,
    pub total: usize,
}

impl Candidate {
    /// A whole tensor.
    pub fn whole(stem: String, rows: usize) -> Self {
        Self { stem, first: 0, total: rows }
    }
}

/// Loads layers from a checkpoint.
pub struct Loader<'a, B: Backend> {
    source: &'a dyn Weights,
    backend: B,
    /// The type to which the weights of projections are rounded.
    precision: Option<DType>,
    used: RefCell<HashSet<String>>,
    matrices: RefCell<Vec<LoadedMatrix>>,
}

impl<'a, B: Backend> Loader<'a, B> {
    pub fn new(source: &'a dyn Weights, backend: &B) -> Self {
        Self {
            source,
            backend: backend.for_loading(),
            precision: None,
            used: RefCell::default(),
            matrices: RefCell::default(),
        }
    }

    /// Rounds the float weights of projections and convolutions to this type.
    pub fn with_precision(self, precision: Option<DType>) -> Self {
        Self { precision, ..self }
    }

    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// Marks a tensor as not needed.
    pub fn ignore(&self, stem: &str) {
        self.used.borrow_mut().extend(self.source.name(stem, Role::Weight));
    }

    /// True if the checkpoint has a weight of this stem.
    pub fn has(&self, stem: &str) -> bool {
        self.lookup(stem, Role::Weight).is_some()
    }

    /// The error for a missing tensor.
    pub fn missing(&self, stem: &str) -> ModelError {
        self.missing_tensor(stem, Role::Weight)
    }

    /// The checkpoint's name for a stem and the tensor's shape, if it exists.
    fn lookup(&self, stem: &str, role: Role) -> Option<(String, Vec<usize>)> {
        let name = self.source.name(stem, role)?;
        let shape = self.source.shape(&name)?;
        Some((name, shape))
    }

    /// Loads a matrix and its optional bias, if the matrix exists.
    pub fn optional_matrix(&self, stem: &str, rows: usize, columns: usize) -> Result<Option<Linear<B>>> {
        self.read_matrix(stem, rows, columns, false, None)
    }

    /// Loads a matrix whose rows are embeddings.
    pub fn embedding(&self, stem: &str, rows: usize, columns: usize) -> Result<Linear<B>> {
        self.read_matrix(stem, rows, columns, true, None)?.ok_or_else(|| self.missing(stem))
    }

    /// Loads a matrix whose rows are embeddings, and which is also a projection.
    pub fn tied_embedding(&self, stem: &str, rows: usize, columns: usize) -> Result<Linear<B>> {
        self.read_matrix(stem, rows, columns, true, self.precision)?.ok_or_else(|| self.missing(stem))
    }

    fn read_matrix(
        &self,
        stem: &str,
        rows: usize,
        columns: usize,
        embedding: bool,
        precision: Option<DType>,
    ) -> Result<Option<Linear<B>>> {
        let Some((name, shape)) = self.lookup(stem, Role::Weight) else { return Ok(None) };
        self.check_shape(&name, &shape, shape == [rows, columns], &[rows, columns])?;
        let bias = self.optional_vector(stem, Role::Bias, rows)?;
        let mut weight = self.read_rows(&name, 0, rows)?;
        if let Some(dtype) = precision {
            weight = weight.rounded(dtype);
        }
        Ok(Some(Linear::read(&self.backend, &weight, bias.as_deref(), embedding)?))
    }

    /// Loads an embedding table.
    pub fn table(&self, stem: &str, rows: usize, columns: usize) -> Result<EmbeddingTable> {
        EmbeddingTable::new(&self.table_rows(stem, rows, columns)?)
    }

    /// Opens an embedding table that stays in the file.
    pub fn table_in_file(&self, stem: &str, rows: usize, columns: usize) -> Result<EmbeddingTable> {
        EmbeddingTable::in_file(&self.table_rows(stem, rows, columns)?)
    }

    fn table_rows(&self, stem: &str, rows: usize, columns: usize) -> Result<Rows<'a>> {
        let (name, shape) = self.lookup(stem, Role::Weight).ok_or_else(|| self.missing(stem))?;
        self.check_shape(&name, &shape, shape.len() > 1 && flat(&shape) == (rows, columns), &[rows, columns])?;
        self.read_rows(&name, 0, rows)
    }

    pub fn optional_vector(&self, stem: &str, role: Role, size: usize) -> Result<Option<Vec<f32>>> {
        let Some((name, shape)) = self.lookup(stem, role) else { return Ok(None) };
        self.check_shape(&name, &shape, shape == [size], &[size])?;
        self.finite_values(&name, 0, size).map(Some)
    }

    /// Reads elements of a vector, which must be finite.
    fn finite_values(&self, name: &str, first: usize, count: usize) -> Result<Vec<f32>> {
        self.check_finite(name, self.read_rows(name, first, count)?.floats()?)
    }

    fn check_finite(&self, name: &str, values: Vec<f32>) -> Result<Vec<f32>> {
        match values.iter().all(|value| value.is_finite()) {
            true => Ok(values),
            false => Err(ModelError::Checkpoint(format!("tensor {name} has values that are not finite"))),
        }
    }

    /// Loads a vector of divisors.
    pub fn factors(&self, stem: &str, size: usize) -> Result<Vec<f32>> {
        let factors = self.vector(stem, size)?;
        match factors.iter().all(|factor| factor.is_normal()) {
            true => Ok(factors),
            false => Err(ModelError::Checkpoint(format!("tensor {stem} has divisors that are zero or not finite"))),
        }
    }

    pub fn vector(&self, stem: &str, size: usize) -> Result<Vec<f32>> {
        self.optional_vector(stem, Role::Weight, size)?.ok_or_else(|| self.missing(stem))
    }

    /// Loads a projection to `rows` outputs from the first candidate that exists. With `biased`, it must have a bias.
    pub fn linear(&self, candidates: &[Candidate], rows: usize, columns: usize, biased: bool) -> Result<Linear<B>> {
        let (candidate, name) = self.find(candidates, columns)?;
        let weight = self.rounded(self.read_rows(&name, candidate.first, rows)?);
        let bias = self.load_bias(candidate, rows)?;
        if biased && bias.is_none() {
            return Err(self.missing_tensor(&candidate.stem, Role::Bias));
        }
        let linear = Linear::read(&self.backend, &weight, bias.as_deref(), false)?;
        let (dtype, total) = (weight.dtype, candidate.total);
        let (stem, rows) = (candidate.stem.clone(), candidate.first..candidate.first + rows);
        let matrix = LoadedMatrix { stem, rows, total, columns, dtype, window: None, id: linear.id() };
        self.matrices.borrow_mut().push(matrix);
        Ok(linear)
    }

    /// Loads a vector that may be a matrix in the file.
    pub fn flat_vector(&self, stem: &str, size: usize) -> Result<Vec<f32>> {
        let (name, shape) = self.lookup(stem, Role::Weight).ok_or_else(|| self.missing(stem))?;
        self.check_shape(&name, &shape, shape.iter().product::<usize>() == size, &[size])?;
        self.finite_values(&name, 0, flat(&shape).0)
    }

    /// Loads a projection with 32-bit weights, whatever their type in the checkpoint. The weight of a projection to one output may be a
    /// vector. With `biased`, it must have a bias. Adapters cannot target it.
    pub fn precise(&self, stem: &str, rows: usize, columns: usize, biased: bool) -> Result<Linear<B>> {
        let (name, shape) = self.lookup(stem, Role::Weight).ok_or_else(|| self.missing(stem))?;
        let fits = shape == [rows, columns] || (rows == 1 && shape == [columns]);
        self.check_shape(&name, &shape, fits, &[rows, columns])?;
        // Each element of a vector is a row of its own.
        let values = self.check_finite(&name, self.read_rows(&name, 0, flat(&shape).0)?.stored_floats()?)?;
        let bytes = values.into_iter().flat_map(f32::to_le_bytes).collect();
        let bias = biased.then(|| self.bias(stem, rows)).transpose()?;
        Linear::read(&self.backend, &Rows::from_bytes(DType::F32, rows, columns, bytes)?, bias.as_deref(), false)
    }

    /// Loads a projection whose rows are parts of a tensor with `total` rows, in the order of `parts`. Adapters cannot target it.
    pub fn gathered(&self, stem: &str, parts: &[Range<usize>], [total, columns]: [usize; 2]) -> Result<Linear<B>> {
        let (name, shape) = self.lookup(stem, Role::Weight).ok_or_else(|| self.missing(stem))?;
        self.check_shape(&name, &shape, shape == [total, columns], &[total, columns])?;
        let mut bytes = Vec::new();
        for part in parts {
            bytes.extend(self.read_rows(&name, part.start, part.len())?.bytes()?);
        }
        let dtype = self.source.dtype(&name).ok_or_else(|| self.missing(stem))?;
        let rows = parts.iter().map(ExactSizeIterator::len).sum();
        let weight = self.rounded(Rows::from_bytes(dtype, rows, columns, bytes)?);
        Linear::read(&self.backend, &weight, None, false)
    }

    /// Loads a projection from the transposed rows of a tensor with `total` rows: it has as many inputs as there are rows. Quantised weights
    /// are rounded to bf16. Adapters cannot target it.
    pub fn transposed(&self, stem: &str, rows: Range<usize>, [total, columns]: [usize; 2]) -> Result<Linear<B>> {
        let (name, shape) = self.lookup(stem, Role::Weight).ok_or_else(|| self.missing(stem))?;
        self.check_shape(&name, &shape, shape == [total, columns], &[total, columns])?;
        let stored = self.read_rows(&name, rows.start, rows.len())?;
        let values = self.check_finite(&name, stored.stored_floats()?)?;
        let transposed = (0..columns).flat_map(|column| values.iter().skip(column).step_by(columns));
        let bytes = transposed.flat_map(|value| value.to_le_bytes()).collect();
        let floats = Rows::from_bytes(DType::F32, columns, rows.len(), bytes)?;
        let weight = match stored.dtype {
            DType::F32 | DType::F16 => self.rounded(floats),
            _ => self.rounded(floats.rounded(DType::BF16)),
        };
        Linear::read(&self.backend, &weight, None, false)
    }

    /// The elements of a weight, which must be finite.
    pub fn values(&self, stem: &str, expected: &[usize]) -> Result<Vec<f32>> {
        let (name, shape) = self.lookup(stem, Role::Weight).ok_or_else(|| self.missing(stem))?;
        self.check_shape(&name, &shape, shape == expected, expected)?;
        self.finite_values(&name, 0, flat(&shape).0)
    }

    /// Loads a convolution of each channel by itself, whose weights are `[channels, kernel]` or `[channels, 1, kernel]`.
    pub fn causal_conv(&self, stem: &str, channels: usize, kernel: usize, biased: bool) -> Result<CausalConv<B>> {
        let (name, shape) = self.lookup(stem, Role::Weight).ok_or_else(|| self.missing(stem))?;
        let expected = [channels, 1, kernel];
        self.check_shape(&name, &shape, shape == expected || shape == [channels, kernel], &expected)?;
        let by_channel = self.check_finite(&name, self.read_rows(&name, 0, channels)?.floats()?)?;
        let weight = (0..kernel).flat_map(|step| by_channel.iter().skip(step).step_by(kernel)).copied().collect();
        let bias = self.optional_vector(stem, Role::Bias, channels)?;
        if biased && bias.is_none() {
            return Err(self.missing_tensor(stem, Role::Bias));
        }
        let bias = bias.map(|bias| self.backend.vector(bias)).transpose()?;
        Ok(CausalConv { weight: self.backend.vector(weight)?, bias, kernel, channels })
    }

    /// Loads a bias, which may be the only row of a matrix.
    pub fn bias(&self, stem: &str, size: usize) -> Result<Vec<f32>> {
        let Some((name, shape)) = self.lookup(stem, Role::Bias) else {
            return Err(self.missing_tensor(stem, Role::Bias));
        };
        self.check_shape(&name, &shape, shape == [size] || shape == [1, size], &[size])?;
        self.finite_values(&name, 0, flat(&shape).0)
    }

    /// The shape of a weight.
    pub fn shape(&self, stem: &str) -> Result<Vec<usize>> {
        self.lookup(stem, Role::Weight).map(|(_, shape)| shape).ok_or_else(|| self.missing(stem))
    }

    /// The first candidate that exists; its shape must match.
    fn find<'c>(&self, candidates: &'c [Candidate], columns: usize) -> Result<(&'c Candidate, String)> {
        for candidate in candidates {
            let Some((name, shape)) = self.lookup(&candidate.stem, Role::Weight) else { continue };
            let matches = shape.len() > 1 && flat(&shape) == (candidate.total, columns);
            self.check_shape(&name, &shape, matches, &[candidate.total, columns])?;
            return Ok((candidate, name));
        }
        match candidates.first() {
            Some(first) => Err(self.missing(&first.stem)),
            None => Err(ModelError::checkpoint("there are no candidates for a tensor")),
        }
    }

    fn load_bias(&self, candidate: &Candidate, rows: usize) -> Result<Option<Vec<f32>>> {
        let Some((name, shape)) = self.lookup(&candidate.stem, Role::Bias) else { return Ok(None) };
        let Candidate { first, total, .. } = *candidate;
        // Experts have a row each.
        let matches = !shape.is_empty() && shape.iter().product::<usize>() == total;
        self.check_shape(&name, &shape, matches, &[total])?;
        let width = flat(&shape).1.max(1);
        let first_row = first / width;
        let values = self.finite_values(&name, first_row, (first + rows).div_ceil(width) - first_row)?;
        Ok(values.get(first - first_row * width..).and_then(|values| values.get(..rows)).map(<[f32]>::to_vec))
    }

    fn read_rows(&self, name: &str, first: usize, count: usize) -> Result<Rows<'a>> {
        self.used.borrow_mut().insert(name.to_owned());
        self.source.rows(name, first, count)
    }

    /// Rows in the type to which the weights of projections are rounded.
    fn rounded<'r>(&self, rows: Rows<'r>) -> Rows<'r> {
        match self.precision {
            Some(dtype) => rows.rounded(dtype),
            None => rows,
        }
    }

    fn check_shape(&self, name: &str, shape: &[usize], matches: bool, expected: &[usize]) -> Result<()> {
        match matches {
            true => Ok(()),
            false => Err(ModelError::Checkpoint(format!(
                "tensor {name} has the shape {shape:?}, the metadata requires {expected:?}"
            ))),
        }
    }

    fn missing_tensor(&self, stem: &str, role: Role) -> ModelError {
        let name = self.source.name(stem, role).unwrap_or_else(|| stem.to_owned());
        ModelError::Checkpoint(format!("the file has no tensor {name}"))
    }

    /// The projections and convolutions that were loaded.
    pub fn matrices(&self) -> Vec<LoadedMatrix> {
        self.matrices.take()
    }

    /// Checks that all tensors were used.
    pub fn finish(self) -> Result<()> {
        let used = self.used.into_inner();
        let mut unused: Vec<_> = self.source.names().into_iter().filter(|name| !used.contains(name)).collect();
        unused.sort();
        match unused.as_slice() {
            [] => Ok(()),
            [first, rest @ ..] => Err(ModelError::Checkpoint(format!(
                "the file has {} tensors that the model's family does not use, such as {first}",
                rest.len() + 1
            ))),
        }
    }
}

impl<B: Convolutions> Loader<'_, B> {
    /// Loads a convolution and its optional bias.
    pub fn conv(&self, stem: &str, window: ConvShape) -> Result<Conv<B>> {
        let ConvShape { inputs, outputs, kernel: [height, width], .. } = window;
        let (name, shape) = self.lookup(stem, Role::Weight).ok_or_else(|| self.missing(stem))?;
        let expected = [outputs, inputs, height, width];
        self.check_shape(&name, &shape, shape == expected, &expected)?;
        let (rows, _) = flat(&shape);
        let weight = self.rounded(self.read_rows(&name, 0, rows)?);
        let bias = self.optional_vector(stem, Role::Bias, outputs)?;
        let conv = Conv::read(&self.backend, &weight, window, bias.as_deref())?;
        let (stem, columns, dtype) = (stem.to_owned(), inputs * height * width, weight.dtype);
        let (rows, window, id) = (0..outputs, Some(window), conv.id());
        let matrix = LoadedMatrix { stem, rows, total: outputs, columns, dtype, window, id };
        self.matrices.borrow_mut().push(matrix);
        Ok(conv)
    }
}

impl<B: TimeConvolutions> Loader<'_, B> {
    /// Loads a convolution over time and its optional bias. Its weights may also have the shape of images that are one pixel wide.
    pub fn conv1d(&self, stem: &str, shape: Conv1dShape) -> Result<Conv1d<B>> {
        let Conv1dShape { inputs, outputs, kernel, .. } = shape;
        let (name, found) = self.lookup(stem, Role::Weight).ok_or_else(|| self.missing(stem))?;
        let expected = [outputs, inputs, kernel];
        self.check_shape(&name, &found, found == expected || found == [outputs, inputs, kernel, 1], &expected)?;
        let weight = self.rounded(self.read_rows(&name, 0, flat(&found).0)?);
        let bias = self.optional_vector(stem, Role::Bias, outputs)?;
        Conv1d::read(&self.backend, &weight, shape, bias.as_deref())
    }

    /// Loads a transposed convolution over time and its bias.
    pub fn conv_transpose1d(&self, stem: &str, shape: ConvTranspose1dShape) -> Result<ConvTranspose1d<B>> {
        let ConvTranspose1dShape { inputs, outputs, kernel, .. } = shape;
        let weight = self.values(stem, &[inputs, outputs, kernel])?;
        let bias = self.bias(stem, outputs)?;
        ConvTranspose1d::new(&self.backend, shape, &weight, &bias, self.precision)
    }
}
