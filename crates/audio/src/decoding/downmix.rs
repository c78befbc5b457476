//! From the channels of a file to one.
//!
//! The mean of the channels is silent if they are opposite, as in a recording of one microphone over two wires of which
//! one is swapped. So the energy of the mean is compared with that of the channels, in windows of a quarter of a second.
//! Where the mean cancels, the loudest channel is used instead. A change from one to the other is a short cross-fade at
//! the beginning of the window.
//!
//! The choice is made for each quarter of a second and not for the file, because decoding streams. The energy of the
//! mix is compared with what unrelated channels would give, so that the threshold does not depend on the number of
//! channels. Two thresholds and the cross-fade prevent flutter and clicks.

use super::packet_decoder::Layout;
use crate::error::AudioError;

/// Windows per second, and the most frames of one.
const WINDOWS_PER_SECOND: u32 = 4;
const MAX_WINDOW: usize = 16_384;
/// Cross-fades per second of audio: one takes 10 ms.
const FADES_PER_SECOND: u32 = 100;
/// The mean cancels if its energy is below this fraction of what channels without any relation would give. Opposite
/// channels give 0, and equal ones more than 1.
const CANCELLED: f64 = 0.1;
/// The mean is used again above this fraction.
const RESTORED: f64 = 0.3;
/// The mean square below which a window tells nothing: 100 dB below full scale.
const SILENCE: f64 = 1e-10;

type Sink<'a> = dyn FnMut(&[f32], u32) -> Result<(), AudioError> + 'a;

/// Mixes interleaved frames to mono.
#[derive(Default)]
pub struct Downmix {
    layout: Option<Layout>,
    /// Frames that do not fill a window yet; interleaved.
    window: Vec<f32>,
    /// The choice of the previous window. `None` if only silence precedes.
    output: Option<Output>,
}

/// The channels of a window that are used.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Output {
    Mean,
    Channel(usize),
}

impl Output {
    fn of(self, frame: &[f32]) -> f32 {
        match self {
            Self::Channel(channel) => frame.get(channel).copied().unwrap_or_default(),
            Self::Mean => mean(frame),
        }
    }
}

impl Downmix {
    /// Passes on what the frames complete, with its sample rate. Samples that are no numbers become 0, and samples
    /// outside ±1 are clipped, as in 16-bit audio.
    pub fn push(&mut self, frames: &[f32], layout: Layout, sink: &mut Sink<'_>) -> Result<(), AudioError> {
        if self.layout != Some(layout) {
            self.finish(sink)?;
            *self = Self { layout: Some(layout), ..Self::default() };
        }
        let full = window_frames(layout.rate) * layout.channels;
        for part in frames.chunks(full) {
            let clean = |sample: &f32| if sample.is_finite() { sample.clamp(-1.0, 1.0) } else { 0.0 };
            self.window.extend(part.iter().map(clean));
            // One channel needs no decision.
            if layout.channels == 1 {
                sink(&std::mem::take(&mut self.window), layout.rate)?;
            }
            while self.window.len() >= full {
                let rest = self.window.split_off(full);
                let window = std::mem::replace(&mut self.window, rest);
                sink(&self.mix(&window, layout), layout.rate)?;
            }
        }
        Ok(())
    }

    /// Passes on the last window.
    pub fn finish(&mut self, sink: &mut Sink<'_>) -> Result<(), AudioError> {
        let window = std::mem::take(&mut self.window);
        match self.layout {
            Some(layout) if !window.is_empty() => sink(&self.mix(&window, layout), layout.rate),
            _ => Ok(()),
        }
    }

    fn mix(&mut self, window: &[f32], layout: Layout) -> Vec<f32> {
        let before = self.output;
        self.output = choose(window, layout.channels, before);
        let output = self.output.unwrap_or(Output::Mean);
        let before = before.unwrap_or(output);
        let fade = if before == output { 0 } else { layout.rate / FADES_PER_SECOND };
        let values = window.chunks_exact(layout.channels).zip(1_u32..).map(|(frame, number)| {
            let value = output.of(frame);
            if number > fade {
                return value;
            }
            let share = ratio(number, fade);
            share * value + (1.0 - share) * before.of(frame)
        });
        values.collect()
    }
}

/// Chooses the output of a window. Silence keeps the previous choice.
fn choose(window: &[f32], channels: usize, before: Option<Output>) -> Option<Output> {
    let mut energies = vec![0.0; channels];
    let mut of_mean = 0.0;
    for frame in window.chunks_exact(channels) {
        for (energy, value) in energies.iter_mut().zip(frame) {
            *energy += f64::from(*value).powi(2);
        }
        of_mean += f64::from(mean(frame)).powi(2);
    }
    let total: f64 = energies.iter().sum();
    #[expect(clippy::cast_precision_loss, reason = "a window has few frames and few channels")]
    let (samples, channels) = (window.len() as f64, channels as f64);
    if total < SILENCE * samples {
        return before;
    }
    let current = match before {
        Some(Output::Channel(channel)) => Some(channel),
        _ => None,
    };
    let least = if current.is_some() { RESTORED } else { CANCELLED };
    if of_mean >= least * total / channels.powi(2) {
        return Some(Output::Mean);
    }
    let by_energy = energies.iter().copied().enumerate().rev();
    let (loudest, energy) = by_energy.max_by(|(_, one), (_, other)| one.total_cmp(other))?;
    let is_loud = |channel: &usize| energies.get(*channel).is_some_and(|current| current * 2.0 >= energy);
    Some(Output::Channel(current.filter(is_loud).unwrap_or(loudest)))
}

#[expect(clippy::cast_precision_loss, reason = "a file has few channels")]
fn mean(frame: &[f32]) -> f32 {
    frame.iter().sum::<f32>() / frame.len() as f32
}

#[expect(clippy::cast_precision_loss, reason = "a cross-fade has few frames")]
fn ratio(number: u32, of: u32) -> f32 {
    number as f32 / of as f32
}

fn window_frames(rate: u32) -> usize {
    usize::try_from(rate / WINDOWS_PER_SECOND).map_or(MAX_WINDOW, |frames| frames.clamp(1, MAX_WINDOW))
}
