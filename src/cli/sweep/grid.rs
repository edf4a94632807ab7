//! Which runs a sweep is made of: every combination of the given values, the last key's changing fastest, each of some seeds.

use super::repeated;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::trainer::durable::sha256_hex;
use std::path::Path;

/// A key and the values that it takes, as on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Axis {
    pub(super) key: String,
    pub(super) values: Vec<String>,
}

/// One run of a sweep.
pub(super) struct Planned {
    /// Its folder within the sweep's.
    pub(super) name: String,
    /// Which combination it is of, counted from 0.
    pub(super) point: usize,
    /// Values of the keys that have several, in their order.
    pub(super) values: Vec<String>,
    pub(super) seed: u64,
    /// What it is started with: `KEY=VALUE`.
    pub(super) sets: Vec<String>,
    pub(super) config: Config,
}

impl Axis {
    /// `KEY=V1,V2,...`.
    pub(super) fn parse(text: &str) -> Result<Axis> {
        let wrong = |problem: String| Error::Usage {
            problem: format!("--set {text} {problem}"),
            mend: "write it as in --set train.lr=1e-4,3e-4, and a value with commas in quotes or brackets".to_owned(),
        };
        let (key, list) = text.split_once('=').ok_or_else(|| wrong("is no KEY=VALUE,...".to_owned()))?;
        let values = split_values(list).map_err(|problem| wrong(problem.to_owned()))?;
        let key = key.trim().to_owned();
        if key.is_empty() || values.iter().any(String::is_empty) {
            return Err(wrong("lacks a key or a value".to_owned()));
        }
        match repeated(values.iter().cloned()) {
            Some(value) => Err(wrong(format!("names {value} twice"))),
            None => Ok(Axis { key, values }),
        }
    }
}

/// The values of a list; commas within quotes, brackets and braces belong to a value.
fn split_values(list: &str) -> std::result::Result<Vec<String>, &'static str> {
    let (mut values, mut value, mut closers, mut quote) = (Vec::new(), String::new(), Vec::new(), None);
    let mut letters = list.chars();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some('"'), '\\') => {
                value.push(letter);
                value.extend(letters.next());
                continue;
            }
            (Some(open), _) if open == letter => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(letter),
            (None, '[') => closers.push(']'),
            (None, '{') => closers.push('}'),
            (None, ']' | '}') if closers.pop() != Some(letter) => return Err("closes a bracket that is not open"),
            (None, ',') if closers.is_empty() => {
                values.push(std::mem::take(&mut value).trim().to_owned());
                continue;
            }
            _ => {}
        }
        value.push(letter);
    }
    if quote.is_some() || !closers.is_empty() {
        return Err("leaves a quote or bracket open");
    }
    values.push(value.trim().to_owned());
    Ok(values)
}

/// All runs, each with its configuration read and checked.
pub(super) fn plan(config: &Path, axes: &[Axis], seeds: u32) -> Result<Vec<Planned>> {
    let usage = |problem: String, mend: &str| Err(Error::Usage { problem, mend: mend.to_owned() });
    if let Some(key) = repeated(axes.iter().map(|axis| axis.key.clone())) {
        return usage(format!("--set {key} is given twice"), "name all its values in one --set, parted by commas");
    }
    let sweeps_seeds = axes.iter().any(|axis| axis.key == "seed" && axis.values.len() > 1);
    if sweeps_seeds && seeds > 1 {
        return usage("both --seeds and --set seed name seeds".to_owned(), "leave one of them out");
    }
    let points = axes.iter().map(|axis| axis.values.len()).try_fold(1usize, usize::checked_mul);
    let Some(points) = points.filter(|points| points.saturating_mul(seeds as usize) <= MOST_RUNS) else {
        return usage(format!("the grid has more than {MOST_RUNS} runs"), "give fewer values");
    };
    let mut planned = Vec::new();
    for point in 0..points {
        let values = values_at(axes, point);
        let sets: Vec<String> = axes.iter().zip(&values).map(|(axis, value)| format!("{}={value}", axis.key)).collect();
        let first = Config::load(config, &sets)?.seed;
        for seed in (0..u64::from(seeds)).map(|number| first.wrapping_add(number)) {
            let mut sets = sets.clone();
            sets.retain(|set| !set.starts_with("seed="));
            sets.push(format!("seed={seed}"));
            let config = Config::load(config, &sets)?;
            let swept: Vec<(&str, &str)> = axes
                .iter()
                .zip(&values)
                .filter(|(axis, _)| axis.values.len() > 1)
                .map(|(axis, value)| (axis.key.as_str(), *value))
                .collect();
            let values = swept.iter().map(|(_, value)| (*value).to_owned()).collect();
            planned.push(Planned { name: name(&swept, seed), point, values, seed, sets, config });
        }
    }
    Ok(planned)
}

/// More runs than this are a slip of the keyboard.
const MOST_RUNS: usize = 10_000;

fn values_at(axes: &[Axis], point: usize) -> Vec<&str> {
    let mut left = point;
    let mut values: Vec<&str> = axes
        .iter()
        .rev()
        .map(|axis| {
            let value = &axis.values[left % axis.values.len()];
            left /= axis.values.len();
            value.as_str()
        })
        .collect();
    values.reverse();
    values
}

/// A run's folder: its keys' last parts with their values, so that a larger grid finds the runs of a smaller one.
fn name(swept: &[(&str, &str)], seed: u64) -> String {
    let whole: Vec<String> = swept.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let short = |(key, value): &(&str, &str)| format!("{}={value}_", key.rsplit('.').next().unwrap_or(key));
    let plain = |c: char| if c.is_alphanumeric() || "._+-=".contains(c) { c } else { '-' };
    let name: String = swept.iter().filter(|(key, _)| *key != "seed").map(short).collect();
    let readable: String = name.chars().map(plain).take(120).collect();
    // Different values may read the same.
    let mark =
        if readable == name { String::new() } else { format!("{}_", &sha256_hex(whole.join("\n").as_bytes())[..8]) };
    format!("{readable}{mark}seed={seed}").trim_start_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_parted_at_commas_outside_of_quotes_and_brackets() {
        for (list, values) in [
            ("1", vec!["1"]),
            ("1e-4, 3e-4", vec!["1e-4", "3e-4"]),
            ("[10],[10,10]", vec!["[10]", "[10,10]"]),
            (r#""a,b",'c,]',"d\",e""#, vec![r#""a,b""#, "'c,]'", r#""d\",e""#]),
            ("{ src = [1, 2], dst = \"x\" },{}", vec!["{ src = [1, 2], dst = \"x\" }", "{}"]),
            ("auto,0.5", vec!["auto", "0.5"]),
        ] {
            assert_eq!(split_values(list).expect("a list"), values, "{list}");
        }
        for wrong in ["a=1,", "a=", "=1", "a", "a=[1,2", "a=1]", "a=\"x", "a=1,1"] {
            let error = Axis::parse(wrong).expect_err(wrong);
            assert_eq!(error.exit_code(), 2);
        }
    }

    #[test]
    fn names_tell_values_apart() {
        assert_eq!(name(&[("train.lr", "1e-4"), ("sync.eps_grad", "auto")], 3), "lr=1e-4_eps_grad=auto_seed=3");
        assert_eq!(name(&[], 0), "seed=0");
        assert_eq!(name(&[("seed", "7")], 7), "seed=7");
        let names = ["[10,10]", "[10.10]", "\"10 10\""].map(|value| name(&[("sampler.neighbors", value)], 0));
        assert!(names[0] != names[1] && names[1] != names[2] && names[0].starts_with("neighbors=-10-10-"), "{names:?}");
        let long = name(&[("data.path", &"x".repeat(500))], 0);
        assert!(long.len() < 160, "{long}");
    }

    #[test]
    fn the_grid_is_every_combination_of_every_seed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run.toml");
        std::fs::write(folder.path().join("events"), "").expect("written");
        let events = folder.path().join("events");
        std::fs::write(&path, format!("seed = 5\n[data]\npath = \"{}\"\n", events.display())).expect("written");
        let axes = |sets: &[&str]| sets.iter().map(|set| Axis::parse(set).expect("an axis")).collect::<Vec<_>>();
        let planned = plan(&path, &axes(&["train.lr=1e-4,1e-3", "train.epochs=2", "train.batch_size=10,20,30"]), 2);
        let planned = planned.expect("a grid");
        let names: Vec<&str> = planned.iter().map(|run| run.name.as_str()).collect();
        assert_eq!(names.len(), 12);
        assert_eq!(
            names[..3],
            ["lr=1e-4_batch_size=10_seed=5", "lr=1e-4_batch_size=10_seed=6", "lr=1e-4_batch_size=20_seed=5"]
        );
        assert_eq!((planned[11].point, planned[11].config.train.batch_size, planned[11].config.seed), (5, 30, 6));
        assert!(planned.iter().all(|run| run.config.train.epochs == 2));
        let refused = |sets: &[&str], seeds| plan(&path, &axes(sets), seeds).err().expect("refused").exit_code();
        assert_eq!(refused(&["seed=1,2"], 2), 2);
        assert_eq!(refused(&["train.lr=1", "train.lr=2"], 1), 2);
        assert_eq!(refused(&["train.batch_size=10,0"], 1), 2, "every point is checked before the first run");
        let seeds = plan(&path, &axes(&["seed=1,4"]), 1).expect("a grid");
        assert_eq!(seeds.iter().map(|run| run.config.seed).collect::<Vec<_>>(), [1, 4]);
    }
}
