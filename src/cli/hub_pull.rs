//! `outpost models pull hf:…`, `ollama:…`, `oci:…` and `https:…`: shows what a source has, and installs one model of it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use serde_json::json;

use crate::app::{self, SystemClockRng};
use crate::catalog::{UserError, is_sha256};
use crate::clock_rng::ClockRng;
use crate::config::{ComputeArgs, parse_size};
use crate::display::{format_bytes, format_count};
use crate::download::AllowedHost;
use crate::engine::ModelKind;
use crate::hub::{
    Candidate, Hub, HubError, HubSettings, InstallOptions, ModelReference, Plan, PlanOptions, SourceEntry, State,
    foreign_owner,
};
use crate::progress::{self, Silent};

/// Options for models of hubs, registries and other servers.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Options for models that are not in the catalog")]
pub struct HubArgs {
    /// Name in the models folder [default: the file's]
    #[arg(long)]
    name: Option<String>,
    /// Show the files that can be chosen, and download nothing
    #[arg(long)]
    list: bool,
    /// Replace a model of that name, and install it even if it does not fit into memory
    #[arg(long)]
    force: bool,
    /// Connections of the download
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16))]
    connections: u8,
    /// The sha256 that the file must have
    #[arg(long, value_name = "HEX", value_parser = parse_sha256)]
    sha256: Option<String>,
    /// Refuse a model with more to download, such as 5GB
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    max_size: Option<u64>,
    /// A file with the token for a Hugging Face hub, instead of HF_TOKEN
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// HOST[:PORT] that may have an address of a private network, such as a mirror to which the hub redirects (may be
    /// repeated). The hosts of HF_ENDPOINT and OUTPOST_OLLAMA_REGISTRY are always allowed, and this machine if the reference
    /// names it
    #[arg(
        id = "pull_allowed_hosts",
        long = "allow-host",
        env = "OUTPOST_PULL_ALLOWED_HOSTS",
        value_delimiter = ',',
        value_name = "HOST"
    )]
    allowed_hosts: Vec<AllowedHost>,
    #[command(flatten)]
    compute: ComputeArgs,
}

fn parse_sha256(text: &str) -> Result<String, String> {
    let text = text.to_ascii_lowercase();
    if is_sha256(&text) { Ok(text) } else { Err("write the 64 hexadecimal digits of a sha256".to_owned()) }
}

impl HubArgs {
    /// The first option that has no meaning for models of the catalog, or for several models.
    pub fn for_one_model(&self) -> Option<&'static str> {
        [("--name", self.name.is_some()), ("--sha256", self.sha256.is_some())].iter().find(|it| it.1).map(|it| it.0)
    }

    pub fn for_hubs(&self) -> Option<&'static str> {
        let flags = [
            ("--list", self.list),
            ("--force", self.force),
            ("--json", self.json),
            ("--max-size", self.max_size.is_some()),
            ("--token-file", self.token_file.is_some()),
        ];
        self.for_one_model().or_else(|| flags.iter().find(|it| it.1).map(|it| it.0))
    }
}

/// Pulls a model, or lists the files of its source. `verify`: hash the files of one that is installed already.
pub fn pull(
    reference: &ModelReference,
    args: &HubArgs,
    verify: bool,
    models_dir: &Path,
    out: &mut dyn Write,
) -> Result<(), Box<dyn std::error::Error>> {
    check_owner(models_dir, "models pull …")?;
    let clock_rng = Arc::new(SystemClockRng::new());
    let failed = |error: HubError| error.for_command();
    let hub_settings = hub_settings(reference, args)?;
    let hub = Hub::new(hub_settings, Arc::<SystemClockRng>::clone(&clock_rng)).map_err(failed)?;
    let settings = app::command_settings(models_dir.into(), &args.compute)?.for_planning();
    let options = PlanOptions { name: args.name.clone(), sha256: args.sha256.clone(), settings };
    let mut progress = if args.json { Box::new(Silent) } else { progress::for_stderr() };
    let plan = hub.plan(reference, &options, progress.as_mut()).map_err(failed)?;
    if !args.json {
        show(&plan, out)?;
    }
    if args.list {
        return if args.json { print_json(&listed(&plan), out) } else { Ok(()) };
    }
    let options = InstallOptions { force: args.force, verify, max_bytes: args.max_size, now: clock_rng.now() };
    let done = hub.install(&plan, models_dir, options, progress.as_mut()).map_err(failed)?;
    if args.json {
        let mut object = listed(&plan);
        object["path"] = json!(done.path);
        object["files"] = done.files.iter().map(file_json).collect();
        object["resumed_bytes"] = json!(done.resumed);
        object["installed_already"] = json!(done.already);
        return print_json(&object, out);
    }
    let license = plan.repository.license.as_deref().unwrap_or("not stated");
    let size = format_bytes(plan.bytes());
    match done.already {
        true => {
            let verified = if verify { ", and every file has the recorded hash" } else { "" };
            writeln!(out, "\n{} ({size}) is installed already{verified}. License: {license}.", plan.name)?;
        }
        false => {
            let verified = verified(&plan, &done.files);
            writeln!(out, "\n{} ({size}) is installed: {verified}. License: {license}.", plan.name)?;
        }
    }
    Ok(())
}

/// Allows this machine if the reference names it: the user means it, unlike a redirect to it.
fn hub_settings(reference: &ModelReference, args: &HubArgs) -> Result<HubSettings, HubError> {
    let mut allowed = args.allowed_hosts.clone();
    allowed.extend(reference.loopback_host().map(|(host, port)| AllowedHost { host, port: Some(port) }));
    let settings = HubSettings::from_env(allowed, usize::from(args.connections))?;
    match &args.token_file {
        Some(file) => settings.with_token_file(file),
        None => Ok(settings),
    }
}

/// Describes what has been verified.
fn verified(plan: &Plan, files: &[SourceEntry]) -> String {
    match files {
        [only] if !plan.is_verifiable() => {
            format!("its sha256 is {}, which was not compared with anything; give --sha256 to do so", only.sha256)
        }
        [only] => format!("its sha256 {} is the expected one", only.sha256),
        several => format!("its {} files have the expected hashes", several.len()),
    }
}

fn file_json(file: &SourceEntry) -> serde_json::Value {
    json!({ "name": file.name, "bytes": file.bytes, "sha256": file.sha256 })
}

fn print_json(object: &serde_json::Value, out: &mut dyn Write) -> Result<(), Box<dyn std::error::Error>> {
    Ok(writeln!(out, "{}", serde_json::to_string_pretty(object)?)?)
}

/// Refuses root in the folder of another user.
pub(super) fn check_owner(models_dir: &Path, command: &str) -> Result<(), HubError> {
    match foreign_owner(models_dir) {
        Some(owner) => Err(HubError::Setting(format!(
            "the folder {} belongs to the user with the ID {owner}; run the command as that user: sudo -u '#{owner}' outpost {command}",
            models_dir.display()
        ))),
        None => Ok(()),
    }
}

fn show(plan: &Plan, out: &mut dyn Write) -> std::io::Result<()> {
    let license = plan.repository.license.as_deref().unwrap_or("not stated");
    let info = &plan.info;
    write!(out, "{}, license {license}; {}", title(plan), info.architecture)?;
    if info.parameters > 0 {
        write!(out, ", {} weights", weights(info.parameters))?;
    }
    match info.context_window {
        Some(tokens) => writeln!(out, ", context {}\n", format_count(u64::from(tokens)))?,
        None => writeln!(out, "\n")?,
    }
    match plan.chosen {
        Some(_) => show_candidates(plan, out)?,
        None => show_files(plan, out)?,
    }
    plan.repository.notes.iter().try_for_each(|note| writeln!(out, "  {note}"))
}

/// The model and its version.
fn title(plan: &Plan) -> String {
    let short = |revision: &str| revision.get(..7).unwrap_or(revision).to_owned();
    let revision = plan.repository.revision.as_str();
    match &plan.reference {
        ModelReference::HuggingFace(model) => {
            let (user, name) = model.repository.split_once('/').unwrap_or_default();
            format!("{name} by {user}, revision {}", short(revision))
        }
        ModelReference::Url(_) => plan.reference.to_string(),
        other => format!("{other}, digest {}", short(revision.trim_start_matches("sha256:"))),
    }
}

fn show_candidates(plan: &Plan, out: &mut dyn Write) -> std::io::Result<()> {
    let width = plan.candidates.iter().map(|it| it.label().chars().count()).max().unwrap_or(0).max(5);
    writeln!(out, "  {:<width$}  {:<9}  MEMORY*", "QUANT", "DISK")?;
    for (index, candidate) in plan.candidates.iter().enumerate() {
        let mark = if plan.chosen == Some(index) { '*' } else { ' ' };
        let (label, disk) = (candidate.label(), format_bytes(candidate.bytes));
        let row = format!("{mark} {label:<width$}  {disk:<9}  {:<9}  {}", memory(plan, index), note(plan, index));
        writeln!(out, "{}", row.trim_end())?;
    }
    writeln!(out, "  *{}; ~ is an estimate from the size of the file", counted(plan))
}

/// The files of a model of several files.
fn show_files(plan: &Plan, out: &mut dyn Write) -> std::io::Result<()> {
    let width = plan.files.iter().map(|it| it.path.chars().count()).max().unwrap_or(0).max(5);
    for file in &plan.files {
        writeln!(out, "  {:<width$}  {}", file.path, format_bytes(file.bytes))?;
    }
    let (disk, memory) = (format_bytes(plan.bytes()), format_bytes(plan.need.total()));
    let fits = if plan.need.total() > plan.limit() { "; it does not fit" } else { "" };
    writeln!(out, "\n  {disk} on the disk, {memory} of memory {}{fits}", counted(plan))
}

/// Describes the use for which the memory is counted.
fn counted(plan: &Plan) -> String {
    let device = plan.settings.devices.usual.in_sentence();
    match plan.info.kind {
        ModelKind::Text if plan.need.context > 0 => {
            let context = format_count(u64::try_from(plan.need.context).unwrap_or(u64::MAX));
            format!("on {device}, with {context} tokens of context")
        }
        _ => format!("on {device}"),
    }
}

fn weights(count: u64) -> String {
    match count {
        0..1_000_000 => format_count(count),
        1_000_000..1_000_000_000 => format!("{} M", count / 1_000_000),
        _ => format!("{}.{} B", count / 1_000_000_000, count / 100_000_000 % 10),
    }
}

fn memory(plan: &Plan, index: usize) -> String {
    match plan.candidates.get(index) {
        _ if plan.chosen == Some(index) => format_bytes(plan.need.total()),
        Some(candidate) if !candidate.is_possible() => String::new(),
        Some(candidate) => format!("~{}", format_bytes(plan.estimate(candidate))),
        None => String::new(),
    }
}

fn needed(plan: &Plan, index: usize, candidate: &Candidate) -> u64 {
    if plan.chosen == Some(index) { plan.need.total() } else { plan.estimate(candidate) }
}

fn note(plan: &Plan, index: usize) -> String {
    let Some(candidate) = plan.candidates.get(index) else { return String::new() };
    let mut notes = Vec::new();
    if plan.chosen == Some(index) {
        notes.push("chosen".to_owned());
    }
    if candidate.parts() > 1 && candidate.is_possible() {
        notes.push(format!("{} files", candidate.parts()));
    }
    match &candidate.state {
        State::Unsupported(why) => notes.push(format!("not supported: {why}")),
        State::Incomplete(why) => notes.push(format!("cannot be installed: {why}")),
        _ if needed(plan, index, candidate) > plan.limit() => {
            notes.push(format!("does not fit: {} for models", format_bytes(plan.limit())));
        }
        _ => {}
    }
    notes.join(", ")
}

/// The plan as JSON.
fn listed(plan: &Plan) -> serde_json::Value {
    let row = |(index, candidate): (usize, &Candidate)| {
        json!({
            "file": candidate.file.path,
            "quantization": candidate.quantization,
            "bytes": candidate.bytes,
            "parts": candidate.parts(),
            "chosen": plan.chosen == Some(index),
            "memory_bytes": needed(plan, index, candidate),
            "memory_is_estimated": plan.chosen != Some(index),
            "fits": needed(plan, index, candidate) <= plan.limit(),
            "unsupported": candidate.problem(),
        })
    };
    json!({
        "name": plan.name,
        "source": plan.reference.to_string(),
        "revision": plan.repository.revision,
        "license": plan.repository.license,
        "gated": plan.repository.is_gated,
        "notes": plan.repository.notes,
        "verifiable": plan.is_verifiable(),
        "architecture": plan.info.architecture,
        "parameters": plan.info.parameters,
        "context_window": plan.info.context_window,
        "bytes": plan.bytes(),
        "memory_bytes": plan.need.total(),
        "memory_limit_bytes": plan.limit(),
        "candidates": plan.candidates.iter().enumerate().map(row).collect::<Vec<_>>(),
    })
}
