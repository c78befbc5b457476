//! Whatever several nodes do, they have no more than what one bucket holds and refills.

use std::time::Duration;

use proptest::prelude::*;

use super::super::buckets::Buckets;
use super::super::lease::{Lease, Refusal};
use super::super::shared_levels::{self, BucketDemand, Demand, Grant};
use super::super::token_bucket::{BucketSize, PARTS_PER_TOKEN, TokenBucket};
use crate::clock_rng::Timestamp;
use crate::storage::limits::LevelsRecord;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A request of so many tokens.
    Take(usize, u64),
    /// A request turns out to have cost so many tokens more, or fewer if negative.
    Settle(usize, i128),
    /// An exchange that no request waits for.
    Exchange(usize),
    /// An exchange that the database carries out, but whose answer is lost.
    LoseAnswer(usize),
    /// The node is killed and starts again.
    Kill(usize),
    Pass(u64),
}

fn steps(nodes: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0..nodes, 1..300_u64).prop_map(|(node, amount)| Step::Take(node, amount)),
        3 => (0..nodes, -100..100_i128).prop_map(|(node, amount)| Step::Settle(node, amount)),
        3 => (0..nodes).prop_map(Step::Exchange),
        1 => (0..nodes).prop_map(Step::LoseAnswer),
        1 => (0..nodes).prop_map(Step::Kill),
        4 => (0..3000_u64).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 1..200)
}

struct Cluster {
    size: BucketSize,
    nodes: Vec<Lease>,
    levels: Option<LevelsRecord>,
    millis: u64,
    /// Tokens that requests have used, in parts.
    used: i128,
}

impl Cluster {
    fn new(size: BucketSize, nodes: usize) -> Self {
        let node = Lease::new(TokenBucket::full(size, Duration::ZERO));
        Self { size, nodes: vec![node; nodes], levels: None, millis: 0, used: 0 }
    }

    fn uptime(&self) -> Duration {
        Duration::from_millis(self.millis)
    }

    fn demand(&mut self, node: usize) -> (BucketDemand, Grant) {
        let now = self.uptime();
        let demand = self.nodes[node].demand(now);
        let wall_clock = Timestamp::from_millis(1000 + i64::try_from(self.millis).unwrap());
        let all: Demand = Buckets { requests: Some(demand), ..Buckets::default() };
        let (levels, grant) = shared_levels::exchange(&all, wall_clock, self.levels);
        self.levels = Some(levels);
        (demand, grant)
    }

    fn exchange(&mut self, node: usize) {
        let (demand, grant) = self.demand(node);
        let now = self.uptime();
        self.nodes[node].answer(&grant.requests.unwrap(), demand.size, now);
    }

    /// Takes a token amount, with an exchange if that is needed. Returns whether it was there.
    fn take(&mut self, node: usize, amount: u64) -> bool {
        for _ in 0..2 {
            let now = self.uptime();
            match self.nodes[node].take(amount, now) {
                Ok(()) => {
                    self.used += i128::from(amount) * PARTS_PER_TOKEN;
                    return true;
                }
                Err(Refusal::Wait(_)) => return false,
                Err(Refusal::NeedsLease) => self.exchange(node),
            }
        }
        false
    }

    fn run(&mut self, step: Step) {
        let now = self.uptime();
        match step {
            Step::Take(node, amount) => drop(self.take(node, amount)),
            Step::Settle(node, amount) => {
                self.nodes[node].settle(amount, now);
                self.used += amount * PARTS_PER_TOKEN;
            }
            Step::Exchange(node) => self.exchange(node),
            Step::LoseAnswer(node) => {
                self.demand(node);
                self.nodes[node].stop_waiting();
            }
            // A debt would be lost as well.
            Step::Kill(node) if self.nodes[node].is_due(Duration::ZERO) => self.exchange(node),
            Step::Kill(node) => self.nodes[node] = Lease::new(TokenBucket::full(self.size, now)),
            Step::Pass(millis) => self.millis += millis,
        }
    }

    fn level(&self) -> i128 {
        self.levels.map_or(self.size.capacity_parts(), |levels| levels.requests.unwrap())
    }

    /// What the nodes have given away and can still give away without another refill.
    fn total(&self) -> i128 {
        let now = self.uptime();
        let held = |node: &Lease| -> i128 {
            let demand = { *node }.demand(now);
            demand.held + demand.returned - demand.debt
        };
        self.used + self.level() + self.nodes.iter().map(held).sum::<i128>()
    }

    fn max(&self) -> i128 {
        self.size.capacity_parts() + self.size.inflow(self.uptime())
    }
}

fn sizes() -> impl Strategy<Value = BucketSize> {
    (1..100_000_u64, 1..1000_u64).prop_map(|(rate, capacity)| BucketSize { rate, capacity })
}

proptest! {
    #[test]
    fn all_nodes_together_never_have_more_than_one_bucket(size in sizes(), steps in steps(3)) {
        let mut cluster = Cluster::new(size, 3);
        for step in steps {
            cluster.run(step);
            prop_assert!(cluster.total() <= cluster.max(), "after {step:?}");
            prop_assert!(cluster.level() <= size.capacity_parts());
        }
    }

    #[test]
    fn idle_leases_go_back(size in sizes(), steps in steps(3)) {
        let mut cluster = Cluster::new(size, 3);
        steps.into_iter().for_each(|step| cluster.run(step));
        // The first round may still fill up leases.
        for _ in 0..2 {
            cluster.run(Step::Pass(3000));
            (0..3).for_each(|node| cluster.exchange(node));
        }
        let (now, total) = (cluster.uptime(), cluster.total());
        prop_assert!(cluster.nodes.iter().all(|node| !node.is_due(now)));
        prop_assert_eq!(total - cluster.used, cluster.level(), "nothing is outside the bucket");
    }

    #[test]
    fn nodes_that_are_always_busy_admit_nearly_all_that_one_would(size in sizes(), count in 1..4_usize, seconds in 1..20_u64) {
        let mut cluster = Cluster::new(size, count);
        let mut admitted = 0_i128;
        for _ in 0..seconds * 20 {
            for node in 0..count {
                while cluster.take(node, 1) {
                    admitted += 1;
                }
            }
            cluster.run(Step::Pass(51));
        }
        let max = size.capacity_parts() + size.inflow(cluster.uptime());
        // A lease, and what refills between two steps.
        let idle = size.inflow(Duration::from_secs(1)).max(PARTS_PER_TOKEN) + PARTS_PER_TOKEN;
        let idle = i128::try_from(count).unwrap() * idle + size.inflow(Duration::from_millis(51));
        // What does not fit into a bucket that is smaller than a step is lost to one process as well.
        let fits = size.inflow(Duration::from_millis(51)) <= size.capacity_parts();
        prop_assert!(admitted * PARTS_PER_TOKEN <= max);
        prop_assert!(!fits || admitted * PARTS_PER_TOKEN >= max - idle, "{} of {}", admitted, max / PARTS_PER_TOKEN);
    }
}
