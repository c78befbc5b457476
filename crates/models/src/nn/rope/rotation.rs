//! The angles of a step.

use super::Rope;
use crate::backend::{Angles, Backend};
use crate::error::Result;

impl Rope {
    /// The angles of tokens at these positions; the flag selects the frequencies for long contexts.
    pub(crate) fn angles<B: Backend, I: Iterator<Item = (usize, bool)>>(
        &self,
        backend: &B,
        tokens: usize,
        positions: impl Fn() -> I,
    ) -> Result<Angles<B>> {
        let table = |function: fn(f32) -> f32| {
            backend.upload([1, tokens, 1, self.frequencies.len()], &mut |out| {
                let angles = positions().flat_map(|(position, long)| {
                    self.frequencies(long).iter().map(move |frequency| position as f32 * frequency)
                });
                out.iter_mut().zip(angles).for_each(|(out, angle)| *out = function(angle) * self.magnitude);
                Ok(())
            })
        };
        Ok(Angles { cos: table(f32::cos)?, sin: table(f32::sin)? })
    }
}
