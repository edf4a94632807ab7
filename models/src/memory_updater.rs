//! Memory updater (TGN, arXiv:2006.10637, section 3.4): a recurrent cell from message and old row to new row.
//!
//! The message is `[own | peer | edge | time]`; the input weights are stored in those column blocks. Runs once per row with
//! mail; rows and messages are constants, so the only input gradient is that of an applied, learned time code.

use serde::{Deserialize, Serialize};
use tch::Tensor;

use crate::linear::BlockLinear;
use crate::message::Message;
use crate::parameters::{Declarations, Init, Parameters};

/// Which recurrent cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Updater {
    /// Gated recurrent unit (Cho et al. 2014), PyTorch's variant.
    #[default]
    Gru,
    /// `tanh(W_ih x + b_ih + W_hh h + b_hh)`, as in JODIE and DyRep.
    Rnn,
}

/// Widths of a message's blocks.
#[derive(Clone, Copy, Debug)]
pub struct MessageDims {
    /// D_m
    pub memory: i64,
    /// D_p
    pub payload: i64,
    /// D_e
    pub edge: i64,
    /// D_t
    pub time: i64,
    /// Whether the receiver's own row is part of the message.
    pub own: bool,
}

/// A recurrent cell over message blocks.
pub struct MemoryUpdater {
    pub(crate) cell: Updater,
    pub(crate) input: BlockLinear,
    pub(crate) hidden: BlockLinear,
    pub(crate) memory_dim: i64,
    pub(crate) edge: bool,
    own: bool,
}

impl MemoryUpdater {
    /// Declares `{cell}.w_ih.{own,peer,edge,time} [G D_m, .]`, `{cell}.b_ih`, `{cell}.w_hh.own [G D_m, D_m]`, `{cell}.b_hh`;
    /// a GRU has G = 3 gates in the order r, z, n, an RNN one.
    pub fn declare(declare: &mut Declarations, cell: Updater, dims: MessageDims) -> MemoryUpdater {
        let (name, gates) = match cell {
            Updater::Gru => ("gru", 3),
            Updater::Rnn => ("rnn", 1),
        };
        let d_out = gates * dims.memory;
        let init = Init::inverse_root(dims.memory);
        let hidden = [("own", dims.memory)];
        let own = if dims.own { dims.memory } else { 0 };
        let blocks = [("own", own), ("peer", dims.payload), ("edge", dims.edge), ("time", dims.time)];
        let mut linear = |part: &str, blocks: &[(&str, i64)]| {
            let (w, b) = (format!("{name}.w_{part}"), format!("{name}.b_{part}"));
            BlockLinear::declare(declare, &w, &b, blocks, d_out, &init, init.clone())
        };
        let (input, hidden) = (linear("ih", &blocks), linear("hh", &hidden));
        MemoryUpdater { cell, input, hidden, memory_dim: dims.memory, edge: dims.edge > 0, own: dims.own }
    }

    /// New rows.
    ///
    /// * `own`: `[M, D_m]` float, the receivers' old rows.
    /// * returns `[M, D_m]` float.
    pub fn forward(&self, p: &Parameters, own: &Tensor, message: &Message) -> Tensor {
        // x: [M, G D_m], without the own row's part and the bias; the blocks are own, peer, edge if there is one, time
        let first = usize::from(self.own);
        let mut x = message.payload.mm(&self.input.weight(p, first).tr());
        if let (true, Some(features)) = (self.edge, &message.edge_features) {
            x = x.addmm_(features, &self.input.weight(p, first + 1).tr());
        }
        x = x.addmm_(&message.code, &self.input.weight(p, first + 1 + usize::from(self.edge)).tr());
        match self.cell {
            Updater::Gru => self.gru(p, &x, own),
            Updater::Rnn => (x + self.own_part(p, own)).tanh_(),
        }
    }

    /// `r, z = sigmoid(x + h)`, `n = tanh(x_n + r h_n)`, `(1 - z) n + z own`.
    fn gru(&self, p: &Parameters, x: &Tensor, own: &Tensor) -> Tensor {
        let d = self.memory_dim;
        let [x_rz, x_n] = parts(x.split_with_sizes([2 * d, d], 1));
        let [own_rz, own_n, h_n] = parts(self.own_part(p, own).split_with_sizes([2 * d, d, d], 1));
        let [r, z] = parts((x_rz + own_rz).sigmoid_().split(d, 1));
        let n = (x_n + own_n).addcmul_(&r, &h_n).tanh_(); // [M, D_m]
        n.lerp_tensor(own, &z)
    }

    /// What depends on the own row, biases included. It is both hidden state and part of the message, and where a gate only
    /// adds the two (all but a GRU's n) their weights are added first: `[M, D_m]`, or for a GRU `[M, 4 D_m]`, the gates
    /// r, z, then n's share of the message and of the hidden state.
    pub(crate) fn own_part(&self, p: &Parameters, own: &Tensor) -> Tensor {
        let d = self.memory_dim;
        let joined = |input: &Tensor, hidden: &Tensor| match self.cell {
            Updater::Rnn => input + hidden,
            Updater::Gru => {
                let added = input.narrow(0, 0, 2 * d) + hidden.narrow(0, 0, 2 * d);
                Tensor::cat(&[added, input.narrow(0, 2 * d, d), hidden.narrow(0, 2 * d, d)], 0)
            }
        };
        let hidden = self.hidden.weight(p, 0);
        let weight =
            if self.own { joined(self.input.weight(p, 0), hidden) } else { joined(&hidden.zeros_like(), hidden) };
        p.matmul().biased(&joined(self.input.bias(p), self.hidden.bias(p)), own, &weight.tr())
    }
}

fn parts<const N: usize>(parts: Vec<Tensor>) -> [Tensor; N] {
    parts.try_into().expect("as many parts as sizes")
}
