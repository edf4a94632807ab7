//! An attention layer and its merge without autograd: the forward pass.
//!
//! The linear maps are products of tensors, by head on views of shared buffers; all between them is one pass over each root's
//! neighbors ([`super::hood`]). Letters: Q = d + D_t wide queries, D = d + D_e + D_t wide neighbors, w = Q / H.

use tch::Tensor;

use super::hood::{Clock, Hood, Sums};
use super::host::{slice, slice_mut};
use super::real::Real;
use crate::attention::Attention;
use crate::input::LayerInput;
use crate::linear::Mlp;
use crate::parameters::{ParameterId, Parameters};

/// The layer's parts.
#[derive(Clone, Copy)]
pub(crate) struct AttentionLayer<'a> {
    pub(crate) attention: &'a Attention,
    pub(crate) merge: &'a Mlp,
    /// Whether it has weights for edge features.
    pub(crate) edge: bool,
}

/// The time encoder's values: `[D_t]` each.
#[derive(Clone, Copy)]
pub(crate) struct Frequencies<'a> {
    pub(crate) w: &'a Tensor,
    pub(crate) b: &'a Tensor,
}

/// Gradients of a learned encoder's `w` and `b`, `[D_t]`.
pub(crate) type FrequencyGradients = (Vec<f64>, Vec<f64>);

/// What the backward pass reads.
#[derive(Debug)]
pub(crate) struct LayerTrace {
    /// `[N, d]`: the layer below.
    pub(super) below: Tensor,
    pub(super) root_index: Tensor,
    pub(super) neighbor: Tensor,
    pub(super) valid: Tensor,
    pub(super) dt: Tensor,
    pub(super) edge_features: Option<Tensor>,
    pub(super) keep: Option<Tensor>,
    /// `[R, d]`
    pub(super) root: Tensor,
    /// `[D_t]`
    pub(super) zero: Tensor,
    /// `[R, Q]`, unscaled.
    pub(super) query: Tensor,
    /// `[Q, D]` each: weight blocks of the neighbors, side by side.
    pub(super) key: Tensor,
    pub(super) value_weight: Tensor,
    /// `[R, H, D]`
    pub(super) u: Tensor,
    /// `[R, K, D_t]`
    pub(super) code: Tensor,
    /// `[R, H, K]`
    pub(super) weight: Tensor,
    /// `[R, H]`
    pub(super) total: Tensor,
    /// `[R, H, D]`
    pub(super) sum: Tensor,
    /// `[R, Q]`
    pub(super) value: Tensor,
    /// `[R]`: 1 where a root has a neighbor, else 0.
    pub(super) present: Tensor,
    /// `[R, D_emb]`, after the relu.
    pub(super) hidden: Tensor,
}

impl LayerTrace {
    pub(super) fn hood<T: Real>(&self, layer: AttentionLayer) -> Hood<'_, T> {
        let dims = layer.attention.dims;
        let edge = self.edge_features.as_ref().map_or(&[][..], slice);
        Hood {
            rows: slice(&self.below),
            neighbor: slice(&self.neighbor),
            valid: slice(&self.valid),
            edge,
            keep: self.keep.as_ref().map_or(&[][..], slice),
            dims: [
                dims.row as usize,
                self.edge_features.as_ref().map_or(0, |_| dims.edge as usize),
                dims.time as usize,
            ],
            fanout: self.neighbor.size()[1] as usize,
            heads: dims.heads as usize,
            scale: T::of((layer.head_width() as f64).powf(-0.5)),
            keep_scale: T::of(1.0 / (1.0 - dims.dropout)),
        }
    }
}

impl AttentionLayer<'_> {
    /// w
    pub(super) fn head_width(self) -> i64 {
        let dims = self.attention.dims;
        (dims.row + dims.time) / dims.heads
    }

    /// Columns `h w..(h + 1) w` of a `[R, Q]` tensor.
    pub(super) fn head(self, x: &Tensor, h: i64) -> Tensor {
        x.narrow(1, h * self.head_width(), self.head_width())
    }

    /// Which weight blocks meet a neighbor.
    pub(super) fn blocks(self, edge: bool) -> Vec<usize> {
        match (self.edge, edge) {
            (false, _) => vec![0, 1],
            (true, false) => vec![0, 2],
            (true, true) => vec![0, 1, 2],
        }
    }

    /// Weight blocks side by side, `[Q, D]`.
    fn join(self, p: &Parameters, edge: bool, id: impl Fn(usize) -> ParameterId) -> Tensor {
        let ids: Vec<ParameterId> = self.blocks(edge).into_iter().map(id).collect();
        let weights: Vec<&Tensor> = ids.iter().map(|&id| &p[id]).collect();
        Tensor::cat(&weights, 1)
    }

    /// Embeds the roots: `[R, D_emb]`.
    ///
    /// * `below`: `[N, d]`.
    pub(crate) fn forward<T: Real>(
        self,
        p: &Parameters,
        below: &Tensor,
        input: &LayerInput,
        time: Frequencies,
    ) -> (Tensor, LayerTrace) {
        let mut trace = self.start(p, below, input, time);
        self.attend::<T>(p, &mut trace, time);
        let merge = self.merge;
        let projection = merge.hidden.weight(p, 0); // [D_emb, Q]
        let weight = projection.mm(&p[self.attention.out_weight]);
        let constant = projection.mv(&p[self.attention.out_bias]); // absent for a root without neighbors
        let bias = merge.hidden.bias(p);
        let mut hidden = p.matmul().biased(bias, &trace.root, &merge.hidden.weight(p, 1).tr()); // [R, D_emb]
        p.matmul().add(&mut hidden, &trace.value, &weight.tr());
        trace.hidden = hidden.addr_(&trace.present, &constant).relu_();
        (merge.output(p, trace.hidden.shallow_clone()), trace)
    }

    /// Gathers inputs, and allocates what the attention writes.
    fn start(self, p: &Parameters, below: &Tensor, input: &LayerInput, time: Frequencies) -> LayerTrace {
        let dims = self.attention.dims;
        let (r, k) = input.neighbor.size2().expect("neighbor: [R, K]");
        let edge_features = input.edge_features.as_ref().filter(|_| self.edge).map(Tensor::contiguous);
        let width = dims.row + dims.time + edge_features.as_ref().map_or(0, |_| dims.edge);
        let empty = |shape: &[i64]| Tensor::empty(shape, (below.kind(), below.device()));
        let root = below.index_select(0, &input.root);
        let zero = time.b.cos();
        let query = self.attention.unscaled_query(p, &root, &zero);
        let edge = edge_features.is_some();
        let key = self.join(p, edge, |i| self.attention.key[i]);
        let value_weight = self.join(p, edge, |i| self.attention.value.block(i));
        LayerTrace {
            below: below.contiguous(),
            root_index: input.root.contiguous(),
            neighbor: input.neighbor.contiguous(),
            valid: input.valid.contiguous(),
            dt: input.dt.contiguous(),
            edge_features,
            keep: input.keep.as_ref().map(Tensor::contiguous),
            root,
            zero,
            query,
            key,
            value_weight,
            u: empty(&[r, dims.heads, width]),
            code: empty(&[r, k, dims.time]),
            weight: empty(&[r, dims.heads, k]),
            total: empty(&[r, dims.heads]),
            sum: empty(&[r, dims.heads, width]),
            value: empty(&[r, dims.row + dims.time]),
            present: input.valid.any_dim(1, false).to_kind(below.kind()),
            hidden: Tensor::new(),
        }
    }

    /// From queries to values.
    fn attend<T: Real>(self, p: &Parameters, trace: &mut LayerTrace, time: Frequencies) {
        let (heads, w) = (self.attention.dims.heads, self.head_width());
        for h in 0..heads {
            let key = trace.key.narrow(0, h * w, w);
            p.matmul().write(&mut trace.u.select(1, h), &self.head(&trace.query, h), &key);
        }
        let mut outputs = [&trace.code, &trace.weight, &trace.total, &trace.sum].map(Tensor::shallow_clone);
        let [code, weight, total, sum] = &mut outputs;
        let out =
            Sums { code: slice_mut(code), weight: slice_mut(weight), total: slice_mut(total), sum: slice_mut(sum) };
        let clock = Clock { dt: slice(&trace.dt), w: slice(time.w), b: slice(time.b) };
        trace.hood::<T>(self).forward(slice(&trace.u), clock, out);
        for h in 0..heads {
            let weight = trace.value_weight.narrow(0, h * w, w).tr();
            p.matmul().write(&mut self.head(&trace.value, h), &trace.sum.select(1, h), &weight);
        }
        let bias = self.attention.value.bias(p).view([1, heads, w]);
        let _ = trace.value.view([-1, heads, w]).addcmul_(&trace.total.unsqueeze(-1), &bias);
    }
}
