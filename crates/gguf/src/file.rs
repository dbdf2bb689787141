use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufReader, Read};
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};

use crate::metadata::{self, Header};
use crate::part::Digest;
use crate::source::Source;
use crate::tensor::name_of_other;
use crate::{DIMS_MAX, DType, Error, Metadata, Part, Tensor, split};

/// An open GGUF file: what it says is in memory, tensors are read when they are wanted. It is also its
/// [`Metadata`] (by `Deref`): `file.u32("…")` reads a key, and a `&File` goes where a `&Metadata` is wanted.
pub struct File {
    metadata: Metadata,
    tensors: BTreeMap<String, Description>,
    parts: Vec<Part>,
}

/// Where a tensor lies: `range` is within that part's tensors.
pub(crate) struct Description {
    pub(crate) dims: Vec<usize>,
    pub(crate) dtype: DType,
    part: usize,
    pub(crate) range: Range<u64>,
    pub(crate) paired: Option<usize>,
}

/// A tensor that is described elsewhere, for [`File::assembled`].
#[derive(Debug, Clone)]
pub struct Described {
    /// Its name as GGUF files have it.
    pub name: String,
    /// Its dimensions, the contiguous one first.
    pub dims: Vec<u64>,
    /// How its numbers are stored.
    pub dtype: DType,
    /// In which of the parts it lies.
    pub part: usize,
    /// Where in there it begins.
    pub offset: u64,
    /// Rows of a head, if each has first all that are first of a pair: they are given out in pairs.
    pub paired: Option<usize>,
}

impl File {
    /// Opens the file at `path` and checks everything but the numbers themselves. If it is the first part of
    /// several (`-00001-of-00003.gguf`), the others are opened with it.
    pub fn open(path: &Path) -> Result<File, Error> {
        let first = File::open_part(path)?;
        let others = split::others(path, &first.metadata)?;
        let mut whole = first;
        for (number, path) in others.iter().enumerate() {
            let part = File::open_part(path)?;
            split::check_part(path, number + 1, &part.metadata, &whole.metadata)?;
            whole.append(part)?;
        }
        split::check_whole(&whole.metadata, whole.tensors.len())?;
        Ok(whole)
    }

    /// The same for a file of one part that is in memory already.
    pub fn from_bytes(bytes: &[u8]) -> Result<File, Error> {
        let mut source = Source::new(bytes, PathBuf::from("<memory>"), bytes.len() as u64);
        let said = Said::read(&mut source)?;
        let behind = bytes[source.position() as usize..].to_vec();
        Ok(said.file(Part::with_head(behind, source.digest())))
    }

    /// A file that is put together of what is stored in another format: checked as one that is read.
    pub fn assembled(
        metadata: Metadata,
        parts: Vec<Part>,
        tensors: Vec<Described>,
    ) -> Result<File, Error> {
        let mut whole = File {
            metadata,
            tensors: BTreeMap::new(),
            parts: Vec::new(),
        };
        for (number, part) in parts.into_iter().enumerate() {
            let here = tensors.iter().filter(|tensor| tensor.part == number);
            let claims = here.map(Claim::of).collect::<Result<Vec<Claim>, Error>>()?;
            for claim in &claims {
                claim.check(1, part.len())?;
            }
            whole.append(File {
                metadata: Metadata::default(),
                tensors: describe(claims)?,
                parts: vec![part],
            })?;
        }
        Ok(whole)
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>, Error> {
        let found = self
            .tensors
            .get_key_value(name)
            .map(|(name, about)| self.view(name, about));
        found.ok_or_else(|| Error::MissingTensor {
            name: name.to_owned(),
        })
    }

    /// All tensors, in the order of their names.
    pub fn tensors(&self) -> impl Iterator<Item = Tensor<'_>> {
        self.tensors
            .iter()
            .map(|(name, about)| self.view(name, about))
    }

    fn view<'f>(&'f self, name: &'f str, about: &'f Description) -> Tensor<'f> {
        let part = &self.parts[about.part];
        Tensor { name, about, part }
    }

    /// Identity of all bytes of which the model is made, of every part: of tensors that were read, as they
    /// were then; the rest is read now.
    ///
    /// # Errors
    /// A file cannot be read, or is not any more what was opened.
    pub fn fingerprint(&self) -> Result<Digest, Error> {
        let mut tensors = vec![Vec::new(); self.parts.len()];
        for about in self.tensors.values() {
            tensors[about.part].push(about.range.clone());
        }
        let mut hash = blake3::Hasher::new_derive_key("cofferdam 2026-12 files of a model");
        for (part, mut ranges) in self.parts.iter().zip(tensors) {
            ranges.sort_by_key(|range| range.start);
            ranges.push(part.len()..part.len());
            hash.update(&part.head()).update(&part.len().to_le_bytes());
            let mut at = 0;
            for range in ranges {
                let pieces = [at..range.start, range.clone()];
                for piece in pieces.into_iter().filter(|piece| !piece.is_empty()) {
                    hash.update(&(piece.end - piece.start).to_le_bytes());
                    hash.update(&part.digest(piece)?);
                }
                at = range.end;
            }
        }
        self.check_unchanged()?;
        Ok(*hash.finalize().as_bytes())
    }

    /// Whether the files are, as far as the system tells, what was opened: it is asked after the last read.
    ///
    /// # Errors
    /// One has another length or time of change.
    pub fn check_unchanged(&self) -> Result<(), Error> {
        self.parts.iter().try_for_each(Part::check_unchanged)
    }

    fn open_part(path: &Path) -> Result<File, Error> {
        let opened = metadata::open(path)?;
        let reader = BufReader::new(&opened.file);
        let mut source = Source::new(reader, path.to_owned(), opened.len);
        let said = Said::read(&mut source)?;
        let (begin, head) = (source.position(), source.digest());
        Ok(said.file(Part::of_file(opened, begin, head)))
    }

    /// Takes the tensors of another part.
    fn append(&mut self, part: File) -> Result<(), Error> {
        split::check_limit(self.tensors.len() + part.tensors.len())?;
        let behind = self.parts.len();
        for (name, about) in part.tensors {
            if self.tensors.contains_key(&name) {
                let problem = "occurs twice".into();
                return Err(Error::Tensor { name, problem });
            }
            let part = behind + about.part;
            self.tensors.insert(name, Description { part, ..about });
        }
        self.parts.extend(part.parts);
        Ok(())
    }
}

/// What stands before the tensors.
struct Said {
    metadata: Metadata,
    tensors: BTreeMap<String, Description>,
}

impl Said {
    fn read<R: Read>(source: &mut Source<R>) -> Result<Said, Error> {
        let header = Header::read(source)?;
        let alignment = alignment(&header.metadata)?;
        let mut claims = Vec::new();
        for index in 0..header.tensor_count {
            claims.push(Claim::read(source, index)?);
        }
        let padding = source.position().next_multiple_of(alignment) - source.position();
        if !claims.is_empty() {
            source.bytes(padding, || "the padding before the tensors".into())?;
        }
        for claim in &claims {
            claim.check(alignment, source.left())?;
        }
        Ok(Said {
            metadata: header.metadata,
            tensors: describe(claims)?,
        })
    }

    fn file(self, part: Part) -> File {
        File {
            metadata: self.metadata,
            tensors: self.tensors,
            parts: vec![part],
        }
    }
}

impl Deref for File {
    type Target = Metadata;

    fn deref(&self) -> &Metadata {
        &self.metadata
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (keys, tensors) = (self.metadata.iter().count(), self.tensors.len());
        write!(
            f,
            "GGUF file of {keys} keys, {tensors} tensors, {} bytes",
            self.parts.iter().map(Part::len).sum::<u64>()
        )
    }
}

fn alignment(metadata: &Metadata) -> Result<u64, Error> {
    let key = "general.alignment";
    let found = metadata.find_u32(key)?.unwrap_or(32);
    if !found.is_power_of_two() || !(8..=1 << 16).contains(&found) {
        let problem = format!("is {found}, expected a power of two from 8 to 65536");
        return Err(Error::Key {
            key: key.to_owned(),
            problem,
        });
    }
    Ok(found.into())
}

/// What the file says about a tensor, not yet believed.
struct Claim {
    name: String,
    dims: Vec<usize>,
    dtype: DType,
    offset: u64,
    bytes: u64,
    paired: Option<usize>,
}

impl Claim {
    fn read<R: Read>(source: &mut Source<R>, index: u64) -> Result<Claim, Error> {
        let name = source.name(|| format!("tensor {index}"))?;
        let what = || format!("the description of tensor `{name}`");
        let dim_count = source.u32(what)?;
        if !(1..=DIMS_MAX).contains(&dim_count) {
            let problem = format!("has {dim_count} dimensions, expected 1 to {DIMS_MAX}");
            return Err(Error::Tensor { name, problem });
        }
        let mut dims = Vec::new();
        for _ in 0..dim_count {
            dims.push(source.u64(what)?);
        }
        let id = source.u32(what)?;
        let offset = source.u64(what)?;
        let Some(dtype) = DType::from_id(id) else {
            let supported = DType::ALL.map(|dtype| dtype.to_string()).join(", ");
            let is =
                name_of_other(id).map_or(format!("of type {id}"), |it| format!("{it} (type {id})"));
            let problem = format!(
                "is {is}, which is not read: {supported} are. The same model as Q4_K_M, Q8_0 or F16 \
                 works if its architecture does; llama-quantize makes one (docs/models.md)"
            );
            return Err(Error::Tensor { name, problem });
        };
        Claim::new(name, dims, dtype, offset)
    }

    fn of(described: &Described) -> Result<Claim, Error> {
        let Described {
            name,
            dims,
            dtype,
            offset,
            ..
        } = described.clone();
        if dims.is_empty() || dims.len() > DIMS_MAX as usize {
            let problem = format!("has {} dimensions, expected 1 to {DIMS_MAX}", dims.len());
            return Err(Error::Tensor { name, problem });
        }
        let paired = described.paired;
        let rows = dims[1..]
            .iter()
            .fold(1u64, |rows, dim| rows.saturating_mul(*dim));
        if paired.is_some_and(|of| of == 0 || of % 2 == 1 || rows % of as u64 != 0) {
            let problem = format!("has {rows} rows, which are no pairs in heads of {paired:?}");
            return Err(Error::Tensor { name, problem });
        }
        Ok(Claim {
            paired,
            ..Claim::new(name, dims, dtype, offset)?
        })
    }

    fn new(name: String, dims: Vec<u64>, dtype: DType, offset: u64) -> Result<Claim, Error> {
        let Some(bytes) = stored_bytes(&dims, dtype) else {
            let problem = format!(
                "dimensions {dims:?} are not possible for {dtype}: none may be 0, the first must \
                 be a multiple of {}, and the product must be addressable",
                dtype.block_len(),
            );
            return Err(Error::Tensor { name, problem });
        };
        let dims = dims.into_iter().map(|dim| dim as usize).collect(); // their product fits
        Ok(Claim {
            name,
            dims,
            dtype,
            offset,
            bytes,
            paired: None,
        })
    }

    fn check(&self, alignment: u64, data_len: u64) -> Result<(), Error> {
        let name = || self.name.clone();
        if !self.offset.is_multiple_of(alignment) {
            let problem = format!("offset {} is not a multiple of {alignment}", self.offset);
            return Err(Error::Tensor {
                name: name(),
                problem,
            });
        }
        let have = data_len.saturating_sub(self.offset);
        if self.bytes > have {
            let what = format!("tensor `{}` at offset {}", self.name, self.offset);
            return Err(Error::Truncated {
                what,
                need: self.bytes,
                have,
            });
        }
        Ok(())
    }

    fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.bytes
    }
}

/// The bytes that such a tensor takes; `None` when there can be no such tensor.
fn stored_bytes(dims: &[u64], dtype: DType) -> Option<u64> {
    if !dims[0].is_multiple_of(dtype.block_len() as u64) || dims.contains(&0) {
        return None;
    }
    let elements = dims
        .iter()
        .try_fold(1u64, |product, dim| product.checked_mul(*dim))?;
    let bytes = (elements / dtype.block_len() as u64).checked_mul(dtype.block_bytes() as u64)?;
    // Four bytes for each element: the dequantized tensor must be addressable as well.
    isize::try_from(elements.checked_mul(4)?.max(bytes)).ok()?;
    Some(bytes)
}

/// Files the tensors by name; refuses two of one name, and two that share bytes.
fn describe(mut claims: Vec<Claim>) -> Result<BTreeMap<String, Description>, Error> {
    claims.sort_by_key(|claim| claim.offset);
    for pair in claims.windows(2) {
        let [before, after] = pair else {
            unreachable!("windows of two")
        };
        if before.range().end > after.range().start {
            let problem = format!("overlaps tensor `{}`", before.name);
            return Err(Error::Tensor {
                name: after.name.clone(),
                problem,
            });
        }
    }
    let mut tensors = BTreeMap::new();
    for claim in claims {
        let range = claim.range();
        let Claim {
            name,
            dims,
            dtype,
            paired,
            ..
        } = claim;
        if tensors.contains_key(&name) {
            return Err(Error::Tensor {
                name,
                problem: "occurs twice".into(),
            });
        }
        let part = 0;
        tensors.insert(
            name,
            Description {
                dims,
                dtype,
                part,
                range,
                paired,
            },
        );
    }
    Ok(tensors)
}
