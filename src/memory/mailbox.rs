//! The mailbox: raw messages that wait until their node is next read (TGN, arXiv:2006.10637, section 3.2 and algorithm 2).
//!
//! A mail holds who the other endpoint was, when, and that endpoint's memory at the time (`payload`); the node's own memory
//! is not stored since it cannot change before the mail is applied, and edge features are looked up by event id.
//! Payloads live in one tensor, a pool of rows; a node's list of pool rows keeps the order in which its mails came.
//! How many mails a node keeps is the model's rule, not the mailbox's. Nodes are known by their [`Place`] alone.

use super::Place;
use smallvec::SmallVec;
use tch::{Device, Kind, Tensor};
use tidemill_data::id::{EventId, NodeId, Timestamp};

/// The integers of one pending mail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mail {
    /// The other endpoint of the event.
    pub peer: NodeId,
    /// The event.
    pub event: EventId,
    /// The event's time.
    pub time: Timestamp,
    /// Ticks from the node's last update to the event, when the mail was stored. Of a mail that is the mean of several: what
    /// `time` leaves out of theirs, in parts of a tick, see [`Mail::mean`].
    pub elapsed: i64,
}

/// Parts of a tick in the time of a mean of mails.
const PARTS: i64 = 1 << 52;

impl Mail {
    /// One mail of the mean time of several, as the last of them says it is.
    ///
    /// # Panics
    /// If there are none.
    pub fn mean(mails: &[Mail]) -> Mail {
        let last = *mails.last().expect("a mean of at least one mail");
        let (sum, count) = (mails.iter().map(|mail| i128::from(mail.time.0)).sum::<i128>(), mails.len() as i128);
        let parts = sum.rem_euclid(count) * i128::from(PARTS) / count;
        Mail { time: Timestamp(sum.div_euclid(count) as i64), elapsed: parts as i64, ..last }
    }

    /// Ticks from a kept mail to `time`, parts of a tick included.
    pub fn ticks_until(&self, time: Timestamp) -> f64 {
        (time.0 - self.time.0) as f64 - self.elapsed as f64 / PARTS as f64
    }
}

/// Pool rows of one node's mails, oldest first.
pub type MailRows = SmallVec<[u32; 2]>;

/// Pending mails of all nodes.
pub struct Mailbox {
    rows: Vec<MailRows>,
    pool: Vec<Mail>,
    free: Vec<u32>,
    payload: Tensor,
    code: Option<Tensor>,
}

impl Mailbox {
    /// An empty mailbox for nodes at `0..places`.
    ///
    /// * `payload_dim`: width of a mail's tensor part. * `code_dim`: width of a stored time code, if the model stores one.
    pub fn new(places: usize, payload_dim: i64, code_dim: Option<i64>, kind: Kind, device: Device) -> Mailbox {
        let table = |width| Tensor::zeros([0, width], (kind, device));
        Mailbox {
            rows: vec![MailRows::new(); places],
            pool: Vec::new(),
            free: Vec::new(),
            payload: table(payload_dim),
            code: code_dim.map(table),
        }
    }

    /// Room for nodes at `0..places`.
    pub fn grow(&mut self, places: usize) {
        self.rows.resize(places, MailRows::new());
    }

    /// Forgets all mail.
    pub fn clear(&mut self) {
        self.rows.iter_mut().for_each(MailRows::clear);
        self.pool.clear();
        self.free = (0..self.payload.size()[0] as u32).rev().collect();
        self.pool.resize(self.free.len(), NO_MAIL);
    }

    /// Pool rows of the node's pending mails, oldest first.
    pub fn rows_of(&self, node: Place) -> &[u32] {
        &self.rows[node as usize]
    }

    /// The mail in a pool row.
    pub fn mail(&self, row: u32) -> Mail {
        self.pool[row as usize]
    }

    /// Time of the node's latest pending mail.
    pub fn latest(&self, node: Place) -> Option<Timestamp> {
        self.rows_of(node).last().map(|&row| self.mail(row).time)
    }

    /// Payloads of pool rows.
    ///
    /// * `rows`: `[Q]` i64. * returns `[Q, D_p]`.
    pub fn payload(&self, rows: &Tensor) -> Tensor {
        self.payload.index_select(0, rows)
    }

    /// Stored time codes of pool rows, if the model stores them.
    ///
    /// * `rows`: `[Q]` i64. * returns `[Q, D_t]`.
    pub fn code(&self, rows: &Tensor) -> Option<Tensor> {
        self.code.as_ref().map(|code| code.index_select(0, rows))
    }

    /// Drops the node's pending mails.
    pub fn take(&mut self, node: Place) {
        self.free.extend(self.rows[node as usize].drain(..));
    }

    /// Drops all but the node's latest `count` mails.
    pub fn keep_latest(&mut self, node: Place, count: usize) {
        let rows = &mut self.rows[node as usize];
        let surplus = rows.len().saturating_sub(count);
        self.free.extend(rows.drain(..surplus));
    }

    /// Appends mails to their nodes, in order.
    ///
    /// * `payload`: `[Q, D_p]`. * `code`: `[Q, D_t]`, exactly if the model stores time codes.
    pub fn put(&mut self, mails: &[(Place, Mail)], payload: &Tensor, code: Option<&Tensor>) {
        if mails.is_empty() {
            return;
        }
        self.reserve(mails.len());
        let rows: Vec<i64> = mails.iter().map(|&(node, mail)| i64::from(self.place(node, mail))).collect();
        let rows = Tensor::from_slice(&rows).to_device(self.payload.device());
        let _ = self.payload.index_copy_(0, &rows, payload);
        if let (Some(table), Some(code)) = (self.code.as_mut(), code) {
            let _ = table.index_copy_(0, &rows, code);
        }
    }

    /// Heap bytes of the payload pool.
    pub fn bytes(&self) -> usize {
        let of = |t: &Tensor| t.numel() * t.kind().elt_size_in_bytes();
        of(&self.payload) + self.code.as_ref().map_or(0, of)
    }

    fn place(&mut self, node: Place, mail: Mail) -> u32 {
        let row = self.free.pop().expect("room was reserved");
        self.pool[row as usize] = mail;
        self.rows[node as usize].push(row);
        row
    }

    /// Makes room for `more` mails, at least doubling the pool when it is full.
    fn reserve(&mut self, more: usize) {
        if self.free.len() >= more {
            return;
        }
        let old = self.pool.len();
        let grown = (old + more - self.free.len()).max(old * 2).max(1024);
        self.payload = lengthened(&self.payload, grown - old);
        self.code = self.code.as_ref().map(|code| lengthened(code, grown - old));
        self.pool.resize(grown, NO_MAIL);
        self.free.splice(0..0, (old as u32..grown as u32).rev());
    }
}

/// A matrix with `more` rows of zeros below.
pub(super) fn lengthened(table: &Tensor, more: usize) -> Tensor {
    let rows = table.size()[0];
    let grown = Tensor::zeros([rows + more as i64, table.size()[1]], (table.kind(), table.device()));
    grown.narrow(0, 0, rows).copy_(table);
    grown
}

const NO_MAIL: Mail = Mail { peer: NodeId(0), event: EventId(0), time: Timestamp(0), elapsed: 0 };
