//! Whether guessing with a draft network pays: what it cost and brought of late.
//!
//! A round is what is guessed for one answer before one check: some steps of the draft network, of
//! whose tokens those that are likely enough are checked.

use crate::engine::text::step_cost::{SpeculationCosts, blend};

/// How much the newest round counts in what is known of its answer, and of all answers.
const NEWEST_ROUND: f64 = 0.1;
const NEWEST_OF_ALL: f64 = 0.02;
/// How much of its first trust guessing gets back with each round that was left out.
const RECOVERY: f64 = 0.001;

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
    pub fn known(&self, prices: &SpeculationCosts) -> DraftStepCost {
        DraftStepCost {
            first: self.first.unwrap_or(prices.step * self.size),
            further: self.further.unwrap_or(prices.prompt * self.size),
        }
    }

    /// A step of so many tokens took so long.
    pub fn measure(&mut self, tokens: usize, took: f64, prices: &SpeculationCosts) {
        let known = self.known(prices);
        match tokens {
            0 => {}
            1 => blend(&mut self.first, took),
            more => blend(&mut self.further, (took - known.first).max(took * 0.05) / (more - 1) as f64),
        }
    }
}

/// A round of an answer that was not checked yet.
#[derive(Clone, Debug, Default)]
pub struct Round {
    /// Steps of the draft network.
    pub steps: usize,
    /// Tokens that it computed before those, to catch up.
    pub late: usize,
    /// How sure it was of each guess.
    pub sure: Vec<f32>,
}

/// What a round comes to: means over rounds, or one of them.
#[derive(Clone, Copy, Debug)]
pub struct RoundStats {
    steps: f64,
    late: f64,
    guessed: f64,
    /// Guesses up to the first that was wrong: what the others would have come to nobody knows.
    tested: f64,
    /// The sum of what the draft network gave those of being right.
    sure: f64,
    right: f64,
}

impl Default for RoundStats {
    /// Of an unproven drafter: one guess, right three times out of four.
    fn default() -> Self {
        Self { steps: 1., late: 0., guessed: 1., tested: 1., sure: 0.75, right: 0.75 }
    }
}

impl RoundStats {
    /// A round of which `guessed` tokens were checked and the first `right` came true.
    fn of(trial: &Round, guessed: usize, right: usize) -> Self {
        let tested = guessed.min(right + 1);
        let sure = trial.sure.iter().take(tested).map(|sure| f64::from(*sure)).sum();
        let [steps, late, guessed, tested, right] =
            [trial.steps, trial.late, guessed, tested, right].map(|count| count as f64);
        Self { steps, late, guessed, tested, sure, right }
    }

    fn blend(&mut self, new: &Self, weight: f64) {
        let mix = |old: &mut f64, new: f64| *old += (new - *old) * weight;
        mix(&mut self.steps, new.steps);
        mix(&mut self.late, new.late);
        mix(&mut self.guessed, new.guessed);
        mix(&mut self.tested, new.tested);
        mix(&mut self.sure, new.sure);
        mix(&mut self.right, new.right);
    }

    /// A round of some answer came to this.
    pub fn follow(&mut self, round: &Self) {
        self.blend(round, NEWEST_OF_ALL);
    }

    /// A round was left out, as it would not have paid: after many of them it is tried again.
    pub fn recover(&mut self) {
        self.blend(&Self::default(), RECOVERY);
    }

    /// Seconds that a round saves, one of `lines` at once.
    pub fn gain(&self, prices: &SpeculationCosts, cost: &DraftStepCost, lines: usize) -> f64 {
        let step = cost.of(lines) / lines.max(1) as f64;
        self.right * prices.token - self.steps * step - self.late * cost.further - self.guessed * prices.check
    }

    /// Tokens of the text that a round comes to.
    pub fn yields(&self) -> f64 {
        1. + self.right
    }

    /// How often a guess that was tested came true.
    pub fn hits(&self) -> f64 {
        (self.right / self.tested.max(f64::MIN_POSITIVE)).min(1.)
    }

    /// How likely a guess is to come true that the draft network gives `sure`.
    pub fn chance(&self, sure: f32) -> f64 {
        (f64::from(sure) * self.right / self.sure.max(f64::MIN_POSITIVE)).min(1.)
    }
}

/// How guessing with a draft network goes in one answer.
#[derive(Debug, Default)]
pub struct DraftState {
    /// `None` before the first round.
    effort: Option<RoundStats>,
    trial: Option<Round>,
    newest: Option<RoundStats>,
    /// Seconds that what another guesser proposed is likely to save.
    rival: f64,
}

impl DraftState {
    /// What to expect of a round, where `usual` is to be expected of any.
    pub fn effort(&self, usual: &RoundStats) -> RoundStats {
        self.effort.unwrap_or(*usual)
    }

    /// Whether it was tried.
    pub fn has_begun(&self) -> bool {
        self.effort.is_some()
    }

    /// The next step checks the round's guesses.
    pub fn begin(&mut self, trial: Round) {
        self.trial = Some(trial);
    }

    /// The next step checks what another guesser proposed, which is likely to save so many seconds.
    pub fn give_way(&mut self, rival: f64) {
        (self.trial, self.rival) = (None, rival);
    }

    /// Seconds that a round must save to be better than what is proposed already.
    pub fn rival(&self) -> f64 {
        self.rival
    }

    /// Of `guessed` tokens the first `right` came true. `false`: they were of no round.
    pub fn learn(&mut self, guessed: usize, right: usize) -> bool {
        let Some(trial) = self.trial.take() else { return false };
        let round = RoundStats::of(&trial, guessed, right);
        self.effort.get_or_insert_default().blend(&round, NEWEST_ROUND);
        self.newest = Some(round);
        true
    }

    /// The newest round, once.
    pub fn newest(&mut self) -> Option<RoundStats> {
        self.newest.take()
    }
}

#[cfg(test)]
mod tests {
    use super::{DraftCosts, DraftState, Round, RoundStats};
    use crate::engine::text::step_cost::SpeculationCosts;

    const COSTS: SpeculationCosts = SpeculationCosts { token: 1., check: 0.2, step: 1., prompt: 0.2 };

    fn rounds(drafting: &mut DraftState, count: usize, right: usize) {
        for _ in 0..count {
            drafting.begin(Round { steps: 4, late: 0, sure: vec![0.9; 4] });
            assert!(drafting.learn(4, right));
        }
    }

    #[test]
    fn rounds_pay_while_guesses_come_true() {
        let (cost, usual) = (DraftCosts::new(0.25).known(&COSTS), RoundStats::default());
        let mut drafting = DraftState::default();
        assert!(usual.gain(&COSTS, &cost, 1) > 0., "an unproven drafter is tried where it is small");
        assert!(usual.gain(&COSTS, &DraftCosts::new(0.6).known(&COSTS), 1) < 0.);
        rounds(&mut drafting, 60, 4);
        let effort = drafting.effort(&usual);
        assert!((effort.gain(&COSTS, &cost, 1) - (4. - 4. * 0.25 - 4. * 0.2)).abs() < 0.05);
        assert!(effort.hits() > 0.99 && effort.chance(0.9) > 0.99, "{effort:?}");
        rounds(&mut drafting, 60, 0);
        let effort = drafting.effort(&usual);
        assert!(effort.gain(&COSTS, &cost, 1) < 0. && effort.hits() < 0.01, "{effort:?}");
        assert!(!drafting.learn(3, 3), "those were not its guesses");
    }

    #[test]
    fn what_did_not_pay_is_tried_again_after_a_while() {
        let cost = DraftCosts::new(0.25).known(&COSTS);
        let mut usual = RoundStats::default();
        let round = RoundStats::of(&Round { steps: 2, late: 0, sure: vec![0.5, 0.5] }, 2, 0);
        let often = (1..).find(|_| {
            usual.follow(&round);
            usual.gain(&COSTS, &cost, 1) < 0.
        });
        assert!(often.is_some_and(|rounds| rounds < 50), "{often:?}");
        (0..200).for_each(|_| usual.follow(&round));
        let pause = (1..).find(|_| {
            usual.recover();
            usual.gain(&COSTS, &cost, 1) > 0.
        });
        assert!(pause.is_some_and(|steps| (500..5_000).contains(&steps)), "{pause:?}");
    }

    #[test]
    fn costs_are_guessed_from_sizes_and_then_measured() {
        let mut costs = DraftCosts::new(0.5);
        assert_eq!((costs.known(&COSTS).first, costs.known(&COSTS).of(3)), (0.5, 0.7));
        (0..100).for_each(|_| costs.measure(1, 0.3, &COSTS));
        (0..100).for_each(|_| costs.measure(11, 0.8, &COSTS));
        let cost = costs.known(&COSTS);
        assert!((cost.first - 0.3).abs() < 1e-6 && (cost.of(5) - 0.5).abs() < 1e-6, "{cost:?}");
    }
}
