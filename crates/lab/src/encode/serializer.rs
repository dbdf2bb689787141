//! The serializer: serde's data model as self-delimiting bytes, with identifiers left open.

use super::names::{Class, Rule};
use super::{Mark, Raw, put_varint};
use crate::world::Cell;
use serde::ser::{self, Serialize};
use std::fmt::{self, Display};

/// A world that cannot be written is a bug, not a failure to be handed on: there is no such value,
/// and so nothing to look for after each of the many small things that a world consists of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unencodable {}

impl Display for Unencodable {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}

impl std::error::Error for Unencodable {}

impl ser::Error for Unencodable {
    fn custom<T: Display>(message: T) -> Self {
        panic!("a world that cannot be encoded: {message}")
    }
}

type Done = Result<(), Unencodable>;

impl Raw {
    #[inline]
    fn number(&mut self, number: u64) -> Done {
        match self.rules.take_expected() {
            None => put_varint(&mut self.bytes, number),
            Some(Class::Epoch) => return self.epoch_number(number.into()),
            Some(Class::Cell) => {
                let says_something = Cell::says_something(number);
                put_varint(&mut self.bytes, if says_something { number } else { 0 });
            }
            Some(Class::Counter) => self.counters.push(number),
            Some(class) => self.mark(class, number),
        }
        Ok(())
    }

    /// The place of an epoch among those that occur.
    fn epoch(&mut self, epoch: u128) -> u64 {
        let known = self.epochs.iter().position(|known| *known == epoch);
        let at = known.unwrap_or(self.epochs.len());
        if known.is_none() {
            self.epochs.push(epoch);
        }
        at as u64
    }

    fn epoch_number(&mut self, number: u128) -> Done {
        self.rules.saw_epoch(number);
        let at = self.epoch(number);
        if self.apart.is_some() {
            put_varint(&mut self.bytes, at);
        } else {
            self.mark(Class::Epoch, at);
        }
        Ok(())
    }

    #[inline]
    fn mark(&mut self, class: Class, number: u64) {
        let key = Mark::key(class, self.rules.life_of(class), number);
        if self.apart.is_none() {
            return self.marks.push(Mark::new(self.bytes.len(), key));
        }
        let in_its_place = if class.is_page() {
            number
        } else {
            self.name(key)
        };
        put_varint(&mut self.bytes, in_its_place);
    }

    /// The place of a name among those of a part, which are a few dozen, as they come.
    fn name(&mut self, key: u64) -> u64 {
        let known = self.keys.iter().position(|known| *known == key);
        let at = known.unwrap_or(self.keys.len());
        if known.is_none() {
            self.keys.push(key);
        }
        at as u64
    }

    fn open(&mut self) -> Compound<'_> {
        self.depth += 1;
        let (rule, rows) = (Rule::Plain, false);
        Compound {
            raw: self,
            rule,
            rows,
        }
    }

    fn open_named(&mut self, name: &'static str) -> Compound<'_> {
        let rule = self.rules.enter(name);
        if let Rule::Life(_, pages) = rule
            && self.apart.is_none()
        {
            self.begin_life(pages);
        }
        self.depth += 1;
        let rows = false;
        Compound {
            raw: self,
            rule,
            rows,
        }
    }

    /// A sequence, set or map: rows if that is what was announced.
    fn open_list(&mut self, len: Option<usize>) -> Result<Compound<'_>, Unencodable> {
        let len = len.expect("a sequence of known length");
        let rows = self.rules.take_rows().filter(|_| self.apart.is_none());
        match rows {
            Some(rows) => self.begin_rows(rows),
            None => put_varint(&mut self.bytes, len as u64),
        }
        let mut list = self.open();
        list.rows = rows.is_some();
        Ok(list)
    }
}

/// What is being written that consists of parts.
pub(crate) struct Compound<'a> {
    raw: &'a mut Raw,
    rule: Rule,
    /// Its elements are rows.
    rows: bool,
}

impl Compound<'_> {
    #[inline]
    fn part<T: Serialize + ?Sized>(&mut self, value: &T) -> Done {
        value.serialize(&mut *self.raw)?;
        self.raw.maybe_cut();
        Ok(())
    }

    /// An array's, of which there may be many.
    #[inline]
    fn uncut<T: Serialize + ?Sized>(&mut self, value: &T) -> Done {
        value.serialize(&mut *self.raw)
    }

    fn element<T: Serialize + ?Sized>(&mut self, value: &T) -> Done {
        if self.rows {
            self.raw.begin_row();
        }
        self.part(value)
    }

    fn close(self) -> Done {
        if self.rows {
            self.raw.end_rows();
        }
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
        self.number(((value << 1) ^ (value >> 63)) as u64)
    }
    #[inline]
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
        self.number(value)
    }
    fn serialize_u128(self, value: u128) -> Done {
        match self.rules.take_expected() {
            Some(Class::Epoch) => self.epoch_number(value),
            Some(class) => {
                let number = u64::try_from(value).map_err(ser::Error::custom)?;
                self.mark(class, number);
                Ok(())
            }
            None => {
                self.bytes.extend_from_slice(&value.to_le_bytes());
                Ok(())
            }
        }
    }
    fn serialize_f32(self, value: f32) -> Done {
        self.number(value.to_bits().into())
    }
    fn serialize_f64(self, value: f64) -> Done {
        self.number(value.to_bits())
    }
    fn serialize_char(self, value: char) -> Done {
        self.number(u32::from(value).into())
    }
    fn serialize_str(self, value: &str) -> Done {
        self.serialize_bytes(value.as_bytes())
    }
    fn serialize_bytes(self, value: &[u8]) -> Done {
        put_varint(&mut self.bytes, value.len() as u64);
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
            Rule::Cell if self.symmetric => self.rules.expect(Class::Cell),
            Rule::Left => {
                if self.apart.is_some() {
                    self.rules.expect(Class::Counter);
                    value.serialize(&mut *self)?;
                }
                return Ok(());
            }
            Rule::Part => {
                if let Some(inside) = &mut self.apart {
                    *inside += 1;
                    return Ok(());
                }
            }
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
        self.open_list(len)
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
            Rule::Plain => {}
            Rule::Id(class) if key != "epoch" => self.raw.rules.expect(*class),
            Rule::In(_, fields) if fields.contains(&key) => return Ok(()),
            rule if self.raw.apart.is_none() => {
                if let Some(rows) = rule.rows(key) {
                    self.raw.rules.expect_rows(rows);
                }
            }
            _ => {}
        }
        self.part(value)?;
        if matches!(self.rule, Rule::Id(_) | Rule::Life(..)) && key == "epoch" {
            self.raw.rules.had_epoch(self.rule);
        }
        Ok(())
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
        if self.rows {
            self.raw.begin_row();
        }
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
        parts!($trait, $method, part);
    };
    ($trait:ident, $method:ident, $part:ident) => {
        impl ser::$trait for Compound<'_> {
            type Ok = ();
            type Error = Unencodable;
            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Done {
                self.$part(value)
            }
            fn end(self) -> Done {
                self.close()
            }
        }
    };
}

parts!(SerializeSeq, serialize_element, element);
parts!(SerializeTuple, serialize_element, uncut);
parts!(SerializeTupleStruct, serialize_field);
parts!(SerializeTupleVariant, serialize_field);
