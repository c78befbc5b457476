//! Limiters as requests use them.

use std::sync::atomic::Ordering::SeqCst;

use futures_util::FutureExt as _;

use super::*;

#[tokio::test]
async fn a_request_does_not_ask_the_database_while_the_lease_lasts() {
    let nodes = Nodes::new(1, requests(6000, 6000));
    assert!(nodes.is_admitted(0).await);
    assert_eq!(nodes.exchanges(), 1);
    // The lease is a hundred. Below a quarter of it, the next one is asked for before it is needed.
    for _ in 0..74 {
        assert!(nodes.is_admitted(0).await);
    }
    assert_eq!(nodes.exchanges(), 1);
    *nodes.database.is_slow.lock().unwrap() = true;
    for _ in 0..25 {
        assert!(nodes.admit(0).now_or_never().is_some(), "it does not wait");
    }
    assert_eq!(nodes.exchanges(), 2);
    nodes.database.answer_all();
    assert!(nodes.admit(0).now_or_never().is_some());
}

#[tokio::test]
async fn requests_that_wait_share_an_exchange() {
    let nodes = Nodes::new(1, requests(60, 60));
    *nodes.database.is_slow.lock().unwrap() = true;
    let all = futures_util::future::join_all((0..20).map(|_| nodes.is_admitted(0)));
    let answer = async {
        loop {
            nodes.database.answer_all();
            tokio::task::yield_now().await;
        }
    };
    let admitted: Vec<bool> = tokio::select! {
        admitted = all => admitted,
        () = answer => unreachable!(),
    };
    assert!(admitted.into_iter().all(|admitted| admitted));
    // One for the first request, one for those that came meanwhile, and perhaps more for the last of them.
    assert!((2..=4).contains(&nodes.exchanges()), "{}", nodes.exchanges());
    assert_eq!(nodes.admit(0).now_or_never().map(drop), None, "nothing is left in the lease");
}

#[tokio::test]
async fn busy_nodes_admit_together_what_one_would() {
    const SECONDS: u64 = 60;
    let nodes = Nodes::new(3, requests(6000, 500));
    let mut admitted = [0; 3];
    for _ in 0..SECONDS * 10 {
        for (node, count) in admitted.iter_mut().enumerate() {
            *count += nodes.admit_all(node).await;
        }
        nodes.clock.pass(100);
        nodes.exchange_leases();
    }
    let (total, max) = (admitted.iter().sum::<u64>(), 500 + SECONDS * 100);
    assert!((max - 3 * 100..=max).contains(&total), "{admitted:?} of {max}");
    // At most what was asked in the first place and 20 a second of each node.
    assert!(nodes.exchanges() < 20 * 3 * usize::try_from(SECONDS).unwrap(), "{}", nodes.exchanges());
}

#[tokio::test]
async fn a_refusal_tells_when_there_is_enough() {
    let nodes = Nodes::new(2, requests(60, 2));
    assert!(nodes.is_admitted(0).await && nodes.is_admitted(1).await);
    for node in [0, 1] {
        let (status, refused) = nodes.admit(node).await.unwrap();
        assert_eq!(refused.unwrap_err().wait(), Some(Duration::from_secs(1)));
        let status = status.requests.unwrap();
        assert_eq!((status.limit, status.remaining, status.reset), (60, 0, Duration::from_secs(2)));
    }
    let asked = nodes.exchanges();
    assert_eq!(nodes.admit_all(0).await, 0);
    assert_eq!(nodes.exchanges(), asked, "the last answer is enough to refuse");
    nodes.clock.pass(1000);
    assert!(nodes.is_admitted(1).await);
    assert!(!nodes.is_admitted(0).await);
}

#[tokio::test]
async fn the_status_is_that_of_the_shared_bucket() {
    let nodes = Nodes::new(2, requests(6000, 1000));
    for expected in (990..1000).rev() {
        let status = nodes.admit(0).await.unwrap().0.requests.unwrap();
        assert_eq!((status.limit, status.remaining), (6000, expected));
    }
    // Of the other node's lease only what is left in the bucket is known here.
    let status = nodes.admit(1).await.unwrap().0.requests.unwrap();
    assert_eq!(status.remaining, 1000 - 100 - 1);
    nodes.clock.pass(60_000);
    assert_eq!(nodes.limiters[1].status().requests.unwrap().remaining, 1000);
}

#[tokio::test]
async fn a_debt_of_one_node_holds_on_the_others() {
    let nodes = Nodes::new(2, tokens(600));
    nodes.take_tokens(0, 10).await.unwrap();
    // The request has generated 690 tokens.
    nodes.limiters[0].settle_tokens(10, 700, true);
    nodes.clock.pass(500);
    nodes.exchange_leases();
    let refused = nodes.take_tokens(1, 1).await.unwrap_err();
    assert_eq!(refused.code(), Code::RateLimited);
    let wait = refused.wait().unwrap();
    assert!((Duration::from_secs(9)..=Duration::from_secs(11)).contains(&wait), "{wait:?}");
    let status = nodes.limiters[0].status().tokens.unwrap();
    assert_eq!(status.remaining, 0);
    nodes.clock.pass(11_000);
    nodes.take_tokens(1, 1).await.unwrap();
}

#[tokio::test]
async fn a_prompt_above_the_capacity_needs_a_full_bucket_on_any_node() {
    let nodes = Nodes::new(2, tokens(60));
    nodes.take_tokens(0, 100).await.unwrap();
    assert_eq!(nodes.take_tokens(1, 1).await.unwrap_err().wait(), Some(Duration::from_secs(41)));
    nodes.clock.pass(99_000);
    assert!(nodes.take_tokens(1, 100).await.is_err());
    nodes.clock.pass(2_000);
    nodes.take_tokens(1, 100).await.unwrap();
}

#[tokio::test]
async fn an_unused_lease_is_there_for_other_nodes_after_two_seconds() {
    let nodes = Nodes::new(2, requests(600, 40));
    assert!(nodes.is_admitted(0).await, "the first node has a lease of ten");
    assert_eq!(nodes.admit_all(1).await, 30);
    nodes.clock.pass(2000);
    nodes.exchange_leases();
    // Nine, and what has been refilled in two seconds.
    assert_eq!(nodes.admit_all(1).await, 9 + 20);
}

#[tokio::test]
async fn a_killed_node_loses_its_lease_only() {
    let mut nodes = Nodes::new(2, requests(600, 40));
    assert!(nodes.is_admitted(0).await);
    nodes.limiters.remove(0);
    nodes.clock.pass(2000);
    nodes.exchange_leases();
    assert_eq!(nodes.admit_all(0).await, 30 + 10, "ten of the twenty that were refilled fit into the bucket");
}

#[tokio::test]
async fn a_node_that_stops_returns_its_leases() {
    let nodes = Nodes::new(2, requests(600, 40));
    assert!(nodes.is_admitted(0).await);
    nodes.limiters[0].return_leases().await.unwrap();
    assert_eq!(nodes.admit_all(1).await, 39);
}

#[tokio::test]
async fn a_changed_limit_adds_nothing() {
    let nodes = Nodes::new(2, requests(600, 40));
    assert!(nodes.is_admitted(0).await);
    assert_eq!(nodes.admit_all(1).await, 30);
    // As the transaction of the change does.
    let sizes = (requests(600, 40), requests(6000, 400));
    let sizes = (super::super::Buckets::sizes(&sizes.0), super::super::Buckets::sizes(&sizes.1));
    let levels = *nodes.database.levels.lock().unwrap();
    *nodes.database.levels.lock().unwrap() = Some(shared_levels::with_new_rates(levels, sizes, nodes.clock.now()));
    nodes.load(0, requests(6000, 400));
    nodes.load(1, requests(6000, 400));
    assert_eq!(nodes.admit_all(1).await, 0);
    assert_eq!(nodes.admit_all(0).await, 9, "what it had leased goes through the bucket");
    nodes.clock.pass(1000);
    assert_eq!(nodes.admit_all(0).await + nodes.admit_all(1).await, 100);
    // A smaller bucket takes no more than it holds.
    assert!(!nodes.is_admitted(0).await);
    nodes.clock.pass(10_000);
    assert!(nodes.is_admitted(0).await, "it has a lease again");
    nodes.load(0, requests(60, 1));
    assert_eq!(nodes.admit_all(0).await, 1);
}

#[tokio::test]
async fn a_rate_that_was_changed_counts_from_then_on() {
    let at = Timestamp::from_millis(1_700_000_000_000);
    let size = |rates: Rates| super::super::Buckets::sizes(&rates);
    let old = LevelsRecord { at, requests: Some(0), tokens: None, audio: Some(5) };
    let later = at.after(Duration::from_secs(60));
    let new = shared_levels::with_new_rates(Some(old), (size(requests(2, 10)), size(requests(600, 600))), later);
    let two = 2 * super::super::token_bucket::PARTS_PER_TOKEN;
    assert_eq!(new, LevelsRecord { at: later, requests: Some(two), tokens: None, audio: None });
    let full = shared_levels::with_new_rates(None, (size(requests(2, 2)), size(requests(600, 600))), later);
    assert_eq!(full.requests, Some(two));
    assert_eq!(shared_levels::with_new_rates(None, (size(tokens(5)), size(requests(2, 2))), later).requests, None);
}

#[tokio::test]
async fn a_lost_database_is_reported_and_debts_stay() {
    let nodes = Nodes::new(2, tokens(600));
    nodes.take_tokens(0, 10).await.unwrap();
    *nodes.database.is_lost.lock().unwrap() = true;
    nodes.limiters[0].settle_tokens(10, 700, true);
    nodes.exchange_leases();
    let failed = nodes.take_tokens(1, 1).await.unwrap_err();
    assert_eq!(failed.code(), Code::StorageUnavailable);
    *nodes.database.is_lost.lock().unwrap() = false;
    nodes.exchange_leases();
    assert_eq!(nodes.take_tokens(1, 1).await.unwrap_err().code(), Code::RateLimited);
    // A request that waits is told as well.
    let nodes = Nodes::new(1, requests(60, 60));
    *nodes.database.is_slow.lock().unwrap() = true;
    let lose = async {
        *nodes.database.is_lost.lock().unwrap() = true;
        nodes.database.answer_all();
    };
    let (admitted, ()) = tokio::join!(nodes.admit(0), lose);
    assert_eq!(admitted.unwrap_err().code(), Code::StorageUnavailable);
}

#[tokio::test]
async fn a_project_without_limits_never_asks() {
    let nodes = Nodes::new(1, Rates::default());
    for _ in 0..10 {
        assert!(nodes.is_admitted(0).await);
        nodes.take_tokens(0, 1000).await.unwrap();
        nodes.exchange_leases();
    }
    assert_eq!(nodes.database.exchanges.load(SeqCst), 0);
}

#[tokio::test]
async fn a_request_that_costs_nothing_waits_for_a_debt_only() {
    let nodes = Nodes::new(2, tokens(600));
    nodes.take_tokens(0, 0).await.unwrap();
    assert_eq!(nodes.exchanges(), 0);
    nodes.take_tokens(0, 10).await.unwrap();
    nodes.limiters[0].settle_tokens(10, 700, true);
    assert!(nodes.take_tokens(0, 0).await.is_err());
    nodes.clock.pass(20_000);
    nodes.take_tokens(0, 0).await.unwrap();
}
