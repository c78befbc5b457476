//! Decodes the packets of one track.

use symphonia::core::codecs::audio::well_known as codecs;
use symphonia::core::codecs::audio::{AudioCodecId, AudioCodecParameters, AudioDecoder, AudioDecoderOptions};
use symphonia::core::packet::Packet;

use super::aac_config;
use super::opus::{self, OpusDecoder};

/// A decoder of any codec.
pub struct PacketDecoder {
    codec: Codec,
    /// A decoded packet; interleaved.
    interleaved: Vec<f32>,
}

enum Codec {
    Symphonia(Box<dyn AudioDecoder>),
    Opus(Box<OpusDecoder>),
}

/// The sample rate and the number of channels of a track or packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layout {
    pub rate: u32,
    pub channels: usize,
}

impl PacketDecoder {
    /// `None` if the codec is not supported.
    pub fn new(parameters: &AudioCodecParameters) -> Option<Self> {
        let codec = if parameters.codec == codecs::CODEC_ID_OPUS {
            Codec::Opus(Box::new(OpusDecoder::new(parameters.extra_data.as_deref())?))
        } else {
            let options = AudioDecoderOptions::default();
            let parameters = decodable(parameters);
            Codec::Symphonia(symphonia::default::get_codecs().make_audio_decoder(&parameters, &options).ok()?)
        };
        Some(Self { codec, interleaved: Vec::new() })
    }

    /// The channel layout of the header.
    pub fn layout(&self) -> Layout {
        match &self.codec {
            Codec::Opus(decoder) => Layout { rate: opus::RATE, channels: channel_count(decoder.channels()) },
            Codec::Symphonia(decoder) => {
                let parameters = decoder.codec_params();
                let channels = parameters.channels.as_ref().map_or(0, |channels| channels.count());
                Layout { rate: parameters.sample_rate.unwrap_or_default(), channels }
            }
        }
    }

    /// Frames to leave out at the beginning of the track because the codec says so.
    pub fn pre_skip(&self) -> u32 {
        match &self.codec {
            Codec::Opus(decoder) => decoder.pre_skip(),
            Codec::Symphonia(_) => 0,
        }
    }

    /// The length of a packet in frames, if only the codec can tell.
    pub fn packet_frames(&self, packet: &Packet) -> Option<u64> {
        match &self.codec {
            Codec::Opus(_) => Some(opus::packet_frames(&packet.data).saturating_sub(packet.trim_end.get())),
            // A file that breaks off may end with a shorter packet than it says.
            Codec::Symphonia(decoder) => {
                let bytes = pcm_bytes(decoder.codec_info().short_name)? * u64::try_from(self.layout().channels).ok()?;
                (packet.data.len() as u64).checked_div(bytes)
            }
        }
    }

    /// Decodes a packet to interleaved samples. `None` if it is damaged.
    pub fn decode(&mut self, packet: &Packet) -> Option<(Layout, &[f32])> {
        self.interleaved.clear();
        let mut trimmed = 0;
        let layout = match &mut self.codec {
            Codec::Opus(decoder) => {
                decoder.decode(&packet.data, &mut self.interleaved)?;
                trimmed = usize::try_from(packet.trim_end.get()).unwrap_or(usize::MAX);
                Layout { rate: opus::RATE, channels: channel_count(decoder.channels()) }
            }
            Codec::Symphonia(decoder) => {
                let buffer = decoder.decode(packet).ok()?;
                buffer.copy_to_vec_interleaved(&mut self.interleaved);
                Layout { rate: buffer.spec().rate(), channels: buffer.spec().channels().count() }
            }
        };
        let frames = self.interleaved.len().checked_div(layout.channels)?.saturating_sub(trimmed);
        self.interleaved.truncate(frames * layout.channels);
        Some((layout, &self.interleaved))
    }
}

fn channel_count(channels: u32) -> usize {
    usize::try_from(channels).unwrap_or_default()
}

/// The bytes of a sample, of a codec like `pcm_s16le` or `pcm_alaw`.
fn pcm_bytes(codec: &str) -> Option<u64> {
    let format = codec.strip_prefix("pcm_")?;
    let bits: String = format.chars().skip(1).take_while(char::is_ascii_digit).collect();
    if bits.is_empty() { Some(1) } else { bits.parse::<u64>().ok().map(|bits| bits / 8) }
}

/// The parameters, changed so that the decoder accepts them.
fn decodable(parameters: &AudioCodecParameters) -> AudioCodecParameters {
    let mut parameters = parameters.clone();
    if parameters.codec == codecs::CODEC_ID_AAC
        && let Some(config) = parameters.extra_data.as_deref().and_then(aac_config::low_complexity)
    {
        parameters.extra_data = Some(Box::new(config));
    }
    parameters
}

/// A short name for messages.
pub fn codec_name(parameters: &AudioCodecParameters) -> String {
    if let Some(known) = symphonia::default::get_codecs().get_audio_decoder(parameters.codec) {
        return known.codec.info.short_name.to_owned();
    }
    let name = NAMES.iter().find(|(codec, _)| *codec == parameters.codec).map(|(_, name)| *name);
    name.map_or_else(|| format!("with the number {}", parameters.codec), str::to_owned)
}

/// Names the part of the codec that is not supported.
pub fn unsupported_name(parameters: &AudioCodecParameters) -> String {
    let name = codec_name(parameters);
    let channels = parameters.channels.as_ref().map_or(0, |channels| channels.count());
    if channels > 2 { format!("{name} with {channels} channels") } else { name }
}

/// Codecs that symphonia has no decoder for.
const NAMES: [(AudioCodecId, &str); 16] = [
    (codecs::CODEC_ID_OPUS, "opus"),
    (codecs::CODEC_ID_SPEEX, "Speex"),
    (codecs::CODEC_ID_MUSEPACK, "Musepack"),
    (codecs::CODEC_ID_AC3, "AC-3"),
    (codecs::CODEC_ID_EAC3, "E-AC-3"),
    (codecs::CODEC_ID_AC4, "AC-4"),
    (codecs::CODEC_ID_DCA, "DTS"),
    (codecs::CODEC_ID_WMA, "WMA"),
    (codecs::CODEC_ID_WAVPACK, "WavPack"),
    (codecs::CODEC_ID_MONKEYS_AUDIO, "Monkey's Audio"),
    (codecs::CODEC_ID_TTA, "TTA"),
    (codecs::CODEC_ID_TRUEHD, "TrueHD"),
    (codecs::CODEC_ID_ADPCM_G722, "G.722"),
    (codecs::CODEC_ID_ADPCM_G726, "G.726"),
    (codecs::CODEC_ID_ADPCM_G726LE, "G.726"),
    (codecs::CODEC_ID_ATRAC3, "ATRAC3"),
];
