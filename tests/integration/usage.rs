//! Help, usage errors, exit codes, ranks.

use crate::command::Workspace;

const COMMANDS: [&str; 7] = ["train", "eval", "inspect", "convert", "generate", "sweep", "bench"];

#[test]
fn every_command_has_help_with_an_example() {
    let place = Workspace::new();
    for command in COMMANDS {
        let said = place.succeed(&format!("{command} --help"));
        assert!(said.out.contains("Example") && said.out.contains(&format!("tidemill {command} ")), "{}", said.out);
    }
    let said = place.succeed("--help");
    assert!(COMMANDS.iter().all(|command| said.out.contains(command)), "{}", said.out);
    assert!(place.succeed("--version").out.starts_with("tidemill "));
}

#[test]
fn usage_errors_exit_with_two() {
    let place = Workspace::new();
    for arguments in ["train", "trian x.toml", "convert one", "generate", "eval", "inspect a --jsno", ""] {
        let said = place.run(arguments);
        assert_eq!((said.code, said.out.as_str()), (2, ""), "{arguments}: {}", said.err);
        assert!(said.err.contains("Usage"), "{arguments}: {}", said.err);
    }
    assert_eq!(place.run("train a.toml --resume runs/x").code, 2);
    assert_eq!(place.run("convert a b --random-features 0").code, 2);
}

#[test]
fn bad_configurations_exit_with_two_and_one_sentence() {
    let place = Workspace::new();
    place.refuse("train nowhere.toml", &["can not read nowhere.toml", "No such file"]);
    place.write("bad.toml", "[train]\nepoch = 3\n");
    place.refuse("train bad.toml", &["bad.toml, line 2: train.epoch", "train.epochs"]);
    place.write("good.toml", "[data]\npath = \"events.csv\"\n");
    place.refuse("train good.toml --set train.batch_size=0", &["--set train.batch_size = 0", "set 1 or more"]);
    place.refuse("train good.toml", &["events.csv"]);
    place.refuse("train --resume runs/none", &["runs/none"]);
    place.refuse("eval runs/none", &["runs/none"]);
    assert!(!place.path("runs").exists(), "a refused run leaves nothing");
}

#[test]
fn what_one_rank_does_is_refused_on_several_without_starting_mpi() {
    let place = Workspace::new();
    let said = place.run_with("eval runs/none", &[("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_RANK", "1")]);
    assert_eq!(said.code, 2, "{}", said.err);
    assert!(said.err.contains("2 ranks were started") && said.err.contains("without mpirun"), "{}", said.err);
}
