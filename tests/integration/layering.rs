//! Who may know whom: the modules' `use` lines against the order of the layers, highest first.

use crate::command::project;
use std::collections::BTreeSet;
use std::path::Path;

/// A module may use its own layer and those below it.
const LAYERS: [&[&str]; 7] = [
    &["cli", "config"],
    &["bench"],
    &["trainer", "eval"],
    &["pipeline"],
    &["dependency", "replay", "boundary", "gradient"],
    &["graph", "sampler", "partition", "memory"],
    &["comms", "device", "stats", "byte_size", "setting"],
];

/// Names of the whole crate: the error wraps every module's, the trainer is handed the whole configuration.
const EXCEPTIONS: [(&str, &str); 1] = [("trainer", "config")];

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|modules| modules.contains(&module))
}

fn sources(path: &Path, found: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(path).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let relative = path.strip_prefix(project().join("src")).expect("below src").to_owned();
            let text = std::fs::read_to_string(&path).expect("text");
            found.push((relative.to_string_lossy().into_owned(), text));
        }
    }
}

fn all_sources() -> Vec<(String, String)> {
    let mut found = Vec::new();
    sources(&project().join("src"), &mut found);
    found
}

/// The first names of the `crate::` paths in a text without its comments, tests excluded.
fn used_modules(text: &str) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let paths = lines.flat_map(|line| line.split("crate::").skip(1).map(str::to_owned).collect::<Vec<_>>());
    paths.map(|rest| rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()).collect()
}

/// Whether a path starts with `root`, and not as the end of a longer name.
fn has_path(code: &str, root: &str) -> bool {
    code.match_indices(root).any(|(at, _)| !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_'))
}

#[test]
fn arrows_point_down_only() {
    let mut wrong = Vec::new();
    for (file, text) in all_sources() {
        let module = file.split(['/', '.']).next().unwrap_or_default();
        let Some(own) = layer(module).filter(|_| !file.contains("tests")) else {
            continue;
        };
        for used in used_modules(&text) {
            let upward = layer(&used).is_some_and(|other| other < own);
            if upward && !EXCEPTIONS.contains(&(module, used.as_str())) {
                wrong.push(format!("{file} uses {used}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn integers_and_foreign_crates_keep_their_places() {
    let integer_land = ["graph", "sampler", "partition", "dependency", "replay"];
    let mut wrong = Vec::new();
    for (file, text) in all_sources() {
        let module = file.split(['/', '.']).next().unwrap_or_default();
        let code: String =
            text.lines().filter(|line| !line.trim_start().starts_with("//")).map(|l| format!("{l}\n")).collect();
        let has = |word: &str| code.contains(word);
        let rules = [
            (
                integer_land.contains(&module) && (has_path(&code, "tch::") || has("tidemill_models")),
                "tensors in integer land",
            ),
            (file != "comms/mpi.rs" && (has("use mpi::") || has(" mpi::initialize")), "MPI outside comms/mpi.rs"),
            (file != "device/cuda.rs" && has_path(&code, "cudarc::"), "cudarc outside device/cuda.rs"),
            (file != "comms/mod.rs" && has("feature = \"mpi\""), "the mpi feature outside comms/mod.rs"),
        ];
        wrong.extend(rules.iter().filter(|(broken, _)| *broken).map(|(_, what)| format!("{file}: {what}")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
