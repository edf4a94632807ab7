//! Which of how many ranks this process is, as the launcher's environment says. Alone, MPI is never initialised.

use crate::error::{Error, Result};

/// One rank among several, as the launcher's environment says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// From 0.
    pub rank: usize,
    /// Ranks in all.
    pub world: usize,
    /// From 0, among the ranks of this host.
    pub local_rank: usize,
    /// Ranks on this host.
    pub local_world: usize,
}

impl Launch {
    /// Alone.
    pub const ALONE: Launch = Launch { rank: 0, world: 1, local_rank: 0, local_world: 1 };

    /// From the process's environment.
    ///
    /// # Errors
    /// A launcher's variable that is no number.
    pub fn from_env() -> Result<Launch> {
        Launch::from_lookup(|name| std::env::var(name).ok())
    }

    /// From any environment.
    ///
    /// # Errors
    /// A launcher's variable that is no number.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Launch> {
        let number = |names: &[&str], absent: usize| {
            let Some((name, text)) = names.iter().find_map(|name| Some((name, lookup(name)?))) else {
                return Ok(absent);
            };
            text.trim().parse().map_err(|_| Error::Usage {
                problem: format!("the launcher set {name}={text}, which is no number"),
                mend: "start with mpirun, or unset the variable to run alone".to_owned(),
            })
        };
        if !["OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMIX_RANK"].iter().any(|name| lookup(name).is_some()) {
            return Ok(Launch::ALONE);
        }
        let world = number(&["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE", "SLURM_NTASKS"], 1)?;
        let rank = number(&["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"], 0)?;
        let local_rank = number(&["OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"], 0)?;
        let node = number(&["SLURM_NODEID"], 0)?;
        let of_step = lookup("SLURM_STEP_TASKS_PER_NODE").and_then(|counts| tasks_of_node(&counts, node));
        let local_world = number(&["OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"], of_step.unwrap_or(1))?;
        Ok(Launch { rank, world: world.max(1), local_rank, local_world: local_world.max(1) })
    }

    /// Refuses several ranks, for a command that runs on one.
    ///
    /// # Errors
    /// There is more than one rank.
    pub fn require_alone(self) -> Result<()> {
        if self.world == 1 && self.rank == 0 {
            return Ok(());
        }
        Err(Error::Usage {
            problem: format!("{} ranks were started, but this command runs on one", self.world.max(self.rank + 1)),
            mend: "start tidemill once, without mpirun".to_owned(),
        })
    }
}

/// Slurm's tasks of one node, from a list such as `4(x2),3`: four on each of two nodes, three on the next.
fn tasks_of_node(counts: &str, node: usize) -> Option<usize> {
    let mut first = 0;
    for group in counts.split(',') {
        let (tasks, nodes) = group.split_once("(x").unwrap_or((group, "1"));
        first += nodes.trim_end_matches(')').parse::<usize>().ok()?;
        if node < first {
            return tasks.parse().ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(variables: &[(&str, &str)]) -> Result<Launch> {
        Launch::from_lookup(|name| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn ranks_are_recognised_by_the_launcher() {
        let ompi = [
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ];
        let found = launch(&ompi).unwrap();
        assert_eq!(found, Launch { rank: 3, world: 4, local_rank: 1, local_world: 2 });
        assert!(found.require_alone().unwrap_err().sentence().contains("4 ranks were started"));
        assert_eq!(launch(&[("PMI_RANK", "1"), ("PMI_SIZE", "2")]).unwrap().world, 2);
        assert_eq!(launch(&[("PMIX_RANK", "0"), ("SLURM_NTASKS", "8")]).unwrap().world, 8);
    }

    #[test]
    fn slurm_says_how_many_ranks_a_host_has() {
        for (node, expected) in [("0", 4), ("1", 4), ("2", 3), ("3", 1)] {
            let variables = [
                ("PMIX_RANK", "9"),
                ("SLURM_NTASKS", "12"),
                ("SLURM_LOCALID", "1"),
                ("SLURM_NODEID", node),
                ("SLURM_STEP_TASKS_PER_NODE", "4(x2),3,1"),
            ];
            let found = launch(&variables).unwrap();
            assert_eq!(found, Launch { rank: 9, world: 12, local_rank: 1, local_world: expected });
        }
        for odd in ["", "x", "4(x", "4(x2"] {
            assert_eq!(tasks_of_node(odd, 7), None);
        }
    }

    #[test]
    fn alone_needs_no_launcher() {
        assert_eq!(launch(&[]).unwrap(), Launch::ALONE);
        // A batch job without a launcher: the scheduler's variables alone start no ranks.
        assert_eq!(launch(&[("SLURM_NTASKS", "8")]).unwrap(), Launch::ALONE);
        launch(&[("OMPI_COMM_WORLD_SIZE", "1")]).unwrap().require_alone().unwrap();
        assert!(launch(&[("OMPI_COMM_WORLD_SIZE", "many")]).is_err());
        // A second rank that was not told how many there are is still not alone.
        assert!(launch(&[("PMIX_RANK", "1")]).unwrap().require_alone().is_err());
    }
}
