//! Audio files as they are in practice: headers that are not quite right, containers that are not known, channels that
//! cancel each other.

use std::io::Cursor;

use outpost::audio::decoding::{decode, measure};
use outpost::audio::{AudioError, AudioInfo};

const HOUR: u32 = 3600;
const RATE: u32 = 16_000;

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(outpost_testing::fixtures::fixture("audio").join(name)).unwrap()
}

fn decoded(file: &[u8]) -> Result<Vec<f32>, AudioError> {
    let mut samples = Vec::new();
    decode(Cursor::new(file), HOUR, &mut |block| {
        samples.extend_from_slice(block);
        Ok(())
    })?;
    Ok(samples)
}

/// Measures and decodes a file. Both must agree.
fn read(file: &[u8]) -> Result<(AudioInfo, Vec<f32>), AudioError> {
    let measured = measure(Cursor::new(file), HOUR);
    match decoded(file) {
        Ok(samples) => {
            let info = measured.unwrap();
            assert!(info.samples().abs_diff(samples.len() as u64) <= 1024, "{info:?}, {} samples", samples.len());
            Ok((info, samples))
        }
        Err(error) => {
            assert_eq!(measured.unwrap_err(), error);
            Err(error)
        }
    }
}

fn samples(file: &[u8]) -> Vec<f32> {
    read(file).unwrap().1
}

fn refusal(file: &[u8]) -> String {
    read(file).unwrap_err().to_string()
}

/// A tone of a fifth of a second; 16 bits.
fn tone() -> Vec<i16> {
    (0..RATE / 5).map(|at| (9000.0 * (f64::from(at) * 0.17).sin()) as i16).collect()
}

fn bytes(tone: &[i16]) -> Vec<u8> {
    tone.iter().flat_map(|sample| sample.to_le_bytes()).collect()
}

/// What 16 bits decode to.
fn expected() -> Vec<f32> {
    tone().iter().map(|sample| f32::from(*sample) / 32_768.0).collect()
}

fn furthest(one: &[f32], other: &[f32]) -> f32 {
    assert_eq!(one.len(), other.len());
    one.iter().zip(other).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max)
}

/// A format chunk's content: tag, channels, bits, and a length to which it is cut or filled up.
fn format(tag: u16, channels: u16, bits: u16, length: usize) -> Vec<u8> {
    let block = channels * bits.div_ceil(8);
    let mut content = [tag.to_le_bytes(), channels.to_le_bytes()].concat();
    content.extend(RATE.to_le_bytes());
    content.extend((RATE * u32::from(block)).to_le_bytes());
    content.extend([block.to_le_bytes(), bits.to_le_bytes()].concat());
    if length >= 18 {
        content.extend((length as u16 - 18).to_le_bytes());
    }
    content.resize(length, 0);
    content
}

/// A WAVE_FORMAT_EXTENSIBLE chunk's content.
fn extensible(tag: u16, channels: u16, bits: u16, valid_bits: u16) -> Vec<u8> {
    let mut content = format(0xFFFE, channels, bits, 18);
    content[16] = 22;
    content.extend([&valid_bits.to_le_bytes()[..], &[0; 4], &tag.to_le_bytes()].concat());
    content.extend(b"\0\0\0\0\x10\0\x80\0\0\xAA\0\x38\x9B\x71");
    content
}

fn chunk(kind: &[u8; 4], declared: u32, content: &[u8]) -> Vec<u8> {
    [kind, &declared.to_le_bytes()[..], content].concat()
}

/// A chunk with its right length and its padding.
fn whole_chunk(kind: &[u8; 4], content: &[u8]) -> Vec<u8> {
    let padding = vec![0; content.len() % 2];
    [chunk(kind, content.len() as u32, content), padding].concat()
}

fn wave(size: u32, chunks: &[Vec<u8>]) -> Vec<u8> {
    [b"RIFF", &size.to_le_bytes()[..], b"WAVE", &chunks.concat()].concat()
}

/// A plain file of this format.
fn plain(format: &[u8], data: &[u8]) -> Vec<u8> {
    let chunks = [whole_chunk(b"fmt ", format), whole_chunk(b"data", data)];
    wave(4 + chunks.concat().len() as u32, &chunks)
}

#[test]
fn lengths_of_a_wav_file_that_cannot_be_true_reach_to_its_end() {
    let data = bytes(&tone());
    let right = data.len() as u32;
    for size in [36 + right, 0, 4, 36, 100, right - 7, u32::MAX, u32::MAX - 1] {
        for declared in [right, 0, u32::MAX, right + 1, right * 3, u32::MAX - 7] {
            let file = wave(size, &[whole_chunk(b"fmt ", &format(1, 1, 16, 16)), chunk(b"data", declared, &data)]);
            assert_eq!(samples(&file), expected(), "RIFF {size}, data {declared}");
        }
    }
    let cut = wave(0, &[whole_chunk(b"fmt ", &format(1, 1, 16, 16)), chunk(b"data", 0, &data[..999])]);
    assert_eq!(samples(&cut), expected()[..499], "half a sample is left out");
}

#[test]
fn an_empty_recording_is_not_read_from_the_chunks_after_it() {
    let list = whole_chunk(b"LIST", b"INFOISFT\x05\0\0\0Lavf\0\0");
    let file = wave(0, &[whole_chunk(b"fmt ", &format(1, 1, 16, 16)), chunk(b"data", 0, b""), list.clone()]);
    assert_eq!(read(&file).unwrap_err(), AudioError::NoSamples);
    let after = [plain(&format(1, 1, 16, 16), &bytes(&tone())), list].concat();
    assert_eq!(samples(&after), expected(), "nor are those of a whole one");
}

#[test]
fn format_chunks_of_any_length_are_read() {
    let data = bytes(&tone());
    let floats: Vec<u8> = expected().iter().flat_map(|sample| sample.to_le_bytes()).collect();
    let logarithmic: Vec<u8> = (0..3000_u32).map(|at| (at * 7 % 256) as u8).collect();
    for (tag, bits, data) in [(1, 16, &data), (3, 32, &floats), (6, 8, &logarithmic), (7, 8, &logarithmic)] {
        let reference = samples(&plain(&format(tag, 1, bits, 18), data));
        assert!(furthest(&reference, &reference.iter().map(|_| 0.0).collect::<Vec<_>>()) > 0.1);
        for length in [14, 16, 17, 18, 19, 20, 22, 24, 26, 30, 40, 41, 64, 1000] {
            let file = plain(&format(tag, 1, bits, length), data);
            assert_eq!(samples(&file), reference, "format {tag}, {length} bytes");
        }
        // An odd chunk without padding.
        let unpadded = [chunk(b"fmt ", 19, &format(tag, 1, bits, 19)), whole_chunk(b"data", data)];
        assert_eq!(samples(&wave(0, &unpadded)), reference, "format {tag}, 19 bytes, not padded");
    }
    let short = plain(&format(1, 1, 16, 13), &data);
    assert!(refusal(&short).contains("no complete format chunk"), "{}", refusal(&short));
    let without = wave(0, &[whole_chunk(b"fmt ", &format(1, 1, 16, 16)), whole_chunk(b"LIST", b"INFO")]);
    assert!(refusal(&without).contains("no 'data' chunk"), "{}", refusal(&without));
}

#[test]
fn other_chunks_before_the_samples_are_skipped() {
    let data = bytes(&tone());
    for content in [vec![0; 4], vec![0; 8], vec![1; 5], vec![0; 12], vec![], vec![7; 4001]] {
        for kind in [b"fact", b"LIST", b"bext", b"junk", b"\0\0\0\0"] {
            let chunks = [
                whole_chunk(kind, &content),
                whole_chunk(b"fmt ", &format(1, 1, 16, 16)),
                whole_chunk(kind, &content),
                whole_chunk(b"data", &data),
            ];
            assert_eq!(samples(&wave(0, &chunks)), expected(), "{kind:?} of {} bytes", content.len());
        }
    }
}

#[test]
fn wide_and_big_endian_wav_files_are_read() {
    let data = bytes(&tone());
    let format = format(1, 1, 16, 16);
    let sizes = |data_length: u64| {
        let content = [data_length.saturating_add(80), data_length, data_length / 2].map(u64::to_le_bytes).concat();
        whole_chunk(b"ds64", &[content, vec![0; 4]].concat())
    };
    let length = data.len() as u64;
    for name in [b"RF64", b"BW64"] {
        for (wide, declared) in
            [(length, u32::MAX), (0, u32::MAX), (u64::MAX, u32::MAX), (1, length as u32), (length, 0)]
        {
            let chunks = [sizes(wide), whole_chunk(b"fmt ", &format), chunk(b"data", declared, &data)];
            let mut file = wave(u32::MAX, &chunks);
            file[..4].copy_from_slice(name);
            assert_eq!(samples(&file), expected(), "{wide}, {declared}");
            // What follows the samples is not read if the length is known.
            let longer = [file, whole_chunk(b"LIST", b"INFO")].concat();
            if wide == length {
                assert_eq!(samples(&longer), expected());
            }
        }
    }
    let swapped: Vec<u8> = tone().iter().flat_map(|sample| sample.to_be_bytes()).collect();
    let mut file = b"RIFX\0\0\0\0WAVEfmt \0\0\0\x10\0\x01\0\x01\0\0\x3E\x80\0\0\x7D\0\0\x02\0\x10data".to_vec();
    file.extend((swapped.len() as u32).to_be_bytes());
    assert_eq!(samples(&[file, swapped].concat()), expected());
}

#[test]
fn samples_of_any_width_are_read() {
    let wide = |bytes: usize| -> Vec<u8> {
        let samples = tone().into_iter().map(|sample| (i64::from(sample) << 48).to_le_bytes());
        samples.flat_map(|sample| sample[8 - bytes..].to_vec()).collect()
    };
    let unsigned: Vec<u8> = tone().iter().map(|sample| (sample.div_euclid(256) + 128) as u8).collect();
    let doubles: Vec<u8> = expected().iter().flat_map(|sample| f64::from(*sample).to_le_bytes()).collect();
    let floats: Vec<u8> = expected().iter().flat_map(|sample| sample.to_le_bytes()).collect();
    let mut in_four = plain(&format(1, 1, 24, 16), &wide(4));
    in_four[32] = 4;
    for (name, file, tolerance) in [
        ("8 bits", plain(&format(1, 1, 8, 16), &unsigned), 0.01),
        ("12 bits in 16", plain(&format(1, 1, 12, 16), &wide(2)), 0.0),
        ("16 bits", plain(&format(1, 1, 16, 16), &wide(2)), 0.0),
        ("20 bits in 24", plain(&format(1, 1, 20, 16), &wide(3)), 0.0),
        ("24 bits", plain(&format(1, 1, 24, 16), &wide(3)), 0.0),
        ("24 bits in 32", in_four, 0.0),
        ("32 bits", plain(&format(1, 1, 32, 16), &wide(4)), 0.0),
        ("40 bits", plain(&format(1, 1, 40, 16), &wide(5)), 0.0),
        ("64 bits", plain(&format(1, 1, 64, 16), &wide(8)), 0.0),
        ("64 bits, extensible", plain(&extensible(1, 1, 64, 64), &wide(8)), 0.0),
        ("20 bits in 24, extensible", plain(&extensible(1, 1, 24, 20), &wide(3)), 0.0),
        ("24 bits in 32, extensible", plain(&extensible(1, 1, 32, 24), &wide(4)), 0.0),
        ("float", plain(&format(3, 1, 32, 16), &floats), 0.0),
        ("float, extensible", plain(&extensible(3, 1, 32, 32), &floats), 0.0),
        ("64-bit float", plain(&format(3, 1, 64, 16), &doubles), 0.0),
        ("64-bit float, extensible", plain(&extensible(3, 1, 64, 0), &doubles), 0.0),
    ] {
        let difference = furthest(&samples(&file), &expected());
        assert!(difference <= tolerance, "{name}: {difference}");
    }
}

#[test]
fn other_codecs_in_wav_files_are_read_or_named() {
    let mp3 = fixture("mono-mp3-16k.mp3");
    let (info, inside) = read(&plain(&format(0x55, 1, 0, 30), &mp3)).unwrap();
    assert_eq!((info.codec.as_str(), inside), ("mp3", samples(&mp3)));
    for (format, words) in [
        (format(0x31, 1, 0, 20), "GSM 6.10"),
        (format(0x161, 2, 16, 28), "WMA"),
        (format(0x1234, 1, 16, 18), "0x1234"),
        (format(1, 1, 72, 16), "PCM of 72 bits"),
        (format(3, 1, 16, 16), "float PCM of 16 bits"),
        (format(1, 27, 16, 16), "27 channels"),
    ] {
        let message = refusal(&plain(&format, &[1; 4000]));
        assert!(message.contains(words) && message.contains("(WAV)"), "{message}");
    }
    assert!(refusal(&plain(&format(1, 0, 16, 16), &[1; 4000])).contains("no channels"));
}

/// The frames of `mono-mp3-16k.mp3`: the first one tells the length of the sound, and the others have equal lengths.
fn frames(mp3: &[u8]) -> Vec<&[u8]> {
    let (first, others) = mp3[20..].split_at(180);
    std::iter::once(first).chain(others.chunks(72)).collect()
}

/// An AVI file with each frame in a chunk of its own.
fn avi(frames: &[&[u8]]) -> Vec<u8> {
    let movie: Vec<u8> = frames.iter().flat_map(|frame| whole_chunk(b"01wb", frame)).collect();
    let chunks = [whole_chunk(b"LIST", b"hdrlavih\0\0\0\0"), whole_chunk(b"LIST", &[b"movi", &movie[..]].concat())];
    let mut file = wave(4 + chunks.concat().len() as u32, &chunks);
    file[8..12].copy_from_slice(b"AVI ");
    file
}

/// Packets of an MPEG transport stream.
fn transport_stream(content: &[u8], time_stamp: usize) -> Vec<u8> {
    let packet = |(number, part): (usize, &[u8])| {
        let head = [0x47, 0x41, 0, 0x10 | number as u8 & 15];
        let mut packet = [&vec![3; time_stamp][..], &head, part].concat();
        packet.resize(time_stamp + 188, 0xFF);
        packet
    };
    content.chunks(184).enumerate().flat_map(packet).collect()
}

#[test]
fn a_container_that_cannot_be_read_is_named_and_not_searched_for_frames() {
    let mp3 = fixture("mono-mp3-16k.mp3");
    let frames = frames(&mp3);
    assert!(frames.len() > 80 && read(&frames.concat()).is_ok());
    let stream = |head: &[u8]| [head, &mp3[..]].concat();
    for (name, file) in [
        ("AVI", avi(&frames)),
        ("MPEG transport stream", transport_stream(&mp3, 0)),
        ("MPEG transport stream", transport_stream(&mp3, 0)[100..].to_vec()),
        ("MPEG transport stream", transport_stream(&mp3, 4)),
        ("MPEG program stream", stream(b"\0\0\x01\xBA\x44\0\x04\0\x04\x01\0\0\x03\xF8")),
        ("MPEG packets", stream(b"\0\0\x01\xC0\x02\x40\x81\x80\x05")),
        ("MPEG video", stream(b"\0\0\x01\xB3\x14\0\xF0")),
        ("Speex in OGG", stream(&[b"OggS\0\x02", &[0; 22][..], b"Speex   1.2"].concat())),
        ("ASF", stream(b"\x30\x26\xB2\x75\x8E\x66\xCF\x11\xA6\xD9\0\xAA\0\x62\xCE\x6C")),
        ("AMR", stream(b"#!AMR\n")),
        ("AMR", stream(b"#!AMR-WB\n")),
        ("Musepack", stream(b"MPCKSH")),
        ("Musepack", stream(b"MP+\x07")),
        ("Monkey's Audio", stream(b"MAC \x96\x0F\0\0")),
        ("WavPack", stream(b"wvpk\0\x10\0\0\x10\x04")),
        ("DSF", stream(b"DSD \x1C\0\0\0")),
        ("DSDIFF", stream(b"FRM8\0\0\0\0\0\0\x10\0DSD ")),
        ("RealMedia", stream(b".RMF\0\0\0\x12")),
        ("RealAudio", stream(b".ra\xFD\0\x04")),
        ("FLV", stream(b"FLV\x01\x04\0\0\0\x09\0\0\0\0")),
        ("AC-3", stream(b"\x0B\x77\0\0\x1C\x40\x43")),
        ("DTS", stream(b"\x7F\xFE\x80\x01\xFC\x3C")),
        ("MIDI", stream(b"MThd\0\0\0\x06\0\x01")),
        ("MIDI", stream(b"RIFF\0\0\0\0RMIDdata")),
        ("TTA", stream(b"TTA1\x01\0\x02\0")),
        ("TAK", stream(b"tBaK\x01")),
        ("SILK", stream(b"\x02#!SILK_V3")),
        ("Wave64", stream(b"riff\x2E\x91\xCF\x11\xA5\xD6\x28\xDB")),
        ("VOC", stream(b"Creative Voice File\x1A\x1A\0")),
        ("AAC (ADIF)", stream(b"ADIF\0\0")),
        ("AAC (LATM)", [&b"\x56\xE0\x04\x20\x11\x12\x13"[..]; 50].concat()),
        ("SWF", stream(b"FWS\x09\0\0\0\0")),
        ("MXF", stream(b"\x06\x0E\x2B\x34\x02\x05\x01\x01\x0D\x01\x02\x01\x01\x02\x04\0")),
        ("QuickTime", stream(b"\0\0\x10\0mdat")),
        ("a ZIP archive", stream(b"PK\x03\x04\x0A\0\0\0\0\0")),
        ("FORM of the form '8SVX'", stream(b"FORM\0\0\x10\08SVXVHDR")),
        ("a playlist", stream(b"#EXTM3U\n")),
    ] {
        let message = refusal(&file);
        assert!(message.starts_with(&format!("the container is not supported ({name}")), "{name}: {message}");
        assert!(message.contains("send WAV, MP3"), "{message}");
        // A tag may precede any file.
        let tagged = [&b"ID3\x04\0\0\0\0\0\x01\0"[..], &file].concat();
        assert_eq!(refusal(&tagged), message);
    }
}

#[test]
fn frames_between_other_data_are_refused() {
    let mp3 = fixture("mono-mp3-16k.mp3");
    let aac = fixture("aac.aac");
    let all = frames(&mp3);
    let mut random = 1_u32;
    let mut noise = |length: usize| -> Vec<u8> {
        let next = |_| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 24) as u8 | 1
        };
        (0..length).map(next).collect()
    };
    let packets: Vec<u8> = all.chunks(5).flat_map(|frames| [noise(12), frames.concat()].concat()).collect();
    let cut: Vec<u8> = aac.chunks(700).flat_map(|part| [noise(9), part.to_vec()].concat()).collect();
    let half = mp3.len() / 2;
    for (name, file) in [
        ("a few frames in each packet", packets),
        ("frames that are cut", cut),
        ("more data than frames before them", [noise(100_000), mp3.clone()].concat()),
        ("more data than frames after them", [mp3.clone(), noise(100_000)].concat()),
        ("more data than frames between them", [&mp3[..half], &noise(100_000), &mp3[half..]].concat()),
    ] {
        let error = read(&file).unwrap_err();
        assert!(matches!(error, AudioError::Interrupted { .. }), "{name}: {error}");
        assert!(error.to_string().contains("container that is not supported"), "{error}");
    }
    assert_eq!(read(&noise(200_000)).unwrap_err(), AudioError::NotAudio);
}

#[test]
fn what_surrounds_the_frames_of_a_stream_is_no_damage() {
    let mp3 = fixture("mono-mp3-16k.mp3");
    let speech = samples(&mp3);
    let id3v1 = [b"TAG".to_vec(), vec![b' '; 125]].concat();
    let ape = |content: usize| {
        let head = |is_header: u8| {
            let mut head = [&b"APETAGEX\xD0\x07\0\0"[..], &(content as u32 + 32).to_le_bytes(), &[1, 0, 0, 0]].concat();
            head.extend([0, 0, 0, 0x80 | is_header << 5]);
            head.resize(32, 0);
            head
        };
        [head(1), vec![0xFF; content], head(0)].concat()
    };
    let lyrics = [&b"LYRICSBEGININD0000200"[..], b"000021LYRICS200"].concat();
    let picture = {
        // A tag with a picture: bytes that look like frames.
        let content = mp3[..4000].repeat(20);
        let size = content.len();
        let size = [size >> 21, size >> 14, size >> 7, size].map(|part| (part & 0x7F) as u8);
        [&b"ID3\x03\0\0"[..], &size, &content].concat()
    };
    let text = b"Some words after the sound. ".repeat(150);
    let bare = frames(&mp3).concat();
    for (name, file) in [
        ("ID3v1", [mp3.clone(), id3v1.clone()].concat()),
        ("APE", [mp3.clone(), ape(60_000)].concat()),
        ("APE and ID3v1", [mp3.clone(), ape(300), id3v1.clone()].concat()),
        ("APE before", [ape(500), mp3.clone()].concat()),
        ("lyrics", [mp3.clone(), lyrics, id3v1.clone()].concat()),
        ("a picture", [picture.clone(), mp3.clone()].concat()),
        ("no tag", bare.clone()),
        ("words", [mp3.clone(), text].concat()),
        ("zeros", [vec![0; 50_000], bare.clone(), vec![0; 50_000]].concat()),
        ("zeros after a tag", [mp3[..20].to_vec(), vec![0; 900], bare.clone()].concat()),
    ] {
        assert_eq!(samples(&file), speech, "{name}");
    }
    // The first frame tells only the length of the first half.
    let tag = b"ID3\x03\0\0\0\0\0\x05TIT2\0";
    for joined in [[&mp3[..], &id3v1, tag, &bare].concat(), [&bare[..], &bare].concat()] {
        let length = samples(&joined).len();
        assert!((2 * speech.len()..2 * speech.len() + 5000).contains(&length), "{length}, {}", speech.len());
    }
    let mut damaged = mp3.clone();
    let middle = mp3.len() / 2;
    damaged[middle..middle + 300].fill(0x55);
    assert!(decoded(&damaged).unwrap().len() > speech.len() * 9 / 10);
    let aac = fixture("aac.aac");
    assert_eq!(samples(&[&picture[..], &aac, &id3v1].concat()), samples(&aac));
    let flac = fixture("speech.flac");
    assert_eq!(samples(&[&picture[..], &flac].concat()), samples(&flac));
}

#[test]
fn codecs_of_phones_in_mp4_files_are_named() {
    for (kind, name) in [(b"samr", "AMR"), (b"sawb", "AMR-WB"), (b"xyz1", "'xyz1'")] {
        let mut file = fixture("aac.m4a");
        let at = file.windows(4).rposition(|bytes| bytes == b"mp4a").unwrap();
        file[at..at + 4].copy_from_slice(kind);
        assert!(refusal(&file).contains(&format!("the codec {name} is not supported (isomp4)")), "{}", refusal(&file));
    }
}

/// A file of 16 bits with these channels.
fn channels(rate: u32, channels: &[Vec<f32>]) -> Vec<u8> {
    let frames = 0..channels[0].len();
    let values = frames.flat_map(|at| channels.iter().map(move |channel| channel[at]));
    let data: Vec<u8> = values.flat_map(|value| ((value * 32_767.0) as i16).to_le_bytes()).collect();
    let mut format = format(1, channels.len() as u16, 16, 16);
    format[4..8].copy_from_slice(&rate.to_le_bytes());
    plain(&format, &data)
}

fn sine(step: f32, length: usize) -> Vec<f32> {
    (0..length).map(|at| 0.5 * (at as f32 * step).sin()).collect()
}

fn scaled(signal: &[f32], factor: f32) -> Vec<f32> {
    signal.iter().map(|value| value * factor).collect()
}

fn level(signal: &[f32]) -> f32 {
    (signal.iter().map(|value| value * value).sum::<f32>() / signal.len() as f32).sqrt()
}

#[test]
fn channels_that_cancel_each_other_are_heard() {
    let speech = sine(0.2, 40_000);
    let other = sine(0.033, 40_000);
    let silence = vec![0.0; 40_000];
    let opposite = scaled(&speech, -1.0);
    let weaker = scaled(&speech, -0.8);
    for (name, all) in [
        ("two", vec![speech.clone(), opposite.clone()]),
        ("two of different levels", vec![speech.clone(), weaker]),
        ("four", vec![speech.clone(), opposite.clone(), speech.clone(), opposite.clone()]),
        (
            "six",
            vec![speech.clone(), silence.clone(), silence.clone(), silence.clone(), silence.clone(), opposite.clone()],
        ),
    ] {
        let mono = samples(&channels(RATE, &all));
        assert!(furthest(&mono, &speech) < 0.001, "{name}: level {}", level(&mono));
        let resampled = samples(&channels(44_100, &all));
        assert!((level(&resampled) - level(&speech)).abs() < 0.02, "{name}: {}", level(&resampled));
    }
    // Others are still mixed.
    let mean: Vec<f32> = speech.iter().zip(&other).map(|(one, other)| (one + other) / 2.0).collect();
    assert!(furthest(&samples(&channels(RATE, &[speech.clone(), other.clone()])), &mean) < 0.001);
    assert!(furthest(&samples(&channels(RATE, &[speech.clone(), silence])), &scaled(&speech, 0.5)) < 0.001);
    assert!(furthest(&samples(&channels(RATE, &[speech.clone(), speech.clone()])), &speech) < 0.001);
}

#[test]
fn a_change_to_another_channel_makes_no_click() {
    // Equal, then opposite, then equal channels, of half a second each. A step of the signal is at most this.
    let speech = sine(0.05, 24_000);
    let step = 0.5 * 0.05;
    let turned: Vec<f32> = speech
        .iter()
        .enumerate()
        .map(|(at, value)| if (8_100..16_100).contains(&at) { -value } else { *value })
        .collect();
    let mono = samples(&channels(RATE, &[turned.clone(), speech.clone()]));
    let largest = mono[..8_000].windows(2).chain(mono[8_200..16_000].windows(2)).chain(mono[16_200..].windows(2));
    let largest = largest.map(|pair| (pair[1] - pair[0]).abs()).fold(0.0, f32::max);
    assert!(largest < 2.0 * step, "{largest}");
    let heard = mono.chunks(1000).filter(|part| level(part) > 0.2).count();
    assert!(heard >= 20, "{heard} of {} parts are heard", mono.chunks(1000).count());
}

/// A file of AIFF, or of AIFF-C with this compression.
fn aiff(compression: Option<&[u8; 4]>, bits: u16, sound: u32, data: &[u8]) -> Vec<u8> {
    // 16 kHz, as a number of 80 bits.
    let rate = [0x40, 0x0C, 0xFA, 0, 0, 0, 0, 0, 0, 0];
    let mut common = [&[0, 1][..], &[0; 4], &bits.to_be_bytes(), &rate].concat();
    common.extend(compression.map(|kind| [&kind[..], &[0, 0]].concat()).unwrap_or_default());
    let chunk = |kind: &[u8; 4], length: u32, content: &[u8]| [kind, &length.to_be_bytes()[..], content].concat();
    let form: &[u8] = if compression.is_some() { b"AIFC" } else { b"AIFF" };
    let common = chunk(b"COMM", common.len() as u32, &common);
    [&b"FORM\0\0\0\0"[..], form, &common, &chunk(b"SSND", sound, &[0; 8]), data].concat()
}

fn big_endian(samples: &[i16]) -> Vec<u8> {
    samples.iter().flat_map(|sample| sample.to_be_bytes()).collect()
}

#[test]
fn aiff_files_with_any_length_are_read_to_their_end() {
    let data = big_endian(&tone());
    let right = 8 + data.len() as u32;
    for declared in [right, 0, 8, u32::MAX, right + 2, right * 3] {
        assert_eq!(samples(&aiff(None, 16, declared, &data)), expected(), "{declared}");
    }
    let whole = aiff(None, 16, right, &data);
    assert_eq!(samples(&whole[..whole.len() - 1001]), expected()[..expected().len() - 501]);
    assert_eq!(samples(&[&whole[..], b"ID3\x03garbage"].concat()), expected(), "what follows is not read");
    assert_eq!(read(&whole).unwrap().0.container, "aiff");
    let comment = [&b"ANNO\0\0\0\x04"[..], &[0x55; 4]].concat();
    assert_eq!(read(&aiff(None, 16, 8, &comment)).unwrap_err(), AudioError::NoSamples, "an empty recording");
    assert!(refusal(&whole[..40]).contains("no 'SSND' chunk"), "{}", refusal(&whole[..40]));
}

#[test]
fn samples_of_any_kind_in_aiff_files_are_read_or_named() {
    let little = bytes(&tone());
    let signed: Vec<u8> = tone().iter().map(|sample| sample.div_euclid(256) as u8).collect();
    let unsigned: Vec<u8> = signed.iter().map(|sample| sample ^ 0x80).collect();
    let floats: Vec<u8> = expected().iter().flat_map(|sample| sample.to_be_bytes()).collect();
    let doubles: Vec<u8> = expected().iter().flat_map(|sample| f64::from(*sample).to_be_bytes()).collect();
    let wide: Vec<u8> =
        tone().iter().flat_map(|sample| (i32::from(*sample) << 16).to_be_bytes()[..3].to_vec()).collect();
    for (kind, bits, data, tolerance) in [
        (None, 8, &signed, 0.01),
        (None, 24, &wide, 0.0),
        (Some(b"NONE"), 16, &big_endian(&tone()), 0.0),
        (Some(b"sowt"), 16, &little, 0.0),
        (Some(b"raw "), 8, &unsigned, 0.01),
        (Some(b"in24"), 24, &wide, 0.0),
        (Some(b"fl32"), 32, &floats, 0.0),
        (Some(b"FL64"), 64, &doubles, 0.0),
    ] {
        let difference = furthest(&samples(&aiff(kind, bits, 8 + data.len() as u32, data)), &expected());
        assert!(difference <= tolerance, "{kind:?} {bits}: {difference}");
    }
    let laws: Vec<u8> = (0..3000_u32).map(|at| (at * 7 % 256) as u8).collect();
    for (kind, tag) in [(b"ulaw", 7), (b"alaw", 6)] {
        let expected = samples(&plain(&format(tag, 1, 8, 18), &laws));
        assert_eq!(samples(&aiff(Some(kind), 16, 8 + laws.len() as u32, &laws)), expected);
    }
    let refused = refusal(&aiff(Some(b"ima4"), 16, 3008, &laws));
    assert!(refused.contains("'ima4' is not supported (AIFF)"), "{refused}");
}

#[test]
fn au_files_are_read() {
    let au = |encoding: u32, length: u32, data: &[u8]| {
        let head = [28, length, encoding, 16_000, 1, 0].map(u32::to_be_bytes).concat();
        [b".snd", &head[..], data].concat()
    };
    let (data, floats) =
        (big_endian(&tone()), expected().iter().flat_map(|sample| sample.to_be_bytes()).collect::<Vec<_>>());
    for length in [data.len() as u32, u32::MAX, 0, 1 << 30] {
        assert_eq!(samples(&au(3, length, &data)), expected(), "{length}");
    }
    assert_eq!(samples(&au(6, floats.len() as u32, &floats)), expected());
    let laws: Vec<u8> = (0..3000_u32).map(|at| (at * 7 % 256) as u8).collect();
    for (encoding, tag) in [(1, 7), (27, 6)] {
        assert_eq!(samples(&au(encoding, 3000, &laws)), samples(&plain(&format(tag, 1, 8, 18), &laws)));
    }
    let swapped = [b"dns.", &[24, u32::MAX, 3, 16_000, 1].map(u32::to_le_bytes).concat()[..], &bytes(&tone())].concat();
    assert_eq!(samples(&swapped), expected());
    assert_eq!(read(&swapped).unwrap().0.container, "au");
    assert!(refusal(&au(23, 3000, &laws)).contains("with the number 23"), "{}", refusal(&au(23, 3000, &laws)));
    assert!(refusal(b".snd\0\0").contains("ends within its header"));
}

#[test]
fn caf_files_that_break_off_or_have_more_are_read() {
    let caf = |kind: &[u8; 4], flags: u32, bits: u32, length: i64, data: &[u8]| {
        let numbers = [flags, bits / 8, 1, 1, bits].map(u32::to_be_bytes).concat();
        let description = [&16_000_f64.to_be_bytes()[..], kind, &numbers].concat();
        let chunk = |kind: &[u8; 4], length: i64, content: &[u8]| [kind, &length.to_be_bytes()[..], content].concat();
        let data = chunk(b"data", length, &[&[0; 4], data].concat());
        [b"caff\0\x01\0\0", &chunk(b"desc", 32, &description)[..], &chunk(b"free", 3, &[0; 3]), &data].concat()
    };
    let (big, little) = (big_endian(&tone()), bytes(&tone()));
    let length = 4 + big.len() as i64;
    for declared in [length, -1, 0, 4, length * 2, i64::MAX] {
        assert_eq!(samples(&caf(b"lpcm", 0, 16, declared, &big)), expected(), "{declared}");
    }
    let whole = caf(b"lpcm", 2, 16, length, &little);
    assert_eq!(samples(&[&whole[..], &[0; 100]].concat()), expected());
    assert_eq!(samples(&whole[..whole.len() - 1000]), expected()[..expected().len() - 500]);
    let floats: Vec<u8> = expected().iter().flat_map(|sample| sample.to_le_bytes()).collect();
    assert_eq!(samples(&caf(b"lpcm", 3, 32, -1, &floats)), expected());
    let laws: Vec<u8> = (0..3000_u32).map(|at| (at * 7 % 256) as u8).collect();
    assert_eq!(samples(&caf(b"ulaw", 0, 8, -1, &laws)), samples(&plain(&format(7, 1, 8, 18), &laws)));
    assert_eq!(read(&whole).unwrap().0.container, "caf");
}
