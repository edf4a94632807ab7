//! Ways to evaluate: negative edges, candidate sets, replayed states, parts of a split, node classification.

use super::streams;
use crate::config::Config;
use crate::eval::{NegativeKind, NewNode, SplitMetrics, StateBefore};
use crate::pipeline::event::{Negatives, Pass, RankedEvents};
use crate::trainer::Trainer;
use std::collections::BTreeSet;
use std::sync::Arc;
use tidemill_data::id::{EventId, NodeId};
use tidemill_data::negative::CandidateRule;
use tidemill_data::stream::EventStream;

fn config(change: impl FnOnce(&mut Config)) -> Config {
    let mut config = Config::default();
    let model = &mut config.model.tgn;
    (model.memory_dim, model.time_dim, model.embedding_dim) = (8, 8, 8);
    (config.train.batch_size, config.train.epochs, config.threads) = (20, 1, 1);
    config.eval.candidates = CandidateRule::StreamDestinations;
    change(&mut config);
    config
}

fn trained(change: impl FnOnce(&mut Config), stream: EventStream) -> Trainer {
    let mut trainer = Trainer::over(config(change), stream).expect("a valid configuration");
    trainer.train_epoch().expect("trains");
    trainer
}

/// The validation pass's scores: event, logit, logits of its negatives.
fn scores(trainer: &mut Trainer, pass: &Pass) -> Vec<(EventId, f64, Vec<f64>)> {
    let scores = trainer.score_split(pass).expect("finite");
    scores.iter().map(|(event, positive, negatives)| (event, positive, negatives.to_vec())).collect()
}

/// Negative edges leave the true pairs' scores alone, and each is scored as the pair it is: a twin pass that is handed the same
/// destinations gives the same scores where the sources are the events' own.
#[test]
fn negative_edges_are_scored_as_pairs() {
    let stream = streams::small();
    let mut random = trained(|_| {}, stream.clone());
    let mut hard = trained(|c| c.eval.negatives = NegativeKind::Historical, stream.clone());
    let (easy_pass, pass) = (random.passes.val.clone(), hard.passes.val.clone());
    let Negatives::Edges(sampler) = pass.negatives.clone() else { panic!("edges") };
    let (easy, hard) = (scores(&mut random, &easy_pass), scores(&mut hard, &pass));
    assert_eq!(easy.len(), hard.len());
    for (a, b) in easy.iter().zip(&hard) {
        assert!((a.1 - b.1).abs() < 1e-5 && b.2.len() == 1, "{a:?} {b:?}");
    }
    let negatives: Vec<_> = pass.events.chunks(pass.batch_size).flat_map(|batch| sampler.sample(batch)).collect();
    let destinations: Vec<NodeId> = negatives.iter().map(|pair| pair.1).collect();
    let mut twin = trained(|_| {}, stream.clone());
    let given = Pass { negatives: Negatives::Given(destinations.into()), ..pass };
    let twin = scores(&mut twin, &given);
    let mut same = 0;
    for ((a, b), pair) in hard.iter().zip(&twin).zip(&negatives) {
        if pair.0 == stream.source(a.0) {
            assert!((a.2[0] - b.2[0]).abs() < 1e-5, "{a:?} {b:?}");
            same += 1;
        }
    }
    assert!(same > 0, "some negative edge has its event's source");
}

fn ranked(c: &mut Config) {
    c.eval.negatives = NegativeKind::Tgb;
    c.eval.candidates_per_event = 8;
}

/// Ranks equal those of the logits, candidate by candidate, that a pass with given negatives finds.
#[test]
fn ranks_equal_brute_force() {
    for root_time in [true, false] {
        let stream = streams::small();
        let mut trainer = trained(
            |c| {
                ranked(c);
                c.model.tgn.root_time = root_time;
            },
            stream.clone(),
        );
        let pass = trainer.passes.test.clone();
        let Negatives::Sets(sets) = &pass.negatives else { panic!("sets") };
        assert_eq!(sets.timeless, !root_time);
        let sizes: BTreeSet<usize> = pass.events.iter().map(|&event| sets.sets.of(event).len()).collect();
        assert_eq!(sizes.into_iter().collect::<Vec<_>>(), [8], "enough candidates for all");
        let given: Vec<NodeId> = pass.events.iter().flat_map(|&event| sets.sets.of(event)).collect();
        let kept = trainer.store_state().expect("stored");
        let mrr = trainer.score_split(&pass).expect("finite").mrr().expect("ranked");
        kept.restore(&mut trainer.pipeline.memory()).expect("restored");
        let given = Pass { negatives: Negatives::Given(given.into()), negatives_per_event: 8, ..pass.clone() };
        let reciprocals: Vec<f64> = scores(&mut trainer, &given)
            .iter()
            .map(|(_, positive, negatives)| {
                let above = negatives.iter().filter(|x| **x > *positive).count() as f64;
                let tied = negatives.iter().filter(|x| **x == *positive).count() as f64;
                1.0 / (1.0 + above + tied / 2.0)
            })
            .collect();
        let wanted = reciprocals.iter().sum::<f64>() / reciprocals.len() as f64;
        assert_eq!(mrr.mrr_events, pass.events.len() as u64);
        // Rounding may turn the order of two scores that are all but equal.
        assert!((mrr.mrr - wanted).abs() < 1e-3, "{} {wanted}", mrr.mrr);
    }
}

/// Without query time, one embedding for all of a batch's events ranks as an embedding for each does.
#[test]
fn shared_candidates_rank_as_their_own() {
    let mut trainer = trained(
        |c| {
            ranked(c);
            c.model.tgn.root_time = false;
        },
        streams::small(),
    );
    let pass = trainer.passes.val.clone();
    let Negatives::Sets(sets) = &pass.negatives else { panic!("sets") };
    let own = RankedEvents { sets: sets.sets.clone(), only: None, timeless: false };
    let apart = Pass { negatives: Negatives::Sets(Arc::new(own)), ..pass.clone() };
    let kept = trainer.store_state().expect("stored");
    let shared = trainer.score_split(&pass).expect("finite").mrr().expect("ranked");
    kept.restore(&mut trainer.pipeline.memory()).expect("restored");
    let apart = trainer.score_split(&apart).expect("finite").mrr().expect("ranked");
    assert!((shared.mrr - apart.mrr).abs() < 1e-3, "{shared:?} {apart:?}");
}

/// Of a sample of events the ranks are those that they have among all.
#[test]
fn a_sample_of_events_is_ranked_as_in_the_whole() {
    let mut whole = trained(ranked, streams::small());
    let mut some = trained(
        |c| {
            ranked(c);
            c.eval.mrr_events = 9;
        },
        streams::small(),
    );
    let pass = some.passes.test.clone();
    let Negatives::Sets(sets) = &pass.negatives else { panic!("sets") };
    let drawn = sets.only.clone().expect("a sample");
    let sample = some.score_split(&pass).expect("finite");
    let pass = whole.passes.test.clone();
    let all = whole.score_split(&pass).expect("finite").mrr_where(|event| drawn.contains(&event)).expect("ranked");
    let mrr = sample.mrr().expect("ranked");
    assert_eq!((drawn.len(), mrr.mrr_events, sample.events()), (9, 9, pass.events.len()));
    assert!((mrr.mrr - all.mrr).abs() < 1e-3 && mrr.mrr_standard_error > 0.0, "{mrr:?} {all:?}");
}

/// Where training changes no parameter, the replayed state is the trained one.
#[test]
fn a_replayed_state_is_the_trained_one_of_constant_parameters() {
    let val = |state| {
        let mut trainer = trained(
            |c| {
                c.train.lr = 0.0;
                c.eval.state = state;
            },
            streams::small(),
        );
        trainer.close_epoch().expect("closed");
        trainer.score_best(false).expect("finite").0
    };
    let (trained, replayed) = (val(StateBefore::Trained), val(StateBefore::Replayed));
    assert!((trained.links.ap - replayed.links.ap).abs() < 1e-9, "{trained:?} {replayed:?}");
    assert!((trained.links.auc - replayed.links.auc).abs() < 1e-9, "{trained:?} {replayed:?}");
}

/// New nodes in a pass of their own are scored against edges of that pass, and leave the state as it was.
#[test]
fn new_nodes_meet_negative_edges_of_their_own() {
    let change = |new_node| {
        move |c: &mut Config| {
            (c.eval.negatives, c.eval.new_node, c.split.new_node_share) = (NegativeKind::Inductive, new_node, 0.1);
        }
    };
    let metrics = |new_node| -> SplitMetrics {
        let mut trainer = trained(change(new_node), streams::small());
        let pass = trainer.passes.val.clone();
        trainer.metrics_of(&pass).expect("finite")
    };
    let [apart, subset, off] = [NewNode::SeparatePass, NewNode::Subset, NewNode::Off].map(metrics);
    assert!(apart.new_node.is_some() && subset.new_node.is_some() && off.new_node.is_none());
    assert_eq!((apart.links, subset.links), (off.links, off.links));
    assert_ne!(apart.new_node, subset.new_node);
}

/// Every event is in one part by time and in one by degree.
#[test]
fn parts_cover_the_split() {
    let mut trainer = trained(|_| {}, streams::small());
    let pass = trainer.passes.test.clone();
    let metrics = trainer.metrics_of(&pass).expect("finite");
    let breakdown = metrics.breakdown.expect("made");
    for parts in [&breakdown.by_time, &breakdown.by_degree] {
        assert_eq!(parts.iter().map(|part| part.events).sum::<u64>(), pass.events.len() as u64, "{parts:?}");
        assert!(parts.len() > 1 && parts.windows(2).all(|two| two[0].until <= Some(two[1].from)), "{parts:?}");
        assert!(parts.iter().all(|part| part.metrics.links.ap > 0.0), "{parts:?}");
    }
}

/// The small stream's events, labelled by whether their source has an even number.
fn labelled() -> EventStream {
    let rows = streams::rows(&streams::small());
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("labelled.csv");
    let lines: Vec<String> = rows.iter().map(|(s, d, t)| format!("{s},{d},{t},{}", u32::from(s % 2 == 0))).collect();
    let text = format!("user_id,item_id,timestamp,state_label\n{}\n", lines.join("\n"));
    std::fs::write(&path, text).expect("written");
    streams::load(&path)
}

#[test]
fn nodes_are_classified_alike_twice() {
    let run = || {
        let mut trainer = trained(|_| {}, labelled());
        trainer.classify_nodes(2).expect("labels of both classes")
    };
    let (first, second) = (run(), run());
    assert_eq!(first, second);
    assert_eq!((first.val_auc.len(), first.test_events), (2, 54));
    assert!(first.test_auc.iter().all(|auc| (0.0..=1.0).contains(auc)) && first.test_auc[0] != first.test_auc[1]);
    let error = trained(|_| {}, streams::small()).classify_nodes(1).expect_err("no labels").to_string();
    assert!(error.contains("no labels") && error.contains("data.columns.label"), "{error}");
}

/// EdgeBank knows a negative edge, whatever its source, iff an event before the batch had that pair; so do candidates.
#[test]
fn edgebank_is_asked_about_negative_edges_and_candidates() {
    let stream = streams::small();
    let met = |pair: (NodeId, NodeId), batch: &[EventId], event: EventId| {
        let earlier = |&e: &EventId| e < batch[0] && stream.time(e) < stream.time(event);
        (0..stream.len() as u32).map(EventId).filter(earlier).any(|e| (stream.source(e), stream.destination(e)) == pair)
    };
    let bank = |c: &mut Config| {
        *c = config(|_| {});
        c.model = crate::config::Preset::Tidemill.config_for(crate::config::ModelName::Edgebank).model;
    };
    let mut trainer = trained(
        |c| {
            bank(c);
            c.eval.negatives = NegativeKind::Historical;
        },
        stream.clone(),
    );
    let pass = trainer.passes.val.clone();
    let Negatives::Edges(sampler) = pass.negatives.clone() else { panic!("edges") };
    let found = scores(&mut trainer, &pass);
    let batches = pass.events.chunks(pass.batch_size);
    let wanted = batches.clone().flat_map(|batch| {
        let pairs = sampler.sample(batch);
        batch.iter().zip(pairs).map(|(&event, pair)| f64::from(u8::from(met(pair, batch, event)))).collect::<Vec<_>>()
    });
    assert_eq!(found.iter().map(|(_, _, negatives)| negatives[0]).collect::<Vec<_>>(), wanted.collect::<Vec<_>>());

    let mut trainer = trained(
        |c| {
            bank(c);
            ranked(c);
        },
        stream.clone(),
    );
    let pass = trainer.passes.val.clone();
    let Negatives::Sets(sets) = &pass.negatives else { panic!("sets") };
    let reciprocals = batches.flat_map(|batch| {
        batch
            .iter()
            .map(|&event| {
                let (source, destination) = (stream.source(event), stream.destination(event));
                let score = |node| u8::from(met((source, node), batch, event));
                let rivals: Vec<u8> = sets.sets.of(event).into_iter().map(score).collect();
                let above = rivals.iter().filter(|&&x| x > score(destination)).count() as f64;
                let tied = rivals.iter().filter(|&&x| x == score(destination)).count() as f64;
                1.0 / (1.0 + above + tied / 2.0)
            })
            .collect::<Vec<f64>>()
    });
    let reciprocals: Vec<f64> = reciprocals.collect();
    let mrr = trainer.score_split(&pass).expect("finite").mrr().expect("ranked");
    assert!((mrr.mrr - reciprocals.iter().sum::<f64>() / reciprocals.len() as f64).abs() < 1e-12, "{mrr:?}");
}
