//! Takes a checkpoint apart, tensor by tensor, and knows at the end what was left.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use outpost_kernels::{Conv2d, ConvShape, DType, Pool};

use super::{Role, Rows, Weights, flat};
use crate::models::embedding_table::EmbeddingTable;
use crate::models::error::{ModelError, Result};
use crate::models::linear::Linear;

/// One place where a matrix may lie: rows `first..` of `total` rows of a stem.
#[derive(Debug)]
pub struct Candidate {
    pub stem: String,
    pub first: usize,
    pub total: usize,
}

impl Candidate {
    /// A tensor of its own.
    pub fn whole(stem: String, rows: usize) -> Self {
        Self { stem, first: 0, total: rows }
    }
}

/// A matrix that was read, for those who want to add to its products.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedMatrix {
    pub stem: String,
    /// Which of the rows of the checkpoint's tensor it has, and how many that has.
    pub rows: Range<usize>,
    pub total: usize,
    pub columns: usize,
    /// Of a convolution.
    pub window: Option<ConvShape>,
    /// [`Linear::id`], or the address of the convolution.
    pub id: usize,
}

pub struct Loader<'a> {
    source: &'a dyn Weights,
    /// Threads that read and pack.
    pool: Pool,
    /// What the weights of projections are rounded to.
    precision: Option<DType>,
    used: RefCell<HashSet<String>>,
    matrices: RefCell<Vec<LoadedMatrix>>,
}

impl<'a> Loader<'a> {
    /// Reads with so many threads of its own: those that compute are at work for others meanwhile.
    pub fn new(source: &'a dyn Weights, threads: usize) -> Self {
        Self {
            source,
            pool: Pool::new(threads),
            precision: None,
            used: RefCell::default(),
            matrices: RefCell::default(),
        }
    }

    /// Rounds floats to this type in projections; not in tables of vectors.
    pub fn with_precision(self, precision: Option<DType>) -> Self {
        Self { precision, ..self }
    }

    /// A tensor that the decoder does without, and rightly so.
    pub fn ignore(&self, stem: &str) {
        self.used.borrow_mut().extend(self.source.name(stem, Role::Weight));
    }

    /// Whether there is such a tensor.
    pub fn has(&self, stem: &str) -> bool {
        self.lookup(stem, Role::Weight).is_some()
    }

    /// The error for a tensor that must be there.
    pub fn missing(&self, stem: &str) -> ModelError {
        self.missing_tensor(stem, Role::Weight)
    }

    /// The checkpoint's name for a stem and the tensor's shape, where it has that.
    fn lookup(&self, stem: &str, role: Role) -> Option<(String, Vec<usize>)> {
        let name = self.source.name(stem, role)?;
        let shape = self.source.shape(&name)?;
        Some((name, shape))
    }

    /// A matrix of its own and its bias, where the checkpoint has it.
    pub fn optional_matrix(&self, stem: &str, rows: usize, columns: usize) -> Result<Option<Linear>> {
        let Some((name, shape)) = self.lookup(stem, Role::Weight) else { return Ok(None) };
        self.check_shape(&name, &shape, shape == [rows, columns], &[rows, columns])?;
        let bias = self.optional_vector(stem, Role::Bias, rows)?;
        Ok(Some(Linear::new(&self.pool, &self.read_rows(&name, 0, rows)?, bias)?))
    }

    /// A table of vectors.
    pub fn table(&self, stem: &str, rows: usize, columns: usize) -> Result<EmbeddingTable> {
        let (name, shape) = self.lookup(stem, Role::Weight).ok_or_else(|| self.missing(stem))?;
        self.check_shape(&name, &shape, shape.len() > 1 && flat(&shape) == (rows, columns), &[rows, columns])?;
        EmbeddingTable::new(&self.read_rows(&name, 0, rows)?)
    }

    pub fn matrix(&self, stem: &str, rows: usize, columns: usize) -> Result<Linear> {
        self.optional_matrix(stem, rows, columns)?.ok_or_else(|| self.missing(stem))
    }

    pub fn optional_vector(&self, stem: &str, role: Role, size: usize) -> Result<Option<Vec<f32>>> {
        let Some((name, shape)) = self.lookup(stem, role) else { return Ok(None) };
        self.check_shape(&name, &shape, shape == [size], &[size])?;
        self.finite_values(&name, 0, size).map(Some)
    }

    /// Numbers of a vector, each of them finite: with one that is not, the network computes nothing.
    fn finite_values(&self, name: &str, first: usize, count: usize) -> Result<Vec<f32>> {
        let numbers = self.read_rows(name, first, count)?.floats()?;
        match numbers.iter().all(|number| number.is_finite()) {
            true => Ok(numbers),
            false => Err(ModelError::Checkpoint(format!("tensor {name} has values that are not finite numbers"))),
        }
    }

    /// A vector of divisors.
    pub fn factors(&self, stem: &str, size: usize) -> Result<Vec<f32>> {
        let factors = self.vector(stem, size)?;
        match factors.iter().all(|factor| factor.is_normal()) {
            true => Ok(factors),
            false => Err(ModelError::Checkpoint(format!("tensor {stem} has numbers that nothing can be divided by"))),
        }
    }

    pub fn vector(&self, stem: &str, size: usize) -> Result<Vec<f32>> {
        self.optional_vector(stem, Role::Weight, size)?.ok_or_else(|| self.missing(stem))
    }

    /// A projection to `rows` numbers, from the first of the places that the checkpoint has.
    pub fn linear(&self, places: &[Candidate], rows: usize, columns: usize, biased: bool) -> Result<Linear> {
        let (place, name) = self.find(places, columns)?;
        let mut weight = self.read_rows(&name, place.first, rows)?;
        if let Some(dtype) = self.precision {
            weight = weight.rounded(dtype);
        }
        let bias = self.bias_at(place, rows)?;
        if biased && bias.is_none() {
            return Err(self.missing_tensor(&place.stem, Role::Bias));
        }
        let linear = Linear::new(&self.pool, &weight, bias)?;
        let (stem, rows) = (place.stem.clone(), place.first..place.first + rows);
        let matrix = LoadedMatrix { stem, rows, total: place.total, columns, window: None, id: linear.id() };
        self.matrices.borrow_mut().push(matrix);
        Ok(linear)
    }

    /// A convolution, with its bias where the checkpoint has it.
    pub fn conv(&self, stem: &str, window: ConvShape) -> Result<Arc<Conv2d>> {
        let ConvShape { inputs, outputs, kernel: [height, width], .. } = window;
        let (name, shape) = self.lookup(stem, Role::Weight).ok_or_else(|| self.missing(stem))?;
        let wanted = [outputs, inputs, height, width];
        self.check_shape(&name, &shape, shape == wanted, &wanted)?;
        let (rows, _) = flat(&shape);
        let mut weight = self.read_rows(&name, 0, rows)?;
        if let Some(dtype) = self.precision {
            weight = weight.rounded(dtype);
        }
        let bias = self.optional_vector(stem, Role::Bias, outputs)?;
        let conv = Arc::new(Conv2d::new(&self.pool, weight.dtype, window, &weight.bytes()?, bias.as_deref())?);
        let (total, columns, id) = (outputs, inputs * height * width, Arc::as_ptr(&conv).addr());
        let matrix = LoadedMatrix { stem: stem.to_owned(), rows: 0..outputs, total, columns, window: Some(window), id };
        self.matrices.borrow_mut().push(matrix);
        Ok(conv)
    }

    /// The first place that is there, which must be of the right size.
    fn find<'p>(&self, places: &'p [Candidate], columns: usize) -> Result<(&'p Candidate, String)> {
        for place in places {
            let Some((name, shape)) = self.lookup(&place.stem, Role::Weight) else { continue };
            let fits = shape.len() > 1 && flat(&shape) == (place.total, columns);
            self.check_shape(&name, &shape, fits, &[place.total, columns])?;
            return Ok((place, name));
        }
        match places.first() {
            Some(first) => Err(self.missing(&first.stem)),
            None => Err(ModelError::checkpoint("no tensor to look for")),
        }
    }

    fn bias_at(&self, place: &Candidate, rows: usize) -> Result<Option<Vec<f32>>> {
        let Some((name, shape)) = self.lookup(&place.stem, Role::Bias) else { return Ok(None) };
        self.check_shape(&name, &shape, shape == [place.total], &[place.total])?;
        self.finite_values(&name, place.first, rows).map(Some)
    }

    fn read_rows(&self, name: &str, first: usize, count: usize) -> Result<Rows<'a>> {
        self.used.borrow_mut().insert(name.to_owned());
        self.source.rows(name, first, count)
    }

    fn check_shape(&self, name: &str, shape: &[usize], fits: bool, wanted: &[usize]) -> Result<()> {
        match fits {
            true => Ok(()),
            false => Err(ModelError::Checkpoint(format!(
                "tensor {name} has the shape {shape:?}, the metadata asks for {wanted:?}"
            ))),
        }
    }

    fn missing_tensor(&self, stem: &str, role: Role) -> ModelError {
        let name = self.source.name(stem, role).unwrap_or_else(|| stem.to_owned());
        ModelError::Checkpoint(format!("the file has no tensor {name}"))
    }

    /// The projections and convolutions that were read.
    pub fn matrices(&self) -> Vec<LoadedMatrix> {
        self.matrices.take()
    }

    /// Nothing may be left over.
    pub fn finish(self) -> Result<()> {
        let used = self.used.into_inner();
        let mut left: Vec<_> = self.source.names().into_iter().filter(|name| !used.contains(name)).collect();
        left.sort();
        match left.as_slice() {
            [] => Ok(()),
            [first, rest @ ..] => Err(ModelError::Checkpoint(format!(
                "the file has {} tensors that the model's family has no use for: {first} is one",
                rest.len() + 1
            ))),
        }
    }
}
