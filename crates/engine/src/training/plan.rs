//! Which examples each step computes. It depends only on the examples' lengths, the options and the seed, so that an
//! interrupted training resumes with the same steps.

use super::options::TrainingOptions;
use outpost_models::training::SplitMix;

/// The steps of a training.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The examples that stay together: one each, or several with packing.
    bins: Vec<Vec<usize>>,
    batch_size: usize,
    epochs: u32,
    seed: u64,
}

impl Plan {
    /// `lengths`: the tokens of each example.
    pub fn new(lengths: &[usize], options: &TrainingOptions) -> Self {
        let bins = match options.packed_length {
            Some(length) => pack(lengths, length as usize),
            None => (0..lengths.len()).map(|example| vec![example]).collect(),
        };
        let TrainingOptions { batch_size, epochs, seed, .. } = *options;
        Self { bins, batch_size: batch_size.max(1) as usize, epochs, seed }
    }

    pub fn steps_per_epoch(&self) -> u32 {
        u32::try_from(self.bins.len().div_ceil(self.batch_size)).unwrap_or(u32::MAX)
    }

    pub fn steps(&self) -> u32 {
        self.steps_per_epoch().saturating_mul(self.epochs)
    }

    /// The batches of an epoch, counted from zero: the numbers of their examples.
    pub fn epoch(&self, epoch: u32) -> Vec<Vec<usize>> {
        let mut order: Vec<&Vec<usize>> = self.bins.iter().collect();
        SplitMix::new(self.seed ^ ((u64::from(epoch) + 1) << 32)).shuffle(&mut order);
        order.chunks(self.batch_size).map(|batch| batch.iter().flat_map(|bin| bin.iter().copied()).collect()).collect()
    }
}

/// Puts examples into bins of up to `length` tokens, in order. A longer example has a bin of its own.
fn pack(lengths: &[usize], length: usize) -> Vec<Vec<usize>> {
    let mut bins: Vec<Vec<usize>> = Vec::new();
    let mut tokens = usize::MAX;
    for (example, count) in lengths.iter().enumerate() {
        tokens = tokens.saturating_add(*count);
        match bins.last_mut() {
            Some(bin) if tokens <= length => bin.push(example),
            _ => {
                bins.push(vec![example]);
                tokens = *count;
            }
        }
    }
    bins
}

/// Splits examples into consecutive groups of up to `limit` tokens, which are computed at once. A longer example has a
/// group of its own.
pub fn micro_batches(examples: &[usize], length: impl Fn(usize) -> usize, limit: usize) -> Vec<&[usize]> {
    let (mut groups, mut first, mut tokens) = (Vec::new(), 0, 0);
    for (index, example) in examples.iter().enumerate() {
        let count = length(*example);
        if index > first && tokens + count > limit {
            groups.push(&examples[first..index]);
            (first, tokens) = (index, 0);
        }
        tokens += count;
    }
    if first < examples.len() {
        groups.push(&examples[first..]);
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::super::options::{TrainingMethod, TrainingOptions};
    use super::{Plan, micro_batches, pack};

    fn options(batch_size: u32, packed_length: Option<u32>) -> TrainingOptions {
        TrainingOptions {
            method: TrainingMethod::Supervised,
            epochs: 3,
            batch_size,
            learning_rate: 1e-4,
            rank: 8,
            alpha: 16.,
            dropout: 0.,
            target_modules: Vec::new(),
            packed_length,
            seed: 7,
        }
    }

    #[test]
    fn every_epoch_has_all_examples_in_another_order() {
        let plan = Plan::new(&[10; 10], &options(4, None));
        assert_eq!((plan.steps_per_epoch(), plan.steps()), (3, 9));
        let [first, second] = [0, 1].map(|epoch| plan.epoch(epoch));
        assert_eq!(first.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 2]);
        assert_ne!(first, second);
        assert_eq!(first, plan.epoch(0));
        for epoch in [first, second] {
            let mut all: Vec<usize> = epoch.into_iter().flatten().collect();
            all.sort_unstable();
            assert_eq!(all, (0..10).collect::<Vec<_>>());
        }
    }

    #[test]
    fn bins_hold_as_many_examples_as_fit() {
        assert_eq!(pack(&[3, 4, 5, 20, 2], 8), [vec![0, 1], vec![2], vec![3], vec![4]]);
        assert_eq!(Plan::new(&[3, 4, 5, 20, 2], &options(2, Some(8))).steps_per_epoch(), 2);
        assert!(pack(&[], 8).is_empty());
    }

    #[test]
    fn micro_batches_stay_within_the_limit() {
        let lengths = [5, 5, 12, 1, 1];
        let groups = micro_batches(&[0, 1, 2, 3, 4], |example| lengths[example], 10);
        assert_eq!(groups, [&[0, 1][..], &[2], &[3, 4]]);
        assert!(micro_batches(&[], |_| 0, 10).is_empty());
    }
}
