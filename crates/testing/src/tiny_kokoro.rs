//! Writes a tiny Kokoro model with random weights: that of the fixtures, with room for long texts, voices and a lexicon.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::fixtures::fixture;

/// Positions of the text encoder.
const POSITIONS: usize = 512;
const POSITION_TABLE: &str = "bert.embeddings.position_embeddings.weight";
/// Values of a style, twice, and rows of a voice.
const STYLE: usize = 20;
const ROWS: usize = 510;
/// American, British, Spanish and Japanese; the last one cannot be pronounced.
pub const VOICES: [&str; 5] = ["af_bella", "af_heart", "bf_emma", "ef_dora", "jf_alpha"];

/// Writes `<dir>/<name>/`. It speaks words of the letters a, b and s. There is no British lexicon.
pub fn write(dir: &Path, name: &str) {
    let fixture = fixture("kokoro");
    let folder = dir.join(name);
    for inner in ["voices", "lexicon"] {
        fs::create_dir_all(folder.join(inner)).unwrap();
    }
    let mut config: Value = serde_json::from_slice(&fs::read(fixture.join("config.json")).unwrap()).unwrap();
    config["plbert"]["max_position_embeddings"] = json!(POSITIONS);
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let weights = with_positions(&fs::read(fixture.join("model.safetensors")).unwrap());
    fs::write(folder.join("model.safetensors"), weights).unwrap();
    for (number, voice) in VOICES.into_iter().enumerate() {
        let value = |at: usize| ((at * 7 + number * 31) % 23) as f32 / 23.0 - 0.5;
        let bytes: Vec<u8> = (0..ROWS * STYLE).flat_map(|at| value(at).to_le_bytes()).collect();
        fs::write(folder.join("voices").join(format!("{voice}.bin")), bytes).unwrap();
    }
    let lexicon = json!({ "ba": "bˈa", "sha": "ʃˈa", "abba": "ˈaba", "basha": "bˈaʃa", "bab": "bˈab" });
    fs::write(folder.join("lexicon/us_gold.json"), lexicon.to_string()).unwrap();
}

/// The safetensors file with more positions: the rows are repeated.
fn with_positions(file: &[u8]) -> Vec<u8> {
    let length = usize::try_from(u64::from_le_bytes(file[..8].try_into().unwrap())).unwrap();
    let header: Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
    let old = &file[8 + length..];
    let (mut new_header, mut data) = (json!({}), Vec::new());
    for (name, entry) in header.as_object().unwrap() {
        if name == "__metadata__" {
            continue;
        }
        let offset = |at: usize| usize::try_from(entry["data_offsets"][at].as_u64().unwrap()).unwrap();
        let mut entry = entry.clone();
        let mut bytes = old[offset(0)..offset(1)].to_vec();
        if name == POSITION_TABLE {
            let rows = usize::try_from(entry["shape"][0].as_u64().unwrap()).unwrap();
            let size = bytes.len() / rows * POSITIONS;
            bytes = bytes.into_iter().cycle().take(size).collect();
            entry["shape"][0] = json!(POSITIONS);
        }
        let start = data.len();
        data.extend(bytes);
        entry["data_offsets"] = json!([start, data.len()]);
        new_header[name] = entry;
    }
    let mut head = new_header.to_string();
    head.push_str(&" ".repeat(head.len().next_multiple_of(8) - head.len()));
    [&(head.len() as u64).to_le_bytes(), head.as_bytes(), &data].concat()
}
