//! Measures and decodes media files, in this process.
//!
//! Files are hostile input, so the server does it in a child process (`audio::process`).

mod aac_config;
mod audio_file;
mod edit_list;
mod measuring;
mod opus;
mod packet_decoder;
mod signal;
#[cfg(test)]
mod tests;

use symphonia::core::io::MediaSource;

use super::error::AudioError;
use audio_file::{AudioFile, Next};
pub use measuring::measure;
use signal::Signal;

/// Decodes a file to mono samples at 16 kHz: the mean of its channels, resampled.
///
/// `sink` takes blocks of samples, and stops the decoding with an error of its own. Packets that are damaged are left
/// out. Returns the number of samples. Fails with [`AudioError::TooLong`] after `max_seconds` of audio, and if there is
/// not a single sample.
pub fn decode<'a>(
    source: impl MediaSource + Clone + 'a,
    max_seconds: u32,
    sink: &mut dyn FnMut(&[f32]) -> Result<(), AudioError>,
) -> Result<u64, AudioError> {
    let mut file = AudioFile::open(source)?;
    let mut signal = Signal::new(max_seconds);
    signal.begin_track(file.track());
    let (mut mono, mut was_damaged) = (Vec::new(), false);
    loop {
        match file.next_packet() {
            Next::End => break,
            Next::Track => signal.begin_track(file.track()),
            Next::Packet(packet) => {
                mono.clear();
                let decoder = &mut file.track().decoder;
                if let Some(layout) = decoder.decode(&packet, &mut mono) {
                    signal.push(&mono, layout.rate, sink)?;
                } else if !packet.data.is_empty() {
                    was_damaged = true;
                }
            }
        }
        if signal.is_complete() {
            break;
        }
    }
    match signal.finish(sink)? {
        0 if was_damaged => Err(AudioError::Damaged),
        0 => Err(AudioError::NoSamples),
        samples => Ok(samples),
    }
}
