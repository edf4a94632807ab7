//! What holds for TGN holds for every model: negatives leave no trace, stages on workers are stages inline, a resumed run is the
//! run that never stopped, the future changes nothing; and EdgeBank is a brute force.

use super::streams;
use crate::config::{Config, ModelName, Preset};
use crate::pipeline::event::Negatives;
use crate::sampler::HopTime;
use crate::trainer::{Console, Summary, Trainer, costs};
use std::path::Path;
use tidemill_data::id::NodeId;
use tidemill_data::negative::CandidateRule;
use tidemill_data::split::Split;
use tidemill_models::edgebank::EdgeMemory;
use tidemill_models::message::MessageTime;

const ALL: [ModelName; 6] =
    [ModelName::Tgn, ModelName::Tgat, ModelName::Jodie, ModelName::Dyrep, ModelName::Apan, ModelName::Edgebank];

/// A small model of a name, dropout on where it has any.
fn config(name: ModelName) -> Config {
    let mut config = Preset::Tidemill.config_for(name);
    let tgn = &mut config.model.tgn;
    (tgn.memory_dim, tgn.time_dim, tgn.embedding_dim) = (8, 8, 8);
    if name == ModelName::Apan {
        config.model.apan.mail_slots = 3;
    }
    config.sampler.neighbors.fill(4);
    (config.train.batch_size, config.train.epochs, config.train.lr) = (24, 2, 1e-3);
    (config.train.negatives, config.eval.candidates) = (CandidateRule::AllNodes, CandidateRule::AllNodes);
    config
}

/// Two layers of TGN, their deeper hop at either time.
fn two_layers(hop_time: HopTime) -> Config {
    let mut config = config(ModelName::Tgn);
    config.model.tgn.layers = 2;
    (config.sampler.neighbors, config.sampler.hop_time) = (vec![4, 3], hop_time);
    config
}

fn all_configs() -> Vec<Config> {
    let mut all: Vec<Config> = ALL.map(config).into();
    all.extend([two_layers(HopTime::Edge), two_layers(HopTime::Root)]);
    all
}

fn run(folder: &Path, config: Config) -> Summary {
    let mut trainer = Trainer::over(config, streams::small()).expect("valid");
    trainer.start_run(Some(folder), "", Console { quiet: true, ..Console::default() }).expect("starts");
    trainer.fit().expect("trains")
}

#[test]
fn every_model_pipelined_is_serial_and_resumed_is_uninterrupted() {
    let folder = tempfile::tempdir().expect("a folder");
    for (i, config) in all_configs().into_iter().enumerate() {
        let name = config.name();
        let mut serial = config.clone();
        serial.pipeline.serial = true;
        let whole = run(&folder.path().join(format!("{i}-serial")), serial);
        let ahead = run(&folder.path().join(format!("{i}-ahead")), config.clone());
        assert_eq!((&ahead.state_hash, &ahead.sample_hash), (&whole.state_hash, &whole.sample_hash), "{name}");

        let path = folder.path().join(format!("{i}-stopped"));
        let console = Console { quiet: true, ..Console::default() };
        let stop = console.stop.clone();
        let mut trainer = Trainer::over(config.clone(), streams::small()).expect("valid");
        let mut batches = 0;
        trainer.hooks.on_batch(Box::new(move |_| {
            batches += 1;
            if batches == 5 {
                stop.stop();
            }
        }));
        trainer.start_run(Some(&path), "", console).expect("starts");
        assert!(matches!(trainer.fit(), Err(crate::Error::Stopped { .. })), "{name}");
        drop(trainer);
        let mut resumed = Trainer::over(config, streams::small()).expect("valid");
        resumed.resume_run(&path, Console { quiet: true, ..Console::default() }).expect("resumes");
        let resumed = resumed.fit().expect("trains");
        assert_eq!((&resumed.state_hash, &resumed.sample_hash), (&whole.state_hash, &whole.sample_hash), "{name}");
    }
}

#[test]
fn no_models_state_depends_on_negatives() {
    for mut config in all_configs() {
        let name = config.name();
        (config.train.lr, config.train.max_batches) = (0.0, 6);
        if config.model.name != ModelName::Edgebank {
            config.model.tgn.dropout = 0.0;
        }
        let states = [1, 2].map(|seed| {
            let mut trainer = Trainer::over(config.clone(), streams::small()).expect("valid");
            let nodes = trainer.stream.nodes();
            let negatives: Vec<_> = (0..trainer.split.train.len() as u32).map(|i| NodeId(i * seed % nodes)).collect();
            trainer.passes.train.negatives = Negatives::Given(negatives.into());
            trainer.train_epoch().expect("trains");
            let state = trainer.pipeline.memory().read_all();
            crate::trainer::state_hash::node_digests(&state)
        });
        assert_eq!(states[0], states[1], "{name}");
    }
}

/// A batch that is taken back leaves every node as it was, receivers of its mails included.
#[test]
fn a_batch_taken_back_leaves_no_mail() {
    let mut trainer = Trainer::over(config(ModelName::Apan), streams::small()).expect("valid");
    let pass = trainer.passes.train(1);
    trainer.pipeline.start(pass, 0..6);
    let digests = |trainer: &Trainer| {
        let state = trainer.pipeline.memory().read_all();
        crate::trainer::state_hash::node_digests(&state)
    };
    let mut before = digests(&trainer);
    for k in 0..6 {
        let batch = trainer.pipeline.next_batch().expect("alone").expect("six batches");
        let embedded = trainer.model.embed(&batch.input, tidemill_models::Mode::Eval);
        trainer.pipeline.commit_state(&batch, &embedded, &*trainer.model).expect("alone");
        if k < 5 {
            trainer.pipeline.commit_parameters();
            before = digests(&trainer);
        }
    }
    assert_ne!(digests(&trainer), before);
    trainer.pipeline.roll_back();
    assert_eq!(digests(&trainer), before);
}

/// Every test score of EdgeBank, from all events of earlier batches and nothing else.
#[test]
fn edgebank_is_a_brute_force() {
    for rule in [EdgeMemory::Unlimited, EdgeMemory::Window, EdgeMemory::FixedWindow] {
        let mut config = config(ModelName::Edgebank);
        config.model.edgebank.edge_memory = rule;
        let mut trainer = Trainer::over(config, streams::small()).expect("valid");
        let pass = trainer.passes.test.clone();
        let scores = trainer.score_split(&pass).expect("scores");
        let rows = streams::rows(&trainer.stream);
        let quantile = |times: &[i64]| {
            let place = 0.85 * (times.len() - 1) as f64;
            let (a, b) = (times[place.floor() as usize] as f64, times[place.ceil() as usize] as f64);
            a + (b - a) * place.fract()
        };
        let train: Vec<i64> = trainer.split.train.iter().map(|&event| rows[event.index()].2).collect();
        let lasted = *train.last().expect("events") as f64 - quantile(&train);
        let (mut seen, mut unseen) = (0, 0);
        for (i, (event, positive, negatives)) in scores.iter().enumerate() {
            let first = pass.events[i / pass.batch_size * pass.batch_size];
            let (source, destination, time) = rows[event.index()];
            let past: Vec<_> = rows[..first.index()].iter().filter(|row| row.2 < time).collect();
            let times: Vec<i64> = past.iter().map(|row| row.2).collect();
            let from = match rule {
                EdgeMemory::Unlimited => f64::NEG_INFINITY,
                EdgeMemory::Window => quantile(&times),
                EdgeMemory::FixedWindow => *times.last().expect("events") as f64 - lasted,
            };
            let met = |d: u32| past.iter().any(|row| row.0 == source && row.1 == d && row.2 as f64 >= from);
            assert_eq!(positive, f64::from(u8::from(met(destination))), "{rule:?}, {event:?}");
            let Negatives::Drawn(sampler) = &pass.negatives else { panic!("drawn") };
            let drawn = sampler.draw(0, event, NodeId(destination), 0);
            assert_eq!(negatives, [f64::from(u8::from(met(drawn.0)))], "{rule:?}, {event:?}");
            if met(destination) { seen += 1 } else { unseen += 1 }
        }
        assert!(seen > 0 && unseen > 0, "{rule:?}: {seen} seen, {unseen} not");
    }
}

/// The wire is charged what a row of the configured model holds: a stored time code, two embeddings of a node, no mail at all.
#[test]
fn costs_are_those_of_the_configured_model() {
    let stream = streams::small();
    let costs = |name, stored| {
        let mut config = config(name);
        if stored {
            config.model.tgn.message_time = MessageTime::Stored;
        }
        let split = Split::new(&stream, &config.split).expect("a split");
        costs::expected(&config, &stream, &split).expect("possible")
    };
    let (plain, weights) = costs(ModelName::Tgn, false);
    let feature = 4 * stream.feature_dim() as u64;
    assert_eq!((plain.row, plain.memory, plain.embedding), (36 + 2 * 32 + feature, 32, 32));
    assert_eq!((weights.row, weights.embedding, weights.feature), (plain.row, plain.embedding, feature));
    assert_eq!(costs(ModelName::Tgn, true).0.row, plain.row + 32);
    assert_eq!(costs(ModelName::Jodie, false).0.embedding, 64);
    assert_eq!((costs(ModelName::Tgat, false).0.row, costs(ModelName::Tgat, false).0.memory), (36 + feature, 0));
}
