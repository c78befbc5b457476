//! The field `voice`: one voice, or several that are mixed in the syntax of Kokoro-FastAPI.

use serde::Deserialize;

use crate::display::shorten;
use crate::error::{Error, Result};

/// The most voices of a mix.
const MAX_VOICES: usize = 8;
const MAX_WEIGHT: f32 = 100.0;

/// The name of a voice, or an object with it.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(untagged, expecting = "must be the name of a voice, or an object with the field id")]
pub enum VoiceField {
    Name(String),
    Object { id: String },
}

impl VoiceField {
    /// The voices with their weights: `af_heart(2)+af_bella(1)`. Without a number, the weight is 1.
    pub fn parse(self) -> Result<Vec<(String, f32)>> {
        let (Self::Name(text) | Self::Object { id: text }) = self;
        let voices: Vec<(String, f32)> =
            text.split('+').map(|part| voice(part.trim(), &text)).collect::<Result<_>>()?;
        match voices.len() > MAX_VOICES {
            true => {
                let text = format!("'voice' mixes {} voices; at most {MAX_VOICES} are allowed.", voices.len());
                Err(Error::invalid("voice", text))
            }
            false => Ok(voices),
        }
    }
}

fn voice(part: &str, whole: &str) -> Result<(String, f32)> {
    let (name, weight) = match part.split_once('(') {
        None => (part, Some(1.0)),
        Some((name, weight)) => (name.trim(), weight.strip_suffix(')').and_then(|weight| weight.trim().parse().ok())),
    };
    match weight {
        Some(weight) if !name.is_empty() && !name.contains(')') && weight > 0.0 && weight <= MAX_WEIGHT => {
            Ok((name.to_owned(), weight))
        }
        _ => {
            let text = format!(
                "'voice' is '{}'. Send the name of a voice such as af_heart, or a mix such as af_heart(2)+af_bella(1) with \
                 weights above 0 and up to {MAX_WEIGHT}.",
                shorten(whole)
            );
            Err(Error::invalid("voice", text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::VoiceField;

    fn parse(text: &str) -> Option<Vec<(String, f32)>> {
        VoiceField::Name(text.to_owned()).parse().ok()
    }

    #[test]
    fn voices_are_mixed_with_weights() {
        let named = |voices: &[(&str, f32)]| {
            Some(voices.iter().map(|(name, weight)| ((*name).to_owned(), *weight)).collect::<Vec<_>>())
        };
        assert_eq!(parse("alloy"), named(&[("alloy", 1.0)]));
        assert_eq!(parse(" a + b "), named(&[("a", 1.0), ("b", 1.0)]));
        assert_eq!(parse("a(2)+b( 0.5 )+c"), named(&[("a", 2.0), ("b", 0.5), ("c", 1.0)]));
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["", "+", "a+", "(1)", "a(0)", "a(-1)", "a(x)", "a(1", "a)", "a(nan)", "a(inf)", "a(101)", "a(1)b"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
        assert!(parse("a+b+c+d+e+f+g+h").is_some() && parse("a+b+c+d+e+f+g+h+i").is_none());
    }
}
