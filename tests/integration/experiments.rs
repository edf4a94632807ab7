//! Every file of `experiments/` loads, is valid and says what it is.

use crate::command::project;
use tidemill::Config;

#[test]
fn every_experiment_is_valid() {
    let mut files = 0;
    for entry in std::fs::read_dir(project().join("experiments")).expect("experiments/") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        files += 1;
        let text = std::fs::read_to_string(&path).expect("text");
        assert!(text.starts_with("# "), "{} says what it is in its first line", path.display());
        assert!(text.contains("\npreset = "), "{} names its preset", path.display());
        let config = Config::load(&path, &[]).unwrap_or_else(|error| panic!("{}", error.sentence()));
        assert_eq!(Config::from_toml(&config.to_toml()).expect("what was written"), config);
    }
    assert!(files >= 14, "quickstart, collegemsg-tgn, and six models on wikipedia and reddit");
}

#[test]
fn published_protocols_are_untouched_presets() {
    let protocols = [("tgn", "tgn-2020"), ("pyg", "pyg"), ("tgl", "tgl-2022"), ("dyglib", "dyglib-2023")];
    for (file, preset) in protocols {
        for stream in ["wikipedia", "reddit"] {
            let path = project().join(format!("experiments/{stream}-{file}.toml"));
            assert_eq!(Config::load(&path, &[]).expect("a valid file").name(), preset);
        }
    }
    let config = Config::load(&project().join("experiments/wikipedia-tgb.toml"), &[]).expect("a valid file");
    assert_eq!(config.name(), "tgb-v2");
}

/// The README's configuration is one that works, and its name is what the README says.
#[test]
fn the_readme_tells_the_truth() {
    let readme = std::fs::read_to_string(project().join("README.md")).expect("README.md");
    let blocks: Vec<&str> = readme.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(blocks.len(), 2);
    let config =
        Config::read(blocks[0], std::path::Path::new("README.md"), &[]).unwrap_or_else(|e| panic!("{}", e.sentence()));
    assert!(readme.contains(&format!("`{}`", config.name())), "README.md does not name {}", config.name());
    Config::read(blocks[1], std::path::Path::new("README.md"), &[])
        .unwrap_or_else(|error| panic!("{}", error.sentence()));
}

/// The library's examples train on a small stream and tell how well.
#[test]
fn the_examples_run() {
    let tests = std::env::current_exe().expect("this program");
    let built = tests.parent().and_then(|deps| deps.parent()).expect("the profile's folder").join("examples");
    for example in ["train", "custom_model"] {
        let stream = project().join("tests/golden/bipartite.csv");
        let program = built.join(example);
        assert!(program.exists(), "{} is built by a plain `cargo test`", program.display());
        let output = std::process::Command::new(program).arg(stream).output().expect("starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains("test AP 0."), "{example}: {said}");
    }
}
