//! Recognizes a container by its signature.
//!
//! Any large file has bytes that look like frames of MP3, so a decoder that searches for frames finds "sound" in every
//! container that it does not know. So the signature decides first, and only a file without one is searched for frames
//! (`frame_stream`).
//!
//! AVI and MPEG-TS are refused rather than read; ffmpeg converts them with one command.

use std::borrow::Cow;

/// Bytes of the file that [`identify`] looks at.
pub const HEAD: usize = 16 << 10;

/// The container that the first bytes identify.
#[derive(Clone, Debug, PartialEq)]
pub enum Container {
    /// WAV, also RF64, BW64 and RIFX.
    Wave,
    /// AIFF and AIFF-C.
    Aiff,
    Au,
    Caf,
    Matroska,
    /// Another one that can be read.
    Readable,
    /// The name of one that cannot be read.
    Unreadable(Cow<'static, str>),
    /// No signature: frames of MP3 or AAC, or anything else.
    Frames,
}

/// Recognizes the container from the first bytes of a file, at most [`HEAD`].
pub fn identify(head: &[u8]) -> Container {
    let at = |offset: usize, bytes: &[u8]| head.get(offset..).is_some_and(|rest| rest.starts_with(bytes));
    if WAVES.iter().any(|name| at(0, name)) && at(8, b"WAVE") {
        Container::Wave
    } else if at(0, b"FORM") && (at(8, b"AIFF") || at(8, b"AIFC")) {
        Container::Aiff
    } else if at(0, b".snd") || at(0, b"dns.") {
        Container::Au
    } else if at(0, b"caff") {
        Container::Caf
    } else if at(0, b"\x1A\x45\xDF\xA3") {
        Container::Matroska
    } else if let Some((.., name)) = UNREADABLE.iter().find(|(offset, bytes, _)| at(*offset, bytes)) {
        Container::Unreadable((*name).into())
    } else if READABLE.iter().any(|(offset, bytes)| at(*offset, bytes)) {
        Container::Readable
    } else if let Some(name) = iff_name(head).or_else(|| packets_name(head)) {
        Container::Unreadable(name)
    } else {
        Container::Frames
    }
}

const WAVES: [&[u8]; 4] = [b"RIFF", b"RIFX", b"RF64", b"BW64"];

/// Offset and bytes.
const READABLE: [(usize, &[u8]); 3] = [(0, b"fLaC"), (0, b"OggS"), (4, b"ftyp")];

/// Offset, bytes, name.
const UNREADABLE: [(usize, &[u8], &str); 90] = [
    (8, b"AVI ", "AVI"),
    (8, b"RMID", "MIDI"),
    (8, b"CDXA", "Video CD"),
    (0, b"\x30\x26\xB2\x75\x8E\x66\xCF\x11", "ASF: WMA or WMV"),
    (0, b"\x00\x00\x01\xBA", "MPEG program stream"),
    (0, b"\x00\x00\x01\xB3", "MPEG video"),
    (0, b"\x00\x00\x01\xB0", "MPEG video"),
    (0, b"\x00\x00\x01\xB6", "MPEG video"),
    (0, b"\x00\x00\x01\xBD", "MPEG packets"),
    (0, b"\x00\x00\x01\xC0", "MPEG packets"),
    (0, b"\x00\x00\x01\xE0", "MPEG packets"),
    (0, b"\x00\x00\x00\x01\x67", "H.264 video"),
    (0, b"OpusHead", "Opus without a container"),
    (28, b"Speex   ", "Speex in OGG"),
    (28, b"CELT    ", "CELT in OGG"),
    (0, b"FLV\x01", "FLV"),
    (0, b"FWS", "SWF"),
    (0, b"CWS", "SWF"),
    (0, b"ZWS", "SWF"),
    (0, b".RMF", "RealMedia"),
    (0, b".ra\xFD", "RealAudio"),
    (0, b"NSVf", "NSV"),
    (0, b"NSVs", "NSV"),
    (0, b"\x06\x0E\x2B\x34\x02\x05\x01\x01\x0D\x01\x02\x01\x01", "MXF"),
    (0, b"\xB7\xD8\x00\x20\x37\x49\xDA\x11\xA6\x4E\x00\x07\xE9\x5E\xAD\x8D", "WTV"),
    (0, b"nut/multimedia container", "NUT"),
    (0, b"DKIF", "IVF"),
    (0, b"BIK", "Bink"),
    (0, b"KB2", "Bink"),
    (0, b"SMK", "Smacker"),
    (4, b"moov", "QuickTime without an 'ftyp' box"),
    (4, b"mdat", "QuickTime without an 'ftyp' box"),
    (4, b"wide", "QuickTime without an 'ftyp' box"),
    (4, b"free", "QuickTime without an 'ftyp' box"),
    (4, b"skip", "QuickTime without an 'ftyp' box"),
    (4, b"pnot", "QuickTime without an 'ftyp' box"),
    (4, b"styp", "a segment of MP4 without its beginning"),
    (4, b"moof", "a segment of MP4 without its beginning"),
    (0, b"#!AMR", "AMR"),
    (0, b"#!SILK", "SILK"),
    (0, b"\x02#!SILK", "SILK"),
    (0, b"#!EVS", "EVS"),
    (0, b"#!iLBC", "iLBC"),
    (0, b"#!EVRC", "EVRC"),
    (0, b"MPCK", "Musepack"),
    (0, b"MP+", "Musepack"),
    (0, b"MAC ", "Monkey's Audio (APE)"),
    (0, b"MACF", "Monkey's Audio (APE)"),
    (0, b"wvpk", "WavPack"),
    (0, b"DSD ", "DSF"),
    (0, b"FRM8", "DSDIFF"),
    (0, b"TTA1", "TTA"),
    (0, b"TTA2", "TTA"),
    (0, b"tBaK", "TAK"),
    (0, b"OFR ", "OptimFROG"),
    (0, b"ajkg", "Shorten"),
    (0, b"riff\x2E\x91\xCF\x11", "Wave64"),
    (0, b"Creative Voice File\x1A", "VOC"),
    (0, b"NIST_1A", "NIST SPHERE"),
    (0, b".SoX", "SoX"),
    (0, b"XoS.", "SoX"),
    (0, b"\x64\xA3", "IRCAM"),
    (0, b"MMMD", "SMAF"),
    (0, b"KVAG", "KVAG"),
    (0, b"\x72\xF8\x1F\x4E", "S/PDIF"),
    (0, b"MThd", "MIDI"),
    (0, b"Extended Module: ", "a music module"),
    (0, b"IMPM", "a music module"),
    (0, b"ADIF", "AAC (ADIF)"),
    (0, b"\x7F\xFE\x80\x01", "DTS"),
    (0, b"\xFE\x7F\x01\x80", "DTS"),
    (0, b"\x1F\xFF\xE8\x00", "DTS"),
    (0, b"\xFF\x1F\x00\xE8", "DTS"),
    (0, b"\x64\x58\x20\x25", "DTS"),
    (0, b"DTSHDHDR", "DTS"),
    (4, b"\xF8\x72\x6F\xBA", "TrueHD"),
    (0, b"\x57\x90\x75\x36", "Audible"),
    (4, b"\x57\x90\x75\x36", "Audible"),
    (0, b"#EXTM3U", "a playlist"),
    (0, b"[playlist]", "a playlist"),
    (0, b"PK\x03\x04", "a ZIP archive"),
    (0, b"Rar!\x1A\x07", "a RAR archive"),
    (0, b"7z\xBC\xAF\x27\x1C", "a 7z archive"),
    (0, b"\x1F\x8B\x08", "a gzip file"),
    (0, b"BZh", "a bzip2 file"),
    (0, b"\xFD7zXZ\x00", "an xz file"),
    (0, b"\x28\xB5\x2F\xFD", "a Zstandard file"),
    (257, b"ustar", "a tar archive"),
    (0, b"%PDF-", "PDF"),
    (0, b"{\\rtf", "RTF"),
];

/// The name of a RIFF or IFF file of another form.
fn iff_name(head: &[u8]) -> Option<Cow<'static, str>> {
    let form = head.get(8..12)?;
    let is_iff = head.starts_with(b"FORM") || WAVES.iter().any(|name| head.starts_with(name));
    is_iff.then(|| format!("{} of the form '{}'", head[..4].escape_ascii(), form.escape_ascii()).into())
}

/// The name of a row of packets that have no signature other than their regular beginnings.
fn packets_name(head: &[u8]) -> Option<Cow<'static, str>> {
    if is_transport_stream(head) {
        Some("MPEG transport stream".into())
    } else if is_latm(head) {
        Some("AAC (LATM)".into())
    } else if is_ac3(head) {
        Some("AC-3".into())
    } else {
        None
    }
}

/// Packets of 188 bytes that begin with the same byte; also with a time stamp before (192) or check bytes after them
/// (204). A recording may begin within a packet.
fn is_transport_stream(head: &[u8]) -> bool {
    const SYNC: u8 = 0x47;
    const FEWEST: usize = 3;
    [188, 192, 204].into_iter().any(|size| {
        (0..size.min(head.len())).any(|start| {
            let mut count = 0;
            let all = head[start..].iter().step_by(size).all(|byte| {
                count += 1;
                *byte == SYNC
            });
            // A repeated byte is no stream.
            all && count >= FEWEST && head[start..].iter().take(size).any(|byte| *byte != SYNC)
        })
    })
}

/// A frame of AAC in LATM (ISO 14496-3, AudioSyncStream), and the beginning of the next one.
fn is_latm(head: &[u8]) -> bool {
    let length = |at: usize| match head.get(at..at + 3) {
        Some([0x56, high, low]) if high & 0xE0 == 0xE0 => Some(usize::from(high & 0x1F) << 8 | usize::from(*low)),
        _ => None,
    };
    length(0).is_some_and(|first| length(3 + first).is_some())
}

/// The first bytes of a frame of AC-3 or E-AC-3: the sync word and a version that exists.
fn is_ac3(head: &[u8]) -> bool {
    const LAST_VERSION: u8 = 16;
    head.starts_with(&[0x0B, 0x77]) && head.get(5).is_some_and(|byte| byte >> 3 <= LAST_VERSION)
}
