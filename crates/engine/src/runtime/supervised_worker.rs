//! The compute thread. It runs the workloads in turn, round after round, and recovers a workload that panics.
//!
//! After a panic, state is rebuilt and not reused. The requests that may be affected fail with a 500, their state is
//! dropped, and a new scheduler starts with the requests that had not started. A queue whose lock was poisoned is reset
//! by the next caller that takes the lock. `/readyz` is 503 until the workload works again, and
//! `outpost_workload_panics_total` counts the panics. The threads of jobs catch their own panics, because the compute
//! thread waits for them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::workload::Workload;
use super::{DeviceCheck, Runtime, ShutdownPhase};
use crate::error::Failure;

pub struct Worker {
    runtime: Arc<Runtime>,
    workloads: Vec<Supervised>,
    /// The workload that is next if only one besides the first may compute.
    next: usize,
    device_check: DeviceCheck,
}

/// A workload and its health.
struct Supervised {
    workload: Box<dyn Workload>,
    /// It panicked, and its recovery panicked too.
    is_down: bool,
}

impl Worker {
    /// The first workload computes in every round. While it has something to do, only one of the others computes in a round, in
    /// turn: the time between two tokens of a text must not grow with the number of workloads.
    pub fn new(runtime: Arc<Runtime>, workloads: Vec<Box<dyn Workload>>, device_check: DeviceCheck) -> Self {
        let supervised = |workload| Supervised { workload, is_down: false };
        Self { runtime, workloads: workloads.into_iter().map(supervised).collect(), next: 0, device_check }
    }

    /// Runs until the engine is closed.
    pub fn run(mut self) {
        let mut idle = true;
        loop {
            let poll = self.workloads.iter().any(|one| one.is_down || one.workload.needs_polling());
            let phase = self.runtime.wait(idle, poll);
            idle = !self.round(phase);
            if phase == ShutdownPhase::Closed {
                return;
            }
        }
    }

    /// Gives the workloads a turn. `false`: none had anything to do.
    fn round(&mut self, phase: ShutdownPhase) -> bool {
        let mut busy = false;
        if let Some((first, others)) = self.workloads.split_first_mut() {
            let has_texts = first.turn(&self.runtime, phase, busy, true);
            busy = has_texts;
            // Without texts the order is fixed: a workload must know whether those before it have computed.
            let (count, start) = (others.len(), if has_texts { self.next } else { 0 });
            let mut has_computed = false;
            for index in (0..count).map(|offset| (start + offset) % count) {
                let may_compute = !(has_texts && has_computed);
                let computed =
                    others.get_mut(index).is_some_and(|one| one.turn(&self.runtime, phase, busy, may_compute));
                if computed && !has_computed {
                    self.next = (index + 1) % count;
                }
                has_computed |= computed;
                busy |= computed;
            }
        }
        let down = self.workloads.iter().filter(|one| one.is_down).count();
        self.runtime.set_down(down);
        self.runtime.check_device(&self.device_check);
        busy
    }
}

impl Supervised {
    fn turn(&mut self, runtime: &Runtime, phase: ShutdownPhase, busy: bool, may_compute: bool) -> bool {
        if self.is_down && !self.recover(runtime) {
            return false;
        }
        let workload = &mut self.workload;
        let turn = || {
            if phase > ShutdownPhase::Running {
                workload.fail(&Failure::ShuttingDown, phase >= ShutdownPhase::Aborting);
            }
            workload.sweep();
            phase < ShutdownPhase::Closed && may_compute && workload.step(busy)
        };
        catch_unwind(AssertUnwindSafe(turn)).unwrap_or_else(|_| {
            let name = self.workload.name();
            tracing::error!(workload = name, "a workload panicked; its requests fail and it restarts");
            runtime.metrics.panic(name);
            runtime.set_down(1);
            self.recover(runtime);
            true
        })
    }

    /// `false`: it panicked again, and the next round retries.
    fn recover(&mut self, runtime: &Runtime) -> bool {
        let workload = &mut self.workload;
        let recovered = catch_unwind(AssertUnwindSafe(|| workload.recover(&Failure::panicked()))).is_ok();
        if !recovered {
            runtime.metrics.panic(self.workload.name());
        }
        self.is_down = !recovered;
        recovered
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::runtime::DeviceInfo;
    use crate::runtime::metrics::Metrics;
    use crate::settings::Settings;
    use outpost_common::clock_rng::StoppedClock;
    use outpost_models::ModelError;

    /// A workload that counts its steps, and has something to do or not.
    struct Steps(Arc<std::sync::Mutex<Vec<&'static str>>>, &'static str, Arc<AtomicBool>);

    impl Workload for Steps {
        fn name(&self) -> &'static str {
            self.1
        }

        fn sweep(&mut self) {}

        fn step(&mut self, _: bool) -> bool {
            let works = self.2.load(Ordering::SeqCst);
            if works {
                self.0.lock().unwrap().push(self.1);
            }
            works
        }

        fn fail(&mut self, _: &Failure, _: bool) {}

        fn recover(&mut self, _: &Failure) {}
    }

    #[test]
    fn other_workloads_take_turns_beside_texts_and_all_compute_without() {
        let settings = Settings::new(std::path::Path::new("."), 1 << 20);
        let device = DeviceInfo { index: 0, name: "cpu".to_owned() };
        let runtime =
            Arc::new(Runtime::new(settings, device, Arc::new(Metrics::new(Vec::new(), [])), Arc::new(StoppedClock)));
        let (steps, has_texts) = (Arc::default(), Arc::new(AtomicBool::new(true)));
        let always = Arc::new(AtomicBool::new(true));
        let workloads: Vec<Box<dyn Workload>> = vec![
            Box::new(Steps(Arc::clone(&steps), "text", Arc::clone(&has_texts))),
            Box::new(Steps(Arc::clone(&steps), "idle", Arc::default())),
            Box::new(Steps(Arc::clone(&steps), "speech", Arc::clone(&always))),
            Box::new(Steps(Arc::clone(&steps), "image", always)),
        ];
        let mut worker = Worker::new(runtime, workloads, Box::new(|| Ok(())));
        let mut rounds = |count| {
            steps.lock().unwrap().clear();
            (0..count).for_each(|_| assert!(worker.round(ShutdownPhase::Running)));
            std::mem::take(&mut *steps.lock().unwrap())
        };
        assert_eq!(rounds(3), ["text", "speech", "text", "image", "text", "speech"]);
        has_texts.store(false, Ordering::SeqCst);
        assert_eq!(rounds(1).len(), 2);
    }

    #[test]
    fn a_device_that_fails_its_check_is_lost_until_a_check_succeeds() {
        let settings = Settings::new(std::path::Path::new("."), 1 << 20);
        let device = DeviceInfo { index: 0, name: "cuda:0".to_owned() };
        let runtime =
            Arc::new(Runtime::new(settings, device, Arc::new(Metrics::new(Vec::new(), [])), Arc::new(StoppedClock)));
        let works = Arc::new(AtomicBool::new(true));
        let own = Arc::clone(&works);
        let check = move || if own.load(Ordering::SeqCst) { Ok(()) } else { Err("it fell off the bus".to_owned()) };
        let mut worker = Worker::new(Arc::clone(&runtime), Vec::new(), Box::new(check));
        let mut lost_after = |error: ModelError, device_works: bool| {
            works.store(device_works, Ordering::SeqCst);
            let failure = runtime.model_failure("model", &error);
            assert_eq!(matches!(failure, Failure::Device { .. }), matches!(error, ModelError::Device(_)));
            worker.round(ShutdownPhase::Running);
            runtime.is_device_lost()
        };
        let out_of_memory = || ModelError::Device("out of memory".to_owned());
        assert!(!lost_after(ModelError::Compute("a bug".to_owned()), false), "only errors of the device are checked");
        assert!(!lost_after(out_of_memory(), true), "the device works again");
        assert!(lost_after(out_of_memory(), false));
        assert!(lost_after(ModelError::Compute("a bug".to_owned()), true), "it is not checked again without an error");
        assert!(!lost_after(out_of_memory(), true));
    }
}
