//! Routing in mixtures of experts: which experts compute a token, and with which weights. It is computed on the host.

/// How the scores of a router become weights of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterWeights {
    /// The softmax over all experts.
    Softmax,
    /// The sigmoid of each score.
    Sigmoid,
}

/// Rows that experts compute together, even if there are fewer tokens.
const MIN_BATCH_ROWS: usize = 64;

/// The maximum rows of several experts that a backend computes together, of `tokens` tokens. A single expert may have as many rows
/// as there are tokens.
pub fn batch_rows(tokens: usize) -> usize {
    tokens.max(MIN_BATCH_ROWS)
}

/// Rules for selecting the experts of a token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Routing {
    pub experts_per_token: usize,
    pub weights: RouterWeights,
    /// Scales the weights of the selected experts to a sum of one.
    pub normalise_weights: bool,
    /// Factor of the weights at the end.
    pub scale: f32,
    pub groups: Option<ExpertGroups>,
}

/// A token may use only the experts of its best groups (DeepSeek-AI 2024, <https://arxiv.org/abs/2412.19437>). Groups are
/// neighbouring experts, and are compared by the sum of their two largest weights, with biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    pub count: usize,
    /// Groups that a token may use.
    pub used: usize,
}

impl Routing {
    /// The weights of Mixtral: a softmax whose selected weights are scaled to a sum of one.
    pub fn softmax(experts_per_token: usize) -> Self {
        let weights = RouterWeights::Softmax;
        Self { experts_per_token, weights, normalise_weights: true, scale: 1., groups: None }
    }

    /// Turns the scores of each token, `[tokens, experts]`, into weights, and zero for experts that are not selected. Returns
    /// the tokens of each expert, in ascending order.
    ///
    /// The experts with the largest weights are selected. Of equal weights, the expert with the lower index comes first. A
    /// `bias` for each expert is added to its weight when experts are selected, and only then.
    pub fn select(&self, bias: Option<&[f32]>, scores: &mut [f32], experts: usize) -> Vec<Vec<usize>> {
        let mut tokens_of: Vec<Vec<usize>> = vec![Vec::new(); experts];
        let mut order: Vec<usize> = Vec::with_capacity(experts);
        let mut choices = vec![0.; experts];
        for (token, weights) in scores.chunks_exact_mut(experts.max(1)).enumerate() {
            match self.weights {
                RouterWeights::Softmax => softmax(weights),
                RouterWeights::Sigmoid => weights.iter_mut().for_each(|score| *score = 1. / (1. + (-*score).exp())),
            }
            choices.copy_from_slice(weights);
            choices.iter_mut().zip(bias.unwrap_or_default()).for_each(|(choice, bias)| *choice += bias);
            if let Some(groups) = self.groups {
                groups.exclude_others(&mut choices);
            }
            order.clear();
            order.extend(0..experts);
            let by_choice = |a: &usize, b: &usize| choices[*b].total_cmp(&choices[*a]).then(a.cmp(b));
            let count = self.experts_per_token.min(experts);
            // There may be hundreds of experts, so only the selected ones are sorted.
            if (1..experts).contains(&count) {
                order.select_nth_unstable_by(count - 1, by_choice);
            }
            let (selected, others) = order.split_at_mut(count);
            selected.sort_unstable_by(by_choice);
            others.iter().for_each(|expert| weights[*expert] = 0.);
            let total: f32 = selected.iter().map(|expert| weights[*expert]).sum();
            // All weights of a sigmoid may vanish.
            let divisor = if self.normalise_weights { total.max(f32::MIN_POSITIVE) } else { 1. };
            for expert in selected {
                weights[*expert] *= self.scale / divisor;
                tokens_of[*expert].push(token);
            }
        }
        tokens_of
    }
}

impl ExpertGroups {
    /// Makes the experts outside of the best groups impossible choices.
    fn exclude_others(self, choices: &mut [f32]) {
        let size = (choices.len() / self.count.max(1)).max(1);
        let best_two = |group: &[f32]| {
            let [mut first, mut second] = [f32::NEG_INFINITY; 2];
            for choice in group {
                if *choice > first {
                    (first, second) = (*choice, first);
                } else if *choice > second {
                    second = *choice;
                }
            }
            first + second
        };
        let mut groups: Vec<(f32, &mut [f32])> =
            choices.chunks_mut(size).map(|group| (best_two(group), group)).collect();
        groups.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        groups.into_iter().skip(self.used).for_each(|(_, group)| group.fill(f32::NEG_INFINITY));
    }
}

/// Softmax in place.
fn softmax(scores: &mut [f32]) {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    scores.iter_mut().for_each(|score| *score = (*score - max).exp());
    let total: f32 = scores.iter().sum();
    scores.iter_mut().for_each(|score| *score /= total);
}

#[cfg(test)]
mod tests {
    use super::{ExpertGroups, RouterWeights, Routing};

    fn assert_close(found: &[f32], expected: &[f32]) {
        found.iter().zip(expected).for_each(|(a, b)| assert!((a - b).abs() < 1e-6, "{found:?}"));
    }

    #[test]
    fn the_most_likely_experts_are_selected() {
        let scores = [1f32, 3., 2., 2., 0., 0., 0., 0.].map(f32::ln_1p);
        let mut weights = scores;
        let routing = Routing { normalise_weights: false, ..Routing::softmax(2) };
        assert_eq!(routing.select(None, &mut weights, 4), [vec![1], vec![0, 1], vec![0], vec![]]);
        assert_close(&weights, &[0., 4. / 12., 3. / 12., 0., 0.25, 0.25, 0., 0.]);
        let mut weights = scores;
        Routing::softmax(2).select(None, &mut weights, 4);
        assert_close(&weights, &[0., 4. / 7., 3. / 7., 0., 0.5, 0.5, 0., 0.]);
    }

    #[test]
    fn a_bias_selects_but_does_not_weigh() {
        let routing = Routing { weights: RouterWeights::Sigmoid, scale: 3., ..Routing::softmax(2) };
        // Sigmoids of 0.5, 0.75, 0.2 and 0.25.
        let scores = [1f32, 3., 0.25, 1. / 3.].map(f32::ln);
        let mut weights = scores;
        assert_eq!(routing.select(None, &mut weights, 4), [vec![0], vec![0], vec![], vec![]]);
        assert_close(&weights, &[1.2, 1.8, 0., 0.]);
        let mut weights = scores;
        let selected = routing.select(Some(&[0., 0., 0., 1.]), &mut weights, 4);
        assert_eq!(selected, [vec![], vec![0], vec![], vec![0]]);
        assert_close(&weights, &[0., 2.25, 0., 0.75]);
        let mut weights = [-200f32; 4];
        routing.select(None, &mut weights, 4);
        assert!(weights.iter().all(|weight| weight.is_finite()), "{weights:?}");
    }

    #[test]
    fn only_experts_of_the_best_groups_are_selected() {
        let groups = Some(ExpertGroups { count: 3, used: 1 });
        let routing =
            Routing { normalise_weights: false, weights: RouterWeights::Sigmoid, groups, ..Routing::softmax(2) };
        // The best expert is in the first group, and the best two are in the second.
        let mut weights = [5f32, -5., -5., 3., -1., 4., 0.1, 0.1, 0.1];
        let selected = routing.select(None, &mut weights, 9);
        let of_token: Vec<usize> = (0..9).filter(|expert| !selected[*expert].is_empty()).collect();
        assert_eq!(of_token, [3, 5]);
        let mut weights = [5f32, -5., -5., 3., -1., 4., 0.1, 0.1, 0.1];
        let groups = Some(ExpertGroups { count: 3, used: 2 });
        let selected = Routing { experts_per_token: 4, groups, ..routing }.select(None, &mut weights, 9);
        let of_token: Vec<usize> = (0..9).filter(|expert| !selected[*expert].is_empty()).collect();
        assert_eq!(of_token, [3, 5, 6, 7], "the third group is better than the first");
    }
}
