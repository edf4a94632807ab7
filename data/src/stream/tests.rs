use super::read::{FORMAT_KEY, node_path};
use super::*;
use crate::dataset::tests::read;
use crate::generate::{GenerateConfig, generate};
use arrow::array::{Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::ipc::writer::FileWriter;
use proptest::prelude::*;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

fn written(stream: &EventStream) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.arrow");
    stream.write(&path).unwrap();
    (folder, path)
}

/// Uses every lookup; a sound stream answers all of them.
fn walk(stream: &EventStream) -> f64 {
    let mut sum = 0.0;
    for e in (0..stream.len() as u32).map(EventId) {
        let ends = [stream.source(e), stream.destination(e)];
        ends.iter().for_each(|&n| sum += stream.ids().raw(n).to_string().len() as f64);
        ends.iter().for_each(|&n| sum += stream.node_features(n).iter().map(|&x| f64::from(x)).sum::<f64>());
        sum += stream.time(e).0 as f64 + stream.row(e) as f64 + f64::from(stream.label(e).unwrap_or(0));
        sum += stream.features(e).iter().map(|&x| f64::from(x)).sum::<f64>();
    }
    sum
}

#[test]
fn chunks_join_at_their_borders() {
    let config = GenerateConfig { events: Some(140_000), features: 2, ..Default::default() };
    let stream = generate(&config).unwrap();
    let (_folder, path) = written(&stream);
    let opened = EventStream::open(&path).unwrap();
    assert_eq!(opened.chunks().map(|c| c.source.len()).collect::<Vec<_>>(), [65_536, 65_536, 8_928]);
    assert!(opened.verify());
    assert_eq!(walk(&opened), walk(&stream));
    let mut at = 0u32;
    for chunk in opened.chunks() {
        assert_eq!(chunk.first, EventId(at));
        for i in 0..chunk.source.len() {
            let e = EventId(at + i as u32);
            let wanted = (stream.source(e), stream.destination(e), stream.time(e));
            assert_eq!((chunk.source[i], chunk.destination[i], chunk.time[i]), wanted);
        }
        at += chunk.source.len() as u32;
    }
    let events = [EventId(139_999), EventId(0), EventId(65_536), EventId(65_535)];
    let mut out = [0f32; 8];
    opened.gather_features(&events, &mut out);
    assert!(out.chunks(2).zip(events).all(|(row, e)| row == stream.features(e)));
}

#[test]
fn columns_lie_on_64_byte_borders_of_the_mapping() {
    let stream = generate(&GenerateConfig { events: Some(70_000), features: 3, ..Default::default() }).unwrap();
    let (_folder, path) = written(&stream);
    let opened = EventStream::open(&path).unwrap();
    for chunk in &opened.inner.chunks {
        let addresses = [
            chunk.source.as_ptr() as usize,
            chunk.time.as_ptr() as usize,
            chunk.row.as_ptr() as usize,
            chunk.features.as_ref().unwrap().as_ptr() as usize,
        ];
        assert!(addresses.iter().all(|a| a % 64 == 0), "{addresses:?}");
    }
}

#[test]
fn a_stream_can_replace_the_file_it_is_mapped_from() {
    let stream = generate(&GenerateConfig { events: Some(500), ..Default::default() }).unwrap();
    let (_folder, path) = written(&stream);
    let opened = EventStream::open(&path).unwrap();
    opened.with_random_features(5, 3).unwrap().write(&path).unwrap();
    assert_eq!(EventStream::open(&path).unwrap().feature_dim(), 5);
    assert_eq!((opened.feature_dim(), walk(&opened)), (0, walk(&stream)));
}

#[test]
fn random_features_are_keyed_by_event() {
    let stream = generate(&GenerateConfig { events: Some(2_000), ..Default::default() }).unwrap();
    let (a, b) = (stream.with_random_features(8, 7).unwrap(), stream.with_random_features(8, 7).unwrap());
    assert_eq!(a.hash(), b.hash());
    assert_ne!(a.hash(), stream.with_random_features(8, 8).unwrap().hash());
    let all: Vec<f64> = (0..2_000).flat_map(|e| a.features(EventId(e)).iter().map(|&x| f64::from(x))).collect();
    let mean = all.iter().sum::<f64>() / all.len() as f64;
    let variance = all.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / all.len() as f64;
    assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
    assert_eq!(a.without_features().hash(), stream.hash());
    assert!(stream.with_random_features(0, 7).is_err());
}

#[test]
fn features_must_fit() {
    let stream = read(b"src,dst,timestamp\n1,2,3\n2,3,4\n", |_| {}).unwrap();
    assert!(stream.with_features(vec![0.0; 5], 2).unwrap_err().to_string().contains("2 rows of 2 values"));
    assert!(stream.with_features(vec![0.0, f32::INFINITY], 1).unwrap_err().to_string().contains("inf at row 1"));
    assert!(stream.with_node_features(vec![0.0; 3], 1).is_ok());
    assert!(stream.with_node_features(vec![0.0; 2], 1).is_err());
}

fn write_foreign(path: &Path, metadata: HashMap<String, String>) {
    let schema = Schema::new_with_metadata(vec![Field::new("x", DataType::Int64, false)], metadata);
    let schema = std::sync::Arc::new(schema);
    let mut writer = FileWriter::try_new(std::fs::File::create(path).unwrap(), &schema).unwrap();
    let column = std::sync::Arc::new(Int64Array::from(vec![1, 2]));
    writer.write(&RecordBatch::try_new(schema.clone(), vec![column]).unwrap()).unwrap();
    writer.finish().unwrap();
}

#[test]
fn other_files_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.arrow");
    let sentence = |path: &Path| EventStream::open(path).unwrap_err().to_string();
    assert!(sentence(&path).contains("cannot open"));
    assert!(sentence(folder.path()).contains("no regular file"));
    std::fs::write(&path, "").unwrap();
    assert!(sentence(&path).contains("the file is empty"));
    std::fs::write(&path, "src,dst,timestamp\n1,2,3\n").unwrap();
    assert!(sentence(&path).contains("no Arrow file"));
    write_foreign(&path, HashMap::new());
    assert!(sentence(&path).contains("another program"));
    write_foreign(&path, HashMap::from([(FORMAT_KEY.into(), "2".into())]));
    assert!(sentence(&path).contains("format version 2, this build reads version 1; use a newer build"));
    write_foreign(&path, HashMap::from([(FORMAT_KEY.into(), "1".into())]));
    assert!(sentence(&path).contains("damaged"));
}

#[test]
fn the_node_file_belongs_to_its_stream() {
    let (a, b) =
        (read(b"src,dst,timestamp\n1,2,3\n", |_| {}).unwrap(), read(b"src,dst,timestamp\n1,2,4\n", |_| {}).unwrap());
    let ((_fa, pa), (_fb, pb)) = (written(&a), written(&b));
    std::fs::copy(node_path(&pb), node_path(&pa)).unwrap();
    assert!(EventStream::open(&pa).unwrap_err().to_string().contains("belongs to another stream"));
    std::fs::remove_file(node_path(&pa)).unwrap();
    assert!(EventStream::open(&pa).unwrap_err().to_string().contains("s.nodes.arrow"));
}

#[test]
fn no_half_file_is_left_where_nothing_can_be_written() {
    let stream = read(b"src,dst,timestamp\n1,2,3\n", |_| {}).unwrap();
    let folder = tempfile::tempdir().unwrap();
    assert!(stream.write(&folder.path().join("absent/x.arrow")).is_err());
    std::fs::create_dir(folder.path().join("x.arrow")).unwrap();
    assert!(stream.write(&folder.path().join("x.arrow")).is_err());
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|f| f.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("partial")), "{left:?}");
}

fn sample() -> EventStream {
    let text = b"src,dst,timestamp,label\nann,x,1,1\nbob,y,1,\nann,y,2,0\nbob,x,3.5,1\n";
    let stream = read(text, |_| {}).unwrap().with_random_features(3, 1).unwrap();
    stream.with_node_features(vec![0.5; 8], 2).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// A flipped byte or a cut end of either file gives an error, or a stream whose every lookup works.
    #[test]
    fn damage_never_panics(
        at in any::<proptest::sample::Index>(), mask in 1u8..=255, cut in proptest::bool::weighted(0.2), nodes in any::<bool>(),
    ) {
        static SOUND: OnceLock<[Vec<u8>; 2]> = OnceLock::new();
        let mut files = SOUND.get_or_init(|| {
            let (_folder, path) = written(&sample());
            [std::fs::read(&path).unwrap(), std::fs::read(node_path(&path)).unwrap()]
        }).clone();
        let victim = &mut files[usize::from(nodes)];
        let at = at.index(victim.len());
        if cut { victim.truncate(at) } else { victim[at] ^= mask }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.arrow");
        std::fs::write(&path, &files[0]).unwrap();
        std::fs::write(node_path(&path), &files[1]).unwrap();
        if let Ok(stream) = EventStream::open(&path) {
            walk(&stream);
            let _ = stream.verify();
            prop_assert!(!cut);
        }
    }
}
