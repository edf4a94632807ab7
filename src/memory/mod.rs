//! Node memory and mailbox: all that one batch leaves to the next (TGN, arXiv:2006.10637, section 3.1).
//!
//! One writer: only the pipeline's state stage calls [`NodeMemory::commit`], in batch order. A batch is committed twice, as
//! its state after the forward pass and as its parameters after the optimizer step; between the two the rows that the batch
//! replaced are kept, so that a batch whose loss or gradient is not finite leaves no trace ([`NodeMemory::roll_back`]).
//! Models never see this type: they get rows and return rows.
//!
//! One of several ranks holds its own nodes' state and copies of others' ([`Places`]). Commits write own nodes alone; copies
//! come from their owners ([`NodeMemory::put_copies`]) and are never written back.

mod mailbox;
mod places;

pub use mailbox::{Mail, MailRows, Mailbox};
pub use places::{Place, Places};

use std::collections::VecDeque;
use tch::{Device, Kind, Tensor};
use tidemill_data::id::{EventId, NodeId, Timestamp};

/// Shape of the state that a model keeps per node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateShape {
    /// Nodes of the stream.
    pub nodes: usize,
    /// Width of a memory row, D_m.
    pub memory_dim: i64,
    /// Width of a mail's payload, D_p.
    pub payload_dim: i64,
    /// Width of a stored time code, if the model stores one.
    pub code_dim: Option<i64>,
    /// Floating-point kind.
    pub kind: Kind,
    /// Where the tensors live.
    pub device: Device,
}

/// Memory rows, times of last update and pending mail of every node.
pub struct NodeMemory {
    shape: StateShape,
    origin: Timestamp,
    places: Places,
    rows: Tensor,
    last_update: Vec<Timestamp>,
    mailbox: Mailbox,
    undo: VecDeque<Undo>,
    commits: usize,
}

/// What a batch writes: its endpoints' new rows and the mails it leaves.
pub struct StateCommit<'a> {
    /// Nodes written, each once.
    pub nodes: &'a [NodeId],
    /// `[C, D_m]`: their new memory.
    pub rows: &'a Tensor,
    /// New mails in order; `elapsed` is set here from the committed `last_update`.
    pub mails: &'a [(NodeId, Mail)],
    /// `[Q, D_p]`.
    pub payload: &'a Tensor,
}

/// What a commit replaced.
struct Undo {
    nodes: Vec<NodeId>,
    state: NodeState,
}

/// The whole state of some nodes, in order. Tensors are on the CPU or the state's device as made.
pub struct NodeState {
    /// `[C, D_m]`.
    pub rows: Tensor,
    /// `[C]`.
    pub last_update: Vec<Timestamp>,
    /// Pending mails per node, `[C]`.
    pub counts: Vec<u32>,
    /// Their integers, node after node.
    pub mails: Vec<Mail>,
    /// `[Q, D_p]`.
    pub payload: Tensor,
    /// `[Q, D_t]`.
    pub code: Option<Tensor>,
}

impl NodeState {
    /// The states of some of its nodes, by place.
    pub fn select(&self, places: &[usize]) -> NodeState {
        let ends = self.counts.iter().scan(0usize, |end, &count| {
            *end += count as usize;
            Some(*end)
        });
        let ends: Vec<usize> = ends.collect();
        let mails_of = |&place: &usize| ends[place] - self.counts[place] as usize..ends[place];
        let mails: Vec<usize> = places.iter().flat_map(mails_of).collect();
        let index = |items: &[usize]| {
            let items: Vec<i64> = items.iter().map(|&item| item as i64).collect();
            Tensor::from_slice(&items).to_device(self.rows.device())
        };
        NodeState {
            rows: self.rows.index_select(0, &index(places)),
            last_update: places.iter().map(|&place| self.last_update[place]).collect(),
            counts: places.iter().map(|&place| self.counts[place]).collect(),
            mails: mails.iter().map(|&mail| self.mails[mail]).collect(),
            payload: self.payload.index_select(0, &index(&mails)),
            code: self.code.as_ref().map(|code| code.index_select(0, &index(&mails))),
        }
    }
}

impl NodeMemory {
    /// Zero memory without mail; `origin` is the time of last update of a node never touched.
    pub fn new(shape: StateShape, origin: Timestamp) -> NodeMemory {
        NodeMemory::placed(shape, origin, Places::All { nodes: shape.nodes })
    }

    /// As [`NodeMemory::new`], of the nodes that have a place.
    pub fn placed(shape: StateShape, origin: Timestamp, places: Places) -> NodeMemory {
        let rows = places.capacity();
        NodeMemory {
            rows: Tensor::zeros([rows as i64, shape.memory_dim], (shape.kind, shape.device)),
            last_update: vec![origin; rows],
            mailbox: Mailbox::new(rows, shape.payload_dim, shape.code_dim, shape.kind, shape.device),
            undo: VecDeque::new(),
            commits: 0,
            shape,
            origin,
            places,
        }
    }

    /// The state's shape.
    pub fn shape(&self) -> StateShape {
        self.shape
    }

    /// Back to zero memory without mail, as at the start of an epoch.
    pub fn reset(&mut self) {
        let _ = self.rows.zero_();
        self.last_update.fill(self.origin);
        self.mailbox.clear();
        self.undo.clear();
    }

    /// Memory rows of nodes.
    ///
    /// * returns `[N, D_m]`, a copy.
    pub fn rows(&self, nodes: &[NodeId]) -> Tensor {
        self.rows.index_select(0, &self.index(nodes))
    }

    /// The pending mail, by place.
    pub fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }

    /// Mailbox rows of a node's pending mails, oldest first.
    pub fn pending(&self, node: NodeId) -> &[u32] {
        self.mailbox.rows_of(self.places.of(node))
    }

    /// Committed time of last update.
    pub fn last_update(&self, node: NodeId) -> Timestamp {
        self.last_update[self.places.of(node) as usize]
    }

    /// Time of last update once the pending mail is applied.
    pub fn next_update(&self, node: NodeId) -> Timestamp {
        let place = self.places.of(node);
        self.mailbox.latest(place).unwrap_or(self.last_update[place as usize])
    }

    /// Which nodes are here.
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// Makes `own`, in node order, this rank's nodes, all as at the start of an epoch; copies go.
    pub fn own_afresh(&mut self, own: Vec<NodeId>) {
        *self = NodeMemory::placed(self.shape, self.origin, Places::of_own(self.shape.nodes, own));
    }

    /// Changes who is this rank's own, states staying as they are: `own`, in node order, must have places.
    pub fn set_own(&mut self, own: Vec<NodeId>) {
        self.places.set_own(own);
    }

    /// Takes over copies of other ranks' rows; what was here of these nodes is replaced.
    pub fn put_copies(&mut self, nodes: &[NodeId], state: &NodeState) {
        nodes.iter().for_each(|&node| self.admit(node));
        self.overwrite(nodes, state);
    }

    /// Gives a node that no batch has written its row, unless it is here.
    pub fn admit(&mut self, node: NodeId) {
        if self.places.admit(node) {
            self.grow(self.places.capacity());
        }
    }

    /// Drops all copies.
    pub fn dismiss_copies(&mut self) {
        self.dismiss(&self.places.copied());
    }

    /// Drops nodes' rows.
    pub fn dismiss(&mut self, nodes: &[NodeId]) {
        let gone: Vec<Place> = nodes.iter().filter_map(|&node| self.places.dismiss(node)).collect();
        if gone.is_empty() {
            return;
        }
        let index: Vec<i64> = gone.iter().map(|&place| i64::from(place)).collect();
        let _ = self.rows.index_fill_(0, &Tensor::from_slice(&index).to_device(self.shape.device), 0.0);
        for place in gone {
            self.last_update[place as usize] = self.origin;
            self.mailbox.take(place);
        }
    }

    /// Room for rows `0..capacity`, at least half as much again when it has to grow.
    fn grow(&mut self, capacity: usize) {
        let old = self.last_update.len();
        if capacity > old {
            let grown = capacity.max(old + old / 2);
            self.rows = mailbox::lengthened(&self.rows, grown - old);
            self.last_update.resize(grown, self.origin);
            self.mailbox.grow(grown);
        }
    }

    /// The state commit: endpoints' rows become the memory, their mail is cleared, then the batch's mails are stored.
    ///
    /// `encode` gives the stored time code of the mails' elapsed ticks, for models that store one.
    pub fn commit(&mut self, commit: &StateCommit, encode: impl FnOnce(&[i64]) -> Option<Tensor>) {
        self.undo.push_back(Undo { nodes: commit.nodes.to_vec(), state: self.read(commit.nodes) });
        self.write_rows(commit.nodes, commit.rows);
        for &node in commit.nodes {
            let place = self.places.of(node);
            self.last_update[place as usize] = self.next_update(node);
            self.mailbox.take(place);
        }
        let timed = |&(node, mail): &(NodeId, Mail)| {
            let place = self.places.of(node);
            (place, Mail { elapsed: mail.time.0 - self.last_update[place as usize].0, ..mail })
        };
        let mails: Vec<(Place, Mail)> = commit.mails.iter().map(timed).collect();
        let elapsed: Vec<i64> = mails.iter().map(|(_, mail)| mail.elapsed).collect();
        self.mailbox.put(&mails, commit.payload, encode(&elapsed).as_ref());
        self.commits += 1;
    }

    /// State commits made since the program started, those taken back included: by it readers know what they have seen.
    pub fn commits(&self) -> usize {
        self.commits
    }

    /// The state commit of a model that keeps its latest mails: rows become the memory at the given times, no mail is cleared,
    /// and each receiver keeps its latest `slots` mails, one of them new.
    ///
    /// * `times`: `[C]`, of the last event of each of `commit.nodes`.
    pub fn commit_slots(&mut self, commit: &StateCommit, times: &[Timestamp], slots: usize) {
        let mut touched = commit.nodes.to_vec();
        touched.extend(commit.mails.iter().map(|(node, _)| *node));
        touched.sort_unstable();
        touched.dedup();
        self.undo.push_back(Undo { state: self.read(&touched), nodes: touched });
        self.write_rows(commit.nodes, commit.rows);
        for (&node, &time) in commit.nodes.iter().zip(times) {
            self.last_update[self.places.of(node) as usize] = time;
        }
        let placed = |&(node, mail): &(NodeId, Mail)| (self.places.of(node), mail);
        let mails: Vec<(Place, Mail)> = commit.mails.iter().map(placed).collect();
        self.mailbox.put(&mails, commit.payload, None);
        mails.iter().for_each(|&(place, _)| self.mailbox.keep_latest(place, slots));
    }

    /// The time of last update of a node never touched.
    pub fn origin(&self) -> Timestamp {
        self.origin
    }

    /// The oldest batch without one had its parameter commit: what it replaced is forgotten.
    pub fn settle(&mut self) {
        self.undo.pop_front().expect("a parameter commit follows a state commit");
    }

    /// Takes back every batch without a parameter commit, latest first.
    pub fn roll_back(&mut self) {
        while let Some(undo) = self.undo.pop_back() {
            // A replica may have been dropped since.
            let here: Vec<usize> = (0..undo.nodes.len()).filter(|&i| self.places.holds(undo.nodes[i])).collect();
            let nodes: Vec<NodeId> = here.iter().map(|&i| undo.nodes[i]).collect();
            self.overwrite(&nodes, &undo.state.select(&here));
        }
    }

    /// Copies the whole state of some nodes.
    pub fn read(&self, nodes: &[NodeId]) -> NodeState {
        let pool: Vec<i64> = nodes.iter().flat_map(|&n| self.pending(n)).map(|&row| i64::from(row)).collect();
        let pool_index = Tensor::from_slice(&pool).to_device(self.shape.device);
        NodeState {
            rows: self.rows(nodes),
            last_update: nodes.iter().map(|&n| self.last_update(n)).collect(),
            counts: nodes.iter().map(|&n| self.pending(n).len() as u32).collect(),
            mails: pool.iter().map(|&row| self.mailbox.mail(row as u32)).collect(),
            payload: self.mailbox.payload(&pool_index),
            code: self.mailbox.code(&pool_index),
        }
    }

    /// Replaces the whole state of some nodes by a copy that [`NodeMemory::read`] made.
    pub fn overwrite(&mut self, nodes: &[NodeId], state: &NodeState) {
        self.write_rows(nodes, &state.rows);
        let mut owners = Vec::with_capacity(state.mails.len());
        for ((&node, &time), &count) in nodes.iter().zip(&state.last_update).zip(&state.counts) {
            let place = self.places.of(node);
            self.last_update[place as usize] = time;
            self.mailbox.take(place);
            owners.extend((0..count).map(|_| place));
        }
        let mails: Vec<(Place, Mail)> = owners.into_iter().zip(state.mails.iter().copied()).collect();
        self.mailbox.put(&mails, &state.payload, state.code.as_ref());
    }

    /// Copies the whole state of all own nodes.
    pub fn read_all(&self) -> NodeState {
        self.read(&self.all_nodes())
    }

    /// Copies the whole state of all own nodes, a few at a time and in order: what a large state is hashed and stored by.
    pub fn parts(&self) -> impl Iterator<Item = NodeState> + '_ {
        self.nodes_of_parts().map(|nodes| self.read(&nodes))
    }

    /// The nodes of each of [`NodeMemory::parts`].
    pub fn nodes_of_parts(&self) -> impl Iterator<Item = Vec<NodeId>> + use<> {
        let (places, nodes) = (self.places.clone(), self.places.own_len());
        (0..nodes).step_by(PART).map(move |first| places.own(first..(first + PART).min(nodes)))
    }

    /// Replaces the whole state of all own nodes; nothing is left to roll back to.
    pub fn restore(&mut self, state: &NodeState) {
        self.reset();
        self.overwrite(&self.all_nodes(), state);
    }

    /// Heap bytes of the tensors.
    pub fn bytes(&self) -> usize {
        self.rows.numel() * self.shape.kind.elt_size_in_bytes() + self.mailbox.bytes()
    }

    fn all_nodes(&self) -> Vec<NodeId> {
        self.places.own(0..self.places.own_len())
    }

    fn index(&self, nodes: &[NodeId]) -> Tensor {
        row_numbers(nodes.iter().map(|&node| self.places.of(node))).to_device(self.shape.device)
    }

    fn write_rows(&mut self, nodes: &[NodeId], rows: &Tensor) {
        if !nodes.is_empty() {
            let index = self.index(nodes);
            let _ = self.rows.index_copy_(0, &index, &rows.detach());
        }
    }
}

/// `[n]` i64, on the host: numbers of rows, to select or to write them by.
pub fn row_numbers(rows: impl Iterator<Item = u32>) -> Tensor {
    Tensor::from_slice(&rows.map(i64::from).collect::<Vec<_>>())
}

/// Nodes of one of [`NodeMemory::parts`].
pub const PART: usize = 1 << 15;

/// A mail of an event before it is stored.
pub fn unsent(peer: NodeId, event: EventId, time: Timestamp) -> Mail {
    Mail { peer, event, time, elapsed: 0 }
}

#[cfg(test)]
mod tests;
