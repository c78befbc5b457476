//! The head of an HTTP/1 request: its lines, and what they say about the body (RFC 9112).
//!
//! The HTTP library accepts input that proxies interpret differently, such as lines that end with a bare LF. Such
//! differences allow request smuggling, so a head passes only if it is unambiguous.

use actix_web::http::Uri;

use crate::error::{Code, Error};

/// Max bytes of a head; an incomplete request never buffers more.
pub const MAX_BYTES: usize = 64 << 10;
/// The HTTP library has the same limit.
const MAX_FIELDS: usize = 96;
/// The longest registered method has 17 letters.
const MAX_METHOD_BYTES: usize = 32;

/// What follows a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    Length(u64),
    Chunked,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadError {
    /// It is not HTTP/1.1, for this reason.
    Malformed(&'static str),
    TooLarge(&'static str),
}

impl HeadError {
    pub fn error(self) -> Error {
        match self {
            Self::Malformed(why) => {
                Error::new(Code::InvalidParameter, format!("The request is not valid HTTP/1.1: {why}."))
            }
            Self::TooLarge(what) => Error::new(Code::HeaderTooLarge, format!("The request has {what}.")),
        }
    }
}

use HeadError::{Malformed, TooLarge};

/// How far an incomplete head has been scanned for its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// The start of the incomplete line.
    line: usize,
    scanned: usize,
}

impl Scan {
    pub fn is_new(self) -> bool {
        self.line == 0
    }
}

/// The position after the empty line that ends the head at the start of `input`; `None` if it is incomplete. `scan`
/// holds the progress of earlier calls.
pub fn end(input: &[u8], scan: &mut Scan) -> Result<Option<usize>, HeadError> {
    while let Some(length) = input.get(scan.scanned..).and_then(|rest| rest.iter().position(|byte| *byte == b'\n')) {
        let line_feed = scan.scanned + length;
        let before = |count: usize| line_feed.checked_sub(count).and_then(|at| input.get(at));
        if before(1) != Some(&b'\r') {
            return Err(Malformed("a line of the header ends with a bare LF, not with CR LF"));
        }
        (scan.line, scan.scanned) = (line_feed + 1, line_feed + 1);
        if before(2) == Some(&b'\n') {
            return Ok(Some(line_feed + 1));
        }
    }
    scan.scanned = input.len();
    // Fail early if the input is another protocol, such as TLS.
    let method = input.get(..=MAX_METHOD_BYTES).unwrap_or(input).split(|byte| *byte == b' ').next().unwrap_or_default();
    if scan.line == 0
        && method != b"\r"
        && !is_method(method.get(..=MAX_METHOD_BYTES).unwrap_or(method))
        && !input.is_empty()
    {
        return Err(NO_METHOD);
    }
    match input.len() > MAX_BYTES {
        true => Err(TooLarge("a header of more than 64 KiB")),
        false => Ok(None),
    }
}

/// Checks a complete head, including the empty line. Appends it to `out` without `Upgrade` fields, and returns what
/// follows.
pub fn check(head: &[u8], out: &mut Vec<u8>) -> Result<Body, HeadError> {
    let mut lines = head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let first = lines.next().unwrap_or_default();
    let request = RequestLine::parse(first)?;
    let begin = out.len();
    out.extend(first);
    out.extend(b"\r\n");
    let mut fields = Fields::default();
    for (index, line) in lines.take_while(|line| !line.is_empty()).enumerate() {
        if index >= MAX_FIELDS {
            out.truncate(begin);
            return Err(TooLarge("more than 96 header fields"));
        }
        if let Err(error) = fields.take(line, out) {
            out.truncate(begin);
            return Err(error);
        }
    }
    out.extend(b"\r\n");
    fields.body(&request).inspect_err(|_| out.truncate(begin))
}

struct RequestLine {
    is_post: bool,
    /// Whether the request is HTTP/1.0.
    old: bool,
}

impl RequestLine {
    fn parse(line: &[u8]) -> Result<Self, HeadError> {
        let mut parts = line.splitn(3, |byte| *byte == b' ');
        let mut part = || parts.next().ok_or(Malformed("its first line is not 'METHOD /path HTTP/1.1'"));
        let (method, target, version) = (part()?, part()?, part()?);
        if !is_method(method) {
            return Err(NO_METHOD);
        }
        if method == b"CONNECT" {
            return Err(Malformed("the CONNECT method is not supported"));
        }
        if !target.iter().all(u8::is_ascii_graphic) || Uri::try_from(target).is_err() {
            return Err(Malformed("its path is not a valid URL path; percent-encode spaces and non-ASCII characters"));
        }
        let old = match version {
            b"HTTP/1.1" => false,
            b"HTTP/1.0" => true,
            _ => return Err(Malformed("its version is neither HTTP/1.1 nor HTTP/1.0")),
        };
        Ok(Self { is_post: method == b"POST", old })
    }
}

/// The header fields that determine the body and the connection.
#[derive(Default)]
struct Fields {
    length: Option<u64>,
    chunked: bool,
    hosts: usize,
}

impl Fields {
    /// Reads a line, and appends it to `out` if it is passed on.
    fn take(&mut self, line: &[u8], out: &mut Vec<u8>) -> Result<(), HeadError> {
        let (name, value) = field(line)?;
        let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        if is("content-length") {
            let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
            let number = std::str::from_utf8(value).ok().filter(|_| digits).and_then(|text| text.parse().ok());
            let length = number.ok_or(Malformed("its Content-Length is not a number of bytes"))?;
            if self.length.replace(length).is_some() {
                return Err(Malformed("it has more than one Content-Length"));
            }
        } else if is("transfer-encoding") {
            if !value.eq_ignore_ascii_case(b"chunked") {
                return Err(Malformed("its Transfer-Encoding is not 'chunked'"));
            }
            if std::mem::replace(&mut self.chunked, true) {
                return Err(Malformed("it has more than one Transfer-Encoding"));
            }
        } else if is("host") {
            self.hosts += 1;
        } else if is("upgrade") {
            // The server supports no upgrade, so the request is served as plain HTTP/1.1.
            return Ok(());
        } else if is("connection") && value.to_ascii_lowercase().windows(7).any(|part| part == b"upgrade") {
            let options = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
            let left: Vec<&[u8]> = options.filter(|option| !option.eq_ignore_ascii_case(b"upgrade")).collect();
            out.extend(b"connection: ");
            out.extend(left.join(&b", "[..]));
            out.extend(b"\r\n");
            return Ok(());
        }
        out.extend(line);
        out.extend(b"\r\n");
        Ok(())
    }

    fn body(&self, request: &RequestLine) -> Result<Body, HeadError> {
        if self.hosts > 1 || self.hosts == 0 && !request.old {
            return Err(Malformed("it must have one Host header"));
        }
        match (self.chunked, self.length) {
            (true, Some(_)) => Err(Malformed("it has both a Content-Length and a Transfer-Encoding")),
            (true, None) if request.old => Err(Malformed("HTTP/1.0 has no Transfer-Encoding")),
            (true, None) => Ok(Body::Chunked),
            (false, None) if request.old && request.is_post => {
                Err(Malformed("a POST of HTTP/1.0 needs a Content-Length"))
            }
            (false, length) => Ok(Body::Length(length.unwrap_or(0))),
        }
    }
}

/// Name and value of a line without its end.
pub fn field(line: &[u8]) -> Result<(&[u8], &[u8]), HeadError> {
    if line.first().is_some_and(|byte| matches!(byte, b' ' | b'\t')) {
        return Err(Malformed("a header is folded over several lines"));
    }
    let colon = line.iter().position(|byte| *byte == b':').ok_or(Malformed("a header line has no colon"))?;
    let (name, rest) = line.split_at(colon);
    if name.is_empty() || !name.iter().all(is_token) {
        return Err(Malformed("a header name contains an invalid character, such as a space before the colon"));
    }
    let value = rest.get(1..).unwrap_or_default();
    if !value.iter().all(|byte| *byte == b'\t' || *byte >= b' ' && *byte != 0x7f) {
        return Err(Malformed("a header's value has a control character in it"));
    }
    Ok((name, value.trim_ascii()))
}

const NO_METHOD: HeadError = Malformed("its method is not a token of at most 32 characters");

fn is_method(text: &[u8]) -> bool {
    (1..=MAX_METHOD_BYTES).contains(&text.len()) && text.iter().all(is_token)
}

/// Token characters (RFC 9110, 5.6.2).
fn is_token(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte)
}

#[cfg(test)]
mod tests {
    use super::{Body, HeadError, MAX_BYTES, Scan, check, end};

    fn read(text: &str) -> Result<(Body, String), HeadError> {
        let (mut out, mut scan) = (Vec::new(), Scan::default());
        let whole = end(text.as_bytes(), &mut scan)?.expect("a whole head");
        let body = check(&text.as_bytes()[..whole], &mut out)?;
        Ok((body, String::from_utf8(out).unwrap()))
    }

    #[test]
    fn a_head_is_passed_on_unchanged_except_upgrade_fields() {
        let plain = "PATCH /v1/x?y=%20z HTTP/1.1\r\nHost: a\r\nX-Odd!: \tcaf\u{e9} \r\nEmpty:\r\n\r\n";
        assert_eq!(read(plain), Ok((Body::Length(0), plain.to_owned())));
        let upgrade = "GET / HTTP/1.1\r\nhost: a\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n\r\n";
        let (_, passed) = read(upgrade).unwrap();
        assert_eq!(passed, "GET / HTTP/1.1\r\nhost: a\r\nconnection: keep-alive\r\n\r\n");
        let body = |line: &str| read(&format!("POST / HTTP/1.1\r\nHost: a\r\n{line}\r\n\r\n")).unwrap().0;
        assert_eq!(body("Content-Length: 12"), Body::Length(12));
        assert_eq!(body("transfer-encoding: Chunked"), Body::Chunked);
    }

    #[test]
    fn a_head_in_several_reads_is_scanned_once() {
        let text = b"GET / HTTP/1.1\r\nHost: a\r\n\r\nrest";
        let mut scan = Scan::default();
        let whole = (1..=text.len()).find_map(|length| {
            let end = end(&text[..length], &mut scan).unwrap();
            assert_eq!(scan.scanned, length, "no byte is looked at twice");
            end
        });
        assert_eq!(whole, Some(text.len() - 4));
        let mut scan = Scan::default();
        let long = format!("GET /{}", "x".repeat(MAX_BYTES));
        assert_eq!(end(&long.as_bytes()[..MAX_BYTES], &mut scan), Ok(None));
        assert!(matches!(end(long.as_bytes(), &mut scan), Err(HeadError::TooLarge(_))));
        for other in [&b"\x16\x03\x01"[..], b"\0", &[b'x'; 33]] {
            assert_eq!(end(other, &mut Scan::default()), Err(super::NO_METHOD));
        }
        for begun in ["", "\r", "G", "GET", "GET "] {
            assert_eq!(end(begun.as_bytes(), &mut Scan::default()), Ok(None));
        }
    }
}
