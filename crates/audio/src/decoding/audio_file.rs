//! Opens a media file and reads the packets of its audio track.

use std::io::{Seek, SeekFrom};

use symphonia::core::codecs::CodecParameters;
use symphonia::core::codecs::audio::CODEC_ID_NULL_AUDIO;
use symphonia::core::errors::Error;
use symphonia::core::formats::probe::{Hint, Probe};
use symphonia::core::formats::{FormatOptions, FormatReader, Track, TrackType};
use symphonia::core::io::{MediaSource, MediaSourceStream, MediaSourceStreamOptions, ReadOnlySource};
use symphonia::core::meta::MetadataOptions;
use symphonia::core::packet::Packet;
use symphonia::default::formats::{AdtsReader, MpaReader};

use super::container::{self, Container};
use super::movie::{Edit, Movie};
use super::packet_decoder::{PacketDecoder, codec_name, unsupported_name};
use super::source_window::{SourceWindow, read_at};
use super::wave::{self, WaveContent};
use super::{aiff, au, caf, frame_stream, tags};
use crate::error::AudioError;

/// Consecutive read errors after which the rest of the file is given up.
const MAX_ERRORS: usize = 64;

/// An open file. Its format is found by its content.
pub struct AudioFile<'a> {
    container: &'static str,
    reader: Box<dyn FormatReader + 'a>,
    movie: Option<Movie>,
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
    /// True if the duration of a packet includes the trimmed samples.
    pub includes_trimmed: bool,
}

/// The next item of the file.
pub enum Next {
    Packet(Packet),
    /// The track ended and another one begins, which has a new decoder.
    Track,
    End,
}

impl<'a> AudioFile<'a> {
    /// Reads the head of a file and selects a track: the default one, or the first that can be decoded.
    pub fn open<S: MediaSource + Clone + 'a>(mut source: S) -> Result<Self, AudioError> {
        let length = source.seek(SeekFrom::End(0)).map_err(AudioError::unreadable)?;
        if length == 0 {
            return Err(AudioError::EmptyFile);
        }
        let start = tags::skip_leading(&mut source, length).map_err(AudioError::unreadable)?;
        let mut head = vec![0; container::HEAD];
        let filled = read_at(&mut source, start, &mut head).map_err(AudioError::unreadable)?;
        let mut source = SourceWindow::new(source, start, length);
        let length = source.length();
        let container = container::identify(&head[..filled]);
        // Those whose samples are read through a WAV header, which would be reported as WAV.
        let name = match container {
            Container::Aiff => Some("aiff"),
            Container::Au => Some("au"),
            Container::Caf => Some("caf"),
            _ => None,
        };
        let (reader, movie) = match container {
            Container::Unreadable(container) => {
                return Err(AudioError::UnsupportedContainer { container: container.into_owned() });
            }
            Container::Wave => (open_wave(source, length)?, None),
            Container::Aiff => (find_format(aiff::open(source, length)?)?, None),
            Container::Au => (find_format(au::open(source, length)?)?, None),
            Container::Caf => match caf::open(source.clone(), length)? {
                Some(plain) => (find_format(plain)?, None),
                None => (find_format(source)?, None),
            },
            // The index of a Matroska file that breaks off is missing. It is looked for only if the file is seekable.
            Container::Matroska => {
                let reader = find_format(source.clone()).or_else(|_| find_format(ReadOnlySource::new(source)))?;
                (reader, None)
            }
            Container::Readable => {
                let movie = Movie::read(&mut source).map_err(AudioError::unreadable)?;
                source.seek(SeekFrom::Start(0)).map_err(AudioError::unreadable)?;
                (find_format(source)?, movie)
            }
            Container::Frames => (open_frames(source)?, None),
        };
        let track = select_track(reader.as_ref(), movie.as_ref())?;
        let container = name.unwrap_or(reader.format_info().short_name);
        Ok(Self { container, reader, movie, track })
    }

    pub fn container(&self) -> &'static str {
        self.container
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
                    let Ok(track) = select_track(self.reader.as_ref(), self.movie.as_ref()) else { return Next::End };
                    self.track = track;
                    return Next::Track;
                }
                Err(_) => errors += 1,
            }
        }
        Next::End
    }
}

fn open_wave<'a, S: MediaSource + Clone + 'a>(
    source: SourceWindow<S>,
    length: u64,
) -> Result<Box<dyn FormatReader + 'a>, AudioError> {
    match wave::open(source, length)? {
        WaveContent::Samples(plain) => find_format(plain),
        WaveContent::Frames(frames) => open_frames(frames),
    }
}

/// Opens a stream of MP3 or AAC frames, without the tags around it.
fn open_frames<'a, S: MediaSource + Clone + 'a>(
    mut source: SourceWindow<S>,
) -> Result<Box<dyn FormatReader + 'a>, AudioError> {
    let length = source.length();
    let end = tags::skip_trailing(&mut source, 0, length).map_err(AudioError::unreadable)?;
    let mut source = source.part(0, end);
    let frames = frame_stream::find(&mut source, end)?;
    let mut probe = Probe::default();
    probe.register_format::<AdtsReader<'_>>();
    probe.register_format::<MpaReader<'_>>();
    find_format_by(&probe, source.part(frames.start, frames.end))
}

fn find_format<'a>(source: impl MediaSource + 'a) -> Result<Box<dyn FormatReader + 'a>, AudioError> {
    find_format_by(symphonia::default::get_probe(), source)
}

fn find_format_by<'a>(probe: &Probe, source: impl MediaSource + 'a) -> Result<Box<dyn FormatReader + 'a>, AudioError> {
    let stream = MediaSourceStream::new(Box::new(source), MediaSourceStreamOptions::default());
    let found = probe.probe(&Hint::new(), stream, FormatOptions::default(), MetadataOptions::default());
    found.map_err(|_| AudioError::NotAudio)
}

fn select_track(reader: &dyn FormatReader, movie: Option<&Movie>) -> Result<AudioTrack, AudioError> {
    let container = reader.format_info().short_name.to_owned();
    let default = reader.default_track(TrackType::Audio);
    let mut unsupported = None;
    for track in default.into_iter().chain(reader.tracks()) {
        let Some(CodecParameters::Audio(parameters)) = &track.codec_params else { continue };
        if let Some(decoder) = PacketDecoder::new(parameters) {
            let track = audio_track(track, decoder, codec_name(parameters), movie);
            return Ok(AudioTrack { includes_trimmed: container == "mp3", ..track });
        }
        if parameters.codec != CODEC_ID_NULL_AUDIO {
            unsupported.get_or_insert_with(|| unsupported_name(parameters));
        }
    }
    let unknown = || match movie {
        Some(movie) => movie.audio_codec(),
        None if reader.tracks().iter().any(|track| track.codec_params.is_none()) => Some("of its track".to_owned()),
        None => None,
    };
    Err(match unsupported.or_else(unknown) {
        Some(codec) => AudioError::UnsupportedCodec { container, codec },
        None => AudioError::NoAudioTrack { container },
    })
}

fn audio_track(track: &Track, decoder: PacketDecoder, codec: String, movie: Option<&Movie>) -> AudioTrack {
    let rate = decoder.layout().rate.max(1);
    let seconds = |numerator: u32, denominator: u32| f64::from(numerator) / f64::from(denominator);
    let tick = track.time_base.map_or(seconds(1, rate), |base| seconds(base.numer.get(), base.denom.get()));
    let by_codec = Edit { delay: 0.0, start: seconds(decoder.pre_skip(), rate), length: None };
    let edit = movie.and_then(|movie| movie.edit(track.id)).unwrap_or(by_codec);
    AudioTrack { id: track.id, codec, decoder, edit, tick, includes_trimmed: false }
}
