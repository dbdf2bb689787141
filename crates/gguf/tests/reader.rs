//! What is read equals what the reference implementation wrote (`fixtures/make.py`).
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::path::Path;

use gguf::{Array, DType, Error, File, Metadata, Value};

fn fixture() -> &'static Path {
    Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/fixtures/quants.gguf"
    ))
}

#[test]
fn every_type_dequantizes_to_the_reference_bit_for_bit() {
    let file = File::open(fixture()).unwrap();
    let types = [
        ("f32", DType::F32),
        ("f16", DType::F16),
        ("bf16", DType::BF16),
        ("q4_0", DType::Q4_0),
        ("q4_1", DType::Q4_1),
        ("q8_0", DType::Q8_0),
        ("q4_k", DType::Q4_K),
        ("q5_k", DType::Q5_K),
        ("q6_k", DType::Q6_K),
        ("q5_0", DType::Q5_0),
        ("q5_1", DType::Q5_1),
        ("iq4_nl", DType::IQ4_NL),
    ];
    for (name, dtype) in types {
        let tensor = file.tensor(name).unwrap();
        assert_eq!(tensor.dtype(), dtype);
        assert_eq!(tensor.dims(), [256, 2]);
        let expected = file.tensor(&format!("{name}.expected")).unwrap();
        assert_eq!(expected.dtype(), DType::F32);
        let expected = expected.read().unwrap();
        let expected: Vec<f32> = expected
            .as_chunks()
            .0
            .iter()
            .copied()
            .map(f32::from_le_bytes)
            .collect();
        assert!(expected.iter().all(|x| x.is_finite()), "{name}");
        let distinct: BTreeSet<u32> = expected.iter().map(|x| x.to_bits()).collect();
        assert!(
            distinct.len() > 16,
            "{name}: the fixture would not notice mistakes"
        );
        assert_eq!(
            bits(&tensor.dequantize().unwrap()),
            bits(&expected),
            "{name}"
        );
    }
    assert_eq!(file.tensors().count(), 2 * types.len());
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn every_value_type_is_read_as_it_was_written() {
    let metadata = Metadata::open(fixture()).unwrap();
    let strings = ["", "Ġthe", "a\nb"].map(str::to_owned).to_vec();
    let values = [
        ("test.u8", Value::U8(250)),
        ("test.i8", Value::I8(-100)),
        ("test.u16", Value::U16(65000)),
        ("test.i16", Value::I16(-30000)),
        ("test.u32", Value::U32(4_000_000_000)),
        ("test.i32", Value::I32(-2_000_000_000)),
        ("test.u64", Value::U64((1 << 63) + 1)),
        ("test.i64", Value::I64(-(1 << 62))),
        ("test.f32", Value::F32(0.1)),
        ("test.f64", Value::F64(0.1)),
        ("test.bool", Value::Bool(true)),
        ("test.string", Value::String("naïve ½".into())),
        ("test.strings", Value::Array(Array::String(strings))),
        ("test.i32s", Value::Array(Array::I32(vec![1, -2, 3]))),
        ("test.f32s", Value::Array(Array::F32(vec![0.5, -1.5]))),
        ("test.bools", Value::Array(Array::Bool(vec![true, false]))),
    ];
    for (key, value) in values {
        assert_eq!(metadata.get(key), Some(&value), "{key}");
    }
    assert_eq!(metadata, *File::open(fixture()).unwrap());
}

#[test]
fn getters_convert_what_fits_and_name_the_key_otherwise() {
    let file = File::open(fixture()).unwrap();
    assert_eq!(file.u32("test.u8").unwrap(), 250);
    assert_eq!(file.u32("test.u32").unwrap(), 4_000_000_000);
    assert_eq!(file.f32("test.f64").unwrap(), 0.1);
    assert!(file.bool("test.bool").unwrap());
    assert_eq!(file.string("test.string").unwrap(), "naïve ½");
    assert_eq!(file.strings("test.strings").unwrap()[1], "Ġthe");
    assert_eq!(file.i32s("test.i32s").unwrap(), [1, -2, 3]);
    assert_eq!(file.f32s("test.f32s").unwrap(), [0.5, -1.5]);
    assert_eq!(file.find_u32("absent").unwrap(), None);

    let says = |error: Error| error.to_string();
    assert_eq!(
        says(file.u32("test.i32").unwrap_err()),
        "metadata key `test.i32` has type integer (-2000000000), \
         expected an integer from 0 to 4294967295"
    );
    assert!(says(file.find_u32("test.u64").unwrap_err()).contains("`test.u64`"));
    assert_eq!(
        says(file.strings("test.i32s").unwrap_err()),
        "metadata key `test.i32s` has type array of another element type, \
         expected an array of strings"
    );
    assert!(matches!(file.bool("absent"), Err(Error::MissingKey { key }) if key == "absent"));
    assert!(matches!(file.tensor("nope"), Err(Error::MissingTensor { name }) if name == "nope"));
}

#[test]
fn version_2_is_read_as_well() {
    let mut bytes = std::fs::read(fixture()).unwrap();
    bytes[4] = 2; // the layout is the same; version 3 only added a big-endian variant
    let file = File::from_bytes(&bytes).unwrap();
    assert_eq!(file.tensor("q6_k").unwrap().len(), 512);
}
