//! `outpost doctor`: what is wrong with this machine and this installation, and which models fit.

mod checks;
mod findings;
mod machine;
mod model_fit;
mod product_speed;

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::output::Outcome;
use crate::app::{self, SystemClockRng};
use crate::config::{ComputeArgs, DEFAULT_LISTEN, DataPaths, DiskArgs, parse_listen};
use crate::display::one_line;
use crate::engine::{self, DeviceBackend};
use crate::models::backend::Cpu;
use findings::{Finding, Status};
use model_fit::ModelFit;

#[derive(Args)]
pub(super) struct DoctorArgs {
    /// The address that the server is to listen on
    #[arg(long, env = "OUTPOST_LISTEN", default_value = DEFAULT_LISTEN, value_name = "[ADDRESS:]PORT", value_parser = parse_listen)]
    listen: SocketAddr,
    #[command(flatten)]
    compute: ComputeArgs,
    #[command(flatten)]
    disk: DiskArgs,
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
    /// What models run on unless a device of their own is named: `cpu`, `cuda:0` or `metal`. `None` if it cannot be used; then
    /// the rest is about the CPU.
    device: Option<String>,
    /// Bytes that models may use on this device.
    memory_for_models: u64,
    models: Vec<ModelFit>,
}

/// # Errors
/// If a check has failed.
pub(super) fn run(paths: &DataPaths, args: &DoctorArgs, out: &mut dyn Write) -> Outcome {
    let clock_rng = SystemClockRng::new();
    let DoctorArgs { listen, compute, disk, fast, json } = args;
    let device = open_device(compute);
    let checks =
        checks::all(paths, *listen, (compute, disk), device.as_ref().err().map(String::as_str), &clock_rng, !fast);
    let name = device.as_ref().ok().map(|(settings, _)| settings.devices.usual.name());
    let (settings, backend) = device.unwrap_or_else(|_is_reported| cpu(compute));
    let (models, speeds) = match &backend {
        DeviceBackend::Cpu(cpu) => {
            let speeds = if *fast { None } else { Some(product_speed::measure(cpu, &clock_rng)?) };
            (model_fit::table(&settings, cpu, speeds.as_ref()), speeds)
        }
        DeviceBackend::Candle(candle) => (model_fit::table(&settings, candle, None), None),
    };
    let report = Report { checks, device: name, memory_for_models: settings.memory_bytes, models };
    if *json {
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
    } else {
        print_findings(&report.checks, out)?;
        model_fit::print(&report.models, &settings, speeds.is_some(), out)?;
    }
    match report.checks.iter().filter(|finding| finding.status == Status::Fail).count() {
        0 => Ok(()),
        1 => Err("one check has failed".into()),
        failed => Err(format!("{failed} checks have failed").into()),
    }
}

/// The device that models run on unless one of their own is named, and the settings for it.
///
/// # Errors
/// Why the server could not use the devices that it is to use.
fn open_device(compute: &ComputeArgs) -> Result<(engine::Settings, DeviceBackend), String> {
    let settings = app::command_settings(PathBuf::new(), compute).map_err(|error| error.to_string())?;
    let settings = settings.for_planning();
    let backend = DeviceBackend::open(&settings.devices.usual, &settings)?;
    Ok((settings, backend))
}

/// In its place if it cannot be used.
fn cpu(compute: &ComputeArgs) -> (engine::Settings, DeviceBackend) {
    let threads = compute.threads();
    let settings = engine::Settings { threads, ..engine::Settings::new(PathBuf::new(), compute.memory()) };
    (settings, DeviceBackend::Cpu(Cpu::new(threads)))
}

fn print_findings(findings: &[Finding], out: &mut dyn Write) -> Outcome {
    let width = findings.iter().map(|finding| finding.check.len()).max().unwrap_or_default();
    for Finding { check, status, found, remedy } in findings {
        let remedy = remedy.as_deref().map(|remedy| format!(": {remedy}")).unwrap_or_default();
        writeln!(out, "{check:width$}  {:4}  {}", status.name(), one_line(&format!("{found}{remedy}")))?;
    }
    writeln!(out)?;
    Ok(())
}
