//! Decision trees over features with discrete values.
//!
//! Each node splits by the feature with the highest gain ratio (Quinlan, "C4.5", 1993), with one branch per value. Each node
//! keeps its most frequent classes, smoothed with those of its parent, for values that were not seen in training.

/// The number of features of a sample.
pub const FEATURES: usize = 18;
/// The classes that a node remembers.
const REMEMBERED: usize = 4;
/// How many observations the estimate of the parent counts for.
const PARENT_WEIGHT: f32 = 1.0;

/// The values of a sample's features.
pub type Features = [u16; FEATURES];

/// A class and its probability.
pub type Guess = (u16, f32);

/// One observation.
#[derive(Clone, Copy)]
pub struct Sample {
    pub features: Features,
    pub class: u16,
}

/// A trained tree.
pub struct Tree {
    nodes: Vec<Node>,
}

struct Node {
    guesses: [Guess; REMEMBERED],
    feature: usize,
    /// Values of `feature` and the nodes to which they lead, sorted by value.
    branches: Box<[(u16, u32)]>,
}

/// Counts that the search for a split reuses, so that it allocates nothing.
struct Scratch {
    /// `[value, class]`
    counts: Vec<u32>,
    values: Vec<u32>,
    classes: usize,
}

impl Tree {
    /// Learns from the samples, whose order and classes change. The values of features must be below `values`.
    pub fn train(samples: &mut [Sample], values: usize) -> Self {
        let mut tree = Self { nodes: Vec::new() };
        let names = number_densely(samples);
        let classes = names.len();
        let mut scratch = Scratch { counts: vec![0; classes * values.max(1)], values: vec![0; values], classes };
        tree.grow(samples, &[(0, 0.0); REMEMBERED], &mut scratch);
        for (class, _) in tree.nodes.iter_mut().flat_map(|node| &mut node.guesses) {
            *class = names.get(usize::from(*class)).copied().unwrap_or(0);
        }
        tree
    }

    /// The most probable classes, most probable first; probabilities of zero fill the rest.
    pub fn guess(&self, features: &Features) -> &[Guess] {
        let mut at = 0;
        loop {
            let Some(node) = self.nodes.get(at) else { return &[] };
            let value = features.get(node.feature).copied().unwrap_or(0);
            match node.branches.binary_search_by_key(&value, |(value, _)| *value) {
                Ok(branch) => at = node.branches[branch].1 as usize,
                Err(_) => return &node.guesses,
            }
        }
    }

    /// Adds the node of these samples and those below it. Every split uses another feature, so the depth is bounded.
    fn grow(&mut self, samples: &mut [Sample], parent: &[Guess; REMEMBERED], scratch: &mut Scratch) -> u32 {
        let (guesses, is_pure) = smoothed(samples, parent, scratch);
        let index = self.nodes.len();
        self.nodes.push(Node { guesses, feature: 0, branches: Box::default() });
        if !is_pure && let Some(feature) = best_feature(samples, scratch) {
            samples.sort_unstable_by_key(|sample| sample.features[feature]);
            let mut branches = Vec::new();
            for group in samples.chunk_by_mut(|one, other| one.features[feature] == other.features[feature]) {
                branches.push((group[0].features[feature], self.grow(group, &guesses, scratch)));
            }
            self.nodes[index] = Node { guesses, feature, branches: branches.into() };
        }
        u32::try_from(index).unwrap_or(u32::MAX)
    }
}

/// Numbers the classes from 0 in the samples, so that their counts stay in the processor's cache. Returns their names.
fn number_densely(samples: &mut [Sample]) -> Vec<u16> {
    let mut names: Vec<u16> = samples.iter().map(|sample| sample.class).collect();
    names.sort_unstable();
    names.dedup();
    for sample in samples {
        let number = names.binary_search(&sample.class).unwrap_or(0);
        sample.class = u16::try_from(number).unwrap_or(0);
    }
    names
}

/// The classes of the samples, and whether there is only one.
fn smoothed(samples: &[Sample], parent: &[Guess; REMEMBERED], scratch: &mut Scratch) -> ([Guess; REMEMBERED], bool) {
    let mut seen = Vec::new();
    for sample in samples {
        let count = &mut scratch.counts[usize::from(sample.class)];
        if *count == 0 {
            seen.push(sample.class);
        }
        *count += 1;
    }
    let is_pure = seen.len() == 1;
    let total = samples.len() as f32 + PARENT_WEIGHT;
    let mut guesses: Vec<Guess> = Vec::new();
    for class in &seen {
        let count = std::mem::take(&mut scratch.counts[usize::from(*class)]);
        let prior = parent.iter().find(|(other, _)| other == class).map_or(0.0, |(_, probability)| *probability);
        guesses.push((*class, (count as f32 + PARENT_WEIGHT * prior) / total));
    }
    for (class, probability) in parent.iter().filter(|(class, _)| !seen.contains(class)) {
        guesses.push((*class, PARENT_WEIGHT * probability / total));
    }
    guesses.sort_by(|(a, one), (b, other)| other.total_cmp(one).then(a.cmp(b)));
    let mut kept = [(0, 0.0); REMEMBERED];
    for (slot, guess) in kept.iter_mut().zip(guesses) {
        *slot = guess;
    }
    (kept, is_pure)
}

fn best_feature(samples: &[Sample], scratch: &mut Scratch) -> Option<usize> {
    let scores = (0..FEATURES).filter_map(|feature| Some((feature, gain_ratio(samples, feature, scratch)?)));
    scores.max_by(|(_, one), (_, other)| one.total_cmp(other)).map(|(feature, _)| feature)
}

/// The information that the feature gives about the class, less what it costs to have many values. `None` if every sample
/// has the same value.
fn gain_ratio(samples: &[Sample], feature: usize, scratch: &mut Scratch) -> Option<f32> {
    let mut touched = Vec::with_capacity(64);
    for sample in samples {
        let value = usize::from(sample.features[feature]);
        scratch.values[value] += 1;
        let cell = value * scratch.classes + usize::from(sample.class);
        if scratch.counts[cell] == 0 {
            touched.push(cell);
        }
        scratch.counts[cell] += 1;
    }
    let total = samples.len() as f32;
    let part = |count: u32| count as f32 * (count as f32).ln();
    let mut within = 0.0;
    let mut split = 0.0;
    for cell in &touched {
        within += part(std::mem::take(&mut scratch.counts[*cell]));
        split += part(std::mem::take(&mut scratch.values[cell / scratch.classes]).max(1));
    }
    // Both sums are entropies times -`total`, up to terms that all features share.
    let split_entropy = total.ln() - split / total;
    (split_entropy > 1e-6).then(|| (within - split) / total / (split_entropy + 1.0))
}
