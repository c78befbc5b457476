//! Which target gets a request, and that failing targets are avoided.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use serde_json::json;

use crate::fake_target::{FakeTarget, chunk};
use crate::server::Server;
use crate::{chat_body, server_with, server_with_settings, wait};

/// An address at which nothing listens.
fn dead() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn chat(server: &Server) -> u16 {
    server.post("/v1/chat/completions", &chat_body(json!({}))).status
}

#[test]
fn another_target_is_tried_before_the_first_byte() {
    let failing = FakeTarget::start(|_, _, reply| reply.status(500, "", "{}"));
    let closing = FakeTarget::start(|_, _, _| ());
    let good = FakeTarget::chatting("ok");
    for bad in [dead(), failing.address, closing.address] {
        let server = server_with(&[bad, good.address]);
        assert!((0..4).all(|_| chat(&server) == 200));
    }
    assert!(failing.count() > 0 && closing.count() > 0);
}

#[test]
fn a_target_that_fails_gets_no_more_requests_for_a_while() {
    let failing = FakeTarget::start(|_, _, reply| reply.status(500, "", "{}"));
    let good = FakeTarget::chatting("ok");
    let server = server_with(&[failing.address, good.address]);
    for _ in 0..30 {
        assert_eq!(chat(&server), 200);
    }
    // Five failures open the breaker. On a slow machine, a few requests have tried the target since.
    assert!((5..15).contains(&failing.count()), "{}", failing.count());
    // The longest wait is over: one request tries it again, which its client does not notice.
    let before = failing.count();
    server.clock.pass(std::time::Duration::from_secs(60));
    assert_eq!((chat(&server), failing.count()), (200, before + 1));
}

#[test]
fn running_requests_are_spread_and_limited() {
    let release = Arc::new(AtomicBool::new(false));
    let holding = || {
        let release = Arc::clone(&release);
        FakeTarget::start(move |_, _, reply| {
            reply.begin_events();
            reply.event(&chunk("a", None));
            wait::until(|| "the test goes on", || release.load(Ordering::SeqCst));
            reply.event(&chunk("b", Some("stop")));
            reply.raw("data: [DONE]\n\n");
        })
    };
    let targets = [holding(), holding()];
    let server =
        server_with_settings("kind = \"chat\"", &[targets[0].address, targets[1].address], "max_outstanding = 2\n");
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..4)
            .map(|number| {
                let thread = scope.spawn(|| chat(&server));
                wait::until(|| "the request is sent", || targets[0].count() + targets[1].count() == number + 1);
                thread
            })
            .collect();
        assert_eq!(targets.each_ref().map(FakeTarget::count), [2, 2]);
        let metrics = server.get("/metrics").text;
        let line = format!("outpost_upstream_requests_running{{model=\"remote\",target=\"{}\"}} 2", targets[1].address);
        assert!(metrics.contains(&line), "{metrics}");
        // The second target may have two requests, the first one more than that.
        assert_eq!(targets[0].count() + targets[1].count(), 4);
        release.store(true, Ordering::SeqCst);
        assert!(running.into_iter().all(|thread| thread.join().unwrap() == 200));
    });
}

#[test]
fn a_full_model_refuses_at_once() {
    let (release, held) = mpsc::channel::<()>();
    let held = Mutex::new(held);
    let target = FakeTarget::start(move |_, _, reply| {
        reply.begin_events();
        held.lock().unwrap().recv().unwrap();
        reply.event(&chunk("b", Some("stop")));
    });
    let server = server_with_settings("kind = \"chat\"", &[target.address], "max_outstanding = 1\n");
    std::thread::scope(|scope| {
        let running = scope.spawn(|| chat(&server));
        wait::until(|| "the request is sent", || target.count() == 1);
        let refused = server.post("/v1/chat/completions", &chat_body(json!({})));
        assert_eq!((refused.error_fields().1.as_str(), refused.header("retry-after")), ("overloaded", Some("1")));
        release.send(()).unwrap();
        assert_eq!(running.join().unwrap(), 200);
    });
    assert_eq!(target.count(), 1);
}

#[test]
fn no_request_fails_when_a_target_dies_under_load() {
    const CLIENTS: usize = 8;
    const REQUESTS: usize = 25;
    let is_dead = Arc::new(AtomicBool::new(false));
    let dies = Arc::clone(&is_dead);
    // Before its first byte, it closes every connection.
    let mortal = FakeTarget::start(move |_, _, reply| {
        if !dies.load(Ordering::SeqCst) {
            reply.chat(&["a"], None);
        }
    });
    let healthy = FakeTarget::chatting("a");
    let server = server_with(&[mortal.address, healthy.address]);
    let (done, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                for _ in 0..REQUESTS {
                    if chat(&server) != 200 {
                        failed.fetch_add(1, Ordering::SeqCst);
                    }
                    if done.fetch_add(1, Ordering::SeqCst) == CLIENTS * REQUESTS / 4 {
                        is_dead.store(true, Ordering::SeqCst);
                    }
                }
            });
        }
    });
    assert_eq!((failed.into_inner(), done.into_inner()), (0, CLIENTS * REQUESTS));
    assert!(mortal.count() > 0 && healthy.count() > CLIENTS * REQUESTS / 2);
}
