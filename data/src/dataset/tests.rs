use super::*;
use crate::error::FaultKind;
use crate::id::{EventId, NodeId};
use crate::stream::TimeUnit;
use flate2::{Compression, write::GzEncoder};
use npyz::WriterBuilder;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use tempfile::TempDir;

/// A folder with a file of the given bytes.
pub(crate) fn file(name: &str, bytes: &[u8]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    (folder, path)
}

/// Reads text as a data file.
pub(crate) fn read(text: &[u8], set: impl FnOnce(&mut DataConfig)) -> Result<EventStream> {
    let (_folder, path) = file("events.csv", text);
    let mut config = DataConfig::of(path);
    set(&mut config);
    load(&config, &mut |_| {})
}

fn read_plain(text: &str) -> Result<EventStream> {
    read(text.as_bytes(), |_| {})
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Events as `(raw source, raw destination, ticks, row, label)`.
fn listed(stream: &EventStream) -> Vec<(String, String, i64, u64, Option<i8>)> {
    let raw = |n: NodeId| stream.ids().raw(n).to_string();
    (0..stream.len() as u32)
        .map(EventId)
        .map(|e| (raw(stream.source(e)), raw(stream.destination(e)), stream.time(e).0, stream.row(e), stream.label(e)))
        .collect()
}

#[test]
fn jodie_rows_carry_more_than_the_header_names() {
    let text = "user_id,item_id,timestamp,state_label,comma_separated_list_of_features\n\
                0,0,0.0,0,0.5,-1.25,3\n1,0,36.0,1,1e-3,0,2\n0,1,77.0,0,0,0,0\n";
    let stream = read_plain(text).unwrap();
    assert_eq!((stream.len(), stream.nodes(), stream.feature_dim()), (3, 4, 3));
    assert!(stream.meta().bipartite);
    assert_eq!(stream.meta().first_destination, 2);
    assert_eq!(stream.features(EventId(1)), [1e-3, 0.0, 2.0]);
    assert_eq!(stream.label(EventId(1)), Some(1));
    assert_eq!((stream.time(EventId(2)).0, stream.tick().per_second), (77, 1));
    // a stream without features has the same shape of rows
    let bare = read_plain("user_id,item_id,timestamp,state_label\n0,0,0,0\n1,0,36,0\n").unwrap();
    assert_eq!((bare.feature_dim(), bare.nodes(), bare.meta().bipartite), (0, 3, true));
}

#[test]
fn columns_are_recognised_or_mapped() {
    let cases: [(&str, &str); 6] = [
        ("src,dst,timestamp\n", "3,1,5"),
        (",u,i,ts,label,idx\n", "0,3,1,5,0.0,1"),
        ("Source;Target;Time\n", "3;1;5"),
        ("from\tto\ttime\tweight\n", "3\t1\t5\t0.1"),
        ("\u{feff}user_id, item_id ,timestamp\r\n", " 3 , 1 ,\"5\"\r\n"),
        ("timestamp,dst,src\n", "5,1,3"),
    ];
    for (header, row) in cases {
        let stream = read_plain(&format!("{header}{row}")).unwrap_or_else(|e| panic!("{header}: {e}"));
        let (event, ids) = (EventId(0), stream.ids());
        let ends = [ids.raw(stream.source(event)).to_string(), ids.raw(stream.destination(event)).to_string()];
        assert_eq!((ends, stream.time(event).0), (["3".to_owned(), "1".to_owned()], 5), "{header}");
    }
    let text = b"buyer,shop,when,stars,weight\nann,x,3,-10,0.5\nbob,y,1,4,1.5\n";
    let (_folder, path) = file("events.csv", text);
    let mut config = DataConfig::of(path);
    config.columns = Columns {
        src: Some("buyer".into()),
        dst: Some("shop".into()),
        time: Some("when".into()),
        label: None,
        features: vec!["weight".into(), "stars".into()],
    };
    let mut notices = Vec::new();
    let stream = load(&config, &mut |n| notices.push(n)).unwrap();
    assert_eq!(listed(&stream)[0], ("bob".into(), "y".into(), 1, 1, None));
    assert_eq!(stream.features(EventId(1)), [0.5, -10.0]);
    assert_eq!(stream.meta().feature_columns, ["weight", "stars"]);
    assert!(notices.iter().any(|n| n.contains("sorted by time")), "{notices:?}");
    assert!(!notices.iter().any(|n| n.contains("not used")), "{notices:?}");
}

#[test]
fn unused_columns_are_named_in_a_notice() {
    let (_folder, path) = file("events.csv", b"src,dst,timestamp,rating\n1,2,3,4\n2,1,4,5\n");
    let mut notices = Vec::new();
    let stream = load(&DataConfig::of(path), &mut |n| notices.push(n)).unwrap();
    assert!(notices.iter().any(|n| n.contains("not used: rating")), "{notices:?}");
    assert!(notices.iter().any(|n| n.contains("2 ids are both source and destination")), "{notices:?}");
    assert_eq!((stream.nodes(), stream.meta().bipartite), (2, false));
}

#[test]
fn id_spaces() {
    let text = "src,dst,timestamp\n5,-3,1\n-3,7,2\n";
    let nodes = |bipartite| {
        let stream = read(text.as_bytes(), |c| c.bipartite = bipartite).unwrap();
        (0..stream.nodes()).map(|n| stream.ids().raw(NodeId(n)).to_string()).collect::<Vec<_>>()
    };
    assert_eq!(nodes(None), ["-3", "5", "7"]);
    assert_eq!(nodes(Some(false)), ["-3", "5", "7"]);
    assert_eq!(nodes(Some(true)), ["-3", "5", "-3", "7"]);
    // a text in one column only: both columns still name the same things
    let both = read_plain("src,dst,timestamp\n10,9,1\n9,b,2\n").unwrap();
    assert_eq!((both.meta().bipartite, both.nodes()), (false, 3));
    // integers beside texts are two spaces unless they must be one; then all are texts
    let mixed = "src,dst,timestamp\n10,b,1\n9,a,2\n";
    let stream = read_plain(mixed).unwrap();
    assert_eq!((stream.meta().bipartite, stream.source(EventId(0))), (true, NodeId(1)));
    let shared = read(mixed.as_bytes(), |c| c.bipartite = Some(false)).unwrap();
    let raw: Vec<String> = (0..4).map(|n| shared.ids().raw(NodeId(n)).to_string()).collect();
    assert_eq!(raw, ["10", "9", "a", "b"]);
}

#[test]
fn lists_of_nodes() {
    let stream = read(b"src,dst,timestamp\n1,2,1\n2,7,2\n", |c| c.bipartite = Some(true)).unwrap();
    let ids = stream.ids();
    assert_eq!(ids.find_entry("1"), Ok(NodeId(0)));
    assert_eq!(ids.find_entry("7"), Ok(NodeId(3)));
    assert_eq!(ids.find_entry("dst:2"), Ok(NodeId(2)));
    assert_eq!(ids.find_entry("dense:3"), Ok(NodeId(3)));
    assert!(ids.find_entry("2").unwrap_err().contains("both"));
    assert!(ids.find_entry("dense:4").is_err() && ids.find_entry("8").is_err() && ids.find_entry("x:1").is_err());
}

#[test]
fn every_fault_names_its_place_and_mend() {
    let cases: &[(&str, &[&str])] = &[
        ("src,dst,timestamp\n1,2,3\n,2,4\n", &["row 2", "column `src`", "the id is absent"]),
        ("src,dst,timestamp\n1,NaN,3\n", &["row 1", "column `dst`", "value `NaN`", "the id is absent"]),
        ("src,dst,timestamp\n1,2,nan\n", &["row 1", "column `timestamp`", "value `nan`", "the time is absent"]),
        ("src,dst,timestamp\n1,2,\n", &["row 1", "column `timestamp`", "the time is absent"]),
        ("src,dst,timestamp\n1,2,soon\n", &["value `soon`", "the time is no number"]),
        ("src,dst,timestamp\n1,2,inf\n", &["value `inf`", "the time is no number"]),
        ("src,dst,timestamp\n1,2,0.0123456789\n", &["finer than a nanosecond"]),
        ("src,dst,timestamp\n1,2,99999999999999999999\n", &["does not fit 64 bits"]),
        ("src,dst,timestamp\n1,2,3\n1,2\n", &["row 2", "2 fields where 3 are expected"]),
        ("src,dst,timestamp\n1,2,3\n1,2,3,4\n", &["row 2", "4 fields where 3 are expected"]),
        ("src,dst,timestamp\n1,2,3\nsrc,dst,timestamp\n4,5,6\n", &["row 2", "header is repeated"]),
        ("src,dst,timestamp,label\n1,2,3,0.5\n", &["column `label`", "value `0.5`", "no integer"]),
        ("src,dst,timestamp,label\n1,2,3,128\n", &["value `128`", "no integer from -128 to 127"]),
        ("src,dst,timestamp,label\n1,2,3,spam\n", &["value `spam`", "no integer"]),
        (
            "user_id,item_id,timestamp,state_label,comma_separated_list_of_features\n0,0,0,0,1,inf\n",
            &["row 1", "value `inf`", "no finite number"],
        ),
        (
            "user_id,item_id,timestamp,state_label,comma_separated_list_of_features\n0,0,0,0,1,2\n0,0,1,0,1\n",
            &["row 2", "5 fields where 6 are expected"],
        ),
        ("", &["the file is empty"]),
        ("\n\n", &["the file is empty"]),
        ("src,dst,timestamp\n", &["no data row; give one row an event"]),
        ("src,dst,timestamp\n1,\"2,3\n4,5,6\n", &["row 1", "quotation mark is opened in this row"]),
        (
            "src,dst,timestamp\n1,2,1700000000\n1,2,1700000001000\n",
            &["row 2", "value `1700000001000`", "change unit here"],
        ),
        ("src,dst,timestamp\n1,2,2024-02-30\n", &["value `2024-02-30`", "no ISO 8601 time"]),
        ("1,2,3\n4,5,6\n", &["first line looks like data"]),
        ("a,b,c\n1,2,3\n", &["no column is recognised as src", "columns: a, b, c"]),
        ("src,dst,hour\n1,2,3\n", &["no column is recognised as time", "data.columns.time"]),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", &["git-lfs pointer", "git lfs pull"]),
    ];
    for (text, wanted) in cases {
        let error = read_plain(text).expect_err(text).to_string();
        assert!(error.contains("events.csv"), "{error}");
        for part in *wanted {
            assert!(error.contains(part), "{text:?} gives {error:?}, without {part:?}");
        }
    }
}

#[test]
fn unknown_column_of_the_mapping_has_a_nearest_name() {
    let error = read(b"src,dst,timestamp,rating\n1,2,3,4\n", |c| {
        c.columns.label = Some("ratings".into());
    })
    .unwrap_err();
    let text = error.to_string();
    assert!(text.contains("data.columns.label") && text.contains("did you mean `rating`"), "{text}");
    let error = read(b"src,dst,timestamp\n1,2,3\n", |c| c.columns.src = Some("zzzzzz".into())).unwrap_err();
    assert!(!error.to_string().contains("did you mean"), "{error}");
    let error = read(b"src,dst,timestamp\n1,2,3\n", |c| c.tick = Some("min".into())).unwrap_err();
    assert!(error.to_string().contains("data.tick = min"), "{error}");
}

#[test]
fn a_column_has_one_role() {
    let error = read(b"src,dst,timestamp\n1,2,3\n", |c| c.columns.dst = Some("src".into())).unwrap_err();
    assert!(error.to_string().contains("data.columns.src and data.columns.dst are one column"), "{error}");
}

#[test]
fn broken_files() {
    let kind = |bytes: &[u8]| match read(bytes, |_| {}) {
        Err(Error::Fault(fault)) => fault.kind,
        other => panic!("{other:?}"),
    };
    let text: String = "src,dst,timestamp\n"
        .chars()
        .chain((0..20_000).flat_map(|i| format!("{i},{},{i}\n", i % 97).chars().collect::<Vec<_>>()))
        .collect();
    let packed = gzip(text.as_bytes());
    assert_eq!(kind(&packed[..packed.len() / 2]), FaultKind::CutCompressed);
    assert_eq!(kind(&packed[..packed.len() - 4]), FaultKind::CutCompressed);
    assert_eq!(kind(&packed[..5]), FaultKind::CutCompressed);
    let mut flipped = packed.clone();
    *flipped.last_mut().unwrap() ^= 1;
    assert_eq!(kind(&flipped), FaultKind::DamagedCompressed);
    assert_eq!(kind(&gzip(b"")), FaultKind::Empty);
    let wide = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    assert_eq!(kind(&wide("\u{feff}src,dst,timestamp\n1,2,3\n")), FaultKind::Utf16);
    assert_eq!(kind(&wide("src,dst,timestamp\n1,2,3\n")), FaultKind::Utf16);
    assert_eq!(kind(b"src,dst,timestamp\n\xff\xfe,2,3\n"), FaultKind::NotUtf8);
    assert!(matches!(kind(b"PAR1...."), FaultKind::Damaged { .. }));
    assert_eq!(kind(&[0; 100]), FaultKind::Binary);
    assert_eq!(kind(b"src,dst,timestamp\n1,2,3\n\0\0\0\0\0\0"), FaultKind::Binary);
    assert_eq!(kind(b"\x93NUMPY\x01\0v\0{'descr'"), FaultKind::NpyEvents);
    assert!(matches!(kind(b"PK\x03\x04...."), FaultKind::Unsupported { name: "zip", .. }));
    // the whole file is read, plain or packed
    let (plain, packed) = (read(text.as_bytes(), |_| {}).unwrap(), read(&packed, |_| {}).unwrap());
    assert_eq!((plain.len(), plain.hash()), (20_000, packed.hash()));
}

#[test]
fn absent_files_are_named() {
    let error = load(&DataConfig::of("/nonexistent/events.csv"), &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/events.csv"), "{error}");
    assert!(load(&DataConfig::default(), &mut |_| {}).unwrap_err().to_string().contains("data.path"));
}

#[test]
fn copies_in_other_units_are_one_stream() {
    let texts = [
        ("s", "src,dst,timestamp\n1,2,0.5\n2,1,1.25e0\n"),
        ("ms", "src,dst,timestamp\n1,2,500\n2,1,1250.0\n"),
        ("us", "src,dst,timestamp\n1,2,500000\n2,1,1250000\n"),
        ("ns", "src,dst,timestamp\n1,2,5e8\n2,1,1250000000\n"),
    ];
    let hashes: BTreeSet<String> = texts
        .iter()
        .map(|(unit, text)| read(text.as_bytes(), |c| c.tick = Some((*unit).into())).unwrap().hash())
        .collect();
    assert_eq!(hashes.len(), 1);
}

fn npy(shape: &[u64], values: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = npyz::WriteOptions::new().default_dtype().shape(shape).writer(&mut bytes).begin_nd().unwrap();
    npyz::NpyWriter::extend(&mut writer, values.iter().copied()).unwrap();
    npyz::NpyWriter::finish(writer).unwrap();
    bytes
}

#[test]
fn node_features_by_dense_or_raw_id() {
    let stream = read(b"src,dst,timestamp\n3,1,1\n1,4,2\n", |_| {}).unwrap();
    let attach = |shape: &[u64], values: &[f32]| {
        let (_folder, path) = file("nodes.npy", &npy(shape, values));
        node_features::attach(&stream, &path, &mut |_| {})
    };
    let dense = attach(&[3, 2], &[1., 2., 3., 4., 5., 6.]).unwrap();
    assert_eq!((dense.node_feature_dim(), dense.node_features(NodeId(2))), (2, &[5., 6.][..]));
    assert_ne!(dense.hash(), stream.hash());
    let raw = attach(&[5], &[0., 1., 2., 3., 4.]).unwrap();
    assert_eq!([0, 1, 2].map(|n| raw.node_features(NodeId(n))[0]), [1., 3., 4.]);
    assert!(attach(&[4], &[0.; 4]).unwrap_err().to_string().contains("4 rows for 3 nodes"));
    assert!(attach(&[3], &[0., f32::NAN, 0.]).unwrap_err().to_string().contains("NaN"));
    let (_folder, path) = file("nodes.npy", b"\x93NUMPY\x01\0junk");
    assert!(node_features::attach(&stream, &path, &mut |_| {}).is_err());
    for shape in ["3, 2, 9223372036854775808", "4294967296, 4294967296", "9223372036854775808, 2"] {
        let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape}), }}\n");
        let length = u16::try_from(header.len()).unwrap().to_le_bytes();
        let bytes = [b"\x93NUMPY\x01\0", &length[..], header.as_bytes(), &[0; 24]].concat();
        let (_folder, path) = file("nodes.npy", &bytes);
        assert!(node_features::attach(&stream, &path, &mut |_| {}).is_err(), "more numbers than there are: {shape}");
    }
}

#[test]
fn arrow_tables_of_other_programs() {
    use ::arrow::array::{Float64Array, Int32Array, RecordBatch, StringArray, TimestampMillisecondArray};
    use ::arrow::ipc::writer::FileWriter;
    let write = |batch: &RecordBatch| {
        let (folder, path) = file("table.arrow", b"");
        let mut writer = FileWriter::try_new(std::fs::File::create(&path).unwrap(), &batch.schema()).unwrap();
        writer.write(batch).unwrap();
        writer.finish().unwrap();
        (folder, path)
    };
    let batch = RecordBatch::try_from_iter([
        ("user", std::sync::Arc::new(StringArray::from(vec!["b", "a", "b"])) as ::arrow::array::ArrayRef),
        ("item", std::sync::Arc::new(Int32Array::from(vec![7, -2, 7]))),
        ("time", std::sync::Arc::new(TimestampMillisecondArray::from(vec![3_000, 1_500, 1_500]))),
        ("weight", std::sync::Arc::new(Float64Array::from(vec![0.5, 1.5, 2.5]))),
        ("label", std::sync::Arc::new(Int32Array::from(vec![Some(1), None, Some(0)]))),
    ])
    .unwrap();
    let (_folder, path) = write(&batch);
    let mut config = DataConfig::of(&path);
    config.columns.features.push("weight".into());
    let stream = load(&config, &mut |_| {}).unwrap();
    let text = "user,item,time,weight,label\nb,7,3,0.5,1\na,-2,1.5,1.5,\nb,7,1.5,2.5,0\n";
    let same = read(text.as_bytes(), |c| c.columns.features.push("weight".into())).unwrap();
    assert_eq!(listed(&stream), listed(&same));
    assert_eq!(stream.hash(), same.hash());
    let nulls = RecordBatch::try_from_iter([
        ("src", std::sync::Arc::new(Int32Array::from(vec![Some(1), None])) as ::arrow::array::ArrayRef),
        ("dst", std::sync::Arc::new(Int32Array::from(vec![1, 2]))),
        ("t", std::sync::Arc::new(Float64Array::from(vec![1.0, 2.0]))),
    ])
    .unwrap();
    let (_folder, path) = write(&nulls);
    let error = load(&DataConfig::of(&path), &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("row 2, column `src`") && error.contains("the id is absent"), "{error}");
}

/// An id as it may stand in a file: integers that look alike, texts with separators and quotes.
fn id(text: bool) -> BoxedStrategy<String> {
    let integers =
        prop_oneof![(-3i64..4).boxed(), Just(i64::MIN).boxed(), Just(i64::MAX).boxed(), any::<i64>().boxed()];
    if text {
        prop_oneof!["[a-c]{1,2}", "[ -~]{1,6}", "[é☃,\"\n]{1,3}"]
            .prop_map(|s: String| s.trim().to_owned())
            .prop_filter("an id", |s| !intern::is_absent(s.as_bytes()) && s.parse::<f64>().is_err())
            .boxed()
    } else {
        integers.prop_map(|i| i.to_string()).boxed()
    }
}

type Row = (String, String, i64, Option<i8>);

fn rows() -> impl Strategy<Value = (Vec<Row>, bool, bool)> {
    (any::<bool>(), any::<bool>(), any::<bool>()).prop_flat_map(|(a, b, bipartite)| {
        let texts = if bipartite { (a, b) } else { (a, a) };
        let row = (id(texts.0), id(texts.1), -4i64..5, proptest::option::of(any::<i8>()));
        (proptest::collection::vec(row, 1..40), Just(a), Just(bipartite))
    })
}

fn to_csv(rows: &[Row]) -> Vec<u8> {
    let mut writer = ::csv::Writer::from_writer(Vec::new());
    writer.write_record(["src", "dst", "timestamp", "label"]).unwrap();
    for (source, destination, time, label) in rows {
        let label = label.map_or_else(String::new, |l| l.to_string());
        writer.write_record([source, destination, &time.to_string(), &label]).unwrap();
    }
    writer.into_inner().unwrap()
}

/// Dense order by the definition: by number if all are integers, else by bytes.
fn dense(ids: impl Iterator<Item = String>) -> Vec<String> {
    let ids: BTreeSet<String> = ids.collect();
    let numbers: Option<BTreeSet<i64>> = ids.iter().map(|i| i.parse().ok()).collect();
    numbers.map_or_else(|| ids.into_iter().collect(), |n| n.iter().map(i64::to_string).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// csv -> stream -> Arrow -> stream: nothing is lost, order is (t, row), ids are dense by the rule.
    #[test]
    fn round_trip((rows, _, bipartite) in rows()) {
        let stream = read(&to_csv(&rows), |c| c.bipartite = Some(bipartite)).unwrap();
        let mut wanted: Vec<(String, String, i64, u64, Option<i8>)> = rows.iter().enumerate()
            .map(|(row, (s, d, t, l))| (s.clone(), d.clone(), *t, row as u64, *l)).collect();
        wanted.sort_by_key(|e| (e.2, e.3));
        prop_assert_eq!(listed(&stream), wanted);
        let (sources, destinations) = (rows.iter().map(|r| r.0.clone()), rows.iter().map(|r| r.1.clone()));
        let nodes = if bipartite { [dense(sources), dense(destinations)].concat() } else { dense(sources.chain(destinations)) };
        let raw: Vec<String> = (0..stream.nodes()).map(|n| stream.ids().raw(NodeId(n)).to_string()).collect();
        prop_assert_eq!(raw, nodes);
        let stream = stream.with_random_features(3, 1).unwrap();
        let features = (0..stream.nodes() * 2).map(|x| x as f32).collect();
        let stream = stream.with_node_features(features, 2).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.arrow");
        stream.write(&path).unwrap();
        let again = load(&DataConfig::of(&path), &mut |_| {}).unwrap();
        prop_assert_eq!(listed(&again), listed(&stream));
        prop_assert_eq!(again.meta(), stream.meta());
        prop_assert!(again.hash() == stream.hash() && again.verify());
        for n in (0..stream.nodes()).map(NodeId) {
            prop_assert_eq!(again.node_features(n), stream.node_features(n));
            let end = if bipartite && n.0 >= stream.meta().first_destination { "dst" } else { "src" };
            let found = again.ids().find_entry(&format!("{end}:{}", stream.ids().raw(n)));
            prop_assert_eq!(found, Ok(n));
        }
        for e in (0..stream.len() as u32).map(EventId) {
            prop_assert_eq!(again.features(e), stream.features(e));
        }
    }

    /// csv -> stream -> csv in any unit -> the same stream.
    #[test]
    fn export_round_trip((rows, _, bipartite) in rows(), unit in 0usize..4) {
        let (unit, name) = [(TimeUnit::Seconds, "s"), (TimeUnit::Milliseconds, "ms"), (TimeUnit::Microseconds, "us"), (TimeUnit::Nanoseconds, "ns")][unit];
        let stream = read(&to_csv(&rows), |c| { c.bipartite = Some(bipartite); c.tick = Some("us".into()); }).unwrap();
        let (_folder, path) = file("copy.csv", b"");
        crate::export::write_csv(&stream, &path, unit).unwrap();
        let config = DataConfig { bipartite: Some(bipartite), tick: Some(name.into()), ..DataConfig::of(&path) };
        let copy = load(&config, &mut |_| {}).unwrap();
        prop_assert_eq!(copy.tick(), stream.tick());
        let fields = |s: &EventStream| listed(s).into_iter().map(|e| (e.0, e.1, e.2, e.4)).collect::<Vec<_>>();
        prop_assert_eq!(fields(&copy), fields(&stream));
    }

    /// Bytes of any kind, also near to a csv, give a stream or an error.
    #[test]
    fn junk_never_panics(bytes in prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..200),
        "[ -~\n]{0,200}".prop_map(String::into_bytes),
        "src,dst,timestamp(,label)?\n([0-9a-z,.\"\n;eE+-]){0,80}".prop_map(String::into_bytes),
        "([0-9],){3}[0-9]\n([0-9,.\n]){0,80}".prop_map(String::into_bytes),
    ], packed in any::<bool>(), cut in any::<proptest::sample::Index>()) {
        let mut bytes = if packed { gzip(&bytes) } else { bytes };
        if packed { bytes.truncate(cut.index(bytes.len()) + 1) }
        let _ = read(&bytes, |_| {}).map(|s| s.hash());
    }

    /// A damaged npy file gives features or an error.
    #[test]
    fn damaged_npy_never_panics(at in any::<proptest::sample::Index>(), value in any::<u8>(), cut in any::<bool>()) {
        let stream = read_plain("src,dst,timestamp\n0,1,1\n1,2,2\n").unwrap();
        let mut bytes = npy(&[3, 2], &[0.5; 6]);
        let at = at.index(bytes.len());
        if cut { bytes.truncate(at) } else { bytes[at] = value }
        let (_folder, path) = file("nodes.npy", &bytes);
        let _ = node_features::attach(&stream, &path, &mut |_| {}).map(|s| s.hash());
    }

    /// A foreign Arrow table with a flipped byte or a cut end gives a stream or an error.
    #[test]
    fn damaged_arrow_tables_never_panic(at in any::<proptest::sample::Index>(), value in any::<u8>(), cut in any::<bool>()) {
        use ::arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
        let texts: StringArray = (0..50).map(|i| Some(format!("n{}", i % 7))).collect();
        let numbers: Int64Array = (0..50).collect();
        let batch = RecordBatch::try_from_iter([
            ("src", std::sync::Arc::new(texts.clone()) as ArrayRef),
            ("dst", std::sync::Arc::new(texts)),
            ("t", std::sync::Arc::new(numbers)),
        ]).unwrap();
        let mut bytes = Vec::new();
        let mut writer = ::arrow::ipc::writer::FileWriter::try_new(&mut bytes, &batch.schema()).unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();
        drop(writer);
        let at = at.index(bytes.len());
        if cut { bytes.truncate(at) } else { bytes[at] = value }
        let _ = read(&bytes, |_| {}).map(|s| s.hash());
    }
}
