//! Messages (TGN, arXiv:2006.10637, sections 3.1 to 3.3): identity message function and aggregator.
//!
//! The raw message of a mail is `[own row | s(peer) | edge features | time code]`, kept as blocks: the own row is read from
//! memory when the mail is applied, the others come with the mail. All are leaves; only a time code made at application
//! carries gradient, and only from a learned encoder.

use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use crate::input::MailInput;

/// How several mails of one batch to one node become one message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Aggregator {
    /// The last one counts (by event id, source before destination); the pipeline keeps no other.
    #[default]
    Last,
    /// The mean of each block.
    Mean,
}

/// When a mail's time is encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MessageTime {
    /// When the mail is applied, with the weights of that moment; its gradient reaches a learned encoder.
    #[default]
    Applied,
    /// When the mail is stored, without gradient (TGN's own code).
    Stored,
}

/// One message a receiver, in blocks. The own row is added by the updater.
#[derive(Debug)]
pub struct Message {
    /// `[M, D_p]`
    pub payload: Tensor,
    /// `[M, D_e]`
    pub edge_features: Option<Tensor>,
    /// `[M, D_t]`
    pub code: Tensor,
}

/// Aggregates the mails of each receiver.
///
/// * `code`: `[Q, D_t]` float, the mails' time codes.
pub fn aggregate(mail: &MailInput, code: Tensor) -> Message {
    match &mail.segment {
        None => Message {
            payload: mail.payload.shallow_clone(),
            edge_features: mail.edge_features.as_ref().map(Tensor::shallow_clone),
            code,
        },
        Some(segment) => {
            let lengths = segment.bincount::<Tensor>(None, mail.row.size()[0]);
            Message {
                payload: segment_mean(&mail.payload, &lengths),
                edge_features: mail.edge_features.as_ref().map(|x| segment_mean(x, &lengths)),
                code: segment_mean(&code, &lengths),
            }
        }
    }
}

/// Means of consecutive rows, summed in row order: deterministic on any device, differentiable.
///
/// * `x`: `[Q, D]` float; `lengths`: `[M]` i64, rows a segment, all positive, summing to Q.
/// * returns `[M, D]`.
fn segment_mean(x: &Tensor, lengths: &Tensor) -> Tensor {
    let sums = Tensor::segment_reduce(x, "sum", Some(lengths), None, None, 0, true, 0.0);
    sums / lengths.to_kind(Kind::Double).unsqueeze(-1).to_kind(x.kind())
}
