//! Whatever walks through a value in a template pays for the walk first: the filters that measure.
//! [`crate::rewritten`] puts them where they are needed.

use minijinja::value::{DynObject, ObjectRepr, Rest, Value, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State};

use crate::FUEL_BYTES;

/// Before a value is compared, written or looked up with all that is in it.
pub(crate) const WALKED: &str = "_walked";
/// Around a list or a map that is made.
pub(crate) const MADE: &str = "_made";
/// Before a value becomes a namespace's own.
pub(crate) const KEPT: &str = "_kept";
/// Around what gives a list that is made of others only when it is looked at.
pub(crate) const WHOLE: &str = "_whole";
/// Before characters of a text are counted, or looked at: the engine charges what a filter is given.
pub(crate) const READ: &str = "_read";

/// Lists in lists, at most: what walks through them calls itself, and so does what drops them.
const DEPTH_MAX: usize = 100;
/// What an item of a list costs, in bytes, as the engine has it where it visits one itself.
const ITEM: u64 = 32;
/// What the engine calls lists and maps that it has put together.
const OF_LISTS: &str = "::MergeSeq";
const OF_MAPS: &str = "::MergeDict";
/// Items of a list that is made, for a unit of fuel; the engine charges their places when it is there.
const ITEMS_A_UNIT: usize = 2;
/// How often the bytes of a text count where it is compared, or written in quotes.
const QUOTED: u64 = 4;

pub(crate) fn add(environment: &mut Environment<'_>) {
    environment.add_filter(WALKED, walked);
    environment.add_filter(MADE, made);
    environment.add_filter(KEPT, kept);
    environment.add_filter(WHOLE, whole);
    environment.add_filter(READ, |value: Value| value);
    environment.add_filter("map", map);
    // It would show everything there is.
    environment.remove_global("debug");
}

/// The engine's, but not of itself: each would call the next with all of the names that are left, which
/// are as many as the template cares to give. And what it makes by a filter's name is made at once.
fn map(
    state: &mut State,
    value: Value,
    arguments: Rest<ValueOrKwargs>,
) -> Result<Vec<Value>, Error> {
    if arguments.first().and_then(|name| name.as_str()) == Some("map") {
        let problem = "a map of maps is not computed: name a filter that calls no other";
        return Err(Error::new(ErrorKind::InvalidOperation, problem));
    }
    let items = minijinja::filters::map(state, value, arguments)?;
    items.into_iter().map(|item| whole(state, item)).collect()
}

fn walked(state: &State, value: Value) -> Result<Value, Error> {
    pay(state, &value, Walk::showing())?;
    Ok(value)
}

/// What is in its texts is not looked at before it is used.
fn made(state: &State, value: Value) -> Result<Value, Error> {
    pay(state, &value, Walk::default())?;
    Ok(value)
}

/// A namespace that is in itself would never be dropped.
fn kept(state: &State, value: Value) -> Result<Value, Error> {
    let value = whole(state, value)?;
    let no_namespace = true;
    pay(
        state,
        &value,
        Walk {
            no_namespace,
            ..Walk::default()
        },
    )?;
    Ok(value)
}

/// The engine adds lists, cuts them and puts them together only when they are looked at: of one that was
/// added to a hundred times, each item is a hundred steps, and one that was doubled sixty times is asked
/// 2^60 times how long it is. So they are made at once, each item paid for before the next.
fn whole(state: &State, value: Value) -> Result<Value, Error> {
    let lazy = |object: &&DynObject| {
        let of_others = [OF_LISTS, OF_MAPS]
            .iter()
            .any(|it| object.type_name().ends_with(it));
        object.repr() == ObjectRepr::Iterable || of_others
    };
    let Some(object) = value.as_object().filter(lazy) else {
        return Ok(value);
    };
    let paid = |at: usize| match at % ITEMS_A_UNIT {
        0 => state.consume_fuel(1),
        _ => Ok(()),
    };
    if object.repr() == ObjectRepr::Map {
        let pairs = object.try_iter_pairs().into_iter().flatten().enumerate();
        let pairs = pairs.map(|(at, pair)| paid(at).map(|()| pair));
        return Ok(Value::from_pairs(pairs.collect::<Result<Vec<_>, _>>()?));
    }
    let items = object.try_iter().into_iter().flatten().enumerate();
    let items = items.map(|(at, item)| paid(at).map(|()| item));
    items.collect::<Result<Vec<_>, _>>().map(Value::from)
}

fn not_too_deep(depth: usize) -> Result<(), Error> {
    if depth > DEPTH_MAX {
        let problem = "lists in lists are nested too deeply";
        return Err(Error::new(ErrorKind::InvalidOperation, problem));
    }
    Ok(())
}

fn pay(state: &State, value: &Value, mut walk: Walk) -> Result<(), Error> {
    let Some(object) = value.as_object() else {
        return Ok(());
    };
    let (_, left) = state.fuel_levels().unwrap_or_default();
    walk.most = left.saturating_mul(FUEL_BYTES);
    walk.through(object, 1)?;
    state.consume_fuel(walk.cost / FUEL_BYTES)
}

/// Goes everywhere in a value, as often as whoever walks it will, and no further than can be paid.
#[derive(Default)]
struct Walk {
    cost: u64,
    most: u64,
    /// How often the bytes of texts count.
    texts: u64,
    no_namespace: bool,
}

impl Walk {
    fn showing() -> Self {
        Self {
            texts: QUOTED,
            ..Self::default()
        }
    }

    fn through(&mut self, object: &DynObject, depth: usize) -> Result<(), Error> {
        let own = object.type_name().ends_with("::Namespace");
        let plain = object.repr() == ObjectRepr::Plain;
        if self.no_namespace && (own || plain) {
            let problem = "a namespace keeps texts, numbers, lists and maps, and no other";
            return Err(Error::new(ErrorKind::InvalidOperation, problem));
        }
        not_too_deep(depth)?;
        if plain {
            return self.costs(ITEM);
        }
        if object.repr() == ObjectRepr::Map {
            for (key, value) in object.try_iter_pairs().into_iter().flatten() {
                self.item(&key, depth)?;
                self.item(&value, depth)?;
            }
            return Ok(());
        }
        for item in object.try_iter().into_iter().flatten() {
            self.item(&item, depth)?;
        }
        Ok(())
    }

    fn item(&mut self, item: &Value, depth: usize) -> Result<(), Error> {
        let text = item.as_str().map_or(0, str::len) as u64;
        self.costs(ITEM + self.texts * text)?;
        match item.as_object() {
            Some(object) => self.through(object, depth + 1),
            None => Ok(()),
        }
    }

    fn costs(&mut self, bytes: u64) -> Result<(), Error> {
        self.cost += bytes;
        match self.cost > self.most {
            true => Err(Error::from(ErrorKind::OutOfFuel)),
            false => Ok(()),
        }
    }
}
