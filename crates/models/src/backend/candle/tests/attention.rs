//! Attention of images and texts.

use super::{candle, compare, random_tensor};
use crate::backend::interface::Backend;

#[test]
fn attention_matches() {
    for (images, queries, keys, causal) in [(2, 11, 11, false), (1, 5, 40, false), (3, 13, 13, true), (1, 1, 1, true)] {
        compare!(format!("{queries} queries of {keys} keys"), 2e-6, |b| {
            let q = random_tensor(b, [images, queries, 1, 24], 1);
            let [k, v] = [2, 3].map(|seed| random_tensor(b, [images, keys, 1, 24], seed));
            b.attention([&q, &k, &v], 3, causal).unwrap()
        });
    }
}

#[test]
fn large_score_matrices_are_computed_in_parts() {
    let b = candle();
    let q = random_tensor(&b, [2, 13, 1, 24], 1);
    let [k, v] = [2, 3].map(|seed| random_tensor(&b, [2, 13, 1, 24], seed));
    for causal in [false, true] {
        let whole = b.to_vec(&b.attention([&q, &k, &v], 3, causal).unwrap()).unwrap();
        // Five queries at once, or one if the limit is less than its scores.
        for limit in [2 * 3 * 13 * 5, 1] {
            let parts = b.clone().with_max_elements(limit).attention([&q, &k, &v], 3, causal).unwrap();
            super::assert_close(&b.to_vec(&parts).unwrap(), &whole, 1e-6, "in parts");
        }
    }
}

#[test]
fn attention_with_a_bias_matches() {
    for (texts, tokens) in [(2, 9), (1, 2), (1, 1)] {
        compare!(format!("{tokens} tokens"), 2e-6, |b| {
            let [q, k, v] = [1, 2, 3].map(|seed| random_tensor(b, [texts, tokens, 1, 24], seed));
            let bias = random_tensor(b, [1, 3, 1, 2 * tokens - 1], 4);
            b.biased_attention([&q, &k, &v], 3, &bias).unwrap()
        });
    }
}
