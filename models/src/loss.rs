//! Binary cross-entropy of logits over a batch's true and negative pairs.
//!
//! The divisor is the *global* batch's event count, so that the losses and gradients of ranks that share a batch add up to
//! those of one rank.

use tch::Tensor;

use crate::input::LossReduction;

/// Mean cross-entropy of the positives plus that of the negatives (`Sum`), or half of it (`Mean`).
///
/// * `positive`: `[B]`, `negative`: `[B * n]` logits; `events`: the global number of events.
/// * returns a scalar.
pub fn link_loss(positive: &Tensor, negative: &Tensor, events: f64, reduction: LossReduction) -> Tensor {
    let kind = positive.kind();
    let draws = (negative.size()[0] / positive.size()[0].max(1)).max(1) as f64;
    let scale = match reduction {
        LossReduction::Sum => -1.0,
        LossReduction::Mean => -0.5,
    };
    // log(1 - sigmoid(x)) = log sigmoid(-x)
    positive.log_sigmoid().sum(kind) * (scale / events)
        + negative.neg().log_sigmoid().sum(kind) * (scale / (events * draws))
}
