//! Pooling: from hidden states to one vector.

/// Pooling modes, named as in sentence-transformers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The first token.
    Cls,
    /// The maximum of each dimension.
    Max,
    Mean,
    /// The sum divided by the square root of the count.
    MeanSqrtLength,
    /// The mean, with the n-th token weighted by n.
    WeightedMean,
    Last,
}

impl Pooling {
    /// Appends the pooled vector, `[width]`, to `out`. `vectors` is `[tokens, width]`, with at least one token.
    pub fn add(self, vectors: &[f32], width: usize, out: &mut Vec<f32>) {
        let tokens = vectors.chunks_exact(width.max(1));
        let count = tokens.len();
        let start = out.len();
        match self {
            Self::Cls => out.extend(&vectors[..width]),
            Self::Last => out.extend(&vectors[vectors.len() - width..]),
            Self::Max => {
                out.resize(start + width, f32::NEG_INFINITY);
                tokens.for_each(|token| out.iter_mut().skip(start).zip(token).for_each(|(out, x)| *out = out.max(*x)));
            }
            Self::Mean | Self::MeanSqrtLength | Self::WeightedMean => {
                let mut sums = vec![0f64; width];
                for (index, token) in tokens.enumerate() {
                    let weight = if self == Self::WeightedMean { (index + 1) as f64 } else { 1. };
                    sums.iter_mut().zip(token).for_each(|(sum, x)| *sum += weight * f64::from(*x));
                }
                let divisor = match self {
                    Self::WeightedMean => (count * (count + 1)) as f64 / 2.,
                    Self::MeanSqrtLength => (count as f64).sqrt(),
                    _ => count as f64,
                };
                out.extend(sums.into_iter().map(|sum| (sum / divisor) as f32));
            }
        }
    }
}

/// Scales a vector to unit length. A zero vector does not change.
pub fn normalise(vector: &mut [f32]) {
    let length = vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    if length > 0. {
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
    }
}

/// Truncates a vector to `length` dimensions (Matryoshka) and normalises it again.
pub fn truncate_dimensions(vector: &mut Vec<f32>, length: usize) {
    if length < vector.len() {
        vector.truncate(length);
        normalise(vector);
    }
}

#[cfg(test)]
mod tests {
    use super::{Pooling, normalise};

    #[test]
    fn every_pooling_mode_computes_its_formula() {
        let vectors = [1., 8., 3., -4., 5., 2.];
        let pool = |pooling: Pooling| {
            let mut out = vec![9.];
            pooling.add(&vectors, 2, &mut out);
            assert_eq!(out.remove(0), 9.);
            out
        };
        assert_eq!(pool(Pooling::Cls), [1., 8.]);
        assert_eq!(pool(Pooling::Last), [5., 2.]);
        assert_eq!(pool(Pooling::Max), [5., 8.]);
        assert_eq!(pool(Pooling::Mean), [3., 2.]);
        assert_eq!(pool(Pooling::MeanSqrtLength), [9., 6.].map(|sum: f64| (sum / 3f64.sqrt()) as f32));
        assert_eq!(pool(Pooling::WeightedMean), [(1. + 6. + 15.) / 6., (8. - 8. + 6.) / 6.]);
    }

    #[test]
    fn vectors_are_normalised_except_zeros() {
        let mut vector = [3., 0., 4.];
        normalise(&mut vector);
        assert_eq!(vector, [0.6, 0., 0.8]);
        let mut zeros = [0.; 3];
        normalise(&mut zeros);
        assert_eq!(zeros, [0.; 3]);
    }
}
