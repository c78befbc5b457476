//! Log-probabilities of tokens. Vocabularies have 50,000 tokens, so the loops are written for vector instructions.

/// Parts of a sum that are added up side by side.
const LANES: usize = 16;

/// The largest value; negative infinity if there is none.
pub fn maximum(values: &[f32]) -> f32 {
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane = if *value > *lane { *value } else { *lane };
        }
    }
    lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max)
}

/// `ln Σ exp(values)`; negative infinity if there are none.
pub fn log_sum_exp(values: &[f32]) -> f32 {
    let largest = maximum(values);
    if largest == f32::NEG_INFINITY {
        return largest;
    }
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut lanes = [0.0_f32; LANES];
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane += exp_of_negative(value - largest);
        }
    }
    let rest = rest.iter().map(|value| exp_of_negative(value - largest));
    largest + lanes.into_iter().chain(rest).sum::<f32>().ln()
}

/// `exp(x)` for `x` ≤ 0, with a relative error of about 1e-7; 0 below -87.
fn exp_of_negative(x: f32) -> f32 {
    /// Adding it rounds a small number to an integer, which is then in the low bits.
    const ROUND: f32 = 12_582_912.;
    let clamped = if x > -87. { x } else { -87. };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    // x = n ln 2 + r, with ln 2 in two parts.
    let r = (clamped - n * 0.693_359_4) + n * 2.121_944_4e-4;
    let tail = 1. / 120. + r * (1. / 720. + r / 5040.);
    let series = 1. + r * (1. + r * (0.5 + r * (1. / 6. + r * (1. / 24. + r * tail))));
    // `n` is between -126 and 0.
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127);
    let power = f32::from_bits(exponent << 23);
    if x > -87. { series * power } else { 0. }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_is_accurate() {
        for step in 0..87_000 {
            let x = -(step as f32) / 1000.;
            let (found, expected) = (f64::from(exp_of_negative(x)), f64::from(x).exp());
            assert!((found / expected - 1.).abs() < 3e-7, "{x}: {found} {expected}");
        }
        assert_eq!(exp_of_negative(f32::NEG_INFINITY), 0.);
        assert_eq!(exp_of_negative(0.), 1.);
    }

    #[test]
    fn the_sum_is_that_of_a_plain_loop() {
        let values: Vec<f32> = (0..1000).map(|i| (i as f32 * 0.7).sin() * 20.).collect();
        let expected = values.iter().map(|value| f64::from(*value).exp()).sum::<f64>().ln();
        assert!((f64::from(log_sum_exp(&values)) - expected).abs() < 1e-5);
        assert_eq!(log_sum_exp(&[]), f32::NEG_INFINITY);
        assert_eq!(log_sum_exp(&[f32::NEG_INFINITY; 20]), f32::NEG_INFINITY);
        assert_eq!(maximum(&values), values.iter().copied().fold(f32::MIN, f32::max));
    }
}
