//! Finds the voices that a request names.

use crate::display::shorten;
use crate::engine::VoiceInfo;
use crate::error::{Error, Result};
use crate::spelling;

/// OpenAI's voices, and the voices of Kokoro that stand in for them: those of the same name, or else of the same gender.
const OPENAI: [(&str, &str); 13] = [
    ("alloy", "af_alloy"),
    ("ash", "am_michael"),
    ("ballad", "bm_george"),
    ("cedar", "am_fenrir"),
    ("coral", "af_bella"),
    ("echo", "am_echo"),
    ("fable", "bm_fable"),
    ("marin", "af_heart"),
    ("nova", "af_nova"),
    ("onyx", "am_onyx"),
    ("sage", "af_sarah"),
    ("shimmer", "af_sky"),
    ("verse", "am_puck"),
];
/// The most voices that an error names.
const MAX_NAMED: usize = 10;

/// The model's voices for the requested ones, with their weights. The first one decides the language.
pub fn resolve(voices: &[VoiceInfo], requested: Vec<(String, f32)>) -> Result<Vec<(String, f32)>> {
    let found: Vec<(&VoiceInfo, f32)> =
        requested.into_iter().map(|(name, weight)| Ok((find(voices, &name)?, weight))).collect::<Result<_>>()?;
    match found.first() {
        Some((first, _)) if first.language.is_none() => Err(unpronounced(voices, &first.name)),
        _ => Ok(found.into_iter().map(|(voice, weight)| (voice.name.clone(), weight)).collect()),
    }
}

fn find<'a>(voices: &'a [VoiceInfo], name: &str) -> Result<&'a VoiceInfo> {
    let named = |name: &str| voices.iter().find(|voice| voice.name == name);
    let replacement = || {
        let (_, name) = OPENAI.iter().find(|(openai, _)| *openai == name)?;
        let like = |prefix: Option<&str>| {
            prefix.and_then(|prefix| usable(voices).find(|voice| voice.name.starts_with(prefix)))
        };
        // A model may have only some of Kokoro's voices.
        named(name).or_else(|| like(name.get(..2))).or_else(|| usable(voices).next())
    };
    named(name).or_else(replacement).ok_or_else(|| unknown(voices, name))
}

/// The voices that can speak.
fn usable(voices: &[VoiceInfo]) -> impl Iterator<Item = &VoiceInfo> {
    voices.iter().filter(|voice| voice.language.is_some())
}

fn unknown(voices: &[VoiceInfo], name: &str) -> Error {
    let meant = spelling::nearest(name, voices.iter().map(|voice| voice.name.as_str()));
    let meant = meant.map(|meant| format!(" Did you mean '{meant}'?")).unwrap_or_default();
    let text = format!("'voice' is '{}', which the model does not have.{meant} {}", shorten(name), choices(voices));
    Error::invalid("voice", text)
}

fn unpronounced(voices: &[VoiceInfo], name: &str) -> Error {
    let text = format!(
        "'voice' is '{name}', whose language cannot be pronounced: the server has no rules for it, or the model has no \
         lexicon of it. {}",
        choices(voices)
    );
    Error::invalid("voice", text)
}

/// The voices that can be requested.
fn choices(voices: &[VoiceInfo]) -> String {
    let names: Vec<&str> = usable(voices).map(|voice| voice.name.as_str()).collect();
    let more = match names.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let named = names.into_iter().take(MAX_NAMED).collect::<Vec<_>>().join(", ");
    format!("Send one of {named}{more}; GET /v1/audio/voices lists all.")
}

#[cfg(test)]
mod tests {
    use super::{OPENAI, VoiceInfo, resolve};

    fn voices(names: &[&str]) -> Vec<VoiceInfo> {
        let language = |name: &str| Some("en-US").filter(|_| !name.starts_with('j'));
        names.iter().map(|name| VoiceInfo { name: (*name).to_owned(), language: language(name) }).collect()
    }

    fn find(names: &[&str], requested: &str) -> Result<String, String> {
        let found = resolve(&voices(names), vec![(requested.to_owned(), 2.0)]).map_err(|error| error.to_string())?;
        Ok(found[0].0.clone())
    }

    #[test]
    fn openais_names_stand_for_voices_of_the_model() {
        let all: Vec<&str> = OPENAI.iter().map(|(_, voice)| *voice).collect();
        for (openai, voice) in OPENAI {
            assert_eq!(find(&all, openai).as_deref(), Ok(voice));
            assert_eq!(find(&["jf_alpha", "zz"], openai).as_deref(), Ok("zz"));
        }
        assert_eq!(find(&["af_heart", "am_adam", "jf_alpha"], "onyx").as_deref(), Ok("am_adam"));
        assert_eq!(find(&["af_heart", "onyx"], "onyx").as_deref(), Ok("onyx"));
        assert_eq!(find(&["jf_alpha", "zz"], "ef_dora").unwrap_err().matches("zz").count(), 1);
    }

    #[test]
    fn an_unknown_or_unpronounced_voice_is_refused_with_others() {
        let many: Vec<String> = (0..15).map(|number| format!("af_{number:02}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).chain(["jf_alpha"]).collect();
        let unknown = find(&many, "af_0").unwrap_err();
        assert!(unknown.contains("Did you mean 'af_0") && unknown.contains("and 5 more"), "{unknown}");
        assert!(unknown.contains("GET /v1/audio/voices"), "{unknown}");
        assert!(find(&many, "jf_alpha").unwrap_err().contains("cannot be pronounced"));
        let mix = vec![("af_00".to_owned(), 1.0), ("jf_alpha".to_owned(), 0.5)];
        assert_eq!(resolve(&voices(&many), mix.clone()).unwrap(), mix);
    }
}
