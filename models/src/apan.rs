//! Asynchronous Propagation Attention Network (Wang et al., SIGMOD 2021, arXiv:2011.11545): a node reads its own mails only;
//! propagation to neighbors happens after the event, by mail.
//!
//! * encoder (section 3.3): the row `s` attends over the node's latest S mails, `k_j, v_j = W [mail_j | code(t - t_j)] + b`,
//!   `a = softmax_j leaky_relu_0.2(q . k_j)` per head over the filled slots, `z = relu(W LN(sum_j a_j v_j + s) + b)`;
//! * the embedding of a node's last event becomes its row;
//! * propagator (section 3.5): each event sends `[z_sender | z_peer | edge]` to the sender and to the neighbors sampled for
//!   it; what a node gets in one batch is averaged into one slot.
//!
//! Public codes differ in the message, in how a batch's mails are made one, in who gets them, in what empty slots do and in the
//! attention: each is a key. Negatives change no state here. Attention weights are not dropped: masks are made for sampled
//! neighbors, and this model attends over none.

use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

use crate::encoder::Encoder;
use crate::error::{Error, Result};
use crate::input::{Embedded, ModelInput, SlotInput};
use crate::linear::BlockLinear;
use crate::model::{MailKeeping, MailTargets, Payload, StateSpec};
use crate::parameters::{Declarations, Draw, Init, ParameterId};
use crate::recurrent::layer_norm;
use crate::tgn::{FeatureDims, TgnConfig, require};
use crate::time_encoder::{Tape, TimeEncoder};
use crate::trained::Trained;

/// How sender, peer and edge features make one mail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PairMail {
    /// Side by side (TGL's and TGLite's code).
    #[default]
    Concat,
    /// Their sum (the paper; edge features as wide as the memory).
    Sum,
}

/// Who gets the mails of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Deliver {
    /// The sender and its sampled neighbors.
    #[default]
    Both,
    /// Its sampled neighbors (TGLite's code).
    Neighbors,
}

/// What attention sees of an empty slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EmptySlots {
    /// Nothing.
    #[default]
    Masked,
    /// A mail of zeros from the time origin (TGL's and TGLite's code); scores then depend on that origin.
    Attended,
}

/// How a mail's score is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotAttention {
    /// `leaky_relu_0.2(q . k)`, not scaled (TGL's and TGLite's code).
    #[default]
    Leaky,
    /// `q . k / sqrt(D_m / H)` (the paper).
    Scaled,
}

/// APAN's own keys of the `[model]` table.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ApanConfig {
    /// How a mail is made.
    pub mail: PairMail,
    /// S: mails kept a node.
    pub mail_slots: usize,
    /// Who gets it.
    pub deliver: Deliver,
    /// What an empty slot does.
    pub empty_slots: EmptySlots,
    /// How a mail's score is made.
    pub slot_attention: SlotAttention,
    /// Whether a learned code of a mail's age, in mails, is added to it.
    pub position: bool,
}

impl Default for ApanConfig {
    fn default() -> ApanConfig {
        ApanConfig {
            mail: PairMail::Concat,
            mail_slots: 10,
            deliver: Deliver::Both,
            empty_slots: EmptySlots::Masked,
            slot_attention: SlotAttention::Leaky,
            position: false,
        }
    }
}

impl ApanConfig {
    /// Refuses what the model can not be.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`], naming the key and the mend.
    pub fn validate(self, config: &TgnConfig) -> Result<()> {
        config.validate_widths()?;
        let memory = config.memory_dim;
        let reason = "this model's embedding becomes its memory row";
        require(
            config.embedding_dim == memory,
            "embedding_dim",
            config.embedding_dim,
            reason,
            &format!("write {memory}"),
        )?;
        require(config.layers == 1, "layers", config.layers, "mails go to the neighbors of one hop", "write 1")?;
        let reason = "as many mails are kept a node";
        require(
            (1..=1024).contains(&self.mail_slots),
            "mail_slots",
            self.mail_slots,
            reason,
            "write 1 to 1024, such as 10",
        )?;
        let reason = format!("it does not divide memory_dim = {memory}");
        require(memory % config.heads == 0, "heads", config.heads, &reason, "write 1 or 2")
    }
}

/// The model.
pub struct Apan {
    config: TgnConfig,
    apan: ApanConfig,
    features: FeatureDims,
    query: BlockLinear,
    key: BlockLinear,
    value: BlockLinear,
    /// `[S, D_p]`, the newest mail's in row 0.
    position: Option<ParameterId>,
    norm: [ParameterId; 2],
    out: BlockLinear,
    trained: Trained,
}

impl Apan {
    /// Declares `attn.wq.memory [D_m, D_m]`, `attn.{wk,wv}.{mail,time} [D_m, .]`, `attn.{bq,bk,bv}`, `pos [S, D_p]`,
    /// `norm.{w,b}`, `out.w.row [D_m, D_m]`, `out.b`, and draws all parameters.
    ///
    /// # Errors
    /// If the configuration is impossible.
    pub fn new(
        config: &TgnConfig,
        apan: ApanConfig,
        features: FeatureDims,
        draw: &dyn Draw,
        device: Device,
    ) -> Result<Apan> {
        apan.validate(config)?;
        let memory = config.memory_dim;
        if apan.mail == PairMail::Sum && ![0, memory].contains(&features.edge) {
            let reason = format!("edge features are added to embeddings, and are {} wide", features.edge);
            let mend = format!("write \"concat\", or memory_dim = {}", features.edge);
            return Err(Error::InvalidConfig { key: "mail", value: "\"sum\"".to_owned(), reason, mend });
        }
        let d = &mut Declarations::default();
        let time = TimeEncoder::declare(d, config.time_encoder, config.time_dim, config.dtype.kind(), device);
        let width = payload_dim(memory, apan, features);
        let mut linear = |part: &str, blocks: &[(&str, i64)]| {
            let init = Init::inverse_root(blocks.iter().map(|(_, width)| width).sum());
            let (w, b) = (format!("attn.w{part}"), format!("attn.b{part}"));
            BlockLinear::declare(d, &w, &b, blocks, memory, &init, Init::inverse_root(memory))
        };
        let query = linear("q", &[("memory", memory)]);
        let [key, value] = ["k", "v"].map(|part| linear(part, &[("mail", width), ("time", config.time_dim)]));
        let position = apan.position.then(|| d.add("pos", &[apan.mail_slots as i64, width], Init::Normal(1.0)));
        let norm = [d.add("norm.w", &[memory], Init::Constant(1.0)), d.add("norm.b", &[memory], Init::Constant(0.0))];
        let init = Init::inverse_root(memory);
        let out = BlockLinear::declare(d, "out.w", "out.b", &[("row", memory)], memory, &init, init.clone());
        let trained = Trained::declare(d, time, config, memory, draw, device);
        let config = config.clone();
        Ok(Apan { config, apan, features, query, key, value, position, norm, out, trained })
    }

    /// `W [mail | code] + b` of every slot, by head.
    ///
    /// * `mails`: `[Q + 1, D_p]`, the last one zeros. * `at`: `[R * S]` i64 into `mails`. * `codes`: `[R, S, D_t]`.
    /// * returns `[R, S, H, D_m / H]`.
    fn of_slots(&self, linear: &BlockLinear, mails: &Tensor, at: &Tensor, codes: &Tensor) -> Tensor {
        let (p, width) = (&self.trained.parameters, self.config.memory_dim);
        let (r, s, _) = codes.size3().expect("codes: [R, S, D_t]");
        let of_mail = linear.weight(p, 0).tr(); // [D_p, D_m]
        let mut x = mails.mm(&of_mail).index_select(0, at).view([r, s, width]);
        if let Some(position) = self.position {
            x += p[position].mm(&of_mail);
        }
        let x = x + codes.matmul(&linear.weight(p, 1).tr()) + linear.bias(p);
        x.view([r, s, self.config.heads, -1])
    }

    /// Attention over the slots of each root, `[R, D_m]`; zeros for a root that sees none.
    fn attend(&self, row: &Tensor, slots: &SlotInput, tape: &mut Tape) -> Tensor {
        let Trained { parameters: p, time, .. } = &self.trained;
        let width = slots.payload.size()[1];
        let mails = Tensor::cat(&[&slots.payload, &slots.payload.new_zeros([1, width], (row.kind(), row.device()))], 0);
        let empty = slots.filled.logical_not();
        let at = slots.mail.masked_fill(&empty, slots.payload.size()[0]).view([-1]);
        let codes = time.encode(p, &slots.dt, tape); // [R, S, D_t]
        let query = self.query.forward(p, &[Some(row)]).view([-1, 1, self.config.heads, self.head_dim()]);
        let [key, value] = [&self.key, &self.value].map(|linear| self.of_slots(linear, &mails, &at, &codes));
        let score = (query * key).sum_dim_intlist([-1i64].as_slice(), false, row.kind()); // [R, S, H]
        let score = match self.apan.slot_attention {
            SlotAttention::Leaky => score.maximum(&(&score * 0.2)),
            SlotAttention::Scaled => score * (self.head_dim() as f64).powf(-0.5),
        };
        let sum = |score: Tensor| {
            let weighted = score.softmax(1, None).unsqueeze(-1) * &value;
            weighted.sum_dim_intlist([1i64].as_slice(), false, row.kind()).flatten(1, -1) // [R, D_m]
        };
        match self.apan.empty_slots {
            EmptySlots::Attended => sum(score),
            EmptySlots::Masked => {
                let lowest = if row.kind() == Kind::Double { f64::MIN } else { f64::from(f32::MIN) };
                let none = slots.filled.any_dim(1, true).logical_not(); // [R, 1]
                sum(score.masked_fill(&empty.unsqueeze(-1), lowest)).masked_fill(&none, 0.0)
            }
        }
    }

    fn head_dim(&self) -> i64 {
        self.config.memory_dim / self.config.heads
    }
}

fn payload_dim(memory: i64, apan: ApanConfig, features: FeatureDims) -> i64 {
    match apan.mail {
        PairMail::Concat => 2 * memory + features.edge,
        PairMail::Sum => memory,
    }
}

impl Encoder for Apan {
    fn spec(&self) -> StateSpec {
        let c = &self.config;
        StateSpec {
            kind: c.dtype.kind(),
            memory_dim: c.memory_dim,
            payload: match self.apan.mail {
                PairMail::Concat => Payload::Pair,
                PairMail::Sum => Payload::PairSum,
            },
            payload_dim: payload_dim(c.memory_dim, self.apan, self.features),
            mail_targets: match self.apan.deliver {
                Deliver::Both => MailTargets::Neighbors,
                Deliver::Neighbors => MailTargets::OnlyNeighbors,
            },
            mail_keeping: MailKeeping::Latest(self.apan.mail_slots),
            mail_order: c.mail_order,
            aggregator: c.aggregator,
            edge_dim: self.features.edge,
            embedding_dim: c.memory_dim,
            layers: 1,
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
        let p = &self.trained.parameters;
        let slots = input.slots.as_ref().expect("this model's mails are kept in slots");
        let row = input.memory.index_select(0, &input.layers[0].root); // [R, D_m]
        let x = self.attend(&row, slots, tape) + &row;
        let z = self.out.forward(p, &[Some(&layer_norm(&x, &p[self.norm[0]], &p[self.norm[1]]))]).relu();
        Embedded::new(z, input.memory.shallow_clone())
    }
}
