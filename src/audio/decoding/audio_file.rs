//! Opens a media file and reads the packets of its audio track.

use std::io::SeekFrom;

use symphonia::core::codecs::CodecParameters;
use symphonia::core::errors::Error;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::{FormatOptions, FormatReader, Track, TrackType};
use symphonia::core::io::{MediaSource, MediaSourceStream, MediaSourceStreamOptions, ReadOnlySource};
use symphonia::core::meta::MetadataOptions;
use symphonia::core::packet::Packet;

use super::edit_list::{Edit, EditLists};
use super::packet_decoder::{PacketDecoder, codec_name, unsupported_name};
use crate::audio::error::AudioError;

/// After so many errors without a packet between them the rest of the file is given up.
const MAX_ERRORS: usize = 64;
/// The first bytes of Matroska and WebM.
const MATROSKA: [u8; 4] = [0x1A, 0x45, 0xDF, 0xA3];

/// An open file. Its format is found by its content.
pub struct AudioFile<'a> {
    reader: Box<dyn FormatReader + 'a>,
    edits: Option<EditLists>,
    track: AudioTrack,
}

/// The track that is decoded.
pub struct AudioTrack {
    id: u32,
    pub codec: String,
    pub decoder: PacketDecoder,
    /// The part of it that is played; seconds.
    pub edit: Edit,
    /// Seconds per tick of the timestamps.
    pub tick: f64,
    /// Whether the duration of a packet includes what is trimmed.
    pub includes_trimmed: bool,
}

/// What follows in the file.
pub enum Next {
    Packet(Packet),
    /// The track ended and another one begins, which has a new decoder.
    Track,
    End,
}

impl<'a> AudioFile<'a> {
    /// Reads the head of a file and selects a track: the default one, or the first that can be decoded.
    pub fn open<S: MediaSource + Clone + 'a>(mut source: S) -> Result<Self, AudioError> {
        let unreadable = |error: std::io::Error| AudioError::Unreadable { reason: error.to_string() };
        if source.seek(SeekFrom::End(0)).map_err(unreadable)? == 0 {
            return Err(AudioError::EmptyFile);
        }
        let edits = EditLists::read(&mut source).map_err(unreadable)?;
        source.seek(SeekFrom::Start(0)).map_err(unreadable)?;
        let reader = find_format(source.clone()).or_else(|error| {
            // The index of a Matroska file that breaks off is missing. It is looked for only if the file is seekable.
            let mut magic = [0; 4];
            let is_matroska = source.read_exact(&mut magic).is_ok() && magic == MATROSKA;
            source.seek(SeekFrom::Start(0)).map_err(unreadable)?;
            if is_matroska { find_format(ReadOnlySource::new(source)) } else { Err(error) }
        })?;
        let track = select_track(reader.as_ref(), edits.as_ref())?;
        Ok(Self { reader, edits, track })
    }

    pub fn container(&self) -> &'static str {
        self.reader.format_info().short_name
    }

    pub fn track(&mut self) -> &mut AudioTrack {
        &mut self.track
    }

    /// Reads up to the track's next packet. Damaged places are skipped, and a file that breaks off ends there.
    pub fn next_packet(&mut self) -> Next {
        let mut errors = 0;
        while errors < MAX_ERRORS {
            match self.reader.next_packet() {
                Ok(Some(packet)) if packet.track_id == self.track.id => return Next::Packet(packet),
                Ok(Some(_)) => errors = 0,
                Ok(None) | Err(Error::IoError(_)) => return Next::End,
                Err(Error::ResetRequired) => {
                    // Streams in a row (chained OGG).
                    let Ok(track) = select_track(self.reader.as_ref(), self.edits.as_ref()) else { return Next::End };
                    self.track = track;
                    return Next::Track;
                }
                Err(_) => errors += 1,
            }
        }
        Next::End
    }
}

fn find_format<'a>(source: impl MediaSource + 'a) -> Result<Box<dyn FormatReader + 'a>, AudioError> {
    let stream = MediaSourceStream::new(Box::new(source), MediaSourceStreamOptions::default());
    let probe = symphonia::default::get_probe();
    let found = probe.probe(&Hint::new(), stream, FormatOptions::default(), MetadataOptions::default());
    found.map_err(|_| AudioError::NotAudio)
}

fn select_track(reader: &dyn FormatReader, edits: Option<&EditLists>) -> Result<AudioTrack, AudioError> {
    let container = reader.format_info().short_name.to_owned();
    let default = reader.default_track(TrackType::Audio);
    let mut unsupported = None;
    for track in default.into_iter().chain(reader.tracks()) {
        let Some(CodecParameters::Audio(parameters)) = &track.codec_params else { continue };
        if let Some(decoder) = PacketDecoder::new(parameters) {
            let track = audio_track(track, decoder, codec_name(parameters), edits);
            return Ok(AudioTrack { includes_trimmed: container == "mp3", ..track });
        }
        unsupported.get_or_insert_with(|| unsupported_name(parameters));
    }
    if reader.tracks().iter().any(|track| track.codec_params.is_none()) {
        unsupported.get_or_insert_with(|| "of its audio track".to_owned());
    }
    Err(match unsupported {
        Some(codec) => AudioError::UnsupportedCodec { container, codec },
        None => AudioError::NoAudioTrack { container },
    })
}

fn audio_track(track: &Track, decoder: PacketDecoder, codec: String, edits: Option<&EditLists>) -> AudioTrack {
    let rate = decoder.layout().rate.max(1);
    let seconds = |numerator: u32, denominator: u32| f64::from(numerator) / f64::from(denominator);
    let tick = track.time_base.map_or(seconds(1, rate), |base| seconds(base.numer.get(), base.denom.get()));
    // Blocks of ADPCM have a fixed length, so that the last one is filled up.
    #[expect(clippy::cast_precision_loss, reason = "a length of 2^53 frames is longer than any file")]
    let length = track.num_frames.filter(|_| codec.starts_with("adpcm")).map(|frames| frames as f64 / f64::from(rate));
    let by_codec = Edit { delay: 0.0, start: seconds(decoder.pre_skip(), rate), length };
    let edit = edits.and_then(|edits| edits.edit(track.id)).unwrap_or(by_codec);
    AudioTrack { id: track.id, codec, decoder, edit, tick, includes_trimmed: false }
}
