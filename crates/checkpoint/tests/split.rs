//! Models in several files: the first opens all, and what does not belong together is refused by name.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use gguf::{DType, File, Value};
use testkit::Writer;

fn number(n: u16) -> Value {
    Value::U16(n)
}

/// Part `index` of three, with a tensor of its own; `change` may change its keys.
fn part(index: u16, change: impl FnOnce(&mut Vec<(&'static str, Value)>)) -> Writer {
    let mut keys = vec![
        ("split.no", number(index)),
        ("split.count", number(3)),
        ("split.tensors.count", Value::I32(3)),
    ];
    if index == 0 {
        keys.push(("general.architecture", Value::String("llama".into())));
    }
    change(&mut keys);
    let mut writer = Writer::new();
    keys.into_iter()
        .for_each(|(key, value)| writer.key(key, value));
    let numbers = [f32::from(index), 2.0, 3.0, 4.0];
    writer.tensor(
        &format!("blk.{index}.ffn_up.weight"),
        &[2, 2],
        DType::F32,
        &numbers,
    );
    writer
}

fn path(dir: &Path, number: usize) -> PathBuf {
    dir.join(format!("tiny-{number:05}-of-00003.gguf"))
}

fn write(dir: &Path) {
    for index in 0..3 {
        part(index, |_| ())
            .write(&path(dir, usize::from(index) + 1))
            .unwrap();
    }
}

#[test]
fn the_first_part_opens_all() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let file = File::open(&path(dir.path(), 1)).unwrap();
    assert_eq!(file.string("general.architecture").unwrap(), "llama");
    for index in 0..3 {
        let tensor = file.tensor(&format!("blk.{index}.ffn_up.weight")).unwrap();
        assert_eq!(tensor.dequantize().unwrap(), [index as f32, 2.0, 3.0, 4.0]);
    }
    assert_eq!(file.tensors().count(), 3);
    let parts = gguf::parts(&path(dir.path(), 1)).unwrap();
    assert_eq!(parts, [1, 2, 3].map(|number| path(dir.path(), number)));
}

#[test]
fn what_does_not_belong_together_is_refused_by_name() {
    type Change = fn(&Path);
    let cases: [(&str, Change, &[&str]); 9] = [
        (
            "missing",
            |dir| std::fs::remove_file(path(dir, 2)).unwrap(),
            &["tiny-00002-of-00003.gguf", "is not there"],
        ),
        (
            "reordered",
            |dir| std::fs::rename(path(dir, 3), path(dir, 2)).unwrap(),
            &["tiny-00003-of-00003.gguf", "is not there"],
        ),
        (
            "repeated",
            |dir| assert!(std::fs::copy(path(dir, 2), path(dir, 3)).is_ok()),
            &["tiny-00003-of-00003.gguf", "`split.no` is 1, expected 2"],
        ),
        (
            "of a model of more parts",
            |dir| {
                let more = part(1, |keys| keys[1].1 = number(4));
                more.write(&path(dir, 2)).unwrap();
            },
            &["tiny-00002-of-00003.gguf", "`split.count` is 4, expected 3"],
        ),
        (
            "of a model of more tensors",
            |dir| {
                let more = part(1, |keys| keys[2].1 = Value::I32(9));
                more.write(&path(dir, 2)).unwrap();
            },
            &[
                "tiny-00002-of-00003.gguf",
                "`split.tensors.count` is 9, expected 3",
            ],
        ),
        (
            "of another architecture",
            |dir| {
                let foreign = Value::String("qwen2".into());
                let foreign = part(1, |keys| keys.push(("general.architecture", foreign)));
                foreign.write(&path(dir, 2)).unwrap();
            },
            &[
                "tiny-00002-of-00003.gguf",
                "`general.architecture` is another value",
            ],
        ),
        (
            "no part at all",
            |dir| {
                let whole = part(1, Vec::clear);
                whole.write(&path(dir, 2)).unwrap();
            },
            &[
                "tiny-00002-of-00003.gguf",
                "`split.no` is absent, expected 1",
            ],
        ),
        (
            "with a tensor of another part",
            |dir| {
                let mut twice = part(1, |_| ());
                twice.tensor("blk.0.ffn_up.weight", &[1], DType::F32, &[1.0]);
                twice.write(&path(dir, 2)).unwrap();
            },
            &["tensor `blk.0.ffn_up.weight`", "occurs twice"],
        ),
        (
            "with fewer tensors than there should be",
            |dir| {
                let mut none = Writer::new();
                for (key, value) in [
                    ("split.no", number(1)),
                    ("split.count", number(3)),
                    ("split.tensors.count", Value::I32(3)),
                ] {
                    none.key(key, value);
                }
                none.write(&path(dir, 2)).unwrap();
            },
            &[
                "`split.tensors.count`",
                "is 3, but the parts have 2 tensors",
            ],
        ),
    ];
    for (what, change, says) in cases {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path());
        change(dir.path());
        let error = File::open(&path(dir.path(), 1))
            .expect_err(what)
            .to_string();
        for words in says {
            assert!(error.contains(words), "{what}: {error}");
        }
    }
}

#[test]
fn only_the_first_part_is_given() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let error = File::open(&path(dir.path(), 2)).unwrap_err().to_string();
    assert!(
        error.contains("is part 2 of 3; give the first one, tiny-00001-of-00003.gguf"),
        "{error}"
    );
    let renamed = dir.path().join("model.gguf");
    std::fs::rename(path(dir.path(), 1), &renamed).unwrap();
    let error = File::open(&renamed).unwrap_err().to_string();
    assert!(error.contains("is the first of 3 parts"), "{error}");
    // Another part under the first one's name.
    std::fs::copy(path(dir.path(), 2), path(dir.path(), 1)).unwrap();
    let error = File::open(&path(dir.path(), 1)).unwrap_err().to_string();
    assert!(
        error.contains("split.no is 1, that of a first part is 0"),
        "{error}"
    );
    // A name that says another number than the key.
    part(0, |keys| keys[1].1 = number(2))
        .write(&path(dir.path(), 1))
        .unwrap();
    let error = File::open(&path(dir.path(), 1)).unwrap_err().to_string();
    assert!(
        error.contains("one of 3 parts by its name, and of 2 by its key split.count"),
        "{error}"
    );
}

#[test]
fn limits_hold_over_all_parts() {
    let dir = tempfile::tempdir().unwrap();
    part(0, |keys| keys[1].1 = Value::U32(gguf::PARTS_MAX + 1))
        .write(&path(dir.path(), 1))
        .unwrap();
    let error = File::open(&path(dir.path(), 1)).unwrap_err().to_string();
    assert!(
        error.contains("split.count is 1001, the limit is 1000"),
        "{error}"
    );
    let many = Value::U32(gguf::TENSORS_MAX as u32 + 1);
    part(0, |keys| keys[2].1 = many)
        .write(&path(dir.path(), 1))
        .unwrap();
    let error = File::open(&path(dir.path(), 1)).unwrap_err().to_string();
    assert!(
        error.contains("number of tensors in all parts is 65537"),
        "{error}"
    );
}

#[test]
fn a_fingerprint_is_of_every_byte_of_all_parts() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let fingerprint = || {
        Some(
            checkpoint::open(&path(dir.path(), 1))
                .ok()?
                .fingerprint()
                .unwrap(),
        )
    };
    let first = fingerprint().unwrap();
    for number in [1, 2, 3] {
        let path = path(dir.path(), number);
        let bytes = std::fs::read(&path).unwrap();
        let mut opened = 0;
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            std::fs::write(&path, changed).unwrap();
            // Most of a header cannot be otherwise.
            let other = fingerprint();
            opened += usize::from(other.is_some());
            assert_ne!(other, Some(first), "byte {at} of part {number}");
        }
        assert!(opened > 16, "{opened}");
        std::fs::write(&path, [&bytes[..], &[0]].concat()).unwrap();
        assert_ne!(fingerprint(), Some(first), "a byte behind part {number}");
        std::fs::write(&path, bytes).unwrap();
    }
    assert_eq!(fingerprint(), Some(first));
    // Reading, in whatever order, changes nothing.
    let file = checkpoint::open(&path(dir.path(), 1)).unwrap();
    let tensors: Vec<_> = file.tensors().collect();
    for tensor in tensors.into_iter().rev() {
        tensor.read().unwrap();
    }
    assert_eq!(file.fingerprint().unwrap(), first);
}
