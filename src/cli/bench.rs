//! `outpost bench`: measures the speed of a model in this process, without a server.

use std::error::Error;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use futures_util::future::try_join_all;
use serde::Serialize;

use super::model_name::resolve_alias;
use super::output::Outcome;
use super::sandbox::this_program;
use super::stopwatch::Stopwatch;
use crate::app::{self, SystemClockRng};
use crate::clock_rng::ClockRng;
use crate::config::{ComputeArgs, DataPaths};
use crate::control_socket;
use crate::display::shorten;
use crate::engine::{EncoderModel, Engine, GenerationRequest, ModelKind, Sampling, TextModel};
use crate::models::encoder::Tokenized;
use crate::models::training::SplitMix;

/// Tokens of the prompts whose prefill is measured.
const PROMPTS: [usize; 2] = [512, 2048];
/// Requests that generate at the same time.
const STREAMS: [usize; 5] = [1, 4, 8, 16, 32];
/// Tokens of their prompts, and tokens that each generates.
const STREAM_PROMPT: usize = 16;
const GENERATED: u32 = 96;
/// Tokens of the texts that are embedded, if the model accepts so many, and texts of a request.
const TEXTS: [usize; 2] = [128, 512];
const TEXTS_AT_ONCE: usize = 16;

#[derive(Args)]
pub(super) struct BenchArgs {
    /// An installed model for chat, embeddings or reranking, or an alias of one
    model: String,
    /// How long to measure
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    #[command(flatten)]
    compute: ComputeArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One row of the result.
#[derive(Clone, Debug, Serialize)]
struct Measurement {
    /// What was measured, such as `prompt of 512 tokens`.
    what: String,
    /// The median over `runs`.
    per_second: f64,
    unit: &'static str,
    /// The median time until the first token, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_token_seconds: Option<f64>,
    runs: usize,
}

/// Measures models of an engine.
struct Bench<'a> {
    engine: &'a Engine,
    clock: &'a dyn ClockRng,
}

/// The result of one run: what was done in how many seconds, and the time until the first token.
struct Run {
    count: f64,
    seconds: f64,
    first_token: Option<f64>,
}

pub(super) fn run(paths: &DataPaths, args: &BenchArgs, out: &mut dyn Write) -> Outcome {
    let clock = Arc::new(SystemClockRng::new());
    let engine = app::start_engine(paths.models.clone(), &args.compute, this_program()?, clock.clone())?;
    let bench = Bench { engine: &engine, clock: &*clock };
    let name = resolve_alias(&args.model, &paths.models);
    let kind = engine.models().find(&name).map(|model| model.kind);
    if !args.json && control_socket::is_listening(&paths.data) {
        writeln!(out, "A server is running, which uses the same CPU and memory. Stop it for exact results.\n")?;
    }
    let budget = Duration::from_secs(args.seconds);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let measurements = match kind {
        Some(ModelKind::Text) => runtime.block_on(bench.text(engine.models().load(&name)?, budget))?,
        Some(kind @ (ModelKind::Embedding | ModelKind::Reranker)) => {
            runtime.block_on(bench.texts(engine.models().load_encoder(&name, kind)?, budget))?
        }
        Some(_) => return Err(format!("'{name}' is no model for chat, embeddings or reranking").into()),
        None => {
            let (name, folder) = (shorten(&name), engine.models().folder());
            return Err(format!("no model '{name}' is in {}; see `outpost models list`", folder.display()).into());
        }
    };
    match args.json {
        true => writeln!(out, "{}", serde_json::to_string_pretty(&measurements)?)?,
        false => print(&name, args.compute.threads(), &measurements, out)?,
    }
    Ok(())
}

fn print(model: &str, threads: usize, measurements: &[Measurement], out: &mut dyn Write) -> Outcome {
    writeln!(out, "{model}, {threads} threads, no speculation; medians\n")?;
    let width = measurements.iter().map(|row| row.what.len()).max().unwrap_or_default();
    for Measurement { what, per_second, unit, first_token_seconds, runs } in measurements {
        let first =
            first_token_seconds.map_or_else(String::new, |seconds| format!(", first token after {seconds:.3} s"));
        writeln!(out, "{what:width$}  {per_second:>9.1} {unit}{first} ({runs} runs)")?;
    }
    Ok(())
}

/// Runs `measure` once to warm up, and then until `budget` is used, at least once.
async fn repeat(
    clock: &dyn ClockRng,
    what: String,
    unit: &'static str,
    budget: Duration,
    measure: impl AsyncFn(u64) -> Result<Run, Box<dyn Error>>,
) -> Result<Measurement, Box<dyn Error>> {
    measure(0).await?;
    let (began, mut runs) = (Stopwatch::start(clock), Vec::new());
    while runs.is_empty() || began.elapsed() < budget {
        runs.push(measure(runs.len() as u64 + 1).await?);
    }
    let per_second = median(runs.iter().map(|run| run.count / run.seconds).collect());
    let first_token_seconds = runs.iter().map(|run| run.first_token).collect::<Option<Vec<_>>>().map(median);
    Ok(Measurement { what, per_second, unit, first_token_seconds, runs: runs.len() })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

impl Bench<'_> {
    async fn text(&self, model: Arc<TextModel>, budget: Duration) -> Result<Vec<Measurement>, Box<dyn Error>> {
        let positions = self.engine.positions(&model) as usize;
        let prompts = PROMPTS.into_iter().filter(|tokens| *tokens < positions);
        // Requests that do not fit into the memory at once would wait for each other.
        let streams =
            STREAMS.into_iter().filter(|streams| streams * (STREAM_PROMPT + GENERATED as usize) <= positions.max(4096));
        let (prompts, streams): (Vec<_>, Vec<_>) = (prompts.collect(), streams.collect());
        let share = budget / u32::try_from(prompts.len() + streams.len()).unwrap_or(1).max(1);
        let mut measurements = Vec::new();
        for tokens in prompts {
            let measure = async |run| self.prefill(&model, tokens, run).await;
            measurements
                .push(repeat(self.clock, format!("prompt of {tokens} tokens"), "tokens/s", share, measure).await?);
        }
        for count in streams {
            let what =
                if count == 1 { "generation".to_owned() } else { format!("generation, {count} requests at once") };
            let measure = async |run| self.generate(&model, count, run).await;
            measurements.push(repeat(self.clock, what, "tokens/s", share, measure).await?);
        }
        Ok(measurements)
    }

    /// The time until the first token of a request.
    async fn prefill(&self, model: &Arc<TextModel>, tokens: usize, run: u64) -> Result<Run, Box<dyn Error>> {
        let began = Stopwatch::start(self.clock);
        let mut generation = self.engine.submit(model, request(model, tokens, 1, run << 32 | tokens as u64))?;
        while let Some(delta) = generation.deltas.recv().await {
            delta.map_err(|failure| failure.to_string())?;
        }
        let seconds = began.elapsed().as_secs_f64();
        Ok(Run { count: tokens as f64, seconds, first_token: Some(seconds) })
    }

    /// The tokens that requests generate at the same time, from the first token of the last one that begins on.
    async fn generate(&self, model: &Arc<TextModel>, count: usize, run: u64) -> Result<Run, Box<dyn Error>> {
        let began = Stopwatch::start(self.clock);
        let requests = (0..count as u64).map(|stream| {
            let request = request(model, STREAM_PROMPT, GENERATED, run << 32 | stream << 16 | 1);
            self.engine.submit(model, request)
        });
        let requests = requests.collect::<Result<Vec<_>, _>>()?;
        let began = &began;
        let streams = requests.into_iter().map(|mut generation| async move {
            // When the stream had generated how many tokens.
            let mut times: Vec<(f64, u32)> = Vec::new();
            while let Some(delta) = generation.deltas.recv().await {
                let delta = delta.map_err(|failure| failure.to_string())?;
                times.push((began.elapsed().as_secs_f64(), delta.generated));
            }
            Ok::<_, String>(times)
        });
        let streams = try_join_all(streams).await?;
        let first = |times: &Vec<(f64, u32)>| times.first().map_or(0., |(time, _)| *time);
        let from = streams.iter().map(first).fold(0., f64::max);
        let last = |times: &Vec<(f64, u32)>| times.last().map_or(0., |(time, _)| *time);
        let to = streams.iter().map(last).fold(f64::INFINITY, f64::min);
        let between = |times: &Vec<(f64, u32)>| {
            let at = |end: f64| times.iter().take_while(|(time, _)| *time <= end).last().map_or(0, |(_, count)| *count);
            f64::from(at(to).saturating_sub(at(from)))
        };
        let generated = streams.iter().map(between).sum();
        Ok(Run { count: generated, seconds: (to - from).max(f64::MIN_POSITIVE), first_token: None })
    }

    async fn texts(&self, model: Arc<EncoderModel>, budget: Duration) -> Result<Vec<Measurement>, Box<dyn Error>> {
        let mut lengths = TEXTS.map(|length| length.min(model.limit())).to_vec();
        lengths.dedup();
        let mut cases: Vec<(usize, usize)> = lengths.iter().map(|length| (1, *length)).collect();
        cases.extend(lengths.iter().map(|length| (TEXTS_AT_ONCE, *length)));
        let share = budget / u32::try_from(cases.len()).unwrap_or(1).max(1);
        let mut measurements = Vec::new();
        for (count, length) in cases {
            let measure = async |run: u64| {
                let text =
                    |index: usize| Tokenized::new(random_tokens(model.vocabulary(), length, run << 32 | index as u64));
                let began = Stopwatch::start(self.clock);
                let vectors = self.engine.embed(&model, 0, (0..count).map(text).collect())?;
                vectors.await?.map_err(|failure| failure.to_string())?;
                Ok(Run { count: count as f64, seconds: began.elapsed().as_secs_f64(), first_token: None })
            };
            let what = match count {
                1 => format!("a text of {length} tokens"),
                count => format!("{count} texts of {length} tokens at once"),
            };
            measurements.push(repeat(self.clock, what, "texts/s", share, measure).await?);
        }
        Ok(measurements)
    }
}

/// A request with a prompt that no other request has, so that no cache helps.
fn request(model: &TextModel, tokens: usize, generated: u32, seed: u64) -> GenerationRequest {
    GenerationRequest {
        prompt: random_tokens(model.vocabulary(), tokens, seed).into(),
        choices: 1,
        max_tokens: generated,
        sampling: Sampling { seed, ignore_eos: true, ..Sampling::default() },
        grammar: None,
        reasoning: None,
        stop: Vec::new(),
        logprobs: None,
        tenant: u128::from(seed),
    }
}

fn random_tokens(vocabulary: usize, count: usize, seed: u64) -> Vec<u32> {
    let mut random = SplitMix::new(seed);
    let limit = u64::try_from(vocabulary).unwrap_or(1).max(1);
    (0..count).map(|_| u32::try_from(random.next_bits() % limit).unwrap_or_default()).collect()
}
