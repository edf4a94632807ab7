//! Runs the binary in a fresh folder and looks at what it said.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// A folder of its own for one test, and the program to run in it.
pub(crate) struct Workspace {
    folder: TempDir,
}

/// What the program said and how it ended.
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Workspace {
    pub(crate) fn new() -> Workspace {
        Workspace { folder: TempDir::new().expect("a temporary folder") }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("a writable folder");
    }

    /// Runs `tidemill` with the words of `arguments`.
    pub(crate) fn run(&self, arguments: &str) -> Said {
        self.run_with(arguments, &[])
    }

    /// Runs it with more environment variables.
    pub(crate) fn run_with(&self, arguments: &str, variables: &[(&str, &str)]) -> Said {
        let mut command = self.command(arguments);
        Said::from(command.envs(variables.iter().copied()).output().expect("the program starts"))
    }

    /// The program in this folder, ready to start.
    pub(crate) fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidemill"));
        for variable in ["OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMIX_RANK", "RUST_LOG", "OMP_WAIT_POLICY"] {
            command.env_remove(variable);
        }
        command.current_dir(self.folder.path()).args(arguments.split_whitespace());
        command
    }

    /// Runs it and expects success.
    pub(crate) fn succeed(&self, arguments: &str) -> Said {
        let said = self.run(arguments);
        assert_eq!(said.code, 0, "tidemill {arguments}\n{}{}", said.out, said.err);
        said
    }

    /// Runs it and expects bad input, told in one sentence that holds `words`.
    pub(crate) fn refuse(&self, arguments: &str, words: &[&str]) {
        let said = self.run(arguments);
        assert_eq!(said.code, 2, "tidemill {arguments}\n{}{}", said.out, said.err);
        assert_eq!(said.out, "", "results of a refused command");
        let error = said.err.lines().last().unwrap_or_default();
        assert!(error.starts_with("error: "), "{}", said.err);
        for word in words {
            assert!(error.contains(word), "tidemill {arguments}\n  said: {error}\n  without: {word}");
        }
    }
}

impl From<Output> for Said {
    fn from(output: Output) -> Said {
        Said {
            code: output.status.code().expect("no signal"),
            out: String::from_utf8(output.stdout).expect("text"),
            err: String::from_utf8(output.stderr).expect("text"),
        }
    }
}

/// The project's folder.
pub(crate) fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
