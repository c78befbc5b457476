//! Strict decoder for chunked bodies (RFC 9112, 7.1). Re-encodes the chunks without extensions and trailers.

use super::head::field;

/// Max bytes of a chunk-size line, and of all trailers.
const MAX_LINE: usize = 4 << 10;
const MAX_TRAILERS: usize = 16 << 10;
/// Max digits of a chunk's size, so that the value fits into 64 bits.
const MAX_DIGITS: usize = 15;
const LAST: &[u8] = b"0\r\n\r\n";

/// How far a body has been read.
#[derive(Debug)]
pub enum ChunkedDecoder {
    Size,
    Data(u64),
    /// The end of the line after the data.
    DataEnd,
    /// Bytes of trailers so far.
    Trailers(usize),
}

/// Outcome of decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// More input is needed.
    Wanting,
    /// The body is complete.
    Done,
    /// The body is malformed. The output is terminated with a last chunk, so that its reader ends.
    Broken,
}

impl ChunkedDecoder {
    /// Reads from the front of `input` and writes to `out`; returns how many bytes were read.
    pub fn read(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, Progress) {
        let mut at = 0;
        loop {
            let rest = input.get(at..).unwrap_or_default();
            let step = match self {
                Self::Data(0) => Some((0, Self::DataEnd)),
                Self::Data(left) => {
                    let length = rest.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    out.extend(rest.iter().take(length));
                    *left -= length as u64;
                    (length > 0).then_some((length, Self::Data(*left)))
                }
                Self::DataEnd => match rest {
                    [b'\r', b'\n', ..] => {
                        out.extend(b"\r\n");
                        Some((2, Self::Size))
                    }
                    [] | [b'\r'] => None,
                    _ => {
                        out.extend(b"\r\n");
                        out.extend(LAST);
                        return (at, Progress::Broken);
                    }
                },
                Self::Size | Self::Trailers(_) => match line(rest) {
                    Line::Partial => None,
                    Line::Whole(line) => match self.line(line, out) {
                        Some(Next::Go(next)) => Some((line.len() + 2, next)),
                        Some(Next::End) => return (at + line.len() + 2, Progress::Done),
                        None => return (at, broken(out)),
                    },
                    Line::Bad => return (at, broken(out)),
                },
            };
            let Some((read, next)) = step else { return (at, Progress::Wanting) };
            at += read;
            *self = next;
        }
    }

    /// The state after a line; `None` if the line is invalid.
    fn line(&self, line: &[u8], out: &mut Vec<u8>) -> Option<Next> {
        match self {
            Self::Trailers(_) if line.is_empty() => {
                out.extend(LAST);
                Some(Next::End)
            }
            Self::Trailers(bytes) => {
                field(line).ok()?;
                let bytes = bytes + line.len();
                (bytes <= MAX_TRAILERS).then_some(Next::Go(Self::Trailers(bytes)))
            }
            _ => match size(line)? {
                0 => Some(Next::Go(Self::Trailers(0))),
                size => {
                    out.extend(format!("{size:x}\r\n").bytes());
                    Some(Next::Go(Self::Data(size)))
                }
            },
        }
    }
}

enum Next {
    Go(ChunkedDecoder),
    End,
}

fn broken(out: &mut Vec<u8>) -> Progress {
    out.extend(LAST);
    Progress::Broken
}

enum Line<'a> {
    /// Without its end.
    Whole(&'a [u8]),
    Partial,
    /// It is too long, or does not end with CR LF.
    Bad,
}

fn line(input: &[u8]) -> Line<'_> {
    match input.iter().take(MAX_LINE).position(|byte| *byte == b'\n') {
        Some(end) => match input.get(..end).and_then(|line| line.strip_suffix(b"\r")) {
            Some(line) => Line::Whole(line),
            None => Line::Bad,
        },
        None if input.len() >= MAX_LINE => Line::Bad,
        None => Line::Partial,
    }
}

/// The size in a line that may have extensions.
fn size(line: &[u8]) -> Option<u64> {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (number, extensions) = line.split_at(digits);
    let begins = extensions.trim_ascii_start().first().is_none_or(|byte| *byte == b';');
    let clean = extensions.iter().all(|byte| *byte == b'\t' || *byte >= b' ' && *byte != 0x7f);
    let plain = extensions.is_empty() || extensions.contains(&b';');
    (begins && clean && plain && digits <= MAX_DIGITS).then_some(())?;
    u64::from_str_radix(std::str::from_utf8(number).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::{ChunkedDecoder, Progress};

    /// Decodes a text at once and byte by byte; both must give the same result.
    fn read(text: &str) -> (String, Progress) {
        let (mut chunks, mut out) = (ChunkedDecoder::Size, Vec::new());
        let (_, progress) = chunks.read(text.as_bytes(), &mut out);
        let (mut slow, mut slowly, mut kept, mut last) =
            (ChunkedDecoder::Size, Vec::new(), Vec::new(), Progress::Wanting);
        for byte in text.bytes() {
            kept.push(byte);
            let (taken, progress) = slow.read(&kept, &mut slowly);
            kept.drain(..taken);
            last = progress;
            if progress != Progress::Wanting {
                break;
            }
        }
        let data = |out: &[u8]| String::from_utf8_lossy(out).split("\r\n").skip(1).step_by(2).collect::<String>();
        assert_eq!((last, data(&slowly)), (progress, data(&out)), "{text:?}");
        (String::from_utf8(out).unwrap(), progress)
    }

    #[test]
    fn chunks_are_reencoded() {
        let done = |text: &str| (text.to_owned(), Progress::Done);
        assert_eq!(read("5\r\nhello\r\n0\r\n\r\nnext"), done("5\r\nhello\r\n0\r\n\r\n"));
        assert_eq!(read("005;a=\"b c\";d \r\nhello\r\n0;x\r\n\r\n"), done("5\r\nhello\r\n0\r\n\r\n"));
        assert_eq!(read("A ;x\r\n0123456789\r\n0\r\nChecksum: 1\r\nB:2\r\n\r\n"), done("a\r\n0123456789\r\n0\r\n\r\n"));
    }

    #[test]
    fn malformed_chunked_bodies_are_terminated() {
        let broken = [
            "\r\n",
            "x\r\n",
            "-1\r\n",
            "+5\r\nhello",
            "0x5\r\nhello",
            "5 \r\nhello",
            "5\nhello\r\n",
            "5\rhello\r\n",
            "5;x\ny\r\nhello\r\n",
            "5;x\0\r\nhello\r\n",
            "f0000000000000003\r\n",
            "ffffffffffffffff\r\n",
            "0\r\n bad: x\r\n\r\n",
            "0\r\nno colon\r\n\r\n",
            "0\r\nx: y\n\r\n",
            "0\r\nspace : y\r\n\r\n",
        ];
        for text in broken {
            assert_eq!(read(text), ("0\r\n\r\n".to_owned(), Progress::Broken), "{text:?}");
        }
        for text in ["5\r\nhelloXX", "5\r\nhello\n", "5\r\nhello\rX"] {
            assert_eq!(read(text), ("5\r\nhello\r\n0\r\n\r\n".to_owned(), Progress::Broken), "{text:?}");
        }
        let long = format!("5;{}", "x".repeat(5_000));
        assert_eq!(read(&long).1, Progress::Broken);
        let many = format!("0\r\n{}", "x: y\r\n".repeat(5_000));
        assert_eq!(read(&many).1, Progress::Broken);
        assert_eq!(read("5\r\nhel"), ("5\r\nhel".to_owned(), Progress::Wanting));
    }
}
