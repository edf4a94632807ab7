//! Mutational fuzzing of every reader: `cargo run --release -p tidemill-data --example fuzz -- SECONDS [GROUP]`.
//!
//! Seeds of a group (text, packed, table, stream, npy, npz) are mutated, written to a file, read by `load` and by `check`. Any
//! answer is right but a panic; the first input that makes one is kept in `fuzz-GROUP.bin`, and the exit code is 1.

use arrow::array::{ArrayRef, Float32Array, Int64Array, RecordBatch, StringArray};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_data::{CandidateSets, DataConfig, EventId, GenerateConfig, Key, Purpose, Watch, check, generate, load};

type Seed = (&'static str, Vec<u8>);

fn main() {
    let mut arguments = std::env::args().skip(1);
    let seconds = arguments.next().and_then(|a| a.parse().ok()).unwrap_or(60u64);
    let only = arguments.next();
    std::panic::set_hook(Box::new(|_| {}));
    let groups = [
        ("text", texts()),
        ("packed", packed()),
        ("table", tables()),
        ("stream", streams()),
        ("npy", npys()),
        ("npz", npzs()),
    ];
    let chosen: Vec<_> = groups.into_iter().filter(|(name, _)| only.as_ref().is_none_or(|o| o == name)).collect();
    let mut panics = 0;
    for (name, seeds) in &chosen {
        panics += run(name, seeds, Duration::from_secs(seconds / chosen.len() as u64));
    }
    std::process::exit(i32::from(panics > 0));
}

/// Mutates and reads until the time is up; the number of panics.
fn run(group: &str, seeds: &[Seed], time: Duration) -> u64 {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut random = Random { key: Key::new(started(), Purpose::Generate), next: 0 };
    let (start, mut executions, mut accepted, mut panics) = (Instant::now(), 0u64, 0u64, 0u64);
    while start.elapsed() < time {
        let (name, seed) = &seeds[random.below(seeds.len())];
        let bytes = random.mutated(seed, seeds);
        let path = folder.path().join(name);
        std::fs::write(&path, &bytes).expect("a writable folder");
        prepare(folder.path(), name);
        match catch_unwind(AssertUnwindSafe(|| read(&path))) {
            Ok(fine) => accepted += u64::from(fine),
            Err(_) => {
                panics += 1;
                std::fs::write(format!("fuzz-{group}.bin"), &bytes).expect("a writable folder");
            }
        }
        executions += 1;
    }
    let mut out = std::io::stdout();
    let seconds = start.elapsed().as_secs();
    let _ =
        writeln!(out, "{group}: {executions} executions in {seconds} s, {accepted} read as streams, {panics} panics");
    panics
}

/// What a seed needs beside it.
fn prepare(folder: &Path, name: &str) {
    let (file, bytes) = match name {
        "nodes.npy" => ("events.csv", b"src,dst,timestamp\n0,1,1\n1,2,2\n".to_vec()),
        "sets.npz" => ("events.csv", b"src,dst,timestamp\n0,1,1\n1,2,2\n".to_vec()),
        "ml_x.npy" => ("ml_x.csv", b",u,i,ts,label,idx\n0,1,3,1,0,1\n1,2,3,2,0,2\n".to_vec()),
        "ml_x.csv" => ("ml_x.npy", npy(3, 2)),
        _ => return,
    };
    std::fs::write(folder.join(file), bytes).expect("a writable folder");
}

/// Reads a mutant, as what its name says, or with the file it goes with.
fn read(path: &Path) -> bool {
    let beside = |name: &str| DataConfig::of(path.with_file_name(name));
    match path.file_name().and_then(|name| name.to_str()) {
        Some("nodes.npy") => read_stream(&DataConfig { node_features: Some(path.to_owned()), ..beside("events.csv") }),
        Some("ml_x.npy") => read_stream(&beside("ml_x.csv")),
        Some("sets.npz") => read_sets(&beside("events.csv"), path),
        _ => read_stream(&DataConfig::of(path)),
    }
}

fn read_sets(config: &DataConfig, path: &Path) -> bool {
    let events = load(config, &mut |_| {}).expect("a stream of two events");
    let all = [EventId(0), EventId(1)];
    let sets = CandidateSets::stored(&events, path, &all);
    sets.map(|sets| all.map(|event| sets.of(event))).is_ok()
}

fn read_stream(config: &DataConfig) -> bool {
    let watch = Watch { notice: &mut |_| {}, progress: &mut |_, _| {}, scratch: None };
    let _ = check(config, watch).map(|report| report.to_string());
    load(config, &mut |_| {}).map(|stream| stream.hash()).is_ok()
}

fn started() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64)
}

struct Random {
    key: Key,
    next: u64,
}

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.next += 1;
        self.key.below(self.next, n.max(1) as u32) as usize
    }

    fn mutated(&mut self, seed: &[u8], seeds: &[Seed]) -> Vec<u8> {
        const WORDS: [&[u8]; 14] = [
            b",",
            b"\n",
            b"\"",
            b"\r\n",
            b"\0",
            b"nan",
            b"-9223372036854775808",
            b"1e308",
            b"0.0000000001",
            b"\xff\xfe",
            b"2024-01-31T12:00:00.5+02:00",
            b"18446744073709551616",
            b"\x1f\x8b",
            b";\t",
        ];
        let mut bytes = seed.to_vec();
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len() + 1);
            match self.below(7) {
                0 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                1 if at < bytes.len() => bytes[at] = self.below(256) as u8,
                2 => bytes.truncate(at),
                3 => {
                    let end = (at + self.below(16)).min(bytes.len());
                    bytes.drain(at..end);
                }
                4 => {
                    let word = WORDS[self.below(WORDS.len())];
                    bytes.splice(at..at, word.iter().copied());
                }
                5 => {
                    let other = &seeds[self.below(seeds.len())].1;
                    let from = self.below(other.len());
                    let piece = other[from..(from + self.below(64)).min(other.len())].to_vec();
                    bytes.splice(at..at, piece);
                }
                _ => {
                    let end = (at + self.below(32)).min(bytes.len());
                    let piece = bytes[at..end].to_vec();
                    bytes.splice(at..at, piece);
                }
            }
        }
        bytes
    }
}

fn texts() -> Vec<Seed> {
    vec![
        ("a.csv", b"src,dst,timestamp,label\n1,2,3,0\n2,1,4.5,1\n-7,\"x,y\",5,\n".to_vec()),
        ("b.csv", b"user_id,item_id,timestamp,state_label,comma_separated_list_of_features\n0,0,0.0,0,0.1,2\n1,0,36.0,1,0,-3e2\n".to_vec()),
        ("c.tsv", b"from\tto\ttime\nalice\tbob\t2024-01-31T12:00:00Z\nbob\tcarol\t2024-01-31 13:00+01:00\n".to_vec()),
        ("d.csv", b"\xef\xbb\xbfsource;target;ts\r\n1.0;2;1700000000\r\n3;1;1700000001\r\n".to_vec()),
        ("edges.csv", b",src,dst,time,ext_roll\n0,0,1,1.0,0\n1,1,2,2.0,1\n".to_vec()),
        ("ml_x.csv", b",u,i,ts,label,idx\n0,1,3,1,0.0,1\n1,2,3,2,0.0,2\n".to_vec()),
    ]
}

fn packed() -> Vec<Seed> {
    let text: String = (0..200).map(|i| format!("{},{},{}\n", i % 17, i % 5, i)).collect();
    let text = format!("src,dst,timestamp\n{text}");
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(text.as_bytes()).expect("memory");
    let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 1);
    xz.write_all(text.as_bytes()).expect("memory");
    vec![
        ("a.gz", gzip.finish().expect("memory")),
        ("a.xz", xz.finish().expect("memory")),
        ("a.zst", zstd::encode_all(text.as_bytes(), 1).expect("memory")),
    ]
}

fn tables() -> Vec<Seed> {
    let texts: StringArray = (0..50).map(|i| Some(format!("n{}", i % 7))).collect();
    let (ids, times): (Int64Array, Int64Array) = ((0..50).map(|i| i % 9).collect(), (0..50).collect());
    let weights: Float32Array = (0..50).map(|i| Some(i as f32)).collect();
    let batch = RecordBatch::try_from_iter([
        ("src", Arc::new(texts) as ArrayRef),
        ("dst", Arc::new(ids)),
        ("t", Arc::new(times)),
        ("features", Arc::new(weights)),
    ])
    .expect("columns of one length");
    let mut ipc = Vec::new();
    let mut writer = arrow::ipc::writer::FileWriter::try_new(&mut ipc, &batch.schema()).expect("memory");
    writer.write(&batch).and_then(|()| writer.finish()).expect("memory");
    drop(writer);
    let mut parquet = Vec::new();
    let mut writer = parquet::arrow::ArrowWriter::try_new(&mut parquet, batch.schema(), None).expect("memory");
    writer.write(&batch).expect("memory");
    writer.close().expect("memory");
    vec![("a.arrow", ipc), ("a.parquet", parquet)]
}

/// The events' file of a stream of ours; its nodes' file is absent, so most mutants end there or before.
fn streams() -> Vec<Seed> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("s.arrow");
    let config = GenerateConfig { events: Some(60), nodes: Some(12), features: 2, ..GenerateConfig::default() };
    generate(&config).and_then(|s| s.write(&path)).expect("a stream");
    let bytes = |name: &str| std::fs::read(folder.path().join(name)).expect("a file");
    vec![("s.arrow", bytes("s.arrow")), ("s.nodes.arrow", bytes("s.nodes.arrow"))]
}

fn npys() -> Vec<Seed> {
    vec![("nodes.npy", npy(3, 2)), ("nodes.npy", npy(5, 1)), ("ml_x.npy", npy(3, 2))]
}

/// Sets of candidates for both events, as `experiments/tgb_candidates.py` writes them.
fn npzs() -> Vec<Seed> {
    let mut bytes = std::io::Cursor::new(Vec::new());
    let mut npz = npyz::npz::NpzWriter::new(&mut bytes);
    let mut put = |name: &str, values: &[i64]| {
        use npyz::{NpyWriter, WriterBuilder};
        let writer = npz.array(name, Default::default()).expect("memory").default_dtype();
        let mut writer = writer.shape(&[values.len() as u64]).begin_nd().expect("memory");
        writer.extend(values.iter().copied()).expect("memory");
        NpyWriter::finish(writer).expect("memory");
    };
    put("source", &[0, 1]);
    put("destination", &[1, 2]);
    put("offset", &[0, 1, 3]);
    put("negative", &[2, 0, 1]);
    put("time", &[1, 2]);
    drop(npz);
    vec![("sets.npz", bytes.into_inner())]
}

fn npy(rows: u64, dim: u64) -> Vec<u8> {
    use npyz::WriterBuilder;
    let mut bytes = Vec::new();
    let options = npyz::WriteOptions::new().default_dtype().shape(&[rows, dim]);
    let mut writer = options.writer(&mut bytes).begin_nd().expect("memory");
    npyz::NpyWriter::extend(&mut writer, (0..rows * dim).map(|x| x as f32)).expect("memory");
    npyz::NpyWriter::finish(writer).expect("memory");
    bytes
}
