//! The number of prompt tokens that a step may prefill without a noticeable delay for decoding sequences.
//!
//! The number is derived from measurements, because a fixed chunk size is either too long on a slow machine (active
//! generations stall) or too short on a fast one (prompts take too long).

use std::time::Duration;

use crate::text::scheduler::Row;

/// The longest that a step may take while nothing decodes: new requests and cancellations are seen between steps.
const MAX_STEP_SECONDS: f64 = 0.25;
/// A step with prompt tokens may take this many times as long as one without.
const MAX_SLOWDOWN: f64 = 2.5;
/// If more sequences prefill than decode, the prompt part of a step grows by that ratio, up to this factor: a burst of
/// requests gets its first tokens sooner.
const MAX_PREFILL_SHARE: f64 = 4.;
/// Weight of the newest measurement in a moving average.
const NEWEST_WEIGHT: f64 = 0.2;
/// With fewer, prompts would take too many steps.
const MIN_PREFILL_TOKENS: usize = 16;
/// The chunk size before anything is measured.
const INITIAL_PREFILL_TOKENS: usize = 32;

/// The composition of a step, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepSizes {
    pub prompt: usize,
    /// Newest tokens of decoding sequences.
    pub decoding: usize,
    /// Draft tokens after those, and tokens that are computed again because a draft was rejected.
    pub draft: usize,
}

impl StepSizes {
    pub fn add(&mut self, row: &Row) {
        match row.is_prefill() {
            true => self.prompt += row.tokens.len(),
            false => (self.decoding, self.draft) = (self.decoding + 1, self.draft + row.draft + row.again),
        }
    }
}

/// The costs that decide whether speculation pays, in seconds.
#[derive(Clone, Copy, Debug)]
pub struct SpeculationCosts {
    /// Time that an accepted draft token saves: one sequence's share of a step.
    pub token: f64,
    /// The cost of verifying one draft token.
    pub check: f64,
    /// A decode step of a single sequence.
    pub step: f64,
    /// One prompt token.
    pub prompt: f64,
}

impl SpeculationCosts {
    /// The acceptance rate at which verifying free proposals saves as much as it costs.
    pub fn break_even_acceptance(&self) -> f32 {
        (self.check / self.token) as f32
    }
}

/// Moving averages of recent step costs, in seconds.
#[derive(Debug)]
pub struct StepCostModel {
    max_prefill: usize,
    /// A decode step of a single sequence. Each further sequence costs about as much as a prompt token.
    decode: Option<f64>,
    /// One prompt token.
    prompt: Option<f64>,
    /// One draft token.
    draft: Option<f64>,
}

impl StepCostModel {
    /// `max_prefill`: max prompt tokens per step.
    pub fn new(max_prefill: usize) -> Self {
        Self { max_prefill, decode: None, prompt: None, draft: None }
    }

    /// A decode step of `decoding` sequences without prompt tokens.
    fn decode(&self, decoding: usize) -> Option<f64> {
        Some(self.decode? + decoding.saturating_sub(1) as f64 * self.prompt.unwrap_or(0.))
    }

    /// The max prompt tokens of the next step, with `decoding` sequences that decode and `prefilling` that prefill.
    pub fn prefill_chunk(&self, decoding: usize, prefilling: usize) -> usize {
        let Some(token) = self.prompt else { return INITIAL_PREFILL_TOKENS.min(self.max_prefill) };
        let budget_seconds = match self.decode(decoding) {
            Some(decode) if decoding > 0 => {
                decode * (MAX_SLOWDOWN - 1.) * (prefilling as f64 / decoding as f64).clamp(1., MAX_PREFILL_SHARE)
            }
            _ => MAX_STEP_SECONDS,
        };
        ((budget_seconds / token) as usize).max(MIN_PREFILL_TOKENS).min(self.max_prefill)
    }

    /// Cost and gain of speculation if `decoding` sequences share a step. `None`: nothing is measured yet, or verifying
    /// a draft token costs more than it can save.
    pub fn speculation_costs(&self, decoding: usize) -> Option<SpeculationCosts> {
        let token = self.decode(decoding)? / decoding.max(1) as f64;
        let check = self.draft.or(self.prompt)?;
        let prompt = self.prompt.unwrap_or(check);
        (check < token).then_some(SpeculationCosts { token, check, step: self.decode?, prompt })
    }

    /// Records the duration of a step.
    pub fn measure(&mut self, sizes: StepSizes, took: Duration) {
        let took = took.as_secs_f64();
        let StepSizes { prompt, decoding, draft } = sizes;
        if took == 0. {
            return;
        }
        let decode_seconds = if decoding > 0 { self.decode(decoding).unwrap_or(0.) } else { 0. };
        let remaining_seconds = (took - decode_seconds).max(took * 0.05);
        let other_rows_seconds = decoding.saturating_sub(1) as f64 * self.prompt.unwrap_or(0.);
        match (prompt, draft) {
            (0, 0) => update_average(&mut self.decode, (took - other_rows_seconds).max(took / decoding.max(1) as f64)),
            (0, _) => update_average(&mut self.draft, remaining_seconds / draft as f64),
            (_, 0) if prompt >= MIN_PREFILL_TOKENS.min(self.max_prefill) => {
                update_average(&mut self.prompt, remaining_seconds / prompt as f64)
            }
            _ => {}
        }
    }
}

/// Adds a measurement to a moving average.
pub fn update_average(mean: &mut Option<f64>, new: f64) {
    *mean = Some(mean.map_or(new, |old| old + (new - old) * NEWEST_WEIGHT));
}

#[cfg(test)]
mod tests {
    use super::{StepCostModel, StepSizes};
    use std::time::Duration;

    fn measure_often(prompt: usize, decoding: usize, draft: usize, millis: u64, costs: &mut StepCostModel) {
        (0..50).for_each(|_| costs.measure(StepSizes { prompt, decoding, draft }, Duration::from_millis(millis)));
    }

    fn break_even_acceptance(costs: &StepCostModel, decoding: usize) -> Option<f32> {
        costs.speculation_costs(decoding).map(|found| found.break_even_acceptance())
    }

    #[test]
    fn prefill_chunks_follow_the_measured_costs() {
        let mut costs = StepCostModel::new(512);
        assert_eq!(costs.prefill_chunk(1, 1), 32, "small before anything is measured");
        measure_often(0, 1, 0, 20, &mut costs);
        measure_often(100, 0, 0, 50, &mut costs);
        assert_eq!(costs.prefill_chunk(1, 1), 60, "30 ms at half a millisecond each");
        assert_eq!(costs.prefill_chunk(21, 1), 90, "many decoding sequences make a step longer anyway");
        assert_eq!(
            (costs.prefill_chunk(1, 2), costs.prefill_chunk(1, 9)),
            (120, 240),
            "more if more prefill than decode, within bounds"
        );
        assert_eq!(costs.prefill_chunk(21, 21), 90);
        assert_eq!(costs.prefill_chunk(0, 1), 500, "a quarter of a second");
        measure_often(0, 21, 0, 30, &mut costs);
        assert_eq!(costs.prefill_chunk(1, 1), 60, "consistent with the cost of one sequence");
        measure_often(100, 0, 0, 1_000, &mut costs);
        assert_eq!((costs.prefill_chunk(1, 1), costs.prefill_chunk(0, 1)), (16, 25));
    }

    #[test]
    fn the_setting_is_the_maximum() {
        let mut costs = StepCostModel::new(32);
        measure_often(32, 0, 0, 1, &mut costs);
        assert_eq!((costs.prefill_chunk(0, 1), StepCostModel::new(8).prefill_chunk(1, 1)), (32, 8));
    }

    #[test]
    fn speculation_pays_only_in_small_batches() {
        let mut costs = StepCostModel::new(512);
        assert_eq!(break_even_acceptance(&costs, 1), None, "nothing is measured");
        measure_often(0, 1, 0, 20, &mut costs);
        measure_often(100, 0, 0, 400, &mut costs);
        assert!((break_even_acceptance(&costs, 1).unwrap() - 0.2).abs() < 1e-3);
        assert!(
            (break_even_acceptance(&costs, 5).unwrap() - 4. / 7.2).abs() < 1e-3,
            "{:?}",
            break_even_acceptance(&costs, 5)
        );
        measure_often(0, 1, 5, 60, &mut costs);
        assert_eq!(break_even_acceptance(&costs, 5), None, "eight milliseconds to save seven");
    }
}
