//! Finds when each token was spoken, from the attention of some heads of the decoder over the audio, by dynamic time
//! warping. Follows Whisper's reference implementation (<https://github.com/openai/whisper>, `timing.py`).

use outpost_models::ModelError;

/// The width of the median filter over frames.
const FILTER_WIDTH: usize = 7;

/// The attention of heads that align text with audio.
#[derive(Debug)]
pub struct AttentionWeights {
    /// `[heads, tokens, frames]`
    pub values: Vec<f32>,
    pub heads: usize,
    pub tokens: usize,
    pub frames: usize,
}

impl AttentionWeights {
    /// The first frame of each token in `rows`. Only the first `frames` frames have audio. `pause` is called every few
    /// milliseconds.
    ///
    /// # Errors
    /// If `pause` returns one.
    pub fn first_frames(
        &self,
        rows: std::ops::Range<usize>,
        frames: usize,
        pause: &dyn Fn() -> Result<(), ModelError>,
    ) -> Result<Vec<usize>, ModelError> {
        let frames = frames.min(self.frames).max(1);
        let mut mean = vec![0.; rows.len() * frames];
        for head in 0..self.heads {
            pause()?;
            let weights = self.normalised(head, frames);
            for (out, row) in mean.chunks_mut(frames).zip(rows.clone()) {
                let row = weights.get(row * frames..(row + 1) * frames).unwrap_or_default();
                add_filtered(out, row);
            }
        }
        pause()?;
        Ok(warp(&mean, rows.len(), frames))
    }

    /// A head's weights `[tokens, frames]`: each row sums to 1 over the frames with audio, and each frame has mean 0 and
    /// standard deviation 1 over the tokens.
    fn normalised(&self, head: usize, frames: usize) -> Vec<f32> {
        let size = self.tokens * self.frames;
        let weights = self.values.get(head * size..(head + 1) * size).unwrap_or_default();
        let mut all = Vec::with_capacity(self.tokens * frames);
        for row in weights.chunks(self.frames) {
            let row = row.get(..frames).unwrap_or_default();
            let sum = row.iter().sum::<f32>().max(f32::MIN_POSITIVE);
            all.extend(row.iter().map(|weight| weight / sum));
        }
        let (mut sums, mut squares) = (vec![0.; frames], vec![0.; frames]);
        for row in all.chunks(frames) {
            sums.iter_mut().zip(row).for_each(|(sum, weight)| *sum += weight);
        }
        let count = self.tokens.max(1) as f32;
        sums.iter_mut().for_each(|sum| *sum /= count);
        for row in all.chunks(frames) {
            let deviations = row.iter().zip(&sums).map(|(weight, mean)| (weight - mean).powi(2));
            squares.iter_mut().zip(deviations).for_each(|(square, deviation)| *square += deviation);
        }
        let deviations: Vec<f32> =
            squares.iter().map(|square| (square / count).sqrt().max(f32::MIN_POSITIVE)).collect();
        for row in all.chunks_mut(frames) {
            let statistics = sums.iter().zip(&deviations);
            row.iter_mut()
                .zip(statistics)
                .for_each(|(weight, (mean, deviation))| *weight = (*weight - mean) / deviation);
        }
        all
    }
}

/// Adds the medians of each value and its neighbours. The row is mirrored at its ends.
fn add_filtered(out: &mut [f32], row: &[f32]) {
    let half = FILTER_WIDTH / 2;
    if row.len() <= half {
        out.iter_mut().zip(row).for_each(|(out, value)| *out += value);
        return;
    }
    let last = row.len() - 1;
    let mirrored = |at: usize| match at.checked_sub(half) {
        None => half - at,
        Some(at) if at > last => 2 * last - at,
        Some(at) => at,
    };
    for (at, out) in out.iter_mut().enumerate() {
        let mut window = [0.; FILTER_WIDTH];
        for (offset, value) in window.iter_mut().enumerate() {
            *value = row.get(mirrored(at + offset)).copied().unwrap_or(0.);
        }
        window.sort_unstable_by(f32::total_cmp);
        *out += window[half];
    }
}

/// How a path reaches a cell.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// From the previous token and frame.
    Diagonal,
    /// From the previous token in the same frame.
    Token,
    /// From the previous frame of the same token.
    Frame,
}

/// The first frame of each token on the path through `scores`, `[tokens, frames]`, that has the highest sum.
fn warp(scores: &[f32], tokens: usize, frames: usize) -> Vec<usize> {
    let mut steps = vec![Step::Frame; tokens * frames];
    let mut previous = vec![f32::INFINITY; frames + 1];
    previous[0] = 0.;
    for (token, row) in scores.chunks(frames).enumerate() {
        let mut costs = vec![f32::INFINITY; frames + 1];
        for (frame, score) in row.iter().enumerate() {
            let from = [previous[frame], previous[frame + 1], costs[frame]];
            let (step, cost) = match from {
                [diagonal, token, frame] if diagonal < token && diagonal < frame => (Step::Diagonal, diagonal),
                [diagonal, token, frame] if token < diagonal && token < frame => (Step::Token, token),
                [_, _, frame] => (Step::Frame, frame),
            };
            steps[token * frames + frame] = step;
            costs[frame + 1] = cost - score;
        }
        previous = costs;
    }
    let mut first = vec![0; tokens];
    let (mut token, mut frame) = (tokens, frames);
    while token > 0 && frame > 0 {
        first[token - 1] = frame - 1;
        match steps[(token - 1) * frames + frame - 1] {
            Step::Diagonal => (token, frame) = (token - 1, frame - 1),
            Step::Token => token -= 1,
            Step::Frame => frame -= 1,
        }
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_follows_the_highest_scores() {
        #[rustfmt::skip]
        let scores = [
            9., 9., -1., -1., -1., -1.,
            -1., -1., 9., -1., -1., -1.,
            -1., -1., -1., 9., 9., 9.,
        ];
        assert_eq!(warp(&scores, 3, 6), [0, 2, 3]);
        assert_eq!(warp(&[1., 1., 1.], 3, 1), [0, 0, 0]);
    }

    #[test]
    fn the_filter_takes_medians_of_seven() {
        let row = [0., 0., 9., 0., 0., 5., 5., 5., 5., 5.];
        let mut out = vec![1.; 10];
        add_filtered(&mut out, &row);
        assert_eq!(out, [1., 1., 1., 1., 6., 6., 6., 6., 6., 6.]);
    }

    #[test]
    fn tokens_begin_where_their_heads_look() {
        let (tokens, frames) = (4, 40);
        let mut values = Vec::new();
        for _head in 0..2 {
            for token in 0..tokens {
                let near = |frame: usize| if frame / 10 == token { 1. } else { 0.01 };
                let row: Vec<f32> = (0..frames).map(near).collect();
                let sum: f32 = row.iter().sum();
                values.extend(row.iter().map(|weight| weight / sum));
            }
        }
        let weights = AttentionWeights { values, heads: 2, tokens, frames };
        assert_eq!(weights.first_frames(0..4, 40, &|| Ok(())).unwrap(), [0, 10, 20, 30]);
        assert_eq!(weights.first_frames(1..3, 30, &|| Ok(())).unwrap(), [0, 20]);
        assert_eq!(weights.first_frames(0..1, 0, &|| Err(ModelError::Interrupted)), Err(ModelError::Interrupted));
    }
}
