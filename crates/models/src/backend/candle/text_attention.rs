//! Causal attention of whole texts without a KV cache, which keeps gradients.

use std::ops::Range;

use candle_core::{DType as ArrayType, Tensor as Array};

use super::attention::{is_valid, sinks_of_scores, soft_capped, softmax};
use super::device::{Candle, tensor_like};
use super::host;
use super::kv_plan::MASKED;
use crate::backend::checks;
use crate::backend::interface::{Backend, Tensor};
use crate::backend::types::AttentionShape;
use crate::error::{ModelError, Result};

/// Queries whose scores are computed at once. Positions after the last of them are left out.
const QUERIES: usize = 128;

impl Candle {
    /// Attention of each token over the tokens of its text up to itself. `texts` are the rows of each text. Queries and
    /// result: `[1, tokens, 1, heads · width]`; keys and values: `[1, tokens, 1, kv_heads · width]`. `sinks`: see
    /// [`kv_attention`](crate::backend::PagedAttention::kv_attention); they get no gradient.
    pub(crate) fn text_attention(
        &self,
        texts: &[Range<usize>],
        shape: &AttentionShape,
        sinks: Option<&Array>,
        [q, k, v]: [&Tensor<Self>; 3],
    ) -> Result<Tensor<Self>> {
        checks::sinks(shape, sinks.map(Array::elem_count))?;
        let AttentionShape { heads, kv_heads, width, window, .. } = *shape;
        let channels = [q.channels, k.channels, v.channels];
        let ends = texts.iter().try_fold(0, |end, text| (text.start == end && text.end > end).then_some(text.end));
        let rows = [q.rows(), k.rows(), v.rows()];
        if !is_valid(shape)
            || channels != [heads, kv_heads, kv_heads].map(|heads| heads * width)
            || ends.map(|end| [end; 3]) != Some(rows)
        {
            return Err(ModelError::Compute(format!("queries of {:?} do not fit {shape:?}", q.shape())));
        }
        if [q, k, v].iter().all(|x| self.computes_on_host(&x.data)) {
            let output = host::text_attention(self, texts, (shape, sinks), [&q.data, &k.data, &v.data])?;
            return tensor_like(q, q.channels, &output);
        }
        let mut outputs = Vec::new();
        for text in texts {
            let (shared, len) = (heads / kv_heads, text.len());
            // `[kv_heads, positions, width]`
            let by_head = |x: &Tensor<Self>| {
                let x = x.data.narrow(0, text.start, len)?.reshape((len, kv_heads, width))?;
                x.transpose(0, 1)?.contiguous()
            };
            let (keys, values) = (by_head(k)?, by_head(v)?);
            let queries = q.data.narrow(0, text.start, len)?.reshape((len, kv_heads, shared, width))?;
            let queries = (queries.permute((1, 2, 0, 3))? * f64::from(shape.scale))?;
            for first in (0..len).step_by(QUERIES) {
                let end = len.min(first + QUERIES);
                let start = window.map_or(0, |window| (first + 1).saturating_sub(window));
                let chunk = queries.narrow(2, first, end - first)?.contiguous()?;
                let chunk = chunk.reshape((kv_heads, shared * (end - first), width))?;
                let part = |x: &Array| x.narrow(1, start, end - start)?.contiguous();
                let scores = soft_capped(chunk.matmul(&part(&keys)?.t()?)?, shape.soft_cap)?;
                let by_query = scores.reshape((kv_heads * shared, end - first, end - start))?;
                let masked = by_query.broadcast_add(&self.mask(first..end, start, window)?)?;
                let masked = masked.reshape((kv_heads, shared * (end - first), end - start))?;
                let sinks = sinks.map(|sinks| sinks_of_scores(sinks, [kv_heads, end - first])).transpose()?;
                let output = softmax(&masked, sinks.as_ref())?.matmul(&part(&values)?)?.reshape((
                    kv_heads,
                    shared,
                    end - first,
                    width,
                ))?;
                outputs.push(output.permute((2, 0, 1, 3))?.reshape((end - first, heads * width))?);
                self.pause()?;
            }
        }
        tensor_like(q, q.channels, &Array::cat(&outputs, 0)?)
    }

    /// Added to the scores of these queries over the positions from `start` to the last query: `[queries, positions]`.
    fn mask(&self, queries: Range<usize>, start: usize, window: Option<usize>) -> Result<Array> {
        let positions = queries.end - start;
        let visible =
            |query: usize, position: usize| position <= query && window.is_none_or(|window| query - position < window);
        let row =
            |query: usize| (start..queries.end).map(move |position| if visible(query, position) { 0. } else { MASKED });
        let mask: Vec<f32> = queries.clone().flat_map(row).collect();
        Ok(Array::from_vec(mask, (queries.len(), positions), self.device())?.to_dtype(ArrayType::F32)?)
    }
}
