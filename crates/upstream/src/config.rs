//! The checked contents of an `upstream.toml`.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::address::Address;
use super::file_format::{self, Api, Kind, TargetFields, TimeoutFields, UpstreamFile};
use super::key::Key;
use outpost_common::tls_roots::{self, Trust};

/// Max bytes of the file.
const MAX_FILE_BYTES: u64 = 256 << 10;
const MAX_TARGETS: usize = 64;
const MAX_WEIGHT: u32 = 1000;
/// Running requests that a target may have unless the file says otherwise, and the most that the file may say.
const DEFAULT_OUTSTANDING: u32 = 256;
const MAX_OUTSTANDING: u32 = 100_000;
/// Seconds.
const DEFAULT_CONNECT: f64 = 1.0;
const DEFAULT_IDLE: f64 = 30.0;
/// Seconds between two events of a text, unless `idle` is longer.
const DEFAULT_EVENT: f64 = 600.0;
/// Seconds until a text or a vector begins to arrive.
const DEFAULT_FIRST_BYTE: f64 = 60.0;
/// Seconds until an image, audio or a transcript begins to arrive. It may be computed as a whole before.
const DEFAULT_FIRST_BYTE_OF_MEDIA: f64 = 600.0;

/// An upstream model, as its file describes it.
#[derive(Debug)]
pub struct UpstreamModel {
    /// The name of its folder.
    pub id: String,
    pub kind: Kind,
    pub api: Api,
    /// Max tokens of prompt and output together, if the file says.
    pub context: Option<u32>,
    /// The length of the vectors of an embedding model, if the file says.
    pub dimensions: Option<u32>,
    pub(super) targets: Vec<TargetConfig>,
    pub(super) timeouts: Timeouts,
}

/// One server of a model.
#[derive(Debug)]
pub struct TargetConfig {
    pub address: Address,
    /// The model's name on the target.
    pub model: String,
    pub key: Option<Key>,
    /// For `https`.
    pub trust: Option<Trust>,
    pub weight: u32,
    pub max_outstanding: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    pub connect: Duration,
    /// From the request to the first bytes of the response's body.
    pub first_byte: Duration,
    /// Between two reads of the body.
    pub idle: Duration,
    /// Between two events of a text. Comments, with which servers keep connections open, do not count.
    pub event: Duration,
}

impl UpstreamModel {
    /// Reads the file of the model `id`, the keys and the certificates that it names. The reason for a failure has no
    /// address and no secret, because everybody who may list models reads it.
    pub fn read(id: &str, path: &Path) -> Result<Arc<Self>, String> {
        let file = parse(path).map_err(|reason| format!("{}: {reason}", file_format::FILE))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        Self::check(id, folder, file).map(Arc::new).map_err(|reason| format!("{}: {reason}", file_format::FILE))
    }

    fn check(id: &str, folder: &Path, file: UpstreamFile) -> Result<Self, String> {
        let UpstreamFile { kind, api, context, dimensions, target, timeouts } = file;
        if !(1..=MAX_TARGETS).contains(&target.len()) {
            return Err(format!("target has {} entries; it must have 1 to {MAX_TARGETS}", target.len()));
        }
        for (field, value) in [("context", context), ("dimensions", dimensions)] {
            if value == Some(0) {
                return Err(format!("{field} is 0; it must be at least 1"));
            }
        }
        let one = |(index, fields): (usize, TargetFields)| {
            TargetConfig::check(id, folder, fields).map_err(|reason| format!("target[{index}]: {reason}"))
        };
        let targets = target.into_iter().enumerate().map(one).collect::<Result<Vec<_>, _>>()?;
        let mut seen = HashSet::new();
        if targets.iter().any(|target| !seen.insert((&target.address, &target.model))) {
            return Err("two targets have the same url and the same model; give one of them a larger weight".to_owned());
        }
        let timeouts = Timeouts::check(&timeouts, kind)?;
        Ok(Self { id: id.to_owned(), kind, api, context, dimensions, targets, timeouts })
    }
}

impl TargetConfig {
    fn check(id: &str, folder: &Path, fields: TargetFields) -> Result<Self, String> {
        let address = Address::parse(&fields.url).map_err(|reason| format!("url {reason}"))?;
        let key = match (&fields.key_file, &fields.key_env) {
            (None, None) => None,
            (Some(path), None) => Some(Key::from_file(&folder.join(path))?),
            (None, Some(name)) => Some(Key::from_variable(name)?),
            (Some(_), Some(_)) => return Err("key_file and key_env are both set; use one of them".to_owned()),
        };
        let trust = match (&fields.ca_file, address.is_https()) {
            (Some(path), true) => Some(tls_roots::trust_file(&folder.join(path))?),
            (None, true) => Some(tls_roots::trust_system().map_err(|error| format!("{error}, or set ca_file"))?),
            (Some(_), false) => return Err("ca_file needs a url that begins with https://".to_owned()),
            (None, false) => None,
        };
        let model = fields.model.unwrap_or_else(|| id.to_owned());
        if model.is_empty() {
            return Err("model is empty; leave it out, or name the model of the target".to_owned());
        }
        let weight = within("weight", fields.weight.unwrap_or(1), MAX_WEIGHT)?;
        let max_outstanding =
            within("max_outstanding", fields.max_outstanding.unwrap_or(DEFAULT_OUTSTANDING), MAX_OUTSTANDING)?;
        Ok(Self { address, model, key, trust, weight, max_outstanding })
    }
}

impl Timeouts {
    fn check(fields: &TimeoutFields, kind: Kind) -> Result<Self, String> {
        let first_byte = match kind {
            Kind::Chat | Kind::Completion | Kind::Embedding | Kind::Rerank => DEFAULT_FIRST_BYTE,
            Kind::Image | Kind::Transcription | Kind::Speech => DEFAULT_FIRST_BYTE_OF_MEDIA,
        };
        let default_event = DEFAULT_EVENT.max(fields.idle.unwrap_or(DEFAULT_IDLE));
        Ok(Self {
            connect: seconds("connect", fields.connect, DEFAULT_CONNECT, 60.0)?,
            first_byte: seconds("first_byte", fields.first_byte, first_byte, 86_400.0)?,
            idle: seconds("idle", fields.idle, DEFAULT_IDLE, 86_400.0)?,
            event: seconds("event", fields.event, default_event, 86_400.0)?,
        })
    }
}

/// The files beside `upstream.toml` that the model depends on: keys and certificates. Empty if the file is not valid.
pub fn dependencies(path: &Path) -> Vec<PathBuf> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let targets = parse(path).map(|file| file.target).unwrap_or_default();
    let files = targets.into_iter().flat_map(|target| [target.key_file, target.ca_file]);
    files.flatten().map(|file| folder.join(file)).filter(|file| file.is_file()).collect()
}

fn parse(path: &Path) -> Result<UpstreamFile, String> {
    let read = || {
        if fs::metadata(path)?.len() > MAX_FILE_BYTES {
            return Err(std::io::Error::from(std::io::ErrorKind::FileTooLarge));
        }
        fs::read_to_string(path)
    };
    file_format::parse(&read().map_err(|cause| format!("it cannot be read: {}", cause.kind()))?)
}

fn within(field: &str, value: u32, max: u32) -> Result<u32, String> {
    match (1..=max).contains(&value) {
        true => Ok(value),
        false => Err(format!("{field} is {value}; it must be from 1 to {max}")),
    }
}

/// Seconds as a duration; at least a millisecond.
fn seconds(field: &str, given: Option<f64>, default: f64, max: f64) -> Result<Duration, String> {
    let value = given.unwrap_or(default);
    let duration = Duration::try_from_secs_f64(value).ok().filter(|_| (0.001..=max).contains(&value));
    duration.ok_or_else(|| format!("timeouts.{field} is {value}; it must be from 0.001 to {max} seconds"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Reads a file with this text, beside a key and a file that is no certificate.
    fn read(text: &str) -> Result<Arc<UpstreamModel>, String> {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("key"), "a-secret\n").unwrap();
        fs::write(folder.path().join("empty"), " \n").unwrap();
        fs::write(folder.path().join("ca.pem"), "nothing").unwrap();
        let path = folder.path().join(file_format::FILE);
        fs::write(&path, text).unwrap();
        UpstreamModel::read("mine", &path)
    }

    #[test]
    fn settings_have_defaults() {
        let model = read("kind = \"chat\"\n[[target]]\nurl = \"http://a/v1\"").unwrap();
        let target = &model.targets[0];
        assert_eq!((target.model.as_str(), target.weight, target.max_outstanding), ("mine", 1, DEFAULT_OUTSTANDING));
        assert!(target.key.is_none() && target.trust.is_none() && model.api == Api::OpenAi);
        assert_eq!(model.timeouts.first_byte, Duration::from_secs(60));
        let speech = read("kind = \"speech\"\n[[target]]\nurl = \"http://a/v1\"\n[timeouts]\nidle = 0.5").unwrap();
        assert_eq!(speech.timeouts.first_byte, Duration::from_secs(600));
        assert_eq!(speech.timeouts.idle, Duration::from_millis(500));
        assert_eq!(speech.timeouts.event, Duration::from_secs(600));
        let slow = read("kind = \"chat\"\n[[target]]\nurl = \"http://a/v1\"\n[timeouts]\nidle = 900").unwrap();
        assert_eq!(slow.timeouts.event, Duration::from_secs(900));
    }

    #[test]
    fn keys_come_from_files_and_are_not_shown() {
        let model = read("kind = \"chat\"\n[[target]]\nurl = \"http://a\"\nkey_file = \"key\"").unwrap();
        assert_eq!(model.targets[0].key.as_ref().unwrap().header(), "Bearer a-secret");
        assert!(!format!("{model:?}").contains("a-secret"));
    }

    #[test]
    fn bad_settings_are_refused_by_name() {
        for (more, expected) in [
            ("url = \"http://a?secret\"", "target[0]: url must not have a query"),
            ("url = \"http://secret@a\"", "must not have a user"),
            ("url = \"http://a\"\nweight = 0", "weight is 0"),
            ("url = \"http://a\"\nmax_outstanding = 200000", "max_outstanding is 200000"),
            ("url = \"http://a\"\nmodel = \"\"", "model is empty"),
            ("url = \"http://a\"\nkey_file = \"secret\"", "the file of key_file cannot be read"),
            ("url = \"http://a\"\nkey_file = \"empty\"", "the file of key_file is empty"),
            ("url = \"http://a\"\nkey_env = \"OUTPOST_TEST_NO_SUCH_VARIABLE\"", "key_env is not set"),
            ("url = \"http://a\"\nkey_file = \"key\"\nkey_env = \"X\"", "both set"),
            ("url = \"http://a\"\nca_file = \"ca.pem\"", "ca_file needs a url"),
            ("url = \"https://a\"\nca_file = \"ca.pem\"", "ca_file has no certificate"),
            ("url = \"http://a\"\n[[target]]\nurl = \"http://a/\"", "two targets have the same url"),
            ("url = \"http://a\"\n[timeouts]\nidle = 0", "timeouts.idle is 0"),
            ("url = \"http://a\"\n[timeouts]\nconnect = nan", "timeouts.connect is NaN"),
        ] {
            let reason = read(&format!("kind = \"chat\"\n[[target]]\n{more}")).unwrap_err();
            assert!(reason.starts_with("upstream.toml: ") && reason.contains(expected), "{more}: {reason}");
            assert!(!reason.contains("secret"), "{reason}");
        }
        assert!(read("kind = \"chat\"\ntarget = []").unwrap_err().contains("target has 0 entries"));
    }
}
