//! The API key of a target.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use http1::HeaderValue;
use zeroize::Zeroizing;

/// Max bytes of a file with a key.
const MAX_BYTES: u64 = 16 << 10;

/// The value of the `Authorization` header. It is never shown.
#[derive(Clone)]
pub struct Key {
    header: HeaderValue,
    secret: Zeroizing<String>,
}

impl Key {
    /// Reads a key from the first and only line of a file. The error is for everybody who may list models: it does not
    /// name the file.
    pub fn from_file(path: &Path) -> Result<Self, String> {
        let mut text = Zeroizing::new(String::new());
        let read = File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_string(&mut text));
        let count = read.map_err(|cause| format!("the file of key_file cannot be read: {}", cause.kind()))?;
        if count as u64 > MAX_BYTES {
            return Err(format!("the file of key_file has more than {MAX_BYTES} bytes"));
        }
        Self::new(text.trim()).map_err(|reason| format!("the file of key_file {reason}"))
    }

    /// Reads a key from an environment variable.
    pub fn from_variable(name: &str) -> Result<Self, String> {
        let text = std::env::var(name).map(Zeroizing::new);
        let text = text.map_err(|_| "the environment variable of key_env is not set".to_owned())?;
        Self::new(text.trim()).map_err(|reason| format!("the environment variable of key_env {reason}"))
    }

    fn new(secret: &str) -> Result<Self, &'static str> {
        if secret.is_empty() {
            return Err("is empty");
        }
        let header = Zeroizing::new(format!("Bearer {secret}"));
        let mut header = HeaderValue::from_str(&header).map_err(|_| "is not one line of printable characters")?;
        header.set_sensitive(true);
        Ok(Self { header, secret: Zeroizing::new(secret.to_owned()) })
    }

    pub fn header(&self) -> &HeaderValue {
        &self.header
    }

    /// True if the text contains the key, which must not reach clients or logs.
    pub fn is_in(&self, text: &str) -> bool {
        text.contains(self.secret.as_str())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}
