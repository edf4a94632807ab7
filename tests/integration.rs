//! The one integration binary: the program as a user meets it, in a fresh folder.

#[path = "integration/bench.rs"]
mod bench;
#[path = "integration/command.rs"]
mod command;
#[path = "integration/data.rs"]
mod data;
#[path = "integration/evaluation.rs"]
mod evaluation;
#[path = "integration/experiments.rs"]
mod experiments;
#[path = "integration/kill.rs"]
mod kill;
#[path = "integration/layering.rs"]
mod layering;
#[path = "integration/partition.rs"]
mod partition;
#[path = "integration/ranks.rs"]
mod ranks;
#[path = "integration/sweep.rs"]
mod sweep;
#[path = "integration/usage.rs"]
mod usage;
