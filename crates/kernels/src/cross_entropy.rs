//! The log probabilities of targets and their gradients.

use crate::Pool;
use crate::buffer::SharedSlice;
use crate::rows::{load_up_to, store_up_to};
use crate::simd::{Kernel, LANES, Simd, run};

/// Exponentials that are added in f32; the sums are added in f64.
const SUM_ELEMENTS: usize = 4096;

/// How well the logits of a row predict its target.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TargetLogit {
    pub log_probability: f32,
    /// Whether no logit is greater.
    pub is_max: bool,
}

/// Scores the target of each row of `logits`, `[targets, vocabulary]`, after the cap `cap · tanh(x / cap)`, and replaces the row by the gradient of its log
/// probability times a weight. `targets` are tokens and weights.
///
/// # Panics
/// If lengths do not match, or a target is not in the vocabulary.
pub fn cross_entropy(
    pool: &Pool,
    logits: &mut [f32],
    soft_cap: Option<f32>,
    targets: &[(u32, f32)],
    scores: &mut [TargetLogit],
) {
    assert!(!targets.is_empty() && logits.len().is_multiple_of(targets.len()), "logits are [targets, vocabulary]");
    assert_eq!(targets.len(), scores.len(), "each target has a score");
    let vocabulary = logits.len() / targets.len();
    let (logits, scores) = (SharedSlice::new(logits), SharedSlice::new(scores));
    pool.run(targets.len(), |row| {
        let (target, weight) = targets[row];
        // SAFETY: no other task accesses this row.
        let (logits, scores) = unsafe { (logits.get(row * vocabulary, vocabulary), scores.get(row, 1)) };
        let slopes = &mut vec![0.; soft_cap.map_or(0, |_| vocabulary)];
        scores[0] = run(pool.isa(), CrossEntropy { logits, soft_cap, slopes, target: target as usize, weight });
    });
}

struct CrossEntropy<'a> {
    logits: &'a mut [f32],
    soft_cap: Option<f32>,
    /// Space for the slopes of the cap.
    slopes: &'a mut [f32],
    target: usize,
    weight: f32,
}

impl Kernel for CrossEntropy<'_> {
    type Output = TargetLogit;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> TargetLogit {
        let Self { logits, soft_cap, slopes, target, weight } = self;
        let (whole, mut sum) = (logits.len() / LANES * LANES, 0f64);
        // SAFETY: `index` is within the row; features as `Kernel` says.
        unsafe {
            if let Some(cap) = soft_cap {
                for index in (0..logits.len()).step_by(LANES) {
                    let tanh = S::tanh(S::mul(load_up_to::<S>(logits, index), S::splat(1.0 / cap)));
                    store_up_to::<S>(slopes, index, S::sub(S::splat(1.0), S::mul(tanh, tanh)));
                    store_up_to::<S>(logits, index, S::mul(tanh, S::splat(cap)));
                }
            }
            let own = logits[target];
            let mut maxima = S::splat(f32::NEG_INFINITY);
            for index in (0..whole).step_by(LANES) {
                maxima = S::max(maxima, S::load(logits.as_ptr().add(index)));
            }
            let max = logits[whole..].iter().copied().fold(S::reduce_max(maxima), f32::max);
            for logits in logits[..whole].chunks_mut(SUM_ELEMENTS) {
                let mut sums = S::splat(0.0);
                for logits in logits.chunks_exact_mut(LANES) {
                    let x = S::exp(S::sub(S::load(logits.as_ptr()), S::splat(max)));
                    S::store(logits.as_mut_ptr(), x);
                    sums = S::add(sums, x);
                }
                sum += f64::from(S::reduce_sum(sums));
            }
            for logit in &mut logits[whole..] {
                *logit = (*logit - max).exp();
                sum += f64::from(*logit);
            }
            let factor = S::splat((-f64::from(weight) / sum) as f32);
            for index in (0..logits.len()).step_by(LANES) {
                let x = S::mul(load_up_to::<S>(logits, index), factor);
                store_up_to::<S>(logits, index, x);
            }
            logits[target] += weight;
            for (logit, slope) in logits.iter_mut().zip(slopes) {
                *logit *= *slope;
            }
            TargetLogit { log_probability: own - max - sum.ln() as f32, is_max: own == max }
        }
    }
}
