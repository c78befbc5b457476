//! Which picture is painted next: a pure state machine.
//!
//! Pictures are painted one after the other, each as fast as it goes; it is the turn of the tenant who was served the
//! least, and of his requests of the one that was. A newcomer begins where the least served of those who wait stands.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::strokes::{Sender, Watch, way};
use super::{ImageModel, Painting, PromptIds, Strokes};
use crate::engine::request::Failure;
use crate::engine::schedule::{RequestId, Tenant};
use crate::models::diffusion::pipeline::PromptEmbeds;

/// How much the newest picture counts in the speed of late.
const NEWEST: f64 = 0.3;
/// Finished pictures of a request that may wait for its reader before the next one is painted.
const AHEAD: usize = 2;

/// A request, and how far it has come.
pub(in crate::engine) struct Commission<M = ImageModel> {
    pub model: Arc<M>,
    pub painting: Painting,
    pub prompts: PromptIds,
    /// The prompts as the network takes them, once they were read.
    pub words: Option<PromptEmbeds>,
    /// The next picture.
    pub next: usize,
    pub sender: Sender,
    served: f64,
}

impl<M> Commission<M> {
    /// Steps of pixels that a picture takes.
    pub fn work(&self) -> f64 {
        let [width, height] = self.painting.size;
        (width * height * self.painting.steps) as f64
    }

    /// Pictures that are not painted yet.
    fn left(&self) -> usize {
        self.painting.seeds.len().saturating_sub(self.next)
    }

    pub fn fail(self, failure: Failure) {
        self.sender.send(Err(failure));
    }
}

/// The pictures that wait.
pub(in crate::engine) struct Paintings<M = ImageModel> {
    requests: BTreeMap<RequestId, Commission<M>>,
    next: RequestId,
    /// Whether pictures are received, also of requests that are painted to the end.
    watches: Vec<Watch>,
    /// Steps of pixels served to each tenant that has requests.
    served: HashMap<Tenant, f64>,
    /// Seconds of a step of a pixel of late; `None` before any was measured.
    pace: Option<f64>,
}

impl<M> Paintings<M> {
    pub fn new() -> Self {
        let (requests, watches, served) = (BTreeMap::new(), Vec::new(), HashMap::new());
        Self { requests, next: 0, watches, served, pace: None }
    }

    /// Pictures that wait: of all, or of a tenant.
    pub fn waiting(&self, of: Option<Tenant>) -> usize {
        let all = self.requests.values().filter(|one| of.is_none_or(|tenant| one.painting.tenant == tenant));
        all.map(Commission::left).sum()
    }

    /// Seconds until what waits is painted, about; `None` before the first picture.
    pub fn seconds(&self) -> Option<f64> {
        Some(self.requests.values().map(|one| one.work() * one.left() as f64).sum::<f64>() * self.pace?)
    }

    pub fn push(&mut self, model: Arc<M>, painting: Painting, prompts: PromptIds, now: Duration) -> Strokes {
        let (sender, strokes, watch) = way(now);
        self.watches.push(watch);
        let least = self.served.values().copied().min_by(f64::total_cmp).unwrap_or(0.);
        self.served.entry(painting.tenant).or_insert(least);
        let own = self.requests.values().filter(|one| one.painting.tenant == painting.tenant);
        let served = own.map(|one| one.served).min_by(f64::total_cmp).unwrap_or(0.);
        self.put(Commission { model, painting, prompts, words: None, next: 0, sender, served });
        strokes
    }

    fn put(&mut self, commission: Commission<M>) {
        self.requests.insert(self.next, commission);
        self.next += 1;
    }

    /// The request whose turn it is, for one picture. Those whose readers are slow wait.
    pub fn take(&mut self) -> Option<Commission<M>> {
        let served = |one: &Commission<M>| self.served.get(&one.painting.tenant).copied().unwrap_or(0.);
        let rank = |one: &Commission<M>| (served(one), one.served);
        let ready = self.requests.iter().filter(|(_, one)| one.sender.unreceived() < AHEAD);
        let turn = ready.min_by(|(_, one), (_, other)| {
            let ((a, b), (c, d)) = (rank(one), rank(other));
            a.total_cmp(&c).then(b.total_cmp(&d))
        });
        let id = *turn?.0;
        self.requests.remove(&id)
    }

    /// One more picture of it is painted; it took so long.
    pub fn give_back(&mut self, mut commission: Commission<M>, seconds: f64) {
        let work = commission.work();
        if seconds > 0. && work > 0. {
            let newest = seconds / work;
            self.pace = Some(self.pace.map_or(newest, |pace| pace + (newest - pace) * NEWEST));
        }
        commission.next += 1;
        commission.served += work;
        *self.served.entry(commission.painting.tenant).or_default() += work;
        if commission.left() > 0 {
            self.put(commission);
        }
        self.tidy();
    }

    /// Gives up pictures that nobody receives.
    pub fn heed(&mut self, now: Duration, patience: Duration) {
        let watched = self.watches.len();
        self.watches.retain_mut(|watch| watch.heed(now, patience));
        if self.watches.len() < watched {
            self.sweep();
        }
    }

    /// Whether somebody may have pictures to receive.
    pub fn is_watching(&self) -> bool {
        !self.watches.is_empty()
    }

    /// Forgets requests whose callers have left.
    pub fn sweep(&mut self) {
        self.requests.retain(|_, one| !one.sender.is_closed());
        self.tidy();
    }

    /// Tells those that wait why they wait in vain; `begun`: also those of whom some pictures are painted.
    pub fn fail_all(&mut self, failure: &Failure, begun: bool) {
        let gone = self.requests.extract_if(.., |_, one| begun || one.next == 0);
        gone.for_each(|(_, one)| one.fail(failure.clone()));
        self.tidy();
    }

    /// What was served is of no meaning where nobody waits.
    fn tidy(&mut self) {
        if self.requests.is_empty() {
            self.served.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::painting::{Picture, Stroke};

    fn painting(tenant: Tenant, pictures: usize) -> Painting {
        Painting {
            prompt: String::new(),
            negative_prompt: None,
            size: [8, 8],
            steps: 10,
            guidance: 1.,
            scheduler: None,
            seeds: vec![0; pictures],
            source: None,
            lora: Vec::new(),
            previews: 0,
            tenant,
        }
    }

    fn push(paintings: &mut Paintings<()>, painting: Painting) -> Strokes {
        paintings.push(Arc::default(), painting, Vec::new(), Duration::ZERO)
    }

    /// Whose pictures are painted, in their order.
    fn order(paintings: &mut Paintings<()>) -> Vec<(Tenant, usize)> {
        let mut order = Vec::new();
        while let Some(commission) = paintings.take() {
            order.push((commission.painting.tenant, commission.next));
            paintings.give_back(commission, 0.001);
        }
        order
    }

    #[test]
    fn tenants_take_turns() {
        let mut paintings = Paintings::<()>::new();
        let _strokes = [painting(1, 3), painting(2, 2)].map(|painting| push(&mut paintings, painting));
        assert_eq!(paintings.waiting(None), 5);
        assert_eq!(paintings.waiting(Some(2)), 2);
        assert_eq!(order(&mut paintings), [(1, 0), (2, 0), (1, 1), (2, 1), (1, 2)]);
        assert_eq!(paintings.waiting(None), 0);
    }

    #[test]
    fn whoever_left_is_forgotten() {
        let mut paintings = Paintings::<()>::new();
        drop(push(&mut paintings, painting(1, 3)));
        let _stays = push(&mut paintings, painting(1, 1));
        paintings.sweep();
        assert_eq!(paintings.waiting(None), 1);
    }

    #[test]
    fn a_queue_that_closes_lets_what_has_begun_go_on() {
        let mut paintings = Paintings::<()>::new();
        let mut begun = push(&mut paintings, painting(1, 2));
        let taken = paintings.take().unwrap();
        paintings.give_back(taken, 0.001);
        let mut waits = push(&mut paintings, painting(2, 1));
        paintings.fail_all(&Failure::ShuttingDown, false);
        assert_eq!(waits.try_next(), Some(Some(Err(Failure::ShuttingDown))));
        assert_eq!((paintings.waiting(None), begun.try_next()), (1, None));
        paintings.fail_all(&Failure::ShuttingDown, true);
        assert_eq!(begun.try_next(), Some(Some(Err(Failure::ShuttingDown))));
    }

    #[test]
    fn whoever_receives_nothing_is_painted_no_more() {
        let mut paintings = Paintings::<()>::new();
        let [mut slow, mut quick] = [painting(1, 4), painting(2, 4)].map(|painting| push(&mut paintings, painting));
        let mut painted = Vec::new();
        while let Some(commission) = paintings.take() {
            let rgb = vec![0; 3];
            let picture = Picture { width: 1, height: 1, rgb };
            commission.sender.send(Ok(Stroke::Done { image: commission.next, picture }));
            painted.push(commission.painting.tenant);
            paintings.give_back(commission, 0.001);
            quick.try_next();
        }
        assert_eq!(painted, [1, 2, 1, 2, 2, 2]);
        let patience = Duration::from_secs(60);
        paintings.heed(patience, patience);
        assert_eq!(paintings.waiting(Some(1)), 2);
        paintings.heed(patience * 2, patience);
        assert_eq!((paintings.waiting(None), paintings.is_watching()), (0, false));
        assert_eq!(slow.try_next(), Some(Some(Err(Failure::Unread))));
        assert_eq!(slow.leave(), 2, "they were painted");
    }
}
