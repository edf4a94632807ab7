//! Streams for the trainer's tests: the real ones where they are at hand, small drawn ones, and altered copies.

use std::io::Write;
use std::path::{Path, PathBuf};
use tidemill_data::dataset::DataConfig;
use tidemill_data::id::EventId;
use tidemill_data::stream::EventStream;

/// A real stream by its file name, from `TIDEMILL_DATA` or beside the project; says so and gives `None` where it is absent.
pub fn real(name: &str) -> Option<EventStream> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data");
    let folder = std::env::var_os("TIDEMILL_DATA").map_or(beside, PathBuf::from);
    let path = folder.join(name);
    if !path.exists() {
        eprintln!("skipped: {name} is not in {}; TIDEMILL_DATA may name its folder", folder.display());
        return None;
    }
    Some(load(&path))
}

pub fn load(path: &Path) -> EventStream {
    tidemill_data::load(&DataConfig::of(path), &mut |_| {}).expect("a readable stream")
}

/// The committed stream of two id spaces, 360 events.
pub fn small() -> EventStream {
    load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/bipartite.csv"))
}

/// A row of a stream's csv: dense source, dense destination, ticks.
pub type Row = (u32, u32, i64);

pub fn rows(stream: &EventStream) -> Vec<Row> {
    let row = |e| (stream.source(EventId(e)).0, stream.destination(EventId(e)).0, stream.time(EventId(e)).0);
    (0..stream.len() as u32).map(row).collect()
}

/// A stream of these rows, whose ids become those of `like` again as long as every node occurs; `time` writes a time.
pub fn of_rows(rows: &[Row], like: &EventStream, time: impl Fn(i64) -> String) -> EventStream {
    let folder = tempfile::tempdir().expect("a folder for the csv");
    let path = folder.path().join(format!("{}.csv", like.meta().name));
    let mut file = std::io::BufWriter::new(std::fs::File::create(&path).expect("writable"));
    let names = if like.meta().bipartite { "user_id,item_id,timestamp" } else { "src,dst,timestamp" };
    writeln!(file, "{names}").expect("written");
    for &(source, destination, t) in rows {
        writeln!(file, "{source},{},{}", destination - like.meta().first_destination, time(t)).expect("written");
    }
    file.flush().expect("written");
    let stream = load(&path);
    assert_eq!(stream.nodes(), like.nodes(), "every node occurs");
    stream
}
