//! `outpost tune`: trains an adapter of a chat model in this process, without a server or a database.
//!
//! It trains here rather than in the server because it then needs no key, no project and no upload, and its result is a
//! folder that every tool for adapters reads. A job written into the database could not run beside the server, which
//! holds the lock. The costs are a second copy of the base model in memory while a server runs, and that the operating
//! system divides the CPU instead of the scheduler. Both ways begin in `calls::fine_tuning::preparation`, so the same
//! examples, options and seed give the same adapter; a test compares the bytes.
//!
//! A training that is ended with Ctrl-C keeps its adapter, because a person who watches the loss ends a training when
//! it is good enough. The exit code is still 1, because a script has asked for all steps.

mod arguments;
mod destination;
mod loss_curve;
mod progress;

use std::error::Error;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

pub use self::arguments::TuneArgs;
use self::destination::Destination;
use self::loss_curve::LossCurve;
use self::progress::Progress;
use super::model_name::resolve_alias;
use super::output::Outcome;
use super::sandbox::this_program;
use super::stop_signals::StopSignals;
use crate::app::{self, SystemClockRng};
use crate::calls::fine_tuning::{Pace, Prepared, Task, Unprepared, prepare, require_base};
use crate::clock_rng::ClockRng;
use crate::config::DataPaths;
use crate::display::{format_bytes, format_count, shorten};
use crate::engine::{AdapterFiles, Engine, LoadError, ModelKind, TrainingEvent, TrainingRun};
use crate::service::fine_tuning::{Method, check_format, draw_seed};
use crate::service::training_data;
use crate::spelling;

/// Installed models that an error lists.
const MAX_LISTED: usize = 8;

pub fn run(paths: &DataPaths, args: TuneArgs, out: &mut dyn Write) -> Outcome {
    let args = TuneArgs { model: resolve_alias(&args.model, &paths.models), ..args };
    if args.beta.is_some() && args.method != Method::Dpo {
        return Err("--beta belongs to the method 'dpo'; add --method dpo, or leave --beta out".into());
    }
    let destination = Destination::new(&args, &paths.models)?;
    let training = read(&args.file, args.method)?;
    let validation = args.validation.as_deref().map(|file| read(file, args.method)).transpose()?;
    let clock: Arc<dyn ClockRng> = Arc::new(SystemClockRng::new());
    let seed = args.seed.unwrap_or_else(|| draw_seed(&*clock));
    let engine = app::start_engine(paths.models.clone(), &args.compute, this_program()?, clock.clone())?;
    check_model(&engine, &args.model)?;
    let task = Task {
        model: &args.model,
        method: args.method,
        requested: args.hyperparameters(),
        resolved: None,
        seed,
        training: &training,
        validation: validation.as_deref(),
        saved: None,
    };
    let Prepared { model, data, examples, options, .. } =
        prepare(&engine, task).map_err(|unprepared| not_prepared(&args, unprepared))?;
    drop((training, validation));
    // It has tokenised the examples. The training has weights of its own.
    let _unloaded = engine.models().unload(&args.model);
    writeln!(
        out,
        "Training an adapter of {} with {} examples: {} epochs, batch size {}, learning rate {}, rank {}, seed {seed}.",
        args.model,
        format_count(examples as u64),
        options.epochs,
        options.batch_size,
        options.learning_rate,
        options.rank,
    )?;
    out.flush()?;
    let system = actix_web::rt::System::new();
    let ended = system.block_on(async {
        let signals = StopSignals::listen()?;
        let run = engine.train(model, data, options, None)?;
        follow(run, signals, &*clock).await
    })?;
    report(&ended, &destination, out)
}

/// Reads a file with examples for the method.
fn read(file: &Path, method: Method) -> Result<Vec<u8>, Box<dyn Error>> {
    let name = file.display();
    let content = fs::read(file).map_err(|cause| format!("{name}: {cause}"))?;
    let format = training_data::check(&content).map_err(|error| {
        let problem = error.message().trim_end_matches('.').to_owned();
        format!("{name}: {problem}. 'outpost tune --help' shows the formats of a line")
    })?;
    check_format(method, Some(format)).map_err(|problem| format!("{name}: {problem} Set --method accordingly"))?;
    Ok(content)
}

/// Checks that the model is in the models folder, and that an adapter of it can be trained.
fn check_model(engine: &Engine, id: &str) -> Outcome {
    if let Some(model) = engine.models().find(id) {
        return require_base(&model).map_err(|error| error.message().into());
    }
    let models = engine.models().list();
    let bases = models.iter().filter(|model| model.kind == ModelKind::Text && model.base.is_none());
    let bases: Vec<&str> = bases.map(|model| model.id.as_str()).take(MAX_LISTED).collect();
    let hint = match (spelling::nearest(id, models.iter().map(|model| model.id.as_str())), bases.as_slice()) {
        (Some(meant), _) => format!("did you mean '{meant}'?"),
        (None, []) => "'outpost models pull' installs one".to_owned(),
        (None, bases) => format!("chat models in it: {}", bases.join(", ")),
    };
    let folder = engine.models().folder();
    Err(format!("no model '{}' is in {}; {hint}", shorten(id), folder.display()).into())
}

fn not_prepared(args: &TuneArgs, unprepared: Unprepared) -> String {
    match unprepared {
        Unprepared::Data { param, problem } => {
            let file = if param == "training_file" { Some(&args.file) } else { args.validation.as_ref() };
            let file = file.map(|file| file.display().to_string()).unwrap_or_default();
            format!(
                "{file}: {problem}. Correct or shorten these lines; --max-length sets the max tokens of an example, up to \
                 the model's context window"
            )
        }
        Unprepared::Model(error @ (LoadError::TooLarge { .. } | LoadError::OutOfMemory { .. })) => format!(
            "the training does not fit into memory: {error}. Shorten the examples, lower --rank, use a smaller model, or \
             give it more memory with --memory"
        ),
        Unprepared::Model(LoadError::Unusable { reason, .. }) => {
            format!("'{}' cannot be trained: {reason}", args.model)
        }
        Unprepared::Model(error) => format!("'{}' cannot be trained: {error}", args.model),
    }
}

/// The outcome of a training.
struct Ended {
    /// The step of the adapter.
    step: u32,
    /// Steps of the whole training.
    steps: u32,
    adapter: AdapterFiles,
    losses: LossCurve,
}

/// Shows the progress of a training until it ends. The first signal ends it after the current step, the second at once.
async fn follow(mut run: TrainingRun, mut signals: StopSignals, clock: &dyn ClockRng) -> Result<Ended, Box<dyn Error>> {
    let mut progress = Progress::for_stderr();
    let mut pace = Pace::new(clock.uptime());
    let mut losses = LossCurve::default();
    let (mut steps, mut saved, mut stopping) = (0, None, false);
    loop {
        tokio::select! {
            event = run.next() => match event {
                Some(TrainingEvent::Step(report)) => {
                    steps = report.steps;
                    losses.add_step(report.measured.loss);
                    progress.step(&report, pace.step(clock.uptime(), &report));
                }
                Some(TrainingEvent::Validation { step, measured }) => {
                    losses.add_validation(step, measured.loss);
                    progress.validation(step, measured);
                }
                Some(TrainingEvent::Checkpoint(checkpoint)) => {
                    saved = checkpoint.adapter.map(|adapter| (checkpoint.step, adapter)).or(saved);
                }
                Some(TrainingEvent::Complete | TrainingEvent::Stopped) => break,
                Some(TrainingEvent::Failed(failure)) => {
                    return Err(format!("the training has failed: {failure}. Nothing was written").into());
                }
                None => return Err("the training broke off. Nothing was written".into()),
            },
            () = signals.next() => match stopping {
                true => return Err("the training was discarded. Nothing was written".into()),
                false => {
                    stopping = true;
                    run.finish();
                    progress.note("Stopping after this step. Press Ctrl-C again to discard the training.");
                }
            },
        }
    }
    progress.finish();
    let (step, adapter) = saved.ok_or("the training has left no adapter. Nothing was written")?;
    Ok(Ended { step, steps, adapter, losses })
}

/// Writes the adapter and draws the losses. A training that was ended early is an error, although its adapter is kept.
fn report(ended: &Ended, destination: &Destination, out: &mut dyn Write) -> Outcome {
    let Ended { step, steps, adapter, losses } = ended;
    // First, because the output may be closed.
    destination.write(adapter)?;
    write!(out, "\n{}\n", losses.draw())?;
    let size = format_bytes((adapter.config.len() + adapter.weights.len()) as u64);
    let (kept, next) = (destination.describe(), destination.next_command());
    if step < steps {
        out.flush()?;
        return Err(
            format!("stopped after step {step} of {steps}. The adapter so far ({size}) is {kept}. {next}").into()
        );
    }
    let validation = losses.last_validation().map(|loss| format!(", validation loss {loss:.4}")).unwrap_or_default();
    writeln!(out, "Training loss {:.4}{validation}. The adapter ({size}) is {kept}. {next}", losses.last_step())?;
    Ok(())
}
