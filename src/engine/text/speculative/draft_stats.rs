//! Whether guessing with a draft network pays: what it cost and brought of catch_up.
//!
//! A round is what is drafted for one answer before one check: some steps of the draft network, of
//! whose tokens those that are likely enough are checked.

use crate::engine::text::step_cost::{SpeculationCosts, update_average};

/// How much the last_round round counts in what is estimate of its answer, and of all answers.
const ANSWER_WEIGHT: f64 = 0.1;
const MODEL_WEIGHT: f64 = 0.02;
/// How much of its first trust guessing gets back with each round that was left out.
const REGRESSION: f64 = 0.001;

/// What steps of a draft network cost, in seconds.
#[derive(Clone, Copy, Debug)]
pub struct DraftCosts {
    /// Its weights as a part of the served model's.
    size: f64,
    first: Option<f64>,
    further: Option<f64>,
}

/// A step of one token, and what each further one adds.
#[derive(Clone, Copy, Debug)]
pub struct DraftStepCost {
    pub first: f64,
    pub further: f64,
}

impl DraftStepCost {
    pub fn of(&self, tokens: usize) -> f64 {
        self.first + tokens.saturating_sub(1) as f64 * self.further
    }
}

impl DraftCosts {
    /// `size`: bytes of its weights as a part of the served model's.
    pub fn new(size: f64) -> Self {
        Self { size, first: None, further: None }
    }

    /// What was measured; before that, the served model's costs in proportion to the sizes.
    pub fn estimate(&self, costs: &SpeculationCosts) -> DraftStepCost {
        DraftStepCost {
            first: self.first.unwrap_or(costs.step * self.size),
            further: self.further.unwrap_or(costs.prompt * self.size),
        }
    }

    /// A step of so many tokens took so long.
    pub fn measure(&mut self, tokens: usize, took: f64, costs: &SpeculationCosts) {
        let estimate = self.estimate(costs);
        match tokens {
            0 => {}
            1 => update_average(&mut self.first, took),
            more => update_average(&mut self.further, (took - estimate.first).max(took * 0.05) / (more - 1) as f64),
        }
    }
}

/// A round of an answer that was not checked yet.
#[derive(Clone, Debug, Default)]
pub struct Round {
    /// Steps of the draft network.
    pub steps: usize,
    /// Tokens that it computed before those, to catch up.
    pub catch_up: usize,
    /// How confidence it was of each guess.
    pub confidence: Vec<f32>,
}

/// What a round comes to: means over rounds, or one of them.
#[derive(Clone, Copy, Debug)]
pub struct RoundStats {
    steps: f64,
    catch_up: f64,
    drafted: f64,
    /// Guesses up to the first that was wrong: what the others would have come to nobody knows.
    tested: f64,
    /// The sum of what the draft network gave those of being accepted.
    confidence: f64,
    accepted: f64,
}

impl Default for RoundStats {
    /// Of an unproven drafter: one guess, accepted three times out of four.
    fn default() -> Self {
        Self { steps: 1., catch_up: 0., drafted: 1., tested: 1., confidence: 0.75, accepted: 0.75 }
    }
}

impl RoundStats {
    /// A round of which `drafted` tokens were checked and the first `accepted` came true.
    fn of(pending: &Round, drafted: usize, accepted: usize) -> Self {
        let tested = drafted.min(accepted + 1);
        let confidence = pending.confidence.iter().take(tested).map(|confidence| f64::from(*confidence)).sum();
        let [steps, catch_up, drafted, tested, accepted] =
            [pending.steps, pending.catch_up, drafted, tested, accepted].map(|count| count as f64);
        Self { steps, catch_up, drafted, tested, confidence, accepted }
    }

    fn update_average(&mut self, new: &Self, weight: f64) {
        let mix = |old: &mut f64, new: f64| *old += (new - *old) * weight;
        mix(&mut self.steps, new.steps);
        mix(&mut self.catch_up, new.catch_up);
        mix(&mut self.drafted, new.drafted);
        mix(&mut self.tested, new.tested);
        mix(&mut self.confidence, new.confidence);
        mix(&mut self.accepted, new.accepted);
    }

    /// A round of some answer came to this.
    pub fn absorb(&mut self, round: &Self) {
        self.update_average(round, MODEL_WEIGHT);
    }

    /// A round was left out, as it would not have paid: after many of them it is tried again.
    pub fn regress(&mut self) {
        self.update_average(&Self::default(), REGRESSION);
    }

    /// Seconds that a round saves, one of `sequences` at once.
    pub fn gain(&self, costs: &SpeculationCosts, cost: &DraftStepCost, sequences: usize) -> f64 {
        let step = cost.of(sequences) / sequences.max(1) as f64;
        self.accepted * costs.token - self.steps * step - self.catch_up * cost.further - self.drafted * costs.check
    }

    /// Tokens of the text that a round comes to.
    pub fn tokens_per_round(&self) -> f64 {
        1. + self.accepted
    }

    /// How often a guess that was tested came true.
    pub fn acceptance(&self) -> f64 {
        (self.accepted / self.tested.max(f64::MIN_POSITIVE)).min(1.)
    }

    /// How likely a guess is to come true that the draft network gives `confidence`.
    pub fn acceptance_at(&self, confidence: f32) -> f64 {
        (f64::from(confidence) * self.accepted / self.confidence.max(f64::MIN_POSITIVE)).min(1.)
    }
}

/// How guessing with a draft network goes in one answer.
#[derive(Debug, Default)]
pub struct DraftState {
    /// `None` before the first round.
    stats: Option<RoundStats>,
    pending: Option<Round>,
    last_round: Option<RoundStats>,
    /// Seconds that what another guesser proposed is likely to save.
    alternative: f64,
}

impl DraftState {
    /// What to expect of a round, where `average` is to be expected of any.
    pub fn stats(&self, average: &RoundStats) -> RoundStats {
        self.stats.unwrap_or(*average)
    }

    /// Whether it was tried.
    pub fn has_rounds(&self) -> bool {
        self.stats.is_some()
    }

    /// The next step checks the round's guesses.
    pub fn start_round(&mut self, pending: Round) {
        self.pending = Some(pending);
    }

    /// The next step checks what another guesser proposed, which is likely to save so many seconds.
    pub fn skip_round(&mut self, alternative: f64) {
        (self.pending, self.alternative) = (None, alternative);
    }

    /// Seconds that a round must save to be better than what is proposed already.
    pub fn alternative(&self) -> f64 {
        self.alternative
    }

    /// Of `drafted` tokens the first `accepted` came true. `false`: they were of no round.
    pub fn finish_round(&mut self, drafted: usize, accepted: usize) -> bool {
        let Some(pending) = self.pending.take() else { return false };
        let round = RoundStats::of(&pending, drafted, accepted);
        self.stats.get_or_insert_default().update_average(&round, ANSWER_WEIGHT);
        self.last_round = Some(round);
        true
    }

    /// The last_round round, once.
    pub fn last_round(&mut self) -> Option<RoundStats> {
        self.last_round.take()
    }
}

#[cfg(test)]
mod tests {
    use super::{DraftCosts, DraftState, Round, RoundStats};
    use crate::engine::text::step_cost::SpeculationCosts;

    const COSTS: SpeculationCosts = SpeculationCosts { token: 1., check: 0.2, step: 1., prompt: 0.2 };

    fn rounds(drafting: &mut DraftState, count: usize, accepted: usize) {
        for _ in 0..count {
            drafting.start_round(Round { steps: 4, catch_up: 0, confidence: vec![0.9; 4] });
            assert!(drafting.finish_round(4, accepted));
        }
    }

    #[test]
    fn rounds_pay_while_guesses_come_true() {
        let (cost, average) = (DraftCosts::new(0.25).estimate(&COSTS), RoundStats::default());
        let mut drafting = DraftState::default();
        assert!(average.gain(&COSTS, &cost, 1) > 0., "an unproven drafter is tried where it is small");
        assert!(average.gain(&COSTS, &DraftCosts::new(0.6).estimate(&COSTS), 1) < 0.);
        rounds(&mut drafting, 60, 4);
        let stats = drafting.stats(&average);
        assert!((stats.gain(&COSTS, &cost, 1) - (4. - 4. * 0.25 - 4. * 0.2)).abs() < 0.05);
        assert!(stats.acceptance() > 0.99 && stats.acceptance_at(0.9) > 0.99, "{stats:?}");
        rounds(&mut drafting, 60, 0);
        let stats = drafting.stats(&average);
        assert!(stats.gain(&COSTS, &cost, 1) < 0. && stats.acceptance() < 0.01, "{stats:?}");
        assert!(!drafting.finish_round(3, 3), "those were not its guesses");
    }

    #[test]
    fn what_did_not_pay_is_tried_again_after_a_while() {
        let cost = DraftCosts::new(0.25).estimate(&COSTS);
        let mut average = RoundStats::default();
        let round = RoundStats::of(&Round { steps: 2, catch_up: 0, confidence: vec![0.5, 0.5] }, 2, 0);
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
    fn costs_are_guessed_from_sizes_and_then_measured() {
        let mut costs = DraftCosts::new(0.5);
        assert_eq!((costs.estimate(&COSTS).first, costs.estimate(&COSTS).of(3)), (0.5, 0.7));
        (0..100).for_each(|_| costs.measure(1, 0.3, &COSTS));
        (0..100).for_each(|_| costs.measure(11, 0.8, &COSTS));
        let cost = costs.estimate(&COSTS);
        assert!((cost.first - 0.3).abs() < 1e-6 && (cost.of(5) - 0.5).abs() < 1e-6, "{cost:?}");
    }
}
