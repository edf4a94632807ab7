use super::*;
use crate::trainer::durable::faults::{self, Fault};
use serde_json::json;
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn at(epoch: u32, batch: u64) -> Position {
    Position { epoch, batch }
}

/// A state that differs between positions, in its values and its size.
fn state(position: Position) -> Archive {
    let mut archive = Archive::new(json!({"epoch": position.epoch, "batch": position.batch}));
    let rows = 500 + position.batch as usize % 7;
    archive.insert("memory", &[rows, 8], vec![position.batch as f32 + 0.1; rows * 8]);
    archive.insert("last_update", &[rows], vec![i64::from(position.epoch); rows]);
    archive
}

fn save(store: &CheckpointStore, position: Position) -> Result<Saved, CheckpointError> {
    store.save(position, &state(position))
}

fn new_store(keep: usize) -> (tempfile::TempDir, CheckpointStore) {
    let folder = tempfile::tempdir().expect("folder");
    let store = CheckpointStore::new(folder.path().join("run/checkpoint"), keep);
    (folder, store)
}

/// A store holding the given positions.
fn filled(positions: &[Position]) -> (tempfile::TempDir, CheckpointStore) {
    let (folder, store) = new_store(10);
    for &position in positions {
        save(&store, position).expect("save");
    }
    (folder, store)
}

/// The newest intact checkpoint's position; what it holds must be what was saved there.
fn latest(store: &CheckpointStore) -> Position {
    let found = store.latest().expect("an intact checkpoint");
    let position = found.checkpoint.position();
    assert_eq!(found.checkpoint.read_shard(0).expect("shard"), state(position));
    position
}

fn shard_of(store: &CheckpointStore, position: Position) -> PathBuf {
    store.dir().join(position.folder()).join("rank-0.safetensors")
}

fn manifest_of(store: &CheckpointStore, position: Position) -> PathBuf {
    store.dir().join(position.folder()).join("manifest.json")
}

#[test]
fn names_folders_by_position_and_orders_by_number() {
    assert_eq!(at(3, 120).folder(), "e0003-b000120");
    for position in [at(3, 120), at(1, 0), at(12_345, 9_999_999)] {
        assert_eq!(Position::from_folder(&position.folder()), Some(position));
    }
    for other in ["best", "e3-b120", "e0003-b000120.tmp", "e0003", "e+003-b000120"] {
        assert_eq!(Position::from_folder(other), None, "{other}");
    }
    assert!(at(2, 0) > at(1, 1_000_000) && at(1, 1_000_000) > at(1, 999_999));
    let (_folder, store) = filled(&[at(1, 999_999), at(1, 1_000_000)]);
    assert_eq!(latest(&store), at(1, 1_000_000));
}

#[test]
fn an_empty_store_says_so() {
    let (_folder, store) = new_store(3);
    assert!(matches!(store.latest(), Err(CheckpointError::Empty { .. })));
}

#[test]
fn carries_what_it_is_labelled_with() {
    let (_folder, store) = new_store(3);
    let saved = save(&store.clone().for_config("c0ffee"), at(2, 7)).expect("save");
    assert!(saved.not_removed.is_none());
    let found = store.latest().expect("any config will do");
    let manifest = found.checkpoint.manifest();
    assert_eq!(
        (manifest.format, manifest.position, manifest.config_digest.as_deref()),
        (FORMAT, at(2, 7), Some("c0ffee"))
    );
    assert!(manifest.program.starts_with(concat!("tidemill ", env!("CARGO_PKG_VERSION"))));
    assert!(manifest.saved_unix_s > 1_600_000_000);
    assert!(matches!(found.checkpoint.read_shard(1), Err(CheckpointError::NoShard { rank: 1, ranks: 1, .. })));
    assert!(found.skipped.is_empty());
}

#[test]
fn another_config_is_refused_not_skipped() {
    let (_folder, store) = filled(&[at(1, 10)]);
    let (same, other) = (store.clone().for_config("c0ffee"), store.for_config("decaf"));
    assert!(matches!(same.latest(), Err(CheckpointError::OtherConfig { .. })), "made without one");
    save(&same, at(1, 20)).expect("save");
    assert_eq!(latest(&same), at(1, 20));
    let error = other.latest().expect_err("another config");
    assert!(error.to_string().contains("e0001-b000020 was made with another config"), "{error}");
}

#[test]
fn keeps_the_last_ones() {
    let (_folder, store) = new_store(2);
    for position in [at(1, 10), at(1, 20), at(2, 0), at(2, 10)] {
        save(&store, position).expect("save");
    }
    assert_eq!(store.positions().expect("list"), [at(2, 0), at(2, 10)]);
}

#[test]
fn falls_back_to_the_newest_intact_one() {
    let positions = [at(1, 10), at(1, 20), at(1, 30)];
    type Damage = fn(&CheckpointStore);
    let break_newest: [(&str, Damage); 7] = [
        ("truncated shard", |store| {
            let path = shard_of(store, at(1, 30));
            let bytes = fs::read(&path).expect("read");
            fs::write(&path, &bytes[..bytes.len() - 9]).expect("write");
        }),
        ("corrupt byte in a shard", |store| {
            flip_byte(&shard_of(store, at(1, 30)), 9_000);
        }),
        ("missing shard", |store| {
            fs::remove_file(shard_of(store, at(1, 30))).expect("remove");
        }),
        ("missing manifest", |store| {
            fs::remove_file(manifest_of(store, at(1, 30))).expect("remove");
        }),
        ("empty manifest", |store| {
            fs::write(manifest_of(store, at(1, 30)), "").expect("write");
        }),
        ("changed digit in the manifest", |store| {
            let text = fs::read_to_string(manifest_of(store, at(1, 30))).expect("read");
            fs::write(manifest_of(store, at(1, 30)), text.replace("\"batch\": 30", "\"batch\": 31")).expect("write");
        }),
        ("another checkpoint's folder", |store| {
            for of in [shard_of, manifest_of] {
                fs::copy(of(store, at(1, 20)), of(store, at(1, 30))).expect("copy");
            }
        }),
    ];
    for (name, damage) in break_newest {
        let (_folder, store) = filled(&positions);
        damage(&store);
        assert_eq!(latest(&store), at(1, 20), "{name}");
        let skipped = store.latest().expect("fallback").skipped;
        assert_eq!(skipped.len(), 1, "{name}");
        assert!(skipped[0].to_string().contains("e0001-b000030"), "{name}: {}", skipped[0]);
        save(&store, at(1, 30)).expect("save");
        assert_eq!(latest(&store), at(1, 30), "{name}, repaired");
    }
}

fn flip_byte(path: &Path, index: usize) {
    let mut bytes = fs::read(path).expect("read");
    bytes[index] ^= 1;
    fs::write(path, bytes).expect("write");
}

#[test]
fn every_byte_counts() {
    let (_folder, store) = filled(&[at(1, 10), at(1, 20)]);
    for path in [shard_of(&store, at(1, 20)), manifest_of(&store, at(1, 20))] {
        let bytes = fs::read(&path).expect("read");
        // The manifest's last byte is a line break: it carries nothing.
        for index in (0..bytes.len() - 1).step_by(if bytes.len() > 2000 { 997 } else { 1 }) {
            flip_byte(&path, index);
            // White space between the manifest's fields carries nothing either.
            assert!(latest(&store) == at(1, 10) || bytes[index].is_ascii_whitespace(), "{} at {index}", path.display());
            fs::write(&path, &bytes).expect("restore");
        }
    }
    assert_eq!(latest(&store), at(1, 20));
}

#[test]
fn none_intact_names_the_newest_file() {
    let (_folder, store) = filled(&[at(1, 10), at(1, 20)]);
    flip_byte(&shard_of(&store, at(1, 10)), 9_000);
    flip_byte(&shard_of(&store, at(1, 20)), 9_000);
    let error = store.latest().expect_err("none is intact");
    assert!(error.to_string().starts_with("none of the 2 checkpoints in "), "{error}");
    let cause = std::error::Error::source(&error).expect("a cause").to_string();
    assert!(cause.contains("e0001-b000020/rank-0.safetensors is damaged"), "{cause}");
}

#[test]
fn a_newer_format_is_refused_not_skipped() {
    let (_folder, store) = filled(&[at(1, 10), at(1, 20)]);
    let path = manifest_of(&store, at(1, 20));
    let mut document: serde_json::Value = serde_json::from_slice(&fs::read(&path).expect("read")).expect("json");
    document["format"] = json!(FORMAT + 1);
    document["program"] = json!("tidemill 9.0.0");
    document["shards"] = json!({"layout": "unknown"});
    document.as_object_mut().expect("object").remove("sha256");
    document["sha256"] = durable::sha256_hex(document.to_string().as_bytes()).into();
    fs::write(&path, document.to_string()).expect("write");
    let error = store.latest().expect_err("too new");
    assert!(matches!(error, CheckpointError::NewerFormat { .. }));
    let text = error.to_string();
    assert!(text.contains("e0001-b000020/manifest.json") && text.contains("tidemill 9.0.0"), "{text}");
}

#[test]
fn leftovers_are_ignored_and_removed() {
    let (_folder, store) = filled(&[at(1, 10)]);
    let unfinished = store.dir().join(at(1, 15).folder());
    fs::create_dir(&unfinished).expect("folder");
    fs::write(unfinished.join("rank-0.safetensors"), "half").expect("write");
    let target = store.dir().join(at(1, 20).folder());
    fs::create_dir(&target).expect("folder");
    fs::write(target.join("rank-0.safetensors.tmp"), "half").expect("write");
    fs::write(target.join("rank-7.safetensors"), "of an earlier try on more ranks").expect("write");
    fs::write(store.dir().join("note.txt"), "a user's own file").expect("write");
    assert_eq!(latest(&store), at(1, 10));
    save(&store, at(1, 20)).expect("save");
    assert_eq!(latest(&store), at(1, 20));
    assert!(!unfinished.exists());
    assert_eq!(durable::list_folder(&target).expect("list"), ["manifest.json", "rank-0.safetensors"]);
    assert!(store.dir().join("note.txt").exists());
}

#[test]
fn a_first_save_that_never_finished_counts_for_nothing() {
    let (_folder, store) = new_store(3);
    fs::create_dir_all(store.dir().join(at(1, 15).folder())).expect("folder");
    assert!(matches!(store.latest().expect_err("no checkpoint"), CheckpointError::Empty { .. }));
}

#[test]
fn going_back_behind_a_damaged_one_drops_it() {
    let (_folder, store) = new_store(1);
    save(&store, at(1, 10)).expect("save");
    save(&CheckpointStore::new(store.dir(), 2), at(1, 30)).expect("save");
    flip_byte(&shard_of(&store, at(1, 30)), 9_000);
    save(&store, at(1, 20)).expect("save");
    assert_eq!(store.positions().expect("list"), [at(1, 20)]);
    assert_eq!(latest(&store), at(1, 20));
}

/// What a save under a fault writes: not what an earlier save at the same position wrote.
fn second_state(position: Position) -> Archive {
    let mut archive = state(position);
    archive.insert("second", &[1], vec![1u8]);
    archive
}

/// The newest intact checkpoint's position, holding what the first or the second save wrote, without any fallback to it.
fn latest_of_either(store: &CheckpointStore) -> Position {
    let found = store.latest().expect("an intact checkpoint");
    let position = found.checkpoint.position();
    let archive = found.checkpoint.read_shard(0).expect("shard");
    assert!(archive == state(position) || archive == second_state(position), "another state");
    assert!(found.skipped.iter().all(|e| matches!(e, CheckpointError::Unfinished { .. })), "{:?}", found.skipped);
    position
}

/// Saves under a fault after every possible number of disk operations, first at a new position, then again at an old one.
fn check_every_moment(fault: Fault, check: impl Fn(&CheckpointStore, Position, Result<Saved, CheckpointError>)) {
    for target in [at(2, 5), at(1, 20)] {
        for succeeding in 0.. {
            let (_folder, store) = filled(&[at(1, 10), at(1, 20)]);
            let store = CheckpointStore::new(store.dir(), 1);
            let (result, reached) = faults::with(succeeding, fault, || store.save(target, &second_state(target)));
            if !reached {
                assert!(result.expect("nothing failed").not_removed.is_none());
                assert_eq!(store.positions().expect("list"), [target]);
                assert!(succeeding > 12, "fewer operations than a save needs");
                break;
            }
            check(&store, target, result);
        }
    }
}

#[test]
fn killed_at_any_moment_leaves_a_loadable_store() {
    check_every_moment(Fault::Killed, |store, target, result| {
        let found = latest_of_either(store);
        assert!(found == target || found == at(1, 20), "{found}");
        if result.is_ok() {
            assert_eq!(found, target);
        }
        save(store, target).expect("the next run saves");
        assert_eq!(latest(store), target);
        assert_eq!(store.positions().expect("list"), [target]);
        let folder = store.dir().join(target.folder());
        assert_eq!(durable::list_folder(&folder).expect("list").len(), 2, "no leftovers");
    });
}

#[test]
fn a_full_disk_leaves_no_half_checkpoint() {
    check_every_moment(Fault::DiskFull, |store, target, result| {
        let found = latest_of_either(store);
        match result {
            Ok(saved) => {
                assert_eq!(found, target);
                saved.not_removed.expect("removing an old one failed");
            }
            Err(error) => {
                assert!(error.to_string().contains("the disk is full"), "{error}");
                assert!(store.latest().expect("intact").skipped.is_empty(), "nothing half-written");
                assert!(found == target || found == at(1, 20), "{found}");
            }
        }
    });
}

#[test]
fn shards_of_several_ranks_count_together() {
    let (_folder, store) = new_store(2);
    save(&store, at(1, 10)).expect("save");
    let position = at(1, 20);
    let shards: Vec<_> = [2, 0, 1]
        .map(|rank| store.write_shard(position, rank, &state(at(rank, 20))).expect("shard"))
        .into_iter()
        .collect();
    assert_eq!(latest(&store), at(1, 10), "not before the manifest");
    store.commit(position, shards).expect("commit");
    let checkpoint = store.latest().expect("checkpoint").checkpoint;
    assert_eq!(checkpoint.manifest().ranks(), 3);
    for rank in 0..3 {
        assert_eq!(checkpoint.read_shard(rank).expect("shard"), state(at(rank, 20)));
    }
    flip_byte(&checkpoint.folder().join("rank-1.safetensors"), 9_000);
    assert!(matches!(checkpoint.read_shard(1), Err(CheckpointError::Checksum { .. })));
    assert_eq!(latest(&store), at(1, 10));
}

const CHILD: &str = "TIDEMILL_TEST_CHECKPOINT_DIR";

/// The child of the test below: saves one checkpoint after the other until it is killed.
#[test]
fn child_saves_until_killed() {
    let Some(dir) = std::env::var_os(CHILD) else { return };
    let store = CheckpointStore::new(dir, 2);
    let first = store.latest().map_or(0, |found| found.checkpoint.position().batch);
    for batch in first + 1.. {
        save(&store, at(1, batch)).expect("save");
    }
}

#[test]
fn sigkill_at_random_moments_loses_nothing() {
    let (_folder, store) = new_store(2);
    let program = std::env::current_exe().expect("this test");
    let name = concat!(module_path!(), "::child_saves_until_killed").split_once("::").expect("crate").1;
    let mut reached = 0;
    for round in 0..12u64 {
        let mut child = Command::new(&program)
            .args([name, "--exact"])
            .env(CHILD, store.dir())
            .stdout(Stdio::null())
            .spawn()
            .expect("child");
        wait_for_progress(&store, reached);
        std::thread::sleep(Duration::from_micros(700 * round));
        child.kill().expect("kill");
        child.wait().expect("wait");
        let found = latest(&store);
        assert!(found.batch > reached, "round {round}: {found} is not past batch {reached}");
        reached = found.batch;
    }
}

/// Waits until a checkpoint after `batch` is there; only folder names are looked at, since the child is writing.
fn wait_for_progress(store: &CheckpointStore, batch: u64) {
    let start = Instant::now();
    while !store.positions().is_ok_and(|p| p.iter().any(|p| p.batch > batch + 1)) {
        assert!(start.elapsed() < Duration::from_secs(60), "the child saves nothing");
        std::thread::sleep(Duration::from_millis(1));
    }
}
