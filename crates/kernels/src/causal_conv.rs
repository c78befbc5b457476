//! Depthwise causal convolutions, which networks with recurrent layers have.

use crate::Pool;
use crate::buffer::SharedSlice;
use crate::rows::{by_rows, load_up_to, store_up_to};
use crate::simd::{Kernel, LANES, Simd, run};

/// `out[t] = bias + Σ weight[i] · x[t − (kernel − 1) + i]`, in each channel.
#[derive(Clone, Copy, Debug)]
pub struct CausalConv<'a> {
    /// `[kernel, channels]`; the last row is the weight of the token itself.
    pub weight: &'a [f32],
    /// `[channels]`
    pub bias: Option<&'a [f32]>,
    pub channels: usize,
}

impl CausalConv<'_> {
    /// Tokens that an output depends on.
    pub fn kernel(&self) -> usize {
        self.weight.len() / self.channels.max(1)
    }

    /// Convolves a text that goes on after the inputs `before`, `[kernel − 1, channels]`; `None`: it begins here. `x` and
    /// `out` are `[tokens, channels]`.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn forward(&self, pool: &Pool, before: Option<&[f32]>, x: &[f32], out: &mut [f32]) {
        let (channels, state) = (self.channels, self.check(before, x));
        assert_eq!(x.len(), out.len(), "x and out have different lengths");
        assert!(self.bias.is_none_or(|bias| bias.len() == channels), "the bias is not [{channels}]");
        let shared = SharedSlice::new(out);
        by_rows(pool, x.len() / channels, channels, |first, rows| {
            // SAFETY: no other task accesses these rows.
            let out = unsafe { shared.get(first * channels, rows * channels) };
            run(pool.isa(), ConvKernel { conv: self, before: before.unwrap_or_default(), state, x, first, out });
        });
    }

    /// The last `kernel − 1` inputs of such a text after `x`, with zeros for those before its beginning:
    /// `[kernel − 1, channels]`.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn last_inputs(&self, before: Option<&[f32]>, x: &[f32], out: &mut [f32]) {
        let state = self.check(before, x) * self.channels;
        assert_eq!(out.len(), state, "the inputs are not [kernel − 1, channels]");
        let kept = state.saturating_sub(x.len());
        let (old, new) = out.split_at_mut(kept);
        match before {
            Some(before) => old.copy_from_slice(&before[state - kept..]),
            None => old.fill(0.),
        }
        new.copy_from_slice(&x[x.len() - new.len()..]);
    }

    /// Checks lengths. Returns the number of inputs before a token that it depends on.
    fn check(&self, before: Option<&[f32]>, x: &[f32]) -> usize {
        let Self { weight, channels, .. } = *self;
        assert!(channels > 0 && !weight.is_empty() && weight.len().is_multiple_of(channels), "no [kernel, channels]");
        assert!(x.len().is_multiple_of(channels), "x is not [tokens, {channels}]");
        let state = self.kernel() - 1;
        assert!(before.is_none_or(|before| before.len() == state * channels), "there are not {state} inputs before");
        state
    }
}

struct ConvKernel<'a> {
    conv: &'a CausalConv<'a>,
    /// `[state, channels]`, or empty: zeros.
    before: &'a [f32],
    state: usize,
    x: &'a [f32],
    /// Index of the first token of `out`.
    first: usize,
    out: &'a mut [f32],
}

impl Kernel for ConvKernel<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { conv: CausalConv { weight, bias, channels }, before, state, x, first, out } = self;
        let channels = *channels;
        for (token, out) in (first..).zip(out.chunks_exact_mut(channels)) {
            for index in (0..channels).step_by(LANES) {
                // SAFETY: `index` is within the rows; [`CausalConv::forward`] has checked the lengths of weight, bias, x and out.
                // Features as `Kernel` says.
                unsafe {
                    let mut sum = bias.map_or(S::splat(0.), |bias| load_up_to::<S>(bias, index));
                    for (step, weight) in weight.chunks_exact(channels).enumerate() {
                        // Tokens from the first of `before` on.
                        let input = token + step;
                        let (rows, row) = if input < state { (before, input) } else { (x, input - state) };
                        if !rows.is_empty() {
                            let input = &rows[row * channels..][..channels];
                            sum = S::fma(load_up_to::<S>(weight, index), load_up_to::<S>(input, index), sum);
                        }
                    }
                    store_up_to::<S>(out, index, sum);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::CausalConv;
    use crate::{Isa, Pool};

    fn values(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 37 + seed * 101) as f32 * 0.71).sin()).collect()
    }

    /// The definition, with a text that has zeros before its beginning.
    fn expected(conv: &CausalConv<'_>, x: &[f32]) -> Vec<f32> {
        let (channels, kernel) = (conv.channels, conv.kernel());
        let input = |token: usize, step: usize, channel: usize| {
            (token + step).checked_sub(kernel - 1).map_or(0., |token| x[token * channels + channel])
        };
        let output = |token: usize, channel: usize| {
            let product = |step: usize| conv.weight[step * channels + channel] * input(token, step, channel);
            conv.bias.map_or(0., |bias| bias[channel]) + (0..kernel).map(product).sum::<f32>()
        };
        let tokens = 0..x.len() / channels;
        tokens.flat_map(|token| (0..channels).map(move |channel| (token, channel))).map(|(t, c)| output(t, c)).collect()
    }

    #[test]
    fn texts_in_pieces_match_the_definition() {
        for (kernel, channels, bias) in [(3, 37, false), (4, 16, true), (1, 5, true)] {
            let (weight, bias) = (values(kernel * channels, 1), bias.then(|| values(channels, 2)));
            let conv = CausalConv { weight: &weight, bias: bias.as_deref(), channels };
            let x = values(700 * channels, 3);
            let expected = expected(&conv, &x);
            for isa in Isa::available() {
                let mut whole = None;
                for piece in [700, 300, 2, 1] {
                    let pool = Pool::with_isa(2, isa);
                    let (mut state, mut found) = (None, Vec::new());
                    for x in x.chunks(piece * channels) {
                        let (mut out, mut after) = (vec![f32::NAN; x.len()], vec![f32::NAN; (kernel - 1) * channels]);
                        conv.forward(&pool, state.as_deref(), x, &mut out);
                        conv.last_inputs(state.as_deref(), x, &mut after);
                        (state, found) = (Some(after), [found, out].concat());
                    }
                    let near = found.iter().zip(&expected).all(|(found, expected)| (found - expected).abs() < 1e-5);
                    assert!(near && found.len() == expected.len(), "{kernel} {channels} {isa:?} {piece}");
                    assert_eq!(whole.get_or_insert_with(|| found.clone()), &found, "{isa:?} {piece}: other bits");
                }
            }
        }
    }
}
