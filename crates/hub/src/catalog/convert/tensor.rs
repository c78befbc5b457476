//! Tensors as views of the bytes of a checkpoint file.

use super::dtype::Dtype;

/// Max dimensions of a tensor.
pub const MAX_RANK: usize = 8;
/// Max bytes of a tensor; the largest one of large-v3 has 133 MB in f16.
const MAX_BYTES: u64 = 2 << 30;

/// A tensor whose elements lie somewhere in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    pub dtype: Dtype,
    pub shape: Vec<u64>,
    pub data: Data,
}

/// Where the elements of a tensor are, in bytes of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// Ranges `(offset, length)` that hold the elements in order, last dimension fastest.
    Ranges(Vec<(u64, u64)>),
    /// Element `i` is at `offset` + Σ `i[d]` · `strides[d]` elements.
    Strided { offset: u64, strides: Vec<u64> },
}

impl Tensor {
    /// A tensor whose elements are contiguous from `offset` on. `end`: the limit of its bytes.
    pub fn contiguous(dtype: Dtype, shape: Vec<u64>, offset: u64, end: u64) -> Result<Self, String> {
        let bytes = bytes_of(dtype, &shape)?;
        match offset.checked_add(bytes) {
            Some(last) if last <= end => Ok(Self { dtype, shape, data: Data::Ranges(vec![(offset, bytes)]) }),
            _ => Err(format!("has {bytes} bytes, which go beyond its data")),
        }
    }

    /// A view with a stride, in elements, for each dimension.
    pub fn strided(dtype: Dtype, shape: Vec<u64>, strides: Vec<u64>, offset: u64, end: u64) -> Result<Self, String> {
        let bytes = bytes_of(dtype, &shape)?;
        if strides.len() != shape.len() {
            return Err(format!("has {} dimensions but {} strides", shape.len(), strides.len()));
        }
        if strides == row_major(&shape) {
            return Self::contiguous(dtype, shape, offset, end);
        }
        let last = shape
            .iter()
            .zip(&strides)
            .try_fold(0_u64, |last, (size, stride)| size.checked_sub(1)?.checked_mul(*stride)?.checked_add(last));
        let span = last.and_then(|last| last.checked_add(1)?.checked_mul(dtype.bytes()));
        // A view that repeats or skips elements is no weight that a network was saved with.
        match span {
            Some(span) if span == bytes && offset.checked_add(span).is_some_and(|last| last <= end) => {
                Ok(Self { dtype, shape, data: Data::Strided { offset, strides } })
            }
            _ => Err("has strides that do not fit its data".into()),
        }
    }

    /// The same matrix with rows and columns exchanged.
    pub fn transposed(&self) -> Result<Self, String> {
        match (self.shape.as_slice(), &self.data) {
            (&[rows, columns], Data::Ranges(ranges)) if ranges.len() == 1 => {
                let offset = ranges.first().map_or(0, |(offset, _)| *offset);
                let data = Data::Strided { offset, strides: vec![1, columns] };
                Ok(Self { dtype: self.dtype, shape: vec![columns, rows], data })
            }
            (shape, _) => Err(format!("has the shape {shape:?}, which is no matrix")),
        }
    }

    /// The elements `blocks` of its data, in that order, as a tensor of the shape `shape`. A block is the `of`-th part of
    /// the elements.
    pub fn blocks(&self, of: u64, blocks: &[u64], shape: Vec<u64>) -> Result<Self, String> {
        let Data::Ranges(ranges) = &self.data else { return Err("is not contiguous".into()) };
        let (Some((offset, bytes)), 1) = (ranges.first(), ranges.len()) else {
            return Err("is not contiguous".into());
        };
        let block = bytes / of.max(1);
        let expected = u64::try_from(blocks.len()).ok().and_then(|count| block.checked_mul(count));
        if !bytes.is_multiple_of(of.max(1)) || Some(bytes_of(self.dtype, &shape)?) != expected {
            return Err(format!("has the shape {:?}, which cannot be cut into {of} parts", self.shape));
        }
        let ranges = blocks.iter().filter(|at| **at < of).map(|at| (offset + at * block, block)).collect();
        Ok(Self { dtype: self.dtype, shape, data: Data::Ranges(ranges) })
    }

    /// Bytes of all elements.
    pub fn bytes(&self) -> u64 {
        // Checked when it was made.
        bytes_of(self.dtype, &self.shape).unwrap_or_default()
    }
}

/// Strides of a contiguous tensor.
fn row_major(shape: &[u64]) -> Vec<u64> {
    let mut strides: Vec<u64> = Vec::with_capacity(shape.len());
    let mut stride: u64 = 1;
    for size in shape.iter().rev() {
        strides.push(stride);
        stride = stride.saturating_mul(*size);
    }
    strides.reverse();
    strides
}

fn bytes_of(dtype: Dtype, shape: &[u64]) -> Result<u64, String> {
    let count = shape.iter().try_fold(1_u64, |count, size| count.checked_mul(*size));
    let bytes = count.and_then(|count| count.checked_mul(dtype.bytes()));
    match bytes.filter(|bytes| (1..=MAX_BYTES).contains(bytes) && shape.len() <= MAX_RANK) {
        Some(bytes) => Ok(bytes),
        None => Err(format!("has the impossible shape {shape:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::{Data, Tensor};
    use crate::catalog::convert::dtype::Dtype::{F16, F32};

    #[test]
    fn views_beyond_the_data_are_refused() {
        assert!(Tensor::contiguous(F16, vec![2, 3], 4, 16).is_ok());
        for (shape, offset, end) in [
            (vec![2, 3], 4, 15),
            (vec![2, 3], u64::MAX, 16),
            (vec![u64::MAX, 2], 0, u64::MAX),
            (vec![1 << 40], 0, u64::MAX),
            (vec![0, 2], 0, 16),
            (vec![1; 9], 0, 16),
        ] {
            assert!(Tensor::contiguous(F16, shape.clone(), offset, end).is_err(), "{shape:?} {offset} {end}");
        }
        assert!(Tensor::strided(F32, vec![2, 3], vec![1, 2], 0, 24).is_ok());
        for strides in [vec![1], vec![1, 3], vec![0, 0], vec![u64::MAX, 2], vec![4, 2]] {
            assert!(Tensor::strided(F32, vec![2, 3], strides.clone(), 0, 24).is_err(), "{strides:?}");
        }
        assert!(Tensor::strided(F32, vec![2, 3], vec![1, 2], 4, 24).is_err());
    }

    #[test]
    fn blocks_reorder_ranges() {
        let whole = Tensor::contiguous(F32, vec![4, 1], 100, 116).unwrap();
        let part = whole.blocks(4, &[2, 0], vec![2]).unwrap();
        assert_eq!(part.data, Data::Ranges(vec![(108, 4), (100, 4)]));
        assert!(whole.blocks(3, &[0], vec![1]).is_err());
        assert!(whole.blocks(4, &[0], vec![2]).is_err());
        assert!(whole.transposed().unwrap().blocks(2, &[0], vec![2]).is_err());
    }
}
