//! `tidemill bench`: how fast this machine does this work.

use super::{print, table::thousands};
use crate::bench::sampler::{SamplerBench, SamplerRate, SamplerReport};
use crate::bench::step::{self, StepReport};
use crate::comms::Launch;
use crate::config::{Config, ModelName};
use crate::device;
use crate::error::{Error, Result};
use crate::trainer::Trainer;
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;
use tidemill_data::split::Split;

/// Measure the sampler or the training step of a configuration on this machine.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tidemill bench sampler experiments/wikipedia-tgn.toml --set sampler.neighbors=[10,10]
  tidemill bench step experiments/quickstart.toml --set train.batch_size=600 --json")]
pub(super) struct Args {
    /// What to measure
    #[arg(value_enum, value_name = "WHAT")]
    what: What,

    /// Configuration file; a preset and what differs from it
    #[arg(value_name = "CONFIG.toml")]
    config: PathBuf,

    /// Overrides one key of the configuration, as in train.batch_size=600; may be given many times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,

    /// Prints one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum What {
    /// Building the T-CSR and sampling neighbors, without any model
    Sampler,
    /// Training batches: stages, operations, bytes
    Step,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> Result<()> {
    Launch::from_env()?.require_alone()?;
    device::passive_wait();
    let config = Config::load(&args.config, &args.set)?;
    match args.what {
        What::Sampler => show(args.json, &measure_sampler(&config)?, sampler_table),
        What::Step => show(args.json, &measure_step(config)?, step_table),
    }
}

fn show<T: Serialize>(json: bool, report: &T, table: impl Fn(&T) -> String) -> Result<()> {
    if json {
        let text = serde_json::to_string_pretty(report).expect("a report is plain numbers and strings");
        return print(&format!("{text}\n"));
    }
    print(&table(report))
}

fn measure_sampler(config: &Config) -> Result<SamplerReport> {
    config.validate()?;
    let stream = tidemill_data::load(&config.data, &mut |notice| tracing::info!("{notice}"))?;
    let threads = device::set_threads(config.threads, config.pipeline.intra_op);
    let split = Split::new(&stream, &config.split)?;
    SamplerBench {
        stream: &stream,
        split: &split,
        sampler: &config.sampler,
        batch_size: config.train.batch_size,
        negatives: &config.train.negatives,
        seed: config.seed,
    }
    .run(threads)
}

fn measure_step(config: Config) -> Result<StepReport> {
    if config.model.name != ModelName::Tgn {
        return Err(Error::Usage {
            problem: format!("`bench step` counts the operations of tgn, not of {}", config.model.name.name()),
            mend: "leave model.name out, or use `train` and look at train_events_per_s".to_owned(),
        });
    }
    let (model, batch_size, name) = (config.model.tgn.clone(), config.train.batch_size, config.name());
    step::run(&mut Trainer::new(config)?, &model, batch_size, name)
}

fn sampler_table(report: &SamplerReport) -> String {
    let mut text = String::new();
    let (events, nodes) = (thousands(report.events as u64), thousands(u64::from(report.nodes)));
    let _ = writeln!(text, "data     {}: {events} events, {nodes} nodes", report.dataset);
    let _ = writeln!(
        text,
        "sampler  {:?}, {:?} neighbors, {} batches of {} events, cache not used",
        report.strategy,
        report.neighbors,
        thousands(report.batches as u64),
        report.batch_size
    );
    let _ = writeln!(
        text,
        "T-CSR    {:.3} s to build, {:.1} MiB",
        report.build_seconds,
        report.graph_bytes as f64 / f64::from(1 << 20)
    );
    text.push_str("\n threads     roots/s  roots/s/core    events/s    edges/s   GB/s   fastest of\n");
    for rate in [&report.one_core, &report.all_cores] {
        text.push_str(&sampler_row(rate));
    }
    text.push_str("\nroots: distinct (node, time) of a batch, lookup included; building the T-CSR apart\n");
    text
}

fn sampler_row(rate: &SamplerRate) -> String {
    format!(
        "{:8} {:>11} {:>13} {:>11} {:>10} {:6.2} {:>5} passes\n",
        rate.threads,
        thousands(rate.roots_per_s as u64),
        thousands((rate.roots_per_s / rate.threads as f64) as u64),
        thousands(rate.events_per_s as u64),
        thousands((rate.edges as f64 / rate.seconds) as u64),
        rate.gb_per_s,
        rate.passes
    )
}

fn step_table(report: &StepReport) -> String {
    let mut text = String::new();
    let shapes = &report.shapes;
    let _ = writeln!(text, "data     {}, preset {}, {} threads", report.dataset, report.preset, report.threads);
    let _ = writeln!(
        text,
        "batch    {} events ({} timed); means: {:.0} rows, {:.0} with mail, {:.0} written, roots by hop {:.0?}, K {:?}",
        report.batch_size, report.batches, shapes.rows, shapes.mailed, shapes.committed, shapes.roots, shapes.fanout
    );
    let _ = writeln!(
        text,
        "speed    {} events/s, {:.2} ms a batch",
        thousands(report.events_per_s as u64),
        report.ms_per_batch
    );
    text.push_str("\n stage          ms   share\n");
    for stage in &report.stages {
        let share = stage.ms / report.ms_per_batch * 100.0;
        let _ = writeln!(text, " {:10} {:6.2} {share:5.1} %", stage.name, stage.ms);
    }
    text.push_str("\n             a batch     a second   the machine   share\n");
    let _ = writeln!(
        text,
        " products {:7.3} GFLOP {:6.1} GFLOP/s {:7.1} GFLOP/s {:5.1} %",
        report.gflop_per_batch,
        report.gflop_per_s,
        report.machine.gemm_gflop_per_s,
        report.gemm_share * 100.0
    );
    let _ = writeln!(
        text,
        " moved    {:7.1} MB    {:6.1} GB/s    {:7.1} GB/s    {:5.1} %",
        report.gb_per_batch * 1e3,
        report.gb_per_s,
        report.machine.copy_gb_per_s,
        report.copy_share * 100.0
    );
    if let Some(resident) = report.resident {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let (heap, mapped) = (mib(resident.heap_bytes), mib(resident.mapped_bytes));
        let _ = writeln!(text, "\nmemory   {heap:.0} MiB heap, {mapped:.0} MiB mapped files and libraries");
    }
    text
}
