//! Dynamic node classification (TGN, arXiv:2006.10637, section 5): can a source's state at an event be told from its frozen
//! embedding?
//!
//! The whole stream passes through empty memory with the best parameters; the source of every labelled event is embedded before
//! the event enters its memory. A classifier learns on the training events' embeddings; the epoch with the best validation AUC
//! gives the test AUC. Batches of 100, Adam with 3e-4, dropout 0.1, ten epochs, as in the paper's code.

use super::scoring::without_negatives;
use super::{PhiloxDraw, Trainer};
use crate::error::{Error, Result};
use crate::eval;
use crate::pipeline::event::Pass;
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};
use tidemill_data::id::EventId;
use tidemill_data::philox::{Key, Purpose};
use tidemill_models::node_classifier::{HIDDEN, NodeClassifier};
use tidemill_models::optimizer::{Optimizer, OptimizerConfig};

const BATCH: usize = 100;
const LEARNING_RATE: f64 = 3e-4;
const DROPOUT: f64 = 0.1;
const EPOCHS: u32 = 10;

/// Areas under the ROC curve of node classification, one for each of the classifier's seeds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeClassification {
    /// Seed of the first classifier; the others follow.
    pub first_seed: u64,
    /// Of the validation events, best epoch.
    pub val_auc: Vec<f64>,
    /// Of the test events, in that epoch.
    pub test_auc: Vec<f64>,
    /// Labelled test events of either class.
    pub test_events: u64,
    /// Of them positive.
    pub test_positives: u64,
}

/// Embeddings of a split's labelled sources.
struct Labelled {
    /// `[E, D_emb]`.
    z: Tensor,
    labels: Vec<bool>,
}

impl Trainer {
    /// Trains and scores `seeds` classifiers on the embeddings of the parameters as [`Trainer::open_best`] left them.
    ///
    /// # Errors
    /// A stream without labels, or with labels of one class only in a split.
    pub fn classify_nodes(&mut self, seeds: u32) -> Result<NodeClassification> {
        if !self.stream.has_labels() {
            return Err(Error::Usage {
                problem: "the stream has no labels, and node classification predicts them".to_owned(),
                mend: "name the column with the nodes' states in data.columns.label".to_owned(),
            });
        }
        self.pipeline.memory().reset();
        let train_end = self.split.train_end.0;
        let (val, test) = (self.split.val.clone(), self.split.test.clone());
        let train = self.embed_labelled("training", 0..train_end)?;
        let val = self.embed_labelled("validation", val)?;
        let test = self.embed_labelled("test", test)?;
        let mut result = NodeClassification {
            first_seed: self.config.seed,
            test_events: test.labels.len() as u64,
            test_positives: test.labels.iter().filter(|&&label| label).count() as u64,
            ..NodeClassification::default()
        };
        for seed in (0..seeds).map(|i| self.config.seed + u64::from(i)) {
            let (val_auc, test_auc) = train_classifier(seed, [&train, &val, &test])?;
            result.val_auc.push(val_auc);
            result.test_auc.push(test_auc);
        }
        Ok(result)
    }

    fn embed_labelled(&mut self, split: &str, events: std::ops::Range<u32>) -> Result<Labelled> {
        let pass =
            Pass { batch_size: BATCH, events: events.map(EventId).collect(), ..without_negatives(&self.passes.val) };
        let stream = self.stream.clone();
        let (mut z, mut labels) = (Vec::new(), Vec::new());
        self.evaluate(&pass, "embedding", |_, embeddings, batch| {
            let known = |(i, &event): (usize, &EventId)| stream.label(event).map(|label| (i as i64, label != 0));
            let (at, of): (Vec<i64>, Vec<bool>) = batch.plan.events.iter().enumerate().filter_map(known).unzip();
            let at = Tensor::from_slice(&at).to_device(embeddings.device());
            z.push(embeddings.index_select(0, &batch.pairs.source.index_select(0, &at)));
            labels.extend(of);
            Ok(())
        })?;
        if !(labels.contains(&true) && labels.contains(&false)) {
            return Err(Error::Usage {
                problem: format!("the {split} events have labels of one class only"),
                mend: "move split.train and split.val, or use a stream with more labels".to_owned(),
            });
        }
        Ok(Labelled { z: Tensor::cat(&z, 0), labels })
    }
}

/// Validation and test AUC of the epoch with the best validation AUC.
fn train_classifier(seed: u64, [train, val, test]: [&Labelled; 3]) -> Result<(f64, f64)> {
    let (kind, device) = (train.z.kind(), train.z.device());
    let mut model = NodeClassifier::new(train.z.size()[1], kind, &PhiloxDraw::new(seed), device);
    let mut optimizer = Optimizer::new(OptimizerConfig::default(), model.parameters());
    let labels: Vec<f32> = train.labels.iter().map(|&label| f32::from(u8::from(label))).collect();
    let labels = Tensor::from_slice(&labels).to_kind(kind).to_device(device);
    let mut best = (f64::NEG_INFINITY, f64::NAN);
    for epoch in 0..EPOCHS {
        for (batch, start) in (0..train.labels.len()).step_by(BATCH).enumerate() {
            let size = (train.labels.len() - start).min(BATCH) as i64;
            let key = Key::new(seed, Purpose::Dropout).narrow([epoch, batch as u32, 0, 1]);
            let keep = [0, 1].map(|layer| keep(key.narrow([layer as u32, 0, 0, 0]), size, HIDDEN[layer]));
            let keep = keep.map(|keep| keep.to_kind(kind).to_device(device));
            let (z, labels) = (train.z.narrow(0, start as i64, size), labels.narrow(0, start as i64, size));
            model.train(&z, &labels, [&keep[0], &keep[1]]);
            optimizer.step(model.parameters_mut(), LEARNING_RATE);
            model.parameters_mut().zero_grads();
        }
        let val_auc = auc(&model, val)?;
        if val_auc > best.0 {
            best = (val_auc, auc(&model, test)?);
        }
    }
    Ok(best)
}

/// A dropout mask, scaled, `[size, width]` f32.
fn keep(key: Key, size: i64, width: i64) -> Tensor {
    let threshold = (DROPOUT * 4_294_967_296.0) as u32;
    let scale = (1.0 / (1.0 - DROPOUT)) as f32;
    let words = (0..((size * width) as u64).div_ceil(4)).flat_map(|block| key.block(block));
    let mask: Vec<f32> =
        words.take((size * width) as usize).map(|word| if word >= threshold { scale } else { 0.0 }).collect();
    Tensor::from_slice(&mask).view([size, width])
}

fn auc(model: &NodeClassifier, events: &Labelled) -> Result<f64> {
    let logits: Vec<f64> = Vec::try_from(model.logits(&events.z).to_kind(Kind::Double).to_device(tch::Device::Cpu))
        .expect("a flat f64 tensor on the CPU");
    let of = |class: bool| -> Vec<f64> {
        logits.iter().zip(&events.labels).filter(|(_, label)| **label == class).map(|(x, _)| *x).collect()
    };
    Ok(eval::rank(&of(true), &of(false))?.auc)
}

/// Mean and standard deviation (of a sample) of some figures.
pub fn mean_and_sd(figures: &[f64]) -> (f64, f64) {
    let mean = figures.iter().sum::<f64>() / figures.len().max(1) as f64;
    let squares: f64 = figures.iter().map(|x| (x - mean).powi(2)).sum();
    (mean, (squares / (figures.len().max(2) - 1) as f64).sqrt())
}
