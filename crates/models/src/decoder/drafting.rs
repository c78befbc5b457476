//! Steps of a decoder with a layer for multi-token prediction, and drafts with that layer. Adapters do not change it.

use super::Decoder;
use super::layer::ResidualStream;
use super::mtp::{MtpHead, hidden_before, kept_states, known_hidden};
use super::rows::sequence_slices;
use crate::backend::{Angles, Recurrent, Tensor};
use crate::causal_lm::{BatchRow, Logits};
use crate::error::{ModelError, Result};
use crate::nn::Context;
use crate::state_arenas::StateArenas;

impl<B: Recurrent> Decoder<B> {
    fn mtp_embeddings(&self, ctx: &Context<'_, B>, head: &MtpHead<B>, rows: &[BatchRow<'_>]) -> Result<Tensor<B>> {
        let tokens: Vec<u32> = rows.iter().flat_map(|row| row.tokens).copied().collect();
        let mut embeddings = match head.embed(ctx, &tokens)? {
            Some(embeddings) => embeddings,
            None => self.embed(ctx, &tokens)?,
        };
        self.write_embedded(ctx, &mut embeddings, rows)?;
        Ok(embeddings)
    }

    /// Writes the keys and values of a step's tokens to the arena of `kv`. `stream`: the output of the network's last layer for all tokens.
    /// Returns their hidden states.
    pub(super) fn write_mtp(
        &self,
        head: &MtpHead<B>,
        rows: &[BatchRow<'_>],
        mut stream: ResidualStream<B>,
        angles: &[Angles<B>],
        kv: (&mut B::KvArena, &B::Batch),
    ) -> Result<Tensor<B>> {
        let ctx = &Context::new(&self.backend);
        let hidden = self.apply_output_norm(ctx, &mut stream)?;
        drop(stream);
        let inputs = [&self.mtp_embeddings(ctx, head, rows)?, &hidden_before(ctx, rows, &hidden)?];
        head.write_kv(ctx, inputs, angles, kv)?;
        Ok(hidden)
    }

    /// See [`CausalLm::draft`](crate::causal_lm::CausalLm::draft).
    pub(super) fn draft_next(&self, rows: &[BatchRow<'_>], arenas: &mut StateArenas) -> Result<Logits> {
        let Some(head) = &self.mtp else {
            return Err(ModelError::Compute("the network has no layer that drafts".to_owned()));
        };
        rows.iter().try_for_each(|row| self.check_tokens(row.tokens))?;
        if rows.iter().any(|row| row.tokens.len() != 1) {
            return Err(ModelError::Compute("a draft follows one token".to_owned()));
        }
        let (arenas, _) = arenas.of_device::<B::KvArena, B::StateArena>()?;
        let Some(arena) = arenas.into_iter().next() else {
            return Err(ModelError::Compute("there is no arena for the layer that drafts".to_owned()));
        };
        let ctx = &Context::new(&self.backend);
        let angles = self.angles(rows.len(), || rows.iter().map(|row| (row.start..row.start + 1, row.long)))?;
        let batch = ctx.batch(sequence_slices(rows, 0)?)?;
        let inputs = [&self.mtp_embeddings(ctx, head, rows)?, &known_hidden(ctx, rows, self.config.width)?];
        let hidden = head.forward(ctx, inputs, &angles, (arena, &batch), &self.output_norm)?;
        let kept = kept_states(ctx, rows, &hidden)?;
        let values = self.logits(ctx, head.output(&self.output), Some(hidden))?;
        Ok(Logits { values, vocabulary: self.config.vocabulary, counts: vec![1; rows.len()], hidden: kept })
    }
}
