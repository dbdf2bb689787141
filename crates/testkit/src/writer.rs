use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use gguf::{Array, DType, Value};
use half::{bf16, f16};

const ALIGNMENT: usize = 32;

/// Writes a GGUF of version 3: what a test wants to read, and no more.
#[derive(Default)]
pub struct Writer {
    keys: Vec<(String, Value)>,
    tensors: Vec<(String, Vec<u64>, DType, Vec<u8>)>,
}

impl Writer {
    /// A file with nothing in it.
    pub fn new() -> Writer {
        Writer::default()
    }

    /// Adds a metadata key.
    pub fn key(&mut self, key: &str, value: Value) {
        self.keys.push((key.to_owned(), value));
    }

    /// Adds a tensor; `dims` has the contiguous dimension first. F32, BF16 and Q8_0 can be written.
    pub fn tensor(&mut self, name: &str, dims: &[usize], dtype: DType, numbers: &[f32]) {
        assert_eq!(
            dims.iter().product::<usize>(),
            numbers.len(),
            "tensor `{name}`"
        );
        let bytes = match dtype {
            DType::F32 => numbers.iter().flat_map(|x| x.to_le_bytes()).collect(),
            DType::BF16 => numbers
                .iter()
                .flat_map(|x| bf16::from_f32(*x).to_le_bytes())
                .collect(),
            DType::Q8_0 => quantize_q8_0(numbers),
            _ => panic!("tensor `{name}`: only F32, BF16 and Q8_0 can be written, not {dtype}"),
        };
        self.stored(name, dims, dtype, bytes);
    }

    /// Adds a tensor of any type as it is stored.
    pub fn stored(&mut self, name: &str, dims: &[usize], dtype: DType, bytes: Vec<u8>) {
        let dims = dims.iter().map(|dim| *dim as u64).collect();
        self.tensors.push((name.to_owned(), dims, dtype, bytes));
    }

    /// Writes the file.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        let head = self.head();
        file.write_all(&head)?;
        file.write_all(padding(head.len()))?;
        for (.., bytes) in &self.tensors {
            file.write_all(bytes)?;
            file.write_all(padding(bytes.len()))?;
        }
        file.flush()
    }

    fn head(&self) -> Vec<u8> {
        let mut out = b"GGUF\x03\0\0\0".to_vec();
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            string(&mut out, key);
            put_value(&mut out, value);
        }
        let mut offset = 0;
        for (name, dims, dtype, bytes) in &self.tensors {
            string(&mut out, name);
            out.extend((dims.len() as u32).to_le_bytes());
            out.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
            out.extend(dtype.id().to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset += bytes.len().next_multiple_of(ALIGNMENT);
        }
        out
    }
}

/// Blocks of 32: a scale of 16 bits and 32 signed bytes.
pub fn quantize_q8_0(numbers: &[f32]) -> Vec<u8> {
    let (blocks, rest) = numbers.as_chunks::<32>();
    assert!(
        rest.is_empty(),
        "Q8_0 needs a multiple of 32 numbers, not {}",
        numbers.len()
    );
    let mut bytes = Vec::with_capacity(blocks.len() * 34);
    for block in blocks {
        let largest = block.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let scale = f16::from_f32(largest / 127.0);
        let inverse = if scale == f16::ZERO {
            0.0
        } else {
            1.0 / scale.to_f32()
        };
        bytes.extend(scale.to_le_bytes());
        bytes.extend(block.iter().map(|x| (x * inverse).round() as i8 as u8)); // `as` saturates
    }
    bytes
}

fn padding(len: usize) -> &'static [u8] {
    &[0; ALIGNMENT][..len.next_multiple_of(ALIGNMENT) - len]
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    let mut put = |tag: u32, bytes: &[u8]| {
        out.extend(tag.to_le_bytes());
        out.extend(bytes);
    };
    match value {
        Value::U8(n) => put(0, &n.to_le_bytes()),
        Value::I8(n) => put(1, &n.to_le_bytes()),
        Value::U16(n) => put(2, &n.to_le_bytes()),
        Value::I16(n) => put(3, &n.to_le_bytes()),
        Value::U32(n) => put(4, &n.to_le_bytes()),
        Value::I32(n) => put(5, &n.to_le_bytes()),
        Value::F32(x) => put(6, &x.to_le_bytes()),
        Value::Bool(b) => put(7, &[u8::from(*b)]),
        Value::String(text) => {
            put(8, &[]);
            string(out, text);
        }
        Value::Array(array) => {
            put(9, &[]);
            put_array(out, array);
        }
        Value::U64(n) => put(10, &n.to_le_bytes()),
        Value::I64(n) => put(11, &n.to_le_bytes()),
        Value::F64(x) => put(12, &x.to_le_bytes()),
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    fn elements<T, const N: usize>(
        out: &mut Vec<u8>,
        tag: u32,
        all: &[T],
        bytes: impl Fn(&T) -> [u8; N],
    ) {
        out.extend(tag.to_le_bytes());
        out.extend((all.len() as u64).to_le_bytes());
        out.extend(all.iter().flat_map(bytes));
    }
    match array {
        Array::U8(all) => elements(out, 0, all, |n| n.to_le_bytes()),
        Array::I8(all) => elements(out, 1, all, |n| n.to_le_bytes()),
        Array::U16(all) => elements(out, 2, all, |n| n.to_le_bytes()),
        Array::I16(all) => elements(out, 3, all, |n| n.to_le_bytes()),
        Array::U32(all) => elements(out, 4, all, |n| n.to_le_bytes()),
        Array::I32(all) => elements(out, 5, all, |n| n.to_le_bytes()),
        Array::F32(all) => elements(out, 6, all, |x| x.to_le_bytes()),
        Array::Bool(all) => elements(out, 7, all, |b| [u8::from(*b)]),
        Array::String(all) => {
            elements::<String, 0>(out, 8, all, |_| []); // tag and length; no fixed size
            all.iter().for_each(|text| string(out, text));
        }
        Array::U64(all) => elements(out, 10, all, |n| n.to_le_bytes()),
        Array::I64(all) => elements(out, 11, all, |n| n.to_le_bytes()),
        Array::F64(all) => elements(out, 12, all, |x| x.to_le_bytes()),
    }
}
