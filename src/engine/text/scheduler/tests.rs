//! The scheduler alone, driven by chance and by hand.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use proptest::prelude::*;

use super::{Full, Limits, ModelId, Request, RequestId, Scheduler, SequenceId, StepPlan, Tenant};
use crate::models::causal_lm::LogitsAt;
use crate::models::kv::{BLOCK, BlockId};

const BYTES: u64 = 100;

fn scheduler(running: usize) -> Scheduler {
    Scheduler::new(Limits { running, requests: 1_000, tokens: 1_000_000, tenant_divisor: 1 })
}

fn request(tenant: Tenant, prompt: Vec<u32>, max_tokens: u32) -> Request {
    Request { model: 1, block_bytes: BYTES, tenant, prompt, choices: 1, max_tokens, long: false }
}

/// A prompt that shares nothing with those of other seeds.
fn prompt(seed: u32, count: usize) -> Vec<u32> {
    (0..count as u32).map(|at| seed * 10_000 + at).collect()
}

/// A worker that computes nothing, and the truth about every answer.
struct Driver {
    scheduler: Scheduler,
    room: u64,
    left: HashMap<SequenceId, u32>,
    /// What each tenant was given: tokens of prompts and answers.
    given: BTreeMap<Tenant, (usize, usize)>,
    tenants: HashMap<RequestId, Tenant>,
    /// Content of each block, as its last row wrote it: the tokens of its positions and all before.
    written: HashMap<(ModelId, BlockId), Vec<u32>>,
    expected: HashMap<SequenceId, Vec<u32>>,
}

impl Driver {
    fn new(scheduler: Scheduler, room: u64) -> Self {
        Self {
            scheduler,
            room,
            left: HashMap::new(),
            given: BTreeMap::new(),
            tenants: HashMap::new(),
            written: HashMap::new(),
            expected: HashMap::new(),
        }
    }

    fn submit(&mut self, request: Request) -> RequestId {
        let (tenant, choices, tokens) = (request.tenant, request.choices, request.max_tokens);
        let prompt = request.prompt.clone();
        let id = self.scheduler.submit(request).unwrap();
        self.tenants.insert(id, tenant);
        for choice in 0..choices {
            let sequence = SequenceId { request: id, choice };
            self.left.insert(sequence, tokens);
            self.expected.insert(sequence, prompt.clone());
        }
        id
    }

    fn cancel(&mut self, request: RequestId) {
        self.scheduler.cancel(request);
        self.left.retain(|id, _| id.request != request);
    }

    /// Plans and computes a step. Says whether it did anything.
    fn step(&mut self, chunk: usize) -> bool {
        let plan = self.scheduler.plan(self.room, chunk);
        self.check(&plan, chunk);
        let did = !plan.batches.is_empty();
        for row in plan.batches.into_iter().flat_map(|batch| batch.rows) {
            let id = row.sequence;
            let given = self.given.entry(self.tenants[&id.request]).or_default();
            if row.logits == LogitsAt::None {
                given.0 += row.tokens.len();
                self.scheduler.commit(id, row.tokens.len(), &[]);
                continue;
            }
            given.0 += row.tokens.len() - 1;
            given.1 += 1;
            let left = self.left.get_mut(&id).expect("only those who have something to do are planned");
            *left -= 1;
            let new = *left % 50;
            self.expected.get_mut(&id).unwrap().push(new);
            self.scheduler.commit(id, row.tokens.len(), &[new]);
            if *left == 0 {
                self.left.remove(&id);
                self.scheduler.end(id);
            }
        }
        self.conserved();
        did
    }

    /// Rows say the truth, and what they write nobody else holds.
    fn check(&mut self, plan: &StepPlan, chunk: usize) {
        let mut prefill = 0;
        for batch in &plan.batches {
            for row in &batch.rows {
                let tokens = &self.expected[&row.sequence];
                let end = row.start + row.tokens.len();
                assert_eq!(row.tokens, tokens[row.start..end]);
                assert_eq!(row.logits == LogitsAt::Last, end == tokens.len());
                assert!(row.blocks.len() * BLOCK >= end);
                prefill += if row.is_prefill() { row.tokens.len() } else { 0 };
                for index in 0..row.blocks.len() {
                    let key = (batch.model, row.blocks[index]);
                    let (from, to) = (index * BLOCK, ((index + 1) * BLOCK).min(end));
                    if to > row.start {
                        let own = &self.scheduler.models[&batch.model];
                        assert!(!own.prefixes_hold(row.blocks[index]), "a cached block is written");
                        self.written.insert(key, tokens[..to].to_vec());
                    } else {
                        assert_eq!(self.written[&key], tokens[..to], "positions {from} to {to} are another text's");
                    }
                }
            }
        }
        assert!(prefill <= chunk.max(1));
        assert!(self.scheduler.used_bytes() <= self.room);
    }

    /// Each block belongs to nobody, or to those who say so.
    fn conserved(&self) {
        for (id, model) in &self.scheduler.models {
            let mut holders: HashMap<BlockId, u32> = HashMap::new();
            for sequence in self.scheduler.sequences.values().filter(|one| one.model == *id) {
                let own: BTreeSet<_> = sequence.blocks.iter().collect();
                assert_eq!(own.len(), sequence.blocks.len(), "a sequence holds a block twice");
                own.into_iter().for_each(|block| *holders.entry(*block).or_default() += 1);
            }
            let cached = model.prefixes.blocks();
            let all: BTreeSet<BlockId> = holders.keys().chain(&cached).copied().collect();
            assert_eq!(all.len(), model.blocks.in_use(), "blocks are lost or paused by nobody");
            assert_eq!(cached.iter().filter(|block| !holders.contains_key(block)).count(), model.blocks.idle());
        }
    }

    /// Takes blocks for guesses: there is room for as many as it says, and nobody gave way for it.
    fn reserve_lookahead(&mut self, id: SequenceId, most: usize) {
        let (used, running) = (self.scheduler.used_bytes(), self.scheduler.running().count());
        let is_decoding = self.scheduler.draft_context(id).is_some();
        let got = self.scheduler.reserve_lookahead(id, most, self.room);
        assert!(got <= most && (is_decoding || got == 0));
        assert!(self.scheduler.used_bytes() <= used.max(self.room));
        assert_eq!((self.scheduler.running().count(), self.scheduler.preempted), (running, 0));
        if let Some(stem) = self.scheduler.draft_context(id) {
            assert_eq!(stem.tokens, self.expected[&id]);
            assert!(got == 0 || stem.blocks.len() * BLOCK >= stem.tokens.len() + got);
            let full = self.scheduler.used_bytes() + BYTES > self.room && self.scheduler.idle_bytes() == 0;
            assert!(got == most || full, "{got} of {most} though there is room");
        }
        self.conserved();
    }

    fn steps(&mut self, count: usize) {
        for _ in 0..count {
            self.step(32);
        }
    }

    fn finish(&mut self) {
        for _ in 0..1_000_000 {
            if !self.step(32) {
                assert!(self.left.is_empty(), "{} answers starve", self.left.len());
                return;
            }
        }
        panic!("it never ends");
    }
}

impl super::Model {
    fn prefixes_hold(&self, block: BlockId) -> bool {
        self.prefixes.blocks().contains(&block)
    }
}

#[derive(Clone, Debug)]
enum Act {
    Submit { tenant: u8, text: u8, length: usize, tokens: u32, choices: u32, model: bool },
    Cancel(prop::sample::Index),
    Hold(prop::sample::Index, bool),
    Ahead(prop::sample::Index, usize),
    Step(usize),
    Room(u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => (0u8..3, 0u8..3, 1usize..120, 1u32..60, 1u32..4, any::<bool>()).prop_map(
            |(tenant, text, length, tokens, choices, model)| Act::Submit { tenant, text, length, tokens, choices, model }
        ),
        1 => any::<prop::sample::Index>().prop_map(Act::Cancel),
        1 => (any::<prop::sample::Index>(), any::<bool>()).prop_map(|(index, paused)| Act::Hold(index, paused)),
        4 => (any::<prop::sample::Index>(), 1usize..40).prop_map(|(index, most)| Act::Ahead(index, most)),
        6 => (1usize..80).prop_map(Act::Step),
        1 => (14u64..40).prop_map(|blocks| Act::Room(blocks * BYTES)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn blocks_are_conserved_and_nobody_starves(running in 1usize..6, acts in prop::collection::vec(act(), 1..120)) {
        let mut driver = Driver::new(scheduler(running), 30 * BYTES);
        let mut requests: Vec<RequestId> = Vec::new();
        for act in acts {
            match act {
                Act::Submit { tenant, text, length, tokens, choices, model } => {
                    let prompt = prompt(u32::from(text), length);
                    let new = Request { choices, model: u64::from(model), ..request(u128::from(tenant), prompt, tokens) };
                    requests.push(driver.submit(new));
                }
                Act::Cancel(index) if !requests.is_empty() => driver.cancel(*index.get(&requests)),
                Act::Hold(index, paused) if !requests.is_empty() => {
                    driver.scheduler.set_paused(SequenceId { request: *index.get(&requests), choice: 0 }, paused);
                }
                Act::Ahead(index, most) if !requests.is_empty() => {
                    driver.reserve_lookahead(SequenceId { request: *index.get(&requests), choice: 0 }, most);
                }
                Act::Step(chunk) => {
                    driver.step(chunk);
                }
                Act::Room(room) => driver.room = room,
                _ => {}
            }
        }
        requests.iter().for_each(|&request| driver.scheduler.set_paused(SequenceId { request, choice: 0 }, false));
        driver.finish();
        let counts = driver.scheduler.counts();
        prop_assert_eq!((counts.queued, counts.running, counts.held_bytes), (0, 0, 0));
        driver.scheduler.shrink(0);
        prop_assert_eq!(driver.scheduler.used_bytes(), 0);
        prop_assert_eq!(driver.scheduler.shares.served(0), 0, "nobody is remembered");
    }
}

#[test]
fn a_second_turn_computes_only_what_is_new() {
    let mut driver = Driver::new(scheduler(4), 1_000 * BYTES);
    driver.submit(request(1, prompt(1, 100), 28));
    driver.finish();
    let first = driver.expected.values().next().unwrap().clone();
    assert_eq!((first.len(), driver.given[&1]), (128, (99, 28)));
    let turn: Vec<u32> = first.iter().copied().chain(prompt(2, 30)).collect();
    let again = driver.submit(request(1, turn.clone(), 1));
    let other = driver.submit(request(2, turn, 1));
    driver.step(10);
    let hit = |request| driver.scheduler.hit(SequenceId { request, choice: 0 });
    assert_eq!((hit(again), hit(other)), (112, 0), "its own prefix, and nobody else's");
    driver.finish();
}

#[test]
fn a_prompt_that_is_cached_as_a_whole_still_gives_logits() {
    let mut driver = Driver::new(scheduler(4), 1_000 * BYTES);
    for _ in 0..2 {
        driver.submit(request(1, prompt(1, 3 * BLOCK), 1));
        driver.finish();
    }
    assert_eq!(driver.given[&1].1, 2);
}

#[test]
fn tokens_are_shared_equally_between_tenants_with_work() {
    for (many, few) in [(200, 40), (40, 200)] {
        let mut driver = Driver::new(scheduler(8), 10_000 * BYTES);
        for at in 0..many {
            driver.submit(request(1, prompt(at, 50), 64));
        }
        driver.steps(20);
        driver.given.clear();
        for at in 0..few {
            driver.submit(request(2, prompt(300 + at, 50), 64));
        }
        driver.steps(300);
        let total = |tenant| driver.given[&tenant].0 + 2 * driver.given[&tenant].1;
        let ratio = total(1) as f64 / total(2) as f64;
        assert!((0.9..1.1).contains(&ratio), "{ratio}: {:?}", driver.given);
    }
}

#[test]
fn a_tenant_with_one_request_starts_at_once() {
    let mut driver = Driver::new(scheduler(8), 10_000 * BYTES);
    for at in 0..200 {
        driver.submit(request(1, prompt(at, 50), 500));
    }
    driver.steps(100);
    let one = driver.submit(request(2, prompt(900, 60), 10));
    let steps = (1..).find(|_| {
        driver.step(32);
        driver.given.get(&2).is_some_and(|given| given.1 > 0)
    });
    assert_eq!(steps, Some(2), "60 prompt tokens in slices of 32");
    driver.cancel(one);
}

#[test]
fn a_long_prompt_delays_answers_by_a_slice_at_most() {
    let mut driver = Driver::new(scheduler(8), 10_000 * BYTES);
    driver.submit(request(1, prompt(1, 4), 100));
    driver.step(32);
    driver.submit(request(1, prompt(2, 2_000), 1));
    for _ in 0..62 {
        let before = driver.given[&1].1;
        driver.step(32);
        assert_eq!(driver.given[&1].1, before + 1);
    }
}

#[test]
fn the_queue_is_bounded_by_model_and_by_tenant() {
    let limits = Limits { running: 0, requests: 6, tokens: 600, tenant_divisor: 2 };
    let mut scheduler = Scheduler::new(limits);
    let small = |tenant| request(tenant, prompt(1, 10), 1);
    let first: Vec<_> = (0..3).map(|_| scheduler.submit(small(1)).unwrap()).collect();
    assert_eq!(first, [1, 2, 3]);
    assert_eq!(scheduler.submit(small(1)), Err(Full::Tenant));
    assert_eq!(scheduler.submit(request(2, prompt(2, 290), 1)), Ok(4));
    assert_eq!(scheduler.submit(request(2, prompt(2, 11), 1)), Err(Full::Tenant), "tokens count too");
    scheduler.submit(small(3)).unwrap();
    scheduler.submit(small(3)).unwrap();
    assert_eq!(scheduler.submit(small(4)), Err(Full::Model));
    assert!(scheduler.submit(Request { model: 2, ..small(1) }).is_ok(), "another model has a queue of its own");
    scheduler.cancel(1);
    assert!(scheduler.submit(small(4)).is_ok());
}

#[test]
fn a_draft_is_checked_in_one_step() {
    let mut driver = Driver::new(scheduler(2), 100 * BYTES);
    let request = driver.submit(request(1, prompt(1, 20), 20));
    driver.step(32);
    let id = SequenceId { request, choice: 0 };
    driver.scheduler.propose(id, vec![5, 6, 7]);
    let plan = driver.scheduler.plan(driver.room, 32);
    let row = &plan.batches[0].rows[0];
    assert_eq!((row.tokens[1..].to_vec(), row.start, row.logits, row.draft), (vec![5, 6, 7], 20, LogitsAt::All, 3));
    assert!(!row.is_prefill());
    // Two of the three were right.
    driver.scheduler.commit(id, 3, &[5, 6, 9]);
    let row = driver.scheduler.plan(driver.room, 32).batches.remove(0).rows.remove(0);
    assert_eq!((row.tokens, row.start, row.draft), (vec![9], 23, 0));
}

#[test]
fn what_finds_no_memory_alone_is_told() {
    let mut driver = Driver::new(scheduler(2), 3 * BYTES);
    let id = driver.submit(request(1, prompt(1, 100), 20));
    let plan = driver.scheduler.plan(driver.room, 32);
    assert_eq!(plan.stuck, Some(SequenceId { request: id, choice: 0 }));
    assert!(plan.memory_short && plan.batches.is_empty());
}
