//! How many prompt tokens a step takes, so that nobody who reads an answer notices them.

use std::time::Duration;

use crate::engine::text::scheduler::Row;

/// The longest that a step may take while nobody waits for the next token of an answer: newcomers
/// and cancellations are seen between steps.
const LONGEST: f64 = 0.25;
/// A step with prompt tokens in it may take so many times as long as one without.
const STRETCH: f64 = 2.5;
/// Where more wait for their first token than for their next, the prompts' part of a step may be longer
/// by that ratio, up to this: a crowd that arrives together is served sooner, and then all at once.
const CROWD: f64 = 4.;
/// How much the newest measurement counts.
const NEWEST: f64 = 0.2;
/// Below this, prompts would never come to their end.
const LEAST: usize = 16;
/// As long as nothing is known.
const FIRST: usize = 32;

/// What a step is made of, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepSizes {
    pub prompt: usize,
    /// The newest tokens of answers.
    pub answers: usize,
    /// Tokens guessed after those.
    pub draft: usize,
}

impl StepSizes {
    pub fn add(&mut self, row: &Row) {
        match row.is_prefill() {
            true => self.prompt += row.tokens.len(),
            false => (self.answers, self.draft) = (self.answers + 1, self.draft + row.draft),
        }
    }
}

/// What guessing is measured by, in seconds.
#[derive(Clone, Copy, Debug)]
pub struct SpeculationCosts {
    /// What a guess that comes true saves: an answer's share of a step.
    pub token: f64,
    /// To check a guess.
    pub check: f64,
    /// A step of one answer alone.
    pub step: f64,
    /// One prompt token.
    pub prompt: f64,
}

impl SpeculationCosts {
    /// How often guesses that cost nothing must come true, so that checking them saves what it costs.
    pub fn worth(&self) -> f32 {
        (self.check / self.token) as f32
    }
}

/// What steps have cost of late, in seconds.
#[derive(Debug)]
pub struct StepCostModel {
    most: usize,
    /// A step of one answer alone. Each further answer costs about as much as a prompt token.
    decode: Option<f64>,
    /// One prompt token.
    prompt: Option<f64>,
    /// One guessed token.
    draft: Option<f64>,
}

impl StepCostModel {
    /// `most`: prompt tokens of a step at best.
    pub fn new(most: usize) -> Self {
        Self { most, decode: None, prompt: None, draft: None }
    }

    /// A step of so many answers alone.
    fn decode(&self, answers: usize) -> Option<f64> {
        Some(self.decode? + answers.saturating_sub(1) as f64 * self.prompt.unwrap_or(0.))
    }

    /// Prompt tokens that the next step may take beside so many answers, while so many wait for their
    /// first token.
    pub fn chunk(&self, answers: usize, newcomers: usize) -> usize {
        let Some(token) = self.prompt else { return FIRST.min(self.most) };
        let room = match self.decode(answers) {
            Some(decode) if answers > 0 => {
                decode * (STRETCH - 1.) * (newcomers as f64 / answers as f64).clamp(1., CROWD)
            }
            _ => LONGEST,
        };
        ((room / token) as usize).max(LEAST).min(self.most)
    }

    /// What guessing costs and saves if `answers` answers share a step. `None`: nothing is known yet,
    /// or checking a guess costs more than a step.
    pub fn prices(&self, answers: usize) -> Option<SpeculationCosts> {
        let token = self.decode(answers)? / answers.max(1) as f64;
        let check = self.draft.or(self.prompt)?;
        let prompt = self.prompt.unwrap_or(check);
        (check < token).then_some(SpeculationCosts { token, check, step: self.decode?, prompt })
    }

    /// A step took so long.
    pub fn measure(&mut self, sizes: StepSizes, took: Duration) {
        let took = took.as_secs_f64();
        let StepSizes { prompt, answers, draft } = sizes;
        if took == 0. {
            return;
        }
        let beside = if answers > 0 { self.decode(answers).unwrap_or(0.) } else { 0. };
        let rest = (took - beside).max(took * 0.05);
        let others = answers.saturating_sub(1) as f64 * self.prompt.unwrap_or(0.);
        match (prompt, draft) {
            (0, 0) => blend(&mut self.decode, (took - others).max(took / answers.max(1) as f64)),
            (0, _) => blend(&mut self.draft, rest / draft as f64),
            (_, 0) if prompt >= LEAST.min(self.most) => blend(&mut self.prompt, rest / prompt as f64),
            _ => {}
        }
    }
}

/// Takes a new measurement into a mean of those of late.
pub fn blend(mean: &mut Option<f64>, new: f64) {
    *mean = Some(mean.map_or(new, |old| old + (new - old) * NEWEST));
}

#[cfg(test)]
mod tests {
    use super::{StepCostModel, StepSizes};
    use std::time::Duration;

    fn measured(prompt: usize, answers: usize, draft: usize, millis: u64, pace: &mut StepCostModel) {
        (0..50).for_each(|_| pace.measure(StepSizes { prompt, answers, draft }, Duration::from_millis(millis)));
    }

    fn worth(pace: &StepCostModel, answers: usize) -> Option<f32> {
        pace.prices(answers).map(|prices| prices.worth())
    }

    #[test]
    fn prompts_take_what_running_answers_leave() {
        let mut pace = StepCostModel::new(512);
        assert_eq!(pace.chunk(1, 1), 32, "careful before anything is known");
        measured(0, 1, 0, 20, &mut pace);
        measured(100, 0, 0, 50, &mut pace);
        assert_eq!(pace.chunk(1, 1), 60, "30 ms at half a millisecond each");
        assert_eq!(pace.chunk(21, 1), 90, "many answers take longer by themselves");
        assert_eq!((pace.chunk(1, 2), pace.chunk(1, 9)), (120, 240), "where more wait than run, but within bounds");
        assert_eq!(pace.chunk(21, 21), 90);
        assert_eq!(pace.chunk(0, 1), 500, "a quarter of a second");
        measured(0, 21, 0, 30, &mut pace);
        assert_eq!(pace.chunk(1, 1), 60, "which says the same of one");
        measured(100, 0, 0, 1_000, &mut pace);
        assert_eq!((pace.chunk(1, 1), pace.chunk(0, 1)), (16, 25));
    }

    #[test]
    fn the_setting_is_the_most() {
        let mut pace = StepCostModel::new(32);
        measured(32, 0, 0, 1, &mut pace);
        assert_eq!((pace.chunk(0, 1), StepCostModel::new(8).chunk(1, 1)), (32, 8));
    }

    #[test]
    fn guesses_are_worth_it_while_a_step_is_not_shared_by_many() {
        let mut pace = StepCostModel::new(512);
        assert_eq!(worth(&pace, 1), None, "nothing is known");
        measured(0, 1, 0, 20, &mut pace);
        measured(100, 0, 0, 400, &mut pace);
        assert!((worth(&pace, 1).unwrap() - 0.2).abs() < 1e-3);
        assert!((worth(&pace, 5).unwrap() - 4. / 7.2).abs() < 1e-3, "{:?}", worth(&pace, 5));
        measured(0, 1, 5, 60, &mut pace);
        assert_eq!(worth(&pace, 5), None, "eight milliseconds to save seven");
    }
}
