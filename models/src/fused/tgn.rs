//! The whole encoder: mail, node features, layers; and back.

use rayon::prelude::*;
use tch::Tensor;

use super::host::{slice, slice_mut};
use super::layer::{AttentionLayer, Frequencies, FrequencyGradients};
use super::real::Real;
use super::{MailTime, Trace};
use crate::embedding::EmbeddingLayer;
use crate::input::{Embedded, ModelInput};
use crate::message::Message;
use crate::model::Mode;
use crate::tgn::Tgn;
use crate::trained::Trained;

/// Mails a task.
const MAILS: usize = 64;

fn attention(layer: &EmbeddingLayer) -> AttentionLayer<'_> {
    match layer {
        EmbeddingLayer::Attention { attention, merge, edge } => AttentionLayer { attention, merge, edge: *edge },
        _ => unreachable!("only attention layers take this path"),
    }
}

impl Tgn {
    /// The forward pass; in training its trace is kept.
    pub(crate) fn forward_fused<T: Real>(&self, input: &ModelInput, mode: Mode) -> Embedded {
        assert_eq!(input.layers.len(), self.layers.len(), "one layer of roots for each layer of the model");
        let (p, keep) = (&self.trained.parameters, mode == Mode::Train);
        let (w, b) = self.trained.time.values(p);
        let time = Frequencies { w, b };
        let (rows, updater) = self.update_fused::<T>(input, time);
        let mut x = self.rows.with_node_features(p, &rows, input.node_features.as_ref());
        let mut layers = Vec::new();
        for (layer, roots) in self.layers.iter().zip(&input.layers) {
            let (z, trace) = attention(layer).forward::<T>(p, &x, roots, time);
            x = z;
            layers.extend(keep.then_some(trace));
        }
        let node_features = input.node_features.as_ref().map(Tensor::shallow_clone);
        Embedded { trace: keep.then_some(Trace { updater, node_features, layers }), ..Embedded::new(x, rows) }
    }

    /// Rows with pending mail applied, `[N, D_m]`.
    fn update_fused<T: Real>(
        &self,
        input: &ModelInput,
        time: Frequencies,
    ) -> (Tensor, Option<(super::UpdaterTrace, MailTime)>) {
        let mail = &input.mail;
        if mail.row.size()[0] == 0 {
            return (input.memory.shallow_clone(), None);
        }
        let code = mail.code.as_ref().map_or_else(|| encode::<T>(&mail.dt.contiguous(), time), Tensor::shallow_clone);
        let message = Message {
            payload: mail.payload.shallow_clone(),
            edge_features: mail.edge_features.as_ref().map(Tensor::shallow_clone),
            code,
        };
        let own = input.memory.index_select(0, &mail.row); // [M, D_m]
        let (updated, trace) = self.rows.updater.forward_gru::<T>(&self.trained.parameters, own, message, &mail.row);
        let rows = input.memory.index_copy(0, &mail.row, &updated);
        let dt = mail.code.is_none().then(|| mail.dt.contiguous());
        (rows, Some((trace, MailTime(dt))))
    }

    /// Adds the encoder's gradients of `sum(z * grad_z)`.
    pub(crate) fn backward_fused<T: Real>(&mut self, trace: Trace, grad_z: &Tensor) {
        let Tgn { layers, rows, trained: Trained { parameters: p, time: encoder, .. }, .. } = self;
        let (w, b) = encoder.values(p);
        let (w, b) = (w.detach(), b.detach());
        let time = Frequencies { w: &w, b: &b };
        let width = w.numel();
        let mut frequencies: Option<FrequencyGradients> =
            encoder.learned().map(|_| (vec![0.0; width], vec![0.0; width]));
        let mut grad = grad_z.contiguous();
        for (layer, trace) in layers.iter().zip(&trace.layers).rev() {
            grad = attention(layer).backward::<T>(p, trace, &grad, time, frequencies.as_mut());
        }
        if let (Some(id), Some(features)) = (rows.node_projection, &trace.node_features) {
            let _ = p.grad_mut(id).addmm_(&grad.tr(), features);
        }
        if let Some((mail, MailTime(dt))) = trace.updater {
            let at_rows = grad.index_select(0, &mail.row);
            let wanted = frequencies.is_some() && dt.is_some();
            let at_code = rows.updater.backward_gru::<T>(p, mail, &at_rows, wanted);
            if let (Some(at_code), Some(dt), Some(sums)) = (at_code, dt, &mut frequencies) {
                differentiate::<T>(&dt, time, &at_code, sums);
            }
        }
        if let (Some(ids), Some((dw, db))) = (encoder.learned(), frequencies) {
            p.accumulate(&ids, &[dw, db].map(|sum| Tensor::from_slice(&sum).to_kind(T::KIND)));
        }
    }
}

/// Codes `[Q, D_t]` of elapsed times `[Q]`.
fn encode<T: Real>(dt: &Tensor, time: Frequencies) -> Tensor {
    let width = time.w.numel();
    let mut code = Tensor::empty([dt.numel() as i64, width as i64], (T::KIND, dt.device()));
    let (w, b) = (slice(time.w), slice(time.b));
    (slice_mut(&mut code).par_chunks_mut(MAILS * width))
        .zip(slice(dt).par_chunks(MAILS))
        .for_each(|(code, dt)| T::encode(dt, w, b, code));
    code
}

/// Adds the gradients of the frequencies: summed over fixed runs of mails, then over the runs in order.
fn differentiate<T: Real>(dt: &Tensor, time: Frequencies, at_code: &Tensor, sums: &mut FrequencyGradients) {
    let width = time.w.numel();
    let (w, b) = (slice(time.w), slice(time.b));
    let runs = slice(dt).par_chunks(MAILS).zip(slice(at_code).par_chunks(MAILS * width)).map(|(dt, at_code)| {
        let (mut dw, mut db) = (vec![0.0; width], vec![0.0; width]);
        T::differentiate(dt, w, b, at_code, &mut dw, &mut db);
        (dw, db)
    });
    for (dw, db) in runs.collect::<Vec<_>>() {
        sums.0.iter_mut().zip(dw).for_each(|(sum, x)| *sum += x);
        sums.1.iter_mut().zip(db).for_each(|(sum, x)| *sum += x);
    }
}
