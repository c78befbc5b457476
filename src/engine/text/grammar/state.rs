//! Where one answer stands in its grammar.

use llguidance::Matcher;

use crate::engine::error::Failure;

/// The grammar of one choice, moved on token by token.
pub struct State(Matcher);

impl State {
    pub fn new(matcher: Matcher) -> Self {
        Self(matcher)
    }

    /// Bans every token that cannot come next; an end stays where the grammar may end.
    pub fn restrict(&mut self, logits: &mut [f32]) -> Result<(), Failure> {
        let mask = self.0.compute_mask_or_eos().map_err(|_| too_hard(&self.0))?;
        for (id, logit) in logits.iter_mut().enumerate() {
            if !u32::try_from(id).is_ok_and(|id| (id as usize) < mask.len() && mask.is_allowed(id)) {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    /// Goes on past a token that was allowed; ends of the answer need not be told.
    pub fn take(&mut self, id: u32) -> Result<(), Failure> {
        self.0.consume_token(id).map_err(|_| too_hard(&self.0))
    }

    /// Whether the answer is whole and nothing can be added.
    pub fn is_complete(&self) -> bool {
        self.0.is_stopped() && self.0.stop_reason().is_ok()
    }
}

/// The library's own words are about its insides: the first line says which limit it was.
fn too_hard(matcher: &Matcher) -> Failure {
    let error = matcher.get_error().unwrap_or_default();
    Failure::Grammar(error.lines().next().unwrap_or("it became too complex").to_owned())
}
