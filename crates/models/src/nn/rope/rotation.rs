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
                let values = positions().flat_map(|(position, long)| {
                    let magnitude = self.magnitude(position);
                    let value = move |frequency: &f32| function(position as f32 * frequency) * magnitude;
                    self.frequencies(long).iter().map(value)
                });
                out.iter_mut().zip(values).for_each(|(out, value)| *out = value);
                Ok(())
            })
        };
        Ok(Angles { cos: table(f32::cos)?, sin: table(f32::sin)? })
    }
}
