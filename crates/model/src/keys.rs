//! The metadata keys of an architecture. What is read is written down, and what nobody read is
//! refused: a model that answers almost as it should is worse than one that does not load.

use std::cell::RefCell;
use std::collections::BTreeSet;

use crate::Error;
use crate::config::{COUNT_MAX, unsupported};

/// Keys that begin with the architecture's name; below they stand without it.
pub(crate) struct Keys<'f> {
    file: &'f gguf::Metadata,
    architecture: &'static str,
    read: RefCell<BTreeSet<String>>,
}

impl<'f> Keys<'f> {
    pub(crate) fn new(file: &'f gguf::Metadata, architecture: &'static str) -> Keys<'f> {
        let read = RefCell::default();
        Keys {
            file,
            architecture,
            read,
        }
    }

    /// The key as the file has it; it counts as read.
    pub(crate) fn name(&self, key: &str) -> String {
        let name = format!("{}.{key}", self.architecture);
        self.read.borrow_mut().insert(name.clone());
        name
    }

    pub(crate) fn count(&self, key: &str) -> Result<usize, Error> {
        let key = self.name(key);
        let n = self.file.u32(&key)? as usize;
        if n == 0 || n > COUNT_MAX {
            return Err(unsupported(key, n, "a count from 1 to 16777216"));
        }
        Ok(n)
    }

    pub(crate) fn u32_or(&self, key: &str, default: usize) -> Result<usize, Error> {
        let found = self.file.find_u32(&self.name(key))?;
        Ok(found.map_or(default, |n| n as usize))
    }

    pub(crate) fn f32(&self, key: &str) -> Result<f32, Error> {
        Ok(self.file.f32(&self.name(key))?)
    }

    pub(crate) fn find_f32(&self, key: &str) -> Result<Option<f32>, Error> {
        Ok(self.file.find_f32(&self.name(key))?)
    }

    pub(crate) fn find_bool(&self, key: &str) -> Result<Option<bool>, Error> {
        Ok(self.file.find_bool(&self.name(key))?)
    }

    pub(crate) fn find_string(&self, key: &str) -> Result<Option<&'f str>, Error> {
        Ok(self.file.find_string(&self.name(key))?)
    }

    /// Refuses every key that was not read: those that are known to mean nothing by their value,
    /// all others by their name.
    pub(crate) fn nothing_left(&self) -> Result<(), Error> {
        self.refuse_what_changes_the_result()?;
        // Said for people, and read by nobody; of another type the file is not what it seems.
        self.file
            .find_u32(&self.name("rope.scaling.original_context_length"))?;
        self.file.find_bool(&self.name("rope.scaling.finetuned"))?;
        self.file.find_string(&self.name("tensor_data_layout"))?;
        let prefix = format!("{}.", self.architecture);
        let read = self.read.borrow();
        let left = |(key, _): &(&str, _)| key.starts_with(&prefix) && !read.contains(*key);
        match self.file.iter().find(left) {
            None => Ok(()),
            Some((key, _)) => Err(unsupported(
                format!("key `{key}`"),
                "something",
                "no key that is not known to be computed or to mean nothing",
            )),
        }
    }

    fn refuse_what_changes_the_result(&self) -> Result<(), Error> {
        const COUNTS: [&str; 2] = ["expert_count", "attention.sliding_window"];
        const NUMBERS: [&str; 8] = [
            "attention.scale",
            "attention.clamp_kqv",
            "attention.max_alibi_bias",
            "attn_logit_softcapping",
            "final_logit_softcapping",
            "embedding_scale",
            "residual_scale",
            "logit_scale",
        ];
        for key in COUNTS.into_iter().filter(|key| !self.is_read(key)) {
            if let Some(n) = self.file.find_u32(&self.name(key))?.filter(|n| *n != 0) {
                return Err(unsupported(self.name(key), n, "0 or absent"));
            }
        }
        for key in NUMBERS.into_iter().filter(|key| !self.is_read(key)) {
            if let Some(x) = self.file.find_f32(&self.name(key))?.filter(|x| *x != 0.0) {
                return Err(unsupported(self.name(key), x, "0 or absent"));
            }
        }
        for (key, wanted, expected) in [
            ("attention.causal", true, "true or absent"),
            ("use_parallel_residual", false, "false or absent"),
        ] {
            let found = self.file.find_bool(&self.name(key))?;
            if let Some(is) = found.filter(|is| *is != wanted) {
                return Err(unsupported(self.name(key), is, expected));
            }
        }
        Ok(())
    }

    fn is_read(&self, key: &str) -> bool {
        let name = format!("{}.{key}", self.architecture);
        self.read.borrow().contains(&name)
    }
}
