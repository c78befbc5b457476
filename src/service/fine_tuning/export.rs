//! Exports a tuned model as a folder, as peft saves an adapter.

use std::io;
use std::path::Path;

use super::checkpoints::read_adapter;
use crate::display::shorten;
use crate::error::Error;
use crate::models::peft::{CONFIG_FILE, WEIGHTS_FILE};
use crate::new_folder::{NewFolder, is_there};
use crate::spelling;
use crate::storage::{Store, fine_tuning_checkpoints};

/// Names that an error lists.
const MAX_LISTED: usize = 8;

/// Writes the tuned model `name` of any project to the new folder `to`. Returns the size of its files. As for a backup,
/// access to the data folder is sufficient authorization. Blocks.
///
/// # Errors
/// For the operator: if there is no such model, or `to` exists or cannot be written.
pub fn export_model(store: &Store, name: &str, to: &Path) -> Result<u64, String> {
    let exists = || format!("{} exists already; choose another folder, or delete it first", to.display());
    if is_there(to) {
        return Err(exists());
    }
    let found = store.read_blocking(|tx| match fine_tuning_checkpoints::named(tx, name)? {
        Some((id, record)) => read_adapter(tx, id, record).map(Ok),
        None => Ok(Err(unknown(name, &fine_tuning_checkpoints::names(tx)?))),
    });
    let (config, weights) = found.map_err(|error: Error| error.to_string())??;
    let files: [(_, &[u8]); 2] = [(CONFIG_FILE, config.as_bytes()), (WEIGHTS_FILE, &weights)];
    match NewFolder::write_files(to, &files, false) {
        Ok(()) => Ok((config.len() + weights.len()) as u64),
        Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => Err(exists()),
        Err(cause) => Err(format!("{}: {cause}", to.display())),
    }
}

/// The error for a model that does not exist: it lists the names that are near, else others.
fn unknown(name: &str, known: &[String]) -> String {
    let mut near: Vec<_> = known.iter().filter_map(|known| Some((spelling::distance(name, known)?, known))).collect();
    near.sort_by_key(|(distance, _)| *distance);
    let near: Vec<&str> = near.into_iter().map(|(_, name)| name.as_str()).take(MAX_LISTED).collect();
    let all: Vec<&str> = known.iter().map(String::as_str).take(MAX_LISTED).collect();
    let more = if known.len() > MAX_LISTED { " and others" } else { "" };
    let hint = match (near.as_slice(), all.as_slice()) {
        ([], []) => "no job has trained a model yet".to_owned(),
        ([], all) => format!("there are {}{more}", all.join(", ")),
        ([one], _) => format!("did you mean {one}?"),
        (near, _) => format!("did you mean one of {}?", near.join(", ")),
    };
    format!("no job has trained a model '{}'; {hint}", shorten(name))
}

#[cfg(test)]
mod tests {
    use super::unknown;

    #[test]
    fn an_unknown_name_lists_those_that_are_near() {
        let error = |name: &str, known: &[&str]| {
            unknown(name, &known.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
        };
        let known = ["ft:llama:shop:mine:0a1b2c3d4e5f", "ft:other:team::ffffffffffff"];
        let near = error("ft:llama:shop:mine:0a1b2c3d4e5", &known);
        assert!(near.ends_with("did you mean ft:llama:shop:mine:0a1b2c3d4e5f?"), "{near}");
        assert!(error("ft:x", &known).ends_with(&format!("there are {}, {}", known[0], known[1])));
        assert!(error("ft:x", &[]).ends_with("no job has trained a model yet"));
        assert!(error("ft:x", &["ft:name"; 9]).ends_with("ft:name and others"));
    }
}
