//! An attention layer and its merge without autograd: the backward pass, from the embeddings to the layer below.
//!
//! Gradients of weights are added to the flat buffer as products; letters as in [`super::layer`].

use tch::Tensor;

use super::hood::{Given, Gradients, Hood};
use super::host::{slice, slice_mut};
use super::layer::{AttentionLayer, Frequencies, FrequencyGradients, LayerTrace};
use super::readers::{Readers, Shares};
use super::real::Real;
use crate::parameters::{ParameterId, Parameters};

/// Gradients at the inputs and outputs of [`Hood::forward`].
struct AtHood {
    /// `[R, H, D]`
    sum: Tensor,
    /// `[R, H]`
    total: Tensor,
    /// `[R, H, D]`
    u: Tensor,
    /// `[R, H, K]`, unscaled scores.
    score: Tensor,
    /// `[R, H, K]`: the weights after dropout (no gradients, but neighbors' gradients are made of them).
    dropped: Tensor,
}

impl AttentionLayer<'_> {
    /// Adds the gradients of the weights, and those of a learned encoder to `frequencies`; returns the gradient at `below`.
    ///
    /// * `grad`: `[R, D_emb]`.
    pub(crate) fn backward<T: Real>(
        self,
        p: &mut Parameters,
        trace: &LayerTrace,
        grad: &Tensor,
        time: Frequencies,
        frequencies: Option<&mut FrequencyGradients>,
    ) -> Tensor {
        let at_hidden = self.merge.backward_output(p, grad, &trace.hidden); // [R, D_emb]
        let (mut at_root, at_value) = self.backward_merge(p, trace, &at_hidden);
        let hood = trace.hood::<T>(self);
        let mut at = self.backward_values(p, trace, &at_value);
        at.backward(&hood, trace);
        let at_zero = self.backward_queries(p, trace, &at.u, &mut at_root);
        let shares = at.shares(&hood, trace, &at_root);
        if let Some((dw, db)) = frequencies {
            shares.frequencies(slice(&trace.dt), slice(time.w), slice(time.b), dw, db);
            if let Some(at_zero) = at_zero {
                T::differentiate(&[T::default()], slice(time.w), slice(time.b), slice(&at_zero), dw, db);
            }
        }
        let mut below = trace.below.empty_like();
        let rows = trace.below.size()[0] as usize;
        let readers = Readers::new(rows, hood.neighbor, hood.valid, slice(&trace.root_index));
        shares.rows(&readers, slice_mut(&mut below));
        below
    }

    /// Gradients of the merge's first map and of `W_o`, `b_o`; returns those at the roots and at the values.
    fn backward_merge(self, p: &mut Parameters, trace: &LayerTrace, at_hidden: &Tensor) -> (Tensor, Tensor) {
        let (linear, weight, bias) = (&self.merge.hidden, self.attention.out_weight, self.attention.out_bias);
        let transposed = at_hidden.tr();
        let at_constant = transposed.mv(&trace.present); // [D_emb]
        let at_weight = p.matmul().product(&transposed, &trace.value); // [D_emb, Q]
        let at_value = p.matmul().product(at_hidden, &linear.weight(p, 0).mm(&p[weight]));
        let at_root = p.matmul().product(at_hidden, linear.weight(p, 1));
        let projection = linear.weight(p, 0).tr();
        let _ = p.grad_mut(linear.block(0)).addmm_(&at_weight, &p[weight].tr()).addr_(&at_constant, &p[bias]);
        let _ = p.grad_mut(weight).addmm_(&projection, &at_weight);
        let _ = p.grad_mut(bias).addmv_(&projection, &at_constant);
        linear.add_weight_gradient(p, 1, at_hidden, &trace.root);
        linear.add_bias_gradient(p, at_hidden);
        (at_root, at_value)
    }

    /// Gradients of `W_v` and `b_v`, and those at the sums and at their weights' totals.
    fn backward_values(self, p: &mut Parameters, trace: &LayerTrace, at_value: &Tensor) -> AtHood {
        let (heads, w, value) = (self.attention.dims.heads, self.head_width(), &self.attention.value);
        let by_head = at_value.view([-1, heads, w]);
        let at_total = (&by_head * value.bias(p).view([1, heads, w])).sum_dim_intlist(-1, false, None);
        let at_bias = (&by_head * trace.total.unsqueeze(-1)).sum_dim_intlist(0, false, None);
        let _ = p.grad_mut(value.bias_id()).g_add_(&at_bias.view(-1));
        let at_sum = trace.sum.empty_like();
        for h in 0..heads {
            let weight = trace.value_weight.narrow(0, h * w, w);
            p.matmul().write(&mut at_sum.select(1, h), &self.head(at_value, h), &weight);
        }
        self.add_head_gradients(p, trace, |i| value.block(i), at_value, &trace.sum);
        let like = |x: &Tensor| x.empty_like();
        AtHood {
            sum: at_sum,
            total: at_total,
            u: like(&trace.u),
            score: like(&trace.weight),
            dropped: like(&trace.weight),
        }
    }

    /// Gradients of `W_k`, `W_q` and `b_q`; adds those at the roots, and returns that at the code of zero, if the query holds it.
    fn backward_queries(
        self,
        p: &mut Parameters,
        trace: &LayerTrace,
        at_u: &Tensor,
        at_root: &mut Tensor,
    ) -> Option<Tensor> {
        let (heads, w, query) = (self.attention.dims.heads, self.head_width(), &self.attention.query);
        let at_query = trace.query.empty_like();
        for h in 0..heads {
            let key = trace.key.narrow(0, h * w, w).tr();
            p.matmul().write(&mut self.head(&at_query, h), &at_u.select(1, h), &key);
        }
        self.add_head_gradients(p, trace, |i| self.attention.key[i], &trace.query, at_u);
        query.add_weight_gradient(p, 0, &at_query, &trace.root);
        p.matmul().add(at_root, &at_query, query.weight(p, 0));
        let at_constant = at_query.sum_dim_intlist(0, false, None); // [Q]
        let _ = p.grad_mut(query.bias_id()).g_add_(&at_constant);
        self.attention.dims.root_time.then(|| {
            let _ = p.grad_mut(query.block(1)).addr_(&at_constant, &trace.zero);
            query.weight(p, 1).tr().mv(&at_constant)
        })
    }

    /// Adds `narrow_h^T wide_h` to head h's rows of each weight block.
    ///
    /// * `narrow`: `[R, Q]`, `wide`: `[R, H, D]`.
    fn add_head_gradients(
        self,
        p: &mut Parameters,
        trace: &LayerTrace,
        id: impl Fn(usize) -> ParameterId,
        narrow: &Tensor,
        wide: &Tensor,
    ) {
        let w = self.head_width();
        for h in 0..self.attention.dims.heads {
            let (transposed, wide) = (self.head(narrow, h).tr(), wide.select(1, h));
            let mut from = 0;
            for i in self.blocks(trace.edge_features.is_some()) {
                let gradient = p.grad_mut(id(i));
                let width = gradient.size()[1];
                p.matmul().add(&mut gradient.narrow(0, h * w, w), &transposed, &wide.narrow(1, from, width));
                from += width;
            }
        }
    }
}

impl AtHood {
    fn backward<T: Real>(&mut self, hood: &Hood<T>, trace: &LayerTrace) {
        let given = Given {
            code: slice(&trace.code),
            weight: slice(&trace.weight),
            at_sum: slice(&self.sum),
            at_total: slice(&self.total),
        };
        let out = Gradients {
            at_u: slice_mut(&mut self.u),
            at_score: slice_mut(&mut self.score),
            dropped: slice_mut(&mut self.dropped),
        };
        hood.backward(given, out);
    }

    fn shares<'a, T: Real>(
        &'a self,
        hood: &'a Hood<'a, T>,
        trace: &'a LayerTrace,
        at_root: &'a Tensor,
    ) -> Shares<'a, T> {
        Shares {
            hood,
            u: slice(&trace.u),
            at_sum: slice(&self.sum),
            at_score: slice(&self.score),
            dropped: slice(&self.dropped),
            at_root: slice(at_root),
        }
    }
}
