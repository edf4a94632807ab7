//! `tidemill partition`: how a configuration's training events would be shared out among ranks, and what would cross them.

mod curve;
mod measure;
mod page;

use super::{print, refuse_existing, table::thousands};
use crate::config::Config;
use crate::dependency::count::RowCounts;
use crate::error::{Error, Result};
use crate::setting::Auto;
use curve::Curve;
use measure::{Report, Rows, StrategyReport};
use std::fmt::Write;
use std::path::PathBuf;

/// Share out the training events of a configuration among ranks: cut, balance, and the rows that would cross.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tidemill partition experiments/wikipedia-tgn.toml --ranks 4
  tidemill partition my.toml --ranks 8 --set partition.strategy=temporal --html partition.html")]
pub(super) struct Args {
    /// Configuration file; a preset and what differs from it
    #[arg(value_name = "CONFIG.toml")]
    config: PathBuf,

    /// Number of ranks
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u16).range(1..))]
    ranks: u16,

    /// Overrides one key of the configuration, as in partition.strategy=hash; may be given many times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,

    /// Prints one JSON object
    #[arg(long)]
    json: bool,

    /// Draws each rank's load in each window, and the strategies beside each other, into a page of its own
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> Result<()> {
    args.html.as_deref().map_or(Ok(()), refuse_existing)?;
    let config = Config::load(&args.config, &args.set)?;
    config.validate()?;
    let report = measure::run(&config, usize::from(args.ranks))?;
    if let Some(path) = &args.html {
        std::fs::write(path, page::of(&report)).map_err(Error::io("write", path))?;
        tracing::info!("the picture is in {}", path.display());
    }
    if args.json {
        let text = serde_json::to_string_pretty(&report).expect("a report is plain numbers and strings");
        return print(&format!("{text}\n"));
    }
    print(&tables(&report))
}

/// The policies, as columns.
const POLICIES: [&str; 5] = ["fetch-all", "versioned", "owner-comp.", "both", "embeddings"];

fn tables(report: &Report) -> String {
    let mut text = String::new();
    let (events, nodes) = (thousands(report.events as u64), thousands(u64::from(report.nodes)));
    let _ = writeln!(text, "data     {}: {events} training events, {nodes} nodes", report.dataset);
    let _ = writeln!(
        text,
        "ranks    {}, {} batches of {} events, {:?} neighbors",
        report.ranks,
        thousands(report.batches as u64),
        report.batch_size,
        report.neighbors
    );
    let _ = writeln!(
        text,
        "windows  {} events; nodes move where a rank has more than {} times the mean\n",
        thousands(report.window_events as u64),
        report.rebalance_above
    );
    heading(&mut text, "strategy");
    for strategy in &report.strategies {
        let mark = if strategy.name() == report.chosen().name() { "*" } else { " " };
        row(&mut text, &format!("{mark}{}", strategy.name()), strategy);
    }
    let _ = writeln!(text, "\n* by window");
    heading(&mut text, "window");
    for (number, window) in report.chosen().windows.iter().enumerate() {
        let cut = window.cut as f64 / window.events as f64;
        cells(&mut text, &number.to_string(), cut, window.balance, window.moved, &window.rows);
    }
    curve(&mut text, &report.curve);
    text.push_str(
        "\ncut: share of events between two ranks; balance: the busiest rank's events over the mean, mean of the windows
moved: nodes whose state changes hands; rows: mean a batch over all ranks, embeddings each way in the last two policies\n",
    );
    text
}

/// What an epoch sends and replays at each threshold.
fn curve(text: &mut String, curve: &Curve) {
    let rates = &curve.calibration;
    let _ = writeln!(
        text,
        "\n* by dependency.tau_cache, an epoch over all ranks; {} {:.0} us, {:.0} MB/s, {:.1} us a replayed update",
        if curve.calibrated { "calibration:" } else { "assumed:" },
        1e6 * rates.latency_s,
        1e-6 * rates.bytes_per_s,
        1e6 * rates.update_s
    );
    let columns =
        ["cached", "rows", "s(peer)", "embeddings", "messages", "replayed", "MB", "send s", "replay s", "cost"];
    let _ = write!(text, " {:6}", "tau");
    columns.iter().for_each(|column| {
        let _ = write!(text, " {column:>10}");
    });
    text.push('\n');
    for point in &curve.points {
        let tau = match point.tau {
            Auto::Auto => "auto".to_owned(),
            Auto::Value(tau) => format!("{tau:.2}"),
        };
        let mark = if point.tau == Auto::Value(curve.best) { "<" } else { "" };
        let set = if point.tau == curve.configured { "*" } else { " " };
        let t = &point.traffic;
        let _ = write!(text, "{set}{tau:6} {:9.1}%", 100.0 * point.cached_share);
        [t.rows, t.memories, 2 * t.embeddings, t.messages, t.updates].iter().for_each(|&count| {
            let _ = write!(text, " {:>10}", thousands(count));
        });
        let (send, replay, cost) = (point.communication_s, point.replay_s, point.cost());
        let _ = writeln!(text, " {:10.2} {send:10.3} {replay:10.3} {cost:10.3}{mark}", 1e-6 * point.bytes as f64);
    }
    text.push_str(" *: as configured, <: cheapest\n");
}

fn heading(text: &mut String, first: &str) {
    let _ = write!(text, " {first:10} {:>6} {:>8} {:>7}", "cut", "balance", "moved");
    POLICIES.iter().for_each(|policy| {
        let _ = write!(text, " {policy:>11}");
    });
    text.push('\n');
}

fn row(text: &mut String, name: &str, strategy: &StrategyReport) {
    cells(text, name, strategy.cut_share, strategy.balance, strategy.nodes_moved, &strategy.rows);
}

fn cells(text: &mut String, name: &str, cut: f64, balance: f64, moved: usize, rows: &Rows) {
    let _ = write!(text, " {name:10} {cut:6.3} {balance:8.3} {:>7}", thousands(moved as u64));
    rows.columns().iter().for_each(|rows| {
        let _ = write!(text, " {rows:11.1}");
    });
    text.push('\n');
}

impl Rows {
    /// In the order of [`POLICIES`].
    fn columns(&self) -> [f64; 5] {
        [self.fetch_all, self.versioned, self.owner_computes, self.both, self.embeddings]
    }

    /// Means a batch.
    fn a_batch(counts: RowCounts, batches: usize) -> Rows {
        let mean = |rows: u64| rows as f64 / batches.max(1) as f64;
        Rows {
            fetch_all: mean(counts.fetch_all),
            versioned: mean(counts.versioned),
            owner_computes: mean(counts.owner_computes),
            both: mean(counts.both),
            embeddings: mean(counts.embeddings),
        }
    }
}
