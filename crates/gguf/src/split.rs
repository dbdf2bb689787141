//! Models in several files (`NAME-00001-of-00003.gguf`): which they are, and whether they belong together.
//! The keys of all are in the first; every part says its number and how many there are.

use std::path::{Path, PathBuf};

use crate::{Error, Metadata, PARTS_MAX, TENSORS_MAX, Value};

const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";

/// All files of the model of which this is the first, or the only one.
///
/// # Errors
/// It is no first part, or one of them is not there.
pub fn parts(path: &Path) -> Result<Vec<PathBuf>, Error> {
    let others = others(path, &Metadata::open(path)?)?;
    Ok([path.to_owned()].into_iter().chain(others).collect())
}

/// What a model is called of which a file with this name is one part of several.
pub fn stem(file: &str) -> Option<&str> {
    Name::parse(file).map(|name| name.stem)
}

/// The other parts of a model that begins with this file.
pub(crate) fn others(first: &Path, metadata: &Metadata) -> Result<Vec<PathBuf>, Error> {
    let count = metadata.find_u32(COUNT)?.unwrap_or(1);
    let refused = |problem: String| Error::Part {
        path: first.to_owned(),
        problem,
    };
    let name = first
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let named = Name::parse(&name);
    if let Some(Name {
        number,
        count,
        stem,
    }) = named.filter(|it| it.number != 1)
    {
        let begin = part_name(stem, 1, count);
        let problem = format!("is part {number} of {count}; give the first one, {begin}");
        return Err(refused(problem));
    }
    if count > PARTS_MAX {
        return Err(refused(format!(
            "{COUNT} is {count}, the limit is {PARTS_MAX}"
        )));
    }
    check_limit(metadata.find_u32(TENSORS)?.unwrap_or(0) as usize)?;
    let number = metadata.find_u32(NUMBER)?.unwrap_or(0);
    if number != 0 {
        let says = format!("{NUMBER} is {number}, that of a first part is 0");
        return Err(refused(format!(
            "{says}: the file is another part under this name"
        )));
    }
    let Some(Name {
        stem,
        count: stated,
        ..
    }) = named
    else {
        return match count {
            0 | 1 => Ok(Vec::new()),
            _ => Err(refused(format!(
                "is the first of {count} parts, and the others cannot be found without its own name, \
                 which ends in {}",
                part_name("", 1, count)
            ))),
        };
    };
    if stated != count.max(1) {
        return Err(refused(format!(
            "is one of {stated} parts by its name, and of {count} by its key {COUNT}"
        )));
    }
    let others = (2..=count).map(|number| first.with_file_name(part_name(stem, number, count)));
    let others: Vec<PathBuf> = others.collect();
    match others.iter().find(|path| !path.is_file()) {
        None => Ok(others),
        Some(missing) => Err(Error::Part {
            path: missing.clone(),
            problem: format!(
                "is not there: {name} is the first of {count} parts, all in one folder"
            ),
        }),
    }
}

/// Whether this is part `number` of the model of which the first part has these keys.
pub(crate) fn check_part(
    path: &Path,
    number: usize,
    part: &Metadata,
    first: &Metadata,
) -> Result<(), Error> {
    for (key, expected) in [
        (NUMBER, u32::try_from(number).ok()),
        (COUNT, first.find_u32(COUNT)?),
        (TENSORS, first.find_u32(TENSORS)?),
    ] {
        let found = part.find_u32(key)?;
        if found != expected {
            let shown = |n: Option<u32>| n.map_or("absent".to_owned(), |n| n.to_string());
            return refused(path, key, &shown(found), &shown(expected));
        }
    }
    // A part may repeat a key of the first one, as whole files that were renamed have them.
    let differs = |(key, value): &(&str, &Value)| {
        !key.starts_with("split.") && first.get(key).is_some_and(|first| first != *value)
    };
    match part.iter().find(differs) {
        None => Ok(()),
        Some((key, _)) => refused(path, key, "another value", "that of the first part"),
    }
}

fn refused(path: &Path, key: &str, found: &str, expected: &str) -> Result<(), Error> {
    Err(Error::Part {
        path: path.to_owned(),
        problem: format!(
            "key `{key}` is {found}, expected {expected}: it is no part of this model, or not the one that \
             its name says"
        ),
    })
}

/// Whether all parts together have no more tensors than a file may have.
pub(crate) fn check_limit(tensors: usize) -> Result<(), Error> {
    match tensors as u64 {
        found if found > TENSORS_MAX => Err(Error::Limit {
            what: "number of tensors in all parts".into(),
            found,
            limit: TENSORS_MAX,
        }),
        _ => Ok(()),
    }
}

/// Whether all tensors are there.
pub(crate) fn check_whole(metadata: &Metadata, tensors: usize) -> Result<(), Error> {
    let found = tensors as u64;
    let stated = metadata.find_u32(TENSORS)?.map(u64::from);
    match stated.filter(|stated| *stated != found) {
        None => Ok(()),
        Some(stated) => Err(Error::Key {
            key: TENSORS.to_owned(),
            problem: format!("is {stated}, but the parts have {found} tensors"),
        }),
    }
}

/// `STEM-00001-of-00003.gguf`
#[derive(Clone, Copy)]
struct Name<'n> {
    stem: &'n str,
    number: u32,
    count: u32,
}

impl<'n> Name<'n> {
    fn parse(name: &'n str) -> Option<Self> {
        let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let five = |digits: &str| digits.len() == 5 && digits.bytes().all(|it| it.is_ascii_digit());
        (five(number) && five(count)).then_some(())?;
        Some(Self {
            stem,
            number: number.parse().ok()?,
            count: count.parse().ok()?,
        })
    }
}

fn part_name(stem: &str, number: u32, count: u32) -> String {
    format!("{stem}-{number:05}-of-{count:05}.gguf")
}
