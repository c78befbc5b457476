//! How many prompt tokens a step takes, so that nobody who reads an answer notices them.

use std::time::Duration;

/// The longest that a step may take while nobody waits for the next token of an answer: newcomers
/// and cancellations are seen between steps.
const LONGEST: f64 = 0.25;
/// A step with prompt tokens in it may take so many times as long as one without.
const STRETCH: f64 = 2.5;
/// How much the newest step counts.
const NEWEST: f64 = 0.2;
/// Below this, prompts would never come to their end.
const LEAST: usize = 16;

/// What steps have cost of late, in seconds.
#[derive(Debug)]
pub(super) struct Pace {
    most: usize,
    /// A step of answers alone.
    decode: Option<f64>,
    /// One prompt token.
    token: Option<f64>,
}

impl Pace {
    /// `most`: prompt tokens of a step at best.
    pub fn new(most: usize) -> Self {
        Self { most, decode: None, token: None }
    }

    /// Prompt tokens that the next step may take. `decoding`: whether answers run beside them.
    pub fn chunk(&self, decoding: bool) -> usize {
        let Some(token) = self.token else { return LEAST.max(32).min(self.most) };
        let room = match self.decode {
            Some(decode) if decoding => decode * (STRETCH - 1.),
            _ => LONGEST,
        };
        ((room / token) as usize).max(LEAST).min(self.most)
    }

    /// A step with `prompt` prompt tokens, and answers beside them if `decoding`, took so long.
    pub fn measure(&mut self, prompt: usize, decoding: bool, took: Duration) {
        let took = took.as_secs_f64();
        if took == 0. {
            return;
        }
        if prompt == 0 {
            blend(&mut self.decode, took);
        } else if prompt >= LEAST.min(self.most) {
            let beside = if decoding { self.decode.unwrap_or(0.) } else { 0. };
            blend(&mut self.token, (took - beside).max(took * 0.1) / prompt as f64);
        }
    }
}

fn blend(mean: &mut Option<f64>, new: f64) {
    *mean = Some(mean.map_or(new, |old| old + (new - old) * NEWEST));
}

#[cfg(test)]
mod tests {
    use super::Pace;
    use std::time::Duration;

    #[test]
    fn prompts_take_what_running_answers_leave() {
        let mut pace = Pace::new(512);
        assert_eq!(pace.chunk(true), 32, "careful before anything is known");
        (0..50).for_each(|_| pace.measure(0, true, Duration::from_millis(20)));
        (0..50).for_each(|_| pace.measure(100, false, Duration::from_millis(50)));
        assert_eq!(pace.chunk(true), 60, "30 ms at half a millisecond each");
        assert_eq!(pace.chunk(false), 500, "a quarter of a second");
        (0..50).for_each(|_| pace.measure(100, false, Duration::from_secs(1)));
        assert_eq!((pace.chunk(true), pace.chunk(false)), (16, 25));
    }

    #[test]
    fn the_setting_is_the_most() {
        let mut pace = Pace::new(32);
        (0..50).for_each(|_| pace.measure(32, false, Duration::from_micros(10)));
        assert_eq!((pace.chunk(false), Pace::new(8).chunk(true)), (32, 8));
    }
}
