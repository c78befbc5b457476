//! `outpost bench`: measures the speed of a model in this process, without a server.

use std::error::Error;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use futures_util::future::try_join_all;
use serde::Serialize;

use super::model_name::resolve_alias;
use super::output::{Outcome, counted};
use super::sandbox::this_program;
use super::stopwatch::Stopwatch;
use crate::app::{self, SystemClockRng};
use crate::clock_rng::ClockRng;
use crate::config::{ComputeArgs, DataPaths};
use crate::control_socket;
use crate::display::shorten;
use crate::engine::{EncoderModel, Engine, GenerationRequest, ModelKind, Sampling, TextModel, TextOptions};
use crate::models::encoder::Tokenized;
use crate::models::training::SplitMix;

/// Tokens of the prompts whose prefill is measured.
const SHORT_PROMPT: usize = 512;
const LONG_PROMPT: usize = 2048;
/// Requests that generate at the same time.
const STREAMS: [usize; 5] = [1, 4, 8, 16, 32];
/// Tokens of their prompts.
const STREAM_PROMPT: usize = 16;
/// Tokens that each generates: fewer on a slow machine, so that one request takes at most this share of the time.
const MIN_GENERATED: u32 = 16;
const MAX_GENERATED: u32 = 96;
const GENERATION_SHARE: f64 = 0.05;
/// Tokens of the texts that are embedded, if the model accepts so many, and texts of a request.
const TEXTS: [usize; 2] = [128, 512];
const TEXTS_AT_ONCE: usize = 16;
/// Width of the column of names when it is printed.
const NAME_WIDTH: usize = 32;

#[derive(Args)]
pub(super) struct BenchArgs {
    /// An installed model for chat, embeddings, reranking or classification, or an alias of one
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

/// What a row of the result measures.
trait Case: Copy {
    const UNIT: &str;

    fn name(self) -> String;

    /// How many times as long as `other` this case takes, roughly. `None` if they have nothing in common.
    fn relative_to(self, other: Self) -> Option<f64>;
}

#[derive(Clone, Copy)]
enum ChatCase {
    /// The time until the first token.
    Prompt { tokens: usize },
    /// Requests that generate at the same time.
    Generation { requests: usize },
}

impl Case for ChatCase {
    const UNIT: &str = "tokens/s";

    fn name(self) -> String {
        match self {
            Self::Prompt { tokens } => format!("prompt of {tokens} tokens"),
            Self::Generation { requests: 1 } => "generation".to_owned(),
            Self::Generation { requests } => format!("generation, {requests} requests at once"),
        }
    }

    fn relative_to(self, other: Self) -> Option<f64> {
        match (self, other) {
            (Self::Prompt { tokens: size }, Self::Prompt { tokens: other })
            | (Self::Generation { requests: size }, Self::Generation { requests: other }) => {
                Some(size as f64 / other as f64)
            }
            _ => None,
        }
    }
}

/// Texts that are embedded in one request.
#[derive(Clone, Copy)]
struct EmbeddingCase {
    texts: usize,
    /// Of each.
    tokens: usize,
}

impl Case for EmbeddingCase {
    const UNIT: &str = "texts/s";

    fn name(self) -> String {
        match (self.texts, self.tokens) {
            (1, tokens) => format!("a text of {tokens} tokens"),
            (texts, tokens) => format!("{texts} texts of {tokens} tokens at once"),
        }
    }

    fn relative_to(self, other: Self) -> Option<f64> {
        Some((self.texts * self.tokens) as f64 / (other.texts * other.tokens) as f64)
    }
}

/// One row of the result.
#[derive(Clone, Debug, Serialize)]
struct Measurement {
    /// What was measured, such as `prompt of 512 tokens`.
    what: String,
    /// The median over `runs`. `None` if there was no time for a run.
    per_second: Option<f64>,
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
    budget: Duration,
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
    let bench = Bench { engine: &engine, clock: &*clock, budget: Duration::from_secs(args.seconds) };
    let name = resolve_alias(&args.model, &paths.models);
    let kind = engine.models().find(&name).map(|model| model.kind);
    if !args.json && control_socket::is_listening(&paths.data) {
        writeln!(out, "A server is running, which uses the same CPU and memory. Stop it for exact results.\n")?;
    }
    let device = engine.models().describe_device(&name);
    let header = format!("{name} on {device}; no speculation, medians\n");
    let mut report = Report { header, rows: Vec::new(), out: (!args.json).then_some(&mut *out) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match kind {
        Some(ModelKind::Text) => runtime.block_on(bench.chat(engine.models().load(&name)?, &mut report))?,
        Some(kind @ (ModelKind::Embedding | ModelKind::Reranker | ModelKind::Classifier)) => {
            runtime.block_on(bench.embedding(engine.models().load_encoder(&name, kind)?, &mut report))?;
        }
        Some(_) => return Err(format!("'{name}' is no model for chat, embeddings, reranking or classification").into()),
        None => {
            let (name, folder) = (shorten(&name), engine.models().folder());
            return Err(format!("no model '{name}' is in {}; see `outpost models list`", folder.display()).into());
        }
    }
    let rows = report.rows;
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&rows)?)?;
    }
    Ok(())
}

/// Collects the rows and, without `--json`, prints each as soon as it is measured.
struct Report<'a> {
    /// Stands above the first row.
    header: String,
    rows: Vec<Measurement>,
    out: Option<&'a mut dyn Write>,
}

impl Report<'_> {
    fn add(&mut self, row: Measurement) -> Outcome {
        if let Some(out) = &mut self.out {
            if self.rows.is_empty() {
                writeln!(out, "{}", self.header)?;
            }
            let Measurement { what, unit, .. } = &row;
            let first_token = row
                .first_token_seconds
                .map_or_else(String::new, |seconds| format!(", first token after {seconds:.3} s"));
            match row.per_second {
                Some(speed) => {
                    let runs = counted(row.runs, "run");
                    writeln!(out, "{what:NAME_WIDTH$}  {speed:>9.1} {unit}{first_token} ({runs})")?;
                }
                None => writeln!(out, "{what:NAME_WIDTH$}          - no time left; try a longer --seconds")?,
            }
            out.flush()?;
        }
        self.rows.push(row);
        Ok(())
    }
}

/// `None` if there are no values.
fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Measures the cases one after the other. Each gets an equal share of the time that is left, and at least one run,
/// unless the result of an earlier case says that there is no time for it.
async fn measure<C: Case>(
    clock: &dyn ClockRng,
    budget: Duration,
    cases: &[C],
    report: &mut Report<'_>,
    run: impl AsyncFn(C, u64) -> Result<Run, Box<dyn Error>>,
) -> Outcome {
    let began = Stopwatch::start(clock);
    // The cases that were measured, and the seconds that a run took.
    let mut measured: Vec<(C, f64)> = Vec::new();
    for (index, case) in cases.iter().copied().enumerate() {
        let left = budget.saturating_sub(began.elapsed());
        let expected = |(other, seconds): &(C, f64)| Some(case.relative_to(*other)? * seconds);
        let mut runs: Vec<(f64, Run)> = Vec::new();
        if measured.iter().rev().find_map(expected).is_none_or(|seconds| seconds <= left.as_secs_f64()) {
            let share = left / u32::try_from(cases.len() - index).unwrap_or(u32::MAX);
            let case_began = Stopwatch::start(clock);
            while runs.is_empty() || case_began.elapsed() < share {
                let run_began = Stopwatch::start(clock);
                let result = run(case, runs.len() as u64).await?;
                runs.push((run_began.elapsed().as_secs_f64(), result));
            }
        }
        // The first run is a warm-up, if there was time for others.
        if runs.len() > 1 {
            runs.remove(0);
        }
        measured.extend(median(runs.iter().map(|(seconds, _)| *seconds)).map(|seconds| (case, seconds)));
        let first_tokens = runs.iter().map(|(_, run)| run.first_token).collect::<Option<Vec<_>>>();
        report.add(Measurement {
            what: case.name(),
            per_second: median(runs.iter().map(|(_, run)| run.count / run.seconds)),
            unit: C::UNIT,
            first_token_seconds: first_tokens.and_then(median),
            runs: runs.len(),
        })?;
    }
    Ok(())
}

impl Bench<'_> {
    async fn chat(&self, model: Arc<TextModel>, report: &mut Report<'_>) -> Outcome {
        let positions = self.engine.positions(&model) as usize;
        let prompt = |tokens| (tokens < positions).then_some(ChatCase::Prompt { tokens });
        // Requests that do not fit into the memory at once would wait for each other.
        let fits = |requests: &usize| requests * (STREAM_PROMPT + MAX_GENERATED as usize) <= positions.max(4096);
        let generation = STREAMS.into_iter().filter(fits).map(|requests| ChatCase::Generation { requests });
        // The long prompt takes longest, so it is the first to be skipped if the model is slow.
        let cases: Vec<_> = prompt(SHORT_PROMPT).into_iter().chain(generation).chain(prompt(LONG_PROMPT)).collect();
        let warm_up = self.generate(&model, 1, MIN_GENERATED, u64::from(u32::MAX)).await?;
        let affordable = warm_up.count / warm_up.seconds * self.budget.as_secs_f64() * GENERATION_SHARE;
        let generated = (affordable as u32).clamp(MIN_GENERATED, MAX_GENERATED);
        measure(self.clock, self.budget, &cases, report, async |case, run| match case {
            ChatCase::Prompt { tokens } => self.prefill(&model, tokens, run).await,
            ChatCase::Generation { requests } => self.generate(&model, requests, generated, run).await,
        })
        .await
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
    async fn generate(
        &self,
        model: &Arc<TextModel>,
        count: usize,
        generated: u32,
        run: u64,
    ) -> Result<Run, Box<dyn Error>> {
        let began = Stopwatch::start(self.clock);
        let requests = (0..count as u64).map(|stream| {
            let request = request(model, STREAM_PROMPT, generated, run << 32 | stream << 16 | 1);
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

    async fn embedding(&self, model: Arc<EncoderModel>, report: &mut Report<'_>) -> Outcome {
        let mut lengths = TEXTS.map(|length| length.min(model.limit())).to_vec();
        lengths.dedup();
        let cases = |texts| lengths.iter().map(move |tokens| EmbeddingCase { texts, tokens: *tokens });
        let cases: Vec<_> = cases(1).chain(cases(TEXTS_AT_ONCE)).collect();
        measure(self.clock, self.budget, &cases, report, async |EmbeddingCase { texts, tokens }, run| {
            let text =
                |index: usize| Tokenized::new(random_tokens(model.vocabulary(), tokens, run << 32 | index as u64));
            let began = Stopwatch::start(self.clock);
            let vectors = self.engine.embed(&model, 0, (0..texts).map(text).collect())?;
            vectors.await?.map_err(|failure| failure.to_string())?;
            Ok(Run { count: texts as f64, seconds: began.elapsed().as_secs_f64(), first_token: None })
        })
        .await
    }
}

/// A request with a prompt that no other request has, so that no cache helps.
fn request(model: &TextModel, tokens: usize, generated: u32, seed: u64) -> GenerationRequest {
    GenerationRequest {
        prompt: random_tokens(model.vocabulary(), tokens, seed).into(),
        prompt_logprobs: None,
        choices: 1,
        max_tokens: generated,
        sampling: Sampling { seed, ignore_eos: true, ..Sampling::default() },
        grammar: None,
        reasoning: None,
        stop: Vec::new(),
        text: TextOptions::default(),
        logprobs: None,
        tenant: u128::from(seed),
    }
}

fn random_tokens(vocabulary: usize, count: usize, seed: u64) -> Vec<u32> {
    let mut random = SplitMix::new(seed);
    let limit = u64::try_from(vocabulary).unwrap_or(1).max(1);
    (0..count).map(|_| u32::try_from(random.next_bits() % limit).unwrap_or_default()).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use super::{ChatCase, Report, Run, measure};
    use crate::clock_rng::{ClockRng, Timestamp};

    /// Stands still between runs.
    #[derive(Debug, Default)]
    struct Clock(Mutex<Duration>);

    impl ClockRng for Clock {
        fn now(&self) -> Timestamp {
            Timestamp::ORIGIN
        }

        fn uptime(&self) -> Duration {
            *self.0.lock().unwrap()
        }

        fn fill(&self, _: &mut [u8]) {}
    }

    /// Measures the cases in a minute if a generation of one request takes `seconds`, and a prompt takes ten times as
    /// long. Returns what is printed, and the time that passed.
    fn measured(seconds: f64) -> (String, f64) {
        let clock = Clock::default();
        let cases = [
            ChatCase::Prompt { tokens: 512 },
            ChatCase::Generation { requests: 1 },
            ChatCase::Generation { requests: 4 },
            ChatCase::Prompt { tokens: 2048 },
        ];
        let mut out = Vec::new();
        let mut report = Report { header: "model".to_owned(), rows: Vec::new(), out: Some(&mut out) };
        let run = async |case, _| {
            let seconds = match case {
                ChatCase::Prompt { tokens } => seconds * 10. * tokens as f64 / 512.,
                ChatCase::Generation { requests } => seconds * requests as f64,
            };
            *clock.0.lock().unwrap() += Duration::from_secs_f64(seconds);
            Ok(Run { count: 10., seconds, first_token: None })
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(measure(&clock, Duration::from_secs(60), &cases, &mut report, run)).unwrap();
        (String::from_utf8(out).unwrap(), clock.uptime().as_secs_f64())
    }

    #[test]
    fn a_slow_model_is_measured_in_the_same_time_with_fewer_runs() {
        let (text, seconds) = measured(0.1);
        assert!(text.lines().skip(1).all(|line| line.contains("tokens/s (") && line.ends_with(" runs)")), "{text}");
        assert!((60. ..66.).contains(&seconds), "{seconds}");

        let (text, seconds) = measured(2.);
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert!(lines[0].starts_with("prompt of 512 tokens ") && lines[0].ends_with("0.5 tokens/s (1 run)"), "{text}");
        assert!(lines[1].ends_with("5.0 tokens/s (6 runs)") && lines[2].contains("requests at once"), "{text}");
        assert!(
            lines[3].starts_with("prompt of 2048 tokens ") && lines[3].contains("try a longer --seconds"),
            "{text}"
        );
        assert!((30. ..66.).contains(&seconds), "{seconds}");
    }
}
