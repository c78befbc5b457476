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

/// Scores the target of each row of `logits`, `[targets, vocabulary]`, and replaces the row by the gradient of its log
/// probability times a weight. `targets` are tokens and weights.
///
/// # Panics
/// If lengths do not match, or a target is not in the vocabulary.
pub fn cross_entropy(pool: &Pool, logits: &mut [f32], targets: &[(u32, f32)], scores: &mut [TargetLogit]) {
    assert!(!targets.is_empty() && logits.len().is_multiple_of(targets.len()), "logits are [targets, vocabulary]");
    assert_eq!(targets.len(), scores.len(), "each target has a score");
    let vocabulary = logits.len() / targets.len();
    let (logits, scores) = (SharedSlice::new(logits), SharedSlice::new(scores));
    pool.run(targets.len(), |row| {
        let (target, weight) = targets[row];
        // SAFETY: no other task accesses this row.
        let (logits, scores) = unsafe { (logits.get(row * vocabulary, vocabulary), scores.get(row, 1)) };
        scores[0] = run(pool.isa(), CrossEntropy { logits, target: target as usize, weight });
    });
}

struct CrossEntropy<'a> {
    logits: &'a mut [f32],
    target: usize,
    weight: f32,
}

impl Kernel for CrossEntropy<'_> {
    type Output = TargetLogit;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> TargetLogit {
        let Self { logits, target, weight } = self;
        let own = logits[target];
        let (whole, mut sum) = (logits.len() / LANES * LANES, 0f64);
        // SAFETY: `index` is within the row; features as `Kernel` says.
        unsafe {
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
            TargetLogit { log_probability: own - max - sum.ln() as f32, is_max: own == max }
        }
    }
}
