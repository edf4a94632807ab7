//! The link decoder and its loss, forward and backward, without autograd.
//!
//! Both products are taken before embeddings are paired; pairs are then visited once: hidden layer, logit, loss, and the gradients
//! at the two products. One thread does it, in order of events: scatter-adds into shared embeddings are deterministic.

use tch::Tensor;

use super::host::{slice, slice_mut};
use super::real::Real;
use super::simd::{Kernel, add_scaled, dot, run};
use crate::decoder::Decoder;
use crate::input::{LossReduction, PairInput, Scored};
use crate::parameters::Parameters;

impl Decoder {
    /// Scores pairs, adds the decoder's gradients, and returns the loss and its gradient at `z`.
    ///
    /// * `z`: `[R, D_emb]`.
    pub(crate) fn score<T: Real>(&self, p: &mut Parameters, z: &Tensor, pairs: &PairInput) -> Scored {
        let hidden = &self.mlp.hidden;
        let z = z.contiguous();
        let sources = z.index_select(0, &pairs.source); // [B, D_emb]
        let matmul = p.matmul();
        let source = matmul.biased(hidden.bias(p), &sources, &hidden.weight(p, 0).tr());
        let all = matmul.product(&z, &hidden.weight(p, 1).tr()); // [R, D_emb]
        let (mut at_source, mut at_all) = (source.zeros_like(), all.zeros_like());
        let empty = |index: &Tensor| Tensor::empty(index.size(), (T::KIND, z.device()));
        let (mut positive, mut negative) = (empty(&pairs.destination), empty(&pairs.negative));
        let (w2, mut output) = (p[self.mlp.w2].contiguous(), Output::new(&p[self.mlp.b2]));
        let mut at_w2 = w2.zeros_like();
        let draws = (negative.numel() / positive.numel().max(1)).max(1);
        let share = if pairs.loss == LossReduction::Mean { 0.5 } else { 1.0 } / pairs.events;
        for (index, logit, sign, share, draws) in [
            (&pairs.destination, &mut positive, 1.0, share, 1),
            (&pairs.negative, &mut negative, -1.0, share / draws as f64, draws),
        ] {
            run(Visit {
                source: slice(&source),
                all: slice(&all),
                w2: slice::<T>(&w2),
                index: slice(&index.contiguous()),
                draws,
                sign,
                share,
                logit: slice_mut(logit),
                at_source: slice_mut(&mut at_source),
                at_all: slice_mut(&mut at_all),
                at_w2: slice_mut(&mut at_w2),
                output: &mut output,
            });
        }
        let mut grad_z = matmul.product(&at_all, hidden.weight(p, 1));
        let _ = grad_z.index_add_(0, &pairs.source, &matmul.product(&at_source, hidden.weight(p, 0)));
        hidden.add_weight_gradient(p, 0, &at_source, &sources);
        hidden.add_weight_gradient(p, 1, &at_all, &z);
        hidden.add_bias_gradient(p, &at_source);
        let _ = p.grad_mut(self.mlp.w2).g_add_(&at_w2);
        let _ = p.grad_mut(self.mlp.b2).g_add_scalar_(output.at_bias);
        Scored { positive, negative, loss: output.loss, grad_z }
    }
}

/// The output unit's bias, its gradient, and the loss.
struct Output {
    bias: f64,
    at_bias: f64,
    loss: f64,
}

impl Output {
    fn new(bias: &Tensor) -> Output {
        Output { bias: bias.double_value(&[0]), at_bias: 0.0, loss: 0.0 }
    }
}

/// All pairs of one sign.
struct Visit<'a, T> {
    /// `[B, D]`
    source: &'a [T],
    /// `[R, D]`
    all: &'a [T],
    /// `[D]`
    w2: &'a [T],
    /// `[B * draws]`, rows of `all`.
    index: &'a [i64],
    draws: usize,
    /// 1 for true pairs, -1 for negatives: the loss is `-log sigmoid(sign logit)`.
    sign: f64,
    /// Weight of a pair in the loss.
    share: f64,
    /// `[B * draws]`
    logit: &'a mut [T],
    /// `[B, D]`
    at_source: &'a mut [T],
    /// `[R, D]`
    at_all: &'a mut [T],
    /// `[D]`
    at_w2: &'a mut [T],
    output: &'a mut Output,
}

impl<T: Real> Kernel for Visit<'_, T> {
    #[inline(always)]
    fn compute(self) {
        let d = self.w2.len();
        let mut hidden = vec![T::default(); d];
        for (pair, (&row, logit)) in self.index.iter().zip(self.logit).enumerate() {
            let row = row as usize * d..(row as usize + 1) * d;
            let event = pair / self.draws * d..(pair / self.draws + 1) * d;
            for ((h, a), s) in hidden.iter_mut().zip(&self.all[row.clone()]).zip(&self.source[event.clone()]) {
                *h = relu(*a + *s);
            }
            *logit = dot(&hidden, self.w2) + T::of(self.output.bias);
            let x = logit.wide() * self.sign;
            self.output.loss += self.share * ((-x.abs()).exp().ln_1p() - x.min(0.0)); // -log sigmoid(x)
            let at_logit = -self.sign * self.share / (1.0 + x.exp());
            self.output.at_bias += at_logit;
            let at_logit = T::of(at_logit);
            add_scaled(self.at_w2, at_logit, &hidden);
            let at_hidden = self.w2.iter().zip(&hidden).map(|(w, h)| gate(at_logit * *w, *h));
            for ((g, s), a) in at_hidden.zip(&mut self.at_source[event]).zip(&mut self.at_all[row]) {
                *s += g;
                *a += g;
            }
        }
    }
}

/// `max(x, 0)`; NaN stays NaN.
#[inline(always)]
fn relu<T: Real>(x: T) -> T {
    if x < T::default() { T::default() } else { x }
}

/// A gradient that passes where the unit is on.
#[inline(always)]
fn gate<T: Real>(gradient: T, unit: T) -> T {
    if unit > T::default() { gradient } else { T::default() }
}
