//! Temporal Graph Attention (Xu et al., ICLR 2020, arXiv:2002.07962): no memory; a node at a time is what attention makes of
//! its past events, layer upon layer.
//!
//! Layer l (section 3.2, eq. 6 to 8) of a root v at time t, from states of layer l - 1 (layer 0: node features, zeros where
//! there are none):
//!
//! * query `q = [state_v | code(0)]`, key = value = `[state_u | edge | code(t - t_uv)]` of every sampled neighbor u, a neighbor's
//!   state taken at its own time (`sampler.hop_time`);
//! * `a = W_o concat_h softmax(q_h . k_h / sqrt(Q / H)) v_h + b_o`, then `LayerNorm(a + q)`, as public codes do and the paper does
//!   not;
//! * `state = W_2 relu(W_1 [a | node features] + b_1) + b_2`.
//!
//! Public codes differ in what a root without neighbors attends to, in the query, in what is merged, in the norm and in biases:
//! each is a key. As in [`crate::attention`] linear maps are moved from neighbors to roots; a key bias would change nothing.
//! Absent on purpose: dropout of the projected output, which some codes have beside that of the weights.

use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

use crate::encoder::Encoder;
use crate::error::Result;
use crate::input::{Embedded, LayerInput, ModelInput};
use crate::linear::Mlp;
use crate::model::StateSpec;
use crate::neighborhood::{Neighborhood, sum_of_products};
use crate::parameters::{Declarations, Draw, Init, ParameterId, Parameters};
use crate::recurrent::layer_norm;
use crate::tgn::{FeatureDims, TgnConfig, require};
use crate::time_encoder::{Tape, TimeEncoder};
use crate::trained::Trained;

/// What a root without neighbors attends to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoNeighbors {
    /// Nothing: attention gives zeros, output bias included.
    #[default]
    Zeros,
    /// A node of zeros, met at the time origin (TGAT's and DyGLib's code); scores then depend on that origin.
    Padding,
}

/// What stands between state and time code in the query.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Query {
    /// Nothing.
    #[default]
    Short,
    /// As many zeros as there are edge features, so that query and key are equally wide (TGAT's code).
    EdgeSlot,
}

/// What is merged with the attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Merge {
    /// The root's node features (DyGLib's code).
    #[default]
    Raw,
    /// Its state of the layer below (TGAT's code).
    Previous,
}

/// TGAT's own keys of the `[model]` table.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TgatConfig {
    /// What a root without neighbors attends to.
    pub no_neighbors: NoNeighbors,
    /// How the query is made.
    pub query: Query,
    /// What is merged with the attention.
    pub merge: Merge,
    /// Whether `LayerNorm(attention + query)` follows the attention.
    pub layer_norm: bool,
    /// Whether query and value have biases.
    pub projection_bias: bool,
}

impl Default for TgatConfig {
    fn default() -> TgatConfig {
        TgatConfig {
            no_neighbors: NoNeighbors::Zeros,
            query: Query::Short,
            merge: Merge::Raw,
            layer_norm: true,
            projection_bias: false,
        }
    }
}

/// The model.
pub struct Tgat {
    config: TgnConfig,
    tgat: TgatConfig,
    /// Whether deeper hops are taken at the root's time; else at their edges'.
    at_root_time: bool,
    features: FeatureDims,
    layers: Vec<TgatLayer>,
    trained: Trained,
}

/// One layer: S wide states in, D_emb wide states out.
struct TgatLayer {
    dims: LayerDims,
    /// Blocks memory, time.
    query: [ParameterId; 2],
    /// Blocks memory, edge, time.
    key: [Option<ParameterId>; 3],
    value: [Option<ParameterId>; 3],
    /// Of query and value, `[Q]`.
    bias: Option<[ParameterId; 2]>,
    out: [ParameterId; 2],
    norm: Option<[ParameterId; 2]>,
    merge: Mlp,
}

#[derive(Clone, Copy)]
struct LayerDims {
    state: i64,
    /// Zeros between state and code in the query.
    slot: i64,
    time: i64,
    heads: i64,
    dropout: f64,
}

/// The neighbors of a layer's roots as blocks, and which weights these belong to.
struct Hood {
    neighbors: Neighborhood,
    /// 0 memory, 1 edge, 2 time.
    present: Vec<usize>,
    /// `[R, 1]` bool: roots whose attention is zero.
    alone: Option<Tensor>,
}

impl LayerDims {
    fn query(self) -> i64 {
        self.state + self.slot + self.time
    }
}

impl TgatLayer {
    fn declare(
        d: &mut Declarations,
        name: &str,
        dims: LayerDims,
        edge: i64,
        merged: i64,
        wanted: &Wanted,
    ) -> TgatLayer {
        let q = dims.query();
        let mut blocks = |part: &str, widths: [i64; 3]| {
            let init = Init::xavier_normal(widths.iter().sum(), q / dims.heads);
            let block = |(block, width): (&str, i64)| {
                (width > 0).then(|| d.add(format!("{name}.attn.{part}.{block}"), &[q, width], init.clone()))
            };
            ["memory", "edge", "time"].into_iter().zip(widths).map(block).collect::<Vec<_>>()
        };
        let query = blocks("wq", [dims.state, 0, dims.time]);
        let [key, value] = ["wk", "wv"].map(|part| blocks(part, [dims.state, edge, dims.time]));
        let three = |ids: Vec<Option<ParameterId>>| [ids[0], ids[1], ids[2]];
        let bias = wanted
            .tgat
            .projection_bias
            .then(|| ["bq", "bv"].map(|part| d.add(format!("{name}.attn.{part}"), &[q], Init::Constant(0.0))));
        let out = [
            d.add(format!("{name}.attn.wo"), &[q, q], Init::xavier_normal(q, q)),
            d.add(format!("{name}.attn.bo"), &[q], Init::inverse_root(q)),
        ];
        let norm = wanted.tgat.layer_norm.then(|| {
            [("w", 1.0), ("b", 0.0)].map(|(part, one)| d.add(format!("{name}.norm.{part}"), &[q], Init::Constant(one)))
        });
        let merge = [("attn", q), ("memory", merged)];
        let merge = Mlp::declare(d, &format!("{name}.merge"), &merge, wanted.out, wanted.out);
        let query = [query[0], query[2]].map(|id| id.expect("states and codes have a width"));
        TgatLayer { dims, query, key: three(key), value: three(value), bias, out, norm, merge }
    }

    /// States of the roots, `[R, D_emb]`.
    ///
    /// * `state`: `[R, S]`, theirs in the layer below; `None`: zeros. * `merged`: `[R, .]`; `None`: zeros.
    /// * `keep`: `[R, H, K]`.
    fn forward(
        &self,
        p: &Parameters,
        (state, roots): (Option<&Tensor>, i64),
        merged: Option<&Tensor>,
        zero_code: &Tensor,
        hood: &Hood,
        keep: Option<&Tensor>,
    ) -> Tensor {
        let weights = self.weights(p, (state, roots), zero_code, hood, keep); // [R, H, K]
        let value = self.values(p, hood, &weights); // [R, Q]
        let mut out = p[self.out[1]].addmm(&value, &p[self.out[0]].tr());
        if let Some(alone) = &hood.alone {
            out = out.masked_fill(alone, 0.0);
        }
        if let Some([w, b]) = self.norm {
            out = layer_norm(&(out + self.residual((state, roots), zero_code)), &p[w], &p[b]);
        }
        self.merge.forward(p, &[Some(&out), merged])
    }

    /// The query before its projection, `[R, Q]`.
    fn residual(&self, (state, roots): (Option<&Tensor>, i64), zero_code: &Tensor) -> Tensor {
        let zeros = |width: i64| Tensor::zeros([roots, width], (zero_code.kind(), zero_code.device()));
        let state = state.map_or_else(|| zeros(self.dims.state), Tensor::shallow_clone);
        let code = zero_code.unsqueeze(0).expand([roots, self.dims.time], false);
        Tensor::cat(&[state, zeros(self.dims.slot), code], 1)
    }

    fn weights(
        &self,
        p: &Parameters,
        (state, roots): (Option<&Tensor>, i64),
        zero_code: &Tensor,
        hood: &Hood,
        keep: Option<&Tensor>,
    ) -> Tensor {
        let constant = p[self.query[1]].mv(zero_code); // [Q]
        let constant = self.bias.map_or(constant.shallow_clone(), |[bq, _]| constant + &p[bq]);
        let query = match state {
            Some(state) => constant.addmm(state, &p[self.query[0]].tr()),
            None => constant.unsqueeze(0).expand([roots, self.dims.query()], false),
        };
        let width = self.dims.query() / self.dims.heads;
        let query = (query * (width as f64).powf(-0.5)).view([-1, self.dims.heads, width]).transpose(0, 1); // [H, R, Q/H]
        let keys: Vec<Tensor> = (hood.present.iter())
            .map(|&i| query.bmm(&self.by_head(&p[self.key[i].expect("a weight for each block")])).transpose(0, 1))
            .collect(); // [R, H, d_i]
        let scores = hood.neighbors.scores(&keys);
        let lowest = if scores.kind() == Kind::Double { f64::MIN } else { f64::from(f32::MIN) };
        let weights = scores.masked_fill(&hood.neighbors.valid.logical_not().unsqueeze(1), lowest).softmax(-1, None);
        match keep {
            Some(keep) => weights * (keep / (1.0 - self.dims.dropout)),
            None => weights,
        }
    }

    /// Values of the aggregated neighbors, `[R, Q]`.
    fn values(&self, p: &Parameters, hood: &Hood, weights: &Tensor) -> Tensor {
        let sums = hood.neighbors.sums(weights); // [R, H, d_i]
        let by_head: Vec<Tensor> = sums.iter().map(|x| x.transpose(0, 1)).collect(); // [H, R, d_i]
        let weight = |i: &usize| self.by_head(&p[self.value[*i].expect("a weight for each block")]).transpose(1, 2); // [H, d_i, Q/H]
        let value = sum_of_products(by_head.iter().zip(hood.present.iter().map(weight))).transpose(0, 1); // [R, H, Q/H]
        let value = match self.bias {
            Some([_, bv]) => {
                let bias = p[bv].view([1, self.dims.heads, -1]);
                value + weights.sum_dim_intlist([-1i64].as_slice(), true, None) * bias
            }
            None => value,
        };
        value.reshape([-1, self.dims.query()])
    }

    /// A weight `[Q, d]` as `[H, Q/H, d]`.
    fn by_head(&self, weight: &Tensor) -> Tensor {
        weight.view([self.dims.heads, -1, weight.size()[1]])
    }
}

/// What a layer's declaration needs of the model's configuration.
struct Wanted {
    tgat: TgatConfig,
    out: i64,
}

impl Tgat {
    /// Declares and draws all parameters.
    ///
    /// * `at_root_time`: whether a neighbor's own state is asked for at its root's time; else at its edge's.
    ///
    /// # Errors
    /// If the configuration is impossible.
    pub fn new(
        config: &TgnConfig,
        tgat: TgatConfig,
        at_root_time: bool,
        features: FeatureDims,
        draw: &dyn Draw,
        device: Device,
    ) -> Result<Tgat> {
        config.validate_widths()?;
        let d = &mut Declarations::default();
        let time = TimeEncoder::declare(d, config.time_encoder, config.time_dim, config.dtype.kind(), device);
        let raw = if features.node > 0 { features.node } else { config.memory_dim };
        let mut layers = Vec::new();
        for l in 0..config.layers {
            let state = if l == 0 { raw } else { config.embedding_dim };
            let slot = if tgat.query == Query::EdgeSlot { features.edge } else { 0 };
            let TgnConfig { time_dim: time, heads, dropout, .. } = *config;
            let dims = LayerDims { state, slot, time, heads, dropout };
            let reason = format!("layer {l} attends in {} dimensions, which it does not divide", dims.query());
            require(dims.query() % heads == 0, "heads", heads, &reason, "write 1 or 2, or change time_dim")?;
            let merged = if tgat.merge == Merge::Raw { raw } else { state };
            let wanted = Wanted { tgat, out: config.embedding_dim };
            layers.push(TgatLayer::declare(d, &format!("layer{l}"), dims, features.edge, merged, &wanted));
        }
        let trained = Trained::declare(d, time, config, config.embedding_dim, draw, device);
        Ok(Tgat { config: config.clone(), tgat, at_root_time, features, layers, trained })
    }

    /// What the roots of layer `l` attend to.
    ///
    /// * `below`: `[N, S]`, states of the layer below; `None`: zeros.
    fn hood(&self, l: usize, below: Option<&Tensor>, roots: &LayerInput, tape: &mut Tape) -> Hood {
        let Trained { parameters: p, time, .. } = &self.trained;
        let (r, k) = roots.neighbor.size2().expect("neighbor: [R, K]");
        let absent = roots.valid.logical_not().unsqueeze(-1); // [R, K, 1]
        let padding = self.tgat.no_neighbors == NoNeighbors::Padding;
        let (mut blocks, mut present) = (Vec::new(), Vec::new());
        let since = roots.since_origin.as_ref().filter(|_| padding);
        if let Some(below) = below {
            let rows = below.index_select(0, &roots.neighbor.view([r * k])).view([r, k, below.size()[1]]);
            let rows = match since {
                Some(since) => rows.where_self(&roots.valid.unsqueeze(-1), &self.padding(l, since).unsqueeze(1)),
                None => rows,
            };
            blocks.push(rows);
            present.push(0);
        }
        if let (Some(features), true) = (&roots.edge_features, self.features.edge > 0) {
            blocks.push(if padding { features.masked_fill(&absent, 0.0) } else { features.shallow_clone() });
            present.push(1);
        }
        let dt = match since {
            Some(since) => roots.dt.where_self(&roots.valid, &since.unsqueeze(1)),
            None => roots.dt.shallow_clone(),
        };
        blocks.push(time.encode(p, &dt, tape));
        present.push(2);
        let neighbors = Neighborhood { blocks, valid: roots.valid.shallow_clone() };
        let alone = (!padding).then(|| neighbors.alone());
        Hood { neighbors, present, alone }
    }

    /// States of the padding node below layer `l`, as `[R or 1, S]`, for roots at `since` seconds from the origin.
    fn padding(&self, l: usize, since: &Tensor) -> Tensor {
        let at = if self.at_root_time {
            since.shallow_clone()
        } else {
            since.new_zeros([1], (since.kind(), since.device()))
        };
        self.padding_at(l, &at)
    }

    fn padding_at(&self, l: usize, at: &Tensor) -> Tensor {
        let (Trained { parameters: p, time, .. }, n) = (&self.trained, at.size()[0]);
        if l == 0 {
            return Tensor::zeros([n, self.layers[0].dims.state], (at.kind(), at.device()));
        }
        let state = self.padding_at(l - 1, at); // [n, S]; its one neighbor is itself
        let code = time.encode(p, &at.unsqueeze(1), &mut Tape::default()); // [n, 1, D_t]
        let valid = Tensor::ones([n, 1], (Kind::Bool, at.device()));
        let neighbors = Neighborhood { blocks: vec![state.unsqueeze(1), code], valid };
        let hood = Hood { neighbors, present: vec![0, 2], alone: None };
        let merged = (self.tgat.merge == Merge::Previous).then_some(&state);
        self.layers[l - 1].forward(p, (Some(&state), n), merged, &time.zero(p), &hood, None)
    }
}

impl Encoder for Tgat {
    fn spec(&self) -> StateSpec {
        let c = &self.config;
        StateSpec {
            kind: c.dtype.kind(),
            edge_dim: self.features.edge,
            node_dim: self.features.node,
            embedding_dim: c.embedding_dim,
            layers: c.layers,
            heads: c.heads,
            dropout: c.dropout,
            absolute_time: self.tgat.no_neighbors == NoNeighbors::Padding,
            ..StateSpec::default()
        }
    }

    fn trained(&self) -> &Trained {
        &self.trained
    }

    fn trained_mut(&mut self) -> &mut Trained {
        &mut self.trained
    }

    fn forward(&self, input: &ModelInput, tape: &mut Tape) -> Embedded {
        assert_eq!(input.layers.len(), self.layers.len(), "one layer of roots for each layer of the model");
        let (Trained { parameters: p, time, .. }, raw) = (&self.trained, input.node_features.as_ref());
        let zero_code = time.zero(p);
        let mut x = raw.map(Tensor::shallow_clone);
        let mut row = Tensor::new(); // [R]: the roots' rows among those read
        for (l, roots) in input.layers.iter().enumerate() {
            row = if l == 0 { roots.root.shallow_clone() } else { row.index_select(0, &roots.root) };
            let state = x.as_ref().map(|x| x.index_select(0, &roots.root)); // [R, S]
            let merged = match self.tgat.merge {
                Merge::Raw => raw.map(|raw| raw.index_select(0, &row)),
                Merge::Previous => state.as_ref().map(Tensor::shallow_clone),
            };
            let hood = self.hood(l, x.as_ref(), roots, tape);
            let (state, count) = (state.as_ref(), roots.root.size()[0]);
            x = Some(self.layers[l].forward(
                p,
                (state, count),
                merged.as_ref(),
                &zero_code,
                &hood,
                roots.keep.as_ref(),
            ));
        }
        Embedded::new(x.expect("at least one layer"), input.memory.shallow_clone())
    }
}
