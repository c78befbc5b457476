use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::format::{all_models, one_model};
use super::{DerivedModel, GenerationDefaults, InstalledSettings, SettingsFiles, UnloadAfter};
use crate::text::sampler::parameters::SamplingParameters;

const ALL: &str = r#"
unload_after = "1h"
[aliases]
gpt-4o-mini = "qwen2.5-1.5b"
"gpt-3.5-turbo" = "qwen2.5-1.5b"
"llama3.2:latest" = "tiny"
"Qwen/Qwen2.5" = "qwen2.5-1.5b"
[models."qwen2.5-1.5b"]
pinned = true
[models."qwen2.5-1.5b".defaults]
temperature = 0
top_p = 0.9
top_k = 20
min_p = 0.0
typical_p = 1
frequency_penalty = -0.5
presence_penalty = 2
repetition_penalty = 1.1
max_tokens = 512
seed = -1
stop = ["END", "\n"]
[models.tiny]
unload_after = "never"
"#;

fn errors(text: &str) -> Vec<String> {
    all_models(text).unwrap_err().into_iter().map(|(line, error)| format!("{line}: {error}")).collect()
}

/// Settings of a folder with these files.
fn settings(files: &[(&str, &str)]) -> InstalledSettings {
    let folder = tempfile::tempdir().unwrap();
    files.iter().for_each(|(name, text)| write(folder.path(), name, text));
    InstalledSettings::read(folder.path())
}

fn target<'s>(settings: &'s InstalledSettings, name: &str) -> Option<&'s str> {
    settings.alias_target(name, |_| false)
}

fn write(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

#[test]
fn every_key_is_read() {
    let all = settings(&[("models.toml", ALL)]);
    assert_eq!(all.problems(), [""; 0]);
    for name in ["gpt-4o-mini", "gpt-3.5-turbo", "Qwen/Qwen2.5", "gpt-4o-mini:latest"] {
        assert_eq!(target(&all, name), Some("qwen2.5-1.5b"), "{name}");
    }
    assert_eq!([target(&all, "llama3.2"), target(&all, "llama3.2:latest")], [Some("tiny"); 2]);
    assert_eq!([target(&all, "tiny"), target(&all, "gpt-4o"), target(&all, "llama3.2:1b")], [None; 3]);
    assert_eq!(all.pinned().collect::<Vec<_>>(), ["qwen2.5-1.5b"]);
    let times = ["qwen2.5-1.5b", "tiny", "other"].map(|id| all.unload_after(id));
    assert_eq!(times, [None, None, Some(Duration::from_secs(3600))], "pinned, never, and the general time");
    let defaults = GenerationDefaults {
        sampling: SamplingParameters {
            temperature: Some(0.0),
            top_p: Some(0.9),
            top_k: Some(20),
            min_p: Some(0.0),
            typical_p: Some(1.0),
            frequency_penalty: Some(-0.5),
            presence_penalty: Some(2.0),
            repetition_penalty: Some(1.1),
        },
        max_tokens: Some(512),
        seed: Some(u64::MAX),
        stop: Some(vec!["END".to_owned(), "\n".to_owned()]),
    };
    assert_eq!(*all.defaults("qwen2.5-1.5b").unwrap(), defaults);
    assert_eq!(all.defaults("other"), None);
}

#[test]
fn times_have_a_unit() {
    let time = |text: &str| all_models(&format!("unload_after = \"{text}\"")).ok().and_then(|file| file.unload_after);
    for (text, seconds) in [("90s", 90), ("30m", 1800), ("2h", 7200), ("1d", 86_400)] {
        assert_eq!(time(text), Some(UnloadAfter::Idle(Duration::from_secs(seconds))));
    }
    assert_eq!(time("never"), Some(UnloadAfter::Never));
    for bad in ["", "30", "m", "0s", "-1s", "+1s", "1.5h", "30 m", "999999999999d", "18446744073709551616s", "1ä", "ä"]
    {
        assert_eq!(time(bad), None, "{bad}");
    }
}

#[test]
fn all_errors_are_listed_with_their_lines() {
    let text = r#"pinned = true
unload_after = 30
[alias]
[aliases]
gpt-3.5-turbo = "tiny"
number = 1
"ft:x" = "tiny"
" a" = "tiny"
own = "own"
one = "two"
two = "tiny"
[models.a]
pined = true
pinned = "yes"
unload_after = "soon"
[models.a.defaults]
temperature = 3
top_p = 2
top_k = -1
max_tokens = 0
min_p = nan
seed = 1.5
stop = [""]
temprature = 1
n = 2
presence_penalty = "high"
[models]
qwen2.5-1.5b.pinned = true
"#;
    let expected = [
        "1: unknown key 'pinned'; the keys are aliases, models, unload_after or unload_on_request",
        "2: unload_after is a number; write a time such as \"90s\", \"30m\", \"2h\" or \"1d\", or \"never\"",
        "3: unknown key 'alias'; did you mean 'aliases'?",
        "5: aliases.gpt-3 must be the ID of a model in quotes. An alias with a dot needs quotes, such as \"gpt-3.5-turbo\"",
        "6: aliases.number must be a name in quotes; it is a number",
        "7: the alias 'ft:x' begins with 'ft:', as the names of trained models; choose another name",
        "8: the alias ' a' begins or ends with a space, or has a control character; remove it",
        "9: the alias 'own' is the model's own ID; remove it",
        "10: aliases.one: 'two' is an alias itself; name the ID of a model",
        "13: unknown key 'models.a.pined'; did you mean 'pinned'?",
        "14: models.a.pinned must be true or false, without quotes; it is a text",
        "15: models.a.unload_after is 'soon'; write a time such as \"90s\", \"30m\", \"2h\" or \"1d\", or \"never\"",
        "17: models.a.defaults.temperature is 3; it must be from 0 to 2",
        "18: models.a.defaults.top_p is 2; it must be from 0 to 1",
        "19: models.a.defaults.top_k is -1; it must be from 0 to 4294967295",
        "20: models.a.defaults.max_tokens is 0; it must be from 1 to 4294967295",
        "21: models.a.defaults.min_p is NaN; it must be from 0 to 1",
        "22: models.a.defaults.seed must be a whole number from -9223372036854775808 to 9223372036854775807",
        "23: models.a.defaults.stop has a string that does not have 1 to 256 bytes",
        "24: unknown key 'models.a.defaults.temprature'; did you mean 'temperature'?",
        "26: models.a.defaults.presence_penalty must be a number, without quotes; it is a text",
    ];
    // A table may not be written twice, so the last section is a file of its own.
    let (first, last) = text.split_at(text.find("[models]").unwrap());
    let found = errors(first);
    for line in expected {
        assert!(found.iter().any(|error| error == line), "{line}\nis not in\n{}", found.join("\n"));
    }
    assert!(found.iter().any(|error| error.starts_with("25: unknown key 'models.a.defaults.n'; the keys are")));
    assert_eq!(found.len(), expected.len() + 1, "{}", found.join("\n"));
    let dotted = errors(last);
    assert!(dotted[0].contains("unknown key 'models.qwen2.5-1"), "{dotted:?}");
    assert!(dotted[0].contains("a name with a dot needs quotes"), "{dotted:?}");
    assert!(errors("[aliases\n")[0].starts_with("1: this is not TOML: "));
    assert!(errors("\naliases = 1")[0].contains("2: aliases is a section; write [aliases] on a line of its own"));
}

#[test]
fn a_model_that_a_project_has_trained_cannot_be_pinned() {
    let expected =
        "2: models.\"ft:a:b::1\".pinned is true, but a model that a project has trained cannot be pinned; remove it";
    assert_eq!(errors("[models.'ft:a:b::1']\npinned = true"), [expected]);
    assert!(all_models("[models.'ft:a:b::1']\npinned = false\nunload_after = '1m'").is_ok());
}

#[test]
fn many_errors_are_located_quickly() {
    let keys: String = (0..25_000).map(|index| format!("k{index} = 1\n")).collect();
    let unknown = all_models(&keys).unwrap_err();
    assert_eq!((unknown.len(), unknown[24_999].0), (25_000, 25_000));
    let twice = all_models(&"x = 1\n".repeat(25_000)).unwrap_err();
    assert_eq!(twice.last().unwrap().0, 25_000);
}

#[test]
fn sizes_are_bounded() {
    let name = "x".repeat(257);
    assert!(errors(&format!("[aliases]\n{name} = \"a\""))[0].contains("has 257 bytes; at most 256"));
    assert!(errors(&format!("[aliases]\na = \"{name}\""))[0].contains("has 257 bytes"));
    assert!(errors(&format!("[models.{name}]"))[0].contains("has 257 bytes"));
    let many = |line: fn(usize) -> String| (0..1025).map(line).collect::<String>();
    let aliases = format!("[aliases]\n{}", many(|index| format!("a{index} = \"m\"\n")));
    assert!(errors(&aliases)[0].contains("aliases has 1025 names; at most 1024 are allowed"));
    let models = many(|index| format!("[models.m{index}]\n"));
    assert!(errors(&models)[0].contains("models has 1025 sections"));
    let stops = format!("[models.a.defaults]\nstop = {:?}", ["x"; 17]);
    assert!(errors(&stops)[0].contains("has 17 strings; at most 16 are allowed"));
    let large = settings(&[("models.toml", &"#".repeat((256 << 10) + 1))]);
    assert_eq!(large.problems(), ["models.toml: it is larger than 256 KiB; shorten it"]);
    let wrong: String = (0..10_000).map(|index| format!("x{index} = 1\n")).collect();
    let wrong = settings(&[("models.toml", &wrong)]);
    assert_eq!((wrong.problems().len(), &*wrong.problems()[20]), (21, "models.toml: it has 9980 more errors"));
    let deep = format!("unload_after = {}", "[".repeat(100_000));
    assert!(errors(&deep)[0].starts_with("1: this is not TOML: "));
}

#[test]
fn the_file_for_all_models_wins_key_by_key() {
    let own = "aliases = ['gpt-4o', 'small:latest', 'taken']\npinned = true\nunload_after = '1m'\n\
               [defaults]\ntemperature = 0.1\ntop_k = 1";
    let all = "unload_after = '1h'\n[aliases]\ntaken = 'other'\n[models.tiny]\npinned = false\n\
               [models.tiny.defaults]\ntemperature = 0.5";
    let merged = settings(&[("tiny/model.toml", own), ("models.toml", all)]);
    assert_eq!((target(&merged, "gpt-4o"), target(&merged, "small")), (Some("tiny"), Some("tiny")));
    assert_eq!(target(&merged, "taken"), Some("other"));
    assert_eq!(merged.problems(), ["tiny/model.toml: the alias 'taken' stands for 'other' already"]);
    assert!(!merged.is_pinned("tiny"));
    assert_eq!(merged.unload_after("tiny"), Some(Duration::from_secs(60)), "the general time is for other models");
    let defaults = merged.defaults("tiny").unwrap();
    assert_eq!((defaults.sampling.temperature, defaults.sampling.top_k), (Some(0.5), Some(1)));
    assert_eq!(merged.aliases_of("tiny").collect::<Vec<_>>(), ["gpt-4o", "small"]);

    let unknown = one_model("tiny", "models = {}\ndefaults = 1").unwrap_err();
    assert!(unknown[0].1.contains("unknown key 'models'; the keys are aliases, pinned"), "{unknown:?}");
    assert!(unknown[1].1.contains("defaults is a section"), "{unknown:?}");
    assert!(one_model("tiny", "aliases = ['tiny']").unwrap_err()[0].1.contains("the model's own ID"));
}

#[test]
fn a_folder_with_from_is_another_name_with_settings_of_its_own() {
    let all = "unload_on_request = true\n[models.tiny]\nunload_on_request = false\nsystem = 'Be brief.'\n\
               [models.tiny.defaults]\ntop_k = 2\ntemperature = 1";
    let own = "from = 'tiny'\nlicense = 'MIT'\n[defaults]\ntemperature = 0.5";
    let files =
        [("models.toml", all), ("mario/model.toml", own), ("luigi/model.toml", "from = 'tiny'\nsystem = 'Luigi'")];
    let read = settings(&files);
    assert_eq!(read.problems(), [""; 0]);
    assert_eq!([target(&read, "mario"), target(&read, "luigi:latest")], [Some("tiny"); 2]);
    let defaults = read.defaults("mario").unwrap();
    assert_eq!((defaults.sampling.temperature, defaults.sampling.top_k), (Some(0.5), Some(2)));
    let system = |name: &str| read.system_prompt(name).map(|text| text.to_string());
    assert_eq!((system("mario"), system("luigi")), (Some("Be brief.".to_owned()), Some("Luigi".to_owned())));
    let (name, found) = read.derived("mario:latest").unwrap();
    assert_eq!((name, found.license.as_deref(), read.derived("tiny")), ("mario", Some("MIT"), None));
    assert_eq!(read.without_effect(&BTreeSet::from(["tiny"])), [""; 0]);
    assert_eq!([read.unloads_on_request("tiny"), read.unloads_on_request("other")], [false, true]);

    let wrong = one_model("mario", "from = 'tiny'\npinned = true\nunload_after = '1m'\naliases = ['m']").unwrap_err();
    assert!(
        wrong.iter().all(|(_, error)| error.contains("is not for a derived model; write it for 'tiny'")),
        "{wrong:?}"
    );
    assert_eq!(wrong.len(), 3);
    assert!(one_model("mario", "from = 'mario'").unwrap_err()[0].1.contains("own ID"));
    assert!(errors("[models.mario]\nfrom = 'tiny'")[0].contains("unknown key 'models.mario.from'"));
}

#[test]
fn the_file_of_a_derived_model_is_what_was_to_be_written() {
    let defaults = GenerationDefaults {
        sampling: SamplingParameters { temperature: Some(0.7), top_k: Some(3), ..SamplingParameters::default() },
        max_tokens: Some(5),
        seed: Some(u64::MAX),
        stop: Some(vec!["\"\"\"\n".to_owned()]),
    };
    let system = Some("a\n\"\"\" b = 'c'\u{0}".to_owned());
    let new = DerivedModel { from: "tiny".to_owned(), system, license: None, defaults };
    let read = one_model("mario", &new.to_toml("mario").unwrap()).unwrap();
    let found = &read.models["mario"];
    assert_eq!((found.from.as_ref(), found.system.as_deref()), (Some(&new.from), new.system.as_deref()));
    assert_eq!(*found.defaults, new.defaults);
    let large = DerivedModel { license: Some("x".repeat(300 << 10)), ..new };
    assert!(large.to_toml("mario").unwrap_err().contains("at most 256 KiB"));
}

#[test]
fn an_alias_of_an_alias_in_another_file_is_left_out() {
    let chained = settings(&[("tiny/model.toml", "aliases = ['b']"), ("models.toml", "[aliases]\na = 'b'")]);
    assert_eq!((target(&chained, "a"), target(&chained, "b")), (None, Some("tiny")));
    assert_eq!(chained.problems(), ["the alias 'a' stands for the alias 'b'; name a model instead"]);
}

#[test]
fn settings_without_effect_are_named() {
    let text =
        "[aliases]\ntiny = 'other'\nx = 'tinny'\ny = 'ft:tiny:a::1'\nz = 'other'\n[models.missing]\npinned = true";
    let warnings = settings(&[("models.toml", text)]).without_effect(&BTreeSet::from(["tiny", "other"]));
    let expected = [
        "the alias 'tiny' has no effect: a model has this ID. Rename the alias",
        "the alias 'x' stands for 'tinny', which is not installed; did you mean 'tiny'?",
        "there are settings of 'missing', which is not installed",
    ];
    assert_eq!(warnings, expected);
}

#[test]
fn a_file_with_an_error_changes_nothing_until_it_is_repaired() {
    let folder = tempfile::tempdir().unwrap();
    let mut files = SettingsFiles::new(folder.path().to_owned());
    assert!(!files.refresh());
    write(folder.path(), "models.toml", "[aliases]\na = 'tiny'");
    write(folder.path(), "tiny/model.toml", "pinned = true");
    assert!(files.refresh() && !files.refresh());
    write(folder.path(), "models.toml", "[aliases]\na = 'tiny'\nb = 7");
    assert!(files.refresh());
    let broken = files.settings();
    assert_eq!(broken.problems(), ["models.toml:3: aliases.b must be a name in quotes; it is a number"]);
    assert_eq!((target(&broken, "a"), broken.is_pinned("tiny")), (Some("tiny"), true));
    write(folder.path(), "models.toml", "[aliases]\nb = 'tiny'");
    assert!(files.refresh());
    let repaired = files.settings();
    assert_eq!((target(&repaired, "a"), target(&repaired, "b"), repaired.problems().len()), (None, Some("tiny"), 0));
    fs::remove_file(folder.path().join("models.toml")).unwrap();
    fs::create_dir(folder.path().join("models.toml")).unwrap();
    assert!(files.refresh());
    assert_eq!(files.settings().problems(), ["models.toml: it is not a regular file; replace it by one, or remove it"]);
    assert_eq!(target(&files.settings(), "b"), Some("tiny"));
}

#[test]
fn settings_of_a_file_that_is_missing_for_a_moment_stay() {
    let folder = tempfile::tempdir().unwrap();
    let mut files = SettingsFiles::new(folder.path().to_owned());
    let (all, own) = (folder.path().join("models.toml"), folder.path().join("tiny/model.toml"));
    write(folder.path(), "models.toml", "[aliases]\na = 'tiny'");
    write(folder.path(), "tiny/model.toml", "pinned = true");
    assert!(files.refresh());
    fs::remove_file(&all).unwrap();
    fs::remove_file(&own).unwrap();
    assert!(!files.refresh(), "an editor may be about to write them");
    assert_eq!((target(&files.settings(), "a"), files.settings().is_pinned("tiny")), (Some("tiny"), true));
    write(folder.path(), "models.toml", "[aliases]\nb = 'tiny'");
    assert!(files.refresh());
    assert_eq!((target(&files.settings(), "b"), files.settings().is_pinned("tiny")), (Some("tiny"), false));
    fs::remove_file(&all).unwrap();
    assert!(!files.refresh() && files.refresh() && !files.refresh());
    assert!(files.settings().is_empty());
    write(folder.path(), "tiny/model.toml", "pinned = true");
    assert!(files.refresh());
    fs::remove_dir_all(folder.path().join("tiny")).unwrap();
    assert!(files.refresh() && files.settings().is_empty(), "the model was removed");
}

#[test]
fn settings_of_a_file_that_cannot_be_read_for_a_moment_stay() {
    let folder = tempfile::tempdir().unwrap();
    let mut files = SettingsFiles::new(folder.path().to_owned());
    write(folder.path(), "tiny/model.toml", "pinned = true");
    assert!(files.refresh());
    let (tiny, aside) = (folder.path().join("tiny"), folder.path().join(".tiny"));
    fs::rename(&tiny, &aside).unwrap();
    // A link to itself cannot be followed, even by root.
    std::os::unix::fs::symlink("tiny", &tiny).unwrap();
    assert!(files.refresh() && !files.refresh(), "the error is new once");
    let unreadable = files.settings();
    assert!(unreadable.is_pinned("tiny"));
    assert!(unreadable.problems()[0].starts_with("tiny/model.toml: it cannot be read: "), "{unreadable:?}");
    fs::remove_file(&tiny).unwrap();
    fs::rename(&aside, &tiny).unwrap();
    assert!(files.refresh() && !files.refresh());
    assert_eq!((files.settings().is_pinned("tiny"), files.settings().problems().len()), (true, 0));
}

/// Pieces of which broken and valid files are made.
const PIECES: &[&str] = &[
    "[aliases]",
    "[models.a]",
    "[models.a.defaults]",
    "[[models]]",
    "unload_after",
    "pinned",
    "aliases",
    "temperature",
    "stop",
    "seed",
    "x",
    ".",
    " = ",
    "\n",
    "'a:latest'",
    "'30m'",
    "\"",
    "0x1f",
    "-9e999",
    "nan",
    "true",
    "1979-05-27",
    "[",
    "]",
    "{",
    "}",
    ",",
    "ä",
    "\0",
    "#",
];

proptest! {
    #[test]
    fn errors_of_any_text_have_lines_within_it(pieces in vec(select(PIECES), 0..30)) {
        let text = pieces.concat();
        for errors in [all_models(&text).err(), one_model("m", &text).err()] {
            for (line, error) in errors.unwrap_or_default() {
                prop_assert!((1..=text.matches('\n').count() + 1).contains(&line), "{error}");
            }
        }
    }
}
