use std::collections::{HashMap, HashSet};

use super::{Sampler, Sampling, keep_top_p};

fn logits(probabilities: &[f32]) -> Vec<f32> {
    probabilities.iter().map(|p| p.ln() + 3.).collect()
}

fn shares(settings: Sampling, probabilities: &[f32], draws: u32) -> HashMap<u32, f64> {
    let mut sampler = Sampler::new(settings, &[], 0);
    let mut counts = HashMap::new();
    for _ in 0..draws {
        let id = sampler.draw(&logits(probabilities)).unwrap();
        *counts.entry(id).or_insert(0.) += 1. / f64::from(draws);
    }
    counts
}

#[test]
fn frequencies_follow_the_distribution() {
    let wanted = [0.5, 0.25, 0.125, 0.125];
    let draws = 20_000;
    let got = shares(Sampling { seed: 1, ..Sampling::default() }, &wanted, draws);
    let square = |(id, p): (usize, &f32)| (got[&(id as u32)] - f64::from(*p)).powi(2) / f64::from(*p);
    let statistic: f64 = wanted.iter().enumerate().map(square).sum::<f64>() * f64::from(draws);
    assert!(statistic < 16.3, "chi square with 3 degrees of freedom: {statistic}"); // p = 0.001
}

#[test]
fn temperature_sharpens() {
    // Temperature 0.5 squares the odds: 0.8² : 0.2² is 16 : 1.
    let got = shares(Sampling { temperature: 0.5, seed: 2, ..Sampling::default() }, &[0.8, 0.2], 20_000);
    assert!((got[&1] - 1. / 17.).abs() < 0.01, "{got:?}");
}

#[test]
fn top_k_top_p_and_min_p_keep_the_right_tokens() {
    let p = [0.4, 0.3, 0.2, 0.06, 0.04];
    let left = |settings: Sampling| shares(settings, &p, 2_000).into_keys().collect::<HashSet<_>>();
    let base = || Sampling { seed: 3, ..Sampling::default() };
    assert_eq!(left(Sampling { top_k: 2, ..base() }), [0, 1].into());
    assert_eq!(left(Sampling { top_p: 0.65, ..base() }), [0, 1].into());
    assert_eq!(left(Sampling { top_p: 0.75, ..base() }), [0, 1, 2].into());
    assert_eq!(left(Sampling { min_p: 0.45, ..base() }), [0, 1, 2].into());
    // top_p applies after top_k: 0.4 of 0.7 is more than half.
    assert_eq!(left(Sampling { top_k: 2, top_p: 0.55, ..base() }), [0].into());
    assert_eq!(left(Sampling { top_p: 0.0001, ..base() }), [0].into());
}

#[test]
fn typical_p_keeps_tokens_with_information_close_to_the_entropy() {
    // The entropy is 1.33 nats. The tokens have 0.69, 1.61, 1.90, 2.30 and 3.00.
    let p = [0.5, 0.2, 0.15, 0.1, 0.05];
    let left = |typical_p| {
        shares(Sampling { typical_p, seed: 3, ..Sampling::default() }, &p, 2_000).into_keys().collect::<HashSet<_>>()
    };
    assert_eq!(left(0.1), [1].into());
    assert_eq!(left(0.3), [1, 2].into());
    assert_eq!(left(0.6), [0, 1, 2].into());
    assert_eq!(left(0.9), [0, 1, 2, 3].into());
    assert_eq!(left(1.), [0, 1, 2, 3, 4].into());
}

#[test]
fn top_p_of_a_large_vocabulary_matches_a_full_sort() {
    let mut candidates: Vec<(u32, f32)> = (0..5_000).map(|id| (id, ((id * 7919) % 5003) as f32)).collect();
    let mut sorted = candidates.clone();
    sorted.sort_by(super::by_weight_descending);
    let total: f64 = sorted.iter().map(|c| f64::from(c.1)).sum();
    let mut mass = 0.;
    let count = sorted
        .iter()
        .position(|c| {
            mass += f64::from(c.1);
            mass >= total * f64::from(0.6f32)
        })
        .unwrap()
        + 1;
    keep_top_p(&mut candidates, 0.6);
    assert_eq!(candidates, sorted[..count]);
}

#[test]
fn penalties_and_bias_change_logits_as_documented() {
    let settings = Sampling {
        temperature: 0.,
        frequency_penalty: 0.5,
        presence_penalty: 0.25,
        repetition_penalty: 2.,
        logit_bias: vec![(3, 10.), (4, -100.)],
        ..Sampling::default()
    };
    let mut sampler = Sampler::new(settings, &[0], 0);
    sampler.generated = HashMap::from([(1, 3)]);
    let mut values = vec![4., 4., -1., 1., 1_000.];
    sampler.adjust(&mut values, &HashSet::new());
    assert_eq!(values, [2., 4. / 2. - 1.5 - 0.25, -1., 11., f32::NEG_INFINITY]);
}

#[test]
fn eos_is_banned_before_min_tokens() {
    let eos_tokens = HashSet::from([1]);
    let settings = Sampling { temperature: 0., min_tokens: 2, ..Sampling::default() };
    let mut sampler = Sampler::new(settings, &[], 0);
    let next = |sampler: &mut Sampler| sampler.next(&mut [0., 9., 1.], &eos_tokens);
    assert_eq!((next(&mut sampler), next(&mut sampler), next(&mut sampler)), (Some(2), Some(2), Some(1)));
    let settings = Sampling { temperature: 0., ignore_eos: true, ..Sampling::default() };
    assert_eq!(next(&mut Sampler::new(settings, &[], 0)), Some(2));
}

#[test]
fn greedy_takes_the_lowest_id_among_equals() {
    let mut sampler = Sampler::new(Sampling { temperature: 0., ..Sampling::default() }, &[], 0);
    assert_eq!(sampler.next(&mut [1., 2., 2., f32::NAN], &HashSet::new()), Some(1));
}

#[test]
fn no_candidate_does_not_panic() {
    for temperature in [0., 1.] {
        let mut sampler = Sampler::new(Sampling { temperature, ..Sampling::default() }, &[], 0);
        assert_eq!(sampler.next(&mut [f32::NEG_INFINITY; 3], &HashSet::new()), None);
        assert_eq!(sampler.next(&mut [f32::NAN; 3], &HashSet::new()), None);
    }
}

#[test]
fn choices_have_separate_random_streams() {
    let draw = |choice| {
        let mut sampler = Sampler::new(Sampling { seed: 9, ..Sampling::default() }, &[], choice);
        (0..16).map(|_| sampler.draw(&[0.; 64]).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(draw(0), draw(0));
    assert_ne!(draw(0), draw(1));
}

proptest::proptest! {
    #[test]
    fn top_k_matches_a_full_sort(logits in proptest::collection::vec(-4i8..4, 1..400), k in 1usize..300) {
        // Many equal logits, so that IDs decide.
        let logits: Vec<f32> = logits.into_iter().map(f32::from).collect();
        let mut sorted: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
        sorted.sort_by(super::by_weight_descending);
        sorted.truncate(k);
        proptest::prop_assert_eq!(super::greedy(&logits), sorted.first().map(|first| first.0));
        sorted.sort_by_key(|candidate| candidate.0);
        proptest::prop_assert_eq!(super::top_k(&logits, k), sorted);
    }
}
