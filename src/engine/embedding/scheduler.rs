//! Which texts are computed next: a pure state machine.
//!
//! Each request's texts go in their order; between requests it is the turn of whoever was served the fewest
//! tokens, first among tenants and then among a tenant's requests. A newcomer begins where the least served of
//! those who wait stands: it neither waits for a huge request to end nor starves it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tokio::sync::oneshot;

use super::MAX_BATCH_TEXTS;
use super::model::EncoderModel;
use crate::engine::error::Failure;
use crate::engine::text::scheduler::{RequestId, Tenant};
use crate::models::encoder::Tokenized;

/// What becomes of a request: a vector for each of its texts.
pub type Vectors = Result<Vec<Vec<f32>>, Failure>;

/// The texts that wait, and their requests.
pub struct EmbeddingScheduler<M = EncoderModel> {
    requests: BTreeMap<RequestId, Request<M>>,
    next: RequestId,
    /// Tokens of texts that nobody has taken.
    waiting: usize,
    /// Tokens served to each tenant that has requests.
    served: HashMap<Tenant, u64>,
}

struct Request<M> {
    model: Arc<M>,
    tenant: Tenant,
    /// Those not taken yet, the first one last.
    texts: Vec<Tokenized>,
    vectors: Vec<Vec<f32>>,
    /// Vectors that are not there yet.
    missing: usize,
    served: u64,
    sender: oneshot::Sender<Vectors>,
}

/// A text of a batch: whose it is, and which.
#[derive(Debug, PartialEq, Eq)]
pub struct BatchItem {
    pub request: RequestId,
    pub place: usize,
    pub text: Tokenized,
}

/// Texts that one model computes together.
#[derive(Debug)]
pub struct Batch<M = EncoderModel> {
    pub model: Arc<M>,
    pub members: Vec<BatchItem>,
}

impl<M> EmbeddingScheduler<M> {
    pub fn new() -> Self {
        Self { requests: BTreeMap::new(), next: 0, waiting: 0, served: HashMap::new() }
    }

    /// One without requests. It numbers requests on from where this one is.
    pub fn fresh(&self) -> Self {
        Self { next: self.next, ..Self::new() }
    }

    /// The channels of all requests.
    pub fn into_senders(self) -> impl Iterator<Item = oneshot::Sender<Vectors>> {
        self.requests.into_values().map(|request| request.sender)
    }

    /// Tokens that wait.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Tokens of a tenant that wait.
    pub fn waiting_of(&self, tenant: Tenant) -> usize {
        let own = self.requests.values().filter(|request| request.tenant == tenant);
        own.flat_map(|request| &request.texts).map(|text| text.ids.len()).sum()
    }

    pub fn push(&mut self, model: Arc<M>, tenant: Tenant, mut texts: Vec<Tokenized>) -> oneshot::Receiver<Vectors> {
        let (sender, receiver) = oneshot::channel();
        self.waiting += texts.iter().map(|text| text.ids.len()).sum::<usize>();
        let least = self.served.values().copied().min().unwrap_or(0);
        self.served.entry(tenant).or_insert(least);
        let own = self.requests.values().filter(|request| request.tenant == tenant);
        let served = own.map(|request| request.served).min().unwrap_or(0);
        let count = texts.len();
        texts.reverse();
        let request =
            Request { model, tenant, texts, vectors: vec![Vec::new(); count], missing: count, served, sender };
        self.requests.insert(self.next, request);
        self.next += 1;
        receiver
    }

    /// The next batch: one text at least, and more of the same model as long as they have no more tokens than
    /// `limit` says for it.
    pub fn take(&mut self, limit: impl Fn(&M) -> usize) -> Option<Batch<M>> {
        let first = self.turn(None)?;
        let model = Arc::clone(&self.requests.get(&first)?.model);
        let (most, mut tokens, mut members) = (limit(&model), 0, Vec::new());
        let mut whose = Some(first);
        while let Some(id) = whose.filter(|_| members.len() < MAX_BATCH_TEXTS) {
            let Some(request) = self.requests.get_mut(&id) else { break };
            let Some(text) = request.texts.pop_if(|text| tokens == 0 || tokens + text.ids.len() <= most) else { break };
            let (count, place) = (text.ids.len(), request.vectors.len() - request.texts.len() - 1);
            tokens += count;
            request.served += count as u64;
            self.waiting -= count;
            *self.served.entry(request.tenant).or_default() += count as u64;
            members.push(BatchItem { request: id, place, text });
            whose = self.turn(Some(&model));
        }
        Some(Batch { model, members })
    }

    /// Whose turn it is, of those with texts for this model.
    fn turn(&self, model: Option<&Arc<M>>) -> Option<RequestId> {
        let fits = |request: &Request<M>| {
            !request.texts.is_empty() && model.is_none_or(|model| Arc::ptr_eq(model, &request.model))
        };
        let waiting = self.requests.iter().filter(|(_, request)| fits(request));
        let rank = |(id, request): &(&RequestId, &Request<M>)| {
            (self.served.get(&request.tenant).copied().unwrap_or(0), request.served, **id)
        };
        waiting.min_by_key(rank).map(|(id, _)| *id)
    }

    /// Whether somebody still waits for one of these.
    pub fn wants(&self, members: &[BatchItem]) -> bool {
        members.iter().any(|member| self.requests.contains_key(&member.request))
    }

    /// A text's vector. With a request's last one its caller is told.
    pub fn done(&mut self, request: RequestId, place: usize, vector: Vec<f32>) {
        let Some(entry) = self.requests.get_mut(&request) else { return };
        if let Some(slot) = entry.vectors.get_mut(place) {
            *slot = vector;
            entry.missing -= 1;
        }
        if entry.missing == 0
            && let Some(Request { sender, vectors, .. }) = self.remove(request)
        {
            drop(sender.send(Ok(vectors)));
        }
    }

    pub fn fail(&mut self, request: RequestId, failure: Failure) {
        if let Some(request) = self.remove(request) {
            drop(request.sender.send(Err(failure)));
        }
    }

    /// Ends all of these.
    pub fn fail_all(&mut self, failure: &Failure, begun: bool) {
        let untouched = |request: &Request<M>| request.texts.len() == request.vectors.len();
        let ids = self.requests.iter().filter(|(_, request)| begun || untouched(request));
        let ids: Vec<RequestId> = ids.map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.fail(id, failure.clone()));
    }

    /// Fails the requests that have texts in a batch whose vectors are not there yet.
    pub fn fail_computing(&mut self, failure: &Failure) {
        let computing = self.requests.iter().filter(|(_, request)| request.missing > request.texts.len());
        let ids: Vec<RequestId> = computing.map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.fail(id, failure.clone()));
    }

    /// Forgets requests whose callers have left.
    pub fn sweep(&mut self) {
        let left = self.requests.iter().filter(|(_, request)| request.sender.is_closed());
        let left: Vec<RequestId> = left.map(|(id, _)| *id).collect();
        left.into_iter().for_each(|id| drop(self.remove(id)));
    }

    fn remove(&mut self, id: RequestId) -> Option<Request<M>> {
        let request = self.requests.remove(&id)?;
        self.waiting -= request.texts.iter().map(|text| text.ids.len()).sum::<usize>();
        if !self.requests.values().any(|other| other.tenant == request.tenant) {
            self.served.remove(&request.tenant);
        }
        Some(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stands for a model.
    #[derive(Debug)]
    struct Name;

    fn text(tokens: usize) -> Tokenized {
        Tokenized::new(vec![7; tokens])
    }

    fn queue() -> (EmbeddingScheduler<Name>, [Arc<Name>; 2]) {
        (EmbeddingScheduler::new(), [(); 2].map(|()| Arc::new(Name)))
    }

    /// Requests and places of the next batch.
    fn taken(texts: &mut EmbeddingScheduler<Name>, limit: usize) -> Vec<(u64, usize)> {
        let batch = texts.take(|_| limit);
        batch.into_iter().flat_map(|batch| batch.members).map(|member| (member.request, member.place)).collect()
    }

    #[test]
    fn vectors_come_back_in_the_order_of_the_texts() {
        let (mut texts, [model, _]) = queue();
        let mut receiver = texts.push(model, 1, vec![text(3), text(4), text(5)]);
        assert_eq!(taken(&mut texts, 7), [(0, 0), (0, 1)]);
        assert_eq!((taken(&mut texts, 7), texts.waiting()), (vec![(0, 2)], 0));
        for place in [2, 0, 1] {
            assert!(receiver.try_recv().is_err());
            texts.done(0, place, vec![place as f32]);
        }
        assert_eq!(receiver.try_recv().unwrap().unwrap(), [[0.], [1.], [2.]]);
        assert_eq!(texts.requests.len(), 0);
    }

    #[test]
    fn a_text_longer_than_a_batch_goes_alone() {
        let (mut texts, [model, _]) = queue();
        drop(texts.push(Arc::clone(&model), 1, vec![text(100), text(1)]));
        assert_eq!(taken(&mut texts, 10), [(0, 0)]);
        assert_eq!(taken(&mut texts, 10), [(0, 1)]);
        assert!(taken(&mut texts, 10).is_empty());
    }

    #[test]
    fn small_requests_go_beside_a_huge_one_and_do_not_starve_it() {
        let (mut texts, [model, _]) = queue();
        let _huge = texts.push(Arc::clone(&model), 1, vec![text(10); 100]);
        for _ in 0..20 {
            assert_eq!(taken(&mut texts, 20).len(), 2);
        }
        let _small = texts.push(Arc::clone(&model), 1, vec![text(5)]);
        let next = taken(&mut texts, 20);
        assert!(next.contains(&(1, 0)), "{next:?}");
        assert!(next.iter().any(|(request, _)| *request == 0), "{next:?}");
    }

    #[test]
    fn tenants_share_whatever_they_bring() {
        let (mut texts, [model, _]) = queue();
        let _many: Vec<_> = (0..9).map(|_| texts.push(Arc::clone(&model), 1, vec![text(10); 9])).collect();
        let _few = texts.push(Arc::clone(&model), 2, vec![text(10); 9]);
        let mut served = [0, 0];
        for _ in 0..8 {
            taken(&mut texts, 20).iter().for_each(|(request, _)| served[usize::from(*request == 9)] += 1);
        }
        assert_eq!(served, [8, 8]);
    }

    #[test]
    fn a_batch_is_of_one_model() {
        let (mut texts, [small, large]) = queue();
        let _kept = [
            texts.push(Arc::clone(&small), 1, vec![text(1)]),
            texts.push(large, 1, vec![text(1)]),
            texts.push(small, 1, vec![text(1)]),
        ];
        assert_eq!(taken(&mut texts, 10), [(0, 0), (2, 0)]);
        assert_eq!(taken(&mut texts, 10), [(1, 0)]);
    }

    #[test]
    fn whoever_leaves_is_forgotten_with_his_texts() {
        let (mut texts, [model, _]) = queue();
        drop(texts.push(Arc::clone(&model), 1, vec![text(3); 2]));
        let mut other = texts.push(Arc::clone(&model), 2, vec![text(4)]);
        assert_eq!((texts.waiting(), texts.waiting_of(2)), (10, 4));
        texts.sweep();
        assert_eq!((texts.requests.len(), texts.waiting()), (1, 4));
        texts.done(0, 0, vec![1.]);
        texts.fail_all(&Failure::ShuttingDown, false);
        assert_eq!(other.try_recv().unwrap(), Err(Failure::ShuttingDown));
        assert_eq!((texts.requests.len(), texts.waiting(), texts.served.len()), (0, 0, 0));
    }

    #[test]
    fn a_batch_is_wanted_as_long_as_one_of_its_callers_waits() {
        let (mut texts, [model, _]) = queue();
        let [one, other] = [1, 2].map(|tenant| texts.push(Arc::clone(&model), tenant, vec![text(3)]));
        let batch = texts.take(|_| 10).unwrap();
        drop(one);
        texts.sweep();
        assert!(texts.wants(&batch.members));
        drop(other);
        texts.sweep();
        assert!(!texts.wants(&batch.members));
    }

    #[test]
    fn what_has_begun_may_end_when_the_rest_is_sent_away() {
        let (mut texts, [model, _]) = queue();
        let mut begun = texts.push(Arc::clone(&model), 1, vec![text(3); 2]);
        assert_eq!(taken(&mut texts, 3), [(0, 0)]);
        let mut waiting = texts.push(model, 1, vec![text(3)]);
        texts.fail_all(&Failure::ShuttingDown, false);
        assert!(waiting.try_recv().unwrap().is_err() && begun.try_recv().is_err());
        texts.fail_all(&Failure::ShuttingDown, true);
        assert!(begun.try_recv().unwrap().is_err());
    }
}
