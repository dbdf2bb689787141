use std::collections::BTreeMap;
use std::io::{BufReader, Read};
use std::path::Path;

use crate::part::Opened;
use crate::source::Source;
use crate::{ARRAY_LEN_MAX, Error, KEYS_MAX, TENSORS_MAX};

/// The metadata of a file: typed getters whose errors name the key. A getter without `find_`
/// wants the key to exist; `find_…` gives `None` when it does not, and still refuses a wrong type.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metadata {
    values: BTreeMap<String, Value>,
}

/// One metadata value. See the GGUF format for the meaning of each.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // the variants are the format's own types
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    String(String),
    Array(Array),
}

/// A metadata array; one vector for each element type. Arrays of arrays are refused.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // the variants are the format's own types
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    String(Vec<String>),
}

impl Metadata {
    /// Reads the metadata alone, without the tensors: what a tokenizer needs.
    pub fn open(path: &Path) -> Result<Metadata, Error> {
        let opened = open(path)?;
        let reader = BufReader::new(&opened.file);
        let mut source = Source::new(reader, path.to_owned(), opened.len);
        Header::read(&mut source).map(|header| header.metadata)
    }

    /// Metadata of what is stored in another format; of two values of one key the last counts.
    pub fn assembled(values: impl IntoIterator<Item = (String, Value)>) -> Metadata {
        let values = values.into_iter().collect();
        Metadata { values }
    }

    /// All keys and values, in the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.values.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The value of `key` as it stands in the file.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// An integer of any stored width that fits 32 bits unsigned.
    pub fn u32(&self, key: &str) -> Result<u32, Error> {
        required(key, self.find_u32(key))
    }

    /// See [`Metadata::u32`].
    pub fn find_u32(&self, key: &str) -> Result<Option<u32>, Error> {
        self.find(key, "an integer from 0 to 4294967295", |value| {
            u32::try_from(value.integer()?).ok()
        })
    }

    /// A 32-bit float (or a 64-bit one, rounded).
    pub fn f32(&self, key: &str) -> Result<f32, Error> {
        required(key, self.find_f32(key))
    }

    /// See [`Metadata::f32`].
    pub fn find_f32(&self, key: &str) -> Result<Option<f32>, Error> {
        self.find(key, "a float", |value| match value {
            Value::F32(x) => Some(*x),
            Value::F64(x) => Some(*x as f32),
            _ => None,
        })
    }

    /// A boolean.
    pub fn bool(&self, key: &str) -> Result<bool, Error> {
        required(key, self.find_bool(key))
    }

    /// See [`Metadata::bool`].
    pub fn find_bool(&self, key: &str) -> Result<Option<bool>, Error> {
        self.find(key, "a boolean", |value| match value {
            Value::Bool(b) => Some(*b),
            _ => None,
        })
    }

    /// A string.
    pub fn string(&self, key: &str) -> Result<&str, Error> {
        required(key, self.find_string(key))
    }

    /// See [`Metadata::string`].
    pub fn find_string(&self, key: &str) -> Result<Option<&str>, Error> {
        self.find(key, "a string", |value| match value {
            Value::String(s) => Some(s.as_str()),
            _ => None,
        })
    }

    /// An array of strings, such as `tokenizer.ggml.tokens`.
    pub fn strings(&self, key: &str) -> Result<&[String], Error> {
        required(key, self.find_strings(key))
    }

    /// See [`Metadata::strings`].
    pub fn find_strings(&self, key: &str) -> Result<Option<&[String]>, Error> {
        self.find(key, "an array of strings", |value| match value {
            Value::Array(Array::String(strings)) => Some(strings.as_slice()),
            _ => None,
        })
    }

    /// An array of 32-bit signed integers, such as `tokenizer.ggml.token_type`.
    pub fn i32s(&self, key: &str) -> Result<&[i32], Error> {
        required(key, self.find_i32s(key))
    }

    /// See [`Metadata::i32s`].
    pub fn find_i32s(&self, key: &str) -> Result<Option<&[i32]>, Error> {
        self.find(
            key,
            "an array of 32-bit signed integers",
            |value| match value {
                Value::Array(Array::I32(integers)) => Some(integers.as_slice()),
                _ => None,
            },
        )
    }

    /// An array of 32-bit floats, such as `tokenizer.ggml.scores`.
    pub fn f32s(&self, key: &str) -> Result<&[f32], Error> {
        required(key, self.find_f32s(key))
    }

    /// See [`Metadata::f32s`].
    pub fn find_f32s(&self, key: &str) -> Result<Option<&[f32]>, Error> {
        self.find(key, "an array of 32-bit floats", |value| match value {
            Value::Array(Array::F32(floats)) => Some(floats.as_slice()),
            _ => None,
        })
    }

    fn find<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.values.get(key) else {
            return Ok(None);
        };
        let wrong = || Error::WrongType {
            key: key.to_owned(),
            expected,
            found: value.describe(),
        };
        convert(value).ok_or_else(wrong).map(Some)
    }
}

fn required<T>(key: &str, found: Result<Option<T>, Error>) -> Result<T, Error> {
    found?.ok_or_else(|| Error::MissingKey {
        key: key.to_owned(),
    })
}

pub(crate) fn open(path: &Path) -> Result<Opened, Error> {
    Opened::open(path).map_err(|source| Error::Io {
        path: path.to_owned(),
        source,
    })
}

/// What stands before the description of the tensors.
pub(crate) struct Header {
    pub(crate) metadata: Metadata,
    pub(crate) tensor_count: u64,
}

impl Header {
    pub(crate) fn read<R: Read>(source: &mut Source<R>) -> Result<Header, Error> {
        let found = source.array::<4>(|| "the magic number".into())?;
        if &found != b"GGUF" {
            return Err(Error::NotGguf { found });
        }
        let found = source.u32(|| "the version".into())?;
        if !matches!(found, 2 | 3) {
            return Err(Error::Version { found });
        }
        let tensor_count = source.count(TENSORS_MAX, || "number of tensors".into())?;
        let key_count = source.count(KEYS_MAX, || "number of metadata keys".into())?;
        let mut values = BTreeMap::new();
        for index in 0..key_count {
            let key = source.name(|| format!("metadata key {index}"))?;
            let tag = source.u32(|| format!("the type of key `{key}`"))?;
            let value = Value::read(source, &key, tag)?;
            if values.contains_key(&key) {
                return Err(Error::Key {
                    key,
                    problem: "occurs twice".into(),
                });
            }
            values.insert(key, value);
        }
        Ok(Header {
            metadata: Metadata { values },
            tensor_count,
        })
    }
}

impl Value {
    fn read<R: Read>(source: &mut Source<R>, key: &str, tag: u32) -> Result<Value, Error> {
        let what = || format!("the value of key `{key}`");
        Ok(match tag {
            0 => Value::U8(u8::from_le_bytes(source.array(what)?)),
            1 => Value::I8(i8::from_le_bytes(source.array(what)?)),
            2 => Value::U16(u16::from_le_bytes(source.array(what)?)),
            3 => Value::I16(i16::from_le_bytes(source.array(what)?)),
            4 => Value::U32(u32::from_le_bytes(source.array(what)?)),
            5 => Value::I32(i32::from_le_bytes(source.array(what)?)),
            6 => Value::F32(f32::from_le_bytes(source.array(what)?)),
            7 => Value::Bool(boolean(source.array::<1>(what)?[0], key)?),
            8 => Value::String(source.string(key)?),
            9 => Value::Array(Array::read(source, key)?),
            10 => Value::U64(u64::from_le_bytes(source.array(what)?)),
            11 => Value::I64(i64::from_le_bytes(source.array(what)?)),
            12 => Value::F64(f64::from_le_bytes(source.array(what)?)),
            _ => return Err(unknown_type(key, tag)),
        })
    }

    fn integer(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(n) => n.into(),
            Value::I8(n) => n.into(),
            Value::U16(n) => n.into(),
            Value::I16(n) => n.into(),
            Value::U32(n) => n.into(),
            Value::I32(n) => n.into(),
            Value::U64(n) => n.into(),
            Value::I64(n) => n.into(),
            _ => return None,
        })
    }

    fn describe(&self) -> String {
        match self {
            Value::F32(x) => format!("float ({x})"),
            Value::F64(x) => format!("float ({x})"),
            Value::Bool(b) => format!("boolean ({b})"),
            Value::String(_) => "string".into(),
            Value::Array(_) => "array of another element type".into(),
            _ => format!("integer ({})", self.integer().unwrap_or_default()),
        }
    }
}

impl Array {
    fn read<R: Read>(source: &mut Source<R>, key: &str) -> Result<Array, Error> {
        let tag = source.u32(|| format!("the element type of key `{key}`"))?;
        let len = source.count(ARRAY_LEN_MAX, || format!("length of the array `{key}`"))?;
        Ok(match tag {
            0 => Array::U8(numbers(source, key, len, u8::from_le_bytes)?),
            1 => Array::I8(numbers(source, key, len, i8::from_le_bytes)?),
            2 => Array::U16(numbers(source, key, len, u16::from_le_bytes)?),
            3 => Array::I16(numbers(source, key, len, i16::from_le_bytes)?),
            4 => Array::U32(numbers(source, key, len, u32::from_le_bytes)?),
            5 => Array::I32(numbers(source, key, len, i32::from_le_bytes)?),
            6 => Array::F32(numbers(source, key, len, f32::from_le_bytes)?),
            7 => {
                let bytes = numbers(source, key, len, u8::from_le_bytes)?;
                Array::Bool(
                    bytes
                        .into_iter()
                        .map(|b| boolean(b, key))
                        .collect::<Result<_, _>>()?,
                )
            }
            8 => Array::String(strings(source, key, len)?),
            10 => Array::U64(numbers(source, key, len, u64::from_le_bytes)?),
            11 => Array::I64(numbers(source, key, len, i64::from_le_bytes)?),
            12 => Array::F64(numbers(source, key, len, f64::from_le_bytes)?),
            9 => {
                let problem = "an array of arrays is not supported".to_owned();
                return Err(Error::Key {
                    key: key.to_owned(),
                    problem,
                });
            }
            _ => return Err(unknown_type(key, tag)),
        })
    }
}

fn numbers<R: Read, T, const N: usize>(
    source: &mut Source<R>,
    key: &str,
    len: u64,
    convert: fn([u8; N]) -> T,
) -> Result<Vec<T>, Error> {
    let bytes = source.bytes(len * N as u64, || format!("the array `{key}`"))?;
    let (elements, _) = bytes.as_chunks::<N>();
    Ok(elements.iter().copied().map(convert).collect())
}

fn strings<R: Read>(source: &mut Source<R>, key: &str, len: u64) -> Result<Vec<String>, Error> {
    source.claim(len * 8, || format!("the array `{key}`"))?; // each has a length of 8 bytes
    (0..len).map(|_| source.string(key)).collect()
}

fn boolean(byte: u8, key: &str) -> Result<bool, Error> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Error::Key {
            key: key.to_owned(),
            problem: format!("a boolean is stored as {byte}, expected 0 or 1"),
        }),
    }
}

fn unknown_type(key: &str, tag: u32) -> Error {
    Error::Key {
        key: key.to_owned(),
        problem: format!("value type {tag} is unknown"),
    }
}
