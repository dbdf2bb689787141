//! The files of the repository, without what is built or fetched.

use std::fs;
use std::path::{Path, PathBuf};

/// What is in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Rust,
    Other,
}

/// One file.
#[derive(Clone, Debug)]
pub struct File {
    /// From the root, with slashes.
    pub path: String,
    pub kind: Kind,
    pub bytes: u64,
    /// Empty if it is not text.
    pub text: String,
}

impl File {
    /// Crate and path in it, for a file of a crate.
    pub fn in_crate(&self) -> Option<(&str, &str)> {
        self.path.strip_prefix("crates/")?.split_once('/')
    }
}

/// The root of the repository.
pub fn root() -> PathBuf {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    crate_dir
        .ancestors()
        .nth(2)
        .expect("crates/cofferdam is two levels below")
        .to_owned()
}

/// All files, sorted by path.
pub fn files() -> Vec<File> {
    let mut found = Vec::new();
    walk(&root(), &root(), &mut found);
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(found.len() > 50, "found {} files only", found.len());
    found
}

fn walk(root: &Path, directory: &Path, found: &mut Vec<File>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_symlink() || matches!(name.as_str(), "target" | ".git" | "shared") {
            continue;
        }
        if path.is_dir() {
            walk(root, &path, found);
            continue;
        }
        let bytes = path.metadata().unwrap().len();
        let kind = if name.ends_with(".rs") {
            Kind::Rust
        } else {
            Kind::Other
        };
        let is_lock = name == "Cargo.lock"; // made by cargo
        let text = if is_lock {
            None
        } else {
            fs::read_to_string(&path).ok()
        };
        let path = path
            .strip_prefix(root)
            .unwrap()
            .to_string_lossy()
            .into_owned();
        found.push(File {
            path,
            kind,
            bytes,
            text: text.unwrap_or_default(),
        });
    }
}
