//! The grammar state of one choice.

use llguidance::Matcher;

use crate::error::Failure;

/// The grammar of one choice, advanced token by token.
pub struct GrammarState(Matcher);

impl GrammarState {
    pub fn new(matcher: Matcher) -> Self {
        Self(matcher)
    }

    /// Masks every token that cannot come next. End-of-sequence tokens stay allowed where the grammar may end.
    pub fn restrict(&mut self, logits: &mut [f32]) -> Result<(), Failure> {
        let mask = self.0.compute_mask_or_eos().map_err(|_| limit_error())?;
        for (id, logit) in logits.iter_mut().enumerate() {
            if !u32::try_from(id).is_ok_and(|id| (id as usize) < mask.len() && mask.is_allowed(id)) {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    /// Advances past a sampled token; not needed for end-of-sequence tokens.
    pub fn consume(&mut self, id: u32) -> Result<(), Failure> {
        self.0.consume_token(id).map_err(|_| limit_error())
    }

    /// True once the output is complete and no token can follow.
    pub fn is_complete(&self) -> bool {
        self.0.is_stopped() && self.0.stop_reason().is_ok()
    }
}

/// The library's error concerns its internals: a limit of its parser or lexer was exceeded.
fn limit_error() -> Failure {
    Failure::Grammar("it became too complex".to_owned())
}
