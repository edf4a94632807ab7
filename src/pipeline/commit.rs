//! What a batch writes to the state, in integers: whose rows, which mails, and what these are made of.
//!
//! A pure function of the batch's events and samples, so any rank finds the same. Endpoints are written; mails go where the
//! model's [`MailTargets`] say: to the endpoints (TGN, arXiv:2006.10637, section 3.1), or to whoever was sampled for them
//! (APAN, arXiv:2011.11545, section 3.5), never because of a negative.

use crate::dependency::Routes;
use crate::memory::{Mail, unsent};
use crate::replay::Unit;
use crate::sampler::Sample;
use std::collections::{HashMap, HashSet};
use tidemill_data::id::{EventId, NodeId, Timestamp};
use tidemill_data::stream::EventStream;
use tidemill_models::message::Aggregator;
use tidemill_models::model::{MailKeeping, MailOrder, MailTargets, Payload, StateSpec};

/// Which of the mails that a batch sends to a node are kept (the message aggregator's rule).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MailsKept {
    /// The last one, by the rule's order.
    Last,
    /// All, in that order.
    All,
    /// One, the mean of all.
    Mean,
}

/// What a model wants written, in integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MailRule {
    /// Which of a batch's mails a node keeps.
    pub kept: MailsKept,
    /// Which of them is the last.
    pub order: MailOrder,
    /// Who gets mail.
    pub targets: MailTargets,
    /// Whether new rows and what mails carry are taken from roots; else from the rows read.
    pub rows_of: RowsOf,
}

/// What the row numbers of a [`CommitPlan`] point into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowsOf {
    /// New rows are rows read, payloads are new rows.
    Memory,
    /// New rows are rows read, payloads are roots of the top hop.
    Mixed,
    /// New rows are roots; a payload is made of an event's two roots, see [`CommitPlan::payload_rows`].
    Roots,
}

impl MailRule {
    /// The rule of a model.
    pub fn of(spec: &StateSpec) -> MailRule {
        let kept = match (spec.aggregator, spec.mail_keeping) {
            (Aggregator::Last, _) => MailsKept::Last,
            (Aggregator::Mean, MailKeeping::UntilApplied) => MailsKept::All,
            (Aggregator::Mean, MailKeeping::Latest(_)) => MailsKept::Mean,
        };
        let rows_of = match spec.payload {
            Payload::MemoryRow => RowsOf::Memory,
            Payload::Embedding => RowsOf::Mixed,
            Payload::Pair | Payload::PairSum => RowsOf::Roots,
        };
        MailRule { kept, order: spec.mail_order, targets: spec.mail_targets, rows_of }
    }
}

/// What a batch writes to the state, in integers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommitPlan {
    /// The events' endpoints, each once, in order of appearance.
    pub nodes: Vec<NodeId>,
    /// Where their new rows are: rows read, or roots of their last event, see [`RowsOf`].
    pub rows: Vec<u32>,
    /// Times of their last events.
    pub times: Vec<Timestamp>,
    /// New mails in order, with their owners.
    pub mails: Vec<(NodeId, Mail)>,
    /// What the mails carry, `[Q]`: the peers' places in `nodes` (on one of several ranks, then `replays`) or roots, there followed by
    /// what peers send; under [`RowsOf::Roots`] the *messages* that each mail is the
    /// mean of, mail after mail. Message 2i is what event i's source sends, 2i + 1 what its destination sends.
    pub payload_rows: Vec<u32>,
    /// How many messages each mail is the mean of, `[Q]`; empty if one each.
    pub messages: Vec<u32>,
    /// What travels for mails, committed memory or embeddings: out, places in `nodes` or roots; in, one entry each. Nothing alone.
    pub peers: Routes<u32>,
    /// Other ranks' nodes whose replicas are brought forward: they get mails as `nodes` do, and places after theirs.
    pub replays: Vec<NodeId>,
    /// The work that each of them is, where replay may be pruned.
    pub units: Vec<Unit>,
}

impl CommitPlan {
    /// The mails to replicas, in order; those to own nodes are the others.
    pub fn replayed_mails(&self) -> impl Iterator<Item = &(NodeId, Mail)> {
        let replays: HashSet<NodeId> = self.replays.iter().copied().collect();
        self.mails.iter().filter(move |(node, _)| replays.contains(node))
    }
}

/// One endpoint of one event.
#[derive(Clone, Copy)]
pub(super) struct End {
    pub(super) node: NodeId,
    pub(super) peer: NodeId,
    pub(super) event: EventId,
    /// Number of the endpoint among the batch's logical roots.
    logical: usize,
    pub(super) peer_logical: usize,
    /// Number of what it sends.
    message: u32,
}

/// A mail on its way.
struct Sent {
    /// Number of the receiver.
    to: u32,
    mail: Mail,
    /// Entry of [`CommitPlan::payload_rows`].
    payload: u32,
}

/// Plans commits; owns the scratch space for it.
#[derive(Default)]
pub struct CommitPlanner {
    slot_of_row: Vec<u32>,
}

impl CommitPlanner {
    /// What a batch of these events writes.
    pub fn plan(&mut self, rule: MailRule, stream: &EventStream, events: &[EventId], sample: &Sample) -> CommitPlan {
        let mut plan = CommitPlan::default();
        if rule.targets == MailTargets::Nobody {
            return plan;
        }
        let ends = ends(rule.order, stream, events);
        let slots = self.endpoints(rule, stream, &ends, sample, &mut plan);
        match rule.targets {
            MailTargets::Endpoints => {
                let mut place = vec![0; slots.len()]; // in `nodes`, by what the endpoint sends
                ends.iter().zip(&slots).for_each(|(end, &slot)| place[end.message as usize] = slot);
                let send = |(end, &to): (&End, &u32)| {
                    let payload = match rule.rows_of {
                        RowsOf::Memory => place[(end.message ^ 1) as usize],
                        RowsOf::Mixed => sample.root_of[end.peer_logical],
                        RowsOf::Roots => end.message,
                    };
                    Sent { to, mail: unsent(end.peer, end.event, stream.time(end.event)), payload }
                };
                let sent = ends.iter().zip(&slots).map(send).collect();
                let receivers = plan.nodes.clone();
                keep(rule.kept, &receivers, sent, &mut plan);
            }
            _ => {
                let (receivers, sent) = to_neighbors(rule, stream, &ends, sample);
                keep(rule.kept, &receivers, sent, &mut plan);
            }
        }
        plan
    }

    /// Writes down each endpoint once; returns its place for each of `ends`.
    fn endpoints(
        &mut self,
        rule: MailRule,
        stream: &EventStream,
        ends: &[End],
        sample: &Sample,
        plan: &mut CommitPlan,
    ) -> Vec<u32> {
        self.slot_of_row.clear();
        self.slot_of_row.resize(sample.rows.len(), u32::MAX);
        let mut place = |end: &End| {
            let row = row_of_root(sample, end.logical);
            let slot = &mut self.slot_of_row[row as usize];
            if *slot == u32::MAX {
                *slot = plan.nodes.len() as u32;
                plan.nodes.push(end.node);
                plan.rows.push(row);
                plan.times.push(stream.time(end.event));
            }
            plan.times[*slot as usize] = stream.time(end.event);
            if rule.rows_of == RowsOf::Roots {
                plan.rows[*slot as usize] = sample.root_of[end.logical];
            }
            *slot
        };
        ends.iter().map(&mut place).collect()
    }
}

/// The endpoints of a batch, in the order in which their mails are sent.
pub(super) fn ends(order: MailOrder, stream: &EventStream, events: &[EventId]) -> Vec<End> {
    let b = events.len();
    let end = |i: usize, side: usize| {
        let nodes = [stream.source(events[i]), stream.destination(events[i])];
        End {
            node: nodes[side],
            peer: nodes[1 - side],
            event: events[i],
            logical: side * b + i,
            peer_logical: (1 - side) * b + i,
            message: (2 * i + side) as u32,
        }
    };
    match order {
        MailOrder::Stream => (0..2 * b).map(|n| end(n / 2, n % 2)).collect(),
        MailOrder::Roles => (0..2 * b).map(|n| end(n % b, n / b)).collect(),
    }
}

/// Mails of each end to itself, unless only neighbors get mail, and to its neighbors; and who the receivers are.
fn to_neighbors(rule: MailRule, stream: &EventStream, ends: &[End], sample: &Sample) -> (Vec<NodeId>, Vec<Sent>) {
    let (mut receivers, mut number) = (Vec::new(), HashMap::new());
    let mut sent = Vec::new();
    let mut send = |end: &End, to: NodeId| {
        let to = *number.entry(to).or_insert_with(|| {
            receivers.push(to);
            receivers.len() as u32 - 1
        });
        sent.push(Sent { to, mail: unsent(end.node, end.event, stream.time(end.event)), payload: end.message });
    };
    let hop = &sample.hops[0];
    let neighbors = |end: &End| hop.neighbor[hop.slots(sample.root_of[end.logical] as usize)].iter().copied();
    let own = rule.targets == MailTargets::Neighbors;
    match rule.order {
        MailOrder::Stream => {
            for end in ends {
                own.then_some(end.node).into_iter().chain(neighbors(end)).for_each(|to| send(end, to));
            }
        }
        MailOrder::Roles => {
            ends.iter().filter(|_| own).for_each(|end| send(end, end.node));
            ends.iter().for_each(|end| neighbors(end).for_each(|to| send(end, to)));
        }
    }
    (receivers, sent)
}

/// Puts into the plan what is kept of the mails sent.
fn keep(kept: MailsKept, receivers: &[NodeId], sent: Vec<Sent>, plan: &mut CommitPlan) {
    match kept {
        MailsKept::All => {
            for Sent { to, mail, payload } in sent {
                plan.mails.push((receivers[to as usize], mail));
                plan.payload_rows.push(payload);
            }
        }
        MailsKept::Last => {
            let mut last: Vec<Option<Sent>> = receivers.iter().map(|_| None).collect();
            for mail in sent {
                let to = mail.to as usize;
                last[to] = Some(mail);
            }
            keep(MailsKept::All, receivers, last.into_iter().flatten().collect(), plan);
        }
        MailsKept::Mean => {
            let mut of_receiver: Vec<Vec<(Mail, u32)>> = receivers.iter().map(|_| Vec::new()).collect();
            for Sent { to, mail, payload } in sent {
                of_receiver[to as usize].push((mail, payload));
            }
            for (&node, all) in receivers.iter().zip(of_receiver) {
                let (mails, payloads): (Vec<Mail>, Vec<u32>) = all.into_iter().unzip();
                plan.mails.push((node, Mail::mean(&mails)));
                plan.messages.push(payloads.len() as u32);
                plan.payload_rows.extend(payloads);
            }
        }
    }
}

/// Row, among the rows read, of the node of a logical root.
fn row_of_root(sample: &Sample, logical: usize) -> u32 {
    sample.hops.iter().fold(sample.root_of[logical], |at, hop| hop.below_root[at as usize])
}
