//! Mel filters: the weights with which the frequencies of a frame are summed up in bands.

use crate::error::{Result, reject_config};

/// Frequencies of a frame.
pub(super) const FREQUENCIES: usize = 201;
/// The highest frequency, in Hz.
const MAX_HZ: f64 = 8_000.;

/// A bank of mel filters.
#[derive(Clone, Debug, PartialEq)]
pub struct MelFilters(Vec<Filter>);

/// The weights of consecutive frequencies. All others are zero.
#[derive(Clone, Debug, PartialEq)]
struct Filter {
    first: usize,
    weights: Vec<f32>,
}

impl Filter {
    /// `row` has a weight for each frequency.
    fn new(row: &[f32]) -> Self {
        let first = row.iter().position(|weight| *weight != 0.).unwrap_or(0);
        let end = row.iter().rposition(|weight| *weight != 0.).map_or(first, |last| last + 1);
        Self { first, weights: row.get(first..end).unwrap_or_default().to_vec() }
    }
}

impl MelFilters {
    /// The triangular filters of the mel scale of Slaney's Auditory Toolbox, each divided by its width in Hz, like
    /// `mel_filter_bank` of transformers and librosa's `mel`.
    pub fn slaney(bands: usize) -> Self {
        let max = hz_to_mel(MAX_HZ);
        // The corners of filter `i` are the points `i`, `i + 1` and `i + 2`.
        let point = |index: usize| mel_to_hz(max * index as f64 / (bands + 1) as f64);
        let filter = |index: usize| {
            let (low, centre, high) = (point(index), point(index + 1), point(index + 2));
            let weight = |frequency: usize| {
                let hz = MAX_HZ * frequency as f64 / (FREQUENCIES - 1) as f64;
                let triangle = ((hz - low) / (centre - low)).min((high - hz) / (high - centre)).max(0.);
                (triangle * 2. / (high - low)) as f32
            };
            Filter::new(&(0..FREQUENCIES).map(weight).collect::<Vec<_>>())
        };
        Self((0..bands).map(filter).collect())
    }

    /// The filters of a matrix, `[bands, frequencies]`.
    ///
    /// # Errors
    /// If the sizes do not match, or a weight is not finite.
    pub(super) fn from_matrix(bands: usize, frequencies: usize, weights: &[f32]) -> Result<Self> {
        if frequencies != FREQUENCIES || weights.len() != bands * frequencies {
            return reject_config(format!("mel filters of {frequencies} frequencies, not of {FREQUENCIES}"));
        }
        if weights.iter().any(|weight| !weight.is_finite()) {
            return reject_config("a mel filter has a weight that is not finite".to_owned());
        }
        Ok(Self(weights.chunks_exact(frequencies).map(Filter::new).collect()))
    }

    /// The number of bands.
    pub fn bands(&self) -> usize {
        self.0.len()
    }

    /// Sums the power of each frequency up in bands.
    pub(super) fn apply(&self, power: &[f32; FREQUENCIES], bands: &mut [f32]) {
        for (Filter { first, weights }, band) in self.0.iter().zip(bands) {
            *band = power.iter().skip(*first).zip(weights).map(|(power, weight)| power * weight).sum();
        }
    }
}

/// Linear up to 1000 Hz, logarithmic above.
fn hz_to_mel(hz: f64) -> f64 {
    if hz < 1_000. { hz * 3. / 200. } else { 15. + (hz / 1_000.).ln() * 27. / 6.4f64.ln() }
}

fn mel_to_hz(mel: f64) -> f64 {
    if mel < 15. { mel * 200. / 3. } else { 1_000. * ((mel - 15.) * 6.4f64.ln() / 27.).exp() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_overlap_by_half_and_are_read_from_a_matrix() {
        let filters = MelFilters::slaney(80);
        assert_eq!(filters.bands(), 80);
        let mut matrix = vec![0.; 80 * FREQUENCIES];
        for (Filter { first, weights }, row) in filters.0.iter().zip(matrix.chunks_exact_mut(FREQUENCIES)) {
            assert!(!weights.is_empty(), "every band has a frequency");
            row[*first..][..weights.len()].copy_from_slice(weights);
        }
        assert_eq!(MelFilters::from_matrix(80, FREQUENCIES, &matrix).unwrap(), filters);
        matrix[0] = f32::NAN;
        assert!(MelFilters::from_matrix(80, FREQUENCIES, &matrix).is_err());
        assert!(MelFilters::from_matrix(80, 200, &[0.; 80 * 200]).is_err());
    }
}
