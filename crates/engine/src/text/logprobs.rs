//! Log-probabilities of the model's own distribution.
//!
//! They come from the raw logits, before bias, penalties and temperature (vLLM calls these raw logprobs).

/// `ln Σ exp(logit)`. A log-probability is the logit minus this.
pub fn log_sum_exp(logits: &[f32]) -> f32 {
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - best).exp()).sum();
    best + sum.ln() as f32
}

/// The `count` most likely tokens with their logits, most likely first.
pub fn top_tokens(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    let mut candidates: Vec<(u32, f32)> = logits.iter().enumerate().map(|(id, &logit)| (id as u32, logit)).collect();
    let order = |one: &(u32, f32), other: &(u32, f32)| other.1.total_cmp(&one.1).then(one.0.cmp(&other.0));
    if count > 0 && count < candidates.len() {
        candidates.select_nth_unstable_by(count - 1, order);
    }
    candidates.truncate(count);
    candidates.sort_unstable_by(order);
    candidates
}

/// The rank of a token with this logit: 1 plus the number of tokens that are more likely.
pub fn rank(logits: &[f32], logit: f32) -> u32 {
    let better = logits.iter().filter(|other| **other > logit).count();
    u32::try_from(better).unwrap_or(u32::MAX).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::{log_sum_exp, rank, top_tokens};

    #[test]
    fn logprobs_match_the_logits() {
        let logits = [0.5f32.ln() + 7., 0.125f32.ln() + 7., 0.375f32.ln() + 7.];
        let norm = log_sum_exp(&logits);
        let top: Vec<_> = top_tokens(&logits, 2).into_iter().map(|(id, logit)| (id, (logit - norm).exp())).collect();
        assert!(matches!(top[..], [(0, a), (2, b)] if (a - 0.5).abs() < 1e-5 && (b - 0.375).abs() < 1e-5), "{top:?}");
        assert!(top_tokens(&logits, 0).is_empty());
        assert_eq!(logits.map(|logit| rank(&logits, logit)), [1, 3, 2]);
    }
}
