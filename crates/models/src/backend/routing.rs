//! Routing in mixtures of experts: which experts compute a token, and with which weights. It is computed on the host.

/// Rules for selecting the experts of a token.
#[derive(Clone, Copy, Debug)]
pub struct Routing {
    pub experts_per_token: usize,
    /// Scales the weights of the selected experts to a sum of one.
    pub normalise_weights: bool,
}

impl Routing {
    /// Turns the scores of each token, `[tokens, experts]`, into weights: their softmax, and zero for experts that are not
    /// selected. Returns the tokens of each expert, in ascending order.
    ///
    /// The experts with the largest weights are selected. Of equal weights, the expert with the lower index comes first.
    pub fn select(&self, scores: &mut [f32], experts: usize) -> Vec<Vec<usize>> {
        let mut tokens_of: Vec<Vec<usize>> = vec![Vec::new(); experts];
        let mut order: Vec<usize> = Vec::with_capacity(experts);
        for (token, weights) in scores.chunks_exact_mut(experts.max(1)).enumerate() {
            softmax(weights);
            order.clear();
            order.extend(0..experts);
            order.sort_by(|a, b| weights[*b].total_cmp(&weights[*a]));
            let (selected, others) = order.split_at(self.experts_per_token.min(experts));
            others.iter().for_each(|expert| weights[*expert] = 0.);
            if self.normalise_weights {
                let total: f32 = selected.iter().map(|expert| weights[*expert]).sum();
                selected.iter().for_each(|expert| weights[*expert] /= total);
            }
            selected.iter().for_each(|expert| tokens_of[*expert].push(token));
        }
        tokens_of
    }
}

/// Softmax in place.
pub fn softmax(scores: &mut [f32]) {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    scores.iter_mut().for_each(|score| *score = (*score - max).exp());
    let total: f32 = scores.iter().sum();
    scores.iter_mut().for_each(|score| *score /= total);
}

#[cfg(test)]
mod tests {
    use super::Routing;

    #[test]
    fn the_most_likely_experts_are_selected() {
        let scores = [1f32, 3., 2., 2., 0., 0., 0., 0.].map(f32::ln_1p);
        let mut weights = scores;
        let routing = Routing { experts_per_token: 2, normalise_weights: false };
        assert_eq!(routing.select(&mut weights, 4), [vec![1], vec![0, 1], vec![0], vec![]]);
        let expected = [0., 4. / 12., 3. / 12., 0., 0.25, 0.25, 0., 0.];
        weights.iter().zip(expected).for_each(|(a, b)| assert!((a - b).abs() < 1e-6, "{weights:?}"));
        let mut weights = scores;
        Routing { normalise_weights: true, ..routing }.select(&mut weights, 4);
        let expected = [0., 4. / 7., 3. / 7., 0., 0.5, 0.5, 0., 0.];
        weights.iter().zip(expected).for_each(|(a, b)| assert!((a - b).abs() < 1e-6, "{weights:?}"));
    }
}
