//! `tidemill generate`: a synthetic stream with the shape of a known one.

use super::{print, refuse_existing};
use crate::error::Result;
use std::path::PathBuf;
use tidemill_data::generate::{GenerateConfig, Preset, generate};

/// Generate a synthetic event stream, marked as such in its metadata.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tidemill generate events.arrow
  tidemill generate small.arrow --preset reddit --events 20000 --nodes 2000 --features 16 --seed 1
  tidemill generate moving.arrow --drift 0.9")]
pub(super) struct Args {
    /// Event stream to write
    #[arg(value_name = "OUT")]
    output: PathBuf,

    /// Whose counts, tails, repeats and bursts to imitate
    #[arg(long, value_enum, default_value_t = Shape::Wikipedia)]
    preset: Shape,

    /// Number of events [default: the preset's]
    #[arg(long, value_name = "N")]
    events: Option<usize>,

    /// Number of nodes [default: the preset's]
    #[arg(long, value_name = "N")]
    nodes: Option<usize>,

    /// Width of the edge features
    #[arg(long, value_name = "D", default_value_t = 0)]
    features: usize,

    /// Share of all events that go to one item, from 0 to 0.95
    #[arg(long, value_name = "S", default_value_t = 0.0)]
    skew: f64,

    /// Share of the activity, from 0 to 1, that follows a set of hot nodes which moves over time
    #[arg(long, value_name = "D", default_value_t = 0.0)]
    drift: f64,

    /// Seed; the same seed gives the same stream
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,

    /// Prints results and errors only
    #[arg(long)]
    pub(super) quiet: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Shape {
    /// 157,474 edits of 1,000 pages by 8,227 users
    Wikipedia,
    /// 672,447 posts of 10,000 users to 984 communities
    Reddit,
    /// 411,749 actions of 7,047 students on 97 parts of a course
    Mooc,
    /// 1,293,103 songs of 1,000 artists heard by 980 users
    Lastfm,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> Result<()> {
    refuse_existing(&args.output)?;
    let stream = generate(&GenerateConfig {
        preset: match args.preset {
            Shape::Wikipedia => Preset::Wikipedia,
            Shape::Reddit => Preset::Reddit,
            Shape::Mooc => Preset::Mooc,
            Shape::Lastfm => Preset::Lastfm,
        },
        events: args.events,
        nodes: args.nodes,
        features: args.features,
        skew: args.skew,
        drift: args.drift,
        seed: args.seed,
    })?;
    stream.write(&args.output)?;
    print(&format!(
        "{}: synthetic, {} events, {} nodes, {} edge features\n",
        args.output.display(),
        stream.len(),
        stream.nodes(),
        stream.feature_dim()
    ))
}
