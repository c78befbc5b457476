//! The scheduler without a network: property tests and scenarios.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use proptest::prelude::*;

use super::{
    Full, GroupBlock, Limits, ModelId, QueuedWork, RecurrentState, Request, RequestId, Scheduler, Sequence, SequenceId,
    StepPlan, Tenant, TextBlock,
};
use crate::text::prefix_disk::names::DiskRoot;
use outpost_models::causal_lm::LogitsAt;
use outpost_models::kv::{BLOCK, BlockId};
use outpost_models::state_layout::StateUpdate;
use outpost_models::state_layout::{StateGroup, StateKind};

const BYTES: u64 = 100;
/// Positions that a token of [`windowed`] sees in some layers.
const WINDOW: usize = 40;

/// The groups of a model whose layers partly have a window, with blocks of [`BYTES`] in total.
fn windowed() -> Vec<StateGroup> {
    let group = StateGroup::attention;
    vec![group(BYTES / 2, None), group(BYTES / 4, Some(WINDOW)), group(BYTES / 4, Some(1))]
}

/// The groups of a model with all kinds of layers.
fn recurrent() -> Vec<StateGroup> {
    let group = StateGroup::attention;
    vec![group(BYTES / 4, None), group(BYTES / 4, Some(WINDOW)), StateGroup::recurrent(BYTES)]
}

fn scheduler(running: usize) -> Scheduler {
    Scheduler::new(Limits { running, choices: 1_000, tokens: 1_000_000, tenant_divisor: 1, logits: 24 })
}

fn request(tenant: Tenant, prompt: Vec<u32>, max_tokens: u32) -> Request {
    let prompt = prompt.into();
    Request {
        model: 1,
        adapter: None,
        groups: vec![StateGroup::attention(BYTES, None)],
        tenant,
        prompt,
        choices: 1,
        max_tokens,
        long: false,
        prompt_logits: false,
        disk: None,
    }
}

/// Where the texts of a tenant are written for a model.
fn disk_root(tenant: Tenant, model: ModelId) -> DiskRoot {
    DiskRoot { folder: tenant as u32, name: u128::from(model).to_be_bytes() }
}

/// Blocks with their contents, in the order in which they are read.
type Restored = VecDeque<(TextBlock, Vec<u32>)>;

/// The blocks on disk: by root, text up to the end of the block, and group. The values are as those of [`Driver::written`].
type Disk = HashMap<(u32, [u8; 16], Vec<u32>, usize), Vec<u32>>;

/// A prompt that shares nothing with those of other seeds.
fn prompt(seed: u32, count: usize) -> Vec<u32> {
    (0..count as u32).map(|at| seed * 10_000 + at).collect()
}

/// Stands in for the compute thread and tracks the expected tokens of every sequence.
struct Driver {
    scheduler: Scheduler,
    room: u64,
    left: HashMap<SequenceId, u32>,
    /// Prompt and generated tokens of each tenant.
    served: BTreeMap<Tenant, (usize, usize)>,
    tenants: HashMap<RequestId, Tenant>,
    /// The content of each block as last written: the tokens of its positions and of all positions before.
    written: HashMap<(ModelId, GroupBlock), Vec<u32>>,
    expected: HashMap<SequenceId, Vec<u32>>,
    /// Requests whose prompt's logits are needed: positions that had theirs, and all.
    scored: HashMap<RequestId, (usize, usize)>,
    /// Max draft tokens of a row that are accepted.
    accepted: usize,
    /// The prefix cache on disk, to which requests with a root are written.
    disk: Disk,
    /// The blocks that requests wait for.
    restoring: BTreeMap<RequestId, (ModelId, Restored)>,
}

impl Driver {
    fn new(scheduler: Scheduler, room: u64) -> Self {
        Self {
            scheduler,
            room,
            left: HashMap::new(),
            served: BTreeMap::new(),
            tenants: HashMap::new(),
            written: HashMap::new(),
            expected: HashMap::new(),
            scored: HashMap::new(),
            accepted: 0,
            disk: Disk::new(),
            restoring: BTreeMap::new(),
        }
    }

    /// Frees the memory of released blocks.
    fn free(&mut self, released: &[(ModelId, GroupBlock)]) {
        released.iter().for_each(|block| drop(self.written.remove(block)));
    }

    /// Writes the texts that have ended to the disk.
    fn write_ended(&mut self) {
        for text in self.scheduler.take_ended() {
            let tokens: Vec<u32> = text.keys.iter().flat_map(|key| key.tokens).collect();
            for (at, id) in self.scheduler.blocks_to_write(&text, 0) {
                let prefix = tokens[..(at.index + 1) * BLOCK].to_vec();
                let contents = self.written[&(text.model, GroupBlock { group: at.group, id })].clone();
                assert_eq!(contents, prefix, "a block that is written has the text before its end");
                self.disk.insert((text.disk.folder, text.disk.name, prefix, at.group), contents);
            }
        }
    }

    /// Makes a new request wait for the blocks of its prompt that are on disk.
    fn begin_restore(&mut self, id: RequestId, model: ModelId, root: DiskRoot, groups: usize) {
        let tokens = self.expected[&SequenceId { request: id, choice: 0 }].clone();
        let key = |TextBlock { index, group }| (root.folder, root.name, tokens[..(index + 1) * BLOCK].to_vec(), group);
        let has = |index| (0..groups).map(|group| self.disk.contains_key(&key(TextBlock { index, group }))).collect();
        let on_disk: Vec<Vec<bool>> = (0..tokens.len() / BLOCK).map(has).collect();
        if let Some(prefix) = self.scheduler.begin_restore(id, &on_disk) {
            assert!(!prefix.missing.is_empty());
            let blocks = prefix.missing.into_iter().map(|at| (at, self.disk[&key(at)].clone())).collect();
            self.restoring.insert(id, (model, blocks));
        }
    }

    /// Reads up to `count` blocks for a request that waits for them.
    fn restore(&mut self, request: RequestId, count: usize) {
        let Some((model, mut blocks)) = self.restoring.remove(&request) else { return };
        let used = self.scheduler.used_bytes();
        let mut placed = Vec::new();
        while placed.len() < count
            && let Some((at, contents)) = blocks.front()
            && let Some(id) = self.scheduler.allocate_restored(request, at.group, self.room)
        {
            placed.push((*at, id, contents.clone()));
            blocks.pop_front();
        }
        let released = self.scheduler.take_released();
        self.free(&released);
        let load = |(at, id, contents): (TextBlock, BlockId, Vec<u32>)| {
            self.written.insert((model, GroupBlock { group: at.group, id }), contents);
            (at, id)
        };
        let placed: Vec<_> = placed.into_iter().map(load).collect();
        assert!(self.scheduler.used_bytes() <= used.max(self.room));
        let inserted = self.scheduler.insert_restored(request, &placed);
        if inserted && placed.len() == count && !blocks.is_empty() {
            self.restoring.insert(request, (model, blocks));
        } else {
            self.scheduler.end_restore(request);
        }
        self.check_blocks();
        self.check_index();
    }

    fn submit(&mut self, request: Request) -> RequestId {
        let (tenant, choices, tokens) = (request.tenant, request.choices, request.max_tokens);
        let (prompt, scored) = (request.prompt.clone(), request.prompt_logits);
        let (model, groups, disk) = (request.model, request.groups.len(), request.disk);
        let id = self.scheduler.submit(request).unwrap();
        if scored {
            self.scored.insert(id, (0, prompt.len() - 1));
        }
        self.tenants.insert(id, tenant);
        for choice in 0..choices {
            let sequence = SequenceId { request: id, choice };
            self.left.insert(sequence, tokens);
            self.expected.insert(sequence, prompt.ids().to_vec());
        }
        disk.iter().for_each(|root| self.begin_restore(id, model, *root, groups));
        id
    }

    fn cancel(&mut self, request: RequestId) {
        self.scheduler.cancel(request);
        self.left.retain(|id, _| id.request != request);
    }

    /// Plans and computes a step. Returns whether there was anything to compute.
    fn step(&mut self, chunk: usize) -> bool {
        let plan = self.scheduler.plan(self.room, chunk);
        self.free(&plan.released);
        self.check(&plan, chunk);
        let ran = !plan.batches.is_empty();
        for row in plan.batches.into_iter().flat_map(|batch| batch.rows) {
            let id = row.sequence;
            let served = self.served.entry(self.tenants[&id.request]).or_default();
            if let Some((scored, all)) = self.scored.get_mut(&id.request).filter(|_| id.choice == 0) {
                assert!(row.prompt_logits == 0 || row.start == *scored, "each position has its logits once, in order");
                *scored += row.prompt_logits;
                assert!(row.logits != LogitsAt::Last || scored == all);
            } else {
                assert_eq!(row.prompt_logits, 0);
            }
            let left = self.left.get_mut(&id).expect("only unfinished sequences are planned");
            let is_last = row.start + row.tokens.len() - row.draft == self.expected[&id].len();
            if !is_last || *left == 0 {
                served.0 += row.tokens.len();
                self.scheduler.commit(id, row.tokens.len(), &[]);
                if is_last {
                    self.left.remove(&id);
                    self.scheduler.finish(id);
                }
                continue;
            }
            let (known, accepted) = (row.tokens.len() - row.draft, row.draft.min(self.accepted));
            served.0 += known - 1;
            served.1 += 1 + accepted;
            *left -= 1 + accepted as u32;
            let new: Vec<u32> = row.tokens[known..][..accepted].iter().copied().chain([*left % 50]).collect();
            self.expected.get_mut(&id).unwrap().extend(&new);
            self.scheduler.commit(id, known + accepted, &new);
            if *left == 0 {
                self.left.remove(&id);
                self.scheduler.finish(id);
            }
        }
        self.write_ended();
        self.check_blocks();
        self.check_index();
        ran
    }

    /// Rows match the expected tokens, and no other sequence holds the blocks they write.
    fn check(&mut self, plan: &StepPlan, chunk: usize) {
        let (mut prefill, mut logits) = (0, 0);
        for batch in &plan.batches {
            for row in &batch.rows {
                let (known, draft) = row.tokens.split_at(row.tokens.len() - row.draft);
                let tokens = &[&self.expected[&row.sequence], draft].concat();
                let end = row.start + row.tokens.len();
                assert_eq!(known, &tokens[row.start..end - row.draft]);
                let expected = match (row.prompt_logits + row.draft, end == tokens.len()) {
                    (0, false) => LogitsAt::None,
                    (0, true) => LogitsAt::Last,
                    _ => LogitsAt::All,
                };
                assert_eq!(row.logits, expected);
                logits += match row.logits {
                    LogitsAt::None => 0,
                    LogitsAt::Last => 1,
                    LogitsAt::All => row.tokens.len(),
                };
                prefill += if row.is_prefill() { row.tokens.len() } else { 0 };
                let own = &self.scheduler.models[&batch.model];
                assert_eq!(row.tables.len() + usize::from(row.state.is_some()), own.pool.groups().len());
                if let Some(StateUpdate { read, write }) = row.state {
                    let key = |id| (batch.model, GroupBlock { group: row.tables.len(), id });
                    let before = read.map(|id| self.written[&key(id)].as_slice()).unwrap_or_default();
                    assert_eq!(before, &tokens[..row.start], "the state has seen other tokens");
                    assert!(read != Some(write) && !own.prefixes_hold(key(write).1), "a state in use is written");
                    self.written.insert(key(write), tokens[..end].to_vec());
                }
                for ((group, table), layout) in row.tables.iter().enumerate().zip(own.pool.groups()) {
                    assert!(table.len() * BLOCK >= end);
                    let StateKind::Attention { window } = layout.kind else { panic!("recurrent layers have no table") };
                    // The first token of the row sees the earliest positions.
                    let first = (row.start + 1).saturating_sub(window.unwrap_or(usize::MAX)) / BLOCK;
                    for (index, id) in table.iter().enumerate().skip(first) {
                        let key = (batch.model, GroupBlock { group, id: *id });
                        let (from, to) = (index * BLOCK, ((index + 1) * BLOCK).min(end));
                        if to > row.start {
                            assert!(!own.prefixes_hold(key.1), "a cached block is written");
                            self.written.insert(key, tokens[..to].to_vec());
                        } else {
                            assert_eq!(
                                self.written[&key],
                                tokens[..to],
                                "positions {from} to {to} belong to another sequence"
                            );
                        }
                    }
                }
            }
        }
        assert!(prefill <= chunk.max(1));
        assert!(logits <= self.scheduler.limits.logits);
        assert!(self.scheduler.used_bytes() <= self.room);
    }

    /// Each block is free, or its reference count matches its holders.
    fn check_blocks(&self) {
        for (id, model) in &self.scheduler.models {
            let cached = model.prefixes.blocks();
            let mut holders: BTreeSet<GroupBlock> = BTreeSet::new();
            for sequence in self.scheduler.sequences.values().filter(|one| one.model == *id) {
                for (group, table) in sequence.tables.iter().enumerate() {
                    let own: BTreeSet<_> = table.held().iter().map(|id| GroupBlock { group, id: *id }).collect();
                    assert_eq!(own.len(), table.held().len(), "a sequence holds a block twice");
                    holders.extend(own);
                }
                let states = sequence.recurrent.iter().flat_map(RecurrentState::held);
                holders.extend(states.map(|id| GroupBlock { group: sequence.tables.len(), id }));
            }
            for group in 0..model.pool.groups().len() {
                let of = |blocks: &BTreeSet<GroupBlock>| blocks.iter().filter(|block| block.group == group).count();
                let blocks = model.pool.blocks(group);
                let all = holders.union(&cached).copied().collect();
                assert_eq!(of(&all), blocks.in_use(), "blocks are leaked or have no holder");
                assert_eq!(of(&cached.difference(&holders).copied().collect()), blocks.idle());
            }
        }
    }

    /// The index agrees with the sequences.
    fn check_index(&self) {
        let Scheduler { sequences, queues, .. } = &self.scheduler;
        let of = |wanted: &dyn Fn(&SequenceId, &Sequence) -> bool| -> BTreeSet<SequenceId> {
            sequences.iter().filter(|(id, one)| wanted(id, one)).map(|(id, _)| *id).collect()
        };
        assert_eq!(*queues.running(), of(&|_, one| one.is_running()));
        let ready = of(&|id, one| !one.is_running() && self.scheduler.is_ready(*id));
        assert_eq!(queues.ready(), ready);
        let new = sequences.iter().filter(|(_, one)| one.prefix_hit.is_none());
        let expected = new.fold(QueuedWork::default(), |sum, (id, one)| QueuedWork {
            requests: sum.requests + usize::from(id.choice == 0),
            choices: sum.choices + 1,
            tokens: sum.tokens + if id.choice == 0 { one.tokens.prompt_len() } else { 0 },
        });
        assert_eq!(queues.queued(|_, _| true), expected);
    }

    /// Reserves blocks for a draft: the returned count has blocks, and nothing was preempted.
    fn reserve_lookahead(&mut self, id: SequenceId, max_tokens: usize) {
        let (used, running) = (self.scheduler.used_bytes(), self.scheduler.running().count());
        let is_decoding = self.scheduler.draft_context(id).is_some();
        let (got, _) = self.scheduler.reserve_lookahead(id, max_tokens, self.room);
        assert!(got <= max_tokens && (is_decoding || got == 0));
        assert!(self.scheduler.used_bytes() <= used.max(self.room));
        assert_eq!((self.scheduler.running().count(), self.scheduler.preempted), (running, 0));
        if let Some(stem) = self.scheduler.draft_context(id) {
            assert_eq!(stem.tokens.slice(0, stem.tokens.len()), self.expected[&id]);
            assert!(got == 0 || stem.blocks.len() * BLOCK >= stem.tokens.len() + got);
            let full = self.scheduler.used_bytes() + BYTES > self.room && self.scheduler.idle_bytes() == 0;
            assert!(got == max_tokens || full, "{got} of {max_tokens} though there is room");
        }
        self.check_blocks();
    }

    fn steps(&mut self, count: usize) {
        for _ in 0..count {
            self.step(32);
        }
    }

    fn finish(&mut self) {
        for _ in 0..1_000_000 {
            self.restoring.keys().copied().collect::<Vec<_>>().iter().for_each(|request| self.restore(*request, 3));
            if !self.step(32) && self.restoring.is_empty() {
                assert!(self.left.is_empty(), "{} sequences starve", self.left.len());
                return;
            }
        }
        panic!("it never ends");
    }
}

impl super::Model {
    fn prefixes_hold(&self, block: GroupBlock) -> bool {
        self.prefixes.blocks().contains(&block)
    }
}

#[derive(Clone, Debug)]
enum Action {
    Submit {
        tenant: u8,
        text: u8,
        length: usize,
        tokens: u32,
        choices: u32,
        model: u64,
        prompt_logits: bool,
        disk: bool,
    },
    /// Reads blocks for a request that waits for them.
    Restore(prop::sample::Index, usize),
    Cancel(prop::sample::Index),
    Pause(prop::sample::Index, bool),
    Lookahead(prop::sample::Index, usize),
    Propose(prop::sample::Index, usize),
    Accept(usize),
    Step(usize),
    SetRoom(u64),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        3 => (0u8..3, 0u8..3, 1usize..120, 0u32..60, 1u32..4, 0u64..3, any::<bool>(), any::<bool>()).prop_map(
            |(tenant, text, length, tokens, choices, model, prompt_logits, disk)| Action::Submit {
                tenant, text, length, tokens, choices, model, prompt_logits, disk
            }
        ),
        3 => (any::<prop::sample::Index>(), 1usize..5).prop_map(|(index, count)| Action::Restore(index, count)),
        1 => any::<prop::sample::Index>().prop_map(Action::Cancel),
        1 => (any::<prop::sample::Index>(), any::<bool>()).prop_map(|(index, paused)| Action::Pause(index, paused)),
        4 => (any::<prop::sample::Index>(), 1usize..40).prop_map(|(index, max_tokens)| Action::Lookahead(index, max_tokens)),
        4 => (any::<prop::sample::Index>(), 1usize..4).prop_map(|(index, count)| Action::Propose(index, count)),
        1 => (0usize..4).prop_map(Action::Accept),
        6 => (1usize..80).prop_map(Action::Step),
        1 => (14u64..40).prop_map(|blocks| Action::SetRoom(blocks * BYTES)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn blocks_are_conserved_and_no_request_starves(running in 1usize..6, actions in prop::collection::vec(action(), 1..120)) {
        let mut driver = Driver::new(scheduler(running), 30 * BYTES);
        let mut requests: Vec<RequestId> = Vec::new();
        for action in actions {
            match action {
                Action::Submit { tenant, text, length, tokens, choices, model, prompt_logits, disk } => {
                    let prompt = prompt(u32::from(text), length);
                    let new = request(u128::from(tenant), prompt, tokens);
                    let groups = match model {
                        0 => new.groups,
                        1 => windowed(),
                        _ => recurrent(),
                    };
                    let disk = disk.then(|| disk_root(u128::from(tenant), model));
                    let new = Request { choices, model, groups, prompt_logits, disk, ..new };
                    requests.push(driver.submit(new));
                }
                Action::Cancel(index) if !requests.is_empty() => driver.cancel(*index.get(&requests)),
                Action::Pause(index, paused) if !requests.is_empty() => {
                    driver.scheduler.set_paused(SequenceId { request: *index.get(&requests), choice: 0 }, paused);
                }
                Action::Lookahead(index, max_tokens) if !requests.is_empty() => {
                    driver.reserve_lookahead(SequenceId { request: *index.get(&requests), choice: 0 }, max_tokens);
                }
                Action::Propose(index, count) if !requests.is_empty() => {
                    let id = SequenceId { request: *index.get(&requests), choice: 0 };
                    if driver.scheduler.is_decoding(id) {
                        driver.scheduler.propose(id, (90..).take(count).collect());
                    }
                }
                Action::Accept(count) => driver.accepted = count,
                Action::Restore(index, count) if !requests.is_empty() => driver.restore(*index.get(&requests), count),
                Action::Step(chunk) => {
                    driver.step(chunk);
                }
                Action::SetRoom(room) => driver.room = room,
                _ => {}
            }
        }
        requests.iter().for_each(|&request| driver.scheduler.set_paused(SequenceId { request, choice: 0 }, false));
        driver.finish();
        let counts = driver.scheduler.counts();
        prop_assert_eq!((counts.queued, counts.running, counts.held_bytes), (0, 0, 0));
        driver.scheduler.shrink(0);
        prop_assert_eq!(driver.scheduler.used_bytes(), 0);
        prop_assert_eq!(driver.scheduler.shares.served(0), 0, "no counter is left");
    }
}

#[test]
fn a_second_turn_reuses_the_cached_prefix() {
    let mut driver = Driver::new(scheduler(4), 1_000 * BYTES);
    driver.submit(request(1, prompt(1, 100), 28));
    driver.finish();
    let first = driver.expected.values().next().unwrap().clone();
    assert_eq!((first.len(), driver.served[&1]), (128, (99, 28)));
    let turn: Vec<u32> = first.iter().copied().chain(prompt(2, 30)).collect();
    let again = driver.submit(request(1, turn.clone(), 1));
    let other = driver.submit(request(2, turn, 1));
    driver.step(10);
    let prefix_hit = |request| driver.scheduler.prefix_hit(SequenceId { request, choice: 0 });
    assert_eq!((prefix_hit(again), prefix_hit(other)), (112, 0), "its own tenant's prefix only");
    driver.finish();
}

/// A token sees 40 positions of the second group and its own of the third: a sequence holds at most 4 blocks and 1 of these
/// groups, besides those of the tokens that a step computes.
#[test]
fn blocks_that_no_later_token_sees_are_given_back() {
    let held = |groups: Vec<StateGroup>| {
        let mut driver = Driver::new(scheduler(4), 1_000 * BYTES);
        driver.submit(Request { groups, ..request(1, prompt(1, 1_000), 100) });
        driver.steps(50);
        let counts = driver.scheduler.counts();
        assert_eq!(driver.scheduler.used_bytes(), counts.held_bytes + counts.cached_bytes);
        (counts.held_bytes, driver.scheduler.sequences.values().next().unwrap().computed.div_ceil(BLOCK) as u64)
    };
    let (whole, blocks) = held(request(1, vec![1], 1).groups);
    assert_eq!((whole, blocks), (blocks * BYTES, 64));
    assert_eq!(held(windowed()), (blocks * BYTES / 2 + (3 + 1) * BYTES / 4, blocks));
}

#[test]
fn a_sequence_fits_where_only_its_windows_fit() {
    // Of 63 blocks, the second and the third group hold 6 and 4 in a step of 32 tokens.
    let (room, length) = ((63 * 2 + 6 + 4) * BYTES / 4, 999);
    let mut driver = Driver::new(scheduler(4), room);
    driver.submit(Request { groups: windowed(), ..request(1, prompt(1, length), 8) });
    driver.finish();
    assert_eq!(driver.served[&1], (length - 1, 8));
    let mut driver = Driver::new(scheduler(4), room);
    driver.submit(request(1, prompt(1, length), 8));
    assert!(driver.scheduler.plan(room, 32).stuck.is_some(), "without windows it does not");
}

#[test]
fn a_second_turn_needs_the_last_window_of_the_cached_prefix() {
    let mut driver = Driver::new(scheduler(4), 1_000 * BYTES);
    driver.submit(Request { groups: windowed(), ..request(1, prompt(1, 320), 1) });
    driver.finish();
    let turn: Vec<u32> = prompt(1, 320).into_iter().chain(prompt(2, 30)).collect();
    let submit = |driver: &mut Driver| {
        let request = driver.submit(Request { groups: windowed(), ..request(1, turn.clone(), 1) });
        driver.step(10);
        let hit = driver.scheduler.prefix_hit(SequenceId { request, choice: 0 });
        driver.finish();
        hit
    };
    assert_eq!(submit(&mut driver), 320);
    // Blocks of windows are evicted from the front, before the blocks that all later tokens see.
    driver.scheduler.shrink(driver.scheduler.used_bytes() - 10 * BYTES / 2);
    assert_eq!(driver.scheduler.models[&1].pool.blocks(0).in_use(), 21);
    assert_eq!(driver.scheduler.models[&1].pool.blocks(1).in_use(), 11);
    assert_eq!(submit(&mut driver), 336);
}

/// A driver after a restart: the same disk, and nothing in memory.
fn restarted(driver: Driver) -> Driver {
    let disk = driver.disk;
    Driver { disk, ..Driver::new(scheduler(4), driver.room) }
}

#[test]
fn a_text_on_disk_is_found_after_a_restart() {
    for (groups, hit) in [(request(1, vec![1], 1).groups, 112), (windowed(), 112), (recurrent(), 112)] {
        let new = |tenant, prompt, tokens| Request {
            groups: groups.clone(),
            disk: Some(disk_root(tenant, 1)),
            ..request(tenant, prompt, tokens)
        };
        let mut driver = Driver::new(scheduler(4), 1_000 * BYTES);
        driver.submit(new(1, prompt(1, 100), 28));
        driver.finish();
        let text = driver.expected.values().next().unwrap().clone();
        let turn = [text, prompt(2, 30)].concat();
        let mut driver = restarted(driver);
        let other = driver.submit(new(2, turn.clone(), 1));
        let again = driver.submit(new(1, turn, 1));
        assert_eq!(driver.restoring.keys().collect::<Vec<_>>(), [&again], "only its own tenant's text is on disk");
        driver.step(32);
        let first_hit = |driver: &Driver, request| {
            driver.scheduler.sequences.get(&SequenceId { request, choice: 0 }).and_then(|one| one.prefix_hit)
        };
        assert_eq!(
            [other, again].map(|request| first_hit(&driver, request)),
            [Some(0), None],
            "it waits for its blocks"
        );
        driver.restore(again, usize::MAX);
        driver.step(32);
        assert_eq!(first_hit(&driver, again), Some(hit));
        driver.finish();
    }
}

#[test]
fn of_windows_only_the_last_ones_are_written() {
    let mut driver = Driver::new(scheduler(4), 1_000 * BYTES);
    let disk = Some(disk_root(1, 1));
    driver.submit(Request { groups: windowed(), disk, ..request(1, prompt(1, 320), 65) });
    driver.finish();
    let blocks = |group| driver.disk.keys().filter(|(.., of)| *of == group).count();
    // A token sees 40 positions of the second group and its own of the third: three blocks and none before each end. The prompt may be
    // used up to its last block, and up to the one before that.
    assert_eq!([0, 1, 2].map(blocks), [24, 3 + 1 + 3, 0]);
    let mut driver = restarted(driver);
    let again = driver.submit(Request { groups: windowed(), disk, ..request(1, prompt(1, 320), 2) });
    driver.restore(again, usize::MAX);
    driver.step(32);
    assert_eq!(driver.scheduler.prefix_hit(SequenceId { request: again, choice: 0 }), 304);
}

#[test]
fn restored_blocks_take_no_memory_from_others() {
    let mut driver = Driver::new(scheduler(4), 1_000 * BYTES);
    let new = |seed, tokens| Request { disk: Some(disk_root(1, 1)), ..request(1, prompt(seed, 320), tokens) };
    driver.submit(new(1, 1));
    driver.finish();
    let mut driver = restarted(driver);
    driver.room = 30 * BYTES;
    let running = driver.submit(new(2, 100));
    driver.steps(12);
    let waiting = driver.submit(new(1, 1));
    driver.restore(waiting, usize::MAX);
    let counts = driver.scheduler.counts();
    assert_eq!((counts.held_bytes, counts.cached_bytes), (21 * BYTES, 9 * BYTES), "as much as there is");
    driver.finish();
    assert_eq!((driver.scheduler.preempted, driver.served[&1].1), (0, 101), "{running}");
}

#[test]
fn the_rest_of_a_text_does_not_evict_its_beginning() {
    let mut driver = Driver::new(scheduler(4), 1_000 * BYTES);
    let new = |seed| Request { disk: Some(disk_root(1, 1)), ..request(1, prompt(seed, 320), 2) };
    driver.submit(new(1));
    driver.finish();
    driver.submit(new(2));
    driver.finish();
    // The end of the first text is evicted.
    driver.room = 30 * BYTES;
    driver.submit(request(2, vec![1], 1));
    driver.finish();
    let cached = driver.scheduler.models[&1].pool.blocks(0).in_use();
    assert!((21..40).contains(&cached), "{cached} blocks are left");
    let waiting = driver.submit(new(1));
    driver.restore(waiting, usize::MAX);
    driver.step(32);
    assert_eq!(driver.scheduler.prefix_hit(SequenceId { request: waiting, choice: 0 }), 304);
    driver.finish();
}

fn recurrent_request(prompt: Vec<u32>, max_tokens: u32) -> Request {
    Request { groups: recurrent(), ..request(1, prompt, max_tokens) }
}

/// Submits a request of a recurrent model and finishes it. Returns the prompt tokens that were cached.
fn cached_by(driver: &mut Driver, prompt: Vec<u32>) -> usize {
    let request = driver.submit(recurrent_request(prompt, 1));
    driver.step(32);
    let cached = driver.scheduler.prefix_hit(SequenceId { request, choice: 0 });
    driver.finish();
    cached
}

#[test]
fn a_sequence_leaves_states_at_the_end_of_its_prompt_and_at_its_newest_block() {
    let mut driver = Driver::new(scheduler(4), 1_000 * BYTES);
    let request = driver.submit(recurrent_request(prompt(1, 100), 28));
    driver.finish();
    let states = |driver: &Driver| driver.scheduler.models[&1].pool.blocks(2).in_use();
    assert_eq!(states(&driver), 2, "after 96 and 112 positions");
    let text = driver.expected[&SequenceId { request, choice: 0 }].clone();
    assert_eq!(cached_by(&mut driver, [text, prompt(2, 30)].concat()), 112);
    assert_eq!(cached_by(&mut driver, [prompt(1, 100), prompt(3, 30)].concat()), 96);
}

#[test]
fn a_beginning_that_two_prompts_share_gets_a_state() {
    let mut driver = Driver::new(scheduler(4), 1_000 * BYTES);
    let cached = [2, 3, 4].map(|seed| cached_by(&mut driver, [prompt(1, 70), prompt(seed, 40)].concat()));
    assert_eq!(cached, [0, 0, 64], "the second one leaves the state for the third");
}

#[test]
fn the_state_of_a_shared_beginning_outlives_those_of_single_texts() {
    let mut driver = Driver::new(scheduler(4), 1_000 * BYTES);
    let text = |seed| [prompt(1, 70), prompt(seed, 40)].concat();
    assert_eq!([2, 3].map(|seed| cached_by(&mut driver, text(seed))), [0, 0]);
    driver.scheduler.shrink(driver.scheduler.used_bytes() - BYTES);
    assert_eq!(cached_by(&mut driver, text(4)), 64);
}

#[test]
fn a_state_that_another_sequence_started_from_stays() {
    let mut driver = Driver::new(scheduler(4), 1_000 * BYTES);
    let first = driver.submit(recurrent_request(prompt(1, 20), 60));
    let id = SequenceId { request: first, choice: 0 };
    while driver.expected[&id].len() < 50 {
        driver.step(32);
    }
    let text = driver.expected[&id][..48].to_vec();
    let second = driver.submit(recurrent_request([text.clone(), prompt(2, 20)].concat(), 1));
    driver.finish();
    assert_eq!(
        driver.scheduler.models[&1].pool.blocks(2).in_use(),
        4,
        "after 16, 48 and 64 positions, and after 64 of the first"
    );
    assert_eq!(driver.served[&1].1, 61, "{second}");
    assert_eq!(cached_by(&mut driver, [text, prompt(3, 20)].concat()), 48);
}

#[test]
fn a_state_that_has_seen_a_rejected_token_is_dropped() {
    let mut driver = Driver::new(scheduler(2), 100 * BYTES);
    let request = driver.submit(recurrent_request(prompt(1, 17), 20));
    driver.steps(2);
    let id = SequenceId { request, choice: 0 };
    let next = |driver: &mut Driver, draft: Vec<u32>| {
        driver.scheduler.propose(id, draft);
        let rows = driver.scheduler.plan(driver.room, 32).batches.remove(0).rows;
        rows.into_iter().find(|row| row.sequence == id).unwrap()
    };
    let drafted = next(&mut driver, vec![5, 6, 7]);
    assert_eq!((drafted.start, drafted.draft, drafted.tokens[1..].to_vec()), (17, 3, vec![5, 6, 7]));
    driver.scheduler.commit(id, 2, &[5, 9]);
    let other = Request { tenant: 2, ..recurrent_request(prompt(2, 500), 1) };
    driver.scheduler.submit(other).unwrap();
    let again = next(&mut driver, vec![1, 2]);
    assert_eq!((again.start, again.draft, again.tokens[1..].to_vec()), (17, 0, vec![5, 9]));
    assert!(!again.is_prefill() && again.again == 2, "it does not wait for the other tenant's prompt");
    assert_eq!(again.state.unwrap().read, drafted.state.unwrap().read, "the state before the draft");
    driver.scheduler.commit(id, 3, &[10]);
    let whole = next(&mut driver, vec![1, 2]);
    assert_eq!((whole.start, whole.draft), (20, 2));
    assert_eq!(whole.state.unwrap().read, Some(again.state.unwrap().write));
    driver.scheduler.commit(id, 3, &[1, 2, 11]);
    assert_eq!(next(&mut driver, vec![]).start, 23);
}

#[test]
fn a_fully_cached_prompt_still_gives_logits() {
    let mut driver = Driver::new(scheduler(4), 1_000 * BYTES);
    for _ in 0..2 {
        driver.submit(request(1, prompt(1, 3 * BLOCK), 1));
        driver.finish();
    }
    assert_eq!(driver.served[&1].1, 2);
}

#[test]
fn tokens_are_shared_equally_between_tenants_with_work() {
    for (many, few) in [(200, 40), (40, 200)] {
        let mut driver = Driver::new(scheduler(8), 10_000 * BYTES);
        for at in 0..many {
            driver.submit(request(1, prompt(at, 50), 64));
        }
        driver.steps(20);
        driver.served.clear();
        for at in 0..few {
            driver.submit(request(2, prompt(300 + at, 50), 64));
        }
        driver.steps(300);
        let total = |tenant| driver.served[&tenant].0 + 2 * driver.served[&tenant].1;
        let ratio = total(1) as f64 / total(2) as f64;
        assert!((0.9..1.1).contains(&ratio), "{ratio}: {:?}", driver.served);
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
        driver.served.get(&2).is_some_and(|served| served.1 > 0)
    });
    assert_eq!(steps, Some(2), "60 prompt tokens in chunks of 32");
    driver.cancel(one);
}

#[test]
fn a_long_prompt_delays_decoding_by_one_chunk_at_most() {
    let mut driver = Driver::new(scheduler(8), 10_000 * BYTES);
    driver.submit(request(1, prompt(1, 4), 100));
    driver.step(32);
    driver.submit(request(1, prompt(2, 2_000), 1));
    for _ in 0..62 {
        let before = driver.served[&1].1;
        driver.step(32);
        assert_eq!(driver.served[&1].1, before + 1);
    }
}

#[test]
fn the_queue_is_bounded_by_model_and_by_tenant() {
    let limits = Limits { running: 0, choices: 6, tokens: 600, tenant_divisor: 2, logits: 64 };
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
    assert!(scheduler.submit(Request { model: 2, ..small(1) }).is_ok(), "another model has its own queue");
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
    // Two of the three are accepted.
    driver.scheduler.commit(id, 3, &[5, 6, 9]);
    let row = driver.scheduler.plan(driver.room, 32).batches.remove(0).rows.remove(0);
    assert_eq!((row.tokens, row.start, row.draft), (vec![9], 23, 0));
}

#[test]
fn a_request_that_cannot_fit_alone_is_reported_as_stuck() {
    let mut driver = Driver::new(scheduler(2), 3 * BYTES);
    let id = driver.submit(request(1, prompt(1, 100), 20));
    let plan = driver.scheduler.plan(driver.room, 32);
    assert_eq!(plan.stuck, Some(SequenceId { request: id, choice: 0 }));
    assert!(plan.memory_short && plan.batches.is_empty());
}

#[test]
fn choices_count_in_the_queue() {
    let limits = Limits { running: 0, choices: 6, tokens: 600, tenant_divisor: 1, logits: 64 };
    let mut scheduler = Scheduler::new(limits);
    let many = |choices| Request { choices, ..request(1, prompt(1, 10), 1) };
    assert_eq!(scheduler.submit(many(16)), Ok(1), "an empty queue takes any request");
    assert_eq!(scheduler.submit(many(1)), Err(Full::Model));
    scheduler.cancel(1);
    assert_eq!(scheduler.submit(many(4)), Ok(2));
    assert_eq!(scheduler.submit(many(3)), Err(Full::Model));
    assert_eq!(scheduler.submit(many(2)), Ok(3));
}

#[test]
fn a_new_bound_of_the_queue_applies_to_new_requests() {
    let limits = Limits { running: 0, choices: 2, tokens: 600, tenant_divisor: 1, logits: 64 };
    let mut scheduler = Scheduler::new(limits);
    let small = || request(1, prompt(1, 10), 1);
    assert_eq!([1, 2].map(|_| scheduler.submit(small())), [Ok(1), Ok(2)]);
    assert_eq!(scheduler.submit(small()), Err(Full::Model));
    scheduler.set_max_choices(3);
    assert_eq!(scheduler.submit(small()), Ok(3));
    scheduler.set_max_choices(1);
    assert_eq!(scheduler.submit(small()), Err(Full::Model));
    assert_eq!(scheduler.counts().queued, 3, "requests that wait stay");
    assert_eq!(scheduler.new_empty().limits.choices, 1, "the bound survives a reset");
}

/// `cargo test --release --lib step_cost -- --ignored --nocapture`
#[test]
#[ignore = "prints figures"]
#[expect(clippy::disallowed_methods, reason = "measures")]
fn step_cost_by_waiting_choices() {
    for waiting in [10, 1_000, 10_000] {
        let limits = Limits { running: 32, choices: 20_000, tokens: usize::MAX, tenant_divisor: 1, logits: 64 };
        let mut scheduler = Scheduler::new(limits);
        for tenant in 0..32 + waiting {
            scheduler.submit(request(u128::from(tenant % 100), prompt(tenant, 32), 1_000)).unwrap();
        }
        let mut times: Vec<_> = (0..400)
            .map(|_| {
                let began = std::time::Instant::now();
                let chunk = if scheduler.decoding() > 0 { 256 } else { 512 };
                let plan = scheduler.plan(u64::MAX, chunk + scheduler.prefilling());
                for row in plan.batches.into_iter().flat_map(|batch| batch.rows) {
                    let new: &[u32] = if row.logits == LogitsAt::None { &[] } else { &[1] };
                    scheduler.commit(row.sequence, row.tokens.len(), new);
                }
                began.elapsed()
            })
            .collect();
        times.sort();
        println!("{waiting} waiting choices: {:?} a step (median), {:?} (p99)", times[200], times[396]);
    }
}
