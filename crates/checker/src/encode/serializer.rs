//! The serializer: serde's data model as self-delimiting bytes, with identifiers left open.

use super::names::{Class, Rule};
use super::{Mark, Raw, put_varint};
use serde::ser::{self, Serialize};
use std::fmt::Display;

/// Why a world cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unencodable(String);

impl ser::Error for Unencodable {
    fn custom<T: Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

type Done = Result<(), Unencodable>;

impl Raw {
    fn number(&mut self, number: u128) -> Done {
        match self.rules.take_expected() {
            None => put_varint(&mut self.bytes, number),
            Some(Class::Epoch) => {
                let known = self.epochs.iter().position(|epoch| *epoch == number);
                let at = known.unwrap_or(self.epochs.len());
                if known.is_none() {
                    self.epochs.push(number);
                }
                self.mark(Class::Epoch, at as u64);
            }
            Some(class) => {
                let number = u64::try_from(number).map_err(ser::Error::custom)?;
                self.mark(class, number);
            }
        }
        Ok(())
    }

    fn mark(&mut self, class: Class, number: u64) {
        self.marks.push(Mark::new(self.bytes.len(), class, number));
    }

    fn open(&mut self) -> Compound<'_> {
        self.depth += 1;
        let rule = Rule::Plain;
        Compound { raw: self, rule }
    }

    fn open_named(&mut self, name: &'static str) -> Compound<'_> {
        let rule = self.rules.enter(name);
        self.depth += 1;
        Compound { raw: self, rule }
    }
}

/// What is being written that consists of parts.
pub(crate) struct Compound<'a> {
    raw: &'a mut Raw,
    rule: Rule,
}

impl Compound<'_> {
    fn part<T: Serialize + ?Sized>(&mut self, value: &T) -> Done {
        value.serialize(&mut *self.raw)?;
        self.raw.maybe_cut();
        Ok(())
    }

    fn close(self) -> Done {
        self.raw.depth -= 1;
        self.raw.rules.leave(self.rule);
        Ok(())
    }
}

impl<'a> ser::Serializer for &'a mut Raw {
    type Ok = ();
    type Error = Unencodable;
    type SerializeSeq = Compound<'a>;
    type SerializeTuple = Compound<'a>;
    type SerializeTupleStruct = Compound<'a>;
    type SerializeTupleVariant = Compound<'a>;
    type SerializeMap = Compound<'a>;
    type SerializeStruct = Compound<'a>;
    type SerializeStructVariant = Compound<'a>;

    fn serialize_bool(self, value: bool) -> Done {
        self.bytes.push(value.into());
        Ok(())
    }
    fn serialize_i8(self, value: i8) -> Done {
        self.serialize_i64(value.into())
    }
    fn serialize_i16(self, value: i16) -> Done {
        self.serialize_i64(value.into())
    }
    fn serialize_i32(self, value: i32) -> Done {
        self.serialize_i64(value.into())
    }
    fn serialize_i64(self, value: i64) -> Done {
        // Zigzag, so that small ones stay short.
        self.number(((value << 1) ^ (value >> 63)) as u64 as u128)
    }
    fn serialize_u8(self, value: u8) -> Done {
        self.number(value.into())
    }
    fn serialize_u16(self, value: u16) -> Done {
        self.number(value.into())
    }
    fn serialize_u32(self, value: u32) -> Done {
        self.number(value.into())
    }
    fn serialize_u64(self, value: u64) -> Done {
        self.number(value.into())
    }
    fn serialize_u128(self, value: u128) -> Done {
        self.number(value)
    }
    fn serialize_f32(self, value: f32) -> Done {
        self.number(value.to_bits().into())
    }
    fn serialize_f64(self, value: f64) -> Done {
        self.number(value.to_bits().into())
    }
    fn serialize_char(self, value: char) -> Done {
        self.number(u32::from(value).into())
    }
    fn serialize_str(self, value: &str) -> Done {
        self.serialize_bytes(value.as_bytes())
    }
    fn serialize_bytes(self, value: &[u8]) -> Done {
        put_varint(&mut self.bytes, value.len() as u128);
        self.bytes.extend_from_slice(value);
        Ok(())
    }
    fn serialize_none(self) -> Done {
        self.serialize_bool(false)
    }
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Done {
        self.bytes.push(1);
        value.serialize(self)
    }
    fn serialize_unit(self) -> Done {
        Ok(())
    }
    fn serialize_unit_struct(self, _name: &'static str) -> Done {
        Ok(())
    }
    fn serialize_unit_variant(self, _: &'static str, index: u32, _: &'static str) -> Done {
        put_varint(&mut self.bytes, index.into());
        Ok(())
    }
    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Done {
        let rule = self.rules.enter(name);
        match rule {
            Rule::Id(class) => self.rules.expect(class),
            Rule::Left => return Ok(()),
            _ => {}
        }
        value.serialize(&mut *self)?;
        self.rules.leave(rule);
        Ok(())
    }
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        value: &T,
    ) -> Done {
        put_varint(&mut self.bytes, index.into());
        value.serialize(self)
    }
    fn serialize_seq(self, len: Option<usize>) -> Result<Compound<'a>, Unencodable> {
        let len = len.ok_or_else(|| Unencodable("a sequence of unknown length".into()))?;
        put_varint(&mut self.bytes, len as u128);
        Ok(self.open())
    }
    fn serialize_tuple(self, _len: usize) -> Result<Compound<'a>, Unencodable> {
        Ok(self.open())
    }
    fn serialize_tuple_struct(
        self,
        name: &'static str,
        _len: usize,
    ) -> Result<Compound<'a>, Unencodable> {
        Ok(self.open_named(name))
    }
    fn serialize_tuple_variant(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Compound<'a>, Unencodable> {
        put_varint(&mut self.bytes, index.into());
        Ok(self.open())
    }
    fn serialize_map(self, len: Option<usize>) -> Result<Compound<'a>, Unencodable> {
        self.serialize_seq(len)
    }
    fn serialize_struct(
        self,
        name: &'static str,
        _len: usize,
    ) -> Result<Compound<'a>, Unencodable> {
        Ok(self.open_named(name))
    }
    fn serialize_struct_variant(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Compound<'a>, Unencodable> {
        put_varint(&mut self.bytes, index.into());
        Ok(self.open())
    }
    fn is_human_readable(&self) -> bool {
        false
    }
}

impl ser::SerializeStruct for Compound<'_> {
    type Ok = ();
    type Error = Unencodable;
    fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Done {
        match &self.rule {
            Rule::Id(class) if key != "epoch" => self.raw.rules.expect(*class),
            Rule::In(_, fields) if fields.contains(&key) => return Ok(()),
            _ => {}
        }
        self.part(value)
    }
    fn end(self) -> Done {
        self.close()
    }
}

impl ser::SerializeStructVariant for Compound<'_> {
    type Ok = ();
    type Error = Unencodable;
    fn serialize_field<T: Serialize + ?Sized>(&mut self, _: &'static str, value: &T) -> Done {
        self.part(value)
    }
    fn end(self) -> Done {
        self.close()
    }
}

impl ser::SerializeMap for Compound<'_> {
    type Ok = ();
    type Error = Unencodable;
    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Done {
        key.serialize(&mut *self.raw)
    }
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Done {
        self.part(value)
    }
    fn end(self) -> Done {
        self.close()
    }
}

macro_rules! parts {
    ($trait:ident, $method:ident) => {
        impl ser::$trait for Compound<'_> {
            type Ok = ();
            type Error = Unencodable;
            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Done {
                self.part(value)
            }
            fn end(self) -> Done {
                self.close()
            }
        }
    };
}

parts!(SerializeSeq, serialize_element);
parts!(SerializeTuple, serialize_element);
parts!(SerializeTupleStruct, serialize_field);
parts!(SerializeTupleVariant, serialize_field);
