//! One table of a sweep: a row for each combination of values, mean and standard deviation over its seeds.

use super::grid::Planned;
use super::runs::Ended;
use crate::cli::table::thousands;
use crate::trainer::node_task::mean_and_sd;
use serde_json::Value;
use std::fmt::Write;

/// A place in `summary.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Column(pub(super) String);

/// Always shown.
const USUAL: [&str; 6] =
    ["val.ap", "test.ap", "epochs.last.loss", "epochs.mean.seconds", "train_events_per_s", "peak_rss_bytes"];

/// Shown if a run has more there than nothing.
const IF_ANY: [&str; 20] = [
    "comm.bytes_total",
    "comm.bytes_fetch",
    "comm.bytes_delegate",
    "comm.bytes_commit",
    "comm.bytes_sync",
    "comm.bytes_feature",
    "comm.bytes_gradient",
    "comm.bytes_migration",
    "comm.rows_fetched",
    "comm.share",
    "dependency.cached",
    "dependency.tau",
    "sync.done",
    "sync.skipped",
    "sync.drift_mean",
    "replay.events",
    "replay.pruned_lossless",
    "replay.pruned_lossy",
    "gradient.forced",
    "test.mrr",
];

impl Column {
    pub(super) fn new(path: &str) -> Column {
        Column(path.trim().to_owned())
    }

    /// The columns shown where none are named.
    pub(super) fn usual(ended: &[Ended]) -> Vec<Column> {
        let any = |path: &&str| {
            let column = Column::new(path);
            summaries(ended).any(|summary| column.number(summary).is_some_and(|number| number != 0.0))
        };
        USUAL.into_iter().chain(IF_ANY.into_iter().filter(any)).map(Column::new).collect()
    }

    /// Whether the summary of any run has it, or none is there to tell.
    pub(super) fn is_in_any(&self, ended: &[Ended]) -> bool {
        summaries(ended).next().is_none() || summaries(ended).any(|summary| at(summary, &self.0).is_some())
    }

    fn number(&self, summary: &Value) -> Option<f64> {
        at(summary, &self.0).and_then(|value| value.as_f64())
    }
}

fn summaries(ended: &[Ended]) -> impl Iterator<Item = &Value> {
    ended.iter().filter_map(|ended| match ended {
        Ended::Done(summary) => Some(summary),
        _ => None,
    })
}

/// The value at a path of names parted by dots. Of a list: `last`, `mean` and `sum`, a number from 0, or the `name` of one of its
/// entries.
fn at(value: &Value, path: &str) -> Option<Value> {
    if path.is_empty() {
        return Some(value.clone());
    }
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    let Value::Array(items) = value else { return at(value.get(first)?, rest) };
    let numbers = || items.iter().map(|item| at(item, rest)?.as_f64()).collect::<Option<Vec<f64>>>();
    match first {
        "last" => at(items.last()?, rest),
        "sum" => Some(numbers()?.iter().sum::<f64>().into()),
        "mean" if items.is_empty() => None,
        "mean" => Some(mean_and_sd(&numbers()?).0.into()),
        _ => match first.parse::<usize>() {
            Ok(index) => at(items.get(index)?, rest),
            Err(_) => at(items.iter().find(|item| item["name"] == first)?, rest),
        },
    }
}

/// One combination's runs.
struct Row<'a> {
    values: &'a [String],
    done: Vec<&'a Value>,
    runs: usize,
    failed: usize,
}

fn rows<'a>(planned: &'a [Planned], ended: &'a [Ended]) -> Vec<Row<'a>> {
    let points = planned.last().map_or(0, |run| run.point + 1);
    let of_point = |point: usize| {
        let own: Vec<usize> = (0..planned.len()).filter(|&run| planned[run].point == point).collect();
        Row {
            values: &planned[own[0]].values,
            done: own.iter().filter_map(|&run| summaries(&ended[run..=run]).next()).collect(),
            runs: own.len(),
            failed: own.iter().filter(|&&run| matches!(ended[run], Ended::Failed(_))).count(),
        }
    };
    (0..points).map(of_point).collect()
}

/// A column of some runs: mean and deviation where all are numbers, else what all say alike.
enum Cell {
    Numbers(f64, f64),
    Text(String),
    Nothing,
}

fn cell(column: &Column, done: &[&Value]) -> Cell {
    let found: Vec<Value> = done.iter().filter_map(|summary| at(summary, &column.0)).filter(|v| !v.is_null()).collect();
    let numbers: Vec<f64> = found.iter().filter_map(Value::as_f64).collect();
    if found.is_empty() {
        return Cell::Nothing;
    }
    if numbers.len() == found.len() {
        let (mean, sd) = mean_and_sd(&numbers);
        return Cell::Numbers(mean, sd);
    }
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match found.iter().all(|value| *value == found[0]) {
        true => Cell::Text(text(&found[0])),
        false => Cell::Text("differ".to_owned()),
    }
}

fn figure(number: f64) -> String {
    match number.abs() {
        size if size >= 1000.0 && number > 0.0 => thousands(number.round() as u64),
        size if size >= 100.0 => format!("{number:.1}"),
        0.0 => "0".to_owned(),
        size if size < 0.001 => format!("{number:.2e}"),
        _ => format!("{number:.4}"),
    }
}

/// The table as Markdown, and under it the runs that failed.
pub(super) fn markdown(swept: &[&str], columns: &[Column], planned: &[Planned], ended: &[Ended]) -> String {
    let rows = rows(planned, ended);
    let (several, any_missing) =
        (rows.iter().any(|row| row.runs > 1), rows.iter().any(|row| row.done.len() < row.runs));
    let mut heads: Vec<&str> = swept.to_vec();
    heads.extend(columns.iter().map(|column| column.0.as_str()));
    if any_missing {
        heads.push("runs");
    }
    let mut text = format!("| {} |\n|{}\n", heads.join(" | "), "---|".repeat(heads.len()));
    for row in &rows {
        let mut cells: Vec<String> = row.values.iter().map(|value| value.replace('|', "\\|")).collect();
        cells.extend(columns.iter().map(|column| match cell(column, &row.done) {
            Cell::Numbers(mean, sd) if several => format!("{} ± {}", figure(mean), figure(sd)),
            Cell::Numbers(mean, _) => figure(mean),
            Cell::Text(text) => text.replace('|', "\\|"),
            Cell::Nothing => "-".to_owned(),
        }));
        if any_missing {
            let failed = if row.failed > 0 { format!(", {} failed", row.failed) } else { String::new() };
            cells.push(format!("{} of {}{failed}", row.done.len(), row.runs));
        }
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    let failed = planned.iter().zip(ended).filter_map(|(run, ended)| match ended {
        Ended::Failed(problem) => Some(format!("- failed: {}: {problem}", run.name)),
        _ => None,
    });
    let failed: Vec<String> = failed.collect();
    if !failed.is_empty() {
        let _ = write!(text, "\n{}\n", failed.join("\n"));
    }
    text
}

/// The same for programs: mean and deviation in columns of their own, in full precision.
pub(super) fn csv(swept: &[&str], columns: &[Column], planned: &[Planned], ended: &[Ended]) -> String {
    let mut heads: Vec<String> = swept.iter().map(|key| (*key).to_owned()).collect();
    heads.extend(["runs".to_owned(), "done".to_owned(), "failed".to_owned()]);
    heads.extend(columns.iter().flat_map(|column| [column.0.clone(), format!("{}_sd", column.0)]));
    let mut lines = vec![heads];
    for row in rows(planned, ended) {
        let mut cells = row.values.to_vec();
        cells.extend([row.runs, row.done.len(), row.failed].map(|count| count.to_string()));
        cells.extend(columns.iter().flat_map(|column| match cell(column, &row.done) {
            Cell::Numbers(mean, sd) => [mean.to_string(), sd.to_string()],
            Cell::Text(text) => [text, String::new()],
            Cell::Nothing => [String::new(), String::new()],
        }));
        lines.push(cells);
    }
    written(&lines)
}

/// A line a run.
pub(super) fn runs_csv(swept: &[&str], columns: &[Column], planned: &[Planned], ended: &[Ended]) -> String {
    let mut heads = vec!["run".to_owned()];
    heads.extend(swept.iter().filter(|key| **key != "seed").map(|key| (*key).to_owned()));
    heads.extend(["seed".to_owned(), "end".to_owned()]);
    heads.extend(columns.iter().map(|column| column.0.clone()));
    let mut lines = vec![heads];
    for (run, ended) in planned.iter().zip(ended) {
        let mut cells = vec![run.name.clone()];
        cells.extend(swept.iter().zip(&run.values).filter(|(key, _)| **key != "seed").map(|(_, value)| value.clone()));
        let (end, done) = match ended {
            Ended::Done(summary) => ("done".to_owned(), vec![summary]),
            Ended::Failed(problem) => (format!("failed: {problem}"), Vec::new()),
            Ended::Open => ("open".to_owned(), Vec::new()),
        };
        cells.extend([run.seed.to_string(), end]);
        cells.extend(columns.iter().map(|column| match cell(column, &done) {
            Cell::Numbers(number, _) => number.to_string(),
            Cell::Text(text) => text,
            Cell::Nothing => String::new(),
        }));
        lines.push(cells);
    }
    written(&lines)
}

fn written(lines: &[Vec<String>]) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for line in lines {
        writer.write_record(line).expect("lines of one length, in memory");
    }
    String::from_utf8(writer.into_inner().expect("in memory")).expect("text")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn summary(ap: f64) -> Value {
        json!({
            "test": { "ap": ap }, "device": "cpu", "comm": { "bytes_total": 0 }, "val": null,
            "epochs": [{ "loss": 3.0, "seconds": 1.0 }, { "loss": 2.0, "seconds": 4.0 }],
            "stages": [{ "name": "event", "busy_s": 0.5 }, { "name": "state", "busy_s": 0.25 }],
        })
    }

    #[test]
    fn paths_reach_into_lists() {
        let value = summary(0.5);
        for (path, expected) in [
            ("test.ap", json!(0.5)),
            ("epochs.last.loss", json!(2.0)),
            ("epochs.mean.seconds", json!(2.5)),
            ("epochs.sum.seconds", json!(5.0)),
            ("epochs.0.loss", json!(3.0)),
            ("stages.state.busy_s", json!(0.25)),
            ("device", json!("cpu")),
        ] {
            assert_eq!(at(&value, path), Some(expected), "{path}");
        }
        for absent in ["test.auc", "epochs.7.loss", "epochs.mean.device", "stages.sync.busy_s", "device.name"] {
            assert_eq!(at(&value, absent), None, "{absent}");
        }
        assert_eq!(at(&json!({ "epochs": [] }), "epochs.mean.seconds"), None);
    }

    fn planned(point: usize, seed: u64, value: &str) -> Planned {
        let (name, config) = (format!("lr={value}_seed={seed}"), crate::config::Config::default());
        Planned { name, point, values: vec![value.to_owned()], seed, sets: Vec::new(), config }
    }

    #[test]
    fn rows_are_means_over_seeds_and_name_what_failed() {
        let runs = [planned(0, 0, "1"), planned(0, 1, "1"), planned(1, 0, "[2,3]"), planned(1, 1, "[2,3]")];
        let ended =
            [Ended::Done(summary(0.5)), Ended::Done(summary(0.7)), Ended::Failed("no, never".into()), Ended::Open];
        let columns = ["test.ap", "device", "absent"].map(Column::new);
        let text = markdown(&["train.lr"], &columns, &runs, &ended);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "| train.lr | test.ap | device | absent | runs |");
        assert_eq!(lines[2], "| 1 | 0.6000 ± 0.1414 | cpu | - | 2 of 2 |");
        assert_eq!(lines[3], "| [2,3] | - | - | - | 0 of 2, 1 failed |");
        assert_eq!(lines[5], "- failed: lr=[2,3]_seed=0: no, never");
        let table = csv(&["train.lr"], &columns[..1], &runs, &ended);
        assert_eq!(table.lines().next(), Some("train.lr,runs,done,failed,test.ap,test.ap_sd"));
        assert!(table.lines().nth(1).is_some_and(|line| line.starts_with("1,2,2,0,0.6,0.141")), "{table}");
        assert_eq!(table.lines().nth(2), Some("\"[2,3]\",2,0,1,,"));
        let table = runs_csv(&["train.lr"], &columns[..1], &runs, &ended);
        assert_eq!(table.lines().nth(2), Some("lr=1_seed=1,1,1,done,0.7"));
        assert_eq!(table.lines().nth(3), Some("\"lr=[2,3]_seed=0\",\"[2,3]\",0,\"failed: no, never\","));
        let usual: Vec<String> = Column::usual(&ended).into_iter().map(|column| column.0).collect();
        assert_eq!(usual, USUAL, "nothing was sent");
    }

    #[test]
    fn figures_are_short() {
        let pairs =
            [(0.98765, "0.9877"), (1_234_567.8, "1,234,568"), (0.0, "0"), (1e-5, "1.00e-5"), (123.456, "123.5")];
        for (number, text) in pairs {
            assert_eq!(figure(number), text);
        }
    }
}
