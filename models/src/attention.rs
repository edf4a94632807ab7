//! Multi-head attention of a root over its neighbors (Vaswani et al. 2017; TGN, arXiv:2006.10637, section 3.5, eq. 9 to 13).
//!
//! Query `[root row | code(0)]`, key = value = `[neighbor row | edge features | time code]`. Linear maps are moved from the
//! R K neighbors to the R roots, which changes no result but rounding:
//! `q . (W_k x) = (W_k^T q) . x` and `sum_j a_j (W_v x_j + b_v) = W_v (sum_j a_j x_j) + b_v sum_j a_j`.
//! A key bias would shift all scores of a root alike, and softmax ignores that: there is none. Dropout masks are inputs; kept
//! weights are scaled by `1 / (1 - p)`, so they need not sum to one. A root without neighbors gets zeros, output bias included.

use tch::{Kind, Tensor};

use crate::linear::BlockLinear;
use crate::neighborhood::{Neighborhood, sum_of_products};
use crate::parameters::{Declarations, Init, ParameterId, Parameters};

/// Widths and choices of one attention layer.
#[derive(Clone, Copy, Debug)]
pub struct AttentionDims {
    /// d: width of root and neighbor rows.
    pub row: i64,
    /// D_e
    pub edge: i64,
    /// D_t
    pub time: i64,
    /// H, a divisor of Q = d + D_t.
    pub heads: i64,
    /// Probability with which a weight was dropped in the mask.
    pub dropout: f64,
    /// Whether the query holds the time code of zero.
    pub root_time: bool,
}

/// One attention layer; its output is Q = d + D_t wide.
pub struct Attention {
    pub(crate) dims: AttentionDims,
    pub(crate) query: BlockLinear,
    /// `[Q, d_i]` a block.
    pub(crate) key: Vec<ParameterId>,
    pub(crate) value: BlockLinear,
    pub(crate) out_weight: ParameterId,
    pub(crate) out_bias: ParameterId,
}

impl Attention {
    /// Declares `{name}.wq.{memory,time}`, `{name}.{wk,wv}.{memory,edge,time} [Q, .]`, `{name}.{bq,bv,bo} [Q]`,
    /// `{name}.wo [Q, Q]`.
    pub fn declare(declare: &mut Declarations, name: &str, dims: AttentionDims) -> Attention {
        let q = dims.row + dims.time;
        let query = [("memory", dims.row), ("time", if dims.root_time { dims.time } else { 0 })];
        let fan_in: i64 = query.iter().map(|(_, width)| width).sum();
        let neighbor = [("memory", dims.row), ("edge", dims.edge), ("time", dims.time)];
        let neighbor_init = Init::xavier_uniform(dims.row + dims.edge + dims.time, q);
        let mut linear = |part: &str, blocks: &[(&str, i64)], init: &Init| {
            let (w, b) = (format!("{name}.w{part}"), format!("{name}.b{part}"));
            BlockLinear::declare(declare, &w, &b, blocks, q, init, Init::Constant(0.0))
        };
        let query = linear("q", &query, &Init::xavier_uniform(fan_in, q));
        let value = linear("v", &neighbor, &neighbor_init);
        let key = (neighbor.iter().filter(|(_, width)| *width > 0))
            .map(|(block, width)| declare.add(format!("{name}.wk.{block}"), &[q, *width], neighbor_init.clone()))
            .collect();
        let out_weight = declare.add(format!("{name}.wo"), &[q, q], Init::inverse_root(q));
        let out_bias = declare.add(format!("{name}.bo"), &[q], Init::Constant(0.0));
        Attention { dims, query, key, value, out_weight, out_bias }
    }

    /// Attends from each root to its neighbors.
    ///
    /// * `root`: `[R, d]` float.
    /// * `zero_code`: `[D_t]` float, the time code of zero.
    /// * `neighbors`: blocks in the order memory, edge (if the layer has weights for it), time; `present[i]` says which of the
    ///   weight blocks the i-th one belongs to.
    /// * `keep`: `[R, H, K]` float 0 or 1.
    /// * `projection`: `[D, Q]` float, the linear map that reads the attention's output `W_o v + b_o`. It is multiplied with
    ///   `W_o` before either meets the R roots.
    /// * returns `[R, D]`: the output, projected; zeros for a root without neighbors.
    pub fn forward(
        &self,
        p: &Parameters,
        root: &Tensor,
        zero_code: &Tensor,
        neighbors: &Neighborhood,
        present: &[usize],
        keep: Option<&Tensor>,
        projection: &Tensor,
    ) -> Tensor {
        let query = self.queries(p, root, zero_code); // [H, R, Q/H]
        let keys: Vec<Tensor> = (present.iter())
            .map(|&i| query.bmm(&self.by_head(&p[self.key[i]])).transpose(0, 1)) // [R, H, d_i]
            .collect();
        let weights = self.weights(&neighbors.scores(&keys), neighbors, keep); // [R, H, K]
        let sums = neighbors.sums(&weights);
        let value = self.values(p, &sums, present, keep.map(|_| &weights)); // [R, Q]
        let weight = projection.mm(&p[self.out_weight]); // [D, Q]
        let mut out = projection.mv(&p[self.out_bias]).addmm(&value, &weight.tr()); // [R, D]
        out.masked_fill_(&neighbors.alone(), 0.0)
    }

    /// Queries, `[R, Q]`.
    pub(crate) fn unscaled_query(&self, p: &Parameters, root: &Tensor, zero_code: &Tensor) -> Tensor {
        let constant = if self.dims.root_time {
            self.query.bias(p).addmv(self.query.weight(p, 1), zero_code) // [Q]
        } else {
            self.query.bias(p).shallow_clone()
        };
        p.matmul().biased(&constant, root, &self.query.weight(p, 0).tr())
    }

    /// Scaled queries by head, `[H, R, Q/H]`.
    fn queries(&self, p: &Parameters, root: &Tensor, zero_code: &Tensor) -> Tensor {
        let query = self.unscaled_query(p, root, zero_code);
        let width = query.size()[1] / self.dims.heads;
        (query * (width as f64).powf(-0.5)).view([-1, self.dims.heads, width]).transpose(0, 1)
    }

    /// A weight `[Q, d]` as `[H, Q/H, d]`.
    fn by_head(&self, weight: &Tensor) -> Tensor {
        weight.view([self.dims.heads, -1, weight.size()[1]])
    }

    /// Softmax over the neighbors that are there, then dropout.
    fn weights(&self, scores: &Tensor, neighbors: &Neighborhood, keep: Option<&Tensor>) -> Tensor {
        let lowest = if scores.kind() == Kind::Double { f64::MIN } else { f64::from(f32::MIN) };
        let masked = scores.masked_fill(&neighbors.valid.logical_not().unsqueeze(1), lowest);
        let weights = masked.softmax(-1, None);
        match keep {
            Some(keep) => weights * (keep / (1.0 - self.dims.dropout)),
            None => weights,
        }
    }

    /// Values of the aggregated neighbors, `[R, Q]`.
    ///
    /// * `sums`: `[R, H, d_i]` a block.
    /// * `weights`: `[R, H, K]` when they need not sum to one.
    fn values(&self, p: &Parameters, sums: &[Tensor], present: &[usize], weights: Option<&Tensor>) -> Tensor {
        let by_head: Vec<Tensor> = sums.iter().map(|x| x.transpose(0, 1)).collect(); // [H, R, d_i]
        let weight = |i: &usize| self.by_head(self.value.weight(p, *i)).transpose(1, 2); // [H, d_i, Q/H]
        let value = sum_of_products(by_head.iter().zip(present.iter().map(weight))).transpose(0, 1); // [R, H, Q/H]
        let bias = self.value.bias(p).view([1, self.dims.heads, -1]);
        let value = match weights {
            Some(weights) => value.addcmul(&weights.sum_dim_intlist(-1, true, None), &bias),
            None => value + bias,
        };
        value.reshape([-1, self.dims.row + self.dims.time])
    }
}
