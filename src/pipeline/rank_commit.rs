//! What a batch writes on one of several ranks: its own nodes, and what travels for mails between ranks.
//!
//! The commit rule: only a node's owner computes its new row, for every event that touches it, whoever that event is primary
//! for. From other ranks it needs what the mails carry and nothing else: the peers' committed memory, from their owners, or their
//! embeddings (DyRep), from the ranks that make them. Each such row travels once a batch and rank. A replica of another rank's
//! node that the rank keeps current gets the same mails, and s(peer) is taken from a replica where there is one; mails of
//! embeddings can not be replayed. A pure function of events, owners, embedders and replicas, so sender and receiver find the
//! same lists in the same order.

use super::commit::{CommitPlan, MailRule, MailsKept, RowsOf, ends};
use crate::dependency::{Planner, Routes, Share};
use crate::memory::{Mail, unsent};
use crate::partition::Rank;
use crate::replay::Unit;
use std::collections::{HashMap, HashSet};
use tidemill_data::id::{EventId, NodeId};
use tidemill_data::stream::EventStream;
use tidemill_models::model::MailTargets;

const NONE: u32 = u32::MAX;

/// A mail on its way, and where what it carries is made.
#[derive(Clone, Copy)]
struct Sent {
    node: NodeId,
    mail: Mail,
    carried: Carried,
}

/// A row that a mail carries.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Carried {
    /// The committed memory of a node, which its owner has.
    Memory(NodeId),
    /// An embedding: the rank that makes it, and which of its roots.
    Root(Rank, u32),
}

/// Plans a rank's commits; owns the scratch space for it, 8 bytes a node.
pub struct RankCommitPlanner {
    row_of: Vec<u32>,
    slot_of: Vec<u32>,
}

impl RankCommitPlanner {
    /// A planner for a stream of `nodes` nodes.
    pub fn new(nodes: usize) -> RankCommitPlanner {
        RankCommitPlanner { row_of: vec![NONE; nodes], slot_of: vec![NONE; nodes] }
    }

    /// What this rank writes of the global batch `events`.
    ///
    /// * `share`: this rank's, whose rows have own endpoints among them. * `batch`: its number, which the planner has shared out.
    pub fn plan(
        &mut self,
        rule: MailRule,
        stream: &EventStream,
        events: &[EventId],
        share: &Share,
        (planner, batch): (&Planner, usize),
    ) -> CommitPlan {
        if rule.targets == MailTargets::Nobody {
            return CommitPlan::default();
        }
        share.rows.iter().enumerate().for_each(|(row, node)| self.row_of[node.index()] = row as u32);
        let mut endpoints = Vec::new(); // all ranks', each once, in order of appearance
        let mut sent: Vec<(u32, Sent)> = Vec::with_capacity(2 * events.len()); // (place of the receiver, mail)
        for end in ends(rule.order, stream, events) {
            let slot = &mut self.slot_of[end.node.index()];
            if *slot == NONE {
                *slot = endpoints.len() as u32;
                endpoints.push(end.node);
            }
            let carried = match rule.rows_of {
                RowsOf::Mixed => Carried::Root(share.made[end.peer_logical].0, share.made[end.peer_logical].1),
                _ => Carried::Memory(end.peer),
            };
            let mail = unsent(end.peer, end.event, stream.time(end.event));
            sent.push((*slot, Sent { node: end.node, mail, carried }));
        }
        if rule.kept == MailsKept::Last {
            let mut last = vec![None; endpoints.len()];
            sent.into_iter().for_each(|mail| last[mail.0 as usize] = Some(mail));
            sent = last.into_iter().flatten().collect();
        }
        let sent: Vec<Sent> = sent.into_iter().map(|(_, mail)| mail).collect();
        let roots = (rule.rows_of == RowsOf::Mixed).then(|| share.sample.hops[0].roots.len() as u32);
        let mut plan = self.own_part(&endpoints, &sent, roots, planner);
        if planner.policy().is_some_and(|policy| policy.looks_ahead) {
            plan.units = units(&plan.replays, stream, events, (planner, batch));
        }
        endpoints.iter().for_each(|node| self.slot_of[node.index()] = NONE);
        plan
    }

    /// Keeps what this rank writes, and notes what it sends and gets for mails.
    ///
    /// * `roots`: how many it embeds, where mails carry embeddings.
    fn own_part(&mut self, endpoints: &[NodeId], sent: &[Sent], roots: Option<u32>, planner: &Planner) -> CommitPlan {
        let own = |node: NodeId| planner.owner(node) == planner.me();
        let nodes: Vec<NodeId> = endpoints.iter().copied().filter(|&node| own(node)).collect();
        let rows = nodes.iter().map(|node| self.row_of[node.index()]).collect();
        let followed = |node: NodeId| planner.replicates(planner.me(), node);
        let replays: Vec<NodeId> = endpoints.iter().copied().filter(|&node| followed(node)).collect();
        for (place, node) in nodes.iter().chain(&replays).enumerate() {
            self.slot_of[node.index()] = place as u32;
        }
        let (peers, received) = self.routes(sent, planner);
        let mut first = HashMap::new(); // where what each peer sends begins among what is at hand
        let mut end = roots.unwrap_or((nodes.len() + replays.len()) as u32);
        for (rank, list) in &peers.into {
            first.insert(*rank, end);
            end += list.len() as u32;
        }
        let place = |carried: Carried| match received.get(&carried) {
            Some((rank, at)) => first[rank] + at,
            None => self.place(carried),
        };
        let here = || sent.iter().filter(|sent| own(sent.node) || followed(sent.node));
        let mails = here().map(|sent| (sent.node, sent.mail)).collect();
        let payload_rows = here().map(|sent| place(sent.carried)).collect();
        CommitPlan { nodes, rows, mails, payload_rows, peers, replays, ..CommitPlan::default() }
    }

    /// Where a row that this rank makes is among those it makes.
    fn place(&self, carried: Carried) -> u32 {
        match carried {
            Carried::Memory(node) => self.slot_of[node.index()],
            Carried::Root(_, root) => root,
        }
    }

    /// What travels for mails, and from whom and at which place each row comes.
    fn routes(&self, mails: &[Sent], planner: &Planner) -> (Routes<u32>, HashMap<Carried, (Rank, u32)>) {
        let (me, mut routes) = (planner.me(), Routes::default());
        let mut sent: HashSet<(Rank, Carried)> = HashSet::new();
        let mut received: HashMap<Carried, (Rank, u32)> = HashMap::new();
        let mut counts: HashMap<Rank, u32> = HashMap::new();
        for &Sent { node, carried, .. } in mails {
            let (from, peer) = match carried {
                Carried::Memory(peer) => (planner.owner(peer), Some(peer)),
                Carried::Root(maker, _) => (maker, None),
            };
            for to in planner.holders(node) {
                if from == to || peer.is_some_and(|peer| planner.replicates(to, peer)) {
                    continue;
                }
                if from == me && sent.insert((to, carried)) {
                    routes.note(me, from, to, self.place(carried));
                }
                if to == me && !received.contains_key(&carried) {
                    let count = counts.entry(from).or_default();
                    received.insert(carried, (from, *count));
                    *count += 1;
                    routes.note(me, from, to, 0);
                }
            }
        }
        (routes, received)
    }
}

/// The work of a batch for each node that is replayed.
fn units(
    replays: &[NodeId],
    stream: &EventStream,
    events: &[EventId],
    (planner, batch): (&Planner, usize),
) -> Vec<Unit> {
    let mut touched: HashMap<NodeId, u32> = HashMap::new();
    for &event in events {
        *touched.entry(stream.source(event)).or_default() += 1;
        *touched.entry(stream.destination(event)).or_default() += 1;
    }
    let unit = |node: &NodeId| {
        let outlook = planner.outlook(*node, batch);
        Unit { events: touched[node], reads: outlook.reads, next: outlook.next, unseen: outlook.unseen }
    };
    replays.iter().map(unit).collect()
}
