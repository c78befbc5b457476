//! How many prompt tokens a step takes, so that nobody who reads an answer notices them.

use std::time::Duration;

use crate::engine::text::scheduler::Row;

/// The longest that a step may take while nobody waits for the next token of an answer: prefilling
/// and cancellations are seen between steps.
const MAX_STEP_SECONDS: f64 = 0.25;
/// A step with prompt tokens in it may take so many times as long as one without.
const MAX_SLOWDOWN: f64 = 2.5;
/// Where more wait for their first token than for their next, the prompts' part of a step may be longer
/// by that ratio, up to this: a crowd that arrives together is served sooner, and then all at once.
const MAX_PREFILL_SHARE: f64 = 4.;
/// How much the newest measurement counts.
const NEWEST_WEIGHT: f64 = 0.2;
/// Below this, prompts would never come to their end.
const MIN_PREFILL_TOKENS: usize = 16;
/// As long as nothing is known.
const INITIAL_PREFILL_TOKENS: usize = 32;

/// What a step is made of, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepSizes {
    pub prompt: usize,
    /// The newest tokens of decoding.
    pub decoding: usize,
    /// Tokens guessed after those.
    pub draft: usize,
}

impl StepSizes {
    pub fn add(&mut self, row: &Row) {
        match row.is_prefill() {
            true => self.prompt += row.tokens.len(),
            false => (self.decoding, self.draft) = (self.decoding + 1, self.draft + row.draft),
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
    pub fn break_even_acceptance(&self) -> f32 {
        (self.check / self.token) as f32
    }
}

/// What steps have cost of late, in seconds.
#[derive(Debug)]
pub struct StepCostModel {
    max_prefill: usize,
    /// A step of one answer alone. Each further answer costs about as much as a prompt token.
    decode: Option<f64>,
    /// One prompt token.
    prompt: Option<f64>,
    /// One guessed token.
    draft: Option<f64>,
}

impl StepCostModel {
    /// `most`: prompt tokens of a step at best.
    pub fn new(max_prefill: usize) -> Self {
        Self { max_prefill, decode: None, prompt: None, draft: None }
    }

    /// A step of so many decoding alone.
    fn decode(&self, decoding: usize) -> Option<f64> {
        Some(self.decode? + decoding.saturating_sub(1) as f64 * self.prompt.unwrap_or(0.))
    }

    /// Prompt tokens that the next step may take decode_seconds so many decoding, while so many wait for their
    /// first token.
    pub fn prefill_chunk(&self, decoding: usize, prefilling: usize) -> usize {
        let Some(token) = self.prompt else { return INITIAL_PREFILL_TOKENS.min(self.max_prefill) };
        let room = match self.decode(decoding) {
            Some(decode) if decoding > 0 => {
                decode * (MAX_SLOWDOWN - 1.) * (prefilling as f64 / decoding as f64).clamp(1., MAX_PREFILL_SHARE)
            }
            _ => MAX_STEP_SECONDS,
        };
        ((room / token) as usize).max(MIN_PREFILL_TOKENS).min(self.max_prefill)
    }

    /// What guessing costs and saves if `decoding` decoding share a step. `None`: nothing is known yet,
    /// or checking a guess costs more than a step.
    pub fn speculation_costs(&self, decoding: usize) -> Option<SpeculationCosts> {
        let token = self.decode(decoding)? / decoding.max(1) as f64;
        let check = self.draft.or(self.prompt)?;
        let prompt = self.prompt.unwrap_or(check);
        (check < token).then_some(SpeculationCosts { token, check, step: self.decode?, prompt })
    }

    /// A step took so long.
    pub fn measure(&mut self, sizes: StepSizes, took: Duration) {
        let took = took.as_secs_f64();
        let StepSizes { prompt, decoding, draft } = sizes;
        if took == 0. {
            return;
        }
        let decode_seconds = if decoding > 0 { self.decode(decoding).unwrap_or(0.) } else { 0. };
        let rest = (took - decode_seconds).max(took * 0.05);
        let others = decoding.saturating_sub(1) as f64 * self.prompt.unwrap_or(0.);
        match (prompt, draft) {
            (0, 0) => update_average(&mut self.decode, (took - others).max(took / decoding.max(1) as f64)),
            (0, _) => update_average(&mut self.draft, rest / draft as f64),
            (_, 0) if prompt >= MIN_PREFILL_TOKENS.min(self.max_prefill) => {
                update_average(&mut self.prompt, rest / prompt as f64)
            }
            _ => {}
        }
    }
}

/// Takes a new measurement into a mean of those of late.
pub fn update_average(mean: &mut Option<f64>, new: f64) {
    *mean = Some(mean.map_or(new, |old| old + (new - old) * NEWEST_WEIGHT));
}

#[cfg(test)]
mod tests {
    use super::{StepCostModel, StepSizes};
    use std::time::Duration;

    fn measured(prompt: usize, decoding: usize, draft: usize, millis: u64, pace: &mut StepCostModel) {
        (0..50).for_each(|_| pace.measure(StepSizes { prompt, decoding, draft }, Duration::from_millis(millis)));
    }

    fn break_even_acceptance(pace: &StepCostModel, decoding: usize) -> Option<f32> {
        pace.speculation_costs(decoding).map(|speculation_costs| speculation_costs.break_even_acceptance())
    }

    #[test]
    fn prompts_take_what_running_answers_leave() {
        let mut pace = StepCostModel::new(512);
        assert_eq!(pace.prefill_chunk(1, 1), 32, "careful before anything is known");
        measured(0, 1, 0, 20, &mut pace);
        measured(100, 0, 0, 50, &mut pace);
        assert_eq!(pace.prefill_chunk(1, 1), 60, "30 ms at half a millisecond each");
        assert_eq!(pace.prefill_chunk(21, 1), 90, "many decoding take longer by themselves");
        assert_eq!(
            (pace.prefill_chunk(1, 2), pace.prefill_chunk(1, 9)),
            (120, 240),
            "where more wait than run, but within bounds"
        );
        assert_eq!(pace.prefill_chunk(21, 21), 90);
        assert_eq!(pace.prefill_chunk(0, 1), 500, "a quarter of a second");
        measured(0, 21, 0, 30, &mut pace);
        assert_eq!(pace.prefill_chunk(1, 1), 60, "which says the same of one");
        measured(100, 0, 0, 1_000, &mut pace);
        assert_eq!((pace.prefill_chunk(1, 1), pace.prefill_chunk(0, 1)), (16, 25));
    }

    #[test]
    fn the_setting_is_the_most() {
        let mut pace = StepCostModel::new(32);
        measured(32, 0, 0, 1, &mut pace);
        assert_eq!((pace.prefill_chunk(0, 1), StepCostModel::new(8).prefill_chunk(1, 1)), (32, 8));
    }

    #[test]
    fn guesses_are_worth_it_while_a_step_is_not_shared_by_many() {
        let mut pace = StepCostModel::new(512);
        assert_eq!(break_even_acceptance(&pace, 1), None, "nothing is known");
        measured(0, 1, 0, 20, &mut pace);
        measured(100, 0, 0, 400, &mut pace);
        assert!((break_even_acceptance(&pace, 1).unwrap() - 0.2).abs() < 1e-3);
        assert!(
            (break_even_acceptance(&pace, 5).unwrap() - 4. / 7.2).abs() < 1e-3,
            "{:?}",
            break_even_acceptance(&pace, 5)
        );
        measured(0, 1, 5, 60, &mut pace);
        assert_eq!(break_even_acceptance(&pace, 5), None, "eight milliseconds to save seven");
    }
}
