//! The cost of metering per request, and the speed of reports over ten million usage records.
//!
//! `cargo bench --bench usage -- [RECORDS]`. Writing ten million records takes about five minutes.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark measures and reports"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use outpost::app::SystemClockRng;
use outpost::clock_rng::{ClockRng, Timestamp};
use outpost::ids::{KeyId, ProjectId};
use outpost::service::limits::{Limits, LimitsPatch, RatesPatch};
use outpost::service::usage::{Dimension, Meter, Outcome, ReportQuery, Usage, Width};
use outpost::service::writes::patch::Patch;
use outpost::service::{Access, Keys, first_start};
use outpost::storage::usage::{self, Amounts, SeriesRecord, UsageRecord};
use outpost::storage::{Store, StoreSettings};
use outpost_testing::rng;

use rng::TestRng;

const MONTH: i64 = 30 * 86_400_000;

fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times[(times.len() * percent / 100).min(times.len() - 1)]
}

/// Writes `records` requests of the last 30 days, of 20 keys, 3 endpoints and 2 models.
async fn fill(store: &Store, project: ProjectId, keys: &[KeyId], now: Timestamp, records: u64) {
    let start = now.as_millis() - MONTH;
    let step = 20_000;
    for first in (0..records).step_by(step) {
        let keys = keys.to_vec();
        let written = store.write(move |tx| {
            let mut rng = TestRng(first);
            for number in first..(first + step as u64).min(records) {
                let at = start + i64::try_from(u128::from(number) * MONTH as u128 / u128::from(records)).unwrap();
                let endpoint = ["POST /chat/completions", "POST /embeddings", "GET /models"][rng.below(3) as usize];
                let model = ["smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct"][rng.below(2) as usize];
                let key = keys[rng.below(keys.len() as u64) as usize];
                let series = SeriesRecord { key, endpoint: endpoint.into(), model: Some(model.into()) };
                let series = usage::number(tx, project, &series, false)?;
                let amounts = Amounts { input: rng.below(2000), output: rng.below(500), ..Amounts::default() };
                let record = UsageRecord { series, outcome: Outcome::Succeeded, amounts };
                let mut tail = [0; 6];
                tail.copy_from_slice(&number.to_be_bytes()[2..]);
                usage::append(tx, project, Timestamp::from_millis(at), tail, &record)?;
            }
            Ok(())
        });
        written.await.unwrap();
    }
}

async fn queries(usage: &Usage, access: &Access, project: ProjectId, now: Timestamp) {
    let window = |rng: &mut TestRng| {
        let start = now.as_millis() - MONTH + i64::try_from(rng.below(MONTH as u64 - 3_600_000)).unwrap();
        (start, start + 1 + i64::try_from(rng.below((now.as_millis() - start) as u64)).unwrap())
    };
    let kinds: [(&str, bool, Width, Vec<Dimension>); 5] = [
        ("the last 30 days by the day", false, Width::Day, vec![]),
        ("the last 30 days by the hour", false, Width::Hour, vec![]),
        ("the last 30 days by the day, by model, key and endpoint", false, Width::Day, Dimension::ALL.to_vec()),
        ("random window, edges at any millisecond, by the day", true, Width::Day, vec![]),
        ("random window, edges at any millisecond, by the hour, by model", true, Width::Hour, vec![Dimension::Model]),
    ];
    for (name, random, width, group_by) in kinds {
        let mut rng = TestRng(5);
        let mut times = Vec::new();
        for _ in 0..200 {
            let (start, end) = if random { window(&mut rng) } else { (now.as_millis() - MONTH, now.as_millis()) };
            let (start, end) = (Some(Timestamp::from_millis(start)), Some(Timestamp::from_millis(end)));
            let query = ReportQuery { start, end, width: Some(width), group_by: group_by.clone() };
            let begun = Instant::now();
            usage.report(access, project, query, u64::MAX).await.unwrap();
            times.push(begun.elapsed());
        }
        let (p50, p99) = (percentile(&mut times, 50), percentile(&mut times, 99));
        println!("query, {name}: p50 {p50:.2?}, p99 {p99:.2?}");
    }
}

/// Requests of one limited project, sequential and up to 256 concurrent ones.
async fn metering(store: &Store, limits: &Limits, meter: &Meter, access: &Access) {
    let project = access.project();
    let own = RatesPatch {
        requests_per_minute: Patch::Set(1_000_000),
        burst_limit: Patch::Set(10_000_000),
        ..RatesPatch::default()
    };
    limits.update(access, project, LimitsPatch::own(own)).await.unwrap();
    limits.admit(project).await.unwrap().1.unwrap();
    let rounds = 200_000;
    let begun = Instant::now();
    for _ in 0..rounds {
        limits.admit(project).await.unwrap().1.unwrap();
    }
    println!("limiter: {:.3} µs a request", begun.elapsed().as_secs_f64() * 1e6 / f64::from(rounds));
    let mut times = Vec::new();
    for _ in 0..2_000 {
        let begun = Instant::now();
        meter.open(access, "GET /models".into()).close(Outcome::Succeeded).await.unwrap();
        times.push(begun.elapsed());
    }
    println!("metering, one at a time: p50 {:.1?}, p99 {:.1?}", percentile(&mut times, 50), percentile(&mut times, 99));
    for tasks in [64, 256] {
        let (before, begun, requests) = (store.stats(), Instant::now(), 200_000 / tasks);
        let handles: Vec<_> = (0..tasks)
            .map(|_| {
                let (meter, access) = (meter.clone(), access.clone());
                tokio::task::spawn(async move {
                    for _ in 0..requests {
                        meter.open(&access, "GET /models".into()).close(Outcome::Succeeded).await.unwrap();
                    }
                })
            })
            .collect();
        for handle in handles {
            handle.await.unwrap();
        }
        let (elapsed, after) = (begun.elapsed(), store.stats());
        let records = f64::from(requests * tasks);
        println!(
            "metering, {tasks} at a time: {:.1} µs a request ({:.0} a second, {:.1} a commit)",
            elapsed.as_secs_f64() * 1e6 / records,
            records / elapsed.as_secs_f64(),
            records / (after.commits - before.commits) as f64,
        );
    }
}

#[tokio::main]
async fn main() {
    let records: u64 = std::env::args().filter_map(|argument| argument.parse().ok()).next().unwrap_or(10_000_000);
    let folder = tempfile::tempdir().unwrap();
    let clock_rng: Arc<dyn ClockRng> = Arc::new(SystemClockRng::new());
    let settings =
        StoreSettings { dir: folder.path().to_owned(), cache_bytes: 64 << 20, queue: 16_384, min_free_disk: Some(0) };
    let store = Store::open(settings, clock_rng.clone()).unwrap();
    let first = first_start(&store, &clock_rng).await.unwrap().unwrap();
    let access = Keys::new(store.clone(), clock_rng.clone()).authenticate(first.secret.expose()).await.unwrap();
    let limits = Limits::new(store.clone(), clock_rng.clone());
    let meter = Meter::new(store.clone(), clock_rng.clone(), limits.clone());
    metering(&store, &limits, &meter, &access).await;

    let file = folder.path().join("outpost.redb");
    let (project, now) = (ProjectId::generate(&*clock_rng), clock_rng.now());
    let keys: Vec<KeyId> = (0..20).map(|_| KeyId::generate(&*clock_rng)).collect();
    let (bytes, begun) = (std::fs::metadata(&file).unwrap().len(), Instant::now());
    fill(&store, project, &keys, now, records).await;
    let grown = std::fs::metadata(&file).unwrap().len() - bytes;
    println!(
        "{records} records written in {:.0?}: {:.1} µs and {:.1} bytes a record, sums included",
        begun.elapsed(),
        begun.elapsed().as_secs_f64() * 1e6 / records as f64,
        grown as f64 / records as f64
    );
    // An admin key can read a project as soon as its record exists.
    let admin = access.clone();
    let usage = Usage::new(store.clone(), clock_rng);
    let record = outpost::storage::projects::ProjectRecord {
        name: "full".into(),
        environment: None,
        metadata: None,
        created_at: now,
        updated_at: now,
        archived_at: None,
    };
    store.write(move |tx| outpost::storage::projects::put(tx, project, &record)).await.unwrap();
    queries(&usage, &admin, project, now).await;
}
