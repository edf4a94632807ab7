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
}

/// A recurrent cell over message blocks.
pub struct MemoryUpdater {
    cell: Updater,
    input: BlockLinear,
    hidden: BlockLinear,
    memory_dim: i64,
    edge: bool,
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
        let blocks = [("own", dims.memory), ("peer", dims.payload), ("edge", dims.edge), ("time", dims.time)];
        let mut linear = |part: &str, blocks: &[(&str, i64)]| {
            let (w, b) = (format!("{name}.w_{part}"), format!("{name}.b_{part}"));
            BlockLinear::declare(declare, &w, &b, blocks, d_out, &init, init.clone())
        };
        let (input, hidden) = (linear("ih", &blocks), linear("hh", &blocks[..1]));
        MemoryUpdater { cell, input, hidden, memory_dim: dims.memory, edge: dims.edge > 0 }
    }

    /// New rows.
    ///
    /// * `own`: `[M, D_m]` float, the receivers' old rows.
    /// * returns `[M, D_m]` float.
    pub fn forward(&self, p: &Parameters, own: &Tensor, message: &Message) -> Tensor {
        let mut inputs = vec![Some(own), Some(&message.payload)];
        if self.edge {
            inputs.push(message.edge_features.as_ref());
        }
        inputs.push(Some(&message.code));
        let x = self.input.forward(p, &inputs); // [M, G D_m]
        let h = self.hidden.forward(p, &[Some(own)]); // [M, G D_m]
        match self.cell {
            Updater::Gru => self.gru(&x, &h, own),
            Updater::Rnn => (x + h).tanh_(),
        }
    }

    /// `r, z = sigmoid(x + h)`, `n = tanh(x_n + r h_n)`, `(1 - z) n + z own`.
    fn gru(&self, x: &Tensor, h: &Tensor, own: &Tensor) -> Tensor {
        let d = self.memory_dim;
        let [x_rz, x_n] = two(x.split_with_sizes([2 * d, d], 1));
        let [h_rz, h_n] = two(h.split_with_sizes([2 * d, d], 1));
        let [r, z] = two((x_rz + h_rz).sigmoid_().split(d, 1));
        let n = x_n.addcmul(&r, &h_n).tanh_(); // [M, D_m]
        n.lerp_tensor(own, &z)
    }
}

fn two(parts: Vec<Tensor>) -> [Tensor; 2] {
    parts.try_into().expect("two parts")
}
