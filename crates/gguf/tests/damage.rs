//! Damaged, truncated and unsupported files give an error that names the key or the tensor.
#![forbid(unsafe_code)]

use std::os::unix::fs::FileExt;

use gguf::{Error, File};
use proptest::prelude::*;

/// A tensor as a writer may describe it, truthfully or not.
#[derive(Clone)]
struct Spec {
    name: &'static str,
    dims: Vec<u64>,
    kind: u32,
    offset: u64,
}

fn spec(name: &'static str, dims: &[u64], kind: u32, offset: u64) -> Spec {
    Spec {
        name,
        dims: dims.to_vec(),
        kind,
        offset,
    }
}

/// A file of one key (`llama.block_count` = 7), an array of two strings, and these tensors,
/// followed by `data` bytes.
fn write(tensors: &[Spec], data: usize) -> Vec<u8> {
    let mut file = b"GGUF".to_vec();
    file.extend(3u32.to_le_bytes());
    file.extend((tensors.len() as u64).to_le_bytes());
    file.extend(2u64.to_le_bytes());
    string(&mut file, "llama.block_count");
    file.extend([4u32, 7].iter().flat_map(|n| n.to_le_bytes()));
    string(&mut file, "tokenizer.ggml.tokens");
    file.extend([9u32, 8].iter().flat_map(|n| n.to_le_bytes()));
    file.extend(2u64.to_le_bytes());
    string(&mut file, "Ġa");
    string(&mut file, "b");
    for tensor in tensors {
        string(&mut file, tensor.name);
        file.extend((tensor.dims.len() as u32).to_le_bytes());
        file.extend(tensor.dims.iter().flat_map(|n| n.to_le_bytes()));
        file.extend(tensor.kind.to_le_bytes());
        file.extend(tensor.offset.to_le_bytes());
    }
    file.resize(file.len().next_multiple_of(32), 0);
    file.extend((0..data).map(|i| i as u8));
    file
}

fn string(file: &mut Vec<u8>, s: &str) {
    file.extend((s.len() as u64).to_le_bytes());
    file.extend(s.as_bytes());
}

fn valid() -> Vec<u8> {
    write(
        &[
            spec("token_embd.weight", &[32, 2], 8, 0),
            spec("b", &[3], 0, 96),
        ],
        108,
    )
}

fn error(bytes: &[u8]) -> String {
    File::from_bytes(bytes).unwrap_err().to_string()
}

#[test]
fn the_valid_file_is_valid() {
    let bytes = valid();
    let file = File::from_bytes(&bytes).unwrap();
    let (head, data) = bytes.split_at(bytes.len() - 108);
    assert!(head.len().is_multiple_of(32));
    assert_eq!(
        file.tensor("token_embd.weight").unwrap().read().unwrap(),
        &data[..68]
    );
    assert_eq!(file.tensor("b").unwrap().read().unwrap(), &data[96..108]);
}

#[test]
fn tensors_that_cannot_be_are_refused_by_name() {
    let refused = |tensors: &[Spec], data, expected: &str| {
        let error = error(&write(tensors, data));
        assert!(
            error.contains(expected),
            "`{error}` does not say `{expected}`"
        );
    };
    refused(
        &[spec("t", &[256], 10, 0)],
        84,
        "tensor `t`: is Q2_K (type 10), which is not read: F32",
    );
    refused(
        &[spec("t", &[33], 8, 0)],
        64,
        "tensor `t`: dimensions [33] are not possible for Q8_0",
    );
    refused(
        &[spec("t", &[32, 0], 8, 0)],
        64,
        "tensor `t`: dimensions [32, 0]",
    );
    refused(
        &[spec("t", &[1 << 33, 1 << 33], 0, 0)],
        64,
        "tensor `t`: dimensions",
    );
    refused(&[spec("t", &[1 << 62], 8, 0)], 64, "tensor `t`: dimensions");
    refused(&[spec("t", &[], 0, 0)], 64, "tensor `t`: has 0 dimensions");
    refused(
        &[spec("t", &[1; 5], 0, 0)],
        64,
        "tensor `t`: has 5 dimensions",
    );
    refused(
        &[spec("t", &[2], 0, 4)],
        64,
        "tensor `t`: offset 4 is not a multiple of 32",
    );
    refused(
        &[spec("t", &[9], 0, 32)],
        64,
        "tensor `t` at offset 32 needs 36 bytes, 32 are left",
    );
    refused(
        &[spec("t", &[9], 0, u64::MAX - 31)],
        64,
        "tensor `t` at offset",
    );
    let twice = [spec("t", &[2], 0, 0), spec("t", &[2], 0, 32)];
    refused(&twice, 64, "tensor `t`: occurs twice");
    let shared = [spec("second", &[2], 0, 32), spec("first", &[9], 0, 0)];
    refused(&shared, 96, "tensor `second`: overlaps tensor `first`");
}

#[test]
fn headers_that_cannot_be_are_refused() {
    let patched = |at: usize, with: &[u8]| {
        let mut bytes = valid();
        bytes[at..at + with.len()].copy_from_slice(with);
        error(&bytes)
    };
    assert!(patched(0, b"GGML").starts_with("not a GGUF file"));
    assert!(patched(4, &1u32.to_le_bytes()).starts_with("GGUF version 1 is not supported"));
    assert!(patched(4, &3u32.to_be_bytes()).starts_with("GGUF version 50331648"));
    assert!(patched(8, &u64::MAX.to_le_bytes()).starts_with("number of tensors is 1844"));
    assert!(patched(16, &u64::MAX.to_le_bytes()).starts_with("number of metadata keys is 1844"));
    assert!(patched(24, &u64::MAX.to_le_bytes()).contains("the name of metadata key 0"));
    let value_type = 24 + 8 + "llama.block_count".len();
    let key = "metadata key `llama.block_count`: ";
    assert_eq!(
        patched(value_type, &[99]),
        format!("{key}value type 99 is unknown")
    );
    assert_eq!(
        patched(value_type, &[7]),
        format!("{key}a boolean is stored as 7, expected 0 or 1")
    );
    let array = value_type + 8 + 8 + "tokenizer.ggml.tokens".len();
    assert!(patched(array + 4, &[9]).contains("`tokenizer.ggml.tokens`: an array of arrays"));
    assert!(patched(array + 8, &(1u64 << 24).to_le_bytes()).contains(
        "the array `tokenizer.ggml.tokens` needs 134217728 bytes" // refused, not allocated
    ));
    assert!(patched(array + 24, &[0xFF]).contains("key `tokenizer.ggml.tokens`: a string is not"));

    let mut again = valid();
    again.splice(24..24, again[24..24 + 8 + 17 + 8].to_vec());
    again[16] = 3;
    assert_eq!(
        error(&again),
        "metadata key `llama.block_count`: occurs twice"
    );
}

#[test]
fn a_missing_file_is_the_callers_fault() {
    let error = File::open("no-such-file.gguf".as_ref()).unwrap_err();
    assert!(matches!(&error, Error::Io { .. }), "{error}");
    assert!(
        error
            .to_string()
            .starts_with("cannot read no-such-file.gguf")
    );
}

#[test]
fn every_truncation_is_an_error() {
    let bytes = valid();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cut.gguf");
    for len in 0..bytes.len() {
        let error = File::from_bytes(&bytes[..len]).unwrap_err();
        assert!(
            matches!(error, Error::Truncated { .. }),
            "{len} bytes: {error}"
        );
        std::fs::write(&path, &bytes[..len]).unwrap();
        let of_the_file = File::open(&path).unwrap_err();
        assert_eq!(of_the_file.to_string(), error.to_string());
    }
}

/// Numbers are read after the file was judged; what somebody does to it meanwhile is said.
#[test]
fn a_file_that_changes_after_it_was_opened_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("changing.gguf");
    let bytes = valid();
    let behind = bytes.len() - 108;
    let changing = |change: &dyn Fn(&std::fs::File)| {
        std::fs::write(&path, &bytes).unwrap();
        let file = File::open(&path).unwrap();
        let before = file.tensor("b").unwrap().dequantize().unwrap();
        let out = std::fs::File::options().write(true).open(&path).unwrap();
        change(&out);
        (file, before)
    };
    let says = |error: Error| {
        assert!(matches!(&error, Error::Changed { .. }), "{error}");
        let said = error.to_string();
        assert!(
            said.contains("changing.gguf has changed while it was read"),
            "{said}"
        );
    };
    let (cut, _) = changing(&|out| out.set_len(behind as u64 + 60).unwrap());
    says(
        cut.tensor("token_embd.weight")
            .unwrap()
            .dequantize()
            .unwrap_err(),
    );
    says(cut.tensor("b").unwrap().read().unwrap_err());
    says(cut.check_unchanged().unwrap_err());
    says(cut.fingerprint().unwrap_err());

    // Written to behind what was read, with the time that it had.
    let keep_time = |out: &std::fs::File, at: usize| {
        let time = out.metadata().unwrap().modified().unwrap();
        out.write_all_at(&[77], at as u64).unwrap();
        out.set_modified(time).unwrap();
    };
    let (written, before) = changing(&|out| keep_time(out, behind + 100));
    written.check_unchanged().unwrap(); // as far as the system tells
    let fingerprint = written.fingerprint().unwrap();
    assert_eq!(
        fingerprint,
        File::from_bytes(&bytes).unwrap().fingerprint().unwrap(),
        "of what was used"
    );
    says(written.tensor("b").unwrap().dequantize().unwrap_err());
    assert_eq!(before.len(), 3);
    let (written, _) = changing(&|out| keep_time(out, behind));
    assert_ne!(
        written.fingerprint().unwrap(),
        fingerprint,
        "of what would be used"
    );

    let (longer, _) = changing(&|out| out.set_len(bytes.len() as u64 + 1).unwrap());
    says(longer.check_unchanged().unwrap_err());
    let hour = std::time::Duration::from_secs(3600);
    let (touched, _) = changing(&|out| {
        out.set_modified(std::time::SystemTime::now() + hour)
            .unwrap()
    });
    says(touched.check_unchanged().unwrap_err());
}

/// Reads everything that a file offers, as the model would.
fn use_all(bytes: &[u8]) {
    if let Ok(file) = File::from_bytes(bytes) {
        for tensor in file.tensors() {
            assert_eq!(tensor.dequantize().unwrap().len(), tensor.len());
        }
        for (key, _) in file.iter() {
            let _ = (
                file.u32(key),
                file.string(key),
                file.strings(key),
                file.f32(key),
            );
        }
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic(tail in proptest::collection::vec(any::<u8>(), 0..400)) {
        use_all(&tail);
        let mut bytes = b"GGUF\x03\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0".to_vec();
        bytes.extend(&tail);
        use_all(&bytes);
    }

    #[test]
    fn mutated_files_never_panic(
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = valid();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        use_all(&bytes);
    }

    #[test]
    fn mutated_words_never_panic(at in any::<prop::sample::Index>(), word in any::<u64>()) {
        let mut bytes = valid();
        let at = at.index(bytes.len() - 8);
        for word in [word, u64::MAX, 1 << 63, word >> 40] {
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
            use_all(&bytes);
        }
    }
}
