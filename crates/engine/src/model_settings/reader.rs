//! Reads values of TOML, and collects all errors with their lines.

use std::ops::Range;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::UnloadAfter;
use crate::moderation::{CATEGORIES, LabelMeaning};
use crate::settings::{MAX_STOP_BYTES, MAX_STOPS};
use crate::text::sampler::parameters::{SamplingParameter, SamplingParameters, SamplingRule};
use outpost_common::display::{one_of, shorten};
use outpost_common::spelling::nearest;
use outpost_common::toml_text::{Lines, kind_of};

/// A value with its place in the text.
pub type Value<'t> = Spanned<DeValue<'t>>;

/// Longer times mean the same as `never`.
const MAX_IDLE: Duration = Duration::from_secs(366 * 86_400);
const IDLE_FORM: &str = "write a time such as \"90s\", \"30m\", \"2h\" or \"1d\", or \"never\"";
/// Max bytes of a model's ID or of an alias.
const MAX_NAME_BYTES: usize = 256;

/// Reads the values of one file.
pub struct Reader {
    lines: Lines,
    /// With their lines.
    pub errors: Vec<(usize, String)>,
}

impl Reader {
    pub fn new(text: &str) -> Self {
        Self { lines: Lines::new(text), errors: Vec::new() }
    }

    pub fn error(&mut self, at: Range<usize>, error: String) {
        self.errors.push((self.lines.line_of(at.start), error));
    }

    /// The value, or `None` after an error was noted: `path` and what is wrong.
    fn note<T>(&mut self, path: &str, value: &Value<'_>, read: Result<T, String>) -> Option<T> {
        read.map_err(|what| self.error(value.span(), format!("{path} {what}"))).ok()
    }

    /// `section`: the keys' path with a dot at its end, or nothing.
    pub fn unknown_key<T>(&mut self, section: &str, key: &Spanned<T>, name: &str, value: &Value<'_>, known: &[&str]) {
        let (path, name) = (format!("{section}{}", shorten(name)), name);
        let remedy = match nearest(name, known.iter().copied()) {
            Some(meant) => format!("did you mean '{meant}'?"),
            // The rest of a name with a dot.
            None if matches!(value.get_ref(), DeValue::Table(_)) && !section.is_empty() => {
                format!("a name with a dot needs quotes, such as [models.\"name-1.5\"]; the keys are {}", one_of(known))
            }
            None => format!("the keys are {}", one_of(known)),
        };
        self.error(key.span(), format!("unknown key '{path}'; {remedy}"));
    }

    pub fn section<'v, 't>(&mut self, path: &str, value: &'v Value<'t>) -> Option<&'v DeTable<'t>> {
        let read = match value.get_ref() {
            DeValue::Table(table) => Ok(table),
            _ => Err(format!("is a section; write [{path}] on a line of its own")),
        };
        self.note(path, value, read)
    }

    pub fn flag(&mut self, path: &str, value: &Value<'_>) -> Option<bool> {
        let read = match value.get_ref() {
            DeValue::Boolean(on) => Ok(*on),
            other => Err(format!("must be true or false, without quotes; it is a {}", kind_of(other))),
        };
        self.note(path, value, read)
    }

    pub fn text(&mut self, path: &str, value: &Value<'_>) -> Option<String> {
        let read = match value.get_ref() {
            DeValue::String(text) => Ok(text.to_string()),
            other => Err(format!("must be a text in quotes; it is a {}", kind_of(other))),
        };
        self.note(path, value, read)
    }

    /// The ID of a model or an alias.
    pub fn name(&mut self, path: &str, value: &Value<'_>) -> Option<String> {
        let read = match value.get_ref() {
            DeValue::String(text) => check_name(text).map(|()| text.to_string()),
            DeValue::Table(_) => {
                Err("must be the ID of a model in quotes. An alias with a dot needs quotes, such as \"gpt-3.5-turbo\""
                    .to_owned())
            }
            other => Err(format!("must be a name in quotes; it is a {}", kind_of(other))),
        };
        self.note(path, value, read)
    }

    pub fn names(&mut self, path: &str, value: &Value<'_>) -> Vec<String> {
        let DeValue::Array(items) = value.get_ref() else {
            self.error(value.span(), format!("{path} must be a list of names, such as [\"a\", \"b\"]"));
            return Vec::new();
        };
        let named = items.iter().enumerate().map(|(index, item)| self.name(&format!("{path}[{index}]"), item));
        named.collect::<Vec<_>>().into_iter().flatten().collect()
    }

    pub fn unload_after(&mut self, path: &str, value: &Value<'_>) -> Option<UnloadAfter> {
        let read = match value.get_ref() {
            DeValue::String(text) => idle_time(text).ok_or_else(|| format!("is '{}'; {IDLE_FORM}", shorten(text))),
            other => Err(format!("is a {}; {IDLE_FORM}", kind_of(other))),
        };
        self.note(path, value, read)
    }

    /// Reads a sampling parameter.
    pub fn sampling(&mut self, path: &str, row: &SamplingParameter, value: &Value<'_>, read: &mut SamplingParameters) {
        if let SamplingRule::Count = row.rule {
            let count = self.whole(path, value, 0, u32::MAX.into()).and_then(|count| u32::try_from(count).ok());
            count.map(|count| row.set(read, count.into()));
        } else {
            let set = number(value.get_ref()).and_then(|number| row.set(read, number.into()));
            self.note(path, value, set);
        }
    }

    /// A number above 0, up to 1.
    pub fn fraction(&mut self, path: &str, value: &Value<'_>) -> Option<f32> {
        let read = number(value.get_ref()).and_then(|number| match number > 0. && number <= 1. {
            true => Ok(number),
            false => Err(format!("is {number}; it must be above 0, and at most 1")),
        });
        self.note(path, value, read)
    }

    /// Reads the meaning of a label for moderation.
    pub fn meaning(&mut self, path: &str, value: &Value<'_>) -> Option<LabelMeaning> {
        let meaning = value.get_ref().as_str().and_then(LabelMeaning::parse);
        let read = meaning.ok_or_else(|| {
            let categories = CATEGORIES.map(|name| format!("\"{name}\"")).join(", ");
            format!("must be \"safe\", \"unsafe\" or one of the categories {categories}")
        });
        self.note(path, value, read)
    }

    /// A whole number in this range.
    pub fn whole(&mut self, path: &str, value: &Value<'_>, min: i64, max: i64) -> Option<i64> {
        let read = match whole(value.get_ref()) {
            Some(number) if (min..=max).contains(&number) => Ok(number),
            Some(number) => Err(format!("is {number}; it must be from {min} to {max}")),
            None => Err(format!("must be a whole number from {min} to {max}")),
        };
        self.note(path, value, read)
    }

    pub fn stop(&mut self, path: &str, value: &Value<'_>) -> Option<Vec<String>> {
        let text = |value: &DeValue<'_>| if let DeValue::String(text) = value { Some(text.to_string()) } else { None };
        let texts: Option<Vec<String>> = match value.get_ref() {
            DeValue::Array(items) => items.iter().map(|item| text(item.get_ref())).collect(),
            one => text(one).map(|one| vec![one]),
        };
        let read = match texts {
            None => Err("must be a text or a list of texts".to_owned()),
            Some(texts) if texts.len() > MAX_STOPS => {
                Err(format!("has {} strings; at most {MAX_STOPS} are allowed", texts.len()))
            }
            Some(texts) if texts.iter().any(|text| !(1..=MAX_STOP_BYTES).contains(&text.len())) => {
                Err(format!("has a string that does not have 1 to {MAX_STOP_BYTES} bytes"))
            }
            Some(texts) => Ok(texts),
        };
        self.note(path, value, read)
    }
}

/// Checks a name. The error is a predicate.
pub fn check_name(name: &str) -> Result<(), String> {
    let is_visible = !name.is_empty() && name.trim() == name && !name.chars().any(char::is_control);
    match name.len() {
        0 => Err("is empty; write a name".to_owned()),
        1..=MAX_NAME_BYTES if is_visible => Ok(()),
        1..=MAX_NAME_BYTES => Err("begins or ends with a space, or has a control character; remove it".to_owned()),
        length => Err(format!("has {length} bytes; at most {MAX_NAME_BYTES} are allowed")),
    }
}

/// `90s`, `30m`, `2h`, `1d` or `never`.
fn idle_time(text: &str) -> Option<UnloadAfter> {
    if text == "never" {
        return Some(UnloadAfter::Never);
    }
    let seconds = match text.chars().last()? {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return None,
    };
    let digits = text.get(..text.len() - 1)?;
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    let count: u64 = digits.parse().ok().filter(|_| is_number)?;
    let time = Duration::from_secs(count.checked_mul(seconds)?);
    (time <= MAX_IDLE && !time.is_zero()).then_some(UnloadAfter::Idle(time))
}

fn whole(value: &DeValue<'_>) -> Option<i64> {
    match value {
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).ok(),
        _ => None,
    }
}

fn number(value: &DeValue<'_>) -> Result<f32, String> {
    let read = match value {
        DeValue::Float(number) => number.as_str().parse().ok(),
        #[expect(clippy::cast_precision_loss, reason = "numbers that are not exact are out of range")]
        value => whole(value).map(|number| number as f32),
    };
    read.ok_or_else(|| format!("must be a number, without quotes; it is a {}", kind_of(value)))
}
