//! Schedules texts into batches: a pure state machine.
//!
//! A request's texts are computed in order. Between requests, the next text comes from the tenant with the fewest
//! served tokens. Within a tenant, it is the text with the lowest tag (self-clocked fair queueing, Golestani 1994): the
//! tag of the request's text before it, plus its own tokens. A new request starts at the highest tag of a text that was
//! taken. So it does not wait for a huge request to end, and a stream of small ones does not starve that.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tokio::sync::oneshot;

use super::MAX_BATCH_TEXTS;
use super::model::EncoderModel;
use crate::error::Failure;
use crate::ids::{RequestId, Tenant};
use crate::jobs::TenantCosts;
use outpost_models::encoder::Tokenized;

/// The result of a request: one vector for each text.
pub type Vectors = Result<Vec<Vec<f32>>, Failure>;

/// The requests and their queued texts.
pub struct EmbeddingScheduler<M = EncoderModel> {
    requests: BTreeMap<RequestId, Request<M>>,
    next: RequestId,
    /// Tokens of queued texts.
    waiting_tokens: usize,
    /// Tokens served.
    served: TenantCosts,
    /// The highest tag of a text that was taken, of each tenant that has requests.
    clocks: HashMap<Tenant, u64>,
}

struct Request<M> {
    model: Arc<M>,
    tenant: Tenant,
    /// Queued texts in reverse order.
    texts: Vec<Tokenized>,
    vectors: Vec<Vec<f32>>,
    /// The number of vectors that are not computed yet.
    pending: usize,
    /// The tag of the last text that was taken, or where the request started.
    tag: u64,
    sender: oneshot::Sender<Vectors>,
}

/// A text of a batch, with its model, its request and its index in the request.
#[derive(Debug)]
pub struct BatchItem<M = EncoderModel> {
    pub model: Arc<M>,
    pub request: RequestId,
    pub index: usize,
    pub text: Tokenized,
}

impl<M> EmbeddingScheduler<M> {
    pub fn new() -> Self {
        Self {
            requests: BTreeMap::new(),
            next: 0,
            waiting_tokens: 0,
            served: TenantCosts::default(),
            clocks: HashMap::new(),
        }
    }

    /// An empty scheduler that continues this one's request IDs.
    pub fn new_empty(&self) -> Self {
        Self { next: self.next, ..Self::new() }
    }

    /// The result channels of all requests.
    pub fn into_senders(self) -> impl Iterator<Item = oneshot::Sender<Vectors>> {
        self.requests.into_values().map(|request| request.sender)
    }

    /// The number of queued tokens.
    pub fn waiting_tokens(&self) -> usize {
        self.waiting_tokens
    }

    /// The number of queued tokens of a tenant.
    pub fn waiting_tokens_of(&self, tenant: Tenant) -> usize {
        let own = self.requests.values().filter(|request| request.tenant == tenant);
        own.flat_map(|request| &request.texts).map(|text| text.ids.len()).sum()
    }

    pub fn push(&mut self, model: Arc<M>, tenant: Tenant, mut texts: Vec<Tokenized>) -> oneshot::Receiver<Vectors> {
        let (sender, receiver) = oneshot::channel();
        self.waiting_tokens += texts.iter().map(|text| text.ids.len()).sum::<usize>();
        self.served.arrive(tenant, self.requests.values().map(|request| request.tenant));
        let tag = *self.clocks.entry(tenant).or_default();
        let count = texts.len();
        texts.reverse();
        let request = Request { model, tenant, texts, vectors: vec![Vec::new(); count], pending: count, tag, sender };
        self.requests.insert(self.next, request);
        self.next += 1;
        receiver
    }

    /// The next batch: at least one text, and further texts whose models share its network, up to `limit(model)` tokens.
    /// Empty if no text is queued.
    pub fn next_batch(
        &mut self,
        limit: impl Fn(&M) -> usize,
        shares_network: impl Fn(&M, &M) -> bool,
    ) -> Vec<BatchItem<M>> {
        let mut items = Vec::new();
        let Some(first) = self.next_request(|_| true) else { return items };
        let Some(model) = self.requests.get(&first).map(|request| Arc::clone(&request.model)) else { return items };
        let (max_tokens, mut tokens) = (limit(&model), 0);
        let mut next = Some(first);
        while let Some(id) = next.filter(|_| items.len() < MAX_BATCH_TEXTS) {
            let Some(request) = self.requests.get_mut(&id) else { break };
            let Some(text) = request.texts.pop_if(|text| tokens == 0 || tokens + text.ids.len() <= max_tokens) else {
                break;
            };
            let (count, index) = (text.ids.len(), request.vectors.len() - request.texts.len() - 1);
            tokens += count;
            request.tag += count as u64;
            self.waiting_tokens -= count;
            self.served.add(request.tenant, count as f64);
            let clock = self.clocks.entry(request.tenant).or_default();
            *clock = request.tag.max(*clock);
            items.push(BatchItem { model: Arc::clone(&request.model), request: id, index, text });
            next = self.next_request(|other| shares_network(&model, other));
        }
        items
    }

    /// The request whose text is computed next, among those whose model `fits`.
    fn next_request(&self, fits: impl Fn(&M) -> bool) -> Option<RequestId> {
        let waiting = self.requests.iter().filter_map(|(id, request)| {
            let text = request.texts.last().filter(|_| fits(&request.model))?;
            Some((self.served.of(request.tenant), request.tag + text.ids.len() as u64, *id))
        });
        let next = waiting.min_by(|one, other| one.0.total_cmp(&other.0).then((one.1, one.2).cmp(&(other.1, other.2))));
        next.map(|(_, _, id)| id)
    }

    /// False if all requests of these items were cancelled, so that the batch need not be computed.
    pub fn is_wanted(&self, items: &[BatchItem<M>]) -> bool {
        items.iter().any(|item| self.requests.contains_key(&item.request))
    }

    /// Stores a text's vector. The last vector of a request completes it.
    pub fn complete(&mut self, request: RequestId, index: usize, vector: Vec<f32>) {
        let Some(entry) = self.requests.get_mut(&request) else { return };
        if let Some(slot) = entry.vectors.get_mut(index) {
            *slot = vector;
            entry.pending -= 1;
        }
        if entry.pending == 0
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

    /// Fails queued requests and, with `running`, partly computed ones too.
    pub fn fail_all(&mut self, failure: &Failure, running: bool) {
        let is_queued = |request: &Request<M>| request.texts.len() == request.vectors.len();
        let ids = self.requests.iter().filter(|(_, request)| running || is_queued(request));
        let ids: Vec<RequestId> = ids.map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.fail(id, failure.clone()));
    }

    /// Fails the requests that have texts in the running batch.
    pub fn fail_computing(&mut self, failure: &Failure) {
        let computing = self.requests.iter().filter(|(_, request)| request.pending > request.texts.len());
        let ids: Vec<RequestId> = computing.map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.fail(id, failure.clone()));
    }

    /// Removes cancelled requests.
    pub fn sweep(&mut self) {
        let left = self.requests.iter().filter(|(_, request)| request.sender.is_closed());
        let left: Vec<RequestId> = left.map(|(id, _)| *id).collect();
        left.into_iter().for_each(|id| drop(self.remove(id)));
    }

    fn remove(&mut self, id: RequestId) -> Option<Request<M>> {
        let request = self.requests.remove(&id)?;
        self.waiting_tokens -= request.texts.iter().map(|text| text.ids.len()).sum::<usize>();
        if !self.requests.values().any(|other| other.tenant == request.tenant) {
            self.clocks.remove(&request.tenant);
        }
        if self.requests.is_empty() {
            self.served.clear();
        }
        Some(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stub model: the number of its network.
    #[derive(Debug)]
    struct Stub(usize);

    fn text(tokens: usize) -> Tokenized {
        Tokenized::new(vec![7; tokens])
    }

    fn queue() -> (EmbeddingScheduler<Stub>, [Arc<Stub>; 2]) {
        (EmbeddingScheduler::new(), [0, 1].map(|network| Arc::new(Stub(network))))
    }

    fn next_batch(texts: &mut EmbeddingScheduler<Stub>, limit: usize) -> Vec<BatchItem<Stub>> {
        texts.next_batch(|_| limit, |one, other| one.0 == other.0)
    }

    /// The request and index of each text of the next batch.
    fn taken(texts: &mut EmbeddingScheduler<Stub>, limit: usize) -> Vec<(u64, usize)> {
        next_batch(texts, limit).into_iter().map(|item| (item.request, item.index)).collect()
    }

    #[test]
    fn vectors_come_back_in_the_order_of_the_texts() {
        let (mut texts, [model, _]) = queue();
        let mut receiver = texts.push(model, 1, vec![text(3), text(4), text(5)]);
        assert_eq!(taken(&mut texts, 7), [(0, 0), (0, 1)]);
        assert_eq!((taken(&mut texts, 7), texts.waiting_tokens()), (vec![(0, 2)], 0));
        for index in [2, 0, 1] {
            assert!(receiver.try_recv().is_err());
            texts.complete(0, index, vec![index as f32]);
        }
        assert_eq!(receiver.try_recv().unwrap().unwrap(), [[0.], [1.], [2.]]);
        assert_eq!(texts.requests.len(), 0);
    }

    #[test]
    fn a_text_longer_than_a_batch_is_computed_alone() {
        let (mut texts, [model, _]) = queue();
        drop(texts.push(Arc::clone(&model), 1, vec![text(100), text(1)]));
        assert_eq!(taken(&mut texts, 10), [(0, 0)]);
        assert_eq!(taken(&mut texts, 10), [(0, 1)]);
        assert!(taken(&mut texts, 10).is_empty());
    }

    #[test]
    fn small_requests_share_batches_with_a_huge_one_and_do_not_starve_it() {
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

    /// How many texts of a huge request are taken, of 180, while eight small ones always wait, each of `tenant(number)`.
    fn share_of_huge_request(tenant: impl Fn(usize) -> Tenant) -> usize {
        let (mut texts, [model, _]) = queue();
        let _huge = texts.push(Arc::clone(&model), 1, vec![text(10); 100]);
        let push = |texts: &mut EmbeddingScheduler<Stub>, number: usize| {
            let _kept = texts.push(Arc::clone(&model), tenant(number), vec![text(10)]);
        };
        let mut number_of: HashMap<RequestId, usize> = (1..9).map(|number| (number as RequestId, number)).collect();
        (1..9).for_each(|number| push(&mut texts, number));
        let mut share = 0;
        for _ in 0..90 {
            let batch = taken(&mut texts, 20);
            // The clients of the small ones send the next when they have got a vector.
            for (request, index) in batch {
                texts.complete(request, index, Vec::new());
                match number_of.remove(&request) {
                    Some(number) => {
                        number_of.insert(texts.next, number);
                        push(&mut texts, number);
                    }
                    None => share += 1,
                }
            }
        }
        share
    }

    #[test]
    fn many_small_requests_that_follow_each_other_do_not_starve_a_huge_one() {
        for (share, whose) in [
            (share_of_huge_request(|_| 1), "of one tenant"),
            (share_of_huge_request(|number| 1 + number as Tenant), "of nine tenants"),
        ] {
            assert!((18..25).contains(&share), "{whose}: {share} of 180 texts, not a ninth");
        }
    }

    #[test]
    fn tenants_get_equal_shares() {
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
    fn models_with_the_same_network_share_a_batch() {
        let (mut texts, [base, other]) = queue();
        let adapter = Arc::new(Stub(0));
        let _kept = [&base, &other, &adapter].map(|model| texts.push(Arc::clone(model), 1, vec![text(1)]));
        let batch = next_batch(&mut texts, 10);
        assert!(Arc::ptr_eq(&batch[0].model, &base) && Arc::ptr_eq(&batch[1].model, &adapter) && batch.len() == 2);
        assert_eq!(taken(&mut texts, 10), [(1, 0)]);
    }

    #[test]
    fn a_batch_has_one_network() {
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
    fn cancelled_requests_are_removed_with_their_texts() {
        let (mut texts, [model, _]) = queue();
        drop(texts.push(Arc::clone(&model), 1, vec![text(3); 2]));
        let mut other = texts.push(Arc::clone(&model), 2, vec![text(4)]);
        assert_eq!((texts.waiting_tokens(), texts.waiting_tokens_of(2)), (10, 4));
        texts.sweep();
        assert_eq!((texts.requests.len(), texts.waiting_tokens()), (1, 4));
        texts.complete(0, 0, vec![1.]);
        texts.fail_all(&Failure::ShuttingDown, false);
        assert_eq!(other.try_recv().unwrap(), Err(Failure::ShuttingDown));
        assert_eq!((texts.requests.len(), texts.waiting_tokens(), texts.clocks.len()), (0, 0, 0));
        assert_eq!(texts.served.of(2), 0.);
    }

    #[test]
    fn a_batch_runs_until_all_its_requests_are_cancelled() {
        let (mut texts, [model, _]) = queue();
        let [one, other] = [1, 2].map(|tenant| texts.push(Arc::clone(&model), tenant, vec![text(3)]));
        let batch = next_batch(&mut texts, 10);
        drop(one);
        texts.sweep();
        assert!(texts.is_wanted(&batch));
        drop(other);
        texts.sweep();
        assert!(!texts.is_wanted(&batch));
    }

    #[test]
    fn running_requests_can_finish_when_queued_ones_fail() {
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
