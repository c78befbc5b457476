//! Statistics that decide whether drafting with a draft model, or with a layer for multi-token prediction, pays.
//!
//! A round is what is drafted for one sequence before one verification: some steps of the draft model or layer. Only tokens that
//! are likely enough to be accepted are verified.

use crate::text::step_cost_model::{SpeculationCosts, update_average};

/// Weight of a new round in the averages of its sequence and of the draft model.
const SEQUENCE_WEIGHT: f64 = 0.1;
const MODEL_WEIGHT: f64 = 0.02;
/// Weight with which each skipped round moves the averages back to their initial values.
const REGRESSION_WEIGHT: f64 = 0.001;

/// Measured step costs of a draft model, in seconds.
#[derive(Clone, Copy, Debug)]
pub struct DraftCosts {
    /// Size of its weights relative to the target model's.
    size: f64,
    first: Option<f64>,
    further: Option<f64>,
}

/// The cost of a step with one token, and of each further token, in seconds.
#[derive(Clone, Copy, Debug)]
pub struct DraftStepCost {
    pub first: f64,
    pub further: f64,
}

impl DraftStepCost {
    pub fn seconds(&self, tokens: usize) -> f64 {
        self.first + tokens.saturating_sub(1) as f64 * self.further
    }

    /// Whether a step that is likely to save these seconds costs less.
    pub fn is_worth(&self, gains: impl Iterator<Item = f64>) -> bool {
        let (count, gain) = gains.fold((0, 0.), |(count, sum), gain| (count + 1, sum + gain));
        gain > self.seconds(count)
    }
}

impl DraftCosts {
    /// `size`: the size of its weights relative to the target model's.
    pub fn new(size: f64) -> Self {
        Self { size, first: None, further: None }
    }

    /// The measured costs, or before any measurement the target model's costs scaled by size.
    pub fn estimate(&self, costs: &SpeculationCosts) -> DraftStepCost {
        DraftStepCost {
            first: self.first.unwrap_or(costs.step * self.size),
            further: self.further.unwrap_or(costs.prompt * self.size),
        }
    }

    /// Records a step of `tokens` tokens that took `took` seconds.
    pub fn measure(&mut self, tokens: usize, took: f64, costs: &SpeculationCosts) {
        let estimate = self.estimate(costs);
        match tokens {
            0 => {}
            1 => update_average(&mut self.first, took),
            more => update_average(&mut self.further, (took - estimate.first).max(took * 0.05) / (more - 1) as f64),
        }
    }
}

/// A round that is not verified yet.
#[derive(Clone, Debug, Default)]
pub struct Round {
    /// Steps of the draft model.
    pub steps: usize,
    /// Tokens that it computed first, to catch up with the text.
    pub catch_up: usize,
    /// The probability that it gave each draft token.
    pub confidence: Vec<f32>,
}

/// The result of one round, or averages over rounds.
#[derive(Clone, Copy, Debug)]
pub struct RoundStats {
    steps: f64,
    catch_up: f64,
    drafted: f64,
    /// Tokens that recurrent layers computed again, because the draft was rejected.
    repeated: f64,
    /// Draft tokens up to the first rejected one. Whether later ones were right is unknown.
    tested: f64,
    /// The sum of the probabilities that the draft model gave the tested tokens.
    confidence: f64,
    accepted: f64,
}

impl Default for RoundStats {
    /// Assumed for a new draft model: one draft token, accepted three times out of four.
    fn default() -> Self {
        Self { steps: 1., catch_up: 0., drafted: 1., repeated: 0., tested: 1., confidence: 0.75, accepted: 0.75 }
    }
}

impl RoundStats {
    /// A round of which `drafted` tokens were verified and the first `accepted` were accepted. `repeated`: tokens that are computed again.
    fn new(pending: &Round, drafted: usize, accepted: usize, repeated: usize) -> Self {
        let tested = drafted.min(accepted + 1);
        let confidence = pending.confidence.iter().take(tested).map(|confidence| f64::from(*confidence)).sum();
        let [steps, catch_up, drafted, repeated, tested, accepted] =
            [pending.steps, pending.catch_up, drafted, repeated, tested, accepted].map(|count| count as f64);
        Self { steps, catch_up, drafted, repeated, tested, confidence, accepted }
    }

    fn update_average(&mut self, new: &Self, weight: f64) {
        let mix = |old: &mut f64, new: f64| *old += (new - *old) * weight;
        mix(&mut self.steps, new.steps);
        mix(&mut self.catch_up, new.catch_up);
        mix(&mut self.drafted, new.drafted);
        mix(&mut self.repeated, new.repeated);
        mix(&mut self.tested, new.tested);
        mix(&mut self.confidence, new.confidence);
        mix(&mut self.accepted, new.accepted);
    }

    /// Adds a round of some sequence to the averages.
    pub fn absorb(&mut self, round: &Self) {
        self.update_average(round, MODEL_WEIGHT);
    }

    /// Records a round that was skipped because it would not pay. After many of them drafting is tried again.
    pub fn regress(&mut self) {
        self.update_average(&Self::default(), REGRESSION_WEIGHT);
    }

    /// Seconds that a round saves if `sequences` sequences are drafted for at once.
    pub fn gain(&self, costs: &SpeculationCosts, cost: &DraftStepCost, sequences: usize) -> f64 {
        let step = cost.seconds(sequences) / sequences.max(1) as f64;
        let checked = self.drafted + self.repeated;
        self.accepted * costs.token - self.steps * step - self.catch_up * cost.further - checked * costs.check
    }

    /// Tokens generated per round.
    pub fn tokens_per_round(&self) -> f64 {
        1. + self.accepted
    }

    /// The acceptance rate of tested tokens.
    pub fn acceptance(&self) -> f64 {
        (self.accepted / self.tested.max(f64::MIN_POSITIVE)).min(1.)
    }

    /// The probability that a draft token is accepted, given the draft model's `confidence` in it.
    pub fn acceptance_at(&self, confidence: f32) -> f64 {
        (f64::from(confidence) * self.accepted / self.confidence.max(f64::MIN_POSITIVE)).min(1.)
    }
}

/// What is known of the drafts of one model or layer.
#[derive(Debug)]
pub struct DraftPayoff {
    pub costs: DraftCosts,
    /// Averages over the rounds of all sequences.
    average: RoundStats,
}

impl DraftPayoff {
    /// `size`: see [`DraftCosts::new`].
    pub fn new(size: f64) -> Self {
        Self { costs: DraftCosts::new(size), average: RoundStats::default() }
    }

    /// The statistics of a sequence, and the seconds that a round is likely to save for it, if these are more than its n-gram proposal
    /// saves. `sequences`: those that are drafted for at once.
    pub fn worthwhile(
        &mut self,
        draft: &mut DraftState,
        sequences: usize,
        costs: &SpeculationCosts,
    ) -> Option<(RoundStats, f64)> {
        if let Some(round) = draft.last_round() {
            self.average.absorb(&round);
        }
        let stats = draft.stats(&self.average);
        let gain = stats.gain(costs, &self.costs.estimate(costs), sequences);
        if gain <= draft.alternative().max(0.) {
            self.skip();
            return None;
        }
        Some((stats, gain))
    }

    /// Records that a sequence is not drafted for.
    pub fn skip(&mut self) {
        self.average.regress();
    }
}

/// The draft tokens of a sequence while they are made.
#[derive(Debug)]
pub struct DraftProgress {
    /// The probability that all draft tokens so far are accepted.
    acceptance: f64,
    stats: RoundStats,
    max_tokens: usize,
    pub round: Round,
}

impl DraftProgress {
    pub fn new(stats: RoundStats, max_tokens: usize) -> Self {
        Self { acceptance: 1., stats, max_tokens, round: Round::default() }
    }

    /// Seconds that one more draft token is likely to save, less its verification.
    pub fn expected_gain(&self, costs: &SpeculationCosts) -> f64 {
        self.acceptance * self.stats.acceptance() * costs.token - costs.check
    }

    /// Records a step that proposes a token with this `confidence`. Returns whether the token is likely enough to be verified.
    pub fn push(&mut self, confidence: f32, costs: &SpeculationCosts) -> bool {
        self.round.steps += 1;
        self.acceptance *= self.stats.acceptance_at(confidence);
        let is_likely = self.acceptance * costs.token > costs.check;
        if is_likely {
            self.round.confidence.push(confidence);
        }
        is_likely
    }

    /// Whether there may be more draft tokens.
    pub fn has_room(&self) -> bool {
        self.round.confidence.len() < self.max_tokens
    }
}

/// The drafting state of one sequence.
#[derive(Debug, Default)]
pub struct DraftState {
    /// `None` before the first round.
    stats: Option<RoundStats>,
    pending: Option<Round>,
    last_round: Option<RoundStats>,
    /// Seconds that the n-gram proposal is likely to save.
    alternative: f64,
}

impl DraftState {
    /// The statistics of this sequence, or `average` before its first round.
    pub fn stats(&self, average: &RoundStats) -> RoundStats {
        self.stats.unwrap_or(*average)
    }

    /// True after the first round.
    pub fn has_rounds(&self) -> bool {
        self.stats.is_some()
    }

    /// The next step verifies this round's tokens.
    pub fn start_round(&mut self, pending: Round) {
        self.pending = Some(pending);
    }

    /// The next step verifies an n-gram proposal, which is likely to save `alternative` seconds.
    pub fn skip_round(&mut self, alternative: f64) {
        (self.pending, self.alternative) = (None, alternative);
    }

    /// Seconds that a round must save to beat the n-gram proposal.
    pub fn alternative(&self) -> f64 {
        self.alternative
    }

    /// Records that the first `accepted` of `drafted` tokens were accepted, and that `repeated` tokens are computed again because others
    /// were not. `false`: they came from no round.
    pub fn finish_round(&mut self, drafted: usize, accepted: usize, repeated: usize) -> bool {
        let Some(pending) = self.pending.take() else { return false };
        let round = RoundStats::new(&pending, drafted, accepted, repeated);
        self.stats.get_or_insert_default().update_average(&round, SEQUENCE_WEIGHT);
        self.last_round = Some(round);
        true
    }

    /// Takes the last finished round.
    pub fn last_round(&mut self) -> Option<RoundStats> {
        self.last_round.take()
    }
}

#[cfg(test)]
mod tests {
    use super::{DraftCosts, DraftState, Round, RoundStats};
    use crate::text::step_cost_model::SpeculationCosts;

    const COSTS: SpeculationCosts = SpeculationCosts { token: 1., check: 0.2, step: 1., prompt: 0.2 };

    fn rounds(state: &mut DraftState, count: usize, accepted: usize) {
        for _ in 0..count {
            state.start_round(Round { steps: 4, catch_up: 0, confidence: vec![0.9; 4] });
            assert!(state.finish_round(4, accepted, 0));
        }
    }

    #[test]
    fn rounds_pay_while_drafts_are_accepted() {
        let (cost, average) = (DraftCosts::new(0.25).estimate(&COSTS), RoundStats::default());
        let mut state = DraftState::default();
        assert!(average.gain(&COSTS, &cost, 1) > 0., "a new draft model is tried if it is small");
        assert!(average.gain(&COSTS, &DraftCosts::new(0.6).estimate(&COSTS), 1) < 0.);
        rounds(&mut state, 60, 4);
        let stats = state.stats(&average);
        assert!((stats.gain(&COSTS, &cost, 1) - (4. - 4. * 0.25 - 4. * 0.2)).abs() < 0.05);
        assert!(stats.acceptance() > 0.99 && stats.acceptance_at(0.9) > 0.99, "{stats:?}");
        rounds(&mut state, 60, 0);
        let stats = state.stats(&average);
        assert!(stats.gain(&COSTS, &cost, 1) < 0. && stats.acceptance() < 0.01, "{stats:?}");
        assert!(!state.finish_round(3, 3, 0), "those came from no round");
    }

    #[test]
    fn unprofitable_drafting_is_retried_after_a_while() {
        let cost = DraftCosts::new(0.25).estimate(&COSTS);
        let mut average = RoundStats::default();
        let round = RoundStats::new(&Round { steps: 2, catch_up: 0, confidence: vec![0.5, 0.5] }, 2, 0, 0);
        let often = (1..).find(|_| {
            average.absorb(&round);
            average.gain(&COSTS, &cost, 1) < 0.
        });
        assert!(often.is_some_and(|rounds| rounds < 50), "{often:?}");
        (0..200).for_each(|_| average.absorb(&round));
        let pause = (1..).find(|_| {
            average.regress();
            average.gain(&COSTS, &cost, 1) > 0.
        });
        assert!(pause.is_some_and(|steps| (500..5_000).contains(&steps)), "{pause:?}");
    }

    #[test]
    fn tokens_that_are_computed_again_count_as_a_cost() {
        let cost = DraftCosts::new(0.1).estimate(&COSTS);
        let gain = |repeated: usize| {
            let round = Round { steps: 2, catch_up: 0, confidence: vec![0.5, 0.5] };
            RoundStats::new(&round, 2, 1, repeated).gain(&COSTS, &cost, 1)
        };
        assert!((gain(0) - gain(2) - 2. * COSTS.check).abs() < 1e-9);
    }

    #[test]
    fn costs_are_estimated_from_sizes_and_then_measured() {
        let mut costs = DraftCosts::new(0.5);
        assert_eq!((costs.estimate(&COSTS).first, costs.estimate(&COSTS).seconds(3)), (0.5, 0.7));
        (0..100).for_each(|_| costs.measure(1, 0.3, &COSTS));
        (0..100).for_each(|_| costs.measure(11, 0.8, &COSTS));
        let cost = costs.estimate(&COSTS);
        assert!((cost.first - 0.3).abs() < 1e-6 && (cost.seconds(5) - 0.5).abs() < 1e-6, "{cost:?}");
    }
}
