//! `outpost doctor`: what is wrong with this machine and this installation, and which models fit.

mod checks;
mod findings;
mod machine;
mod model_fit;
mod product_speed;

use std::io::Write;
use std::net::SocketAddr;

use clap::Args;
use serde::Serialize;

use super::output::Outcome;
use crate::app::SystemClockRng;
use crate::config::{ComputeArgs, DEFAULT_LISTEN, DataPaths, parse_listen};
use crate::display::one_line;
use findings::{Finding, Status};
use model_fit::ModelFit;

#[derive(Args)]
pub(super) struct DoctorArgs {
    /// The address that the server is to listen on
    #[arg(long, env = "OUTPOST_LISTEN", default_value = DEFAULT_LISTEN, value_name = "[ADDRESS:]PORT", value_parser = parse_listen)]
    listen: SocketAddr,
    #[command(flatten)]
    compute: ComputeArgs,
    /// Measure nothing: no disk rate, and no speeds of models
    #[arg(long)]
    fast: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    checks: Vec<Finding>,
    /// Bytes that models may use.
    memory_for_models: u64,
    models: Vec<ModelFit>,
}

/// # Errors
/// If a check has failed.
pub(super) fn run(paths: &DataPaths, args: &DoctorArgs, out: &mut dyn Write) -> Outcome {
    let clock_rng = SystemClockRng::new();
    let DoctorArgs { listen, compute, fast, json } = args;
    let checks = checks::all(paths, *listen, compute, &clock_rng, !fast);
    let speeds = if *fast { None } else { Some(product_speed::measure(compute.threads(), &clock_rng)?) };
    let report = Report {
        checks,
        memory_for_models: compute.memory(),
        models: model_fit::table(compute.memory(), compute.threads(), speeds.as_ref()),
    };
    match json {
        true => writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?,
        false => print(&report, speeds.is_some(), out)?,
    }
    match report.checks.iter().filter(|finding| finding.status == Status::Fail).count() {
        0 => Ok(()),
        1 => Err("one check has failed".into()),
        failed => Err(format!("{failed} checks have failed").into()),
    }
}

fn print(report: &Report, has_speeds: bool, out: &mut dyn Write) -> Outcome {
    let width = report.checks.iter().map(|finding| finding.check.len()).max().unwrap_or_default();
    for Finding { check, status, found, remedy } in &report.checks {
        let remedy = remedy.as_deref().map(|remedy| format!(": {remedy}")).unwrap_or_default();
        writeln!(out, "{check:width$}  {:4}  {}", status.name(), one_line(&format!("{found}{remedy}")))?;
    }
    writeln!(out)?;
    model_fit::print(&report.models, report.memory_for_models, has_speeds, out)
}
