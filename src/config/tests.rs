//! What a user may write wrong, and what both presets are.

use super::{Config, Preset};
use std::path::Path;

/// Reads a configuration whose stream is named.
fn read(text: &str, sets: &[&str]) -> crate::error::Result<Config> {
    let sets: Vec<String> = ["data.path=events.csv"].iter().chain(sets).map(|set| (*set).to_owned()).collect();
    Config::read(text, Path::new("bad.toml"), &sets)
}

fn sentence(text: &str, sets: &[&str]) -> String {
    match read(text, sets) {
        Ok(config) => panic!("accepted: {text:?} {sets:?} as {}", config.name()),
        Err(error) => {
            assert_eq!(error.exit_code(), 2, "{error}");
            error.sentence()
        }
    }
}

/// Files, with what the error must say: the line, the key and the mend or the nearest key.
const BAD_FILES: &[(&str, &[&str])] = &[
    // Unknown keys
    ("[train]\nepoch = 3", &["bad.toml, line 2: train.epoch is no key", "train.epochs"]),
    ("[train]\nlearning_rate = 3", &["line 2: train.learning_rate is no key"]),
    ("[model]\n\nmemory_dims = 3", &["line 3: model.memory_dims", "model.memory_dim"]),
    ("[dependency]\ntau = 1.0", &["line 2: dependency.tau is no key", "nearest one is dependency.tau_cache"]),
    ("batch_size = 3", &["line 1: batch_size is no key", "nearest one is train.batch_size"]),
    ("[trian]\nepochs = 3", &["line 2: trian.epochs is no key", "train.epochs"]),
    ("[device]\ntype = \"cpu\"", &["line 2: device.type is no key"]),
    ("[data.columns]\nsource = \"user\"", &["line 2: data.columns.source is no key"]),
    ("[data]\ncolumns = { tme = \"ts\" }", &["line 2: data.columns.tme", "data.columns.time"]),
    ("[zzzz]", &["line 1: zzzz is no key"]),
    ("[train.lr]\nx = 1", &["line 2: train.lr.x is no key"]),
    ("seeds = 1", &["line 1: seeds is no key", "nearest one is seed"]),
    // Wrong types
    ("[train]\nepochs = \"ten\"", &["line 2: train.epochs:", "expected a whole number, 0 or more"]),
    ("[train]\nbatch_size = -1", &["line 2: train.batch_size:", "`-1`", "a whole number, 0 or more"]),
    ("[train]\navoid_positive = 1", &["line 2: train.avoid_positive:", "expected true or false"]),
    ("[train]\nlr = \"small\"", &["line 2: train.lr:", "expected a number"]),
    ("[sampler]\nneighbors = 10", &["line 2: sampler.neighbors:", "expected a list in [brackets]"]),
    ("[sampler]\nstrategy = \"recnt\"", &["line 2: sampler.strategy:", "`recnt`", "did you mean \"recent\"?"]),
    ("[sampler]\ncache_bytes = \"1 GiBi\"", &["line 2: sampler.cache_bytes:", "1GiB"]),
    ("[device]\nkind = \"gpu\"", &["line 2: device.kind:", "`gpu`", "`cuda`"]),
    ("[device]\nindex = \"first\"", &["line 2: device.index:", "local_rank"]),
    ("train = 3", &["line 1: train: this is a table of keys"]),
    ("preset = 3", &["line 1: preset: expected the name of a preset"]),
    ("seed = 1.5", &["line 1: seed:", "a whole number"]),
    ("[eval]\ncandidates = \"train_destination\"", &["line 2: eval.candidates:", "train_destinations"]),
    // Syntax
    ("seed = 1\nseed = 2", &["bad.toml, line 2:", "duplicate key"]),
    ("[train]\nlr = ", &["bad.toml, line 2:"]),
    // Presets
    ("preset = \"tgn2020\"", &["line 1: preset:", "did you mean \"tgn-2020\"?"]),
    ("preset = \"tgl-2021\"", &["line 1: preset:", "did you mean \"tgl-2022\"?"]),
    // Impossible values
    ("[train]\nbatch_size = 0", &["line 2: train.batch_size = 0:", "at least one event", "set 1 or more"]),
    ("[train]\nepochs = 0", &["line 2: train.epochs = 0:", "at least 1"]),
    ("[train]\nlr = -1e-4", &["line 2: train.lr = -0.0001:", "set 0 or more"]),
    ("[train]\nlr = nan", &["line 2: train.lr = nan:", "finite"]),
    ("[train]\nclip_norm = 0.0", &["line 2: train.clip_norm = 0.0:", "leave it out"]),
    ("[train]\nkeep_checkpoints = 0", &["line 2: train.keep_checkpoints = 0:", "set 1 or more"]),
    ("[train]\nnegatives = \"stream_destinations\"", &["line 2: train.negatives =", "train_destinations"]),
    ("[train]\nmax_seconds = -3", &["line 2: train.max_seconds = -3", "0 or more"]),
    ("[eval]\ncandidates = \"./nowhere.txt\"", &["line 2: eval.candidates =", "no such file"]),
    ("[eval]\nnegatives = \"hard\"", &["line 2: eval.negatives:", "`historical`"]),
    ("[eval]\nmrr_events = 5", &["line 2: eval.mrr_events = 5:", "set eval.negatives = \"tgb\""]),
    ("[eval]\ncandidates_per_event = 0", &["line 2: eval.candidates_per_event = 0:", "at least 1"]),
    ("[eval]\ncandidates = \"./sets.npz\"", &["line 2: eval.candidates =", "set eval.negatives = \"tgb\""]),
    ("[data]\nnode_features = \"./nowhere.npy\"", &["line 2: data.node_features =", "no such file"]),
    ("[data]\ntick = \"fortnight\"", &["line 2: data.tick = \"fortnight\":", "s, ms, us or ns"]),
    ("[split]\ntrain = 1.5", &["line 2: split.train = 1.5:", "0.70"]),
    ("[split]\ntrain = 0.9\nval = 0.2", &["line 3: split.val = 0.2:", "at most 1"]),
    ("[split]\nnew_node_share = 1.0", &["line 2: split.new_node_share = 1.0:", "below 1"]),
    ("[model]\ndropout = 1.0", &["line 2: model.dropout = 1:", "below 1"]),
    ("[model]\nheads = 3", &["line 2: model.heads = 3:", "200"]),
    ("[model]\nmemory_dim = 0", &["line 2: model.memory_dim = 0:", "write 1 or more"]),
    ("[model]\nlayers = 0", &["line 2: model.layers = 0:"]),
    ("[model]\nmatmul = \"bf16\"\ndtype = \"f64\"", &["line 2: model.matmul = \"bf16\":", "f32", "write \"full\""]),
    ("[model]\nlayers = 2", &["sampler.neighbors = [10]:", "model.layers = 2", "as in [10, 10]"]),
    ("[sampler]\nneighbors = [10, 10]", &["line 2: sampler.neighbors = [10, 10]:", "model.layers = 1"]),
    ("[sampler]\nneighbors = [0]", &["line 2: sampler.neighbors = [0]:", "from 1 to 65535"]),
    ("[model]\nembedding = \"identity\"\nembedding_dim = 64", &["line 3: model.embedding_dim = 64:", "write 100"]),
    ("[model]\nembedding = \"time\"\nroot_time = false", &["line 3: model.root_time = false:", "write true"]),
    // Keys of other models
    ("[model]\nname = \"tgta\"", &["line 2: model.name:", "`tgta`", "did you mean \"tgat\"?"]),
    (
        "[model]\nmail_slots = 4",
        &["line 2: model.mail_slots = 4:", "tgn has no such key", "one of apan", "leave it out"],
    ),
    ("[model]\nname = \"jodie\"\ndropout = 0.1", &["line 3: model.dropout = 0.1:", "jodie has no such key", "dyrep"]),
    ("[model]\nname = \"tgat\"\nupdater = \"rnn\"", &["line 3: model.updater = \"rnn\":", "tgn, jodie, dyrep"]),
    ("[model]\nname = \"edgebank\"\nedge_window = 0.0", &["line 3: model.edge_window = 0:", "write 0.15"]),
    ("[model]\nname = \"apan\"\nmail_slots = 0", &["line 3: model.mail_slots = 0:", "write 1 to 1024"]),
    ("[model]\nname = \"apan\"\nheads = 3", &["line 3: model.heads = 3:", "memory_dim = 100"]),
    ("[model]\nname = \"dyrep\"\nlayers = 2", &["line 3: model.layers = 2:", "write 1"]),
    ("[model]\nname = \"jodie\"\nmemory_dim = 64", &["model.embedding_dim = 100:", "write 64"]),
    ("[model]\nname = \"tgat\"\nlayers = 3", &["sampler.neighbors = [20, 20]:", "as in [20, 20, 20]"]),
    (
        "[model]\nname = \"jodie\"\nno_mail = \"update\"\nmessage_time = \"stored\"",
        &["line 3: model.no_mail = \"update\":", "message_time = \"applied\""],
    ),
    ("threads = 100000", &["line 1: threads = 100000:", "cores", "0 shares them"]),
    ("[pipeline]\nstaleness = 200", &["line 2: pipeline.staleness = 200:", "16 or less"]),
    ("[pipeline]\nqueue_max = 0", &["line 2: pipeline.queue_max = 0:", "1 or more"]),
    ("[pipeline]\nqueue_max = 100000", &["line 2: pipeline.queue_max = 100000:", "at most 65536"]),
    ("[pipeline]\nqueue_min = 0", &["line 2: pipeline.queue_min = 0:", "1 or more"]),
    ("[pipeline]\nqueue_min = 17", &["line 2: pipeline.queue_min = 17:", "pipeline.queue_max = 16"]),
    ("[pipeline]\nadapt_every_s = -1.0", &["line 2: pipeline.adapt_every_s = -1.0:", "0 or more"]),
    ("[pipeline]\nadapt_every_s = inf", &["line 2: pipeline.adapt_every_s = inf:", "finite"]),
    ("[dependency]\ntau_cache = 1.5", &["line 2: dependency.tau_cache = 1.5:", "from 0 (fetch all) to 1"]),
    ("[dependency]\nalpha = -1.0", &["line 2: dependency.alpha = -1.0:", "set 0 or more"]),
    ("[dependency]\nalpha = 0.0\nbeta = 0.0", &["line 2: dependency.alpha = 0.0:", "one of them above 0"]),
    ("[sync]\neps_grad = -0.01", &["line 2: sync.eps_grad = -0.01:", "set 0 or more"]),
    ("[sync]\nrelaxed_interval = 0", &["line 2: sync.relaxed_interval = 0:", "1 or more"]),
    ("[sync]\ndrift_budget = 0.0", &["line 2: sync.drift_budget = 0.0:", "above 0"]),
    ("[replay]\ndelta = nan", &["line 2: replay.delta = nan:", "set 0 or more"]),
    ("[calibration]\nlatency_s = -1e-4", &["line 2: calibration.latency_s", "set 0 or more"]),
    ("[gradient]\nmode = \"async\"", &["line 2: gradient.mode:", "`async`", "`racom`"]),
    ("[gradient]\nperiod = 0", &["line 2: gradient.period = 0:", "set 1 or more"]),
    ("[gradient]\nperiod = 20", &["line 2: gradient.period = 20:", "older than 16", "set 16 or less"]),
    ("[gradient]\nmax_staleness = 0", &["line 2: gradient.period = 4:", "older than 0", "set 1 or less"]),
    ("[gradient]\ndivergence_bound = 0.0", &["line 2: gradient.divergence_bound = 0.0:", "above 0"]),
    ("[gradient]\ndivergence_bound = nan", &["line 2: gradient.divergence_bound = nan:", "above 0"]),
    ("[partition]\nstrategy = \"metis\"", &["line 2: partition.strategy:", "`metis`", "`fennel`"]),
    ("[partition]\nwindow_events = 0", &["line 2: partition.window_events = 0:", "set 1 or more"]),
    ("[partition]\nrebalance_above = 0.9", &["line 2: partition.rebalance_above = 0.9:", "set 1.0 or more"]),
    ("[comm]\nbucket_bytes = 10", &["line 2: comm.bucket_bytes = ", "from \"1KiB\" to \"1GiB\""]),
    ("[comm]\ntimeout_s = 0.1", &["line 2: comm.timeout_s = 0.1:", "set a number from 0.5"]),
    ("[comm]\ntimeout_s = nan", &["line 2: comm.timeout_s = nan:", "set a number from 0.5"]),
];

#[test]
fn bad_files_are_refused_with_line_key_and_mend() {
    let mut wrong = Vec::new();
    for (text, words) in BAD_FILES {
        let found = sentence(text, &[]);
        assert!(!found.contains('\n'), "one sentence: {found}");
        wrong.extend(
            words
                .iter()
                .filter(|word| !found.contains(**word))
                .map(|word| format!("{text:?}\n  said: {found}\n  without: {word}")),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn bad_settings_are_refused_by_name() {
    let cases: &[(&str, &[&str])] = &[
        ("train.epoch=3", &["--set train.epoch is no key", "train.epochs"]),
        ("train.lr=fast", &["--set train.lr:", "expected a number"]),
        ("train.batch_size=0", &["--set train.batch_size = 0:", "set 1 or more"]),
        ("sampler.neighbors=[10", &["--set sampler.neighbors:", "no TOML value"]),
        ("train", &["--set train is no KEY=VALUE", "train.batch_size=600"]),
        ("=3", &["no KEY=VALUE"]),
        ("preset=dyglib-2022", &["--set preset:", "dyglib-2023"]),
    ];
    for (set, words) in cases {
        let found = sentence("", &[set]);
        for word in *words {
            assert!(found.contains(word), "{set}\n  said: {found}\n  without: {word}");
        }
    }
}

#[test]
fn settings_take_toml_and_bare_words() {
    let sets = [
        "data.columns.src=user id",
        "data.columns.dst=7",
        "split.by=count",
        "sampler.neighbors=[5]",
        "sampler.cache_bytes=64MiB",
        "train.lr=3e-4",
        "train.clip_norm=1",
        "device.index=1",
        "train.batch_size=100",
        "train.batch_size=600",
    ];
    let config = read("[train]\nbatch_size = 50\nepochs = 2", &sets).unwrap();
    assert_eq!(config.data.columns.src.as_deref(), Some("user id"));
    assert_eq!(config.data.columns.dst.as_deref(), Some("7"), "a string that looks like a number");
    assert_eq!((config.train.lr, config.train.clip_norm), (3e-4, Some(1.0)));
    assert_eq!((config.train.batch_size, config.train.epochs), (600, 2), "the last one rules");
    assert_eq!(config.sampler.neighbors, [5]);
    assert_eq!(config.device.index, crate::device::Index::Number(1));
}

#[test]
fn a_stream_must_be_named() {
    let found = Config::read("", Path::new("empty.toml"), &[]).unwrap_err().sentence();
    assert!(found.starts_with("data.path = \"\": no event stream is named"), "{found}");
    let found = Config::read("[data]\npath = \"\"", Path::new("empty.toml"), &[]).unwrap_err().sentence();
    assert!(found.starts_with("empty.toml, line 2: data.path"), "{found}");
    Config::default().validate().expect("a program may bring its own stream");
}

#[test]
fn names_carry_the_preset_and_what_differs() {
    let name = |text, sets: &[&str]| read(text, sets).unwrap().name();
    assert_eq!(name("", &[]), "tidemill");
    assert_eq!(name("preset = \"tgn-2020\"\n[train]\nbatch_size = 600", &[]), "tgn-2020+train.batch_size=600");
    assert_eq!(name("preset = \"tgn-2020\"\n[train]\nbatch_size = 200", &[]), "tgn-2020", "the preset's own value");
    let sets = ["train.lr=0.001", "sampler.neighbors=[20, 10]", "model.layers=2", "preset=tgn-2020"];
    assert_eq!(name("", &sets), "tgn-2020+model.layers=2+sampler.neighbors=[20,10]+train.lr=0.001");
    assert_eq!(name("[model]\nname = \"tgat\"", &[]), "tidemill+model.name=tgat");
    assert_eq!(name("", &["model.name=apan", "model.mail_slots=5"]), "tidemill+model.name=apan+model.mail_slots=5");
    let not_named = ["seed=3", "threads=2", "train.log_every=1", "train.keep_checkpoints=9", "device.kind=cpu"];
    assert_eq!(name("[data.columns]\nsrc = \"user\"", &not_named), "tidemill");
    assert_eq!(name("", &["train.clip_norm=1.0"]), "tidemill+train.clip_norm=1.0");
}

#[test]
fn what_is_written_reads_back_the_same() {
    for sets in [
        &[][..],
        &["preset=tgn-2020", "train.clip_norm=0.5", "train.lr=0.1", "data.bipartite=false", "data.tick=ms"],
        &["seed=9", "data.columns={src=\"a\", features=[\"x\", \"y z\"]}", "device.index=2", "model.dtype=f64"],
        &["model.name=tgat", "preset=tgn-2020", "model.layer_norm=false"],
        &["model.name=edgebank", "model.edge_memory=fixed_window"],
        &["train.lr_schedule=cosine", "eval.candidates=id_range", "pipeline.serial=true", "train.lr=1.1e-7"],
    ] {
        let config = read("", sets).unwrap();
        let text = config.to_toml();
        assert_eq!(Config::from_toml(&text).unwrap(), config, "{text}");
        assert_eq!(Config::from_toml(&text).unwrap().to_toml(), text);
    }
}

#[test]
fn a_run_that_goes_on_keeps_its_values() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    std::fs::write(&path, read("", &["train.epochs=2"]).unwrap().to_toml()).unwrap();
    let resume = |sets: &[&str]| Config::resume(&path, &sets.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>());
    let config = resume(&["train.epochs=9", "train.patience=0", "threads=1", "train.log_every=1"]).unwrap();
    assert_eq!((config.train.epochs, config.threads), (9, 1));
    for set in ["train.lr=0.1", "seed=1", "preset=tgn-2020", "data.path=other.csv"] {
        let found = resume(&[set]).unwrap_err().sentence();
        assert!(found.contains("keeps the values it was started with") && found.contains("train.epochs"), "{found}");
    }
}

/// Every key exists in the written form or is one of those that are absent by default, so no name is lost to serde.
#[test]
fn every_key_is_known() {
    let absent = [
        "data.bipartite",
        "data.columns.src",
        "data.columns.dst",
        "data.columns.time",
        "data.columns.label",
        "data.columns.features",
        "data.node_features",
        "data.tick",
        "split.new_node_file",
        "train.lr_schedule",
        "train.clip_norm",
    ];
    let table = Config::default().table();
    for key in super::schema::all_keys() {
        assert!(super::name::find(&table, &key).is_some() != absent.contains(&key.as_str()), "{key}");
    }
}

fn body(config: &Config) -> String {
    config.to_toml().lines().skip(1).map(|line| format!("{line}\n")).collect()
}

/// Every value of the default preset. A change here changes everybody's results.
#[test]
fn tidemill_is_pinned() {
    assert_eq!(body(&Preset::Tidemill.config()), TIDEMILL);
}

/// Every value of `tgn-2020`: the default preset's text with the lines that differ.
#[test]
fn tgn_2020_is_pinned() {
    check_pinned(Preset::Tgn2020, &[TGN_2020]);
}

/// Every value of `pyg`.
#[test]
fn pyg_is_pinned() {
    check_pinned(Preset::Pyg, &[PYG]);
}

/// Every value of `tgl-2022`.
#[test]
fn tgl_2022_is_pinned() {
    check_pinned(Preset::Tgl2022, &[TGL_2022]);
}

/// Every value of `dyglib-2023`.
#[test]
fn dyglib_2023_is_pinned() {
    check_pinned(Preset::Dyglib2023, &[DYGLIB_2023]);
}

/// Every value of `tgb-v2`: those of `pyg` with the lines that differ.
#[test]
fn tgb_v2_is_pinned() {
    check_pinned(Preset::TgbV2, &[PYG, TGB_V2]);
}

/// A key that is misspelled there would else be one that is not set.
#[test]
fn the_table_of_presets_holds_keys_and_has_no_gap() {
    let table: toml::Table = include_str!("presets.toml").parse().expect("TOML");
    let (keys, columns) = (super::schema::all_keys(), table["presets"].as_array().expect("names").len());
    assert_eq!(columns, 5);
    for (name, rows) in table.iter().filter_map(|(name, rows)| Some((name, rows.as_table()?))) {
        for (key, row) in rows {
            assert!(keys.contains(&format!("{name}.{key}")), "{name}.{key}");
            assert_eq!(row.as_array().map(Vec::len), Some(columns), "{name}.{key}");
        }
    }
}

fn check_pinned(preset: Preset, changes: &[&[(&str, &str)]]) {
    let mut expected = TIDEMILL.to_owned();
    for (from, to) in changes.iter().copied().flatten() {
        assert_eq!(expected.matches(from).count(), 1, "{from}");
        expected = expected.replace(from, to);
    }
    assert_eq!(body(&preset.config()), expected);
    preset.config().validate().unwrap_or_else(|invalid| panic!("{invalid:?}"));
    assert_eq!(preset.config().name(), preset.name());
}

const PYG: &[(&str, &str)] = &[
    ("preset = \"tidemill\"", "preset = \"pyg\""),
    ("time_origin = \"first\"", "time_origin = \"zero\""),
    ("time_encoder = \"fixed\"", "time_encoder = \"linear\""),
    ("embedding = \"attention\"", "embedding = \"transformer\""),
    ("root_time = true", "root_time = false"),
    ("decoder_init = \"xavier\"", "decoder_init = \"fan_in\""),
    ("epochs = 10", "epochs = 50"),
    ("patience = 5", "patience = 0"),
    ("negatives = \"train_destinations\"", "negatives = \"id_range\""),
    ("avoid_positive = true", "avoid_positive = false"),
    ("candidates = \"train_destinations\"", "candidates = \"id_range\""),
    ("average = \"pooled\"", "average = \"batch\""),
    ("new_node = \"subset\"", "new_node = \"off\""),
];

const TGB_V2: &[(&str, &str)] = &[
    ("preset = \"pyg\"", "preset = \"tgb-v2\""),
    ("patience = 0", "patience = 5"),
    ("negatives = \"random\"", "negatives = \"tgb\""),
    ("candidates = \"id_range\"", "candidates = \"stream_destinations\""),
];

const TGL_2022: &[(&str, &str)] = &[
    ("preset = \"tidemill\"", "preset = \"tgl-2022\""),
    ("time_origin = \"first\"", "time_origin = \"zero\""),
    ("dropout = 0.1", "dropout = 0.2"),
    ("time_encoder = \"fixed\"", "time_encoder = \"learned\""),
    ("decoder_init = \"xavier\"", "decoder_init = \"fan_in\""),
    ("same_batch = \"hidden\"", "same_batch = \"visible\""),
    ("epochs = 10", "epochs = 100"),
    ("batch_size = 200", "batch_size = 600"),
    ("patience = 5", "patience = 0"),
    ("negatives = \"train_destinations\"", "negatives = \"all_nodes\""),
    ("avoid_positive = true", "avoid_positive = false"),
    ("candidates = \"train_destinations\"", "candidates = \"all_nodes\""),
    ("average = \"pooled\"", "average = \"batch\""),
    ("new_node = \"subset\"", "new_node = \"off\""),
    ("state = \"trained\"", "state = \"replayed\""),
];

const DYGLIB_2023: &[(&str, &str)] = &[
    ("preset = \"tidemill\"", "preset = \"dyglib-2023\""),
    ("time_origin = \"first\"", "time_origin = \"zero\""),
    ("new_node_share = 0.0", "new_node_share = 0.1"),
    ("memory_dim = 100", "memory_dim = 172"),
    ("embedding_dim = 100", "embedding_dim = 172"),
    ("time_encoder = \"fixed\"", "time_encoder = \"learned\""),
    ("message_time = \"applied\"", "message_time = \"stored\""),
    ("same_batch = \"hidden\"", "same_batch = \"visible\""),
    ("epochs = 10", "epochs = 100"),
    ("patience = 5", "patience = 20"),
    ("avoid_positive = true", "avoid_positive = false"),
    ("loss = \"sum\"", "loss = \"mean\""),
    ("candidates = \"train_destinations\"", "candidates = \"stream_destinations\""),
    ("average = \"pooled\"", "average = \"batch\""),
    ("new_node = \"subset\"", "new_node = \"separate_pass\""),
];

/// What a model's name implies in each preset, where the user sets nothing.
#[test]
fn names_imply_what_the_model_is() {
    use super::ModelName::{Apan, Dyrep, Edgebank, Jodie, Tgat, Tgn};
    let differs = |preset: Preset, name| {
        let (own, plain) = (preset.config_for(name), preset.config());
        let (own, plain) = (body(&own), body(&plain));
        own.lines().zip(plain.lines()).filter(|(a, b)| a != b).map(|(a, _)| a.to_owned()).skip(1).collect::<Vec<_>>()
    };
    assert_eq!(Preset::Tidemill.config_for(Tgn), Preset::Tidemill.config());
    let tgat = ["layers = 2", "strategy = \"uniform\"", "neighbors = [20, 20]"];
    assert_eq!(differs(Preset::Tidemill, Tgat), tgat.map(str::to_owned));
    let own_code = [
        "layers = 2",
        "no_neighbors = \"padding\"",
        "query = \"edge_slot\"",
        "merge = \"previous\"",
        "strategy = \"uniform\"",
        "neighbors = [20, 20]",
        "latest = \"dropped\"",
        "hop_time = \"edge\"",
    ];
    assert_eq!(differs(Preset::Tgn2020, Tgat), own_code.map(str::to_owned));
    assert_eq!(differs(Preset::Tidemill, Jodie), ["dropout = 0.0", "updater = \"rnn\""].map(str::to_owned));
    assert_eq!(differs(Preset::Tidemill, Dyrep), ["updater = \"rnn\""].map(str::to_owned));
    assert_eq!(differs(Preset::Tidemill, Apan), ["dropout = 0.0", "aggregator = \"mean\""].map(str::to_owned));
    assert_eq!(differs(Preset::Tidemill, Edgebank), ["epochs = 1"].map(str::to_owned));
    for name in [Tgn, Tgat, Jodie, Dyrep, Apan, Edgebank] {
        for preset in
            [Preset::Tidemill, Preset::Tgn2020, Preset::Pyg, Preset::Tgl2022, Preset::Dyglib2023, Preset::TgbV2]
        {
            preset.config_for(name).validate().expect("every model of every preset is possible");
        }
    }
}

const TGN_2020: &[(&str, &str)] = &[
    ("preset = \"tidemill\"", "preset = \"tgn-2020\""),
    ("time_origin = \"first\"", "time_origin = \"zero\""),
    ("new_node_share = 0.0", "new_node_share = 0.1"),
    ("memory_dim = 100", "memory_dim = 172"),
    ("time_dim = 100", "time_dim = 172"),
    ("embedding_dim = 100", "embedding_dim = 172"),
    ("time_encoder = \"fixed\"", "time_encoder = \"learned\""),
    ("message_time = \"applied\"", "message_time = \"stored\""),
    ("same_batch = \"hidden\"", "same_batch = \"visible\""),
    ("hop_time = \"edge\"", "hop_time = \"root\""),
    ("epochs = 10", "epochs = 50"),
    ("avoid_positive = true", "avoid_positive = false"),
    ("candidates = \"train_destinations\"", "candidates = \"stream_destinations\""),
    ("average = \"pooled\"", "average = \"batch\""),
    ("new_node = \"subset\"", "new_node = \"separate_pass\""),
];

const TIDEMILL: &str = r#"preset = "tidemill"
seed = 0
threads = 0

[data]
path = ""
format = "auto"
time_origin = "first"

[data.columns]

[split]
by = "quantile"
train = 0.7
val = 0.15
new_node_share = 0.0
new_node_seed = 0

[model]
name = "tgn"
memory_dim = 100
time_dim = 100
embedding_dim = 100
layers = 1
heads = 2
dropout = 0.1
dtype = "f32"
matmul = "full"
time_encoder = "fixed"
message_time = "applied"
aggregator = "last"
mail_order = "stream"
updater = "gru"
embedding = "attention"
root_time = true
decoder_init = "xavier"
message = "both"
no_mail = "keep"
no_neighbors = "zeros"
query = "short"
merge = "raw"
layer_norm = true
projection_bias = false
gap = "train"
row_norm = "none"
score = "memory"
mail = "concat"
mail_slots = 10
deliver = "both"
empty_slots = "masked"
slot_attention = "leaky"
position = false
edge_memory = "unlimited"
edge_window = 0.15

[sampler]
strategy = "recent"
neighbors = [10]
same_batch = "hidden"
latest = "visible"
hop_time = "edge"
cache = true
cache_bytes = "1GiB"

[train]
epochs = 10
batch_size = 200
optimizer = "adam"
lr = 0.0001
weight_decay = 0.0
negatives = "train_destinations"
avoid_positive = true
loss = "sum"
patience = 5
max_batches = 0
max_seconds = 0.0
log_every = 50
checkpoint_every = 0
keep_checkpoints = 3

[eval]
negatives = "random"
candidates = "train_destinations"
candidates_per_event = 999
mrr_events = 0
average = "pooled"
new_node = "subset"
state = "trained"
batch_size = 0
negative_seed = 0

[partition]
strategy = "fennel"
window_events = 10000
rebalance_above = 1.2

[dependency]
tau_cache = 0.0
alpha = 1.0
beta = 1.0
cache_bytes = "1GiB"
delegate = "auto"

[sync]
eps_grad = 0.0
relaxed_interval = 5
cached_interval = 0
drift_budget = 0.05

[replay]
l_max = 0
delta = 0.2
lossy = true

[gradient]
mode = "allreduce"
period = 4
max_staleness = 16
divergence_bound = 0.02

[pipeline]
serial = false
staleness = 0
queue_min = 1
queue_max = 16
adapt_every_s = 2.0
intra_op = 0

[comm]
timeout_s = 60.0
bucket_bytes = "1MiB"

[device]
kind = "auto"
index = "local_rank"

[calibration]
latency_s = 0.0
bytes_per_s = 0.0
update_s = 0.0
"#;
